/* C003, C050, K01: memory of graphs under a limit: charged from the launch until the trim, refused at the launch without
 * a call of the driver, freed by the ordinary calls, never more than the limit on the card; loops of launches at the
 * limit; and captures, which no call of ours may break.
 */
#include "shim_test.h"

#include <pthread.h>

#define LIMIT (4 * GIB)

static CUstream stream, other;

struct memory_graph {
	CUgraph graph;
	CUgraphExec exec;
	CUdeviceptr p;
};

static CUgraphNode alloc_node(CUgraph graph, uint64_t bytes, CUdeviceptr *p, bool generic)
{
	CUgraphNode node;
	CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_MEM_ALLOC};
	params.alloc.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
	params.alloc.poolProps.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	params.alloc.bytesize = bytes;
	if (generic)
		OK(cuGraphAddNode_v2(&node, graph, NULL, NULL, 0, &params));
	else
		OK(cuGraphAddMemAllocNode(&node, graph, NULL, 0, (CUDA_MEM_ALLOC_NODE_PARAMS *)&params.alloc));
	*p = params.alloc.dptr;
	return node;
}

/* A graph that allocates, and frees again where `inside`. */
static struct memory_graph make(uint64_t bytes, bool inside)
{
	struct memory_graph m;
	CUgraphNode free_node;
	OK(cuGraphCreate(&m.graph, 0));
	CUgraphNode node = alloc_node(m.graph, bytes, &m.p, inside);
	if (inside)
		OK(cuGraphAddMemFreeNode(&free_node, m.graph, &node, 1, m.p));
	OK(cuGraphInstantiateWithFlags(&m.exec, m.graph, 0));
	return m;
}

static void destroy(struct memory_graph *m)
{
	OK(cuGraphExecDestroy(m->exec));
	OK(cuGraphDestroy(m->graph));
}

/* Charged is what the card holds, and what the driver says that graphs hold. */
static void charged(uint64_t bytes)
{
	cuuint64_t reserved;
	OK(cuStreamSynchronize(stream));
	OK(cuDeviceGetGraphMemAttribute(0, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &reserved));
	CHECK(used() == bytes && held(0) == bytes && reserved == bytes,
	      "%lu bytes charged, %lu held, %lu reserved, must be %lu", (unsigned long)used(), (unsigned long)held(0),
	      (unsigned long)reserved, (unsigned long)bytes);
}

static void trim(void)
{
	OK(cuDeviceGraphMemTrim(0));
	charged(0);
}

static uint64_t taking_calls(void)
{
	return partage_sim_calls("cuGraphLaunch") + partage_sim_calls("cuGraphUpload");
}

static void life(void)
{
	struct memory_graph m[3];
	for (int i = 0; i < 3; i++)
		m[i] = make(100 * MIB, false);
	charged(0);
	for (int round = 0; round < 3; round++) {
		for (int i = 0; i < 3; i++)
			OK(cuGraphLaunch(m[i].exec, stream));
		charged(320 * MIB);
		IS(cuGraphLaunch(m[0].exec, stream), CUDA_ERROR_INVALID_VALUE);
		OK(cuMemFree_v2(m[0].p));
		OK(cuMemFreeAsync(m[1].p, stream));
		OK(cuMemFree_v2(m[2].p));
		IS(cuMemFree_v2(m[2].p), CUDA_ERROR_INVALID_VALUE);
		charged(320 * MIB); /* kept for the next launch */
		if (round == 1)
			trim();
	}
	trim();
	OK(cuGraphUpload(m[0].exec, stream));
	charged(128 * MIB);
	for (int i = 0; i < 3; i++)
		destroy(&m[i]);
	trim();
}

/* Past the limit nothing reaches the driver; when there is room again it does. */
static void refusals(void)
{
	CUdeviceptr most;
	CUgraphExec exec;
	struct memory_graph m = make(100 * MIB, false), big;
	OK(cuMemAlloc_v2(&most, LIMIT - 64 * MIB));
	uint64_t before = taking_calls();
	IS(cuGraphLaunch(m.exec, stream), CUDA_ERROR_OUT_OF_MEMORY);
	IS(cuGraphUpload(m.exec, stream), CUDA_ERROR_OUT_OF_MEMORY);
	CHECK(taking_calls() == before, "a refused launch reached the driver");
	CHECK(used() == LIMIT - 64 * MIB, "%lu bytes stay charged", (unsigned long)used());
	OK(cuGraphExecDestroy(m.exec));
	CUDA_GRAPH_INSTANTIATE_PARAMS params = {.flags = CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD, .hUploadStream = stream};
	before = partage_sim_calls("cuGraphInstantiateWithParams");
	IS(cuGraphInstantiateWithParams(&exec, m.graph, &params), CUDA_ERROR_OUT_OF_MEMORY);
	CHECK(partage_sim_calls("cuGraphInstantiateWithParams") == before, "a refused upload reached the driver");
	OK(cuMemFree_v2(most));
	OK(cuGraphInstantiateWithParams(&m.exec, m.graph, &params));
	charged(128 * MIB);
	OK(cuGraphLaunch(m.exec, stream));
	charged(128 * MIB);
	OK(cuMemAlloc_v2(&most, LIMIT - 128 * MIB));
	IS(cuMemAlloc_v2(&(CUdeviceptr){0}, 1), CUDA_ERROR_OUT_OF_MEMORY);
	OK(cuMemFree_v2(most));
	OK(cuMemFree_v2(m.p));
	destroy(&m);
	trim();
	big = make(LIMIT + GIB, false);
	IS(cuGraphLaunch(big.exec, stream), CUDA_ERROR_OUT_OF_MEMORY);
	destroy(&big);
	charged(0);
}

static void wait_at(void *gate)
{
	char byte;
	CHECK(read(*(int *)gate, &byte, 1) == 1, "gate");
}

/* At the limit a program goes on with what it has: the same graph in a loop while it is in flight, and several that
 * share memory in one stream. */
static void loops_at_the_limit(void)
{
	CUdeviceptr most;
	int gate[2];
	struct memory_graph a = make(100 * MIB, true), b = make(60 * MIB, true), c = make(128 * MIB, true);
	struct memory_graph d = make(130 * MIB, true);
	CHECK(pipe(gate) == 0, "pipe");
	OK(cuGraphLaunch(a.exec, stream));
	charged(128 * MIB);
	OK(cuMemAlloc_v2(&most, LIMIT - 128 * MIB));
	uint64_t asked = partage_sim_calls("cuDeviceGetGraphMemAttribute");
	OK(cuLaunchHostFunc(stream, wait_at, &gate[0]));
	for (int i = 0; i < 100; i++)
		OK(cuGraphLaunch(a.exec, stream));
	CHECK(partage_sim_calls("cuDeviceGetGraphMemAttribute") == asked, "a loop of launches asked the driver");
	CHECK(write(gate[1], "g", 1) == 1, "gate");
	OK(cuStreamSynchronize(stream));
	for (int i = 0; i < 10; i++) { /* one after the other */
		OK(cuGraphLaunch(i % 2 ? b.exec : c.exec, stream));
		OK(cuStreamSynchronize(stream));
	}
	IS(cuGraphLaunch(d.exec, stream), CUDA_ERROR_OUT_OF_MEMORY);
	OK(cuGraphLaunch(c.exec, stream));
	CHECK(used() == LIMIT && peak() == LIMIT, "%lu charged, %lu held", (unsigned long)used(),
	      (unsigned long)peak());
	OK(cuStreamSynchronize(stream));
	OK(cuMemFree_v2(most));
	destroy(&a);
	destroy(&b);
	destroy(&c);
	destroy(&d);
	trim();
}

/* Stream-ordered memory inside a capture becomes memory of the graph. */
static void captured(void)
{
	CUdeviceptr p, q;
	CUgraph graph;
	CUgraphExec exec;
	CUmemoryPool pool;
	OK(cuDeviceGetDefaultMemPool(&pool, 0));
	OK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
	OK(cuMemAllocAsync(&p, 64 * MIB, stream));
	OK(cuMemAllocFromPoolAsync(&q, 2 * LIMIT, pool, stream));
	OK(cuMemFreeAsync(p, stream));
	OK(cuStreamEndCapture(stream, &graph));
	OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
	IS(cuGraphLaunch(exec, stream), CUDA_ERROR_OUT_OF_MEMORY);
	OK(cuGraphExecDestroy(exec));
	OK(cuGraphDestroy(graph));
	charged(0);
	OK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
	OK(cuMemAllocAsync(&p, 64 * MIB, stream));
	OK(cuMemsetD8Async(p, 1, 64 * MIB, stream));
	OK(cuStreamEndCapture(stream, &graph));
	OK(cuGraphInstantiateWithFlags(&exec, graph, CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH));
	for (int i = 0; i < 5; i++)
		OK(cuGraphLaunch(exec, stream));
	charged(64 * MIB);
	OK(cuMemFreeAsync(p, stream));
	OK(cuGraphExecDestroy(exec));
	OK(cuGraphDestroy(graph));
	OK(cuStreamSynchronize(stream));
	trim();
}

/* A child that was moved into its parent is measured with it. */
static void moved_child(void)
{
	struct memory_graph m = {0};
	CUgraph child;
	CUgraphNode node;
	OK(cuGraphCreate(&m.graph, 0));
	OK(cuGraphCreate(&child, 0));
	alloc_node(child, 200 * MIB, &m.p, true);
	CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_GRAPH};
	params.graph.graph = child;
	params.graph.ownership = CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE;
	OK(cuGraphAddNode_v2(&node, m.graph, NULL, NULL, 0, &params));
	OK(cuGraphInstantiateWithFlags(&m.exec, m.graph, 0));
	OK(cuGraphLaunch(m.exec, stream));
	charged(224 * MIB);
	OK(cuMemFree_v2(m.p));
	destroy(&m);
	trim();
}

/* C050: nothing that we do breaks a capture, in this thread or from another, even with frees that are still pending. */
static void unbroken_captures(void)
{
	static const char ptx[] = ".version 8.0\n.target sm_70\n.address_size 64\n.visible .entry nothing() { ret; }\n";
	CUmodule module;
	CUfunction nothing;
	CUgraph graph;
	CUgraphExec exec;
	CUdeviceptr p, q;
	size_t nodes = 0;
	int gate[2];
	CHECK(pipe(gate) == 0, "pipe");
	OK(cuModuleLoadData(&module, ptx));
	OK(cuModuleGetFunction(&nothing, module, "nothing"));
	OK(cuMemAlloc_v2(&p, 64 * MIB));
	OK(cuLaunchHostFunc(other, wait_at, &gate[0]));
	OK(cuMemFreeAsync(p, other)); /* watched by an event of ours */
	OK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
	for (int i = 0; i < 1000; i++) {
		OK(cuLaunchKernel(nothing, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL));
		if (i % 100 == 0) {
			OK(cuMemAllocAsync(&q, MIB, other)); /* another stream: real memory, now */
			OK(cuMemFreeAsync(q, other));
			CHECK(used() >= 64 * MIB, "the pending free was not charged");
		}
	}
	CUstreamCaptureStatus status;
	OK(cuStreamIsCapturing(stream, &status));
	CHECK(status == CU_STREAM_CAPTURE_STATUS_ACTIVE, "the capture was broken");
	OK(cuStreamEndCapture(stream, &graph));
	OK(cuGraphGetNodes(graph, NULL, &nodes));
	CHECK(nodes == 1000, "%zu nodes: a call of ours was captured", nodes);
	OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
	OK(cuGraphLaunch(exec, stream));
	OK(cuStreamSynchronize(stream));
	CHECK(write(gate[1], "g", 1) == 1, "gate");
	OK(cuStreamSynchronize(other));
	OK(cuGraphExecDestroy(exec));
	OK(cuGraphDestroy(graph));
	charged(0);
}

/* ---- threads ------------------------------------------------------------------------------------------------------ */

static CUcontext context;

static void *launcher(void *arg)
{
	unsigned seed = (unsigned)(uintptr_t)arg;
	CUstream own;
	struct memory_graph m[4];
	OK(cuCtxSetCurrent(context));
	OK(cuStreamCreate(&own, CU_STREAM_NON_BLOCKING));
	for (int i = 0; i < 4; i++)
		m[i] = make((1 + (uint64_t)rand_r(&seed) % 400) * MIB, true);
	for (int i = 0; i < 300; i++) {
		int k = rand_r(&seed) % 4;
		CUresult error = cuGraphLaunch(m[k].exec, own);
		CHECK(error == CUDA_SUCCESS || error == CUDA_ERROR_OUT_OF_MEMORY, "launch: %d", error);
		if (rand_r(&seed) % 16 == 0)
			OK(cuDeviceGraphMemTrim(0));
		if (rand_r(&seed) % 8 == 0)
			OK(cuStreamSynchronize(own));
		if (rand_r(&seed) % 32 == 0) {
			destroy(&m[k]);
			m[k] = make((1 + (uint64_t)rand_r(&seed) % 400) * MIB, true);
		}
		CHECK(held(0) <= LIMIT, "%lu bytes are held", (unsigned long)held(0));
	}
	OK(cuStreamSynchronize(own));
	for (int i = 0; i < 4; i++)
		destroy(&m[i]);
	return NULL;
}

static void threads(void)
{
	pthread_t thread[8];
	for (uintptr_t i = 0; i < 8; i++)
		CHECK(pthread_create(&thread[i], NULL, launcher, (void *)(i + 1)) == 0, "no thread");
	for (int i = 0; i < 8; i++)
		pthread_join(thread[i], NULL);
	trim();
}

int main(void)
{
	context = start(0);
	OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	OK(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
	life();
	refusals();
	loops_at_the_limit();
	captured();
	moved_child();
	unbroken_captures();
	threads();
	CHECK(peak() <= LIMIT, "%lu bytes were held", (unsigned long)peak());
	return 0;
}
