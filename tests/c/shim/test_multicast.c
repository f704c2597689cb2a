/* Memory that is bound to a multicast object stays charged while the driver keeps it, released and unmapped or not,
 * and is given back when it is unbound or the object ends; calls that fail leave everything as it was; a limit holds
 * beside it; objects for other processes are refused, and the device is said to have none; in a grant of one of two
 * devices the other does not exist. */
#include "grant.h"

#define SIZE (GIB)

static CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                   .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};

static void expect(uint64_t bytes, const char *when)
{
	CHECK(used() == bytes && held(0) == bytes, "%s: charged %lu, held %lu, should be %lu", when,
	      (unsigned long)used(), (unsigned long)held(0), (unsigned long)bytes);
}

static CUmemGenericAllocationHandle team(void)
{
	CUmulticastObjectProp team_prop = {.numDevices = 1, .size = SIZE};
	CUmemGenericAllocationHandle object;
	OK(cuMulticastCreate(&object, &team_prop));
	OK(cuMulticastAddDevice(object, 0));
	return object;
}

static CUmemGenericAllocationHandle memory(void)
{
	CUmemGenericAllocationHandle handle;
	OK(cuMemCreate(&handle, SIZE, &prop, 0));
	return handle;
}

static CUdeviceptr map(CUmemGenericAllocationHandle handle)
{
	CUdeviceptr p;
	OK(cuMemAddressReserve(&p, SIZE, 0, 0, 0));
	OK(cuMemMap(p, SIZE, 0, handle, 0));
	return p;
}

static void unmap(CUdeviceptr p)
{
	OK(cuMemUnmap(p, SIZE));
	OK(cuMemAddressFree(p, SIZE));
}

static void bound(void)
{
	CUmemGenericAllocationHandle object = team(), m = memory(), other[3], again;
	expect(SIZE, "the object costs nothing");
	OK(cuMulticastBindMem(object, 0, m, 0, SIZE, 0));
	OK(cuMemRelease(m));
	expect(SIZE, "bound and released");
	for (int i = 0; i < 3; i++)
		other[i] = memory();
	IS(cuMemCreate(&again, GRANULE, &prop, 0), CUDA_ERROR_OUT_OF_MEMORY);
	expect(4 * GIB, "the limit holds beside it");
	OK(cuMulticastUnbind(object, 0, 0, SIZE));
	expect(3 * GIB, "unbound");
	for (int i = 0; i < 3; i++)
		OK(cuMemRelease(other[i]));
	OK(cuMemRelease(object));
	expect(0, "nothing is left");
}

static void ends_with_object(void)
{
	uint64_t before = used();
	CUmemGenericAllocationHandle object = team(), m = memory();
	CUdeviceptr at = map(m), all;
	OK(cuMulticastBindAddr_v2(object, 0, 0, at, SIZE, 0));
	OK(cuMemRelease(m));
	unmap(at);
	all = map(object);
	OK(cuMemRelease(object));
	expect(before + SIZE, "a mapping keeps the object");
	OK(cuMemRetainAllocationHandle(&object, (void *)(uintptr_t)all));
	unmap(all);
	expect(before + SIZE, "a handle keeps the object");
	OK(cuMemRelease(object));
	expect(before, "the object is gone");
}

static void failures(void)
{
	uint64_t before = used();
	CUmemGenericAllocationHandle object = team(), m = memory(), other;
	CUmulticastObjectProp shared = {
	        .numDevices = 1, .size = SIZE, .handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR};
	int value = 1;
	arm("cuMulticastBindMem", CUDA_ERROR_SYSTEM_NOT_READY, 0, 1);
	IS(cuMulticastBindMem(object, 0, m, 0, SIZE, 0), CUDA_ERROR_SYSTEM_NOT_READY);
	disarm();
	OK(cuMulticastBindMem(object, 0, m, 0, SIZE, 0));
	arm("cuMulticastUnbind", CUDA_ERROR_UNKNOWN, 0, 1);
	IS(cuMulticastUnbind(object, 0, 0, SIZE), CUDA_ERROR_UNKNOWN);
	disarm();
	IS(cuMulticastUnbind(object, 0, 0, GRANULE), CUDA_ERROR_INVALID_VALUE);
	OK(cuMemRelease(m));
	expect(before + SIZE, "still bound");
	OK(cuMemRelease(object));
	expect(before, "gone");
	IS(cuMulticastCreate(&other, &shared), CUDA_ERROR_NOT_SUPPORTED);
	OK(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED, 0));
	CHECK(value == 0, "the device is said to have none: %d", value);
}

static void one_of_two(void)
{
	CUmulticastObjectProp two = {.numDevices = 2, .size = SIZE};
	CUmemGenericAllocationHandle object, m;
	start(0);
	OK(cuMulticastCreate(&object, &two));
	m = memory();
	OK(cuMulticastAddDevice(object, 0));
	IS(cuMulticastAddDevice(object, 1), CUDA_ERROR_INVALID_DEVICE);
	IS(cuMulticastBindMem_v2(object, 1, 0, m, 0, SIZE, 0), CUDA_ERROR_INVALID_DEVICE);
	IS(cuMulticastBindAddr_v2(object, 1, 0, 4096, SIZE, 0), CUDA_ERROR_INVALID_DEVICE);
	IS(cuMulticastUnbind(object, 1, 0, SIZE), CUDA_ERROR_INVALID_DEVICE);
	OK(cuMemRelease(m));
	OK(cuMemRelease(object));
}

static void limited(void)
{
	start(0);
	bound();
	ends_with_object();
	failures();
}

int main(void)
{
	struct granted first = {0, 4 * GIB};
	scene("limited", limited);
	unsetenv("CUDA_DEVICE_MEMORY_LIMIT");
	scene("machine", touch);
	grant("one", &first, 1);
	scene("one of two", one_of_two);
	return 0;
}
