/* devices.c: the one place where ordinals of this process, numbers of the machine and UUIDs are translated.
 *
 * Called by setup.c, with no lock held, since it asks the driver. An ordinal follows CUDA_VISIBLE_DEVICES, so neither the
 * ledger nor a numbered limit may be indexed by it.
 * What can go wrong: the driver is not initialised yet, and its own error is passed on; NVML is missing, and the number
 * of a device in the machine cannot be told where only some devices are visible. */
#include "core.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NVML_SUCCESS_VALUE 0

static const char *hex_digits(const char *uuid)
{
	const char *dash = strchr(uuid, '-');
	return dash && (strncmp(uuid, "GPU-", 4) == 0 || strncmp(uuid, "MIG-", 4) == 0) ? dash + 1 : uuid;
}

bool vgpu_uuid_equal(const char *a, const char *b)
{
	a = hex_digits(a);
	b = hex_digits(b);
	while (*a && (*a | 0x20) == (*b | 0x20)) {
		a++;
		b++;
	}
	return *a == '\0' && *b == '\0';
}

static void format_uuid(const CUuuid *uuid, char text[PTG_UUID_SIZE])
{
	char *at = text + snprintf(text, PTG_UUID_SIZE, "GPU-");
	for (int i = 0; i < 16; i++)
		at += sprintf(at, "%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "",
		              (unsigned char)uuid->bytes[i]);
}

/* ---- the driver --------------------------------------------------------------------------------------------------------- */

static CUresult gather_ordinals(struct vgpu_devices *devices)
{
	CUresult (*count)(int *) = (CUresult (*)(int *))vgpu_real_cuda("cuDeviceGetCount");
	CUresult (*get)(CUdevice *, int) = (CUresult (*)(CUdevice *, int))vgpu_real_cuda("cuDeviceGet");
	void *by_uuid = vgpu_real_cuda("cuDeviceGetUuid_v2");
	if (!by_uuid)
		by_uuid = vgpu_real_cuda("cuDeviceGetUuid");
	CUresult (*uuid)(CUuuid *, CUdevice) = (CUresult (*)(CUuuid *, CUdevice))by_uuid;
	if (!count || !get || !uuid)
		return CUDA_ERROR_NOT_FOUND;
	int n = 0;
	CUresult error = count(&n);
	for (int i = 0; error == CUDA_SUCCESS && i < n && i < VGPU_ORDINALS_MAX; i++) {
		CUdevice device;
		CUuuid bytes;
		error = get(&device, i);
		if (error == CUDA_SUCCESS)
			error = uuid(&bytes, device);
		if (error == CUDA_SUCCESS)
			format_uuid(&bytes, devices->uuid[i]);
	}
	devices->count = n < VGPU_ORDINALS_MAX ? n : VGPU_ORDINALS_MAX;
	return error;
}

/* All devices are visible: the machine's order is that of their addresses on the bus. */
static int number_by_bus(struct vgpu_devices *devices)
{
	CUresult (*bus)(char *, int, CUdevice) =
	        (CUresult (*)(char *, int, CUdevice))vgpu_real_cuda("cuDeviceGetPCIBusId");
	char address[VGPU_ORDINALS_MAX][32];
	if (!bus)
		return -1;
	for (int i = 0; i < devices->count; i++)
		if (bus(address[i], sizeof address[i], i) != CUDA_SUCCESS)
			return -1;
	for (int i = 0; i < devices->count; i++) {
		int before = 0;
		for (int other = 0; other < devices->count; other++)
			before += strcmp(address[other], address[i]) < 0;
		memcpy(devices->machine[before], devices->uuid[i], PTG_UUID_SIZE);
	}
	devices->machine_count = devices->count;
	return 0;
}

CUresult vgpu_devices_gather(struct vgpu_devices *devices, bool numbered)
{
	memset(devices, 0, sizeof *devices);
	devices->machine_count = -1;
	CUresult error = gather_ordinals(devices);
	if (error != CUDA_SUCCESS || !numbered)
		return error;
	/* NVML takes milliseconds to start on real machines: only where there is no other way to know. */
	if (getenv("CUDA_VISIBLE_DEVICES") || number_by_bus(devices) != 0)
		vgpu_machine_gather(devices);
	return CUDA_SUCCESS;
}

/* ---- NVML ---------------------------------------------------------------------------------------------------------------- */

int vgpu_machine_gather(struct vgpu_devices *devices)
{
	int (*init)(void) = (int (*)(void))vgpu_real_nvml("nvmlInit_v2");
	int (*end)(void) = (int (*)(void))vgpu_real_nvml("nvmlShutdown");
	int (*count)(unsigned *) = (int (*)(unsigned *))vgpu_real_nvml("nvmlDeviceGetCount_v2");
	int (*handle)(unsigned, void **) = (int (*)(unsigned, void **))vgpu_real_nvml("nvmlDeviceGetHandleByIndex_v2");
	int (*uuid)(void *, char *, unsigned) = (int (*)(void *, char *, unsigned))vgpu_real_nvml("nvmlDeviceGetUUID");
	devices->machine_count = -1;
	if (!init || !end || !count || !handle || !uuid || init() != NVML_SUCCESS_VALUE)
		return -1;
	unsigned n = 0;
	bool good = count(&n) == NVML_SUCCESS_VALUE;
	for (unsigned i = 0; good && i < n && i < VGPU_ORDINALS_MAX; i++) {
		void *device;
		char text[96] = "";
		good = handle(i, &device) == NVML_SUCCESS_VALUE &&
		       uuid(device, text, sizeof text) == NVML_SUCCESS_VALUE && strlen(text) < PTG_UUID_SIZE;
		if (good)
			memcpy(devices->machine[i], text, strlen(text) + 1);
	}
	end();
	if (good)
		devices->machine_count = n < VGPU_ORDINALS_MAX ? (int)n : VGPU_ORDINALS_MAX;
	return good ? 0 : -1;
}

int vgpu_machine_number(const struct vgpu_devices *devices, const char *uuid)
{
	for (int i = 0; i < devices->machine_count; i++)
		if (vgpu_uuid_equal(devices->machine[i], uuid))
			return i;
	return -1;
}
