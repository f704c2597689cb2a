/* device_hooks.c: which devices exist: cuDeviceGetCount, cuDeviceGet, cuDeviceGetByPCIBusId.
 *
 * Under a policy a program sees the granted devices alone. They stand in the policy's order, unless the program chose
 * an order of its own (CUDA_VISIBLE_DEVICES), which the driver has applied already and which is kept. A CUdevice is
 * what the driver hands out, so everything else takes it as it is.
 * What can go wrong: the driver is not initialised. Its own error comes back, since it is asked first.
 */
#include <stdlib.h>

#include "hooks.h"
#include "memory.h"

/* The driver's devices that this container was granted, in the order the program counts them. */
static CUresult visible_devices(CUdevice out[VGPU_ORDINALS], int *count)
{
	int all = 0;
	CUresult error = real_cuDeviceGetCount(&all);
	if (error != CUDA_SUCCESS)
		return error;
	*count = 0;
	for (int i = 0; i < all && i < VGPU_ORDINALS; i++) {
		CUdevice device;
		if (real_cuDeviceGet(&device, i) == CUDA_SUCCESS && vgpu_visible(device))
			out[(*count)++] = device;
	}
	return CUDA_SUCCESS;
}

static int position(CUdevice device)
{
	CUuuid uuid;
	char text[PTG_UUID_SIZE];
	if (real_cuDeviceGetUuid_v2(&uuid, device) != CUDA_SUCCESS &&
	    real_cuDeviceGetUuid(&uuid, device) != CUDA_SUCCESS)
		return -1;
	vgpu_format_uuid(text, (const unsigned char *)uuid.bytes);
	return vgpu_device_by_uuid(text);
}

/* Insertion sort: a handful of devices. */
static void by_policy(CUdevice *device, int count)
{
	int rank[VGPU_ORDINALS];
	for (int i = 0; i < count; i++) {
		CUdevice one = device[i];
		int at = i, own = position(one);
		for (; at > 0 && rank[at - 1] > own; at--) {
			device[at] = device[at - 1];
			rank[at] = rank[at - 1];
		}
		device[at] = one;
		rank[at] = own;
	}
}

static bool filtered(void)
{
	return vgpu_mode() != VGPU_FREE && vgpu_granted_count() >= 0;
}

CUresult hook_cuDeviceGetCount(int *count)
{
	if (count == NULL || !filtered())
		return real_cuDeviceGetCount(count);
	CUdevice device[VGPU_ORDINALS];
	int visible = 0;
	CUresult error = visible_devices(device, &visible);
	if (error == CUDA_SUCCESS)
		*count = visible;
	return error;
}

CUresult hook_cuDeviceGet(CUdevice *device, int ordinal)
{
	if (device == NULL || !filtered())
		return real_cuDeviceGet(device, ordinal);
	CUdevice list[VGPU_ORDINALS];
	int count = 0;
	CUresult error = visible_devices(list, &count);
	if (error != CUDA_SUCCESS)
		return error;
	if (ordinal < 0 || ordinal >= count)
		return CUDA_ERROR_INVALID_DEVICE;
	if (getenv("CUDA_VISIBLE_DEVICES") == NULL)
		by_policy(list, count);
	*device = list[ordinal];
	return CUDA_SUCCESS;
}

CUresult hook_cuDeviceGetByPCIBusId(CUdevice *dev, const char *pciBusId)
{
	if (dev == NULL || !filtered())
		return real_cuDeviceGetByPCIBusId(dev, pciBusId);
	CUdevice found;
	CUresult error = real_cuDeviceGetByPCIBusId(&found, pciBusId);
	if (error == CUDA_SUCCESS && vgpu_hidden(found))
		error = CUDA_ERROR_INVALID_DEVICE;
	if (error == CUDA_SUCCESS)
		*dev = found;
	return error;
}
