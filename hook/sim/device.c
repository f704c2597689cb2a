/* device.c: what a program asks about the devices it sees: count, names, UUIDs, PCI places, memory, peers.
 *
 * Called by programs after cuInit. All answers come from the machine file; ordinals are translated by visible.c.
 * Attributes are in device_attributes.c.
 */
#include <stdio.h>
#include <string.h>

#include "context.h"
#include "machine_names.h"
#include "sim_impl.h"
#include "visible.h"

static const struct sim_device_model *model_of(int device)
{
	return &sim_machine->model[device];
}

CUresult sim_cuDeviceGetCount(int *count)
{
	if (!sim_initialized())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!count)
		return CUDA_ERROR_INVALID_VALUE;
	*count = sim_visible_count();
	return CUDA_SUCCESS;
}

CUresult sim_cuDeviceGet(CUdevice *device, int ordinal)
{
	int physical;
	CUresult result = sim_device_of(ordinal, &physical);

	if (result != CUDA_SUCCESS)
		return result;
	if (!device)
		return CUDA_ERROR_INVALID_VALUE;
	*device = ordinal;
	return CUDA_SUCCESS;
}

CUresult sim_cuDeviceGetName(char *name, int length, CUdevice ordinal)
{
	int device;
	CUresult result = sim_device_of(ordinal, &device);

	if (result != CUDA_SUCCESS)
		return result;
	if (!name || length <= 0)
		return CUDA_ERROR_INVALID_VALUE;
	snprintf(name, (size_t)length, "%s", model_of(device)->name);
	return CUDA_SUCCESS;
}

CUresult sim_cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice ordinal)
{
	int device;
	CUresult result = sim_device_of(ordinal, &device);

	if (result != CUDA_SUCCESS)
		return result;
	if (!uuid)
		return CUDA_ERROR_INVALID_VALUE;
	sim_uuid_bytes(model_of(device)->uuid, (unsigned char *)uuid->bytes);
	return CUDA_SUCCESS;
}

/* The first version tells an instance's card, the second the instance itself. */
CUresult sim_cuDeviceGetUuid(CUuuid *uuid, CUdevice ordinal)
{
	int device;
	CUresult result = sim_cuDeviceGetUuid_v2(uuid, ordinal);

	if (result != CUDA_SUCCESS)
		return result;
	device = sim_physical(ordinal);
	if (model_of(device)->mig == SIM_MIG_INSTANCE && model_of(device)->parent >= 0 &&
	    model_of(device)->parent < (int)sim_machine->ndev)
		sim_uuid_bytes(model_of(model_of(device)->parent)->uuid, (unsigned char *)uuid->bytes);
	return CUDA_SUCCESS;
}

CUresult sim_cuDeviceTotalMem_v2(size_t *bytes, CUdevice ordinal)
{
	int device;
	CUresult result = sim_device_of(ordinal, &device);

	if (result != CUDA_SUCCESS)
		return result;
	if (!bytes)
		return CUDA_ERROR_INVALID_VALUE;
	*bytes = model_of(device)->memory;
	return CUDA_SUCCESS;
}

CUresult sim_cuDeviceTotalMem(unsigned int *bytes, CUdevice ordinal)
{
	size_t total;

	if (!bytes)
		return CUDA_ERROR_INVALID_VALUE;
	CUresult result = sim_cuDeviceTotalMem_v2(&total, ordinal);
	if (result == CUDA_SUCCESS)
		*bytes = total > UINT32_MAX ? UINT32_MAX : (unsigned)total;
	return result;
}

CUresult sim_cuDeviceComputeCapability(int *major, int *minor, CUdevice ordinal)
{
	int device;
	CUresult result = sim_device_of(ordinal, &device);

	if (result != CUDA_SUCCESS)
		return result;
	if (!major || !minor)
		return CUDA_ERROR_INVALID_VALUE;
	*major = (int)model_of(device)->cc_major;
	*minor = (int)model_of(device)->cc_minor;
	return CUDA_SUCCESS;
}

/* ---- PCI -------------------------------------------------------------------------------------------------------- */

bool sim_device_place(int device, unsigned *domain, unsigned *bus, unsigned *slot)
{
	struct sim_pci place;

	if (!sim_pci_parse(model_of(device)->pci, &place))
		return false;
	*domain = place.domain;
	*bus = place.bus;
	*slot = place.device;
	return true;
}

CUresult sim_cuDeviceGetPCIBusId(char *text, int length, CUdevice ordinal)
{
	unsigned domain = 0, bus = 0, slot = 0;
	int device;
	CUresult result = sim_device_of(ordinal, &device);

	if (result != CUDA_SUCCESS)
		return result;
	if (!text || length <= 0)
		return CUDA_ERROR_INVALID_VALUE;
	sim_device_place(device, &domain, &bus, &slot);
	snprintf(text, (size_t)length, "%04X:%02X:%02X.0", domain, bus, slot);
	return CUDA_SUCCESS;
}

CUresult sim_cuDeviceGetByPCIBusId(CUdevice *device, const char *text)
{
	struct sim_pci wanted, found;

	if (!sim_initialized())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!device || !text || !sim_pci_parse(text, &wanted))
		return CUDA_ERROR_INVALID_VALUE;
	for (int i = 0; i < sim_visible_count(); i++) {
		if (sim_pci_parse(model_of(sim_physical(i))->pci, &found) && sim_pci_same(&found, &wanted)) {
			*device = i;
			return CUDA_SUCCESS;
		}
	}
	return CUDA_ERROR_INVALID_DEVICE;
}

CUresult sim_cuDeviceGetLuid(char *luid, unsigned int *mask, CUdevice ordinal)
{
	int device;
	CUresult result = sim_device_of(ordinal, &device);

	if (result != CUDA_SUCCESS)
		return result;
	return luid && mask ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_INVALID_VALUE; /* exists on Windows only */
}

CUresult sim_cuDeviceGetTexture1DLinearMaxWidth(size_t *width, CUarray_format format, unsigned channels,
                                                CUdevice ordinal)
{
	int device;
	CUresult result = sim_device_of(ordinal, &device);

	if (result != CUDA_SUCCESS)
		return result;
	if (!width || !format || (channels != 1 && channels != 2 && channels != 4))
		return CUDA_ERROR_INVALID_VALUE;
	*width = UINT64_C(1) << 28;
	return CUDA_SUCCESS;
}

CUresult sim_cuDeviceGetExecAffinitySupport(int *supported, CUexecAffinityType type, CUdevice ordinal)
{
	int device;
	CUresult result = sim_device_of(ordinal, &device);

	if (result != CUDA_SUCCESS)
		return result;
	if (!supported || type >= CU_EXEC_AFFINITY_TYPE_MAX)
		return CUDA_ERROR_INVALID_VALUE;
	*supported = 0;
	return CUDA_SUCCESS;
}

/* ---- peers ------------------------------------------------------------------------------------------------------ */

/* NVLink, or a PCIe switch in common: through a host bridge peers stage through the host. Instances have no peers. */
bool sim_devices_peer(int device, int other)
{
	return device != other && model_of(device)->mig == SIM_MIG_NONE && model_of(other)->mig == SIM_MIG_NONE &&
	       sim_machine->link[device][other].kind >= SIM_LINK_SWITCH;
}

CUresult sim_cuDeviceCanAccessPeer(int *can, CUdevice ordinal, CUdevice other_ordinal)
{
	int device, other;
	CUresult result = sim_device_of(ordinal, &device);

	if (result == CUDA_SUCCESS)
		result = sim_device_of(other_ordinal, &other);
	if (result != CUDA_SUCCESS)
		return result;
	if (!can)
		return CUDA_ERROR_INVALID_VALUE;
	*can = sim_devices_peer(device, other);
	return CUDA_SUCCESS;
}

CUresult sim_cuDeviceGetP2PAttribute(int *value, CUdevice_P2PAttribute attribute, CUdevice from, CUdevice to)
{
	int device, other;
	CUresult result = sim_device_of(from, &device);

	if (result == CUDA_SUCCESS)
		result = sim_device_of(to, &other);
	if (result != CUDA_SUCCESS)
		return result;
	if (!value)
		return CUDA_ERROR_INVALID_VALUE;
	if (device == other)
		return CUDA_ERROR_INVALID_DEVICE;
	uint32_t kind = sim_machine->link[device][other].kind;
	bool peer = sim_devices_peer(device, other), nvlink = peer && kind >= SIM_LINK_NVLINK;
	switch (attribute) {
	case CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK:
		*value = nvlink ? 0 : 1;
		return CUDA_SUCCESS;
	case CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED:
		*value = peer;
		return CUDA_SUCCESS;
	case CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED:
		*value = nvlink;
		return CUDA_SUCCESS;
	case CU_DEVICE_P2P_ATTRIBUTE_CUDA_ARRAY_ACCESS_SUPPORTED:
		*value = peer;
		return CUDA_SUCCESS;
	case CU_DEVICE_P2P_ATTRIBUTE_ONLY_PARTIAL_NATIVE_ATOMIC_SUPPORTED:
		*value = 0;
		return CUDA_SUCCESS;
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
}
