/* Several processes on one engine: their work never overlaps, and killing one at any moment holds up nobody. */
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>

#include "sim_test.h"

static uint64_t monotonic_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static pid_t child(void (*work)(void *), void *arg)
{
	pid_t pid = fork();
	CHECK(pid >= 0, "no process");
	if (pid == 0) {
		work(arg);
		_exit(0);
	}
	return pid;
}

static void reap(pid_t pid, bool killed)
{
	int status;
	CHECK(waitpid(pid, &status, 0) == pid, "no child %d", (int)pid);
	CHECK(killed ? WIFSIGNALED(status) : WIFEXITED(status) && WEXITSTATUS(status) == 0,
	      "child ended with status %x", status);
}

static void fixed_work(void *arg)
{
	(void)arg;
	test_context("zero", 0);
	CUfunction spin = test_function("spin_ns");
	for (int i = 0; i < 50; i++)
		test_spin(spin, NULL, 1000000);
	OK(cuCtxSynchronize());
	CHECK(test_counters(test_machine(), 0)->busy_ns == 50000000, "50 kernels of 1 ms were busy for something else");
}

static void never_overlaps(struct sim_machine *machine)
{
	pid_t pids[4];
	uint64_t start = monotonic_ns(), before = machine->device[0].engine_busy_ns;
	for (int i = 0; i < 4; i++)
		pids[i] = child(fixed_work, NULL);
	for (int i = 0; i < 4; i++)
		reap(pids[i], false);
	uint64_t busy = machine->device[0].engine_busy_ns - before, until = machine->device[0].engine_until[0];
	CHECK(busy == 200000000, "four processes with 50 ms each: busy for %llu ns", (unsigned long long)busy);
	CHECK(until - start >= busy, "%llu ns of work were done in %llu ns", (unsigned long long)busy,
	      (unsigned long long)(until - start));
}

static void endless_work(void *arg)
{
	uint64_t ns = *(uint64_t *)arg;
	test_context("zero", 0);
	CUfunction spin = test_function("spin_ns");
	for (;;)
		test_spin(spin, NULL, ns);
}

static uint64_t total_busy(struct sim_machine *machine)
{
	return __atomic_load_n(&machine->device[0].engine_busy_ns, __ATOMIC_RELAXED);
}

/* Two processes work on; others come and are killed in the middle of everything. */
static void killed_at_any_moment(struct sim_machine *machine)
{
	uint64_t kernel[2] = {10000, 3000000};
	unsigned seed = 1;
	pid_t steady = child(endless_work, &kernel[1]);
	for (int i = 0; i < 60; i++) {
		uint64_t busy = total_busy(machine);
		pid_t victim = child(endless_work, &kernel[i % 2]);
		/* Killed once the engine has done some more work: at no particular place. */
		seed = seed * 1103515245 + 12345;
		while (total_busy(machine) < busy + seed % 4000000)
			sched_yield();
		kill(victim, SIGKILL);
		reap(victim, true);
	}
	kill(steady, SIGKILL);
	reap(steady, true);
	reap(child(fixed_work, NULL), false);
}

/* On a card where that costs something, contexts that take turns leave the engine to nobody now and then. */
static void hand_overs_cost(struct sim_machine *machine)
{
	uint64_t kernel = 3000000;
	struct sim_device_state *device = &machine->device[0];
	machine->model[0].switch_us = 50;
	uint64_t start = monotonic_ns(), before = total_busy(machine);
	pid_t pids[2] = {child(endless_work, &kernel), child(endless_work, &kernel)};
	while (__atomic_load_n(&device->switches, __ATOMIC_RELAXED) < 20)
		sched_yield();
	uint64_t switches = __atomic_load_n(&device->switches, __ATOMIC_ACQUIRE);
	uint64_t busy = __atomic_load_n(&device->engine_busy_ns, __ATOMIC_ACQUIRE) - before;
	uint64_t until = __atomic_load_n(&device->engine_until[0], __ATOMIC_ACQUIRE);
	for (int i = 0; i < 2; i++) {
		kill(pids[i], SIGKILL);
		reap(pids[i], true);
	}
	CHECK(until - start >= busy + switches * 50000, "%lu ns of work and %lu hand-overs in %lu ns", busy, switches,
	      until - start);
	machine->model[0].switch_us = 0;
}

int main(void)
{
	/* The machine is made by a first process; this one stays without a driver, so that it may fork. */
	reap(child(fixed_work, NULL), false);
	struct sim_machine *machine = test_machine();
	never_overlaps(machine);
	hand_overs_cost(machine);
	killed_at_any_moment(machine);
	return 0;
}
