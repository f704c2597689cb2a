/* Stream-ordered memory. We test: the pool grows by its granule, keeps what the threshold says and gives the rest
 * back at a synchronisation and by trim, a loop of allocate and free in one stream reuses its room while nothing has
 * run yet, memory is not reused by another stream before its free has run, cross frees, attributes, a full card and
 * what then gives way, capture. */
#include "memory_test.h"

#define POOL_GRANULE (32 * MIB)

static uint64_t before;
static CUmemoryPool pool;

static uint64_t attribute(CUmemPool_attribute which)
{
	cuuint64_t value = 0;

	OK(cuMemPoolGetAttribute(pool, which, &value));
	return value;
}

static void set(CUmemPool_attribute which, cuuint64_t value)
{
	OK(cuMemPoolSetAttribute(pool, which, &value));
}

static void grows_and_returns(CUstream stream)
{
	CUdeviceptr p, q;

	OK(cuMemAllocAsync(&p, 1000, stream));
	CHECK(held() == before + POOL_GRANULE, "the pool grows by its granule: %lu", held() - before);
	CHECK(attribute(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) == POOL_GRANULE, "reserved");
	CHECK(attribute(CU_MEMPOOL_ATTR_USED_MEM_CURRENT) == 1024, "used %lu",
	      attribute(CU_MEMPOOL_ATTR_USED_MEM_CURRENT));
	OK(cuMemAllocAsync(&q, 40 * MIB, stream));
	CHECK(held() == before + 3 * POOL_GRANULE, "40 MiB need two more: %lu", held() - before);
	OK(cuMemFreeAsync(q, stream));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemFreeAsync(q, stream));
	OK(cuStreamSynchronize(stream));
	CHECK(held() == before + POOL_GRANULE, "threshold 0: free chunks go back: %lu", held() - before);
	OK(cuMemFreeAsync(p, stream));
	OK(cuCtxSynchronize());
	CHECK(held() == before, "all back: %lu", held() - before);
	CHECK(attribute(CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH) == 3 * POOL_GRANULE, "high-water mark");
	set(CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, 0);
	CHECK(attribute(CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH) == 0, "set back");
	cuuint64_t one = 1;
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &one));
}

static void threshold_and_trim(CUstream stream)
{
	CUdeviceptr p[4];

	set(CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, UINT64_MAX);
	for (int i = 0; i < 4; i++)
		OK(cuMemAllocAsync(&p[i], POOL_GRANULE, stream));
	for (int i = 0; i < 4; i++)
		OK(cuMemFreeAsync(p[i], stream));
	OK(cuStreamSynchronize(stream));
	CHECK(held() == before + 4 * POOL_GRANULE, "kept: %lu", held() - before);
	OK(cuMemPoolTrimTo(pool, 2 * POOL_GRANULE + MIB));
	CHECK(held() == before + 3 * POOL_GRANULE, "at least what is to be kept remains: %lu", held() - before);
	OK(cuMemPoolTrimTo(pool, 2 * POOL_GRANULE));
	CHECK(held() == before + 2 * POOL_GRANULE, "trimmed to half: %lu", held() - before);
	set(CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, POOL_GRANULE);
	OK(cuStreamSynchronize(stream));
	CHECK(held() == before + POOL_GRANULE, "down to the threshold: %lu", held() - before);
	set(CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, 0);
	OK(cuMemPoolTrimTo(pool, 0));
	CHECK(held() == before, "trimmed to nothing: %lu", held() - before);
}

static int gate[2];

static void CUDA_CB hold(void *unused)
{
	char byte;

	(void)unused;
	CHECK(read(gate[0], &byte, 1) == 1, "gate");
}

static void stream_order(CUstream stream, CUstream other)
{
	CUdeviceptr p, q, first;

	OK(cuMemAllocAsync(&first, MIB, stream));
	OK(cuLaunchHostFunc(stream, hold, NULL));
	OK(cuMemFreeAsync(first, stream));
	for (int i = 0; i < 200; i++) {
		OK(cuMemAllocAsync(&p, MIB, stream));
		CHECK(p == first, "the same stream has the room at once: %llx, %llx", p, first);
		OK(cuMemFreeAsync(p, stream));
	}
	CHECK(held() == before + POOL_GRANULE, "200 pending frees take one block's room: %lu", held() - before);
	OK(cuMemAllocAsync(&q, MIB, other));
	CHECK(q != first, "another stream must not have it before the free has run");
	OK(cuMemFreeAsync(q, other));
	CHECK(write(gate[1], "x", 1) == 1, "open");
	OK(cuCtxSynchronize());
	CHECK(held() == before, "all back: %lu", held() - before);
}

static void cross_frees(CUstream stream)
{
	CUmemoryPool of;
	CUdeviceptr p;

	OK(cuMemAllocAsync(&p, MIB, stream));
	OK(cuPointerGetAttribute(&of, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, p));
	CHECK(of == pool, "the pointer knows its pool");
	OK(cuMemFree(p));
	CHECK(attribute(CU_MEMPOOL_ATTR_USED_MEM_CURRENT) == 0, "cuMemFree of a pool's memory");
	OK(cuStreamSynchronize(stream));
	CHECK(held() == before, "and back at the next synchronisation: %lu", held() - before);
	OK(cuMemAlloc(&p, 3 * MIB));
	OK(cuMemFreeAsync(p, stream));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemFree(p));
	OK(cuStreamSynchronize(stream));
	CHECK(held() == before, "cuMemFreeAsync of plain memory: %lu", held() - before);
}

/* cuMemFree of a pool's block does not wait for what is queued. */
static void free_without_waiting(CUstream stream)
{
	CUdeviceptr p;

	OK(cuMemAllocAsync(&p, MIB, stream));
	OK(cuLaunchHostFunc(stream, hold, NULL));
	OK(cuMemFree(p));
	GIVES(CUDA_ERROR_NOT_READY, cuStreamQuery(stream));
	CHECK(write(gate[1], "x", 1) == 1, "open");
	OK(cuCtxSynchronize());
	CHECK(held() == before, "all back: %lu", held() - before);
}

static void full_card(CUstream stream)
{
	CUdeviceptr p, q;

	OK(cuMemAlloc(&p, free_bytes() / GRANULE * GRANULE - POOL_GRANULE));
	OK(cuMemAllocAsync(&q, POOL_GRANULE, stream));
	OK(cuMemFreeAsync(q, stream));
	OK(cuMemAllocAsync(&q, 16 * MIB, stream));
	GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuMemAllocAsync(&q, POOL_GRANULE, stream));
	OK(cuCtxSynchronize());
	OK(cuMemFree(p));
}

/* The threshold is a hint: what a pool keeps unused serves whatever the process asks for next on a full card. */
static void kept_memory_serves_others(CUstream stream)
{
	CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
	                            .location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}}};
	CUmemGenericAllocationHandle handle;
	CUdeviceptr pool_block, p;
	size_t most = free_bytes() / POOL_GRANULE * POOL_GRANULE,
	       base = attribute(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);

	set(CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, UINT64_MAX);
	for (int i = 0; i < 2; i++) {
		OK(cuMemAllocAsync(&pool_block, most, stream));
		GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc(&p, POOL_GRANULE)); /* in use */
		OK(cuMemFreeAsync(pool_block, stream));
		OK(cuStreamSynchronize(stream));
		CHECK(attribute(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) == base + most, "round %d: kept", i);
		if (i == 0) {
			OK(cuMemAlloc(&p, most));
			OK(cuMemFree(p));
		} else {
			OK(cuMemCreate(&handle, most, &prop, 0));
			OK(cuMemRelease(handle));
		}
		CHECK(attribute(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) == base, "round %d: gave way", i);
	}
	set(CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, 0);
}

/* A capture takes an address, not memory; what was allocated outside is not its to free. */
static void capture(CUstream stream)
{
	CUdeviceptr p, q;
	CUgraph graph;
	uint64_t now;

	OK(cuMemAllocAsync(&q, MIB, stream));
	now = held();
	OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
	OK(cuMemAllocAsync(&p, 64 * MIB, stream));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemFreeAsync(q, stream));
	OK(cuMemFreeAsync(p, stream));
	OK(cuStreamEndCapture(stream, &graph));
	CHECK(held() == now, "capturing took %lu bytes", held() - now);
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemFreeAsync(p, stream));
	OK(cuGraphDestroy(graph));
	OK(cuMemFreeAsync(q, stream));
	OK(cuStreamSynchronize(stream));
}

int main(void)
{
	CUstream stream, other;
	CUdeviceptr p;

	CHECK(pipe2(gate, O_CLOEXEC) == 0, "pipe");
	CUcontext context = start();
	OK(cuDeviceGetDefaultMemPool(&pool, 0));
	OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	OK(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
	before = held();
	grows_and_returns(stream);
	threshold_and_trim(stream);
	stream_order(stream, other);
	cross_frees(stream);
	free_without_waiting(stream);
	full_card(stream);
	kept_memory_serves_others(stream);
	capture(stream);
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemAllocAsync(&p, 0, stream));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemAllocFromPoolAsync(&p, 16, (CUmemoryPool)&p, stream));
	OK(cuMemAllocFromPoolAsync(&p, 16, pool, stream));
	OK(cuCtxSetCurrent(NULL));
	(void)context;
	OK(cuDevicePrimaryCtxRelease(0));
	CHECK(held() == 0, "the last context takes the pool along: %lu", held());
	return 0;
}
