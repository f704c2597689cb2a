/* nvml_memory.c: how much memory NVML says a device has: nvmlDeviceGetMemoryInfo, _v2, nvmlDeviceGetBAR1MemoryInfo,
 * nvmlDeviceGetAttributes, _v2.
 *
 * The same numbers as cuMemGetInfo: total = min(limit, card), used <= total, free = min(total - used, free on the
 * card). What the card keeps for itself is not the share's, so `reserved` is 0. A device that was not granted can be
 * named all the same, by way of a part of it that was: its memory is nobody's business (NO_PERMISSION). Where the driver cannot tell (boards
 * without memory totals in NVML) its own error comes back; the limit does not depend on it.
 */
#include <string.h>

#include "memory.h"
#include "nvml_hooks.h"

struct view {
	unsigned long long total, free, used;
};

/* NVML_SUCCESS: `v` is the share; NVML_ERROR_NOT_FOUND: no limit here, the driver's numbers stand; else what to answer. */
static nvmlReturn_t share_of(nvmlDevice_t device, unsigned long long card_total, unsigned long long card_free,
                             struct view *v)
{
	nvmlReturn_t error;
	int index = vgpu_nvml_index(device, &error);
	if (index < 0)
		return error == NVML_SUCCESS && vgpu_granted_count() >= 0 ? NVML_ERROR_NO_PERMISSION
		                                                          : NVML_ERROR_NOT_FOUND;
	for (CUdevice d = 0; d < VGPU_ORDINALS; d++) {
		vgpu_contexts_settle(d);
		vgpu_pool_reconcile(d); /* costs nothing where this process has no pool */
		vgpu_deferred_poll(d);
	}
	vgpu_forget_dead();
	uint64_t total, free, used = vgpu_used_index(index);
	vgpu_view_index(index, card_total, card_free, &total, &free);
	v->total = total;
	v->free = free;
	v->used = used < total ? used : total;
	return NVML_SUCCESS;
}

/* The same where the caller did not ask for the memory itself. */
static nvmlReturn_t share_beside(nvmlDevice_t device, struct view *v)
{
	nvmlMemory_t card;
	nvmlReturn_t error = real_nvmlDeviceGetMemoryInfo(device, &card);
	return error == NVML_SUCCESS ? share_of(device, card.total, card.free, v) : NVML_ERROR_NOT_FOUND;
}

/* Wipe what the driver told, so that only the error is left. */
static nvmlReturn_t told(nvmlReturn_t shared, void *out, size_t size)
{
	if (shared == NVML_ERROR_NOT_FOUND)
		return NVML_SUCCESS;
	memset(out, 0, size);
	return shared;
}

nvmlReturn_t hook_nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
	struct view v;
	nvmlReturn_t error = real_nvmlDeviceGetMemoryInfo(device, memory);
	if (error != NVML_SUCCESS || vgpu_mode() == VGPU_FREE)
		return error;
	error = share_of(device, memory->total, memory->free, &v);
	if (error != NVML_SUCCESS)
		return told(error, memory, sizeof(*memory));
	memory->total = v.total;
	memory->free = v.free;
	memory->used = v.used;
	return NVML_SUCCESS;
}

nvmlReturn_t hook_nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
	struct view v;
	nvmlReturn_t error = real_nvmlDeviceGetMemoryInfo_v2(device, memory);
	if (error != NVML_SUCCESS || vgpu_mode() == VGPU_FREE)
		return error;
	error = share_of(device, memory->total, memory->free, &v);
	if (error != NVML_SUCCESS)
		return told(error, memory, sizeof(*memory));
	memory->total = v.total;
	memory->reserved = 0;
	memory->free = v.free;
	memory->used = v.used;
	return NVML_SUCCESS;
}

/* The window onto the card's memory: as large as that of a card of the share's size (a power of two), and no more of it
 * in use than of the share. How much of it others use is not told. */
nvmlReturn_t hook_nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, nvmlBAR1Memory_t *bar1Memory)
{
	struct view v;
	nvmlReturn_t error = real_nvmlDeviceGetBAR1MemoryInfo(device, bar1Memory);
	if (error != NVML_SUCCESS || vgpu_mode() == VGPU_FREE)
		return error;
	error = share_beside(device, &v);
	if (error != NVML_SUCCESS)
		return told(error, bar1Memory, sizeof(*bar1Memory));
	unsigned long long window = 1ULL << 20;
	while (window < v.total && window < bar1Memory->bar1Total)
		window *= 2;
	bar1Memory->bar1Total = window < bar1Memory->bar1Total ? window : bar1Memory->bar1Total;
	window = v.used < bar1Memory->bar1Total ? v.used : bar1Memory->bar1Total;
	bar1Memory->bar1Used = bar1Memory->bar1Used < window ? bar1Memory->bar1Used : window;
	bar1Memory->bar1Free = bar1Memory->bar1Total - bar1Memory->bar1Used;
	return NVML_SUCCESS;
}

/* A part of a card says its size among its attributes. */
static nvmlReturn_t bound_size(nvmlReturn_t error, nvmlDevice_t device, nvmlDeviceAttributes_t *attributes)
{
	struct view v;
	if (error != NVML_SUCCESS || vgpu_mode() == VGPU_FREE)
		return error;
	error = share_beside(device, &v);
	if (error != NVML_SUCCESS)
		return told(error, attributes, sizeof(*attributes));
	if (attributes->memorySizeMB > v.total >> 20)
		attributes->memorySizeMB = v.total >> 20;
	return NVML_SUCCESS;
}

nvmlReturn_t hook_nvmlDeviceGetAttributes(nvmlDevice_t device, nvmlDeviceAttributes_t *attributes)
{
	return bound_size(real_nvmlDeviceGetAttributes(device, attributes), device, attributes);
}

nvmlReturn_t hook_nvmlDeviceGetAttributes_v2(nvmlDevice_t device, nvmlDeviceAttributes_t *attributes)
{
	return bound_size(real_nvmlDeviceGetAttributes_v2(device, attributes), device, attributes);
}
