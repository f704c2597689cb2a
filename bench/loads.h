/* loads.h: what bench/loads (control, loads.c) and its work (load_kinds.c) have in common. */
#ifndef PARTAGE_BENCH_LOADS_H
#define PARTAGE_BENCH_LOADS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define MOST_PROCESSES 64
#define STEP_PARTS     16 /* buckets of the histogram for each power of two: steps are known to 6 % */
#define STEP_BUCKETS   (64 * STEP_PARTS)

/* struct order.phase */
#define PHASE_WAIT 0 /* nothing on the device, asleep */
#define PHASE_WORK 1
#define PHASE_END  2

/* One process: written by it alone. */
struct worker {
	int pid;
	_Atomic uint32_t ready; /* 1: may begin; 2: it ended with `error` */
	char error[160];
	uint64_t steps;
	uint64_t bucket[STEP_BUCKETS]; /* steps by duration */
	uint64_t counted; /* launches that the device itself has counted; 0 where kernels do not compute */
};

/* What all processes of one program map. */
struct order {
	_Atomic uint32_t phase; /* PHASE_*; futex */
	_Atomic uint32_t settled; /* futex: +1 with every worker that is ready, or has none of its work on the device */
	struct worker worker[MOST_PROCESSES];
};

/* What a program does, from its command line. */
struct load {
	const char *kind;
	uint64_t kernel_ns, gap_ns;
	uint32_t count; /* nodes of a graph, kernels of a burst */
	uint64_t loops; /* of a real kernel; 0: the device is simulated and told the time */
};

/* Whether there is such a kind; the names of all where `name` is NULL are in load_names(). */
bool load_known(const char *name);
const char *load_names(void);
/* The whole life of a worker behind its fork: set up, wait, work, until PHASE_END. Never returns. */
_Noreturn void load_run(const struct load *load, struct order *order, struct worker *self);
/* Prints the loops of a kernel that takes a millisecond on this device; returns an exit code. */
int load_calibrate(void);

uint64_t load_now(void); /* CLOCK_MONOTONIC, ns */
/* Sleeps until the phase is not `phase` any more. */
void load_wait(struct order *order, uint32_t phase);
void load_settled(struct order *order);

#endif
