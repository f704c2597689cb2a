/* query.c: what a program is told about memory: cuMemGetInfo*, cuDeviceTotalMem*.
 *
 * The driver is asked first, with outputs missing where the caller leaves them out, so that its own error comes back
 * and outputs stay untouched; then its numbers are replaced by the view of the share: total = min(limit, card), used <=
 * total, free = min(limit - used, free on the card).
 */
#include "hooks.h"
#include "memory.h"

/* What the program sees on its current device. `free` and `total` may be missing. */
static CUresult view(size_t *free_bytes, size_t *total_bytes)
{
	size_t card_free = 0, card_total = 0;
	CUresult error = real_cuMemGetInfo_v2(&card_free, &card_total);
	if (error != CUDA_SUCCESS)
		return error;
	CUdevice device = vgpu_current_device(&error);
	if (error != CUDA_SUCCESS)
		return error;
	vgpu_contexts_settle(device);
	vgpu_pool_reconcile(device);
	vgpu_deferred_poll(device);
	uint64_t total, free;
	vgpu_view(device, card_total, card_free, &total, &free);
	*total_bytes = total;
	*free_bytes = free;
	return CUDA_SUCCESS;
}

CUresult hook_cuMemGetInfo_v2(size_t *free, size_t *total)
{
	if (vgpu_mode() == VGPU_FREE)
		return real_cuMemGetInfo_v2(free, total);
	size_t seen_free = 0, seen_total = 0;
	if (free == NULL || total == NULL) { /* the driver may or may not allow it */
		CUresult error = real_cuMemGetInfo_v2(free ? &seen_free : NULL, total ? &seen_total : NULL);
		if (error != CUDA_SUCCESS)
			return error;
	}
	CUresult error = view(&seen_free, &seen_total);
	if (error != CUDA_SUCCESS)
		return error;
	if (free != NULL)
		*free = seen_free;
	if (total != NULL)
		*total = seen_total;
	return CUDA_SUCCESS;
}

static unsigned int narrow(size_t bytes)
{
	return bytes > UINT32_MAX ? UINT32_MAX : (unsigned int)bytes;
}

CUresult hook_cuMemGetInfo(unsigned int *free, unsigned int *total)
{
	if (vgpu_mode() == VGPU_FREE)
		return real_cuMemGetInfo(free, total);
	unsigned int driver_free = 0, driver_total = 0;
	size_t seen_free = 0, seen_total = 0;
	CUresult error = real_cuMemGetInfo(free ? &driver_free : NULL, total ? &driver_total : NULL);
	if (error == CUDA_SUCCESS)
		error = view(&seen_free, &seen_total);
	if (error != CUDA_SUCCESS)
		return error;
	if (free != NULL)
		*free = narrow(seen_free);
	if (total != NULL)
		*total = narrow(seen_total);
	return CUDA_SUCCESS;
}

static size_t total_of(CUdevice device, size_t card)
{
	uint64_t total, free;
	vgpu_view(device, card, card, &total, &free);
	return total;
}

CUresult hook_cuDeviceTotalMem_v2(size_t *bytes, CUdevice dev)
{
	if (vgpu_mode() == VGPU_FREE || bytes == NULL)
		return real_cuDeviceTotalMem_v2(bytes, dev);
	if (vgpu_hidden(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	size_t card = 0;
	CUresult error = real_cuDeviceTotalMem_v2(&card, dev);
	if (error == CUDA_SUCCESS)
		*bytes = total_of(dev, card);
	return error;
}

CUresult hook_cuDeviceTotalMem(unsigned int *bytes, CUdevice dev)
{
	if (vgpu_mode() == VGPU_FREE || bytes == NULL)
		return real_cuDeviceTotalMem(bytes, dev);
	if (vgpu_hidden(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	unsigned int old = 0;
	size_t card = 0;
	CUresult error = real_cuDeviceTotalMem(&old, dev);
	if (error == CUDA_SUCCESS)
		error = real_cuDeviceTotalMem_v2(&card, dev);
	if (error == CUDA_SUCCESS)
		*bytes = narrow(total_of(dev, card));
	return error;
}
