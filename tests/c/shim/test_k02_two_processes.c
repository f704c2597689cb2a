/* K02, C013: two processes, two devices, ten mixed allocations each: after every single step, what the ledger says of each
 * process on each device equals a model, and so do the process lists that NVML shows to both.
 */
#include <nvml.h>

#include "grant.h"

#define STEPS 10

struct step {
	CUdeviceptr p;
	CUmemGenericAllocationHandle handle;
	size_t size;
};

/* Even steps on device 0, odd ones on device 1. Returns what the step must cost. */
static uint64_t take(struct step *s, int i)
{
	CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED};
	size_t pitch, rows = 30000;
	prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	prop.location.id = i % 2;
	switch (i / 2) {
	case 0:
		OK(cuMemAlloc_v2(&s->p, 7 * MIB));
		return 8 * MIB;
	case 1:
		OK(cuMemAlloc_v2(&s->p, 4096));
		return GRANULE;
	case 2:
		OK(cuMemAllocManaged(&s->p, 12 * MIB, CU_MEM_ATTACH_GLOBAL));
		return 12 * MIB;
	case 3:
		OK(cuMemAllocPitch_v2(&s->p, &pitch, 700, rows, 4));
		return (pitch * rows + GRANULE - 1) / GRANULE * GRANULE;
	default:
		s->size = 6 * MIB;
		OK(cuMemCreate(&s->handle, s->size, &prop, 0));
		return s->size;
	}
}

static void worker(int in, int out)
{
	static struct step step[STEPS];
	CUcontext context[2];
	OK(cuInit(0));
	for (int d = 0; d < 2; d++)
		OK(cuDevicePrimaryCtxRetain(&context[d], d));
	for (unsigned char command; (command = player_next(in)) != 0;) {
		int i = (command - 1) % STEPS;
		uint64_t cost = 0;
		OK(cuCtxSetCurrent(context[i % 2]));
		if (command <= STEPS)
			cost = take(&step[i], i);
		else if (step[i].handle != 0)
			OK(cuMemRelease(step[i].handle));
		else
			OK(cuMemFree_v2(step[i].p));
		player_answer(out, cost);
	}
}

static uint64_t model[2][2]; /* process, device */
static struct player player[2];

static void compare(int step)
{
	for (unsigned d = 0; d < 2; d++) {
		nvmlDevice_t device;
		nvmlProcessInfo_t list[8];
		unsigned n = 8;
		CHECK(nvmlDeviceGetHandleByIndex_v2(d, &device) == NVML_SUCCESS, "handle %u", d);
		CHECK(nvmlDeviceGetComputeRunningProcesses_v3(device, &n, list) == NVML_SUCCESS, "processes");
		CHECK(n == (unsigned)(model[0][d] != 0) + (model[1][d] != 0), "step %d, device %u: %u processes", step,
		      d, n);
		for (int p = 0; p < 2; p++) {
			uint64_t has = grant_charged_by("share", player[p].pid, d);
			CHECK(model[p][d] == 0 || has == model[p][d],
			      "step %d, device %u: process %d has %lu, the model %lu", step, d, p, (unsigned long)has,
			      (unsigned long)model[p][d]);
			for (unsigned i = 0; i < n; i++)
				if ((pid_t)list[i].pid == player[p].pid)
					CHECK(list[i].usedGpuMemory == model[p][d],
					      "step %d, device %u: NVML says %llu of process %d, the model %lu", step,
					      d, list[i].usedGpuMemory, p, (unsigned long)model[p][d]);
		}
		CHECK(held((int)d) <= model[0][d] + model[1][d], "step %d, device %u: held %lu", step, d,
		      (unsigned long)held((int)d));
	}
}

/* Managed memory (steps 4 and 5) counts on both devices, since both have a context. */
static void count(int p, int step, uint64_t cost)
{
	for (int d = 0; d < 2; d++)
		model[p][d] += step % 2 == d || step / 2 == 2 ? cost : 0;
}

static void watch(void)
{
	uint64_t cost[2][STEPS];
	for (int p = 0; p < 2; p++)
		player[p] = player_start(worker);
	CHECK(nvmlInit_v2() == NVML_SUCCESS, "NVML");
	for (int i = 0; i < STEPS; i++)
		for (int p = 0; p < 2; p++) {
			cost[p][i] = player_ask(&player[p], (unsigned char)(i + 1));
			count(p, i, cost[p][i]);
			compare(i);
		}
	for (int n = 0; n < STEPS; n++)
		for (int p = 0; p < 2; p++) {
			int i = (n * 7 + 3 * p) % STEPS; /* another order than that of taking */
			player_ask(&player[p], (unsigned char)(STEPS + i + 1));
			count(p, i, -cost[p][i]);
			compare(STEPS + n);
		}
	for (int p = 0; p < 2; p++)
		player_end(&player[p], false);
	CHECK(held(0) == 0 && held(1) == 0, "held %lu and %lu", (unsigned long)held(0), (unsigned long)held(1));
}

int main(void)
{
	const struct granted both[] = {{0, GIB}, {1, GIB}};
	unsetenv("CUDA_DEVICE_MEMORY_LIMIT");
	scene("make the machine", touch);
	grant("share", both, 2);
	scene("two processes", watch);
	return 0;
}
