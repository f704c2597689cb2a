/* D4, D28, C013, C023: a policy that grants devices by UUID. Others do not exist, on either side; the order is the
 * policy's; NVML before CUDA, CUDA_VISIBLE_DEVICES and another process change nothing about which device is charged.
 * Every scene runs in a process of its own on a machine of two devices.
 */
#include <nvml.h>

#include "grant.h"

static void is_uuid(const char *text, int device)
{
	CHECK(strcmp(text, machine()->model[device].uuid) == 0, "%s is not device %d", text, device);
}

static void cuda_is(int ordinal, int device)
{
	CUdevice d;
	CUuuid uuid;
	char text[64] = "GPU-";
	OK(cuDeviceGet(&d, ordinal));
	OK(cuDeviceGetUuid_v2(&uuid, d));
	for (int i = 0, at = 4; i < 16; i++)
		at += snprintf(text + at, sizeof(text) - (size_t)at, "%s%02x",
		               i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", (unsigned char)uuid.bytes[i]);
	is_uuid(text, device);
}

static nvmlDevice_t nvml_is(unsigned index, int device)
{
	nvmlDevice_t d;
	char text[96];
	unsigned back = 99;
	CHECK(nvmlInit_v2() == NVML_SUCCESS && nvmlDeviceGetHandleByIndex_v2(index, &d) == NVML_SUCCESS, "index %u",
	      index);
	CHECK(nvmlDeviceGetUUID(d, text, sizeof(text)) == NVML_SUCCESS, "uuid");
	is_uuid(text, device);
	CHECK(nvmlDeviceGetIndex(d, &back) == NVML_SUCCESS && back == index, "index %u reads back as %u", index, back);
	return d;
}

static void only_second(void)
{
	int count = 9;
	unsigned ncount = 9;
	CUdevice d;
	CUcontext context;
	nvmlDevice_t nd;
	size_t total;
	OK(cuInit(0));
	OK(cuDeviceGetCount(&count));
	CHECK(count == 1, "%d devices", count);
	cuda_is(0, 1);
	IS(cuDeviceGet(&d, 1), CUDA_ERROR_INVALID_DEVICE);
	IS(cuDeviceGet(&d, -1), CUDA_ERROR_INVALID_DEVICE);
	IS(cuDeviceGetByPCIBusId(&d, machine()->model[0].pci), CUDA_ERROR_INVALID_DEVICE);
	OK(cuDeviceGetByPCIBusId(&d, machine()->model[1].pci));
	OK(cuDeviceTotalMem_v2(&total, d));
	CHECK(total == GIB, "total %zu", total);
	IS(cuDevicePrimaryCtxRetain(&context, 1 - d), CUDA_ERROR_INVALID_DEVICE);
	IS(cuCtxCreate_v2(&context, 0, 1 - d), CUDA_ERROR_INVALID_DEVICE);
	CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED};
	CUmemGenericAllocationHandle h;
	prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	prop.location.id = 1 - d;
	IS(cuMemCreate(&h, GRANULE, &prop, 0), CUDA_ERROR_INVALID_DEVICE);
	nvml_is(0, 1);
	CHECK(nvmlDeviceGetCount_v2(&ncount) == NVML_SUCCESS && ncount == 1, "%u devices in NVML", ncount);
	CHECK(nvmlDeviceGetHandleByIndex_v2(1, &nd) == NVML_ERROR_INVALID_ARGUMENT, "index 1");
	CHECK(nvmlDeviceGetHandleByUUID(machine()->model[0].uuid, &nd) == NVML_ERROR_NOT_FOUND, "by UUID");
	CHECK(nvmlDeviceGetHandleByPciBusId_v2(machine()->model[0].pci, &nd) == NVML_ERROR_NOT_FOUND, "by bus id");
	CHECK(nvmlDeviceGetHandleByUUID(machine()->model[1].uuid, &nd) == NVML_SUCCESS, "by UUID");
}

static void both_swapped(void)
{
	OK(cuInit(0));
	cuda_is(0, 1);
	cuda_is(1, 0);
	nvml_is(0, 1);
	nvml_is(1, 0);
}

/* NVML first, then CUDA with a visible list of one: the charge and the check are on the same device. */
static void nvml_first(void)
{
	CUdeviceptr p;
	nvmlMemory_t memory;
	nvmlDevice_t second = nvml_is(0, 1), first = nvml_is(1, 0);
	setenv("CUDA_VISIBLE_DEVICES", "1", 1);
	start(0);
	cuda_is(0, 1);
	OK(cuMemAlloc_v2(&p, GIB));
	IS(cuMemAlloc_v2(&(CUdeviceptr){0}, 1), CUDA_ERROR_OUT_OF_MEMORY);
	CHECK(nvmlDeviceGetMemoryInfo(second, &memory) == NVML_SUCCESS && memory.used == GIB && memory.total == GIB,
	      "used %llu of %llu", memory.used, memory.total);
	CHECK(nvmlDeviceGetMemoryInfo(first, &memory) == NVML_SUCCESS && memory.used == 0 && memory.total == 2 * GIB,
	      "used %llu of %llu", memory.used, memory.total);
	CHECK(held(1) == GIB && held(0) == 0, "held %lu and %lu", (unsigned long)held(0), (unsigned long)held(1));
}

/* Two devices, mixed allocations: each device's use equals a model at every step. Managed memory counts on both, since both
 * have a context. */
static void model(void)
{
	CUcontext context[2];
	struct {
		CUdeviceptr p;
		uint64_t bytes;
		int device;
		bool managed;
	} live[32] = {0};
	uint64_t expected[2] = {0};
	unsigned seed = 3;
	OK(cuInit(0));
	for (int d = 0; d < 2; d++) {
		CUdevice device;
		OK(cuDeviceGet(&device, d));
		OK(cuDevicePrimaryCtxRetain(&context[d], device));
	}
	for (int i = 0; i < 400; i++) {
		unsigned at = (unsigned)rand_r(&seed) % 32;
		int d = live[at].p ? live[at].device : (int)(rand_r(&seed) % 2);
		OK(cuCtxSetCurrent(context[d]));
		if (live[at].p != 0) {
			OK(cuMemFree_v2(live[at].p));
			for (int o = 0; o < 2; o++)
				expected[o] -= o == d || live[at].managed ? live[at].bytes : 0;
			live[at].p = 0;
		} else {
			uint64_t bytes = GRANULE * (1 + (unsigned)rand_r(&seed) % 40);
			bool managed = rand_r(&seed) % 2 == 0;
			CUresult error = managed ? cuMemAllocManaged(&live[at].p, bytes, CU_MEM_ATTACH_GLOBAL)
			                         : cuMemAlloc_v2(&live[at].p, bytes);
			bool fits = true;
			for (int o = 0; o < 2; o++)
				fits &= (o != d && !managed) || expected[o] + bytes <= (uint64_t)(o + 1) * GIB;
			CHECK((error == CUDA_SUCCESS) == fits, "step %d: error %d", i, (int)error);
			live[at].bytes = bytes;
			live[at].device = d;
			live[at].managed = managed;
			for (int o = 0; o < 2; o++)
				expected[o] += fits && (o == d || managed) ? bytes : 0;
		}
		CHECK(used() == expected[d], "step %d, device %d: %lu, model %lu", i, d, (unsigned long)used(),
		      (unsigned long)expected[d]);
	}
}

/* A hand-over that cannot be read: nothing can be had, and nothing crashes. */
static void closed(void)
{
	CUcontext context;
	CUdeviceptr p;
	size_t total;
	setenv("PARTAGE_DIR", "/nonexistent/hand-over", 1);
	OK(cuInit(0));
	IS(cuDevicePrimaryCtxRetain(&context, 0), CUDA_ERROR_OUT_OF_MEMORY);
	IS(cuMemAlloc_v2(&p, 4096), CUDA_ERROR_INVALID_CONTEXT);
	CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED};
	CUmemGenericAllocationHandle h;
	prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	IS(cuMemCreate(&h, GRANULE, &prop, 0), CUDA_ERROR_OUT_OF_MEMORY);
	OK(cuDeviceTotalMem_v2(&total, 0));
	CHECK(held(0) == 0, "%lu bytes are held", (unsigned long)held(0));
}

int main(void)
{
	const struct granted second[] = {{1, GIB}}, swapped[] = {{1, GIB}, {0, 2 * GIB}};
	unsetenv("CUDA_DEVICE_MEMORY_LIMIT");
	scene("make the machine", touch);
	grant("second", second, 1);
	scene("only the second device", only_second);
	grant("swapped", swapped, 2);
	scene("both, in the other order", both_swapped);
	scene("NVML first", nvml_first);
	scene("a model", model);
	scene("closed", closed);
	return 0;
}
