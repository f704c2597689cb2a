/* D1, D8b, D15, C001, C002, C005: stream-ordered memory. A pool is charged by what it has reserved, in whole chunks;
 * what it keeps unused gives way; frees cross between the flavours; thousands of rounds end where they began. Pools of a
 * program's own: test_pools_own.c.
 */
#include "shim_test.h"

static void chunks(void)
{
	CUdeviceptr p;
	OK(cuMemAllocAsync(&p, 1, NULL));
	CHECK(used() == POOL_GRANULE, "one byte costs %lu", (unsigned long)used());
	CHECK(used() >= held(0), "charged %lu, held %lu", (unsigned long)used(), (unsigned long)held(0));
	OK(cuMemFreeAsync(p, NULL));
	OK(cuCtxSynchronize());
	CHECK(used() == 0, "%lu bytes stay charged after the pool was emptied", (unsigned long)used());
}

static void kept_pool(void)
{
	CUdeviceptr p;
	CUmemoryPool pool;
	cuuint64_t all = UINT64_MAX;
	OK(cuDeviceGetDefaultMemPool(&pool, 0));
	OK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &all));
	OK(cuMemAllocFromPoolAsync(&p, 64 * MIB, pool, NULL));
	CHECK(used() == 64 * MIB, "charged %lu", (unsigned long)used());
	OK(cuMemFreeAsync(p, NULL));
	OK(cuCtxSynchronize());
	CHECK(used() == 64 * MIB, "the pool keeps 64 MiB, charged %lu", (unsigned long)used());
	OK(cuMemAllocFromPoolAsync(&p, 3 * GIB, pool,
	                           NULL)); /* as large as the pool's unused part allows after a trim */
	OK(cuMemFreeAsync(p, NULL));
	OK(cuCtxSynchronize());
	OK(cuMemPoolTrimTo(pool, 0));
	CHECK(used() == 0, "%lu bytes stay charged after a trim", (unsigned long)used());
	all = 0;
	OK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &all));
}

/* What the pool keeps unused must not stand in the way of other kinds of memory of the same process: a driver gives it
 * up for them on a full card, and a share is such a card. What is in use does stay. */
static void kept_pool_gives_way(void)
{
	CUdeviceptr p, plain;
	CUmemoryPool pool;
	CUmemGenericAllocationHandle handle;
	CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED};
	prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	cuuint64_t threshold = UINT64_MAX;
	OK(cuDeviceGetDefaultMemPool(&pool, 0));
	OK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
	for (int kind = 0; kind < 3; kind++) {
		OK(cuMemAllocAsync(&p, 3 * GIB, NULL));
		IS(cuMemAlloc_v2(&plain, 2 * GIB), CUDA_ERROR_OUT_OF_MEMORY);
		OK(cuMemFreeAsync(p, NULL));
		OK(cuCtxSynchronize());
		CHECK(used() == 3 * GIB, "kind %d: the pool keeps 3 GiB, charged %lu", kind, (unsigned long)used());
		if (kind == 0)
			OK(cuMemAlloc_v2(&plain, 2 * GIB));
		if (kind == 1)
			OK(cuMemAllocManaged(&plain, 2 * GIB, CU_MEM_ATTACH_GLOBAL));
		if (kind == 2)
			OK(cuMemCreate(&handle, 2 * GIB, &prop, 0));
		CHECK(used() == 2 * GIB && held(0) <= 2 * GIB, "kind %d: charged %lu, held %lu", kind,
		      (unsigned long)used(), (unsigned long)held(0));
		OK(kind == 2 ? cuMemRelease(handle) : cuMemFree_v2(plain));
	}
	threshold = 0;
	OK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
}

static void cross_frees(void)
{
	CUdeviceptr p;
	CUstream stream;
	OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	OK(cuMemAllocAsync(&p, 5 * MIB, stream));
	OK(cuStreamSynchronize(stream));
	OK(cuMemFree_v2(p));
	IS(cuMemFree_v2(p), CUDA_ERROR_INVALID_VALUE);
	OK(cuMemAlloc_v2(&p, 5 * MIB));
	CUresult error = cuMemFreeAsync(p, stream);
	if (error != CUDA_SUCCESS) /* the driver's answer, whatever it is; then the block is still there */
		OK(cuMemFree_v2(p));
	OK(cuStreamSynchronize(stream));
	OK(cuStreamDestroy_v2(stream));
	CHECK(used() == 0 && held(0) == 0, "charged %lu, held %lu", (unsigned long)used(), (unsigned long)held(0));
}

static void rounds(void)
{
	CUdeviceptr live[16] = {0};
	CUmemoryPool pool;
	unsigned seed = 1;
	OK(cuDeviceGetDefaultMemPool(&pool, 0));
	for (int i = 0; i < 5000; i++) {
		unsigned at = (unsigned)rand_r(&seed) % 16;
		if (live[at] != 0)
			OK(cuMemFreeAsync(live[at], NULL));
		OK(cuMemAllocAsync(&live[at], 1 + (size_t)rand_r(&seed) % (25 * MIB), NULL));
		if (i % 100 == 0)
			OK(cuMemPoolTrimTo(pool, 0));
		if (i % 10 == 0)
			CHECK(used() >= held(0) && used() <= held(0) + POOL_GRANULE, "round %d: charged %lu, held %lu",
			      i, (unsigned long)used(), (unsigned long)held(0));
	}
	for (int i = 0; i < 16; i++)
		if (live[i] != 0)
			OK(cuMemFreeAsync(live[i], NULL));
	OK(cuCtxSynchronize());
	CHECK(used() == 0, "%lu bytes stay charged", (unsigned long)used());
}

/* A loop that allocates more than half of the limit on one stream without ever waiting. */
static void reuse(void)
{
	CUdeviceptr p;
	for (int i = 0; i < 50; i++) {
		OK(cuMemAllocAsync(&p, 3 * GIB, NULL));
		OK(cuMemFreeAsync(p, NULL));
	}
	OK(cuCtxSynchronize());
	CHECK(used() == 0, "%lu bytes stay charged", (unsigned long)used());
}

static void no_pool(void)
{
	CUdeviceptr p;
	IS(cuMemAllocFromPoolAsync(&p, 4096, (CUmemoryPool)&p, NULL), CUDA_ERROR_INVALID_VALUE);
}

int main(void)
{
	start(0);
	chunks();
	kept_pool();
	kept_pool_gives_way();
	cross_frees();
	rounds();
	reuse();
	CHECK(peak() <= 4 * GIB, "%lu bytes were held", (unsigned long)peak());
	no_pool();
	return 0;
}
