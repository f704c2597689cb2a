/* Contexts: what they cost and give back, which one is current, and what calls say when there is none. We test:
 * before cuInit, primary retain/release/reset, created contexts and their stack, destruction frees memory, handles
 * that are stale or foreign, a forked child, limits, contexts of the other threads. */
#include <pthread.h>

#include "memory_test.h"

static uint64_t context_bytes(void)
{
	return the_machine()->model[0].context;
}

static void before_init(int unused)
{
	CUcontext context;
	CUdeviceptr p;
	int n;

	(void)unused;
	GIVES(CUDA_ERROR_NOT_INITIALIZED, cuDeviceGetCount(&n));
	GIVES(CUDA_ERROR_NOT_INITIALIZED, cuCtxGetCurrent(&context));
	GIVES(CUDA_ERROR_NOT_INITIALIZED, cuMemAlloc(&p, 16));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuInit(1));
	OK(cuInit(0));
	OK(cuCtxGetCurrent(&context));
	CHECK(!context, "no context yet");
	GIVES(CUDA_ERROR_INVALID_CONTEXT, cuMemAlloc(&p, 16));
	CHECK(held() == 0, "cuInit takes no device memory: %lu", held());
}

static void primary(int unused)
{
	CUcontext first, second;
	CUdeviceptr p;
	unsigned flags;
	int active;

	(void)unused;
	OK(cuInit(0));
	OK(cuDevicePrimaryCtxGetState(0, &flags, &active));
	CHECK(!active, "not yet active");
	OK(cuDevicePrimaryCtxRetain(&first, 0));
	OK(cuDevicePrimaryCtxRetain(&second, 0));
	CHECK(first == second && held() == context_bytes(), "one context of %lu bytes: %lu", context_bytes(), held());
	OK(cuCtxSetCurrent(first));
	OK(cuMemAlloc(&p, 10 * MIB));
	OK(cuMemAlloc(&p, 10));
	OK(cuDevicePrimaryCtxRelease(0));
	CHECK(held() == context_bytes() + 12 * MIB, "retained twice, released once: %lu", held());
	OK(cuDevicePrimaryCtxRelease(0));
	CHECK(held() == 0, "all gone: %lu", held());
	GIVES(CUDA_ERROR_INVALID_CONTEXT, cuDevicePrimaryCtxRelease(0));
	GIVES(CUDA_ERROR_CONTEXT_IS_DESTROYED, cuMemAlloc(&p, 16));
	OK(cuDevicePrimaryCtxRetain(&second, 0));
	CHECK(second == first, "the handle stays the same");
	OK(cuMemAlloc(&p, 16));
	OK(cuDevicePrimaryCtxReset(0));
	CHECK(held() == 0, "reset frees: %lu", held());
	OK(cuDevicePrimaryCtxGetState(0, &flags, &active));
	CHECK(!active, "reset ends it");
	GIVES(CUDA_ERROR_INVALID_DEVICE, cuDevicePrimaryCtxRetain(&first, 99));
}

static void created(int unused)
{
	CUcontext a, b, current;
	CUdeviceptr p;
	CUdevice device;

	(void)unused;
	OK(cuInit(0));
	OK(cuCtxCreate(&a, NULL, CU_CTX_SCHED_SPIN, 0));
	OK(cuMemAlloc(&p, 4 * MIB));
	OK(cuCtxCreate(&b, NULL, 0, 0));
	CHECK(a != b && held() == 2 * context_bytes() + 4 * MIB, "two contexts: %lu", held());
	OK(cuCtxGetCurrent(&current));
	CHECK(current == b, "the new one is current");
	OK(cuCtxGetDevice(&device));
	CHECK(device == 0, "device %d", device);
	OK(cuMemFree(p)); /* another context's memory, one address space */
	OK(cuMemAlloc(&p, 6 * MIB));
	OK(cuCtxDestroy(b));
	CHECK(held() == context_bytes(), "destroying frees: %lu", held());
	OK(cuCtxGetCurrent(&current));
	CHECK(current == a, "the one below is current again");
	GIVES(CUDA_ERROR_INVALID_CONTEXT, cuCtxDestroy(b));
	GIVES(CUDA_ERROR_INVALID_CONTEXT, cuCtxSetCurrent(b));
	GIVES(CUDA_ERROR_INVALID_CONTEXT, cuCtxSetCurrent((CUcontext)&device));
	OK(cuCtxPopCurrent(&current));
	GIVES(CUDA_ERROR_INVALID_CONTEXT, cuCtxPopCurrent(&current));
	OK(cuCtxPushCurrent(a));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuCtxCreate(&b, NULL, 0x100, 0));
	OK(cuCtxDestroy(a));
	CHECK(held() == 0, "all gone: %lu", held());
}

static void refused(int unused)
{
	CUcontext context;
	CUdeviceptr p;

	(void)unused;
	start();
	OK(cuMemAlloc(&p, free_bytes() / GRANULE * GRANULE));
	uint64_t full = held();
	GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuCtxCreate(&context, NULL, 0, 0));
	CHECK(held() == full, "a refused context holds nothing: %lu", held() - full);
	OK(cuMemFree(p));
	OK(cuCtxCreate(&context, NULL, 0, 0));
}

static CUcontext shared;

static void *other_thread(void *unused)
{
	CUcontext current;
	CUdeviceptr p;

	(void)unused;
	OK(cuCtxGetCurrent(&current));
	CHECK(!current, "a new thread has no context");
	OK(cuCtxSetCurrent(shared));
	OK(cuMemAlloc(&p, 16));
	return NULL;
}

static void threads(int unused)
{
	pthread_t thread;

	(void)unused;
	shared = start();
	CHECK(pthread_create(&thread, NULL, other_thread, NULL) == 0, "thread");
	pthread_join(thread, NULL);
	CHECK(held() == context_bytes() + GRANULE, "the thread's block is the context's: %lu", held());
}

static void forked(int unused)
{
	CUdeviceptr p;
	int status;

	(void)unused;
	start();
	OK(cuMemAlloc(&p, 4 * MIB));
	pid_t child = fork();
	if (child == 0) {
		GIVES(CUDA_ERROR_NOT_INITIALIZED, cuInit(0));
		GIVES(CUDA_ERROR_NOT_INITIALIZED, cuMemAlloc(&p, 16));
		GIVES(CUDA_ERROR_NOT_INITIALIZED, cuMemFree(p));
		_exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child && status == 0, "child: %#x", status);
	CHECK(held() == context_bytes() + 4 * MIB, "the parent goes on: %lu", held());
	OK(cuMemFree(p));
}

/* The parent dies while a forked child lives: its memory must come back all the same. */
static void orphan(int unused)
{
	CUdeviceptr p;
	int gate[2], told[2];
	char byte;

	(void)unused;
	CHECK(pipe2(gate, O_CLOEXEC) == 0 && pipe2(told, O_CLOEXEC) == 0, "pipe");
	pid_t parent = fork();
	if (parent == 0) {
		start();
		OK(cuMemAlloc(&p, 60 * GIB));
		if (fork() == 0) {
			CHECK(write(told[1], "x", 1) == 1, "tell");
			gate_wait(gate);
			_exit(0);
		}
		pause();
	}
	CHECK(read(told[0], &byte, 1) == 1, "told");
	kill(parent, SIGKILL);
	waitpid(parent, NULL, 0);
	start();
	OK(cuMemAlloc(&p, 60 * GIB));
	close(gate[1]);
}

static void limits(int unused)
{
	size_t value;
	int least, greatest;
	unsigned long long id;
	unsigned version;

	(void)unused;
	start();
	OK(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 4096));
	OK(cuCtxGetLimit(&value, CU_LIMIT_STACK_SIZE));
	CHECK(value == 4096, "stack %zu", value);
	GIVES(CUDA_ERROR_UNSUPPORTED_LIMIT, cuCtxGetLimit(&value, CU_LIMIT_CIG_ENABLED));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuCtxGetLimit(&value, CU_LIMIT_MAX));
	OK(cuCtxGetStreamPriorityRange(&least, &greatest));
	CHECK(least == 0 && greatest < 0, "priorities %d to %d", least, greatest);
	OK(cuCtxGetId(NULL, &id));
	OK(cuCtxGetApiVersion(NULL, &version));
	CHECK(id != 0 && version >= 3020, "id %llu, version %u", id, version);
	OK(cuCtxSynchronize());
}

int main(void)
{
	void (*const cases[])(int) = {before_init, primary, created, refused, threads, forked, orphan, limits};

	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
		in_child(cases[i], 0);
	return 0;
}
