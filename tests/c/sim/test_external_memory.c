/* External memory, which here is what cuMemExportToShareableHandle exported. We test: a buffer and a mip-map of it are the
 * memory that the maker sees, at the offsets and in the layout that mip-maps of their own have; each keeps the memory,
 * also when the object is destroyed, until it is freed or its context ends; what lies outside of the memory, and arrays
 * that have no memory of their own, are refused. */
#include "memory_test.h"

#define BYTES  (8 * MIB)
#define OFFSET (2 * MIB)
#define WIDTH  256 /* elements of 4 bytes */
#define HEIGHT 128
#define LEVELS 3

static unsigned char host[WIDTH * HEIGHT * 4], back[sizeof host];
static CUdeviceptr whole;
static uint64_t before;

static CUmemGenericAllocationHandle make(void)
{
	CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
	                            .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
	                            .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
	CUmemAccessDesc access = {.location = prop.location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	CUmemGenericAllocationHandle handle;

	OK(cuMemCreate(&handle, BYTES, &prop, 0));
	OK(cuMemAddressReserve(&whole, BYTES, 0, 0, 0));
	OK(cuMemMap(whole, BYTES, 0, handle, 0));
	OK(cuMemSetAccess(whole, BYTES, &access, 1));
	OK(cuMemsetD8(whole, 0, BYTES));
	return handle;
}

static CUexternalMemory import(CUmemGenericAllocationHandle handle)
{
	CUDA_EXTERNAL_MEMORY_HANDLE_DESC desc = {.type = CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD, .size = BYTES};
	CUexternalMemory object;

	OK(cuMemExportToShareableHandle(&desc.handle.fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
	OK(cuImportExternalMemory(&object, &desc));
	return object;
}

/* The maker lets go: what is mapped of the object keeps the memory. */
static void unmake(CUmemGenericAllocationHandle handle)
{
	OK(cuMemUnmap(whole, BYTES));
	OK(cuMemAddressFree(whole, BYTES));
	OK(cuMemRelease(handle));
}

static CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC describe(uint64_t offset)
{
	return (CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC){.offset = offset,
	                                                   .arrayDesc = {.Width = WIDTH,
	                                                                 .Height = HEIGHT,
	                                                                 .Format = CU_AD_FORMAT_UNSIGNED_INT32,
	                                                                 .NumChannels = 1},
	                                                   .numLevels = LEVELS};
}

static CUarray level_of(CUmipmappedArray mipmap, unsigned level)
{
	CUarray array;

	OK(cuMipmappedArrayGetLevel(&array, mipmap, level));
	return array;
}

static void copy(CUmipmappedArray mipmap, unsigned level, void *to_host, const void *from_host)
{
	CUDA_MEMCPY2D c = {.WidthInBytes = (WIDTH >> level) * 4, .Height = HEIGHT >> level};

	c.srcMemoryType = from_host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_ARRAY;
	c.dstMemoryType = from_host ? CU_MEMORYTYPE_ARRAY : CU_MEMORYTYPE_HOST;
	c.srcPitch = c.dstPitch = c.WidthInBytes;
	c.srcHost = from_host;
	c.dstHost = to_host;
	if (from_host)
		c.dstArray = level_of(mipmap, level);
	else
		c.srcArray = level_of(mipmap, level);
	OK(cuMemcpy2D(&c));
}

static void is_the_memory(CUmipmappedArray mipmap)
{
	size_t row = WIDTH * 4;

	for (size_t i = 0; i < sizeof host; i++)
		host[i] = (unsigned char)(i * 31 + i / 251);
	copy(mipmap, 0, NULL, host);
	OK(cuMemcpyDtoH(back, whole + OFFSET, row));
	CHECK(memcmp(back, host, row) == 0, "the first row is not where the memory begins: %u", back[0]);
	OK(cuMemsetD8(whole + OFFSET, 99, row));
	copy(mipmap, 0, back, NULL);
	CHECK(back[0] == 99 && back[row - 1] == 99, "the maker's store is not seen: %u", back[0]);
	CHECK(memcmp(back + row, host + row, sizeof host - row) == 0, "the other rows are lost");
	for (unsigned level = 1; level < LEVELS; level++) {
		copy(mipmap, level, NULL, host + level);
		copy(mipmap, level, back, NULL);
		CHECK(memcmp(back, host + level, sizeof host >> 2 * level) == 0, "level %u", level);
	}
	OK(cuMemcpyDtoH(back, whole, row));
	CHECK(back[0] == 0 && back[row - 1] == 0, "written in front of it");
}

static void refusals(CUexternalMemory object)
{
	CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC desc = describe(BYTES + 1);
	CUmipmappedArray mipmap;

	GIVES(CUDA_ERROR_INVALID_VALUE, cuExternalMemoryGetMappedMipmappedArray(&mipmap, object, &desc));
	desc = describe(BYTES - MIB / 8); /* its levels pass the end */
	GIVES(CUDA_ERROR_INVALID_VALUE, cuExternalMemoryGetMappedMipmappedArray(&mipmap, object, &desc));
	desc = describe(0);
	GIVES(CUDA_ERROR_INVALID_VALUE, cuExternalMemoryGetMappedMipmappedArray(NULL, object, &desc));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuExternalMemoryGetMappedMipmappedArray(&mipmap, object, NULL));
	GIVES(CUDA_ERROR_INVALID_HANDLE, cuExternalMemoryGetMappedMipmappedArray(&mipmap, NULL, &desc));
	desc.arrayDesc.Width = 0;
	GIVES(CUDA_ERROR_INVALID_VALUE, cuExternalMemoryGetMappedMipmappedArray(&mipmap, object, &desc));
	desc = describe(0);
	desc.arrayDesc.Flags = CUDA_ARRAY3D_DEFERRED_MAPPING;
	GIVES(CUDA_ERROR_INVALID_VALUE, cuExternalMemoryGetMappedMipmappedArray(&mipmap, object, &desc));
}

static void lives(void)
{
	CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC desc = describe(OFFSET);
	CUDA_EXTERNAL_MEMORY_BUFFER_DESC window = {.offset = OFFSET, .size = MIB};
	CUmemGenericAllocationHandle handle = make();
	CUexternalMemory object = import(handle);
	CUmipmappedArray mipmap;
	CUdeviceptr buffer;

	refusals(object);
	CHECK(held() == before + BYTES, "the memory once: %lu", held() - before);
	OK(cuExternalMemoryGetMappedMipmappedArray(&mipmap, object, &desc));
	OK(cuExternalMemoryGetMappedBuffer(&buffer, object, &window));
	is_the_memory(mipmap);
	OK(cuMemcpyDtoH(back, buffer, 1));
	CHECK(back[0] == 99, "the buffer is the same memory: %u", back[0]);
	unmake(handle);
	OK(cuDestroyExternalMemory(object));
	CHECK(held() == before + BYTES, "kept: %lu", held() - before);
	OK(cuMemFree(buffer));
	CHECK(held() == before + BYTES, "kept by the mip-map: %lu", held() - before);
	copy(mipmap, 0, back, NULL);
	CHECK(back[0] == 99, "it is there still: %u", back[0]);
	OK(cuMipmappedArrayDestroy(mipmap));
	CHECK(held() == before, "gone: %lu", held() - before);
	GIVES(CUDA_ERROR_INVALID_HANDLE, cuMipmappedArrayDestroy(mipmap));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemFree(buffer));
}

/* What is mapped in a context ends with it. */
static void end_with_context(CUcontext primary)
{
	CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC desc = describe(OFFSET);
	CUDA_EXTERNAL_MEMORY_BUFFER_DESC window = {.size = MIB};
	CUmemGenericAllocationHandle handle = make();
	CUexternalMemory object = import(handle);
	CUmipmappedArray mipmap;
	CUdeviceptr buffer;
	CUcontext context;

	OK(cuCtxCreate(&context, NULL, 0, 0));
	OK(cuExternalMemoryGetMappedMipmappedArray(&mipmap, object, &desc));
	OK(cuExternalMemoryGetMappedBuffer(&buffer, object, &window));
	unmake(handle);
	OK(cuDestroyExternalMemory(object));
	OK(cuCtxDestroy(context));
	OK(cuCtxSetCurrent(primary));
	CHECK(held() == before, "ended with the context: %lu", held() - before);
	GIVES(CUDA_ERROR_INVALID_HANDLE, cuMipmappedArrayDestroy(mipmap));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemFree(buffer));
}

int main(void)
{
	CUcontext primary = start();

	before = held();
	lives();
	end_with_context(primary);
	return 0;
}
