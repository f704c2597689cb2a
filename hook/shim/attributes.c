/* attributes.c: what a device is said to be able to do: cuDeviceGetAttribute.
 *
 * Called by every program at start. Under a limit the ways to memory that are not metered are refused
 * (cuda_api.def, REFUSED); a program that asks first is told that the device has no such feature, so that it takes the
 * way it takes on a device without, instead of meeting a refusal later. Multicast objects are metered, but not between
 * processes, which is what programs that ask want them for; handles for other processes, but not those for other
 * machines (fabric). Everything else is the driver's own answer.
 */
#include "hooks.h"
#include "memory.h"

static bool is_of_a_refused_way(CUdevice_attribute attribute)
{
	switch (attribute) {
	case CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED:
	case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED:
	case CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED:
	case CU_DEVICE_ATTRIBUTE_DMA_BUF_MMAP_SUPPORTED:
	case CU_DEVICE_ATTRIBUTE_LOGICAL_ENDPOINT_UNICAST_SUPPORTED:
	case CU_DEVICE_ATTRIBUTE_LOGICAL_ENDPOINT_MULTICAST_SUPPORTED:
	case CU_DEVICE_ATTRIBUTE_LOGICAL_ENDPOINT_SUPPORTED_HANDLE_TYPES:
		return true;
	default:
		return false;
	}
}

static int less(CUdevice_attribute attribute, int value)
{
	if (is_of_a_refused_way(attribute))
		return 0;
	if (attribute == CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES)
		return value & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
	return value;
}

CUresult hook_cuDeviceGetAttribute(int *pi, CUdevice_attribute attrib, CUdevice dev)
{
	if (vgpu_hidden(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	CUresult result = real_cuDeviceGetAttribute(pi, attrib, dev);
	if (result == CUDA_SUCCESS && pi != NULL && vgpu_mode() != VGPU_FREE)
		*pi = less(attrib, *pi);
	return result;
}
