/* Multicast objects. We test: what is stored through a mapping of the object is in every memory that is bound to it, by
 * handle or by address; what is unbound gets nothing more; bound memory stays until it is unbound or the object, which
 * its mappings keep, is gone; binding waits for the whole team; wrong calls are refused; no NVSwitch, no multicast. */
#include <pthread.h>

#include "memory_test.h"

#define SIZE (4 * MIB)

static CUmemGenericAllocationHandle object, memory[2];
static CUdeviceptr at[2], all; /* of the memories, of the object */
static uint64_t before;

static uint64_t taken(int device)
{
	return __atomic_load_n(&the_machine()->device[device].used, __ATOMIC_ACQUIRE);
}

static CUdeviceptr mapped(CUmemGenericAllocationHandle handle)
{
	CUmemAccessDesc access[2] = {{{CU_MEM_LOCATION_TYPE_DEVICE, {0}}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE},
	                             {{CU_MEM_LOCATION_TYPE_DEVICE, {1}}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE}};
	CUdeviceptr p;
	OK(cuMemAddressReserve(&p, SIZE, 0, 0, 0));
	OK(cuMemMap(p, SIZE, 0, handle, 0));
	OK(cuMemSetAccess(p, SIZE, access, 2));
	return p;
}

static void unmapped(CUdeviceptr p)
{
	OK(cuMemUnmap(p, SIZE));
	OK(cuMemAddressFree(p, SIZE));
}

static CUmemGenericAllocationHandle made(int device)
{
	CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
	                            .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device}};
	CUmemGenericAllocationHandle handle;
	OK(cuMemCreate(&handle, SIZE, &prop, 0));
	return handle;
}

static CUmemGenericAllocationHandle team_of(unsigned devices)
{
	CUmulticastObjectProp prop = {.numDevices = devices, .size = SIZE};
	CUmemGenericAllocationHandle handle;
	OK(cuMulticastCreate(&handle, &prop));
	return handle;
}

static void expect(int device, uint64_t offset, unsigned word)
{
	unsigned found = 0;
	OK(cuMemcpyDtoH(&found, at[device] + offset, sizeof found));
	CHECK(found == word, "device %d at %lu has %#x, must have %#x", device, (unsigned long)offset, found, word);
}

static void *bind_second(void *unused)
{
	(void)unused; /* waits for the team; the other thread adds its last device */
	OK(cuMulticastBindAddr(object, 0, at[1], SIZE, 0));
	return NULL;
}

static void make(void)
{
	pthread_t thread;
	before = taken(0);
	object = team_of(2);
	CHECK(taken(0) == before, "an object takes nothing of the card");
	for (int i = 0; i < 2; i++) {
		memory[i] = made(i);
		at[i] = mapped(memory[i]);
	}
	OK(cuMulticastAddDevice(object, 0));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMulticastAddDevice(object, 0));
	CHECK(pthread_create(&thread, NULL, bind_second, NULL) == 0, "a thread");
	OK(cuMulticastAddDevice(object, 1));
	CHECK(pthread_join(thread, NULL) == 0, "join");
	OK(cuMulticastBindMem(object, 0, memory[0], 0, SIZE, 0));
	all = mapped(object);
}

static void stores(void)
{
	unsigned word = 0x01020304, rows[2][4] = {{1, 2, 3, 4}, {5, 6, 7, 8}};
	CUDA_MEMCPY2D copy = {.srcMemoryType = CU_MEMORYTYPE_HOST,
	                      .srcHost = rows,
	                      .srcPitch = 16,
	                      .dstMemoryType = CU_MEMORYTYPE_DEVICE,
	                      .dstDevice = all + 4096,
	                      .dstPitch = 512,
	                      .WidthInBytes = 16,
	                      .Height = 2};
	OK(cuMemcpyHtoD(all + 2 * MIB, &word, sizeof word));
	OK(cuMemsetD32(all, 0xabcd, 1024));
	OK(cuMemcpy2D(&copy));
	OK(cuStreamWriteValue32(NULL, all + 8192, 77, 0));
	OK(cuMemsetD8(at[1] + 100, 9, 1)); /* only there */
	OK(cuCtxSynchronize());
	for (int i = 0; i < 2; i++) {
		expect(i, 2 * MIB, word);
		expect(i, 4092, 0xabcd);
		expect(i, 4096 + 512 + 4, 6);
		expect(i, 8192, 77);
		expect(i, 100, i == 0 ? 0xabcd : 0xab09);
	}
	OK(cuMemsetD8(all, 0, SIZE)); /* also where pages are dropped instead */
	OK(cuCtxSynchronize());
	for (int i = 0; i < 2; i++)
		expect(i, 2 * MIB, 0);
}

static void unbinding(void)
{
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMulticastUnbind(object, 1, 0, 2 * MIB));
	OK(cuMulticastUnbind(object, 1, 0, SIZE));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMulticastUnbind(object, 1, 0, SIZE));
	OK(cuMemsetD32(all, 5, 1));
	OK(cuCtxSynchronize());
	expect(0, 0, 5);
	expect(1, 0, 0);
	OK(cuMulticastBindMem_v2(object, 1, 2 * MIB, memory[1], 0, 2 * MIB, 0)); /* another place */
	OK(cuMemsetD32(all + 2 * MIB, 6, 1));
	OK(cuCtxSynchronize());
	expect(1, 0, 6);
	expect(0, 2 * MIB, 6);
}

static void wrong_calls(void)
{
	CUmulticastObjectProp prop = {.numDevices = 2, .size = SIZE}, bad = prop;
	CUmemGenericAllocationHandle handle;
	CUmemAllocationProp got;
	size_t granularity = 0;
	int supported = 0, fd;
	OK(cuDeviceGetAttribute(&supported, CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED, 0));
	if (!getenv("CUDA_DEVICE_MEMORY_LIMIT")) /* where none can be shared, programs are told that there are none */
		CHECK(supported == 1, "this device has multicast: %d", supported);
	OK(cuMulticastGetGranularity(&granularity, &prop, CU_MULTICAST_GRANULARITY_MINIMUM));
	CHECK(granularity == GRANULE, "granularity %zu", granularity);
	bad.size = SIZE + 4096;
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMulticastCreate(&handle, &bad));
	bad = prop, bad.numDevices = 0;
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMulticastCreate(&handle, &bad));
	bad = prop, bad.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
	GIVES(CUDA_ERROR_NOT_SUPPORTED, cuMulticastCreate(&handle, &bad));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMulticastCreate(NULL, &prop));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMulticastAddDevice(memory[0], 0));
	GIVES(CUDA_ERROR_INVALID_DEVICE, cuMulticastAddDevice(object, 2));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMulticastBindMem(object, 0, memory[0], 0, SIZE, 0)); /* taken */
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMulticastBindMem(object, 0, memory[1], 0, SIZE, 1));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMulticastBindMem(object, 0, memory[1], 0, MIB, 0));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMulticastBindMem(object, 0, memory[1], 2 * MIB, SIZE, 0));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMulticastBindMem(object, 0, object, 0, SIZE, 0));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMulticastBindMem(memory[0], 0, memory[1], 0, SIZE, 0));
	GIVES(CUDA_ERROR_INVALID_DEVICE, cuMulticastBindMem_v2(object, 0, 0, memory[1], 0, 2 * MIB, 0));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMulticastBindAddr(object, 0, at[1] + 2 * MIB, SIZE, 0));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMulticastBindAddr(object, 0, at[1] - SIZE * 1024, 2 * MIB, 0));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemGetAllocationPropertiesFromHandle(&got, object));
	GIVES(CUDA_ERROR_INVALID_VALUE,
	      cuMemExportToShareableHandle(&fd, object, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
}

static void stranger(void)
{
	CUmemGenericAllocationHandle one = team_of(1), there = made(1);
	OK(cuMulticastAddDevice(one, 0));
	GIVES(CUDA_ERROR_INVALID_DEVICE, cuMulticastBindMem(one, 0, there, 0, SIZE, 0));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMulticastAddDevice(one, 1));
	OK(cuMemRelease(there));
	OK(cuMemRelease(one));
}

static void pooled(void)
{
	CUdeviceptr p;
	OK(cuMemAllocAsync(&p, SIZE, NULL));
	GIVES(CUDA_ERROR_NOT_SUPPORTED, cuMulticastBindAddr(object, 0, p, 2 * MIB, 0));
	OK(cuMemFreeAsync(p, NULL));
	OK(cuCtxSynchronize());
}

static void life(void)
{
	for (int i = 0; i < 2; i++) {
		unmapped(at[i]);
		OK(cuMemRelease(memory[i]));
	}
	CHECK(taken(0) == before + SIZE && taken(1) == SIZE, "bound memory stays: %lu and %lu",
	      (unsigned long)(taken(0) - before), (unsigned long)taken(1));
	OK(cuMulticastUnbind(object, 1, 2 * MIB, 2 * MIB));
	CHECK(taken(1) == 0, "unbound: %lu", (unsigned long)taken(1));
	OK(cuMemRelease(object));
	CHECK(taken(0) == before + SIZE, "a mapping keeps the object: %lu", (unsigned long)(taken(0) - before));
	OK(cuMemsetD32(all, 5, 1));
	unmapped(all);
	CHECK(taken(0) == before, "all is gone: %lu", (unsigned long)(taken(0) - before));
}

static void no_switch(int unused)
{
	CUmulticastObjectProp prop = {.numDevices = 1, .size = SIZE};
	CUmemGenericAllocationHandle handle;
	int supported = 1;
	char scratch[4200];
	(void)unused;
	snprintf(scratch, sizeof scratch, "%s/other", getenv("PARTAGE_SIM_DIR"));
	setenv("PARTAGE_SIM_DIR", scratch, 1);
	setenv("PARTAGE_SIM", "zero2", 1);
	start();
	OK(cuDeviceGetAttribute(&supported, CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED, 0));
	CHECK(supported == 0, "no NVSwitch here");
	GIVES(CUDA_ERROR_NOT_SUPPORTED, cuMulticastCreate(&handle, &prop));
}

int main(void)
{
	in_child(no_switch, 0);
	setenv("PARTAGE_SIM", "zero-nvswitch", 1);
	start();
	make();
	stores();
	unbinding();
	wrong_calls();
	stranger();
	pooled();
	life();
	return 0;
}
