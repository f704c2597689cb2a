/* loads.c: programs that keep a device busy in the ways that programs do, to see what share of it they get:
 * loads KIND PROCESSES KERNEL_NS [GAP_NS [COUNT [LOOPS]]], or loads calibrate. Started by bench/shares.py and tests/gpu,
 * alone in a container, on a simulated or a real driver; it knows nothing of what stands before the driver.
 *
 * PROCESSES processes are forked, each with a context and work of its own (load_kinds.c); this one never touches the
 * device. It writes `ready PID...` once all stand before their first launch, then obeys a word a line:
 *   go      work (all processes at once)     pause   no more launches; answers `paused` when the device has done all
 *   mark    forget the steps so far          report  answers with the steps since, as a line of JSON, times in ns
 *   stop    end (as the end of input does)
 * Exit 1: bad arguments, or a worker that could not go on (`error TEXT` on stdout). A worker may be killed from outside:
 * the others go on. */
#include "loads.h"

#include <errno.h>
#include <linux/futex.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static struct order *order;
static int processes;
static uint64_t marked[STEP_BUCKETS]; /* of all workers, at the last mark */
static uint64_t marked_steps, marked_counted;

uint64_t load_now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

void load_wait(struct order *shared, uint32_t phase)
{
	while (atomic_load(&shared->phase) == phase)
		syscall(SYS_futex, &shared->phase, FUTEX_WAIT, phase, NULL, NULL, 0);
}

void load_settled(struct order *shared)
{
	atomic_fetch_add(&shared->settled, 1);
	syscall(SYS_futex, &shared->settled, FUTEX_WAKE, 1, NULL, NULL, 0);
}

static void enter(uint32_t phase)
{
	atomic_store(&order->phase, phase);
	syscall(SYS_futex, &order->phase, FUTEX_WAKE, MOST_PROCESSES, NULL, NULL, 0);
}

/* Until as many workers have settled, or one of them is gone: then fewer are awaited. */
static void await_settled(uint32_t before)
{
	struct timespec patience = {.tv_nsec = 50000000};
	for (;;) {
		uint32_t seen = atomic_load(&order->settled);
		int living = 0;
		for (int i = 0; i < processes; i++)
			living += kill(order->worker[i].pid, 0) == 0;
		if ((int)(seen - before) >= living)
			return;
		syscall(SYS_futex, &order->settled, FUTEX_WAIT, seen, &patience, NULL, 0);
		while (waitpid(-1, NULL, WNOHANG) > 0)
			;
	}
}

static void start_workers(const struct load *load)
{
	pid_t parent = getpid();
	for (int i = 0; i < processes; i++) {
		pid_t pid = fork();
		if (pid < 0) {
			printf("error fork: %s\n", strerror(errno));
			exit(1);
		}
		if (pid == 0) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			if (getppid() != parent)
				_exit(1);
			load_run(load, order, &order->worker[i]);
		}
		order->worker[i].pid = pid;
	}
	await_settled(0);
	for (int i = 0; i < processes; i++) {
		if (order->worker[i].ready != 1) {
			const char *error = order->worker[i].error;
			printf("error worker %d: %s\n", i, *error ? error : "died before it was ready");
			exit(1);
		}
	}
}

/* ---- steps --------------------------------------------------------------------------------------------------------- */

static void add_up(uint64_t bucket[STEP_BUCKETS], uint64_t *steps, uint64_t *counted)
{
	memset(bucket, 0, STEP_BUCKETS * sizeof(*bucket));
	*steps = *counted = 0;
	for (int i = 0; i < processes; i++) {
		const struct worker *worker = &order->worker[i];
		for (int k = 0; k < STEP_BUCKETS; k++)
			bucket[k] += worker->bucket[k];
		*steps += worker->steps;
		*counted += worker->counted;
	}
}

/* The longest duration that belongs to a bucket. */
static uint64_t bucket_end(int k)
{
	int power = k / STEP_PARTS;
	if (power < 4)
		return (uint64_t)k;
	return ((uint64_t)1 << power) + ((uint64_t)(k % STEP_PARTS + 1) << (power - 4)) - 1;
}

/* The duration that so many permille of the steps do not pass. */
static uint64_t percentile(const uint64_t bucket[STEP_BUCKETS], uint64_t steps, uint64_t permille)
{
	uint64_t rank = (steps * permille + 999) / 1000, seen = 0;
	for (int k = 0; k < STEP_BUCKETS && steps; k++) {
		seen += bucket[k];
		if (seen >= rank)
			return bucket_end(k);
	}
	return 0;
}

static void report(void)
{
	uint64_t bucket[STEP_BUCKETS], steps, counted, inside = 0;
	add_up(bucket, &steps, &counted);
	for (int k = 0; k < STEP_BUCKETS; k++) {
		bucket[k] -= marked[k];
		inside += bucket[k];
	}
	int errors = 0;
	for (int i = 0; i < processes; i++)
		errors += order->worker[i].ready == 2;
	printf("{\"steps\": %llu, \"counted\": %llu, \"errors\": %d", (unsigned long long)(steps - marked_steps),
	       (unsigned long long)(counted - marked_counted), errors);
	static const struct {
		const char *name;
		unsigned permille;
	} points[] = {{"p50_ns", 500}, {"p95_ns", 950}, {"p99_ns", 990}, {"longest_ns", 1000}};
	for (unsigned i = 0; i < sizeof(points) / sizeof(*points); i++)
		printf(", \"%s\": %llu", points[i].name,
		       (unsigned long long)percentile(bucket, inside, points[i].permille));
	printf("}\n");
}

/* ---- orders -------------------------------------------------------------------------------------------------------- */

static bool obey(const char *word)
{
	if (strcmp(word, "go") == 0) {
		enter(PHASE_WORK);
	} else if (strcmp(word, "pause") == 0) {
		uint32_t before = atomic_load(&order->settled);
		if (atomic_load(&order->phase) == PHASE_WORK) {
			enter(PHASE_WAIT);
			await_settled(before);
		}
		printf("paused\n");
	} else if (strcmp(word, "mark") == 0) {
		add_up(marked, &marked_steps, &marked_counted);
	} else if (strcmp(word, "report") == 0) {
		report();
	} else {
		return false;
	}
	return true;
}

static int end(void)
{
	int code = 0;
	enter(PHASE_END);
	while (waitpid(-1, NULL, 0) > 0)
		;
	for (int i = 0; i < processes; i++) {
		if (order->worker[i].ready == 2) {
			printf("error worker %d: %s\n", i, order->worker[i].error);
			code = 1;
		}
	}
	return code;
}

static int usage(void)
{
	fprintf(stderr,
	        "usage: loads KIND PROCESSES KERNEL_NS [GAP_NS [COUNT [LOOPS]]]\n"
	        "       loads calibrate\n"
	        "KIND: %s; PROCESSES: 1 to %d\n",
	        load_names(), MOST_PROCESSES);
	return 1;
}

int main(int argc, char **argv)
{
	char word[32];
	if (argc == 2 && strcmp(argv[1], "calibrate") == 0)
		return load_calibrate();
	if (argc < 4 || !load_known(argv[1]))
		return usage();
	struct load load = {.kind = argv[1], .kernel_ns = strtoull(argv[3], NULL, 10), .count = 1};
	processes = (int)strtol(argv[2], NULL, 10);
	load.gap_ns = argc > 4 ? strtoull(argv[4], NULL, 10) : 0;
	load.count = argc > 5 ? (uint32_t)strtoul(argv[5], NULL, 10) : 1;
	load.loops = argc > 6 ? strtoull(argv[6], NULL, 10) : 0;
	if (processes < 1 || processes > MOST_PROCESSES || !load.count)
		return usage();
	order = mmap(NULL, sizeof(*order), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (order == MAP_FAILED) {
		perror("loads: mmap");
		return 1;
	}
	setvbuf(stdout, NULL, _IOLBF, 0);
	start_workers(&load);
	printf("ready");
	for (int i = 0; i < processes; i++)
		printf(" %d", order->worker[i].pid);
	printf("\n");
	while (scanf("%31s", word) == 1 && obey(word))
		;
	return end();
}
