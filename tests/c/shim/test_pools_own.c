/* D1, C001: pools of a program's own under a limit of 4 GiB. Each is charged by what it has reserved, to the granule; what
 * any of them keeps unused gives way to the others and to every other kind of memory; one that is destroyed while blocks
 * live stays charged until the last of them is free; pools on the host cost nothing; graph memory that nobody uses gives
 * way too.
 */
#include "shim_test.h"

static CUmemoryPool make(CUmemLocationType where, CUmemAllocationType kind)
{
	CUmemoryPool pool;
	CUmemPoolProps props = {.allocType = kind};
	props.location.type = where;
	OK(cuMemPoolCreate(&pool, &props));
	return pool;
}

static CUmemoryPool make_own(void)
{
	return make(CU_MEM_LOCATION_TYPE_DEVICE, CU_MEM_ALLOCATION_TYPE_PINNED);
}

static void keep(CUmemoryPool pool, cuuint64_t bytes)
{
	OK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &bytes));
}

static void same(const char *when)
{
	CHECK(used() == held(0), "%s: charged %lu, held %lu", when, (unsigned long)used(), (unsigned long)held(0));
}

/* The case of the defect: 64 MiB at a time, far past the limit. */
static void limit_holds(void)
{
	CUdeviceptr p[128];
	CUmemoryPool pool = make_own();
	int n = 0;
	CUresult error = CUDA_SUCCESS;
	while (n < 128 && (error = cuMemAllocFromPoolAsync(&p[n], 64 * MIB, pool, NULL)) == CUDA_SUCCESS)
		same("growing"), n++;
	CHECK(error == CUDA_ERROR_OUT_OF_MEMORY && n == 64, "%d blocks of 64 MiB fit into 4 GiB, then error %d", n,
	      error);
	while (n > 0)
		OK(cuMemFreeAsync(p[--n], NULL)); /* a free of such a block is a free */
	OK(cuCtxSynchronize());
	CHECK(used() == 0 && held(0) == 0, "charged %lu, held %lu", (unsigned long)used(), (unsigned long)held(0));
	OK(cuMemPoolDestroy(pool));
}

static void current_pool(void)
{
	CUdeviceptr p;
	CUmemoryPool pool = make_own(), now;
	OK(cuDeviceSetMemPool(0, pool));
	OK(cuMemAllocAsync(&p, 100 * MIB, NULL));
	CHECK(used() == 128 * MIB, "charged %lu", (unsigned long)used());
	same("current");
	OK(cuMemPoolDestroy(pool));
	OK(cuDeviceGetMemPool(&now, 0));
	CHECK(now != pool, "a destroyed pool is not current");
	IS(cuDeviceSetMemPool(0, pool), CUDA_ERROR_INVALID_VALUE);
	IS(cuMemAllocFromPoolAsync(&p, 4096, pool, NULL), CUDA_ERROR_INVALID_VALUE);
	IS(cuMemPoolDestroy(pool), CUDA_ERROR_INVALID_VALUE);
	same("destroyed");
	CHECK(used() == 128 * MIB, "its block lives, charged %lu", (unsigned long)used());
	OK(cuMemFreeAsync(p, NULL));
	OK(cuCtxSynchronize());
	CHECK(used() == 0 && held(0) == 0, "charged %lu, held %lu", (unsigned long)used(), (unsigned long)held(0));
}

static int gate[2];

static void CUDA_CB hold(void *unused)
{
	char byte;
	(void)unused;
	CHECK(read(gate[0], &byte, 1) == 1, "gate");
}

/* The program is rid of the pool, but its last free has not run: until then the memory is the card's loss. */
static void destroyed_pending(void)
{
	CUdeviceptr p, q;
	CUstream stream;
	CUmemoryPool pool = make_own();
	OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	OK(cuMemAllocFromPoolAsync(&p, 3 * GIB, pool, stream));
	OK(cuLaunchHostFunc(stream, hold, NULL));
	OK(cuMemFreeAsync(p, stream));
	OK(cuMemPoolDestroy(pool));
	CHECK(used() == 3 * GIB, "charged %lu", (unsigned long)used());
	IS(cuMemAlloc_v2(&q, 2 * GIB), CUDA_ERROR_OUT_OF_MEMORY);
	CHECK(write(gate[1], "x", 1) == 1, "open");
	OK(cuStreamSynchronize(stream));
	OK(cuMemAlloc_v2(&q, 4 * GIB));
	OK(cuMemFree_v2(q));
	CHECK(used() == 0 && held(0) == 0, "charged %lu, held %lu", (unsigned long)used(), (unsigned long)held(0));
	OK(cuStreamDestroy_v2(stream));
}

static void gives_way(void)
{
	CUdeviceptr p;
	CUmemoryPool pool[3];
	for (int i = 0; i < 3; i++) {
		pool[i] = make_own();
		keep(pool[i], UINT64_MAX);
		OK(cuMemAllocFromPoolAsync(&p, GIB, pool[i], NULL));
		OK(cuMemFreeAsync(p, NULL));
	}
	OK(cuCtxSynchronize());
	CHECK(used() == 3 * GIB, "three pools keep a GiB each, charged %lu", (unsigned long)used());
	OK(cuMemAllocFromPoolAsync(&p, 3 * GIB + 512 * MIB, pool[0], NULL));
	same("one pool has what the others kept");
	OK(cuMemFreeAsync(p, NULL));
	OK(cuCtxSynchronize());
	OK(cuMemAlloc_v2(&p, 4 * GIB));
	same("plain memory has it all");
	OK(cuMemFree_v2(p));
	for (int i = 0; i < 3; i++)
		OK(cuMemPoolDestroy(pool[i]));
	CHECK(used() == 0 && held(0) == 0, "charged %lu, held %lu", (unsigned long)used(), (unsigned long)held(0));
}

static void graphs_give_way(void)
{
	CUgraph graph;
	CUgraphExec exec;
	CUgraphNode node, end;
	CUdeviceptr p;
	CUDA_MEM_ALLOC_NODE_PARAMS params = {.bytesize = 3 * GIB};
	params.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
	params.poolProps.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	OK(cuGraphCreate(&graph, 0));
	OK(cuGraphAddMemAllocNode(&node, graph, NULL, 0, &params));
	OK(cuGraphAddMemFreeNode(&end, graph, &node, 1, params.dptr));
	OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
	for (int i = 0; i < 2; i++) {
		OK(cuGraphLaunch(exec, NULL));
		OK(cuCtxSynchronize());
		CHECK(used() == 3 * GIB, "graphs keep 3 GiB, charged %lu", (unsigned long)used());
		OK(i ? cuMemAlloc_v2(&p, 2 * GIB) : cuMemAllocManaged(&p, 2 * GIB, CU_MEM_ATTACH_GLOBAL));
		same("graphs gave way");
		IS(cuGraphLaunch(exec, NULL), CUDA_ERROR_OUT_OF_MEMORY);
		OK(cuMemFree_v2(p));
	}
	OK(cuGraphExecDestroy(exec));
	OK(cuGraphDestroy(graph));
	OK(cuDeviceGraphMemTrim(0));
}

static void elsewhere(void)
{
	CUdeviceptr p;
	CUmemoryPool pool = make(CU_MEM_LOCATION_TYPE_HOST, CU_MEM_ALLOCATION_TYPE_PINNED);
	CUmemLocation none = {.type = CU_MEM_LOCATION_TYPE_NONE};
	OK(cuMemAllocFromPoolAsync(&p, 8 * GIB, pool, NULL));
	CHECK(used() == 0, "memory of the host is charged: %lu", (unsigned long)used());
	OK(cuMemFreeAsync(p, NULL));
	OK(cuMemPoolDestroy(pool));
	pool = make(CU_MEM_LOCATION_TYPE_NONE, CU_MEM_ALLOCATION_TYPE_MANAGED);
	for (int i = 0; i < 2; i++) {
		if (i == 1)
			OK(cuMemGetDefaultMemPool(&pool, &none, CU_MEM_ALLOCATION_TYPE_MANAGED));
		IS(cuMemAllocFromPoolAsync(&p, 5 * GIB, pool, NULL), CUDA_ERROR_OUT_OF_MEMORY);
		OK(cuMemAllocFromPoolAsync(&p, GIB, pool, NULL));
		CHECK(used() == GIB, "managed memory is charged where it may come: %lu", (unsigned long)used());
		OK(cuMemFreeAsync(p, NULL));
		OK(cuCtxSynchronize());
		CHECK(used() == 0, "%lu bytes stay charged", (unsigned long)used());
		if (i == 0)
			OK(cuMemPoolDestroy(pool));
	}
}

static void rounds(void)
{
	CUdeviceptr live[16] = {0};
	CUmemoryPool pool[4] = {make_own(), make_own(), make_own(), make_own()};
	unsigned seed = 1;
	keep(pool[1], 100 * MIB);
	for (int i = 0; i < 4000; i++) {
		unsigned at = (unsigned)rand_r(&seed) % 16, which = (unsigned)rand_r(&seed) % 4;
		if (live[at] != 0)
			OK(rand_r(&seed) % 8 ? cuMemFreeAsync(live[at], NULL) : cuMemFree_v2(live[at]));
		OK(cuMemAllocFromPoolAsync(&live[at], 1 + (size_t)rand_r(&seed) % (25 * MIB), pool[which], NULL));
		if (i % 50 == 0) { /* blocks of it live on */
			OK(cuMemPoolDestroy(pool[which]));
			pool[which] = make_own();
		}
		if (i % 10 == 0)
			CHECK(used() >= held(0) && used() <= held(0) + POOL_GRANULE, "round %d: charged %lu, held %lu",
			      i, (unsigned long)used(), (unsigned long)held(0));
	}
	for (int i = 0; i < 16; i++)
		if (live[i] != 0)
			OK(cuMemFreeAsync(live[i], NULL));
	for (int i = 0; i < 4; i++)
		OK(cuMemPoolDestroy(pool[i]));
	OK(cuCtxSynchronize());
	CHECK(used() == 0 && held(0) == 0, "charged %lu, held %lu", (unsigned long)used(), (unsigned long)held(0));
}

int main(void)
{
	CHECK(pipe(gate) == 0, "pipe");
	start(0);
	limit_holds();
	current_pool();
	destroyed_pending();
	gives_way();
	graphs_give_way();
	elsewhere();
	rounds();
	CHECK(peak() <= 4 * GIB, "%lu bytes were held", (unsigned long)peak());
	return 0;
}
