/* fake_driver.c: see fake_driver.h. Contexts, streams and events of the driver, and the table by which the shim's files
 * find all its calls.
 */
#include "fake_parts.h"

static unsigned primary_references;

static CUresult fake_cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
	(void)device;
	CUresult error = CUDA_SUCCESS;
	fake_enter();
	if (!fake_fails_locked("cuDevicePrimaryCtxRetain", &error)) {
		if (primary_references++ == 0)
			fake_take(FAKE_CONTEXT);
		*context = (CUcontext)(uintptr_t)0x2000;
	}
	fake_leave();
	return error;
}

static CUresult fake_cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
	(void)device;
	CUresult error = CUDA_ERROR_INVALID_CONTEXT;
	fake_enter();
	if (primary_references != 0) {
		if (--primary_references == 0)
			fake_drop(FAKE_CONTEXT);
		error = CUDA_SUCCESS;
	}
	fake_leave();
	return error;
}

/* Not the primary one: that comes and goes, and what lies in it would go with it. */
static CUresult fake_cuCtxGetCurrent(CUcontext *context)
{
	*context = (CUcontext)(uintptr_t)0x3000;
	return CUDA_SUCCESS;
}

static CUresult fake_stream_device(CUstream stream, CUdevice *device)
{
	(void)stream;
	*device = 0;
	return CUDA_SUCCESS;
}

static CUresult fake_stream_id(CUstream stream, unsigned long long *id)
{
	*id = (uintptr_t)stream;
	return CUDA_SUCCESS;
}

static bool busy;

static CUresult fake_stream_query(CUstream stream)
{
	(void)stream;
	return busy ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}

static CUresult fake_stream_context(CUstream stream, CUcontext *context)
{
	(void)stream;
	return fake_cuCtxGetCurrent(context);
}

static CUresult fake_push(CUcontext context)
{
	(void)context;
	return CUDA_SUCCESS;
}

static CUresult fake_event_create(CUevent *event, unsigned int flags)
{
	(void)flags;
	*event = (CUevent)(uintptr_t)0x4000;
	return CUDA_SUCCESS;
}

static CUresult fake_event_record(CUevent event, CUstream stream)
{
	(void)event;
	(void)stream;
	return CUDA_SUCCESS;
}

static CUresult fake_event(CUevent event)
{
	(void)event;
	return busy ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}

/* The heap of kernels takes what the limit says, from a default of 8 MiB on, of which the context's estimate holds all. */
static size_t heap = 8 << 20;

static CUresult fake_cuCtxSetLimit(CUlimit which, size_t value)
{
	CUresult error = CUDA_SUCCESS;
	(void)which;
	fake_enter();
	if (!fake_fails_locked("cuCtxSetLimit", &error)) {
		fake_drop(heap);
		fake_take(value);
		heap = value;
	}
	fake_leave();
	return error;
}

static CUresult fake_cuCtxGetLimit(size_t *value, CUlimit which)
{
	(void)which;
	*value = heap;
	return CUDA_SUCCESS;
}

void fake_busy(bool is)
{
	busy = is;
}

void *vgpu_real[VGPU_REALS];

#define CASE(name, function)                                                                                           \
	case VGPU_INDEX_##name:                                                                                        \
		return (void *)function

void *vgpu_real_fn(unsigned index)
{
	switch (index) {
		CASE(cuMemAlloc_v2, fake_cuMemAlloc_v2);
		CASE(cuMemAllocManaged, fake_cuMemAllocManaged);
		CASE(cuMemAllocPitch_v2, fake_cuMemAllocPitch_v2);
		CASE(cuMemFree_v2, fake_cuMemFree_v2);
		CASE(cuMemAllocAsync, fake_cuMemAllocAsync);
		CASE(cuMemFreeAsync, fake_cuMemFreeAsync);
		CASE(cuMemPoolGetAttribute, fake_cuMemPoolGetAttribute);
		CASE(cuMemPoolTrimTo, fake_cuMemPoolTrimTo);
		CASE(cuDeviceGetDefaultMemPool, fake_get_pool);
		CASE(cuDeviceGetMemPool, fake_get_pool);
		CASE(cuMemCreate, fake_cuMemCreate);
		CASE(cuMemRelease, fake_cuMemRelease);
		CASE(cuMemMap, fake_cuMemMap);
		CASE(cuMemUnmap, fake_cuMemUnmap);
		CASE(cuMemRetainAllocationHandle, fake_cuMemRetainAllocationHandle);
		CASE(cuMulticastCreate, fake_cuMulticastCreate);
		CASE(cuMulticastBindMem_v2, fake_cuMulticastBindMem_v2);
		CASE(cuMulticastUnbind, fake_cuMulticastUnbind);
		CASE(cuDevicePrimaryCtxRetain, fake_cuDevicePrimaryCtxRetain);
		CASE(cuDevicePrimaryCtxRelease_v2, fake_cuDevicePrimaryCtxRelease_v2);
		CASE(cuArrayCreate_v2, fake_cuArrayCreate_v2);
		CASE(cuArray3DCreate_v2, fake_cuArray3DCreate_v2);
		CASE(cuArrayDestroy, fake_cuArrayDestroy);
		CASE(cuArrayGetMemoryRequirements, fake_cuArrayGetMemoryRequirements);
		CASE(cuMemMapArrayAsync, fake_cuMemMapArrayAsync);
		CASE(cuMipmappedArrayCreate, fake_cuMipmappedArrayCreate);
		CASE(cuMipmappedArrayDestroy, fake_cuMipmappedArrayDestroy);
		CASE(cuMipmappedArrayGetMemoryRequirements, fake_cuMipmappedArrayGetMemoryRequirements);
		CASE(cuCtxGetCurrent, fake_cuCtxGetCurrent);
		CASE(cuCtxSetLimit, fake_cuCtxSetLimit);
		CASE(cuCtxGetLimit, fake_cuCtxGetLimit);
		CASE(cuStreamGetDevice, fake_stream_device);
		CASE(cuStreamGetId, fake_stream_id);
		CASE(cuStreamQuery, fake_stream_query);
		CASE(cuStreamGetCtx, fake_stream_context);
		CASE(cuCtxPushCurrent_v2, fake_push);
		CASE(cuCtxPopCurrent_v2, fake_cuCtxGetCurrent);
		CASE(cuEventCreate, fake_event_create);
		CASE(cuEventRecord, fake_event_record);
		CASE(cuEventQuery, fake_event);
		CASE(cuEventDestroy_v2, fake_event);
	default:
		return NULL;
	}
}
