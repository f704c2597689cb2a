/* D3, C007: sparse and deferred arrays cost nothing; what is mapped into them is charged as the handle it was made by,
 * and stays so while any part of it is mapped, also when the handle is released; unmapping part of a region, mapping over
 * it, destroying the array or its context give back exactly what the driver gives back, and when it does.
 */
#include <semaphore.h>

#include "shim_test.h"

#define TILE UINT64_C(65536)

static void expect(uint64_t bytes, const char *what)
{
	CHECK(used() == bytes && held(0) == bytes, "%s: charged %lu, held %lu, expected %lu", what,
	      (unsigned long)used(), (unsigned long)held(0), (unsigned long)bytes);
}

static CUmemGenericAllocationHandle tiles(size_t bytes)
{
	CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
	                            .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0},
	                            .allocFlags = {.usage = CU_MEM_CREATE_USAGE_TILE_POOL}};
	CUmemGenericAllocationHandle handle;
	OK(cuMemCreate(&handle, bytes, &prop, 0));
	return handle;
}

static CUarray make(unsigned flags)
{
	CUDA_ARRAY3D_DESCRIPTOR desc = {1024, 1024, 0, CU_AD_FORMAT_FLOAT, 1, flags}; /* 64 tiles of 128 x 128 */
	CUarray array;
	OK(cuArray3DCreate_v2(&array, &desc));
	return array;
}

static CUarrayMapInfo op(CUarray array, unsigned x, unsigned y, unsigned width, unsigned height,
                         CUmemGenericAllocationHandle handle)
{
	CUarrayMapInfo info = {.resourceType = CU_RESOURCE_TYPE_ARRAY,
	                       .resource = {.array = array},
	                       .memOperationType = handle ? CU_MEM_OPERATION_TYPE_MAP : CU_MEM_OPERATION_TYPE_UNMAP,
	                       .memHandleType = CU_MEM_HANDLE_TYPE_GENERIC,
	                       .memHandle = {.memHandle = handle},
	                       .deviceBitMask = 1};
	info.subresource.sparseLevel.offsetX = x;
	info.subresource.sparseLevel.offsetY = y;
	info.subresource.sparseLevel.extentWidth = width;
	info.subresource.sparseLevel.extentHeight = height;
	info.subresource.sparseLevel.extentDepth = 1;
	return info;
}

static void run(CUarrayMapInfo info)
{
	OK(cuMemMapArrayAsync(&info, 1, NULL));
	OK(cuCtxSynchronize());
}

static void deferred(void)
{
	CUarray array = make(CUDA_ARRAY3D_DEFERRED_MAPPING);
	expect(0, "a deferred array");
	CUmemGenericAllocationHandle handle = tiles(4 * MIB), other = tiles(6 * MIB);
	expect(10 * MIB, "memory for it");
	run(op(array, 0, 0, 0, 0, handle));
	OK(cuMemRelease(handle));
	expect(10 * MIB, "mapped and released");
	run(op(array, 0, 0, 0, 0, other));
	expect(6 * MIB, "other memory in its place");
	OK(cuMemRelease(other));
	expect(6 * MIB, "released too");
	run(op(array, 0, 0, 0, 0, 0));
	expect(0, "unmapped");
	handle = tiles(4 * MIB);
	run(op(array, 0, 0, 0, 0, handle));
	OK(cuMemRelease(handle));
	OK(cuArrayDestroy(array));
	expect(0, "the array destroyed");
}

static void parts(void)
{
	CUarray array = make(CUDA_ARRAY3D_SPARSE);
	CUmemGenericAllocationHandle a = tiles(4 * MIB), b = tiles(2 * MIB);
	run(op(array, 0, 0, 1024, 1024, a));
	run(op(array, 256, 256, 256, 256, b)); /* in the middle */
	OK(cuMemRelease(a));
	OK(cuMemRelease(b));
	expect(6 * MIB, "both mapped");
	run(op(array, 256, 256, 256, 256, 0));
	expect(4 * MIB, "the middle unmapped");
	run(op(array, 0, 0, 1024, 256, 0));
	run(op(array, 0, 512, 1024, 512, 0));
	run(op(array, 0, 256, 256, 256, 0));
	expect(4 * MIB, "but for a part");
	run(op(array, 512, 256, 512, 256, 0));
	expect(0, "the last part");
	a = tiles(2 * MIB);
	b = tiles(2 * MIB);
	CUarrayMapInfo both[3] = {op(array, 0, 0, 128, 128, a), op(array, 0, 0, 128, 128, b),
	                          op(array, 0, 0, 128, 128, 0)};
	OK(cuMemMapArrayAsync(both, 2, NULL));
	OK(cuCtxSynchronize());
	OK(cuMemRelease(a));
	OK(cuMemRelease(b));
	expect(2 * MIB, "one over the other in one call");
	a = tiles(2 * MIB);
	both[0].memHandle.memHandle = both[1].memHandle.memHandle = a;
	OK(cuMemMapArrayAsync(both, 3, NULL));
	OK(cuCtxSynchronize());
	OK(cuMemRelease(a));
	expect(0, "mapped and unmapped in one call");
	OK(cuArrayDestroy(array));
}

static void errors(void)
{
	CUarray array = make(CUDA_ARRAY3D_SPARSE);
	CUmemGenericAllocationHandle a = tiles(2 * MIB), b = tiles(2 * MIB);
	run(op(array, 0, 0, 128, 128, a));
	OK(cuMemRelease(a));
	CUarrayMapInfo list[2] = {op(array, 0, 0, 128, 128, b), op(array, 7, 0, 128, 128, b)};
	IS(cuMemMapArrayAsync(list, 2, NULL), CUDA_ERROR_INVALID_VALUE);
	expect(4 * MIB, "a refused call changes nothing");
	OK(cuMemRelease(b));
	expect(2 * MIB, "nor does it keep anything");
	arm("cuArrayDestroy", CUDA_ERROR_LAUNCH_FAILED, 0, 1);
	IS(cuArrayDestroy(array), CUDA_ERROR_LAUNCH_FAILED);
	disarm();
	expect(2 * MIB, "a failed destroy");
	OK(cuArrayDestroy(array));
	expect(0, "destroyed");
}

static sem_t gate;

static void CUDA_CB hold(void *unused)
{
	(void)unused;
	sem_wait(&gate);
}

/* The driver unmaps when the stream has come so far; until then the charge stays. */
static void in_stream_order(void)
{
	CUarray array = make(CUDA_ARRAY3D_SPARSE);
	CUmemGenericAllocationHandle handle = tiles(2 * MIB);
	CUstream stream;
	run(op(array, 0, 0, 128, 128, handle));
	OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	OK(cuLaunchHostFunc(stream, hold, NULL));
	CUarrayMapInfo unmap = op(array, 0, 0, 128, 128, 0);
	OK(cuMemMapArrayAsync(&unmap, 1, stream));
	OK(cuMemRelease(handle));
	expect(2 * MIB, "released, and about to be unmapped");
	CHECK(sem_post(&gate) == 0, "sem_post");
	OK(cuStreamSynchronize(stream));
	expect(0, "unmapped");
	OK(cuStreamDestroy_v2(stream));
	OK(cuArrayDestroy(array));
}

static void ends_with_its_context(CUcontext primary)
{
	CUcontext context;
	CUmemGenericAllocationHandle handle = tiles(2 * MIB);
	OK(cuCtxCreate_v2(&context, 0, 0));
	CUarray array = make(CUDA_ARRAY3D_SPARSE);
	run(op(array, 0, 0, 128, 128, handle));
	OK(cuMemRelease(handle));
	expect(2 * MIB, "mapped");
	OK(cuCtxDestroy_v2(context));
	OK(cuCtxSetCurrent(primary));
	expect(0, "its context destroyed");
}

static void announced(void)
{
	int value = 0;
	OK(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_SPARSE_CUDA_ARRAY_SUPPORTED, 0));
	CHECK(value == 1, "sparse arrays are announced");
	OK(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_DEFERRED_MAPPING_CUDA_ARRAY_SUPPORTED, 0));
	CHECK(value == 1, "deferred mapping is announced");
}

int main(void)
{
	CUcontext primary = start(0);
	CHECK(sem_init(&gate, 0, 0) == 0, "sem_init");
	announced();
	deferred();
	parts();
	errors();
	in_stream_order();
	ends_with_its_context(primary);
	return 0;
}
