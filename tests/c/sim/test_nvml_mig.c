/* MIG: a cut card and its instances, as discovery reads them; figures of an instance add up to those of its card. */
#include "nvml_test.h"

static nvmlDevice_t instance_at(unsigned n)
{
	nvmlDevice_t instance;
	OK(nvmlDeviceGetMigDeviceHandleByIndex(device_at(0), n, &instance));
	return instance;
}

static void the_cut(void)
{
	static const unsigned gib[] = {40192, 19968, 9856, 9856}, sms[] = {42, 28, 14, 14};
	unsigned count, current, pending, id;
	nvmlDevice_t handle;
	char uuid[96], name[96];

	OK(nvmlDeviceGetCount_v2(&count));
	CHECK(count == 1, "%u cards", count);
	OK(nvmlDeviceGetMigMode(device_at(0), &current, &pending));
	CHECK(current == NVML_DEVICE_MIG_ENABLE && pending == current, "mode %u", current);
	OK(nvmlDeviceGetMaxMigDeviceCount(device_at(0), &count));
	CHECK(count == 7, "at most %u", count);
	for (unsigned n = 0; n < 4; n++) {
		nvmlDeviceAttributes_t attributes;
		nvmlMemory_t memory;
		OK(nvmlDeviceIsMigDeviceHandle(instance_at(n), &id));
		CHECK(id == 1, "handle of instance %u", n);
		OK(nvmlDeviceGetUUID(instance_at(n), uuid, sizeof(uuid)));
		CHECK(strncmp(uuid, "MIG-", 4) == 0, "UUID %s", uuid);
		OK(nvmlDeviceGetHandleByUUID(uuid, &handle));
		CHECK(handle == instance_at(n), "by UUID");
		OK(nvmlDeviceGetName(instance_at(n), name, sizeof(name)));
		CHECK(strstr(name, "SIMULATED MIG "), "name %s", name);
		OK(nvmlDeviceGetAttributes_v2(instance_at(n), &attributes));
		OK(nvmlDeviceGetMemoryInfo(instance_at(n), &memory));
		CHECK(attributes.memorySizeMB == gib[n] && memory.total >> 20 == gib[n], "%llu MiB",
		      attributes.memorySizeMB);
		CHECK(attributes.multiprocessorCount == sms[n], "%u SMs", attributes.multiprocessorCount);
		OK(nvmlDeviceGetDeviceHandleFromMigDeviceHandle(instance_at(n), &handle));
		CHECK(handle == device_at(0), "its card");
		OK(nvmlDeviceGetIndex(instance_at(n), &id));
		CHECK(id == n, "index %u", id);
		OK(nvmlDeviceGetGpuInstanceId(instance_at(n), &id));
		CHECK(id == n + 1, "GPU instance %u", id);
	}
	GIVES(NVML_ERROR_NOT_FOUND, nvmlDeviceGetMigDeviceHandleByIndex(device_at(0), 4, &handle));
	GIVES(NVML_ERROR_INVALID_ARGUMENT, nvmlDeviceGetMigDeviceHandleByIndex(device_at(0), 7, &handle));
	GIVES(NVML_ERROR_NOT_SUPPORTED, nvmlDeviceGetGpuInstanceId(device_at(0), &id));
}

static void profiles_and_room(void)
{
	static const struct {
		unsigned id, instances, room, places;
	} expected[] = {{19, 7, 0, 7}, {15, 4, 0, 4}, {14, 3, 0, 3}, {9, 2, 0, 2}, {5, 1, 0, 1}, {0, 1, 0, 1}};
	for (unsigned i = 0; i < sizeof(expected) / sizeof(*expected); i++) {
		nvmlGpuInstanceProfileInfo_v2_t info = {.version = nvmlGpuInstanceProfileInfo_v2};
		nvmlGpuInstancePlacement_t places[8];
		unsigned count, room;
		OK(nvmlDeviceGetGpuInstanceProfileInfoByIdV(device_at(0), expected[i].id, &info));
		CHECK(info.instanceCount == expected[i].instances, "%s: %u instances", info.name, info.instanceCount);
		CHECK(strncmp(info.name, "MIG ", 4) == 0, "name %s", info.name);
		OK(nvmlDeviceGetGpuInstanceRemainingCapacity(device_at(0), expected[i].id, &room));
		CHECK(room == expected[i].room, "%s: room for %u more", info.name, room);
		OK(nvmlDeviceGetGpuInstancePossiblePlacements_v2(device_at(0), expected[i].id, NULL, &count));
		CHECK(count == expected[i].places, "%s: %u places", info.name, count);
		OK(nvmlDeviceGetGpuInstancePossiblePlacements_v2(device_at(0), expected[i].id, places, &count));
		CHECK(places[0].start == 0 && places[0].size > 0, "first place");
	}
	nvmlGpuInstanceProfileInfo_t info;
	OK(nvmlDeviceGetGpuInstanceProfileInfo(device_at(0), NVML_GPU_INSTANCE_PROFILE_3_SLICE, &info));
	CHECK(info.id == 9 && info.memorySizeMB == 40192, "profile %u", info.id);
	GIVES(NVML_ERROR_NOT_SUPPORTED,
	      nvmlDeviceGetGpuInstanceProfileInfo(device_at(0), NVML_GPU_INSTANCE_PROFILE_8_SLICE, &info));
}

static void instances_by_profile(void)
{
	nvmlGpuInstance_t list[7];
	nvmlComputeInstance_t compute;
	nvmlComputeInstanceInfo_t compute_info;
	nvmlGpuInstanceInfo_t one, two;
	unsigned count = 7;
	OK(nvmlDeviceGetGpuInstances(device_at(0), 19, list, &count));
	CHECK(count == 2, "%u instances of 1g.10gb", count);
	OK(nvmlGpuInstanceGetInfo(list[0], &one));
	OK(nvmlGpuInstanceGetInfo(list[1], &two));
	CHECK(one.id != two.id && one.placement.start != two.placement.start && one.profileId == 19, "two of them");
	OK(nvmlGpuInstanceGetComputeInstanceById(list[0], 0, &compute));
	OK(nvmlComputeInstanceGetInfo_v2(compute, &compute_info));
	CHECK(compute_info.gpuInstance == list[0] && compute_info.device == device_at(0), "its compute instance");
	GIVES(NVML_ERROR_NOT_FOUND, nvmlDeviceGetGpuInstanceById(device_at(0), 99, list));
}

static void use_adds_up(void)
{
	struct sim_machine *machine = map_machine();
	nvmlUtilization_t use;
	nvmlMemory_v2_t memory = {.version = nvmlMemory_v2};
	nvmlProcessInfo_t list[4];
	unsigned count = 4;
	int client = play_client(machine, 5, 1001);

	play_memory(machine, 5, 1, 5 << 20);
	OK(nvmlDeviceGetMemoryInfo_v2(device_at(0), &memory));
	CHECK(memory.used == 5 << 20, "the card: %llu bytes", memory.used);
	OK(nvmlDeviceGetMemoryInfo_v2(instance_at(0), &memory));
	CHECK(memory.used == 5 << 20, "the instance: %llu bytes", memory.used);
	OK(nvmlDeviceGetMemoryInfo_v2(instance_at(1), &memory));
	CHECK(memory.used == 0, "another instance: %llu bytes", memory.used);
	OK(nvmlDeviceGetComputeRunningProcesses_v3(device_at(0), &count, list));
	CHECK(count == 1 && list[0].gpuInstanceId == 1 && list[0].computeInstanceId == 0, "on instance %u",
	      list[0].gpuInstanceId);
	GIVES(NVML_ERROR_NOT_SUPPORTED, nvmlDeviceGetUtilizationRates(device_at(0), &use));
	GIVES(NVML_ERROR_NOT_SUPPORTED, nvmlDeviceGetUtilizationRates(instance_at(0), &use));
	close(client);
}

static void not_cut(void)
{
	unsigned current, pending;
	nvmlDevice_t handle;
	OK(nvmlDeviceGetMigMode(device_at(0), &current, &pending));
	CHECK(current == NVML_DEVICE_MIG_DISABLE, "mode %u", current);
	GIVES(NVML_ERROR_NOT_FOUND, nvmlDeviceGetMigDeviceHandleByIndex(device_at(0), 0, &handle));
}

int main(void)
{
	run_on("a100-mig", the_cut);
	run_on("a100-mig", profiles_and_room);
	run_on("a100-mig", instances_by_profile);
	run_on("a100-mig", use_adds_up);
	run_on("h100-80g", not_cut);
	return 0;
}
