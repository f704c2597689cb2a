/* K02, C009, D17: more in use than the limit. A policy that shrinks under live memory, corrections of any size by the
 * watcher, and what a killed process left: every surface says free = 0, used <= total, and no number wraps; a second
 * free refunds nothing.
 */
#include <nvml.h>

#include "grant.h"

#define SANE (UINT64_C(1) << 48)

static void shows(nvmlDevice_t device, uint64_t total, uint64_t free, const char *when)
{
	size_t f, t, device_total;
	unsigned int f1, t1;
	nvmlMemory_t v1;
	nvmlMemory_v2_t v2 = {.version = nvmlMemory_v2};
	OK(cuMemGetInfo_v2(&f, &t));
	OK(cuMemGetInfo(&f1, &t1));
	OK(cuDeviceTotalMem_v2(&device_total, 0));
	CHECK(nvmlDeviceGetMemoryInfo(device, &v1) == NVML_SUCCESS, "memory");
	CHECK(nvmlDeviceGetMemoryInfo_v2(device, &v2) == NVML_SUCCESS, "memory v2");
	CHECK(t == total && device_total == total && v1.total == total && v2.total == total,
	      "%s: totals %zu %zu %llu %llu, expected %lu", when, t, device_total, v1.total, v2.total,
	      (unsigned long)total);
	CHECK(f == free && v1.free == free && v2.free == free, "%s: free %zu %llu %llu, expected %lu", when, f, v1.free,
	      v2.free, (unsigned long)free);
	CHECK(f1 <= t1 && v1.used <= v1.total && v2.used <= v2.total && v2.reserved < SANE, "%s: used %llu of %llu",
	      when, v1.used, v1.total);
	CHECK(v1.used == total - free && v2.used == v1.used, "%s: used %llu", when, v1.used);
}

static struct ptg_policy policy_of(uint64_t memory)
{
	return grant_policy(&(struct granted){0, memory}, 1);
}

static void shrink(void)
{
	CUdeviceptr p, q;
	nvmlDevice_t device;
	CHECK(nvmlInit_v2() == NVML_SUCCESS && nvmlDeviceGetHandleByIndex_v2(0, &device) == NVML_SUCCESS, "NVML");
	start(0);
	OK(cuMemAlloc_v2(&p, 3 * GIB));
	shows(device, 4 * GIB, GIB, "before");
	grant_change("share", policy_of(GIB));
	shows(device, GIB, 0, "shrunk below what is used");
	IS(cuMemAlloc_v2(&q, 1), CUDA_ERROR_OUT_OF_MEMORY);
	OK(cuMemFree_v2(p));
	shows(device, GIB, GIB, "freed");
	IS(cuMemFree_v2(p), CUDA_ERROR_INVALID_VALUE);
	shows(device, GIB, GIB, "freed twice");
	static const int64_t corrections[] = {5 * (int64_t)GIB, INT64_MAX, -(int64_t)GIB, INT64_MIN, 0};
	static const uint64_t left[] = {0, 0, GIB, GIB, GIB};
	for (unsigned i = 0; i < 5; i++) {
		struct ptg_policy policy = policy_of(GIB);
		policy.device[0].overhead = corrections[i];
		grant_change("share", policy);
		shows(device, GIB, left[i], "corrected");
		CUresult error = cuMemAlloc_v2(&q, GRANULE);
		CHECK((error == CUDA_SUCCESS) == (left[i] != 0), "correction %u: error %d", i, (int)error);
		if (error == CUDA_SUCCESS)
			OK(cuMemFree_v2(q));
	}
	grant_change("share", policy_of(4 * GIB));
	shows(device, 4 * GIB, 4 * GIB, "grown again");
}

static void holds_two(int in, int out)
{
	CUdeviceptr p;
	start(0);
	OK(cuMemAlloc_v2(&p, 2 * GIB));
	while (player_next(in) != 0)
		player_answer(out, used());
}

/* What a killed process left is nobody's: a free by a peer does not go below zero, and it can all be had. */
static void residue(void)
{
	CUdeviceptr p;
	nvmlDevice_t device;
	struct player dead = player_start(holds_two);
	CHECK(player_ask(&dead, 1) == 2 * GIB, "the holder holds");
	CHECK(nvmlInit_v2() == NVML_SUCCESS && nvmlDeviceGetHandleByIndex_v2(0, &device) == NVML_SUCCESS, "NVML");
	start(0);
	OK(cuMemAlloc_v2(&p, GIB));
	player_end(&dead, true);
	grant_change("share", policy_of(GIB)); /* with the residue: three times what is granted */
	size_t f, t;
	OK(cuMemGetInfo_v2(&f, &t));
	CHECK(t == GIB && f <= t, "free %zu of %zu", f, t);
	OK(cuMemFree_v2(p));
	CHECK(cuMemFree_v2(p) != CUDA_SUCCESS, "freed twice");
	OK(cuMemAlloc_v2(&p, GIB));
	shows(device, GIB, 0, "after the dead one's end");
	OK(cuMemFree_v2(p));
	shows(device, GIB, GIB, "empty");
	grant_change("share", policy_of(4 * GIB));
}

int main(void)
{
	unsetenv("CUDA_DEVICE_MEMORY_LIMIT");
	scene("make the machine", touch);
	grant("share", &(struct granted){0, 4 * GIB}, 1);
	scene("shrink", shrink);
	scene("residue", residue);
	return 0;
}
