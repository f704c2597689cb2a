/* fake_vmm.c: handles and mappings of fake_driver.h: memory is held while a handle or a mapping of it lives. */
#include "fake_parts.h"

#define HANDLES 256
static struct {
	unsigned handles, maps;
	uint64_t bytes;
} object[HANDLES];
static struct {
	CUdeviceptr at;
	uint64_t bytes;
	unsigned object;
} mapping[HANDLES];

static void object_maybe_free(unsigned i)
{
	if (object[i].handles + object[i].maps == 0) {
		fake_drop(object[i].bytes);
		object[i].bytes = 0;
	}
}

CUresult fake_cuMemCreate(CUmemGenericAllocationHandle *h, size_t n, const CUmemAllocationProp *prop,
                          unsigned long long flags)
{
	(void)prop;
	(void)flags;
	CUresult error = CUDA_SUCCESS;
	fake_enter();
	if (!fake_fails_locked("cuMemCreate", &error)) {
		error = CUDA_ERROR_OUT_OF_MEMORY;
		for (unsigned i = 0; i < HANDLES && error != CUDA_SUCCESS; i++)
			if (object[i].bytes == 0) {
				object[i].bytes = n;
				object[i].handles = 1;
				fake_take(n);
				*h = i + 1;
				error = CUDA_SUCCESS;
			}
	}
	fake_leave();
	return error;
}

CUresult fake_cuMemRelease(CUmemGenericAllocationHandle h)
{
	CUresult error = CUDA_ERROR_INVALID_VALUE;
	if (fake_multicast_release(h))
		return CUDA_SUCCESS;
	fake_enter();
	if (!fake_fails_locked("cuMemRelease", &error) && h >= 1 && h <= HANDLES && object[h - 1].handles != 0) {
		object[h - 1].handles--;
		object_maybe_free((unsigned)h - 1);
		error = CUDA_SUCCESS;
	}
	fake_leave();
	return error;
}

CUresult fake_cuMemMap(CUdeviceptr p, size_t n, size_t offset, CUmemGenericAllocationHandle h, unsigned long long flags)
{
	(void)offset;
	(void)flags;
	CUresult error = CUDA_ERROR_INVALID_VALUE;
	fake_enter();
	for (unsigned i = 0; i < HANDLES && h >= 1 && h <= HANDLES && object[h - 1].handles != 0; i++)
		if (mapping[i].bytes == 0) {
			mapping[i].at = p;
			mapping[i].bytes = n;
			mapping[i].object = (unsigned)h - 1;
			object[h - 1].maps++;
			error = CUDA_SUCCESS;
			break;
		}
	fake_leave();
	return error;
}

bool fake_mapped(CUmemGenericAllocationHandle h, int change)
{
	fake_enter();
	bool there = h >= 1 && h <= HANDLES && (change < 0 || object[h - 1].handles != 0);
	if (there) {
		object[h - 1].maps += (unsigned)change;
		object_maybe_free((unsigned)h - 1);
	}
	fake_leave();
	return there;
}

CUresult fake_cuMemUnmap(CUdeviceptr p, size_t n)
{
	CUresult error = CUDA_ERROR_INVALID_VALUE;
	fake_enter();
	for (unsigned i = 0; i < HANDLES; i++)
		if (mapping[i].bytes != 0 && mapping[i].at >= p && mapping[i].at < p + n) {
			mapping[i].bytes = 0;
			object[mapping[i].object].maps--;
			object_maybe_free(mapping[i].object);
			error = CUDA_SUCCESS;
		}
	fake_leave();
	return error;
}

CUresult fake_cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *h, void *address)
{
	CUresult error = CUDA_ERROR_INVALID_VALUE;
	fake_enter();
	for (unsigned i = 0; i < HANDLES; i++)
		if (mapping[i].bytes != 0 && (CUdeviceptr)(uintptr_t)address - mapping[i].at < mapping[i].bytes) {
			object[mapping[i].object].handles++;
			*h = mapping[i].object + 1;
			error = CUDA_SUCCESS;
		}
	fake_leave();
	return error;
}
