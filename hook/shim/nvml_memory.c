/* nvml_memory.c: how much memory NVML says a device has: nvmlDeviceGetMemoryInfo, _v2.
 *
 * The same numbers as cuMemGetInfo: total = min(limit, card), used <= total, free = min(total - used, free on the
 * card). What the card keeps for itself is not the share's, so `reserved` is 0. Where the driver cannot tell (boards
 * without memory totals in NVML) its own error comes back; the limit does not depend on it.
 */
#include "memory.h"
#include "nvml_hooks.h"

struct view {
	unsigned long long total, free, used;
};

static bool share_of(nvmlDevice_t device, unsigned long long card_total, unsigned long long card_free, struct view *v)
{
	nvmlReturn_t error;
	int index = vgpu_nvml_index(device, &error);
	if (index < 0)
		return false;
	for (CUdevice d = 0; d < VGPU_ORDINALS; d++) {
		vgpu_pool_reconcile(d); /* costs nothing where this process has no pool */
		vgpu_deferred_poll(d);
	}
	uint64_t total, free, used = vgpu_used_index(index);
	vgpu_view_index(index, card_total, card_free, &total, &free);
	v->total = total;
	v->free = free;
	v->used = used < total ? used : total;
	return true;
}

nvmlReturn_t hook_nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
	struct view v;
	nvmlReturn_t error = real_nvmlDeviceGetMemoryInfo(device, memory);
	if (error != NVML_SUCCESS || vgpu_mode() == VGPU_FREE || !share_of(device, memory->total, memory->free, &v))
		return error;
	memory->total = v.total;
	memory->free = v.free;
	memory->used = v.used;
	return NVML_SUCCESS;
}

nvmlReturn_t hook_nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
	struct view v;
	nvmlReturn_t error = real_nvmlDeviceGetMemoryInfo_v2(device, memory);
	if (error != NVML_SUCCESS || vgpu_mode() == VGPU_FREE || !share_of(device, memory->total, memory->free, &v))
		return error;
	memory->total = v.total;
	memory->reserved = 0;
	memory->free = v.free;
	memory->used = v.used;
	return NVML_SUCCESS;
}
