/* A driver of another release: lacks names that are known (-DLACKING), has names that nobody knows, and a version of a
 * hooked entry point that is newer than the shim. Built without libc, so that it has no symbol versions at all and
 * dlvsym finds its symbols. `fake_calls` counts what reached it. One entry point calls back into a hooked one. */
#include <cuda.h>

#define EXPORT     __attribute__((visibility("default")))
#define SAME(a, b) (__builtin_strcmp(a, b) == 0)

EXPORT int fake_calls;

int strcmp(const char *a, const char *b);
__attribute__((visibility("hidden"))) int strcmp(const char *a, const char *b)
{
	while (*a && *a == *b) {
		a++;
		b++;
	}
	return (unsigned char)*a - (unsigned char)*b;
}

EXPORT CUresult cuInit(unsigned int flags)
{
	(void)flags;
	fake_calls++;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetCount(int *count)
{
	*count = 1;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuMemGetInfo_v2(size_t *free, size_t *total)
{
	fake_calls++;
	*free = *total = (size_t)1 << 30;
	return CUDA_SUCCESS;
}

/* What the driver gives for cuMemGetInfo, under another address than the exported one. */
static CUresult private_mem_get_info(size_t *free, size_t *total)
{
	return cuMemGetInfo_v2(free, total);
}

EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes)
{
	size_t free, total;
	fake_calls++;
	/* Through the global scope: this is the shim's where there is one. */
	if (cuMemGetInfo_v2(&free, &total) != CUDA_SUCCESS || bytes > total)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*pointer = 0x10000000;
	return CUDA_SUCCESS;
}

/* A version of the future, with another parameter list. */
EXPORT CUresult cuMemAlloc_v9(CUdeviceptr *pointer, size_t bytes, int colour)
{
	fake_calls++;
	*pointer = bytes + (size_t)colour;
	return CUDA_SUCCESS;
}

#ifndef LACKING
EXPORT CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop,
                            unsigned long long flags)
{
	(void)size, (void)prop, (void)flags;
	fake_calls++;
	*handle = 1;
	return CUDA_SUCCESS;
}
#endif

#define UNKNOWN(n)                                                                                                     \
	EXPORT CUresult cuFuture##n(void)                                                                              \
	{                                                                                                              \
		return (CUresult)(1000 + n);                                                                           \
	}
#define UNKNOWN_FIVE(a, b, c, d, e) UNKNOWN(a) UNKNOWN(b) UNKNOWN(c) UNKNOWN(d) UNKNOWN(e)
UNKNOWN_FIVE(0, 1, 2, 3, 4)
UNKNOWN_FIVE(5, 6, 7, 8, 9)
UNKNOWN_FIVE(10, 11, 12, 13, 14)
UNKNOWN_FIVE(15, 16, 17, 18, 19)

EXPORT CUresult cuGetProcAddress_v2(const char *symbol, void **pfn, int version, cuuint64_t flags,
                                    CUdriverProcAddressQueryResult *status)
{
	(void)flags;
	void *found = SAME(symbol, "cuInit")             ? (void *)cuInit
	              : SAME(symbol, "cuDeviceGetCount") ? (void *)cuDeviceGetCount
	              : SAME(symbol, "cuMemGetInfo")     ? (version >= 3020 ? (void *)private_mem_get_info : NULL)
	              : SAME(symbol, "cuMemAlloc")       ? (version >= 99000  ? (void *)cuMemAlloc_v9
	                                                    : version >= 3020 ? (void *)cuMemAlloc_v2
	                                                                      : NULL)
	              : SAME(symbol, "cuFuture7")        ? (void *)cuFuture7
	              : SAME(symbol, "cuGetProcAddress") ? (void *)cuGetProcAddress_v2
	                                                 : NULL;
	*pfn = found;
	if (status)
		*status = found ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
	return found ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
