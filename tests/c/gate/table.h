/* table.h: a hand-over whose turns the test itself gives: policy with the gate shut, ledger, turns file, and a small
 * arbiter that does what it is told.
 *
 * The test's process is the arbiter and never calls the driver after the machine was made; programs are players (grant.h)
 * in processes of their own. Nothing is measured in time: the test sleeps on the ledger's bell until the ledger, or a
 * player, says something (TABLE_UNTIL; a bound on hangs is the runner's time-out) and asks the simulated driver's
 * counters. */
#ifndef PARTAGE_TESTS_TABLE_H
#define PARTAGE_TESTS_TABLE_H

#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>

#include "partage/turns.h"
#include "shim/grant.h"

#define MS UINT64_C(1000000)

struct table {
	const char *name;
	struct ptg_turns *turns;
	struct ptg_ledger *ledger;
	struct ptg_policy policy;
	struct table_heart *heart; /* shared with players */
};

struct table_heart {
	uint32_t lives; /* the arbiter */
	uint32_t open; /* bit by device: its deadline is moved on */
};

/* Zeroed memory that players share with the test. */
static inline void *table_shared(size_t bytes)
{
	void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(p != MAP_FAILED, "mmap");
	return p;
}

static inline uint64_t table_now(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

#define LOOK(field) __atomic_load_n(&(field), __ATOMIC_SEQ_CST)

/* ---- waiting for each other -------------------------------------------------------------------------------------------- */

static struct table *table_own; /* the one hand-over of a test; players inherit it with the ledger's mapping */

/* Sleeps until the condition holds; whoever makes it true counts the word up and wakes who sleeps on it. */
#define TABLE_UNTIL_BY(word, condition)                                                                                \
	for (uint32_t seen_; seen_ = LOOK(word), !(condition);)                                                        \
	syscall(SYS_futex, &(word), FUTEX_WAIT, seen_, NULL, NULL, 0)

/* The same by the bell that processes ring for the arbiter, and players by table_ring(). Meanwhile they have to ring when
 * they begin and end. */
#define TABLE_UNTIL(condition)                                                                                         \
	do {                                                                                                           \
		uint32_t unwatched_ = table_watch();                                                                   \
		TABLE_UNTIL_BY(table_own->ledger->turn_bell, condition);                                               \
		table_unwatch(unwatched_);                                                                             \
	} while (0)

/* Returns which devices were not watched before. */
static inline uint32_t table_watch(void)
{
	uint32_t unwatched = 0;
	for (uint32_t i = 0; i < table_own->policy.ndev; i++)
		if (!(__atomic_fetch_or(&table_own->turns->turn[i].flags, PTG_TURN_WATCHED, __ATOMIC_SEQ_CST) &
		      PTG_TURN_WATCHED))
			unwatched |= 1u << i;
	return unwatched;
}

static inline void table_unwatch(uint32_t devices)
{
	for (uint32_t i = 0; i < table_own->policy.ndev; i++)
		if (devices >> i & 1)
			__atomic_and_fetch(&table_own->turns->turn[i].flags, ~PTG_TURN_WATCHED, __ATOMIC_SEQ_CST);
}

/* In a player: it has said something that the ledger does not say. */
static inline void table_ring(void)
{
	uint32_t *bell = &table_own->ledger->turn_bell;
	__atomic_add_fetch(bell, 1, __ATOMIC_SEQ_CST);
	syscall(SYS_futex, bell, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

/* In a player: from now on it is `value`. */
#define TABLE_TELL(field, value)                                                                                       \
	do {                                                                                                           \
		__atomic_store_n(&(field), value, __ATOMIC_SEQ_CST);                                                   \
		table_ring();                                                                                          \
	} while (0)

/* ---- the arbiter -------------------------------------------------------------------------------------------------------- */

/* It beats. */
static inline void table_beat(struct table *t, uint64_t now)
{
	for (uint32_t i = 0; LOOK(t->heart->lives) && i < t->policy.ndev; i++) {
		if (LOOK(t->heart->open) >> i & 1)
			__atomic_store_n(&t->turns->turn[i].deadline_ns, now + 500 * MS, __ATOMIC_SEQ_CST);
		__atomic_store_n(&t->turns->turn[i].heartbeat_ns, now, __ATOMIC_SEQ_CST);
	}
}

/* The heart: it beats whenever anybody here looks at the clock, the library and the simulated driver too, which are bound
 * to this function. An arbiter that beat by itself would be silent whenever a busy machine did not run it, and the library
 * would be right to go on without it. */
__attribute__((visibility("default"))) int clock_gettime(clockid_t clock, struct timespec *now)
{
	long error = syscall(SYS_clock_gettime, clock, now);
	if (error == 0 && clock == CLOCK_MONOTONIC && table_own)
		table_beat(table_own, (uint64_t)now->tv_sec * 1000000000u + (uint64_t)now->tv_nsec);
	return (int)error;
}

static inline void table_live(struct table *t)
{
	__atomic_store_n(&t->heart->lives, 1, __ATOMIC_SEQ_CST);
	table_now();
}

static inline void table_die(struct table *t)
{
	__atomic_store_n(&t->heart->lives, 0, __ATOMIC_SEQ_CST);
}

/* Returns how many slept. */
static inline long table_wake(struct table *t, int device)
{
	return syscall(SYS_futex, &t->turns->turn[device].word, FUTEX_WAKE, 1000, NULL, NULL, 0);
}

static inline void table_turn(struct table *t, int device, bool open)
{
	struct ptg_turn *turn = &t->turns->turn[device];
	if ((LOOK(turn->word) & 1) == open)
		return;
	if (open) {
		__atomic_or_fetch(&t->heart->open, 1u << device, __ATOMIC_SEQ_CST);
		table_now();
	} else {
		__atomic_and_fetch(&t->heart->open, ~(1u << device), __ATOMIC_SEQ_CST);
	}
	__atomic_add_fetch(&turn->word, 1, __ATOMIC_SEQ_CST);
	table_wake(t, device);
}

static inline void table_open(struct table *t)
{
	table_turn(t, 0, true);
}

static inline void table_close(struct table *t)
{
	table_turn(t, 0, false);
}

/* Sets what the gate looks at, as whoever writes policies does; waiters are woken, as the arbiter does. */
static inline void table_gate(struct table *t, uint32_t mask)
{
	t->policy.gated = mask;
	for (uint32_t i = 0; i < t->policy.ndev; i++)
		t->policy.device[i].gated = mask >> i & 1;
	grant_change(t->name, t->policy);
	for (uint32_t i = 0; i < t->policy.ndev; i++)
		table_wake(t, (int)i);
}

static inline struct ptg_turns *table_file(const char *name, uint32_t ndev)
{
	const char *path = grant_path(name, "turns");
	int fd = open(path, O_CREAT | O_RDWR | O_CLOEXEC, 0600);
	CHECK(fd >= 0 && ftruncate(fd, sizeof(struct ptg_turns)) == 0, "%s", path);
	close(fd);
	struct ptg_turns *turns = share_map(path, sizeof(*turns));
	turns->layout = PTG_TURNS_LAYOUT;
	turns->size = sizeof(*turns);
	turns->ndev = ndev;
	turns->arbiter = getpid();
	turns->magic = PTG_TURNS_MAGIC;
	return turns;
}

/* Its size, no more: whoever comes first makes it whole. */
static inline struct ptg_ledger *table_ledger(const char *name)
{
	const char *path = grant_path(name, "ledger");
	CHECK(truncate(path, sizeof(struct ptg_ledger)) == 0, "%s", path);
	return share_map(path, sizeof(struct ptg_ledger));
}

/* A policy of `count` devices, all gated, nobody's turn; the arbiter lives. Makes the machine. */
static inline void table_set(struct table *t, const char *name, unsigned count)
{
	struct granted granted[PTG_DEVICES];
	scene("the machine", touch);
	for (unsigned i = 0; i < count; i++)
		granted[i] = (struct granted){.device = (int)i, .memory = 4 * GIB};
	*t = (struct table){.name = name, .policy = grant_policy(granted, count)};
	t->heart = table_shared(sizeof(*t->heart));
	t->policy.gated = (1u << count) - 1;
	for (unsigned i = 0; i < count; i++) {
		t->policy.device[i].gated = 1;
		t->policy.device[i].turn = i;
		t->policy.device[i].cores = 500;
	}
	grant_seal(&t->policy);
	grant_hand_over(name, &t->policy);
	t->turns = table_file(name, count);
	t->ledger = table_ledger(name);
	table_own = t;
	table_live(t);
}

static inline void table_end(struct table *t)
{
	table_die(t);
}

static inline int table_find(struct table *t, pid_t pid)
{
	for (int i = 0; i < PTG_SLOTS; i++)
		if (LOOK(t->ledger->slot[i].state) == PTG_SLOT_USED && t->ledger->slot[i].pid == pid)
			return i;
	return -1;
}

/* The slot of a process; waits until it has one. */
static inline uint32_t table_slot(struct table *t, pid_t pid)
{
	int slot = -1;
	TABLE_UNTIL_BY(t->ledger->doorbell, (slot = table_find(t, pid)) >= 0);
	return (uint32_t)slot;
}

/* Until the lock of a slot is nobody's, which is how others know that its process is dead. */
static inline void table_await_death(struct table *t, uint32_t slot)
{
	struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = slot, .l_len = 1};
	int fd = open(grant_path(t->name, "ledger"), O_RDWR | O_CLOEXEC);
	CHECK(fd >= 0 && fcntl(fd, F_OFD_SETLKW, &lock) == 0, "the lock of slot %u", slot);
	close(fd);
}

/* What a process says to the arbiter. */
static inline struct ptg_slot_turn *table_line(struct table *t, pid_t pid, int device)
{
	uint32_t slot = table_slot(t, pid);
	return &t->ledger->turn[device][slot];
}

/* Nanoseconds of the engine that were used so far, by everybody. */
static inline uint64_t table_engine(int device)
{
	return __atomic_load_n(&machine()->device[device].engine_busy_ns, __ATOMIC_SEQ_CST);
}

/* ---- in a player ------------------------------------------------------------------------------------------------------ */

static const char table_ptx[] __attribute__((unused)) = ".version 8.0\n.target sm_70\n.address_size 64\n"
                                                        ".visible .entry spin_ns(.param .u64 ns) { ret; }\n"
                                                        ".visible .entry nothing() { ret; }\n";

static inline CUfunction table_kernel(const char *name)
{
	CUmodule module;
	CUfunction function;
	OK(cuModuleLoadData(&module, table_ptx));
	OK(cuModuleGetFunction(&function, module, name));
	return function;
}

/* A graph of one kernel; what `params` points to is read now. */
static inline CUgraphExec table_graph(CUfunction kernel, void **params)
{
	CUgraph graph;
	CUgraphNode node;
	CUgraphExec exec;
	CUDA_KERNEL_NODE_PARAMS_v2 one = {.func = kernel,
	                                  .gridDimX = 1,
	                                  .gridDimY = 1,
	                                  .gridDimZ = 1,
	                                  .blockDimX = 1,
	                                  .blockDimY = 1,
	                                  .blockDimZ = 1,
	                                  .kernelParams = params};
	OK(cuGraphCreate(&graph, 0));
	OK(cuGraphAddKernelNode_v2(&node, graph, NULL, 0, &one));
	OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
	return exec;
}

static inline CUresult table_spin(CUfunction spin, CUstream stream, uint64_t ns)
{
	void *params[] = {&ns};
	return cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, stream, params, NULL);
}

#endif
