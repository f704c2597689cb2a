/* sim.h: a machine under an injected clock, on which the arbiter's policy core gives the turns.
 *
 * Discrete events, one thread, no real time: minutes of contention take milliseconds. Three parts, each in its file:
 * devices that run the work queued by contexts, one context at a time in slices (sim_device.c); tenants that launch and
 * speak to the arbiter as the library's gate does, with its bounds on work in flight and its delays (sim_gate.c); and the
 * loop around the core: bells, latencies, publishing, audits, counting (sim.c). Used by every test_arb_*.c here.
 * Kernels of a lane are all alike, so a queue is a number: a thousand kernels cost no more events than one.
 */
#ifndef PARTAGE_TESTS_ARBITER_SIM_H
#define PARTAGE_TESTS_ARBITER_SIM_H

#include <stdbool.h>
#include <stdint.h>

#include "arbiter.h"
#include "check.h"
#include "partage/policy.h"

#define US      UINT64_C(1000)
#define MS      UINT64_C(1000000)
#define SECOND  UINT64_C(1000000000)
#define NEVER   UINT64_MAX
#define TENANTS 16
#define DEVICES 3
#define SAMPLE  (10 * MS)
#define SAMPLES 12000 /* 2 minutes */
#define WAITS   65536
#define ENDLESS (UINT64_MAX / 4)

struct rng {
	uint64_t state;
};
uint64_t draw(struct rng *rng);                                        /* 64 bits (splitmix) */
uint64_t draw_in(struct rng *rng, uint64_t least, uint64_t most); /* both included */

enum lie {
	HONEST,
	NEVER_DRAINED, /* once busy, says so for ever */
	SAYS_DRAINED,  /* says that nothing is in flight as soon as its turn is closed */
	LAUNCHES_ANYWAY, /* does not look at its turn, and says nothing */
	GARBAGE,       /* every claim is drawn */
	PLAUSIBLE,     /* the same, of moments that can have been, and never any time in flight */
};

/* What a tenant's program does: `work` ns of kernels, queued as the gate allows; waits for them; pauses; again. */
struct program {
	uint64_t kernel; /* ns */
	uint64_t work;   /* ns; ENDLESS: never waits */
	uint64_t pause;  /* ns */
	bool collective; /* each kernel waits for its like on the tenant's other devices */
	bool one_thread; /* of a collective: launches on one device after the other */
	enum lie lie;
	uint64_t queued; /* SAYS_DRAINED: ns that it queues in a turn */
};

struct lane { /* a tenant on a device */
	bool there;
	int device;
	/* published */
	bool open, watched, brief;
	uint32_t outstanding_us;
	uint64_t serial, deadline;
	/* gate */
	bool wants, busy;
	uint64_t want_since, busy_since, idle_since, flight;
	uint64_t wakes_at, notices_at, thinks_until;
	uint64_t todo;     /* ns of this round that are not launched yet */
	uint64_t round;    /* of a collective: kernels launched */
	bool blocked;      /* its thread stands at the gate and will ask at the next boundary of a kernel */
	/* device */
	uint64_t flying;   /* ns of work in flight */
	uint64_t closed_at;
	uint64_t done;     /* of a collective: kernels done */
	bool arrived;      /* its head has been on the device */
	/* counts */
	uint64_t got;      /* ns that the device spent on it */
	uint64_t launched; /* of a collective: ns of kernels */
	uint64_t forgotten, audited_got, audited_charged;
	uint64_t launches;
	uint64_t periods; /* in flight that have ended */
	uint32_t sample[SAMPLES]; /* us of `got`, every SAMPLE */
};

struct tenant {
	bool there;
	int id; /* in the core */
	struct program program;
	struct arb_share share;
	struct lane lane[DEVICES];
	uint64_t stopped_until;
	uint64_t *waits; /* WAITS of them */
	unsigned wait_count;
	uint64_t longest_wait;
};

struct device {
	int current;       /* tenant; -1: none */
	uint64_t slice_end, stalled_until;
	uint64_t busy;     /* ns */
};

struct sim {
	struct arb *arb;
	struct rng rng;
	uint64_t now, arb_at, sampled_at, audit_at, forgotten_at;
	bool native; /* no gate */
	bool again;  /* something was closed: the claims are read once more */
	int tenants, devices;
	struct tenant tenant[TENANTS];
	struct device device[DEVICES];
	int samples;
	/* how the machine is */
	uint64_t slice, switch_cost, hop_least, hop_most, audit_period;
	/* what went wrong: counted here, judged by the tests */
	uint64_t disturbed; /* undisturbed turns opened beside another's work before the guard */
	uint64_t holders;   /* times that two undisturbed turns were open */
	uint64_t decisions, undrained, liars;
};

static inline struct arb_share fixed(uint32_t cores)
{
	return (struct arb_share){cores, cores, 100, PTG_CLASS_FIXED, 1, true};
}

static inline struct arb_share burst(uint32_t cores, uint32_t ceiling, uint32_t weight)
{
	return (struct arb_share){cores, ceiling, weight, PTG_CLASS_BURST, 1, true};
}

static inline struct arb_share best_effort(void)
{
	return (struct arb_share){0, 1000, 100, PTG_CLASS_BEST_EFFORT, 1, true};
}

static inline struct arb_share with_priority(struct arb_share share, uint32_t priority)
{
	share.priority = priority;
	return share;
}

/* Launches without end. */
static inline struct program saturating(uint64_t kernel)
{
	return (struct program){.kernel = kernel, .work = ENDLESS};
}

/* `work` ns of kernels, then a pause. */
static inline struct program rounds(uint64_t kernel, uint64_t work, uint64_t pause)
{
	return (struct program){.kernel = kernel, .work = work, .pause = pause};
}

/* sim.c */
struct sim *sim_new(uint64_t seed, int devices);
void sim_free(struct sim *sim);
int sim_tenant(struct sim *sim, const struct arb_share *share, const struct program *program,
               unsigned devices); /* mask */
void sim_gone(struct sim *sim, int tenant);
void sim_share(struct sim *sim, int tenant, const struct arb_share *share);
void sim_run(struct sim *sim, uint64_t until);
void sim_ring(struct sim *sim);
uint64_t sim_hop(struct sim *sim); /* a drawn latency between processes */
void sim_forget(struct sim *sim);  /* counts from here on */
double sim_share_of(const struct sim *sim, int tenant, int device); /* per cent of the device's time */
/* Least and most got in any window, in us. */
void sim_window(const struct sim *sim, int tenant, int device, uint64_t window, uint32_t *least, uint32_t *most);
double sim_jain(const double *x, int count);
/* sim_gate.c */
void gate_publish(struct sim *sim, struct tenant *t, struct lane *l, const struct arb_turn *turn);
uint64_t gate_next(const struct sim *sim, const struct tenant *t, const struct lane *l);
void gate_step(struct sim *sim, struct tenant *t, struct lane *l);
void gate_boundary(struct sim *sim, struct tenant *t, struct lane *l);
void gate_drained(struct sim *sim, struct tenant *t, struct lane *l);
void gate_claim(struct sim *sim, struct tenant *t, struct lane *l, struct arb_claim *claim);
uint64_t gate_bound(const struct tenant *t, const struct lane *l);
bool gate_may_launch(const struct sim *sim, const struct tenant *t, const struct lane *l);
/* sim_device.c */
uint64_t device_next(struct sim *sim, int device);
void device_run(struct sim *sim, int device, uint64_t until);
void device_step(struct sim *sim, int device);

#endif
