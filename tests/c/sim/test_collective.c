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
	one_process(machine);
	return 0;
}
