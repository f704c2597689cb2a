/* Sparse and deferred arrays of the simulated driver: they take no memory; what is mapped into them is the handle's,
 * in stream order; two arrays onto the same memory are the same memory; it lives as long as it is mapped; what is not
 * mapped reads as zero; wrong operations change nothing.
 */
#include <semaphore.h>

#include "memory_test.h"

#define TILE (64 * KIB)
#define F32  CU_AD_FORMAT_FLOAT

static unsigned char host[1 << 20], back[1 << 20];

static void pattern(unsigned seed)
{
	for (size_t i = 0; i < sizeof host; i++)
		host[i] = (unsigned char)(i * 7 + i / 255 + seed);
	memset(back, 0xee, sizeof back);
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

static CUarrayMapInfo of_array(CUarray array, CUmemGenericAllocationHandle handle, size_t offset)
{
	CUarrayMapInfo info = {.resourceType = CU_RESOURCE_TYPE_ARRAY,
	                       .resource = {.array = array},
	                       .memOperationType = handle ? CU_MEM_OPERATION_TYPE_MAP : CU_MEM_OPERATION_TYPE_UNMAP,
	                       .memHandleType = CU_MEM_HANDLE_TYPE_GENERIC,
	                       .memHandle = {.memHandle = handle},
	                       .offset = offset,
	                       .deviceBitMask = 1};
	return info;
}

static CUarrayMapInfo tile(CUarray array, unsigned x, unsigned y, unsigned width, unsigned height,
                           CUmemGenericAllocationHandle handle, size_t offset)
{
	CUarrayMapInfo info = of_array(array, handle, offset);

	info.subresourceType = CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_SPARSE_LEVEL;
	info.subresource.sparseLevel.offsetX = x;
	info.subresource.sparseLevel.offsetY = y;
	info.subresource.sparseLevel.extentWidth = width;
	info.subresource.sparseLevel.extentHeight = height;
	info.subresource.sparseLevel.extentDepth = 1;
	return info;
}

static void rows(CUarray array, size_t x, size_t y, size_t width, size_t height, bool in)
{
	CUDA_MEMCPY2D copy = {.srcMemoryType = in ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_ARRAY,
	                      .srcHost = host,
	                      .srcArray = array,
	                      .srcPitch = width,
	                      .dstMemoryType = in ? CU_MEMORYTYPE_ARRAY : CU_MEMORYTYPE_HOST,
	                      .dstHost = back,
	                      .dstArray = array,
	                      .dstPitch = width,
	                      .WidthInBytes = width,
	                      .Height = height};

	*(in ? &copy.dstXInBytes : &copy.srcXInBytes) = x;
	*(in ? &copy.dstY : &copy.srcY) = y;
	OK(cuMemcpy2D(&copy));
}

static void deferred(void)
{
	CUDA_ARRAY3D_DESCRIPTOR desc = {512, 512, 0, F32, 1, CUDA_ARRAY3D_DEFERRED_MAPPING};
	CUDA_ARRAY_MEMORY_REQUIREMENTS need;
	CUmemGenericAllocationHandle handle;
	CUarray a, b, plain;
	uint64_t before = held();

	OK(cuArray3DCreate(&a, &desc));
	OK(cuArray3DCreate(&b, &desc));
	CHECK(held() == before, "they take %llu", (unsigned long long)(held() - before));
	OK(cuArrayGetMemoryRequirements(&need, a, 0));
	CHECK(need.size == MIB && need.alignment == TILE, "%zu bytes, aligned to %zu", need.size, need.alignment);
	handle = tiles(2 * MIB);
	rows(a, 0, 0, 2048, 256, true); /* swallowed */
	CUarrayMapInfo map[2] = {of_array(a, handle, MIB), of_array(b, handle, MIB)};
	OK(cuMemMapArrayAsync(map, 2, NULL));
	OK(cuMemRelease(handle));
	CHECK(held() - before == 2 * MIB, "mapped memory is held: %llu", (unsigned long long)(held() - before));
	pattern(1);
	rows(a, 0, 0, 2048, 512, true);
	rows(b, 0, 0, 2048, 512, false);
	CHECK(!memcmp(host, back, MIB), "one memory behind two arrays");
	CUarrayMapInfo unmap = of_array(a, 0, 0);
	OK(cuMemMapArrayAsync(&unmap, 1, NULL));
	rows(a, 0, 0, 2048, 512, false);
	for (size_t i = 0; i < MIB; i++)
		CHECK(back[i] == 0, "unmapped memory reads %u at %zu", back[i], i);
	rows(b, 0, 0, 2048, 512, false);
	CHECK(!memcmp(host, back, MIB), "the other one keeps it");
	OK(cuArrayDestroy(b));
	CHECK(held() == before, "left %llu", (unsigned long long)(held() - before));
	OK(cuArrayDestroy(a));
	desc.Flags = 0;
	OK(cuArray3DCreate(&plain, &desc));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuArrayGetMemoryRequirements(&need, plain, 0));
	OK(cuArrayDestroy(plain));
}

static sem_t gate;

static void CUDA_CB hold(void *unused)
{
	(void)unused;
	sem_wait(&gate);
}

static void in_stream_order(void)
{
	CUDA_ARRAY3D_DESCRIPTOR desc = {512, 512, 0, F32, 1, CUDA_ARRAY3D_DEFERRED_MAPPING};
	CUmemGenericAllocationHandle handle = tiles(2 * MIB);
	CUarray array;
	CUstream stream;
	uint64_t before;

	OK(cuArray3DCreate(&array, &desc));
	OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	before = held();
	CUarrayMapInfo map = of_array(array, handle, 0), unmap = of_array(array, 0, 0);
	OK(cuMemMapArrayAsync(&map, 1, stream));
	OK(cuStreamSynchronize(stream));
	OK(cuMemRelease(handle));
	OK(cuLaunchHostFunc(stream, hold, NULL));
	OK(cuMemMapArrayAsync(&unmap, 1, stream));
	CHECK(held() == before, "not yet unmapped");
	OK(sem_post(&gate) == 0 ? CUDA_SUCCESS : CUDA_ERROR_UNKNOWN);
	OK(cuStreamSynchronize(stream));
	CHECK(before - held() == 2 * MIB, "unmapped and released");
	OK(cuStreamDestroy(stream));
	OK(cuArrayDestroy(array));
}

static void sparse(void)
{
	CUDA_ARRAY3D_DESCRIPTOR desc = {500, 400, 0, F32, 1, CUDA_ARRAY3D_SPARSE}; /* tiles of 128 x 128 */
	CUDA_ARRAY_SPARSE_PROPERTIES props;
	CUmemGenericAllocationHandle handle = tiles(2 * MIB);
	CUarray array;
	uint64_t before = held();

	OK(cuArray3DCreate(&array, &desc));
	CHECK(held() == before, "takes %llu", (unsigned long long)(held() - before));
	OK(cuArrayGetSparseProperties(&props, array));
	CHECK(props.tileExtent.width == 128 && props.tileExtent.height == 128 && props.tileExtent.depth == 1 &&
	              props.miptailSize == 0 && props.flags == 0,
	      "tiles of %u x %u x %u", props.tileExtent.width, props.tileExtent.height, props.tileExtent.depth);
	CUarrayMapInfo wrong[] = {tile(array, 64, 0, 128, 128, handle, 0), tile(array, 0, 0, 100, 128, handle, 0),
	                          tile(array, 0, 0, 128, 128, handle, 2 * MIB),
	                          tile(array, 512, 0, 128, 128, handle, 0), tile(array, 0, 0, 128, 128, handle, 4096)};
	for (unsigned i = 0; i < 5; i++)
		GIVES(CUDA_ERROR_INVALID_VALUE, cuMemMapArrayAsync(&wrong[i], 1, NULL));
	CUarrayMapInfo map[] = {tile(array, 0, 0, 256, 128, handle, 0),
	                        tile(array, 384, 384, 116, 16, handle, 2 * TILE)};
	map[0].deviceBitMask = 2;
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemMapArrayAsync(map, 2, NULL));
	map[0].deviceBitMask = 1;
	OK(cuMemMapArrayAsync(map, 2, NULL));
	pattern(2);
	rows(array, 0, 0, 2000, 400, true);
	rows(array, 0, 0, 2000, 400, false);
	for (size_t y = 0; y < 400; y++) {
		for (size_t x = 0; x < 2000; x++) {
			bool there = (x < 1024 && y < 128) || (x >= 1536 && y >= 384);
			CHECK(back[y * 2000 + x] == (there ? host[y * 2000 + x] : 0), "byte %zu of row %zu", x, y);
		}
	}
	OK(cuMemRelease(handle));
	CUarrayMapInfo unmap = tile(array, 0, 0, 500, 400, 0, 0);
	CHECK(held() - before == 0, "held");
	OK(cuMemMapArrayAsync(&unmap, 1, NULL));
	OK(cuCtxSynchronize());
	CHECK(before - held() == 2 * MIB, "all tiles unmapped: the memory is gone");
	OK(cuArrayDestroy(array));
}

static void mip_tail(void)
{
	CUDA_ARRAY3D_DESCRIPTOR desc = {256, 256, 3, F32, 1, CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_LAYERED};
	CUDA_ARRAY_SPARSE_PROPERTIES props;
	CUmemGenericAllocationHandle handle = tiles(2 * MIB);
	CUmipmappedArray mipmap;
	CUarray level;

	OK(cuMipmappedArrayCreate(&mipmap, &desc, 9));
	OK(cuMipmappedArrayGetSparseProperties(&props, mipmap));
	CHECK(props.miptailFirstLevel == 2 && props.miptailSize == TILE && props.flags == 0,
	      "the tail begins at level %u and has %llu bytes", props.miptailFirstLevel, props.miptailSize);
	CUarrayMapInfo map = {.resourceType = CU_RESOURCE_TYPE_MIPMAPPED_ARRAY,
	                      .resource = {.mipmap = mipmap},
	                      .subresourceType = CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_MIPTAIL,
	                      .subresource = {.miptail = {.layer = 1, .size = TILE}},
	                      .memOperationType = CU_MEM_OPERATION_TYPE_MAP,
	                      .memHandleType = CU_MEM_HANDLE_TYPE_GENERIC,
	                      .memHandle = {.memHandle = handle},
	                      .deviceBitMask = 1};
	OK(cuMemMapArrayAsync(&map, 1, NULL));
	map.subresource.miptail.layer = 3;
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemMapArrayAsync(&map, 1, NULL));
	for (unsigned i = 2; i < 9; i++) {
		size_t width = 4 * (256 >> i), height = 256 >> i;
		CUDA_MEMCPY3D copy = {.srcMemoryType = CU_MEMORYTYPE_HOST,
		                      .srcHost = host,
		                      .srcPitch = width,
		                      .srcHeight = height,
		                      .dstMemoryType = CU_MEMORYTYPE_ARRAY,
		                      .WidthInBytes = width,
		                      .Height = height,
		                      .Depth = 3};
		pattern(i);
		OK(cuMipmappedArrayGetLevel(&level, mipmap, i));
		copy.dstArray = level;
		OK(cuMemcpy3D(&copy));
		copy.srcMemoryType = CU_MEMORYTYPE_ARRAY;
		copy.srcArray = level;
		copy.dstMemoryType = CU_MEMORYTYPE_HOST;
		copy.dstHost = back;
		copy.dstPitch = width;
		copy.dstHeight = height;
		OK(cuMemcpy3D(&copy));
		for (size_t k = 0; k < width * height * 3; k++)
			CHECK(back[k] == (k / (width * height) == 1 ? host[k] : 0), "level %u, byte %zu", i, k);
	}
	OK(cuMemRelease(handle));
	OK(cuMipmappedArrayDestroy(mipmap));
}

int main(void)
{
	CUcontext context = start();
	uint64_t before = held();

	(void)context;
	CHECK(sem_init(&gate, 0, 0) == 0, "sem_init");
	deferred();
	in_stream_order();
	sparse();
	mip_tail();
	CHECK(held() == before, "left %llu bytes", (unsigned long long)(held() - before));
	return 0;
}
