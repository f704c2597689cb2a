/* null_driver.c: a libcuda.so.1 whose functions return at once, so that what a shim adds to a call can be seen.
 * Loaded by bench/calls only. One device of 80 GiB; allocations hand out rising addresses of nothing. It has the entry
 * points that bench/calls and a shim's own set-up reach; anything else is absent, as on an old driver. Making a context
 * takes NULL_DRIVER_CONTEXT_MS of sleep, once. */
#include <cuda.h>
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define EXPORT __attribute__((visibility("default")))
#define TOTAL  (UINT64_C(80) << 30)

#define POOL_STEP (UINT64_C(32) << 20) /* by which the pool grows, as the real one does */

static _Atomic uint64_t next_address = UINT64_C(0x700000000000);
static _Atomic uint64_t pool_used, pool_reserved;
static int context, pool;

/* Calls that asked for device memory: bench/calls reads it. */
EXPORT uint64_t null_driver_allocations;

EXPORT CUresult cuInit(unsigned flags)
{
	return flags ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

EXPORT CUresult cuDriverGetVersion(int *version)
{
	*version = CUDA_VERSION;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetCount(int *count)
{
	*count = 1;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
	*device = 0;
	return ordinal ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device)
{
	(void)device;
	memset(uuid, 7, sizeof *uuid);
	return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device)
{
	(void)device;
	*bytes = TOTAL;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device)
{
	(void)attribute, (void)device;
	*value = 1;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetDevice(CUdevice *device)
{
	*device = 0;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetCurrent(CUcontext *current)
{
	*current = (CUcontext)&context;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxSetCurrent(CUcontext current)
{
	(void)current;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *primary, CUdevice device)
{
	static atomic_bool made;
	const char *sleep = getenv("NULL_DRIVER_CONTEXT_MS");
	(void)device;
	if (sleep && !atomic_exchange(&made, true)) {
		long ms = strtol(sleep, NULL, 10);
		nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000}, NULL);
	}
	*primary = (CUcontext)&context;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active)
{
	(void)device;
	*flags = 0, *active = 1;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxPushCurrent_v2(CUcontext pushed)
{
	(void)pushed;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxPopCurrent_v2(CUcontext *popped)
{
	if (popped)
		*popped = (CUcontext)&context;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode)
{
	(void)mode;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t bytes)
{
	__atomic_store_n(&null_driver_allocations, null_driver_allocations + 1, __ATOMIC_RELAXED);
	*address = atomic_fetch_add_explicit(&next_address, (bytes + 511) & ~(size_t)511, memory_order_relaxed);
	return CUDA_SUCCESS;
}

EXPORT CUresult cuMemFree_v2(CUdeviceptr address)
{
	(void)address;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuMemGetInfo_v2(size_t *free, size_t *total)
{
	*free = *total = TOTAL;
	return CUDA_SUCCESS;
}

/* The stream-ordered pool: one, never shrinking, one block at a time a stream. */
EXPORT CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *handle, CUdevice device)
{
	(void)device;
	*handle = (CUmemoryPool)&pool;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetMemPool(CUmemoryPool *handle, CUdevice device)
{
	return cuDeviceGetDefaultMemPool(handle, device);
}

EXPORT CUresult cuMemPoolGetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute, void *value)
{
	(void)handle;
	if (attribute == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD)
		*(cuuint64_t *)value = 0;
	else if (attribute == CU_MEMPOOL_ATTR_USED_MEM_CURRENT)
		*(cuuint64_t *)value = atomic_load_explicit(&pool_used, memory_order_relaxed);
	else
		*(cuuint64_t *)value = atomic_load_explicit(&pool_reserved, memory_order_relaxed);
	return CUDA_SUCCESS;
}

EXPORT CUresult cuMemPoolTrimTo(CUmemoryPool handle, size_t keep)
{
	(void)handle, (void)keep;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuMemAllocAsync(CUdeviceptr *address, size_t bytes, CUstream stream)
{
	(void)stream;
	uint64_t used = atomic_fetch_add_explicit(&pool_used, bytes, memory_order_relaxed) + bytes;
	if (used > atomic_load_explicit(&pool_reserved, memory_order_relaxed))
		atomic_store_explicit(&pool_reserved, (used + POOL_STEP - 1) & ~(POOL_STEP - 1), memory_order_relaxed);
	return cuMemAlloc_v2(address, bytes);
}

EXPORT CUresult cuMemFreeAsync(CUdeviceptr address, CUstream stream)
{
	(void)address, (void)stream;
	atomic_store_explicit(&pool_used, 0, memory_order_relaxed);
	return CUDA_SUCCESS;
}

/* Explicit pools: the same one. */
EXPORT CUresult cuMemPoolCreate(CUmemoryPool *handle, const CUmemPoolProps *props)
{
	static int explicit_pool;
	(void)props;
	*handle = (CUmemoryPool)&explicit_pool;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuMemPoolDestroy(CUmemoryPool handle)
{
	(void)handle;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuMemAllocFromPoolAsync(CUdeviceptr *address, size_t bytes, CUmemoryPool from, CUstream stream)
{
	(void)from;
	return cuMemAllocAsync(address, bytes, stream);
}

/* Work is over at once, and so are events. */
EXPORT CUresult cuEventCreate(CUevent *event, unsigned flags)
{
	static int any;
	(void)flags;
	*event = (CUevent)&any;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuEventRecord(CUevent event, CUstream stream)
{
	(void)event, (void)stream;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxRecordEvent(CUcontext of, CUevent event)
{
	(void)of, (void)event;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuEventQuery(CUevent event)
{
	(void)event;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status)
{
	(void)stream;
	*status = CU_STREAM_CAPTURE_STATUS_NONE;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamGetId(CUstream stream, unsigned long long *id)
{
	*id = (uintptr_t)stream;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamGetDevice(CUstream stream, CUdevice *device)
{
	(void)stream;
	*device = 0;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamGetCtx(CUstream stream, CUcontext *owner)
{
	(void)stream;
	*owner = (CUcontext)&context;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuLaunchKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                               unsigned bz, unsigned shared, CUstream stream, void **parameters, void **extra)
{
	(void)f, (void)gx, (void)gy, (void)gz, (void)bx, (void)by, (void)bz, (void)shared, (void)stream;
	(void)parameters, (void)extra;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuLaunchKernel_ptsz(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                                    unsigned bz, unsigned shared, CUstream stream, void **parameters, void **extra)
{
	return cuLaunchKernel(f, gx, gy, gz, bx, by, bz, shared, stream, parameters, extra);
}

EXPORT CUresult cuLaunchCooperativeKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                                          unsigned bz, unsigned shared, CUstream stream, void **parameters)
{
	return cuLaunchKernel(f, gx, gy, gz, bx, by, bz, shared, stream, parameters, NULL);
}

EXPORT CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction f, void **parameters, void **extra)
{
	(void)config, (void)f, (void)parameters, (void)extra;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuLaunchGrid(CUfunction f, int width, int height)
{
	(void)f, (void)width, (void)height;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream)
{
	(void)exec, (void)stream;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuGetProcAddress_v2(const char *symbol, void **function, int version, cuuint64_t flags,
                                    CUdriverProcAddressQueryResult *status)
{
	static const struct {
		const char *name;
		void *function;
	} table[] = {
	        {"cuMemAlloc", (void *)cuMemAlloc_v2},
	        {"cuMemFree", (void *)cuMemFree_v2},
	        {"cuMemGetInfo", (void *)cuMemGetInfo_v2},
	        {"cuLaunchKernel", (void *)cuLaunchKernel},
	        {"cuGetProcAddress", (void *)cuGetProcAddress_v2},
	};
	(void)version, (void)flags;
	for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
		if (strcmp(symbol, table[i].name) == 0) {
			*function = table[i].function;
			if (status)
				*status = CU_GET_PROC_ADDRESS_SUCCESS;
			return CUDA_SUCCESS;
		}
	}
	*function = NULL;
	if (status)
		*status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
	return CUDA_ERROR_NOT_FOUND;
}
