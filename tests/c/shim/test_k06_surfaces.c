/* K06, K08, C039, C040, C052, D17: the numbers of a card that is not all ours. A neighbour without a limit takes most of it:
 * free is what the card has, on every surface, and the driver's own refusal leaves nothing charged. With a limit of "0m"
 * every surface shows the whole card and every kind of memory is to be had. Queries about pointers agree with each other,
 * and on an error leave their outputs alone.
 */
#include <nvml.h>

#include "grant.h"

static uint64_t card; /* bytes */

static void agree(uint64_t total, uint64_t free, const char *when)
{
	size_t f, t, device_total;
	nvmlDevice_t device;
	nvmlMemory_t v1;
	nvmlMemory_v2_t v2 = {.version = nvmlMemory_v2};
	CHECK(nvmlInit_v2() == NVML_SUCCESS && nvmlDeviceGetHandleByIndex_v2(0, &device) == NVML_SUCCESS, "NVML");
	OK(cuMemGetInfo_v2(&f, &t));
	OK(cuDeviceTotalMem_v2(&device_total, 0));
	CHECK(nvmlDeviceGetMemoryInfo(device, &v1) == NVML_SUCCESS, "memory");
	CHECK(nvmlDeviceGetMemoryInfo_v2(device, &v2) == NVML_SUCCESS, "memory v2");
	CHECK(t == total && device_total == total && v1.total == total && v2.total == total,
	      "%s: totals %zu %zu %llu %llu, expected %lu", when, t, device_total, v1.total, v2.total,
	      (unsigned long)total);
	CHECK(f == free && v1.free == free && v2.free == free, "%s: free %zu %llu %llu, expected %lu", when, f, v1.free,
	      v2.free, (unsigned long)free);
}

static void take_most(int in, int out)
{
	CUdeviceptr p;
	setenv("CUDA_DEVICE_MEMORY_LIMIT", "0m", 1);
	start(0);
	agree(card, card, "without a limit");
	OK(cuMemAlloc_v2(&p, card - GIB));
	player_answer(out, 0);
	player_next(in);
}

/* The card is full before the share is. */
static void full_card(void)
{
	CUdeviceptr p, q;
	CUmemGenericAllocationHandle handle;
	CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED};
	uint64_t answer;
	size_t pitch;
	prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	struct player neighbour = player_start(take_most);
	CHECK(read(neighbour.from, &answer, sizeof(answer)) == sizeof(answer), "the neighbour failed");
	start(0);
	agree(4 * GIB, GIB, "beside a full neighbour");
	OK(cuMemAlloc_v2(&p, 512 * MIB));
	agree(4 * GIB, 512 * MIB, "and half of the rest taken");
	IS(cuMemAlloc_v2(&q, GIB), CUDA_ERROR_OUT_OF_MEMORY);
	IS(cuMemAllocPitch_v2(&q, &pitch, 1024, MIB, 4), CUDA_ERROR_OUT_OF_MEMORY);
	IS(cuMemAllocAsync(&q, GIB, NULL), CUDA_ERROR_OUT_OF_MEMORY);
	IS(cuMemCreate(&handle, GIB, &prop, 0), CUDA_ERROR_OUT_OF_MEMORY);
	agree(4 * GIB, 512 * MIB, "after the driver's own refusals");
	player_end(&neighbour, true);
	OK(cuMemAlloc_v2(&q, 3 * GIB + 512 * MIB));
	agree(4 * GIB, 0, "the neighbour is gone");
}

static void unlimited(void)
{
	CUdeviceptr p;
	CUmemGenericAllocationHandle handle;
	CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED};
	size_t pitch;
	prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	setenv("CUDA_DEVICE_MEMORY_LIMIT", "0m", 1);
	start(0);
	agree(card, card, "a limit of 0m");
	OK(cuMemAlloc_v2(&p, card - GIB));
	agree(card, GIB, "a limit of 0m, most taken");
	OK(cuMemFree_v2(p));
	OK(cuMemAllocManaged(&p, 8 * GIB, CU_MEM_ATTACH_GLOBAL));
	OK(cuMemFree_v2(p));
	OK(cuMemAllocPitch_v2(&p, &pitch, 1 << 16, 1 << 17, 4));
	OK(cuMemFree_v2(p));
	OK(cuMemAllocAsync(&p, 8 * GIB, NULL));
	OK(cuMemFreeAsync(p, NULL));
	OK(cuMemCreate(&handle, 8 * GIB, &prop, 0));
	OK(cuMemRelease(handle));
}

static void pointers(void)
{
	CUdeviceptr p;
	CUpointer_attribute asked[] = {CU_POINTER_ATTRIBUTE_IS_MANAGED, CU_POINTER_ATTRIBUTE_MEMORY_TYPE};
	unsigned managed = 0x5a5a5a5a, type = 0x5a5a5a5a, one = 0x5a5a5a5a;
	void *out[] = {&managed, &type};
	start(0);
	for (int i = 0; i < 2; i++) {
		if (i == 0)
			OK(cuMemAlloc_v2(&p, MIB));
		else
			OK(cuMemAllocManaged(&p, MIB, CU_MEM_ATTACH_GLOBAL));
		OK(cuPointerGetAttributes(2, asked, out, p));
		OK(cuPointerGetAttribute(&one, CU_POINTER_ATTRIBUTE_IS_MANAGED, p));
		CHECK((managed & 0xff) == (unsigned)i && (one & 0xff) == (unsigned)i, "managed: batch %u, single %u",
		      managed & 0xff, one & 0xff);
	}
	managed = type = one = 0x5a5a5a5a;
	arm("cuPointerGetAttributes", CUDA_ERROR_UNKNOWN, 0, 1);
	arm("cuPointerGetAttribute", CUDA_ERROR_UNKNOWN, 0, 1);
	IS(cuPointerGetAttributes(2, asked, out, p), CUDA_ERROR_UNKNOWN);
	IS(cuPointerGetAttribute(&one, CU_POINTER_ATTRIBUTE_IS_MANAGED, p), CUDA_ERROR_UNKNOWN);
	disarm();
	CHECK(managed == 0x5a5a5a5a && type == 0x5a5a5a5a && one == 0x5a5a5a5a, "outputs were touched on an error");
}

int main(void)
{
	scene("make the machine", touch);
	card = machine()->model[0].memory;
	scene("a full card", full_card);
	scene("no limit", unlimited);
	scene("pointers", pointers);
	return 0;
}
