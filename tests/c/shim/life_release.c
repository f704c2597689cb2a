/* A program of one CUDA release: built once with the headers of release 12 and once with those of 13, as its users build
 * it (plain names, which each release's headers map to its own versions). Started by test_life_releases.c.
 *
 * Makes a context, takes 768 MiB: by the linked functions, by those that cuGetProcAddress gives for this release and for
 * the first of release 12, on a stream, and managed; says how many bytes, waits for a line, frees all, and ends. */
#include <cuda.h>
#include <stdint.h>
#include <stdio.h>

#define MIB ((size_t)1 << 20)

#define OK(call)                                                                                                       \
	do {                                                                                                           \
		CUresult ok_ = (call);                                                                                 \
		if (ok_ != CUDA_SUCCESS) {                                                                             \
			fprintf(stderr, "release %d: %s is %d\n", CUDA_VERSION, #call, (int)ok_);                      \
			return 1;                                                                                      \
		}                                                                                                      \
	} while (0)

static CUresult make_context(CUcontext *context)
{
#if CUDA_VERSION >= 13000
	return cuCtxCreate(context, NULL, 0, 0);
#else
	return cuCtxCreate(context, 0, 0);
#endif
}

static CUresult to_device(CUdeviceptr p, size_t bytes)
{
#if CUDA_VERSION >= 13000
	CUmemLocation location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0};
	return cuMemPrefetchAsync(p, bytes, location, 0, NULL);
#else
	return cuMemPrefetchAsync(p, bytes, 0, NULL);
#endif
}

typedef CUresult allocate(CUdeviceptr *, size_t);

static allocate *allocate_of(int release)
{
	CUdriverProcAddressQueryResult status;
	void *found = NULL;
	if (cuGetProcAddress("cuMemAlloc", &found, release, CU_GET_PROC_ADDRESS_DEFAULT, &status) != CUDA_SUCCESS ||
	    status != CU_GET_PROC_ADDRESS_SUCCESS)
		return NULL;
	return (allocate *)found;
}

int main(void)
{
	CUcontext context;
	CUdeviceptr p[5], q;
	size_t f, t;
	OK(cuInit(0));
	OK(make_context(&context));
	allocate *own = allocate_of(CUDA_VERSION), *first = allocate_of(12000);
	if (own == NULL || first == NULL) {
		fprintf(stderr, "release %d: no cuMemAlloc\n", CUDA_VERSION);
		return 1;
	}
	OK(cuMemAlloc(&p[0], 128 * MIB));
	OK(own(&p[1], 128 * MIB));
	OK(first(&p[2], 128 * MIB));
	OK(cuMemAllocAsync(&p[3], 128 * MIB, NULL));
	OK(cuMemAllocManaged(&p[4], 256 * MIB, CU_MEM_ATTACH_GLOBAL));
	OK(to_device(p[4], 256 * MIB));
	OK(cuStreamSynchronize(NULL));
	OK(cuMemGetInfo(&f, &t));
	CUresult refused[3] = {cuMemAlloc(&q, 64 * 1024 * MIB), own(&q, 64 * 1024 * MIB), first(&q, 64 * 1024 * MIB)};
	for (int i = 0; i < 3; i++)
		if (refused[i] != CUDA_ERROR_OUT_OF_MEMORY)
			return 2;
	printf("%zu %zu\n", t, f);
	fflush(stdout);
	getchar();
	for (int i = 0; i < 5; i++)
		OK(cuMemFree(p[i]));
	OK(cuCtxDestroy(context));
	return 0;
}
