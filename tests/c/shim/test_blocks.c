/* D3, D3b, D8b, D16, C009, C013, C034, C039: what plain, managed and pitched blocks cost, and what a program can see of
 * it. Blocks of 2 MiB and more cost their size rounded up to 2 MiB, small ones the granules they lie in; a double free
 * gives nothing back; shared handles are refused; attributes of pointers are the driver's own.
 */
#include <nvml.h>

#include "shim_test.h"

static void expect(uint64_t bytes, const char *what)
{
	CHECK(used() == bytes, "%s: charged %lu, expected %lu", what, (unsigned long)used(), (unsigned long)bytes);
	CHECK(held(0) <= bytes, "%s: held %lu, charged %lu", what, (unsigned long)held(0), (unsigned long)bytes);
}

static void sizes(void)
{
	CUdeviceptr p, q;
	OK(cuMemAlloc_v2(&p, 3 * MIB));
	expect(4 * MIB, "3 MiB");
	OK(cuMemFree_v2(p));
	OK(cuMemAlloc_v2(&p, 1));
	expect(2 * MIB, "1 byte");
	OK(cuMemAlloc_v2(&q, 4096));
	expect(2 * MIB, "two small blocks in one granule");
	OK(cuMemFree_v2(p));
	expect(2 * MIB, "one of them freed");
	IS(cuMemFree_v2(p), CUDA_ERROR_INVALID_VALUE);
	expect(2 * MIB, "freed twice");
	OK(cuMemFree_v2(q));
	expect(0, "both freed");
	static CUdeviceptr many[1000];
	for (int i = 0; i < 1000; i++)
		OK(cuMemAlloc_v2(&many[i], MIB + 1));
	CHECK(used() >= held(0) && used() >= 1000 * MIB, "1000 blocks of 1 MiB + 1: charged %lu, held %lu",
	      (unsigned long)used(), (unsigned long)held(0));
	for (int i = 0; i < 1000; i++)
		OK(cuMemFree_v2(many[(i * 7) % 1000]));
	expect(0, "1000 small blocks freed");
}

static void pitched(void)
{
	CUdeviceptr p;
	size_t pitch;
	OK(cuMemAllocPitch_v2(&p, &pitch, 1, 100000, 4));
	expect((pitch * 100000 + GRANULE - 1) / GRANULE * GRANULE, "rows of one byte");
	OK(cuMemFree_v2(p));
	expect(0, "pitched block freed");
	IS(cuMemAllocPitch_v2(&p, &pitch, 16, 16, 0), CUDA_ERROR_INVALID_VALUE); /* the driver's own answer */
	IS(cuMemAllocPitch_v2(&p, &pitch, SIZE_MAX / 2, 4, 4), CUDA_ERROR_OUT_OF_MEMORY);
	expect(0, "refused pitched blocks");
}

static void old_entry_points(void)
{
	CUdeviceptr_v1 p;
	unsigned int pitch, free_bytes, total;
	OK(cuMemAlloc(&p, 5 * MIB));
	expect(6 * MIB, "32-bit address");
	OK(cuMemFree(p));
	OK(cuMemAllocPitch(&p, &pitch, 100, 30000, 4));
	CHECK(used() >= (uint64_t)pitch * 30000, "charged %lu", (unsigned long)used());
	OK(cuMemFree(p));
	expect(0, "32-bit addresses freed");
	OK(cuMemGetInfo(&free_bytes, &total));
	CHECK(free_bytes <= total, "free %u of %u", free_bytes, total);
}

static void managed(void)
{
	CUdeviceptr p;
	unsigned int is_managed = 0, batch_managed = 0;
	OK(cuMemAllocManaged(&p, 10 * MIB, CU_MEM_ATTACH_GLOBAL));
	expect(10 * MIB, "managed");
	OK(cuPointerGetAttribute(&is_managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, p));
	CUpointer_attribute attribute = CU_POINTER_ATTRIBUTE_IS_MANAGED;
	void *out = &batch_managed;
	OK(cuPointerGetAttributes(1, &attribute, &out, p));
	CHECK(is_managed == 1 && batch_managed == 1, "managed: %u, in the batch %u", is_managed, batch_managed);
	OK(cuMemFree_v2(p));
	IS(cuMemAllocManaged(&p, MIB, 77), CUDA_ERROR_INVALID_VALUE);
	expect(0, "managed freed");
}

/* A driver without an allocation to give: its own error comes back, and nothing is charged. */
static void driver_errors(void)
{
	CUdeviceptr p = 7;
	arm("cuMemAlloc_v2", CUDA_ERROR_ECC_UNCORRECTABLE, 0, 1);
	IS(cuMemAlloc_v2(&p, MIB), CUDA_ERROR_ECC_UNCORRECTABLE);
	disarm();
	CHECK(p == 7, "the output was touched");
	expect(0, "a failed allocation");
	arm("cuMemGetInfo_v2", CUDA_ERROR_UNKNOWN, 0, 1);
	size_t free_bytes = 1, total = 2;
	IS(cuMemGetInfo_v2(&free_bytes, &total), CUDA_ERROR_UNKNOWN);
	disarm();
	CHECK(free_bytes == 1 && total == 2, "outputs were touched");
}

int main(void)
{
	start(0);
	sizes();
	pitched();
	old_entry_points();
	managed();
	driver_errors();
	return 0;
}
