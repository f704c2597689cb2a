/* C012, D8b, D27: contexts. One estimate is charged while this process refers to a primary context, however often and
 * from however many threads; none after a failed retain; created contexts are charged each; what lay in a context goes
 * with it; the container's first context is never refused, a further one that does not fit is. The machine's contexts
 * take 506 MiB each, and PARTAGE_CONTEXT_MEMORY says so.
 */
#include <nvml.h>
#include <pthread.h>

#include "shim_test.h"

#define CONTEXT (506 * MIB)

/* Also without a context. */
static uint64_t charged(void)
{
	nvmlDevice_t device;
	nvmlMemory_t memory;
	CHECK(nvmlInit_v2() == NVML_SUCCESS && nvmlDeviceGetHandleByIndex_v2(0, &device) == NVML_SUCCESS, "NVML");
	CHECK(nvmlDeviceGetMemoryInfo(device, &memory) == NVML_SUCCESS, "memory");
	return memory.used;
}

static void *retain(void *argument)
{
	CUcontext context;
	(void)argument;
	OK(cuDevicePrimaryCtxRetain(&context, 0));
	return context;
}

static void counted(void)
{
	CUcontext context;
	pthread_t thread[16];
	arm("cuDevicePrimaryCtxRetain", CUDA_ERROR_OUT_OF_MEMORY, 0, 1);
	IS(cuDevicePrimaryCtxRetain(&context, 0), CUDA_ERROR_OUT_OF_MEMORY);
	disarm();
	CHECK(charged() == 0, "a failed retain is charged: %lu", (unsigned long)charged());
	for (int i = 0; i < 16; i++)
		CHECK(pthread_create(&thread[i], NULL, retain, NULL) == 0, "thread");
	for (int i = 0; i < 16; i++)
		pthread_join(thread[i], (void **)&context);
	OK(cuCtxSetCurrent(context));
	CHECK(used() == CONTEXT, "16 references: charged %lu", (unsigned long)used());
	for (int i = 0; i < 15; i++)
		OK(cuDevicePrimaryCtxRelease_v2(0));
	CHECK(used() == CONTEXT, "one reference left: charged %lu", (unsigned long)used());
}

/* Afterwards no reference is left, and the next retain begins anew. */
static void reset(void)
{
	CUdeviceptr p;
	CUcontext context;
	OK(cuMemAlloc_v2(&p, GIB));
	CHECK(used() == CONTEXT + GIB, "charged %lu", (unsigned long)used());
	OK(cuDevicePrimaryCtxReset_v2(0));
	CHECK(charged() == 0, "after a reset: charged %lu", (unsigned long)charged());
	CHECK(held(0) == 0, "a reset leaves %lu bytes", (unsigned long)held(0));
	OK(cuDevicePrimaryCtxRetain(&context, 0));
	OK(cuCtxSetCurrent(context));
	CHECK(used() == CONTEXT, "after a reset: charged %lu", (unsigned long)used());
	CHECK(cuMemFree_v2(p) != CUDA_SUCCESS, "a block of the context that was reset");
	OK(cuMemAlloc_v2(&p, GIB));
	OK(cuDevicePrimaryCtxRelease_v2(0));
	CHECK(charged() == 0, "after the last release: charged %lu", (unsigned long)charged());
	OK(cuDevicePrimaryCtxRetain(&context, 0));
	OK(cuCtxSetCurrent(context));
	CHECK(used() == CONTEXT, "what lay in a released context: charged %lu", (unsigned long)used());
}

static void created(void)
{
	CUcontext first, second, old;
	CUdeviceptr p;
	OK(cuCtxCreate_v2(&second, 0, 0));
	CHECK(used() == 2 * CONTEXT, "charged %lu", (unsigned long)used());
	OK(cuMemAlloc_v2(&p, GIB));
	CHECK(used() == 2 * CONTEXT + GIB, "charged %lu", (unsigned long)used());
	OK(cuCtxPopCurrent_v2(&old));
	OK(cuCtxGetCurrent(&first));
	OK(cuCtxDestroy_v2(second));
	CHECK(used() == CONTEXT && held(0) == CONTEXT, "destroyed: charged %lu, held %lu", (unsigned long)used(),
	      (unsigned long)held(0));
	CHECK(cuCtxDestroy_v2(second) != CUDA_SUCCESS, "a context that is gone");
	OK(cuCtxCreate_v2(&second, 0, 0));
	OK(cuCtxAttach(&old, 0));
	OK(cuMemAlloc_v2(&p, GIB));
	OK(cuCtxDetach(second));
	CHECK(used() == 2 * CONTEXT + GIB, "still attached: charged %lu", (unsigned long)used());
	OK(cuCtxDetach(second));
	OK(cuCtxSetCurrent(first));
	CHECK(used() == CONTEXT && held(0) == CONTEXT, "detached: charged %lu, held %lu", (unsigned long)used(),
	      (unsigned long)held(0));
	CHECK(cuCtxDetach(second) != CUDA_SUCCESS, "a context that is gone");
	OK(cuMemAlloc_v2(&p, 3 * GIB + 16 * MIB)); /* a second context would make it 4,100 MiB */
	IS(cuCtxCreate_v2(&second, 0, 0), CUDA_ERROR_OUT_OF_MEMORY);
	OK(cuMemFree_v2(p));
}

int main(int argc, char **argv)
{
	(void)argv;
	CUcontext context;
	OK(cuInit(0));
	if (argc > 1) { /* a limit below one context */
		CUdeviceptr p;
		size_t free_bytes, total;
		OK(cuDevicePrimaryCtxRetain(&context, 0));
		OK(cuCtxSetCurrent(context));
		OK(cuMemGetInfo_v2(&free_bytes, &total));
		CHECK(free_bytes == 0 && total == 100 * MIB, "free %zu of %zu", free_bytes, total);
		IS(cuMemAlloc_v2(&p, 1), CUDA_ERROR_OUT_OF_MEMORY);
		IS(cuCtxCreate_v2(&context, 0, 0), CUDA_ERROR_OUT_OF_MEMORY);
		return 0;
	}
	counted();
	reset();
	created();
	return 0;
}
