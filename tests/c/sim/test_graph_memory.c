/* Memory that graphs allocate: fixed addresses, physical memory from launch or upload to trim, frees by the graph, by
 * another, by the program, by the next launch; a full card; and captured allocations.
 */
#include "memory_test.h"

#include <semaphore.h>

#define STEP (32 * MIB) /* graphs' memory grows by this */

static CUstream stream, other;
static uint64_t before;

static CUgraph new_graph(void)
{
	CUgraph graph;
	OK(cuGraphCreate(&graph, 0));
	return graph;
}

static CUgraphNode alloc_node(CUgraph graph, const CUgraphNode *from, size_t count, uint64_t bytes, CUdeviceptr *p)
{
	CUgraphNode node;
	CUDA_MEM_ALLOC_NODE_PARAMS params = {.bytesize = bytes};
	params.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
	params.poolProps.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	OK(cuGraphAddMemAllocNode(&node, graph, from, count, &params));
	*p = params.dptr;
	return node;
}

static CUgraphNode fill_node(CUgraph graph, const CUgraphNode *from, CUdeviceptr p, unsigned char value)
{
	CUgraphNode node;
	CUDA_MEMSET_NODE_PARAMS params = {.dst = p, .value = value, .elementSize = 1, .width = 4096, .height = 1};
	CUcontext context;
	OK(cuCtxGetCurrent(&context));
	OK(cuGraphAddMemsetNode(&node, graph, from, 1, &params, context));
	return node;
}

static CUgraphExec instance(CUgraph graph, unsigned long long flags)
{
	CUgraphExec exec;
	OK(cuGraphInstantiate(&exec, graph, flags));
	return exec;
}

static void launch(CUgraphExec exec)
{
	OK(cuGraphLaunch(exec, stream));
	OK(cuStreamSynchronize(stream));
}

static uint64_t attribute(CUgraphMem_attribute which)
{
	cuuint64_t value;
	OK(cuDeviceGetGraphMemAttribute(0, which, &value));
	return value;
}

/* What the card has lost, and what the driver says of it. */
static void expect(uint64_t used, uint64_t reserved)
{
	CHECK(attribute(CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT) == used, "used %lu, must be %lu",
	      attribute(CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT), used);
	CHECK(attribute(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT) == reserved, "reserved %lu, must be %lu",
	      attribute(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT), reserved);
	CHECK(held() == before + reserved, "the card lost %lu, must be %lu", held() - before, reserved);
}

static void trim_all(void)
{
	OK(cuDeviceGraphMemTrim(0));
	expect(0, 0);
}

/* C003: from the node to the ordinary free. */
static void life(void)
{
	CUdeviceptr p;
	unsigned char byte;
	CUgraph graph = new_graph();
	CUgraphNode node = alloc_node(graph, NULL, 0, 40 * MIB, &p);
	fill_node(graph, &node, p, 5);
	CUgraphExec exec = instance(graph, 0);
	expect(0, 0);
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemFree(p));
	launch(exec);
	expect(40 * MIB, 64 * MIB);
	OK(cuMemcpyDtoH(&byte, p, 1));
	CHECK(byte == 5, "the byte is %d", byte);
	GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphLaunch(exec, stream)); /* not freed */
	OK(cuMemFree(p));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemFree(p));
	expect(0, 64 * MIB);
	launch(exec);
	expect(40 * MIB, 64 * MIB);
	OK(cuMemFreeAsync(p, stream));
	launch(exec); /* in stream order the free came first */
	OK(cuMemFreeAsync(p, stream));
	OK(cuStreamSynchronize(stream));
	expect(0, 64 * MIB);
	trim_all();
	/* trimmed memory comes again, cleared; the address is the same */
	OK(cuGraphUpload(exec, stream));
	expect(0, 64 * MIB);
	OK(cuMemcpyDtoH(&byte, p + 4095, 1));
	CHECK(byte == 0, "the byte is %d after a trim", byte);
	launch(exec);
	OK(cuGraphExecDestroy(exec));
	OK(cuGraphDestroy(graph));
	expect(40 * MIB, 64 * MIB); /* it outlives its graph */
	OK(cuMemcpyDtoH(&byte, p, 1));
	CHECK(byte == 5, "the byte is %d", byte);
	OK(cuMemFree(p));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemFree(p));
	trim_all();
}

static void wait_at(void *gate)
{
	while (sem_wait(gate) != 0)
		;
}

/* Freed in the graph: nothing is left over, and the next graph gets the same memory. */
static void freed_inside(void)
{
	CUdeviceptr p[2];
	CUgraph graph[2];
	CUgraphExec exec[2];
	for (int i = 0; i < 2; i++) {
		graph[i] = new_graph();
		CUgraphNode free_node, node = alloc_node(graph[i], NULL, 0, STEP, &p[i]);
		node = fill_node(graph[i], &node, p[i], 6);
		OK(cuGraphAddMemFreeNode(&free_node, graph[i], &node, 1, p[i]));
		GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphAddMemFreeNode(&free_node, graph[i], &node, 1, p[i]));
		exec[i] = instance(graph[i], 0);
	}
	for (int i = 0; i < 10; i++)
		launch(exec[i % 2]);
	expect(0, STEP);
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemFree(p[0]));
	/* in one stream the second may have it while the first is still queued; in another it may not */
	sem_t gate;
	CHECK(sem_init(&gate, 0, 0) == 0, "no semaphore");
	OK(cuLaunchHostFunc(stream, wait_at, &gate));
	OK(cuGraphLaunch(exec[0], stream));
	OK(cuGraphLaunch(exec[1], stream));
	expect(STEP, STEP);
	OK(cuDeviceGraphMemTrim(0));
	expect(STEP, STEP);
	OK(cuGraphLaunch(exec[0], other));
	CHECK(attribute(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT) == 2 * STEP, "reserved %lu",
	      attribute(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT));
	sem_post(&gate);
	OK(cuCtxSynchronize());
	trim_all();
	CHECK(attribute(CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH) == 2 * STEP, "high %lu",
	      attribute(CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH));
	cuuint64_t zero = 0;
	OK(cuDeviceSetGraphMemAttribute(0, CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH, &zero));
	CHECK(attribute(CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH) == 0, "the mark was not set back");
	GIVES(CUDA_ERROR_INVALID_VALUE, cuDeviceSetGraphMemAttribute(0, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, &zero));
	for (int i = 0; i < 2; i++) {
		OK(cuGraphExecDestroy(exec[i]));
		OK(cuGraphDestroy(graph[i]));
	}
}

/* Freed by another graph's node, or by the next launch of its own. */
static void freed_elsewhere(void)
{
	CUdeviceptr p;
	CUgraphNode node;
	CUgraph graph = new_graph(), sweeper = new_graph();
	alloc_node(graph, NULL, 0, MIB, &p);
	OK(cuGraphAddMemFreeNode(&node, sweeper, NULL, 0, p));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphAddMemFreeNode(&node, graph, NULL, 0, p));
	CUgraphExec exec = instance(graph, 0), sweep = instance(sweeper, 0);
	GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphLaunch(sweep, stream));
	for (int i = 0; i < 3; i++) {
		OK(cuGraphLaunch(exec, stream));
		OK(cuGraphLaunch(sweep, stream));
	}
	OK(cuStreamSynchronize(stream));
	expect(0, STEP);
	GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphInstantiate(&(CUgraphExec){0}, graph, 0)); /* one at a time */
	OK(cuGraphExecDestroy(exec));
	exec = instance(graph, CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH);
	for (int i = 0; i < 3; i++)
		OK(cuGraphLaunch(exec, stream));
	OK(cuStreamSynchronize(stream));
	expect(2 * MIB, STEP);
	OK(cuMemFree(p));
	OK(cuGraphExecDestroy(exec));
	OK(cuGraphExecDestroy(sweep));
	OK(cuGraphDestroy(graph));
	OK(cuGraphDestroy(sweeper));
	trim_all();
}

static void not_allowed(void)
{
	CUdeviceptr p, q;
	CUgraphNode node;
	CUgraph graph = new_graph(), parent = new_graph();
	CUgraphNode first = alloc_node(graph, NULL, 0, MIB, &p);
	CUgraphNode second = fill_node(graph, &first, p, 1);
	GIVES(CUDA_ERROR_NOT_SUPPORTED, cuGraphClone(&parent, graph));
	GIVES(CUDA_ERROR_NOT_SUPPORTED, cuGraphDestroyNode(second));
	GIVES(CUDA_ERROR_NOT_SUPPORTED, cuGraphRemoveDependencies(graph, &first, &second, NULL, 1));
	GIVES(CUDA_ERROR_NOT_SUPPORTED, cuGraphAddChildGraphNode(&node, parent, NULL, 0, graph));
	OK(cuMemAlloc(&q, 4096));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphAddMemFreeNode(&node, graph, NULL, 0, q));
	OK(cuMemFree(q));
	/* moved into a parent it is launched with it, and takes no more such nodes */
	CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_GRAPH};
	params.graph.graph = graph;
	params.graph.ownership = CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE;
	OK(cuGraphAddNode(&node, parent, NULL, NULL, 0, &params));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphDestroy(graph));
	GIVES(CUDA_ERROR_NOT_SUPPORTED, cuGraphAddMemFreeNode(&first, graph, NULL, 0, p));
	CUgraphExec exec = instance(parent, 0);
	launch(exec);
	expect(2 * MIB, STEP);
	OK(cuMemFree(p));
	OK(cuGraphExecDestroy(exec));
	OK(cuGraphDestroy(parent));
	trim_all();
}

/* A launch that does not fit is refused and changes nothing; when there is room it goes through. */
static void full_card(void)
{
	CUdeviceptr all, p;
	CUgraph graph = new_graph();
	alloc_node(graph, NULL, 0, 100 * MIB, &p);
	CUgraphExec exec = instance(graph, 0);
	OK(cuMemAlloc(&all, free_bytes() - 64 * MIB));
	before = held();
	GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuGraphLaunch(exec, stream));
	GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuGraphUpload(exec, stream));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemFree(p));
	expect(0, 0);
	OK(cuMemFree(all));
	before = held();
	launch(exec);
	expect(100 * MIB, 128 * MIB);
	OK(cuMemFree(p));
	OK(cuGraphExecDestroy(exec));
	OK(cuGraphDestroy(graph));
	trim_all();
}

/* What a capture makes of stream-ordered memory does the same as the calls. */
static void captured(void)
{
	CUdeviceptr p, q;
	CUgraph graph;
	unsigned char byte;
	OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
	OK(cuMemAllocAsync(&p, 8 * MIB, stream));
	OK(cuMemsetD8Async(p, 9, 8 * MIB, stream));
	OK(cuMemAllocAsync(&q, 8 * MIB, stream));
	OK(cuMemcpyDtoDAsync(q, p, 8 * MIB, stream));
	OK(cuMemFreeAsync(p, stream));
	OK(cuStreamEndCapture(stream, &graph));
	expect(0, 0);
	CUgraphExec exec = instance(graph, 0);
	launch(exec);
	expect(8 * MIB, STEP);
	OK(cuMemcpyDtoH(&byte, q + 8 * MIB - 1, 1));
	CHECK(byte == 9, "the byte is %d", byte);
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemFreeAsync(p, stream));
	OK(cuMemFreeAsync(q, stream));
	OK(cuStreamSynchronize(stream));
	OK(cuGraphExecDestroy(exec));
	OK(cuGraphDestroy(graph));
	trim_all();
}

int main(void)
{
	CUdeviceptr p;
	start();
	OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	OK(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
	before = held();
	life();
	freed_inside();
	freed_elsewhere();
	not_allowed();
	full_card();
	captured();
	/* the last context takes graphs' memory along */
	CUgraph graph = new_graph();
	alloc_node(graph, NULL, 0, MIB, &p);
	launch(instance(graph, 0));
	OK(cuCtxSetCurrent(NULL));
	OK(cuDevicePrimaryCtxRelease(0));
	CHECK(held() == 0, "%lu bytes are left", held());
	return 0;
}
