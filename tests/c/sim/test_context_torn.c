/* A context is destroyed while other threads use its streams, make new ones and wait for them: every call answers, with
 * success or with an error, nobody hangs or crashes, and afterwards nothing is held. */
#include <pthread.h>

#include "sim_test.h"

#define ROUNDS  60
#define THREADS 4

static CUcontext context;
static CUstream stream;
static CUfunction spin;
static CUevent event;
static pthread_barrier_t together;

static bool goes_on(CUresult result)
{
	CHECK(result == CUDA_SUCCESS || result == CUDA_ERROR_NOT_READY || result == CUDA_ERROR_INVALID_CONTEXT ||
	              result == CUDA_ERROR_INVALID_HANDLE || result == CUDA_ERROR_CONTEXT_IS_DESTROYED ||
	              result == CUDA_ERROR_OUT_OF_MEMORY,
	      "a call beside the end of its context gave %d", result);
	return result == CUDA_SUCCESS || result == CUDA_ERROR_NOT_READY;
}

static void *user(void *argument)
{
	uint64_t ns = 1000;
	void *params[] = {&ns};
	bool own = (uintptr_t)argument % 2;
	OK(cuCtxSetCurrent(context));
	pthread_barrier_wait(&together);
	for (;;) {
		CUstream s = stream, made = NULL;
		if (own && !goes_on(cuStreamCreate(&made, 0)))
			break;
		if (made)
			s = made;
		if (!goes_on(cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, s, params, NULL)) ||
		    !goes_on(cuEventRecord(event, s)) || !goes_on(cuStreamQuery(s)) ||
		    !goes_on(cuStreamSynchronize(s)) || !goes_on(cuStreamWaitEvent(NULL, event, 0)))
			break;
		if (made && !goes_on(cuStreamDestroy(made)))
			break;
	}
	return NULL;
}

int main(void)
{
	setenv("PARTAGE_SIM", "zero", 1);
	OK(cuInit(0));
	CHECK(pthread_barrier_init(&together, NULL, THREADS + 1) == 0, "barrier");
	for (int round = 0; round < ROUNDS; round++) {
		pthread_t thread[THREADS];
		OK(cuCtxCreate(&context, NULL, 0, 0));
		OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
		OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
		spin = test_function("spin_ns");
		for (uintptr_t i = 0; i < THREADS; i++)
			CHECK(pthread_create(&thread[i], NULL, user, (void *)i) == 0, "thread");
		pthread_barrier_wait(&together);
		for (int i = 0; i < round; i++)
			sched_yield();
		OK(cuCtxDestroy(context));
		for (int i = 0; i < THREADS; i++)
			pthread_join(thread[i], NULL);
		OK(cuEventDestroy(event));
	}
	uint64_t memory = test_counters(test_machine(), 0)->memory;
	CHECK(memory == 0, "%lu bytes are held", (unsigned long)memory);
	return 0;
}
