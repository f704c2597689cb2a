/* nvml_identity.c: handles and who a device is: names, numbers, addresses; the doors of nvml_device.h.
 *
 * All of it is the description part of the machine file, which never changes. Handles outlive nvmlShutdown as on
 * hardware. What can go wrong: a handle that is none of ours, a lost device, a buffer that is too small.
 */
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "machine_names.h"
#include "nvml_device.h"

static struct nvmlDevice_st handles[SIM_DEVICES] = {
        {0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}, {8}, {9}, {10}, {11}, {12}, {13}, {14}, {15},
};
_Static_assert(SIM_DEVICES == 16, "one handle for each entry of the machine file");

static const struct sim_device_model *model_of(uint32_t index)
{
	return &sim_machine->model[index];
}

static bool is_instance(uint32_t index)
{
	return model_of(index)->mig == SIM_MIG_INSTANCE;
}

/* ---- doors --------------------------------------------------------------------------------------------------------
 */

nvmlDevice_t nvml_handle(uint32_t index)
{
	return &handles[index];
}

static bool is_lost(uint32_t index)
{
	uint32_t card = is_instance(index) ? (uint32_t)model_of(index)->parent : index;
	return __atomic_load_n(&sim_machine->device[card].lost, __ATOMIC_ACQUIRE) ||
	       __atomic_load_n(&sim_machine->device[index].lost, __ATOMIC_ACQUIRE);
}

/* What every question about a device is answered with while something is wrong with it: it fell off the bus, or a fault
 * was armed for this call on this device. */
static nvmlReturn_t trouble(uint32_t index)
{
	int code;
	if (is_lost(index))
		return NVML_ERROR_GPU_IS_LOST;
	return sim_fault_on((int)index, &code) ? (nvmlReturn_t)code : NVML_SUCCESS;
}

nvmlReturn_t nvml_find_any(nvmlDevice_t device, uint32_t *index)
{
	if (device < handles || device >= handles + sim_machine->ndev)
		return NVML_ERROR_INVALID_ARGUMENT;
	*index = (uint32_t)(device - handles);
	return trouble(*index);
}

nvmlReturn_t nvml_find_card(nvmlDevice_t device, uint32_t *index)
{
	nvmlReturn_t result = nvml_find_any(device, index);
	return result == NVML_SUCCESS && is_instance(*index) ? NVML_ERROR_NOT_SUPPORTED : result;
}

nvmlReturn_t nvml_find_instance(nvmlDevice_t device, uint32_t *index)
{
	nvmlReturn_t result = nvml_find_any(device, index);
	return result == NVML_SUCCESS && !is_instance(*index) ? NVML_ERROR_NOT_SUPPORTED : result;
}

bool nvml_nth_card(uint32_t n, uint32_t *index)
{
	for (uint32_t i = 0; i < sim_machine->ndev; i++) {
		if (is_instance(i) || !sim_node_seen(i) || n-- > 0)
			continue;
		*index = i;
		return true;
	}
	return false;
}

bool nvml_nth_instance(uint32_t parent, uint32_t n, uint32_t *index)
{
	for (uint32_t i = 0; i < sim_machine->ndev; i++) {
		if (!is_instance(i) || !sim_node_seen(i) || (uint32_t)model_of(i)->parent != parent || n-- > 0)
			continue;
		*index = i;
		return true;
	}
	return false;
}

uint32_t nvml_card_count(void)
{
	uint32_t count = 0;
	for (uint32_t i = 0; i < sim_machine->ndev; i++)
		count += !is_instance(i) && sim_node_seen(i);
	return count;
}

bool nvml_belongs(uint32_t index, uint32_t card)
{
	return index == card || (is_instance(index) && (uint32_t)model_of(index)->parent == card);
}

nvmlReturn_t nvml_text(char *out, unsigned length, const char *text)
{
	if (!out)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (strlen(text) >= length)
		return NVML_ERROR_INSUFFICIENT_SIZE;
	memcpy(out, text, strlen(text) + 1);
	return NVML_SUCCESS;
}

/* ---- handles ------------------------------------------------------------------------------------------------------
 */

nvmlReturn_t sim_nvmlDeviceGetCount_v2(unsigned int *count)
{
	if (!count)
		return NVML_ERROR_INVALID_ARGUMENT;
	*count = nvml_card_count();
	return NVML_SUCCESS;
}

nvmlReturn_t sim_nvmlDeviceGetCount(unsigned int *count)
{
	return sim_nvmlDeviceGetCount_v2(count);
}

static nvmlReturn_t give_handle(uint32_t index, nvmlDevice_t *device)
{
	nvmlReturn_t result = trouble(index);
	if (result == NVML_SUCCESS)
		*device = nvml_handle(index);
	return result;
}

nvmlReturn_t sim_nvmlDeviceGetHandleByIndex_v2(unsigned int n, nvmlDevice_t *device)
{
	uint32_t index;
	if (!device || !nvml_nth_card(n, &index))
		return NVML_ERROR_INVALID_ARGUMENT;
	return give_handle(index, device);
}

nvmlReturn_t sim_nvmlDeviceGetHandleByIndex(unsigned int n, nvmlDevice_t *device)
{
	return sim_nvmlDeviceGetHandleByIndex_v2(n, device);
}

nvmlReturn_t sim_nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
	if (!uuid || !device)
		return NVML_ERROR_INVALID_ARGUMENT;
	for (uint32_t i = 0; i < sim_machine->ndev; i++)
		if (sim_node_seen(i) && strcasecmp(model_of(i)->uuid, uuid) == 0)
			return give_handle(i, device);
	return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t sim_nvmlDeviceGetHandleByUUIDV(const nvmlUUID_t *uuid, nvmlDevice_t *device)
{
	if (!uuid || !device)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (uuid->version != nvmlUUID_v1)
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	if (uuid->type == NVML_UUID_TYPE_ASCII) {
		char text[sizeof(uuid->value.str) + 1] = "";
		memcpy(text, uuid->value.str, sizeof(uuid->value.str));
		return sim_nvmlDeviceGetHandleByUUID(text, device);
	}
	if (uuid->type != NVML_UUID_TYPE_BINARY)
		return NVML_ERROR_INVALID_ARGUMENT;
	for (uint32_t i = 0; i < sim_machine->ndev; i++) {
		unsigned char bytes[16];
		sim_uuid_bytes(model_of(i)->uuid, bytes);
		if (sim_node_seen(i) && memcmp(bytes, uuid->value.bytes, sizeof(bytes)) == 0)
			return give_handle(i, device);
	}
	return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t sim_nvmlDeviceGetHandleBySerial(const char *serial, nvmlDevice_t *device)
{
	uint32_t index;
	if (!serial || !device)
		return NVML_ERROR_INVALID_ARGUMENT;
	for (uint32_t n = 0; nvml_nth_card(n, &index); n++)
		if (strcmp(model_of(index)->serial, serial) == 0)
			return give_handle(index, device);
	return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t sim_nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, nvmlDevice_t *device)
{
	struct sim_pci wanted, there;
	uint32_t index;

	if (!bus_id || !device || !sim_pci_parse(bus_id, &wanted))
		return NVML_ERROR_INVALID_ARGUMENT;
	for (uint32_t n = 0; nvml_nth_card(n, &index); n++)
		if (sim_pci_parse(model_of(index)->pci, &there) && sim_pci_same(&wanted, &there))
			return give_handle(index, device);
	return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t sim_nvmlDeviceGetHandleByPciBusId(const char *bus_id, nvmlDevice_t *device)
{
	return sim_nvmlDeviceGetHandleByPciBusId_v2(bus_id, device);
}

/* ---- identity -----------------------------------------------------------------------------------------------------
 */

nvmlReturn_t sim_nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned int length)
{
	uint32_t i;
	nvmlReturn_t result = nvml_any(device, name, &i);
	return result == NVML_SUCCESS ? nvml_text(name, length, model_of(i)->name) : result;
}

nvmlReturn_t sim_nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int length)
{
	uint32_t i;
	nvmlReturn_t result = nvml_any(device, uuid, &i);
	return result == NVML_SUCCESS ? nvml_text(uuid, length, model_of(i)->uuid) : result;
}

nvmlReturn_t sim_nvmlDeviceGetSerial(nvmlDevice_t device, char *serial, unsigned int length)
{
	uint32_t i;
	nvmlReturn_t result = nvml_card(device, serial, &i);
	if (result == NVML_SUCCESS && model_of(i)->brand == NVML_BRAND_GEFORCE)
		return NVML_ERROR_NOT_SUPPORTED; /* consumer boards do not tell theirs */
	return result == NVML_SUCCESS ? nvml_text(serial, length, model_of(i)->serial) : result;
}

nvmlReturn_t sim_nvmlDeviceGetBoardPartNumber(nvmlDevice_t device, char *part, unsigned int length)
{
	uint32_t i;
	nvmlReturn_t result = nvml_card(device, part, &i);
	return result == NVML_SUCCESS ? nvml_text(part, length, model_of(i)->board_part) : result;
}

nvmlReturn_t sim_nvmlDeviceGetVbiosVersion(nvmlDevice_t device, char *version, unsigned int length)
{
	uint32_t i;
	nvmlReturn_t result = nvml_card(device, version, &i);
	return result == NVML_SUCCESS ? nvml_text(version, length, model_of(i)->vbios) : result;
}

nvmlReturn_t sim_nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int *out)
{
	uint32_t i, other;
	nvmlReturn_t result = nvml_any(device, out, &i);
	if (result != NVML_SUCCESS)
		return result;
	/* An instance's index is its place among its card's instances. */
	for (*out = 0; is_instance(i) ? nvml_nth_instance((uint32_t)model_of(i)->parent, *out, &other)
	                              : nvml_nth_card(*out, &other);
	     ++*out)
		if (other == i)
			return NVML_SUCCESS;
	return NVML_ERROR_UNKNOWN;
}

NVML_GETTER(nvmlDeviceGetMinorNumber, unsigned int, nvml_any, model_of(i)->minor)
NVML_GETTER(nvmlDeviceGetModuleId, unsigned int, nvml_any, model_of(i)->minor)
NVML_GETTER(nvmlDeviceGetBrand, nvmlBrandType_t, nvml_any, model_of(i)->brand)
NVML_GETTER(nvmlDeviceGetArchitecture, nvmlDeviceArchitecture_t, nvml_any, model_of(i)->architecture)
NVML_GETTER(nvmlDeviceGetMemoryBusWidth, unsigned int, nvml_any, model_of(i)->bus_width)

nvmlReturn_t sim_nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor)
{
	uint32_t i;
	nvmlReturn_t result = nvml_any(device, minor ? major : NULL, &i);
	if (result != NVML_SUCCESS)
		return result;
	*major = (int)model_of(i)->cc_major;
	*minor = (int)model_of(i)->cc_minor;
	return NVML_SUCCESS;
}

NVML_GETTER(nvmlDeviceGetNumGpuCores, unsigned int, nvml_any, (model_of(i)->sms * model_of(i)->cores_per_sm))

nvmlReturn_t sim_nvmlDeviceGetBoardId(nvmlDevice_t device, unsigned int *board)
{
	struct sim_pci at = {0};
	uint32_t i;
	nvmlReturn_t result = nvml_card(device, board, &i);
	if (result != NVML_SUCCESS)
		return result;
	sim_pci_parse(model_of(i)->pci, &at);
	*board = at.domain << 16 | at.bus << 8; /* one board, one bus */
	return NVML_SUCCESS;
}

NVML_GETTER(nvmlDeviceGetMultiGpuBoard, unsigned int, nvml_card, 0)

/* ---- PCI ----------------------------------------------------------------------------------------------------------
 */

void nvml_pci(const char *bus_id, nvmlPciInfo_t *pci)
{
	struct sim_pci at = {0};
	sim_pci_parse(bus_id, &at);
	memset(pci, 0, sizeof(*pci));
	pci->domain = at.domain;
	pci->bus = at.bus;
	pci->device = at.device;
	snprintf(pci->busIdLegacy, sizeof(pci->busIdLegacy), "%04X:%02X:%02X.0", at.domain & 0xffff, at.bus & 0xff,
	         at.device & 0xff);
	snprintf(pci->busId, sizeof(pci->busId), "%08X:%02X:%02X.0", at.domain, at.bus, at.device);
}

static nvmlReturn_t give_pci(nvmlDevice_t device, void *out, size_t bytes)
{
	nvmlPciInfo_t pci;
	uint32_t i;
	nvmlReturn_t result = nvml_any(device, out, &i);
	if (result != NVML_SUCCESS)
		return result;
	nvml_pci(model_of(i)->pci, &pci);
	pci.pciDeviceId = model_of(i)->pci_device_id;
	pci.pciSubSystemId = model_of(i)->pci_subsystem_id;
	memcpy(out, &pci, bytes);
	return NVML_SUCCESS;
}

nvmlReturn_t sim_nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
	return give_pci(device, pci, sizeof(*pci));
}

/* The older structures are shorter: version 2 ends after the subsystem id (reserved words follow), version 1 before it.
 */
nvmlReturn_t sim_nvmlDeviceGetPciInfo_v2(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
	return give_pci(device, pci, offsetof(nvmlPciInfo_t, busId));
}

nvmlReturn_t sim_nvmlDeviceGetPciInfo(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
	return give_pci(device, pci, offsetof(nvmlPciInfo_t, pciSubSystemId));
}

nvmlReturn_t sim_nvmlDeviceGetPciInfoExt(nvmlDevice_t device, nvmlPciInfoExt_t *out)
{
	nvmlPciInfo_t pci;
	if (out && out->version != nvmlPciInfoExt_v1)
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	nvmlReturn_t result = give_pci(device, out ? &pci : NULL, sizeof(pci));
	if (result != NVML_SUCCESS)
		return result;
	out->domain = pci.domain;
	out->bus = pci.bus;
	out->device = pci.device;
	out->pciDeviceId = pci.pciDeviceId;
	out->pciSubSystemId = pci.pciSubSystemId;
	out->baseClass = 3; /* a 3D controller */
	out->subClass = 2;
	memcpy(out->busId, pci.busId, sizeof(out->busId));
	return NVML_SUCCESS;
}

NVML_GETTER(nvmlDeviceGetBusType, nvmlBusType_t, nvml_card, NVML_BUS_TYPE_PCIE)
NVML_GETTER(nvmlDeviceGetMaxPcieLinkGeneration, unsigned int, nvml_any, model_of(i)->pcie_gen)
NVML_GETTER(nvmlDeviceGetGpuMaxPcieLinkGeneration, unsigned int, nvml_any, model_of(i)->pcie_gen)
NVML_GETTER(nvmlDeviceGetCurrPcieLinkGeneration, unsigned int, nvml_any, model_of(i)->pcie_gen)
NVML_GETTER(nvmlDeviceGetMaxPcieLinkWidth, unsigned int, nvml_any, model_of(i)->pcie_width)
NVML_GETTER(nvmlDeviceGetCurrPcieLinkWidth, unsigned int, nvml_any, model_of(i)->pcie_width)
NVML_GETTER(nvmlDeviceGetPcieReplayCounter, unsigned int, nvml_card, 0)

/* MB/s of one lane by generation: 2.5 GT/s doubled with each. */
nvmlReturn_t sim_nvmlDeviceGetPcieSpeed(nvmlDevice_t device, unsigned int *mbps)
{
	static const unsigned per_lane[] = {0, 2500, 5000, 8000, 16000, 32000, 64000, 128000};
	uint32_t i;
	nvmlReturn_t result = nvml_card(device, mbps, &i);
	if (result == NVML_SUCCESS)
		*mbps = per_lane[model_of(i)->pcie_gen < 8 ? model_of(i)->pcie_gen : 0];
	return result;
}
