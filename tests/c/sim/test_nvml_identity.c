/* Handles and identity: every way to a device leads to the same one, old structures are not written past their end. */
#include "nvml_test.h"

static void ways_to_a_device(void)
{
	unsigned count, index;
	OK(nvmlDeviceGetCount_v2(&count));
	CHECK(count == 8, "%u devices", count);
	for (unsigned i = 0; i < count; i++) {
		char uuid[NVML_DEVICE_UUID_BUFFER_SIZE], serial[NVML_DEVICE_SERIAL_BUFFER_SIZE], other[128];
		nvmlDevice_t device = device_at(i), found;
		nvmlPciInfo_t pci;

		OK(nvmlDeviceGetIndex(device, &index));
		CHECK(index == i, "index %u of device %u", index, i);
		OK(nvmlDeviceGetUUID(device, uuid, sizeof(uuid)));
		CHECK(strncmp(uuid, "GPU-", 4) == 0 && strlen(uuid) == 40 && uuid[18] == '4', "UUID %s", uuid);
		OK(nvmlDeviceGetHandleByUUID(uuid, &found));
		CHECK(found == device, "by UUID");
		OK(nvmlDeviceGetSerial(device, serial, sizeof(serial)));
		OK(nvmlDeviceGetHandleBySerial(serial, &found));
		CHECK(found == device, "by serial %s", serial);
		OK(nvmlDeviceGetPciInfo_v3(device, &pci));
		OK(nvmlDeviceGetHandleByPciBusId_v2(pci.busId, &found));
		CHECK(found == device, "by %s", pci.busId);
		OK(nvmlDeviceGetHandleByPciBusId_v2(pci.busIdLegacy, &found));
		CHECK(found == device, "by %s", pci.busIdLegacy);
		for (unsigned j = 0; j < i; j++) {
			OK(nvmlDeviceGetUUID(device_at(j), other, sizeof(other)));
			CHECK(strcmp(other, uuid) != 0, "devices %u and %u have one UUID", i, j);
		}
	}
}

static void what_is_no_device(void)
{
	nvmlDevice_t device;
	char text[128];
	int fake = 0;
	GIVES(NVML_ERROR_INVALID_ARGUMENT, nvmlDeviceGetHandleByIndex_v2(8, &device));
	GIVES(NVML_ERROR_INVALID_ARGUMENT, nvmlDeviceGetHandleByIndex_v2(0, NULL));
	GIVES(NVML_ERROR_NOT_FOUND, nvmlDeviceGetHandleByUUID("GPU-0", &device));
	GIVES(NVML_ERROR_NOT_FOUND, nvmlDeviceGetHandleByPciBusId_v2("0000:ff:00.0", &device));
	static const char *const malformed[] = {
	        "bus", "", ":01:00", "1", "00000000:01:00.", "00000000:01:00.0x", "0:01:00:0", "1ffffffff:01:00.0"};
	for (unsigned i = 0; i < sizeof(malformed) / sizeof(malformed[0]); i++)
		GIVES(NVML_ERROR_INVALID_ARGUMENT, nvmlDeviceGetHandleByPciBusId_v2(malformed[i], &device));
	GIVES(NVML_ERROR_NOT_FOUND, nvmlDeviceGetHandleBySerial("0", &device));
	GIVES(NVML_ERROR_INVALID_ARGUMENT, nvmlDeviceGetName((nvmlDevice_t)&fake, text, sizeof(text)));
	GIVES(NVML_ERROR_INVALID_ARGUMENT, nvmlDeviceGetName(NULL, text, sizeof(text)));
	GIVES(NVML_ERROR_INVALID_ARGUMENT, nvmlDeviceGetName(device_at(0), NULL, 10));
	GIVES(NVML_ERROR_INSUFFICIENT_SIZE, nvmlDeviceGetName(device_at(0), text, 10));
}

static void binary_uuid(void)
{
	nvmlUUID_t uuid = {.version = nvmlUUID_v1, .type = NVML_UUID_TYPE_BINARY};
	nvmlDevice_t found;
	char text[96];
	OK(nvmlDeviceGetUUID(device_at(3), text, sizeof(text)));
	for (unsigned i = 4, n = 0; text[i]; i += text[i] == '-' ? 1 : 2)
		if (text[i] != '-')
			sscanf(text + i, "%2hhx", &uuid.value.bytes[n++]);
	OK(nvmlDeviceGetHandleByUUIDV(&uuid, &found));
	CHECK(found == device_at(3), "by the bytes of %s", text);
	uuid.version = 77;
	GIVES(NVML_ERROR_ARGUMENT_VERSION_MISMATCH, nvmlDeviceGetHandleByUUIDV(&uuid, &found));
}

/* Programs built against an old header have room for less. */
static void old_pci_structures(void)
{
	union {
		nvmlPciInfo_t pci;
		unsigned char bytes[sizeof(nvmlPciInfo_t)];
	} v1, v2, v3;
	memset(&v1, 0xaa, sizeof(v1));
	memset(&v2, 0xaa, sizeof(v2));
	OK(nvmlDeviceGetPciInfo(device_at(2), &v1.pci));
	OK(nvmlDeviceGetPciInfo_v2(device_at(2), &v2.pci));
	OK(nvmlDeviceGetPciInfo_v3(device_at(2), &v3.pci));
	CHECK(v3.pci.bus == 0x4a && v3.pci.pciDeviceId == 0x233010de, "bus %#x, id %#x", v3.pci.bus,
	      v3.pci.pciDeviceId);
	CHECK(strcmp(v3.pci.busId, "00000000:4A:00.0") == 0 && strcmp(v3.pci.busIdLegacy, "0000:4A:00.0") == 0, "%s",
	      v3.pci.busId);
	CHECK(memcmp(&v1, &v3, 32) == 0 && memcmp(&v2, &v3, 36) == 0, "what they share differs");
	for (unsigned i = 32; i < sizeof(v1); i++)
		CHECK(v1.bytes[i] == 0xaa, "version 1 was written past its end, at byte %u", i);
	for (unsigned i = 36; i < sizeof(v2); i++)
		CHECK(v2.bytes[i] == 0xaa, "version 2 was written past its end, at byte %u", i);
}

static void who_it_is(void)
{
	char text[96];
	nvmlBrandType_t brand;
	unsigned value;
	int major, minor;
	nvmlDevice_t device = device_at(0);
	OK(nvmlDeviceGetName(device, text, sizeof(text)));
	CHECK(strcmp(text, "NVIDIA GeForce RTX 4090 SIMULATED") == 0, "%s", text);
	OK(nvmlDeviceGetBrand(device, &brand));
	CHECK(brand == NVML_BRAND_GEFORCE, "brand %u", brand);
	OK(nvmlDeviceGetCudaComputeCapability(device, &major, &minor));
	CHECK(major == 8 && minor == 9, "compute capability %d.%d", major, minor);
	OK(nvmlDeviceGetArchitecture(device, &value));
	CHECK(value == NVML_DEVICE_ARCH_ADA, "architecture %u", value);
	OK(nvmlDeviceGetNumGpuCores(device, &value));
	CHECK(value == 16384, "%u cores", value);
	GIVES(NVML_ERROR_NOT_SUPPORTED, nvmlDeviceGetSerial(device, text, sizeof(text)));
	OK(nvmlDeviceGetMinorNumber(device, &value));
	CHECK(value == 0, "minor %u", value);
	OK(nvmlDeviceGetMultiGpuBoard(device, &value));
	CHECK(value == 0, "more than one on the board");
}

static void all_of_8xh100(void)
{
	ways_to_a_device();
	what_is_no_device();
	binary_uuid();
	old_pci_structures();
}

int main(void)
{
	run_on("8xh100", all_of_8xh100);
	run_on("rtx4090", who_it_is);
	return 0;
}
