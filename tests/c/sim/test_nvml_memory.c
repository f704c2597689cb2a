/* Memory and process lists: what CUDA programs take, NVML shows at once, and what a killed one held is gone at once. */
#include <signal.h>

#include "nvml_test.h"

#define GIB (UINT64_C(1) << 30)

/* A program of its own: takes 3 GiB, says so, and waits to be killed. */
static pid_t tenant(uint64_t bytes)
{
	int said[2];
	char byte;
	CHECK(pipe(said) == 0, "pipe");
	pid_t child = fork();
	if (child == 0) {
		CUcontext context;
		CUdeviceptr p;
		CHECK(cuInit(0) == CUDA_SUCCESS && cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS, "context");
		CHECK(cuCtxSetCurrent(context) == CUDA_SUCCESS && cuMemAlloc_v2(&p, bytes) == CUDA_SUCCESS,
		      "allocation");
		CHECK(write(said[1], "x", 1) == 1, "pipe");
		pause();
		_exit(0);
	}
	close(said[1]);
	CHECK(read(said[0], &byte, 1) == 1, "the tenant did not start");
	close(said[0]);
	return child;
}

static unsigned long long used(void)
{
	nvmlMemory_v2_t memory = {.version = nvmlMemory_v2};
	OK(nvmlDeviceGetMemoryInfo_v2(device_at(0), &memory));
	return memory.used;
}

static void figures_of_both_versions(void)
{
	nvmlMemory_t one;
	nvmlMemory_v2_t two = {.version = nvmlMemory_v2};
	OK(nvmlDeviceGetMemoryInfo(device_at(0), &one));
	OK(nvmlDeviceGetMemoryInfo_v2(device_at(0), &two));
	CHECK(one.total == UINT64_C(81559) << 20 && two.total == one.total, "total %llu", one.total);
	CHECK(two.reserved == UINT64_C(551) << 20 && two.used == 0, "reserved %llu, used %llu", two.reserved, two.used);
	CHECK(two.free == two.total - two.reserved - two.used && one.free == two.free, "free %llu", two.free);
	CHECK(one.used == two.used + two.reserved, "version 1 counts reserved as used: %llu", one.used);
	two.version = 1;
	GIVES(NVML_ERROR_ARGUMENT_VERSION_MISMATCH, nvmlDeviceGetMemoryInfo_v2(device_at(0), &two));
	GIVES(NVML_ERROR_INVALID_ARGUMENT, nvmlDeviceGetMemoryInfo(device_at(0), NULL));
}

static void a_context_takes_memory_too(void)
{
	pid_t child = tenant(3 * GIB);
	CHECK(used() >= 3 * GIB + (UINT64_C(506) << 20), "%llu bytes with a context", used());
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
}

static void seen_and_gone(void)
{
	CHECK(used() == 0, "%llu bytes before", used());
	pid_t first = tenant(3 * GIB), second = tenant(5 * GIB);
	CHECK(used() == 8 * GIB, "%llu bytes by two", used());
	kill(first, SIGKILL);
	waitpid(first, NULL, 0);
	CHECK(used() == 5 * GIB, "%llu bytes after one was killed", used());
	kill(second, SIGKILL);
	waitpid(second, NULL, 0);
	CHECK(used() == 0, "%llu bytes after both were killed", used());
}

static void process_lists(void)
{
	pid_t first = tenant(GIB), second = tenant(2 * GIB);
	nvmlProcessInfo_t list[4];
	nvmlProcessInfo_v1_t old[4];
	unsigned count = 0;

	GIVES(NVML_ERROR_INSUFFICIENT_SIZE, nvmlDeviceGetComputeRunningProcesses_v3(device_at(0), &count, NULL));
	CHECK(count == 2, "%u processes", count);
	count = 1;
	GIVES(NVML_ERROR_INSUFFICIENT_SIZE, nvmlDeviceGetComputeRunningProcesses_v3(device_at(0), &count, list));
	CHECK(count == 2, "%u processes", count);
	count = 4;
	OK(nvmlDeviceGetComputeRunningProcesses_v3(device_at(0), &count, list));
	CHECK(count == 2, "%u processes", count);
	for (unsigned i = 0; i < 2; i++) {
		uint64_t expected = list[i].pid == (unsigned)first ? GIB : 2 * GIB;
		CHECK(list[i].pid == (unsigned)first || list[i].pid == (unsigned)second, "pid %u", list[i].pid);
		CHECK(list[i].usedGpuMemory == expected, "pid %u: %llu bytes", list[i].pid, list[i].usedGpuMemory);
		CHECK(list[i].gpuInstanceId == 0xffffffff && list[i].computeInstanceId == 0xffffffff, "no MIG here");
	}
	count = 4;
	OK(nvmlDeviceGetComputeRunningProcesses(device_at(0), &count, old));
	CHECK(count == 2 && old[1].pid == list[1].pid && old[1].usedGpuMemory == list[1].usedGpuMemory, "version 1");
	kill(first, SIGKILL);
	kill(second, SIGKILL);
	waitpid(first, NULL, 0);
	waitpid(second, NULL, 0);
	count = 0;
	OK(nvmlDeviceGetComputeRunningProcesses_v3(device_at(0), &count, NULL));
	count = 4;
	OK(nvmlDeviceGetGraphicsRunningProcesses_v3(device_at(0), &count, list));
	CHECK(count == 0, "%u graphics processes", count);
}

/* A context that costs nothing: its process is on the card all the same, until it gives the context up. */
static void only_a_context(void)
{
	CUcontext context;
	nvmlProcessInfo_t list[4];
	unsigned count = 4;

	CHECK(cuInit(0) == CUDA_SUCCESS, "cuInit");
	OK(nvmlDeviceGetComputeRunningProcesses_v3(device_at(0), &count, list));
	CHECK(count == 0, "%u processes without a context", count);
	CHECK(cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS, "context");
	count = 4;
	OK(nvmlDeviceGetComputeRunningProcesses_v3(device_at(0), &count, list));
	CHECK(count == 1 && list[0].pid == (unsigned)getpid() && list[0].usedGpuMemory == 0, "%u processes", count);
	CHECK(cuDevicePrimaryCtxRelease(0) == CUDA_SUCCESS, "release");
	count = 4;
	OK(nvmlDeviceGetComputeRunningProcesses_v3(device_at(0), &count, list));
	CHECK(count == 0, "%u processes after the context", count);
}

/* A program that only watches is no client of the machine. */
static void watching_takes_no_slot(void)
{
	CHECK(used() == 0, "nothing yet");
	struct sim_machine *machine = map_machine();
	for (int i = 0; i < SIM_CLIENTS; i++)
		CHECK(!machine->client[i].state, "slot %d is taken", i);
}

static void detail_list(void)
{
	nvmlProcessDetail_v1_t list[4];
	nvmlProcessDetailList_t details = {.version = nvmlProcessDetailList_v1, .mode = NVML_PROCESS_MODE_COMPUTE};
	pid_t child = tenant(GIB);
	GIVES(NVML_ERROR_INSUFFICIENT_SIZE, nvmlDeviceGetRunningProcessDetailList(device_at(0), &details));
	details.numProcArrayEntries = 4;
	details.procArray = list;
	OK(nvmlDeviceGetRunningProcessDetailList(device_at(0), &details));
	CHECK(details.numProcArrayEntries == 1 && list[0].pid == (unsigned)child && list[0].usedGpuMemory == GIB,
	      "details");
	details.mode = NVML_PROCESS_MODE_GRAPHICS;
	OK(nvmlDeviceGetRunningProcessDetailList(device_at(0), &details));
	CHECK(details.numProcArrayEntries == 0, "%u graphics processes", details.numProcArrayEntries);
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
}

int main(void)
{
	run_on("h100-80g", figures_of_both_versions);
	run_on("h100-80g", a_context_takes_memory_too);
	run_on("zero", seen_and_gone);
	run_on("zero", process_lists);
	run_on("zero", only_a_context);
	run_on("zero", watching_takes_no_slot);
	run_on("zero", detail_list);
	return 0;
}
