/* D2, D18: physical memory of the virtual-memory calls is freed when it is released *and* unmapped, and so is its
 * charge; handles that were retained count; memory on the host costs nothing; 8 threads leave nothing behind.
 */
#include <pthread.h>

#include "shim_test.h"

static CUmemAllocationProp on_device(void)
{
	CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED};
	prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	return prop;
}

static void expect(uint64_t bytes, const char *what)
{
	CHECK(used() == bytes, "%s: charged %lu, expected %lu", what, (unsigned long)used(), (unsigned long)bytes);
	CHECK(held(0) == bytes, "%s: held %lu, expected %lu", what, (unsigned long)held(0), (unsigned long)bytes);
}

static void lifetimes(void)
{
	CUmemAllocationProp prop = on_device();
	CUmemGenericAllocationHandle h, again;
	CUdeviceptr va;
	OK(cuMemAddressReserve(&va, 4 * GIB, 0, 0, 0));
	OK(cuMemCreate(&h, GIB, &prop, 0));
	OK(cuMemMap(va, GIB, 0, h, 0));
	OK(cuMemMap(va + GIB, GIB, 0, h, 0)); /* twice: costs once */
	expect(GIB, "mapped twice");
	OK(cuMemRelease(h));
	expect(GIB, "released while mapped");
	OK(cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)(va + 5)));
	OK(cuMemUnmap(va, GIB));
	expect(GIB, "one mapping left");
	OK(cuMemUnmap(va + GIB, GIB));
	expect(GIB, "only retained");
	OK(cuMemRelease(again));
	expect(0, "released and unmapped");
	CHECK(cuMemRelease(again) != CUDA_SUCCESS, "a handle that is gone");
	for (int i = 0; i < 3; i++)
		OK(cuMemCreate(&(CUmemGenericAllocationHandle){0}, GIB, &prop, 0));
	OK(cuMemCreate(&h, GIB, &prop, 0));
	IS(cuMemCreate(&again, GRANULE, &prop, 0), CUDA_ERROR_OUT_OF_MEMORY);
	OK(cuMemRelease(h));
	OK(cuMemCreate(&h, GIB, &prop, 0));
	OK(cuMemAddressFree(va, 4 * GIB));
	OK(cuMemRelease(h));
}

static void on_host(uint64_t before)
{
	CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED};
	CUmemGenericAllocationHandle h;
	prop.location.type = CU_MEM_LOCATION_TYPE_HOST_NUMA;
	if (cuMemCreate(&h, 8 * GIB, &prop, 0) != CUDA_SUCCESS)
		return; /* the driver's business */
	CHECK(used() == before, "host memory is charged: %lu", (unsigned long)used());
	OK(cuMemRelease(h));
}

static void *churn(void *argument)
{
	CUmemAllocationProp prop = on_device();
	CUdeviceptr va;
	unsigned seed = (unsigned)(uintptr_t)argument;
	OK(cuCtxSetCurrent((CUcontext)argument));
	OK(cuMemAddressReserve(&va, 64 * GRANULE, 0, 0, 0));
	for (int i = 0; i < 500; i++) {
		CUmemGenericAllocationHandle h;
		size_t size = GRANULE * (1 + (unsigned)rand_r(&seed) % 64);
		CUresult error = cuMemCreate(&h, size, &prop, 0);
		if (error == CUDA_ERROR_OUT_OF_MEMORY)
			continue;
		OK(error);
		OK(cuMemMap(va, size, 0, h, 0));
		OK(cuMemRelease(h));
		OK(cuMemUnmap(va, size));
	}
	OK(cuMemAddressFree(va, 64 * GRANULE));
	return NULL;
}

/* Ranges are whatever a program says: an answer comes at once, and nothing changes. */
static void senseless_ranges(void)
{
	const uint64_t start[] = {0, GRANULE, 1, UINT64_C(1) << 46, UINT64_MAX, UINT64_MAX - GRANULE + 1};
	const size_t size[] = {0, 1, GIB, (size_t)1 << 46, (size_t)1 << 62, SIZE_MAX - GRANULE + 1, SIZE_MAX};
	for (unsigned i = 0; i < sizeof(start) / sizeof(*start); i++)
		for (unsigned k = 0; k < sizeof(size) / sizeof(*size); k++)
			CHECK(cuMemUnmap(start[i], size[k]) != CUDA_SUCCESS, "%lx, %zu bytes were unmapped",
			      (unsigned long)start[i], size[k]);
}

/* A range over several mappings, and more of it than there are mappings. */
static void many_in_a_range(void)
{
	CUmemAllocationProp prop = on_device();
	const size_t all = 2048 * GRANULE;
	CUdeviceptr va;
	OK(cuMemAddressReserve(&va, all, 0, 0, 0));
	uint64_t before = used();
	CUmemGenericAllocationHandle h;
	OK(cuMemCreate(&h, GRANULE, &prop, 0));
	for (size_t at = 0; at < all; at += GRANULE)
		OK(cuMemMap(va + at, GRANULE, 0, h, 0));
	OK(cuMemRelease(h));
	expect(before + GRANULE, "mapped 2,048 times and released");
	CHECK(cuMemUnmap(va, all + GRANULE) != CUDA_SUCCESS, "more than was mapped");
	expect(before + GRANULE, "still mapped");
	OK(cuMemUnmap(va, all));
	expect(before, "unmapped");
	OK(cuMemAddressFree(va, all));
}

/* What may be moved to a device is not metered wherever it is said to lie. */
static void managed_is_refused(void)
{
	CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_MANAGED};
	CUmemGenericAllocationHandle h;
	prop.location.type = CU_MEM_LOCATION_TYPE_HOST;
	IS(cuMemCreate(&h, GRANULE, &prop, 0), CUDA_ERROR_NOT_SUPPORTED);
}

/* Handles that other machines could import: never given out, and this driver has none either. */
static void fabric_is_refused(void)
{
	CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
	                            .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
	CUmemGenericAllocationHandle h;
	CUmemFabricHandle fabric = {{7}};
	int supported = 1;
	OK(cuDeviceGetAttribute(&supported, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED, 0));
	CHECK(supported == 0, "said to be there");
	OK(cuMemCreate(&h, GRANULE, &prop, 0));
	IS(cuMemExportToShareableHandle(&fabric, h, CU_MEM_HANDLE_TYPE_FABRIC, 0), CUDA_ERROR_INVALID_VALUE);
	CHECK(fabric.data[0] == 7 && fabric.data[1] == 0, "a handle was written");
	OK(cuMemRelease(h));
}

int main(void)
{
	CUcontext context = start(0);
	senseless_ranges();
	many_in_a_range();
	managed_is_refused();
	fabric_is_refused();
	lifetimes();
	uint64_t before = used();
	CHECK(before == 3 * GIB, "three handles are left: charged %lu", (unsigned long)before);
	on_host(before);
	pthread_t thread[8];
	for (int i = 0; i < 8; i++)
		CHECK(pthread_create(&thread[i], NULL, churn, context) == 0, "thread");
	for (int i = 0; i < 8; i++)
		pthread_join(thread[i], NULL);
	expect(before, "after 8 threads");
	CHECK(peak() <= 4 * GIB, "%lu bytes were held", (unsigned long)peak());
	return 0;
}
