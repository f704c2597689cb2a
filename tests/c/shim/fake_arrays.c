/* fake_arrays.c: the arrays of fake_driver.h: rows in 64 bytes, 16 of them together, in whole granules. Handles are handed
 * out again at once. A deferred array takes nothing and says what it would need, unless the driver is an old
 * one; handles are mapped into it as a whole.
 */
#include <pthread.h>

#include "fake_parts.h"

#define ARRAYS 4096

static struct {
	bool taken, mipmap, deferred;
	uint64_t bytes;
	CUmemGenericAllocationHandle mapped; /* into a deferred one, as a whole; 0: nothing */
} array[ARRAYS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static bool old;

void fake_old_arrays(bool is)
{
	old = is;
}

static uint64_t bytes_of(const CUDA_ARRAY3D_DESCRIPTOR *d, unsigned levels)
{
	uint64_t bytes = 0;
	for (unsigned i = 0; i < (levels ? levels : 1); i++) {
		uint64_t width = d->Width >> i ? d->Width >> i : 1, height = d->Height >> i ? d->Height >> i : 1;
		bytes += vgpu_round_up(width * 4 * d->NumChannels, 64) * vgpu_round_up(height, 16) *
		         (d->Depth ? d->Depth : 1);
	}
	return bytes;
}

static CUresult make(void **out, const char *call, const CUDA_ARRAY3D_DESCRIPTOR *d, unsigned levels)
{
	bool deferred = d->Flags & CUDA_ARRAY3D_DEFERRED_MAPPING;
	uint64_t bytes = bytes_of(d, levels);
	CUresult error = CUDA_SUCCESS;
	unsigned i = 0;
	if (!deferred && fake_fails(call, &error))
		return error;
	if (deferred && old)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&lock);
	while (array[i].taken)
		i++;
	CHECK(i < ARRAYS, "too many arrays");
	array[i].taken = true;
	array[i].mipmap = levels != 0;
	array[i].deferred = deferred;
	array[i].bytes = bytes;
	pthread_mutex_unlock(&lock);
	if (!deferred)
		fake_hold((int64_t)vgpu_round_up(bytes, VGPU_GRANULE));
	*out = (void *)(uintptr_t)(0x600000000000 + (uint64_t)i * 64);
	return CUDA_SUCCESS;
}

static CUresult end(const void *handle, const char *call, bool mipmap)
{
	uint64_t i = ((uintptr_t)handle - 0x600000000000) / 64;
	CUresult error = CUDA_SUCCESS;
	if (i >= ARRAYS || fake_fails(call, &error))
		return error != CUDA_SUCCESS ? error : CUDA_ERROR_INVALID_HANDLE;
	pthread_mutex_lock(&lock);
	bool right = array[i].taken && array[i].mipmap == mipmap;
	CUmemGenericAllocationHandle mapped = right ? array[i].mapped : 0;
	uint64_t bytes = array[i].deferred ? 0 : vgpu_round_up(array[i].bytes, VGPU_GRANULE);
	if (right) { /* the memory goes before the handle may come back */
		fake_hold(-(int64_t)bytes);
		if (mapped != 0)
			fake_mapped(mapped, -1);
		array[i].mapped = 0;
		array[i].taken = false;
	}
	pthread_mutex_unlock(&lock);
	return right ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

static CUresult need(CUDA_ARRAY_MEMORY_REQUIREMENTS *out, const void *handle)
{
	uint64_t i = ((uintptr_t)handle - 0x600000000000) / 64;
	if (i >= ARRAYS || !array[i].taken || !array[i].deferred)
		return CUDA_ERROR_INVALID_VALUE;
	*out = (CUDA_ARRAY_MEMORY_REQUIREMENTS){.size = array[i].bytes, .alignment = 65536};
	return CUDA_SUCCESS;
}

CUresult fake_cuArray3DCreate_v2(CUarray *out, const CUDA_ARRAY3D_DESCRIPTOR *d)
{
	return make((void **)out, "cuArray3DCreate_v2", d, 0);
}

CUresult fake_cuArrayCreate_v2(CUarray *out, const CUDA_ARRAY_DESCRIPTOR *d)
{
	CUDA_ARRAY3D_DESCRIPTOR wide = {d->Width, d->Height, 0, d->Format, d->NumChannels, 0};
	return make((void **)out, "cuArrayCreate_v2", &wide, 0);
}

CUresult fake_cuArrayDestroy(CUarray handle)
{
	return end(handle, "cuArrayDestroy", false);
}

CUresult fake_cuArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *out, CUarray handle, CUdevice device)
{
	(void)device;
	return need(out, handle);
}

/* Arrays only, deferred ones, at once. */
CUresult fake_cuMemMapArrayAsync(CUarrayMapInfo *list, unsigned int count, CUstream stream)
{
	(void)stream;
	for (unsigned k = 0; k < count; k++) {
		uint64_t i = ((uintptr_t)list[k].resource.array - 0x600000000000) / 64;
		CUmemGenericAllocationHandle handle =
		        list[k].memOperationType == CU_MEM_OPERATION_TYPE_MAP ? list[k].memHandle.memHandle : 0;
		if (i >= ARRAYS || (handle != 0 && !fake_mapped(handle, 1)))
			return CUDA_ERROR_INVALID_VALUE;
		pthread_mutex_lock(&lock);
		CUmemGenericAllocationHandle before = array[i].mapped;
		array[i].mapped = handle;
		pthread_mutex_unlock(&lock);
		if (before != 0)
			fake_mapped(before, -1);
	}
	return CUDA_SUCCESS;
}

CUresult fake_cuMipmappedArrayCreate(CUmipmappedArray *out, const CUDA_ARRAY3D_DESCRIPTOR *d, unsigned int levels)
{
	return make((void **)out, "cuMipmappedArrayCreate", d, levels);
}

CUresult fake_cuMipmappedArrayDestroy(CUmipmappedArray handle)
{
	return end(handle, "cuMipmappedArrayDestroy", true);
}

CUresult fake_cuMipmappedArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *out, CUmipmappedArray handle,
                                                    CUdevice device)
{
	(void)device;
	return need(out, handle);
}
