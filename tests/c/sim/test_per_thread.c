/* Per-thread streams: one per thread, blocking towards the NULL stream only, gone with their thread. */
#include <dlfcn.h>
#include <pthread.h>

#include "sim_test.h"

static CUcontext context;
static unsigned long long ids[2];

static void *use_own(void *arg)
{
	OK(cuCtxSetCurrent(context));
	OK(cuStreamGetId(CU_STREAM_PER_THREAD, &ids[(intptr_t)arg]));
	return NULL;
}

static void *launch_and_leave(void *arg)
{
	uint64_t ns = 2000;
	void *params[] = {&ns};
	OK(cuCtxSetCurrent(context));
	OK(cuLaunchKernel(arg, 1, 1, 1, 1, 1, 1, 0, CU_STREAM_PER_THREAD, params, NULL));
	return NULL;
}

static void run_thread(void *(*entry)(void *), void *arg)
{
	pthread_t thread;
	CHECK(pthread_create(&thread, NULL, entry, arg) == 0, "no thread");
	pthread_join(thread, NULL);
}

int main(void)
{
	unsigned long long own, again, legacy, through_null;
	sem_t gate;
	context = test_context("zero", 0);
	CUfunction spin = test_function("spin_ns");
	run_thread(use_own, (void *)0);
	run_thread(use_own, (void *)1);
	OK(cuStreamGetId(CU_STREAM_PER_THREAD, &own));
	OK(cuStreamGetId(CU_STREAM_PER_THREAD, &again));
	OK(cuStreamGetId(CU_STREAM_LEGACY, &legacy));
	CHECK(own == again && own != legacy && own != ids[0] && own != ids[1] && ids[0] != ids[1],
	      "streams %llu, %llu, NULL %llu, threads %llu and %llu", own, again, legacy, ids[0], ids[1]);

	/* A program built for per-thread default streams means its own stream by NULL. */
	CUresult (*get_id_ptsz)(CUstream, unsigned long long *) =
	        (CUresult (*)(CUstream, unsigned long long *))dlsym(RTLD_DEFAULT, "cuStreamGetId_ptsz");
	CHECK(get_id_ptsz, "cuStreamGetId_ptsz is not exported");
	OK(get_id_ptsz(NULL, &through_null));
	CHECK(through_null == own, "NULL meant stream %llu, not the thread's own %llu", through_null, own);
	OK(cuStreamGetId(NULL, &again));
	CHECK(again == legacy, "afterwards the plain call means stream %llu", again);

	/* The NULL stream waits for it, and work outlives its thread. */
	test_gate_close(&gate, CU_STREAM_PER_THREAD);
	test_spin(spin, NULL, 1000);
	GIVES(CUDA_ERROR_NOT_READY, cuStreamQuery(NULL));
	test_gate_open(&gate);
	OK(cuStreamSynchronize(NULL));
	for (int i = 0; i < 100; i++)
		run_thread(launch_and_leave, spin);
	OK(cuCtxSynchronize());
	uint64_t busy = test_counters(test_machine(), 0)->busy_ns;
	CHECK(busy == 201000, "all work took %llu ns", (unsigned long long)busy);
	OK(cuDevicePrimaryCtxReset(0));
	return 0;
}
