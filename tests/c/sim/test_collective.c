/* A collective keeps its device busy until its partner on the other device has come; a dead partner's place is void. */
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>

#include "sim_test.h"

#define NAME "ncclDevKernel_AllReduce"

static void launch(CUfunction function, CUstream stream)
{
	uint64_t p = 0;
	void *params[] = {&p};
	OK(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, params, NULL));
}

static void one_process(struct sim_machine *machine)
{
	CUcontext first, second;
	CUstream a, b;
	first = test_context(NULL, 0);
	CUfunction on_first = test_function(NAME), spin = test_function("spin_ns");
	OK(cuStreamCreate(&a, CU_STREAM_NON_BLOCKING));
	second = test_context(NULL, 1);
	CUfunction on_second = test_function(NAME);
	OK(cuStreamCreate(&b, CU_STREAM_NON_BLOCKING));
	struct sim_client_device *counters = test_counters(machine, 0);

	OK(cuCtxSetCurrent(first));
	launch(on_first, a);
	while (__atomic_load_n(&counters->busy_ns, __ATOMIC_RELAXED) <
	       1000000) /* it waits, and keeps the engine busy */
		sched_yield();
	GIVES(CUDA_ERROR_NOT_READY, cuStreamQuery(a));
	CHECK(test_counters(machine, 1)->busy_ns == 0, "the partner's device is busy without it");
	OK(cuCtxSetCurrent(second));
	launch(on_second, b);
	OK(cuStreamSynchronize(b));
	OK(cuStreamSynchronize(a));
	CHECK(test_counters(machine, 1)->busy_ns == 20000, "the one that came second was busy for %llu ns",
	      (unsigned long long)test_counters(machine, 1)->busy_ns);
	/* Ten rounds, both ways round: nothing is left behind in the table. */
	for (int i = 0; i < 10; i++) {
		launch(i % 2 ? on_first : on_second, i % 2 ? a : b);
		launch(i % 2 ? on_second : on_first, i % 2 ? b : a);
		(void)spin;
	}
	OK(cuStreamSynchronize(a));
	OK(cuStreamSynchronize(b));
	for (int i = 0; i < SIM_MEETINGS; i++)
		CHECK(machine->meeting[i].key == 0, "entry %d is still in use", i);
}

static void waits_alone(void)
{
	test_context(NULL, 0);
	launch(test_function(NAME), NULL);
	pause();
}

static void partner_dies(struct sim_machine *machine)
{
	pid_t pid = fork();
	CHECK(pid >= 0, "no process");
	if (pid == 0)
		waits_alone();
	uint64_t open = 0;
	while (!open) {
		sched_yield();
		for (int i = 0; i < SIM_MEETINGS; i++)
			open |= __atomic_load_n(&machine->meeting[i].key, __ATOMIC_RELAXED);
	}
	kill(pid, SIGKILL);
	CHECK(waitpid(pid, NULL, 0) == pid, "no child");
}

/* Another program that never stops, on one of the two devices. */
static pid_t neighbour(int device)
{
	pid_t pid = fork();
	CHECK(pid >= 0, "no process");
	if (pid)
		return pid;
	test_context(NULL, device);
	CUfunction spin = test_function("spin_ns");
	for (;;)
		test_spin(spin, NULL, 1000000);
}

/* Partners find each other although each device goes on with somebody else's work while one of them waits. */
static void beside_neighbours(struct sim_machine *machine)
{
	pid_t pids[2] = {neighbour(0), neighbour(1)};
	CUfunction function[2];
	CUstream stream[2];
	for (int i = 0; i < 2; i++) {
		test_context(NULL, i);
		function[i] = test_function(NAME);
		OK(cuStreamCreate(&stream[i], CU_STREAM_NON_BLOCKING));
	}
	for (int round = 0; round < 20; round++) {
		int first = round % 2, second = 1 - first;
		uint64_t *busy = &machine->device[first].engine_busy_ns;
		uint64_t before = __atomic_load_n(busy, __ATOMIC_RELAXED);
		launch(function[first], stream[first]);
		while (__atomic_load_n(busy, __ATOMIC_RELAXED) < before + 5000000)
			sched_yield();
		GIVES(CUDA_ERROR_NOT_READY, cuStreamQuery(stream[first]));
		launch(function[second], stream[second]);
		OK(cuStreamSynchronize(stream[0]));
		OK(cuStreamSynchronize(stream[1]));
	}
	for (int i = 0; i < 2; i++) {
		CHECK(test_counters(machine, i)->busy_ns > 0, "no collective ran on device %d", i);
		kill(pids[i], SIGKILL);
		CHECK(waitpid(pids[i], NULL, 0) == pids[i], "no child");
	}
}

int main(void)
{
	setenv("PARTAGE_SIM", "zero2", 1);
	pid_t pid = fork(); /* makes the machine, so that this process can look at it before it uses the driver */
	if (pid == 0) {
		OK(cuInit(0));
		_exit(0);
	}
	CHECK(waitpid(pid, NULL, 0) == pid, "no child");
	struct sim_machine *machine = test_machine();
	partner_dies(machine);
	pid = fork(); /* it has neighbours of its own, made before it uses the driver */
	if (pid == 0) {
		beside_neighbours(machine);
		_exit(0);
	}
	int status;
	CHECK(waitpid(pid, &status, 0) == pid && status == 0, "beside neighbours: status %x", status);
	one_process(machine);
	return 0;
}
