/* C040, C041, D8b, D20: NVML and CUDA tell one story. Totals, used and free agree on every surface; the process lists
 * hold this container's processes and nobody else's, with what each has charged, adding up to what is used; a killed
 * process is gone from both at once.
 */
#include <nvml.h>
#include <signal.h>

#include "shim_test.h"

static int hold_gate[2];

/* A process that allocates and then waits until it is killed. `limit` of its own makes it another container's. */
static pid_t holder(size_t bytes, const char *limit)
{
	int ready[2];
	char byte;
	CHECK(pipe(ready) == 0, "pipe");
	pid_t pid = fork();
	if (pid == 0) {
		CUdeviceptr p;
		if (limit != NULL)
			setenv("CUDA_DEVICE_MEMORY_LIMIT", limit, 1);
		start(0);
		OK(cuMemAlloc_v2(&p, bytes));
		CHECK(write(ready[1], "x", 1) == 1, "ready");
		_exit(read(hold_gate[0], &byte, 1) < 0);
	}
	close(ready[1]);
	CHECK(read(ready[0], &byte, 1) == 1, "the holder failed");
	close(ready[0]);
	return pid;
}

static uint64_t agree(nvmlDevice_t device)
{
	size_t f, t, total;
	nvmlMemory_t v1;
	nvmlMemory_v2_t v2 = {.version = nvmlMemory_v2};
	OK(cuMemGetInfo_v2(&f, &t));
	OK(cuDeviceTotalMem_v2(&total, 0));
	CHECK(nvmlDeviceGetMemoryInfo(device, &v1) == NVML_SUCCESS, "memory");
	CHECK(nvmlDeviceGetMemoryInfo_v2(device, &v2) == NVML_SUCCESS, "memory v2");
	CHECK(t == total && v1.total == t && v2.total == t, "totals %zu %zu %llu %llu", t, total, v1.total, v2.total);
	CHECK(v1.used == t - f && v2.used == v1.used, "used %zu %llu %llu", t - f, v1.used, v2.used);
	CHECK(v1.free == f && v2.free == f, "free %zu %llu %llu", f, v1.free, v2.free);
	CHECK(v2.used + v2.free + v2.reserved <= v2.total, "v2 adds up to more than the total");
	return v1.used;
}

static void listed(nvmlDevice_t device, unsigned expected, pid_t other, uint64_t other_bytes, uint64_t all)
{
	nvmlProcessInfo_v1_t v1[8];
	nvmlProcessInfo_v2_t v2[8];
	nvmlProcessInfo_t v3[8];
	unsigned int n = 0;
	nvmlReturn_t asked = nvmlDeviceGetComputeRunningProcesses_v3(device, &n, NULL);
	CHECK(asked == (expected ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS) && n == expected, "size: %d, %u", asked,
	      n);
	unsigned int n1 = 8, n2 = 8, n3 = 8, none = 8;
	CHECK(nvmlDeviceGetComputeRunningProcesses(device, &n1, v1) == NVML_SUCCESS && n1 == expected, "v1: %u", n1);
	CHECK(nvmlDeviceGetComputeRunningProcesses_v2(device, &n2, v2) == NVML_SUCCESS && n2 == expected, "v2: %u", n2);
	CHECK(nvmlDeviceGetComputeRunningProcesses_v3(device, &n3, v3) == NVML_SUCCESS && n3 == expected, "v3: %u", n3);
	CHECK(nvmlDeviceGetGraphicsRunningProcesses_v3(device, &none, v3 + 4) == NVML_SUCCESS && none == 0, "graphics");
	uint64_t sum = 0;
	for (unsigned i = 0; i < expected; i++) {
		CHECK(v1[i].pid == v3[i].pid && v2[i].pid == v3[i].pid, "lists differ");
		CHECK(v1[i].usedGpuMemory == v3[i].usedGpuMemory, "bytes differ");
		CHECK((pid_t)v3[i].pid == getpid() || (pid_t)v3[i].pid == other, "pid %u is not ours", v3[i].pid);
		if ((pid_t)v3[i].pid == other)
			CHECK(v3[i].usedGpuMemory == other_bytes, "%llu bytes", v3[i].usedGpuMemory);
		sum += v3[i].usedGpuMemory;
	}
	CHECK(sum == all, "the processes add up to %lu of %lu", (unsigned long)sum, (unsigned long)all);
	if (expected > 1) {
		n = 1;
		CHECK(nvmlDeviceGetComputeRunningProcesses_v3(device, &n, v3) == NVML_ERROR_INSUFFICIENT_SIZE &&
		              n == expected,
		      "a short array");
	}
}

int main(void)
{
	nvmlDevice_t device;
	CUdeviceptr p;
	CHECK(pipe(hold_gate) == 0, "pipe");
	pid_t other = holder(GIB, NULL), stranger = holder(2 * GIB, "3g");
	CHECK(nvmlInit_v2() == NVML_SUCCESS, "nvmlInit");
	CHECK(nvmlDeviceGetHandleByIndex_v2(0, &device) == NVML_SUCCESS, "handle");
	start(0);
	CHECK(agree(device) == GIB, "one process holds 1 GiB");
	listed(device, 1, other, GIB, GIB);
	OK(cuMemAlloc_v2(&p, 512 * MIB));
	CHECK(agree(device) == GIB + 512 * MIB, "two processes hold 1.5 GiB");
	listed(device, 2, other, GIB, GIB + 512 * MIB);
	kill(other, SIGKILL);
	CHECK(waitpid(other, NULL, 0) == other, "wait");
	listed(device, 1, other, 0, 512 * MIB);
	CHECK(agree(device) == 512 * MIB, "the killed process is gone");
	CUdeviceptr rest;
	OK(cuMemAlloc_v2(&rest, 3 * GIB + 512 * MIB)); /* what it had can be had */
	kill(stranger, SIGKILL);
	waitpid(stranger, NULL, 0);
	return 0;
}
