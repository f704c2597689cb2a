/* nvml_devices.c: which devices NVML knows: nvmlDeviceGetCount*, nvmlDeviceGetHandleBy*, nvmlDeviceGetIndex.
 *
 * Under a policy the granted devices alone, numbered by their position in it, and found by UUID: NVML counts the
 * machine's devices and ignores CUDA_VISIBLE_DEVICES, so no number of one side means anything on the other. Before
 * nvmlInit the driver's own error comes back, since it is asked first.
 */
#include "nvml_hooks.h"

#define UUID_TEXT 96

static bool filtered(void)
{
	return vgpu_mode() != VGPU_FREE && vgpu_granted_count() >= 0;
}

int vgpu_nvml_index(nvmlDevice_t device, nvmlReturn_t *error)
{
	char uuid[UUID_TEXT];
	*error = real_nvmlDeviceGetUUID(device, uuid, sizeof(uuid));
	return *error == NVML_SUCCESS ? vgpu_device_by_uuid(uuid) : -1;
}

/* The granted devices that this machine has, in the policy's order. */
static nvmlReturn_t granted(nvmlDevice_t out[PTG_DEVICES], unsigned *count)
{
	*count = 0;
	nvmlReturn_t error = real_nvmlDeviceGetCount_v2(&(unsigned){0});
	for (int i = 0; error == NVML_SUCCESS && i < vgpu_granted_count() && i < PTG_DEVICES; i++)
		if (real_nvmlDeviceGetHandleByUUID(vgpu_granted_uuid(i), &out[*count]) == NVML_SUCCESS)
			(*count)++;
	return error;
}

static nvmlReturn_t count_devices(unsigned int *count)
{
	nvmlDevice_t device[PTG_DEVICES];
	unsigned n;
	nvmlReturn_t error = granted(device, &n);
	if (error == NVML_SUCCESS)
		*count = n;
	return error;
}

nvmlReturn_t hook_nvmlDeviceGetCount(unsigned int *deviceCount)
{
	return deviceCount != NULL && filtered() ? count_devices(deviceCount) : real_nvmlDeviceGetCount(deviceCount);
}

nvmlReturn_t hook_nvmlDeviceGetCount_v2(unsigned int *deviceCount)
{
	return deviceCount != NULL && filtered() ? count_devices(deviceCount) : real_nvmlDeviceGetCount_v2(deviceCount);
}

static nvmlReturn_t by_index(unsigned int index, nvmlDevice_t *out)
{
	nvmlDevice_t device[PTG_DEVICES];
	unsigned n;
	nvmlReturn_t error = granted(device, &n);
	if (error != NVML_SUCCESS)
		return error;
	if (index >= n)
		return NVML_ERROR_INVALID_ARGUMENT;
	*out = device[index];
	return NVML_SUCCESS;
}

nvmlReturn_t hook_nvmlDeviceGetHandleByIndex(unsigned int index, nvmlDevice_t *device)
{
	return device != NULL && filtered() ? by_index(index, device) : real_nvmlDeviceGetHandleByIndex(index, device);
}

nvmlReturn_t hook_nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device)
{
	return device != NULL && filtered() ? by_index(index, device)
	                                    : real_nvmlDeviceGetHandleByIndex_v2(index, device);
}

/* The driver has found a device: it exists for this container only if it was granted. */
static nvmlReturn_t found(nvmlReturn_t error, nvmlDevice_t device, nvmlDevice_t *out)
{
	if (error == NVML_SUCCESS && filtered() && vgpu_nvml_index(device, &error) < 0 && error == NVML_SUCCESS)
		error = NVML_ERROR_NOT_FOUND;
	if (error == NVML_SUCCESS)
		*out = device;
	return error;
}

#define HANDLE_BY(what, type)                                                                                          \
	nvmlReturn_t hook_nvmlDeviceGetHandleBy##what(type key, nvmlDevice_t *device)                                  \
	{                                                                                                              \
		nvmlDevice_t d = NULL;                                                                                 \
		nvmlReturn_t error = real_nvmlDeviceGetHandleBy##what(key, device ? &d : NULL);                        \
		return device ? found(error, d, device) : error;                                                       \
	}

HANDLE_BY(Serial, const char *)
HANDLE_BY(UUID, const char *)
HANDLE_BY(UUIDV, const nvmlUUID_t *)
HANDLE_BY(PciBusId, const char *)
HANDLE_BY(PciBusId_v2, const char *)

nvmlReturn_t hook_nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int *index)
{
	unsigned int real = 0, n;
	nvmlDevice_t list[PTG_DEVICES];
	nvmlReturn_t error = real_nvmlDeviceGetIndex(device, index ? &real : NULL);
	if (error != NVML_SUCCESS || index == NULL)
		return error;
	*index = real;
	if (!filtered() || (error = granted(list, &n)) != NVML_SUCCESS)
		return error;
	int own = vgpu_nvml_index(device, &error);
	for (unsigned i = 0; i < n && own >= 0; i++)
		if (vgpu_nvml_index(list[i], &error) == own) {
			*index = i;
			return NVML_SUCCESS;
		}
	return NVML_ERROR_INVALID_ARGUMENT;
}
