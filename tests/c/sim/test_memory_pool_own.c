/* Memory pools of a program's own. We test: which properties a pool can have and what it says of itself, that it grows
 * by its granule up to its size, that it is current where it was set and no longer when destroyed, that destroying it
 * while blocks live frees its memory with the last of them and not before, that pools on the host count on no card,
 * managed pools, default pools of each place, and that all pools give way on a full card. */
#include "memory_test.h"

#define POOL_GRANULE (32 * MIB)

static uint64_t before;

static CUmemPoolProps props_at(CUmemLocationType type, CUmemAllocationType kind)
{
	return (CUmemPoolProps){.allocType = kind, .location = {.type = type}};
}

static CUmemPoolProps on_device(void)
{
	return props_at(CU_MEM_LOCATION_TYPE_DEVICE, CU_MEM_ALLOCATION_TYPE_PINNED);
}

static uint64_t attribute(CUmemoryPool pool, CUmemPool_attribute which)
{
	cuuint64_t value = 0;

	OK(cuMemPoolGetAttribute(pool, which, &value));
	return value;
}

static void properties(void)
{
	CUmemPoolProps props = on_device();
	CUmemoryPool pool, other;

	props.maxSize = 100 * MIB;
	OK(cuMemPoolCreate(&pool, &props));
	OK(cuMemPoolCreate(&other, &props));
	CHECK(pool != other, "two pools");
	CHECK(attribute(pool, CU_MEMPOOL_ATTR_MAX_POOL_SIZE) == 100 * MIB, "its size");
	CHECK(attribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD) == 0, "keeps nothing unless asked to");
	OK(cuMemPoolDestroy(other));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemPoolDestroy(other));
	OK(cuMemPoolDestroy(pool));
	props = on_device();
	props.location.id = 99;
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemPoolCreate(&pool, &props));
	props = on_device();
	props.reserved[5] = 1;
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemPoolCreate(&pool, &props));
	props = props_at(CU_MEM_LOCATION_TYPE_HOST, CU_MEM_ALLOCATION_TYPE_PINNED);
	props.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemPoolCreate(&pool, &props));
	props = props_at(CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT, CU_MEM_ALLOCATION_TYPE_PINNED);
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemPoolCreate(&pool, &props));
	props = props_at(CU_MEM_LOCATION_TYPE_DEVICE, CU_MEM_ALLOCATION_TYPE_MANAGED);
	props.maxSize = MIB;
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemPoolCreate(&pool, &props));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemPoolCreate(&pool, NULL));
}

static void grows_to_its_size(CUstream stream)
{
	CUmemPoolProps props = on_device();
	CUmemoryPool pool;
	CUdeviceptr p, q;

	props.maxSize = 2 * POOL_GRANULE;
	OK(cuMemPoolCreate(&pool, &props));
	OK(cuMemAllocFromPoolAsync(&p, POOL_GRANULE + 1, pool, stream));
	CHECK(held() == before + 2 * POOL_GRANULE, "two granules: %lu", held() - before);
	OK(cuMemAllocFromPoolAsync(&q, MIB, pool, stream));
	CHECK(held() == before + 2 * POOL_GRANULE, "the rest of them: %lu", held() - before);
	OK(cuMemFreeAsync(q, stream));
	GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuMemAllocFromPoolAsync(&q, POOL_GRANULE, pool, stream));
	OK(cuMemFreeAsync(p, stream));
	OK(cuStreamSynchronize(stream));
	CHECK(held() == before, "all back: %lu", held() - before);
	OK(cuMemPoolDestroy(pool));
}

static void current(CUstream stream)
{
	CUmemoryPool pool, usual, now, of;
	CUmemPoolProps props = on_device();
	CUdeviceptr p;

	OK(cuDeviceGetDefaultMemPool(&usual, 0));
	OK(cuMemPoolCreate(&pool, &props));
	OK(cuDeviceSetMemPool(0, pool));
	OK(cuDeviceGetMemPool(&now, 0));
	CHECK(now == pool, "current");
	OK(cuMemGetMemPool(&now, &props.location, CU_MEM_ALLOCATION_TYPE_PINNED));
	CHECK(now == pool, "current, asked by location");
	OK(cuMemAllocAsync(&p, MIB, stream));
	OK(cuPointerGetAttribute(&of, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, p));
	CHECK(of == pool, "taken from the current pool");
	CHECK(attribute(usual, CU_MEMPOOL_ATTR_USED_MEM_CURRENT) == 0, "and not from the default one");
	OK(cuMemFreeAsync(p, stream));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemPoolDestroy(usual));
	OK(cuMemPoolDestroy(pool));
	OK(cuDeviceGetMemPool(&now, 0));
	CHECK(now == usual, "the default one again");
	GIVES(CUDA_ERROR_INVALID_VALUE, cuDeviceSetMemPool(0, pool));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemAllocFromPoolAsync(&p, MIB, pool, stream));
	OK(cuStreamSynchronize(stream));
	CHECK(held() == before, "all back: %lu", held() - before);
}

static int gate[2];

static void CUDA_CB hold(void *unused)
{
	char byte;

	(void)unused;
	CHECK(read(gate[0], &byte, 1) == 1, "gate");
}

static void destroyed_while_used(CUstream stream)
{
	CUmemPoolProps props = on_device();
	cuuint64_t all = UINT64_MAX;
	CUmemoryPool pool;
	CUdeviceptr p, q;

	OK(cuMemPoolCreate(&pool, &props));
	OK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &all));
	OK(cuMemAllocFromPoolAsync(&p, MIB, pool, stream));
	OK(cuMemAllocFromPoolAsync(&q, POOL_GRANULE, pool, stream));
	OK(cuMemPoolDestroy(pool));
	CHECK(held() == before + 2 * POOL_GRANULE, "its blocks live on: %lu", held() - before);
	OK(cuMemsetD8Async(p, 1, MIB, stream));
	OK(cuMemFree(q));
	CHECK(held() >= before + POOL_GRANULE, "one lives on: %lu", held() - before);
	OK(cuLaunchHostFunc(stream, hold, NULL));
	OK(cuMemFreeAsync(p, stream));
	CHECK(held() >= before + POOL_GRANULE, "its free is pending: %lu", held() - before);
	CHECK(write(gate[1], "x", 1) == 1, "open");
	OK(cuStreamSynchronize(stream));
	CHECK(held() == before, "gone with its last block: %lu", held() - before);
}

static void elsewhere(CUstream stream)
{
	CUmemPoolProps props = props_at(CU_MEM_LOCATION_TYPE_HOST, CU_MEM_ALLOCATION_TYPE_PINNED);
	CUmemLocation host = {.type = CU_MEM_LOCATION_TYPE_HOST}, none = {.type = CU_MEM_LOCATION_TYPE_NONE};
	CUmemoryPool pool, usual;
	unsigned type;
	int managed;
	CUdeviceptr p;

	OK(cuMemPoolCreate(&pool, &props));
	OK(cuMemAllocFromPoolAsync(&p, 3 * MIB, pool, stream));
	OK(cuStreamSynchronize(stream));
	CHECK(held() == before, "the host's memory counts on no card: %lu", held() - before);
	OK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, p));
	CHECK(type == CU_MEMORYTYPE_HOST, "type %u", type);
	memset((void *)(uintptr_t)p, 7, 3 * MIB);
	OK(cuMemFreeAsync(p, stream));
	OK(cuMemPoolDestroy(pool));
	OK(cuMemGetDefaultMemPool(&usual, &host, CU_MEM_ALLOCATION_TYPE_PINNED));
	OK(cuMemAllocFromPoolAsync(&p, MIB, usual, stream));
	OK(cuMemFree(p));
	props = props_at(CU_MEM_LOCATION_TYPE_NONE, CU_MEM_ALLOCATION_TYPE_MANAGED);
	OK(cuMemPoolCreate(&pool, &props));
	OK(cuMemSetMemPool(&none, CU_MEM_ALLOCATION_TYPE_MANAGED, pool));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemSetMemPool(&host, CU_MEM_ALLOCATION_TYPE_PINNED, pool));
	OK(cuMemAllocFromPoolAsync(&p, MIB, pool, stream));
	OK(cuPointerGetAttribute(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, p));
	CHECK(managed, "managed");
	OK(cuMemFreeAsync(p, stream));
	OK(cuMemPoolDestroy(pool));
	OK(cuStreamSynchronize(stream));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemGetDefaultMemPool(&usual, &none, CU_MEM_ALLOCATION_TYPE_PINNED));
	CHECK(held() == before, "all back: %lu", held() - before);
}

static void gives_way(CUstream stream)
{
	CUmemPoolProps props = on_device();
	cuuint64_t all = UINT64_MAX;
	CUmemoryPool pool[3];
	CUdeviceptr p;

	for (int i = 0; i < 3; i++) {
		OK(cuMemPoolCreate(&pool[i], &props));
		OK(cuMemPoolSetAttribute(pool[i], CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &all));
		OK(cuMemAllocFromPoolAsync(&p, 1 * GIB, pool[i], stream));
		OK(cuMemFreeAsync(p, stream));
	}
	OK(cuStreamSynchronize(stream));
	CHECK(held() == before + 3 * GIB, "three pools keep a GiB each: %lu", held() - before);
	OK(cuMemAlloc(&p, free_bytes() + 2 * GIB));
	OK(cuMemFree(p));
	CHECK(held() == before, "they gave way: %lu", held() - before);
	for (int i = 0; i < 3; i++)
		OK(cuMemPoolDestroy(pool[i]));
}

int main(void)
{
	CUstream stream;

	CHECK(pipe(gate) == 0, "pipe");
	start();
	OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	before = held();
	properties();
	grows_to_its_size(stream);
	current(stream);
	destroyed_while_used(stream);
	elsewhere(stream);
	gives_way(stream);
	return 0;
}
