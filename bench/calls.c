/* calls.c: repeats one driver call and prints what it took: calls OP COUNT. Started by bench/calls.py, with and without a
 * shim, over the null driver; also under callgrind and strace, which is why it does nothing else. Exit 1: the call failed. */
#include <cuda.h>
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef CUresult (*alloc_fn)(CUdeviceptr *, size_t);
typedef CUresult (*free_fn)(CUdeviceptr);
typedef CUresult (*alloc_async_fn)(CUdeviceptr *, size_t, CUstream);
typedef CUresult (*free_async_fn)(CUdeviceptr, CUstream);
typedef CUresult (*info_fn)(size_t *, size_t *);
typedef CUresult (*launch_fn)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                              CUstream, void **, void **);
typedef CUresult (*proc_fn)(const char *, void **, int, cuuint64_t, CUdriverProcAddressQueryResult *);
typedef CUresult (*retain_fn)(CUcontext *, CUdevice);
typedef CUresult (*init_fn)(unsigned);

static alloc_fn mem_alloc;
static free_fn mem_free;
static alloc_async_fn mem_alloc_async;
static free_async_fn mem_free_async;
static info_fn mem_info;
static launch_fn launch;
static proc_fn proc_address;

static void need(int ok, const char *what)
{
	if (!ok) {
		fprintf(stderr, "calls: %s\n", what);
		exit(1);
	}
}

static void *symbol(void *driver, const char *name)
{
	void *function = dlsym(driver, name);
	need(function != NULL, name);
	return function;
}

static void pairs(size_t bytes, long count)
{
	for (long i = 0; i < count; i++) {
		CUdeviceptr p;
		need(mem_alloc(&p, bytes) == CUDA_SUCCESS && mem_free(p) == CUDA_SUCCESS, "allocation refused");
	}
}

static void async_pairs(long count)
{
	for (long i = 0; i < count; i++) {
		CUdeviceptr p;
		need(mem_alloc_async(&p, 4096, NULL) == CUDA_SUCCESS && mem_free_async(p, NULL) == CUDA_SUCCESS,
		     "allocation refused");
	}
}

/* Frees `count` of 100,000 live blocks in random order and allocates each again, so that the population stays. */
static void many_live(long count)
{
	enum { live = 100000 };
	static CUdeviceptr block[live];
	uint32_t random = 12345;
	for (int i = 0; i < live; i++)
		need(mem_alloc(&block[i], 4096) == CUDA_SUCCESS, "allocation refused");
	struct timespec begin, end;
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &begin);
	for (long i = 0; i < count; i++) {
		random = random * 1664525 + 1013904223;
		CUdeviceptr *p = &block[(random >> 8) % live];
		need(mem_free(*p) == CUDA_SUCCESS && mem_alloc(p, 4096) == CUDA_SUCCESS, "allocation refused");
	}
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &end);
	printf("%.2f\n",
	       ((double)(end.tv_sec - begin.tv_sec) * 1e9 + (double)(end.tv_nsec - begin.tv_nsec)) / (double)count);
	exit(0);
}

static void repeat(const char *op, long count)
{
	size_t a, b;
	void *function;
	CUdriverProcAddressQueryResult status;
	CUdeviceptr p;
	if (strcmp(op, "pair-2MiB") == 0)
		pairs((size_t)2 << 20, count);
	else if (strcmp(op, "pair-4KiB") == 0)
		pairs(4096, count);
	else if (strcmp(op, "async-4KiB") == 0)
		async_pairs(count);
	else if (strcmp(op, "info") == 0)
		for (long i = 0; i < count; i++)
			need(mem_info(&a, &b) == CUDA_SUCCESS, "cuMemGetInfo failed");
	else if (strcmp(op, "launch") == 0)
		for (long i = 0; i < count; i++)
			need(launch(NULL, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL) == CUDA_SUCCESS, "launch failed");
	else if (strcmp(op, "proc") == 0)
		for (long i = 0; i < count; i++)
			need(proc_address("cuMemAlloc", &function, 3020, 0, &status) == CUDA_SUCCESS, "no cuMemAlloc");
	else if (strcmp(op, "refused") == 0)
		for (long i = 0; i < count; i++)
			need(mem_alloc(&p, (size_t)1 << 50) != CUDA_SUCCESS || getenv("CALLS_UNLIMITED"),
			     "1 PiB was given");
	else
		need(0, "OP is first, pair-2MiB, pair-4KiB, async-4KiB, live-100k, info, launch, proc or refused");
}

int main(int argc, char **argv)
{
	need(argc == 3, "usage: calls OP COUNT");
	void *driver = dlopen("libcuda.so.1", RTLD_NOW);
	need(driver != NULL, "no libcuda.so.1");
	mem_alloc = (alloc_fn)symbol(driver, "cuMemAlloc_v2");
	mem_free = (free_fn)symbol(driver, "cuMemFree_v2");
	mem_alloc_async = (alloc_async_fn)symbol(driver, "cuMemAllocAsync");
	mem_free_async = (free_async_fn)symbol(driver, "cuMemFreeAsync");
	mem_info = (info_fn)symbol(driver, "cuMemGetInfo_v2");
	launch = (launch_fn)symbol(driver, "cuLaunchKernel");
	proc_address = (proc_fn)symbol(driver, "cuGetProcAddress_v2");
	CUcontext context;
	need(((init_fn)symbol(driver, "cuInit"))(0) == CUDA_SUCCESS, "cuInit failed");
	need(((retain_fn)symbol(driver, "cuDevicePrimaryCtxRetain"))(&context, 0) == CUDA_SUCCESS, "no context");
	long count = strtol(argv[2], NULL, 10);
	if (strcmp(argv[1], "first") == 0) { /* the caller has the clock: all since exec counts */
		CUdeviceptr p;
		need(mem_alloc(&p, 4096) == CUDA_SUCCESS, "allocation refused");
		_exit(0);
	}
	if (strcmp(argv[1], "live-100k") == 0)
		many_live(count);
	repeat(argv[1], count / 10 + 1); /* set-up and warm caches are not the call's cost */
	struct timespec begin, end;
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &begin);
	repeat(argv[1], count);
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &end);
	printf("%.2f\n",
	       ((double)(end.tv_sec - begin.tv_sec) * 1e9 + (double)(end.tv_nsec - begin.tv_nsec)) / (double)count);
	return 0;
}
