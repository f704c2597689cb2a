/* Graphs that run: bytes that copies and fills of a launched graph leave, the order of their nodes, branches that run
 * beside each other, host functions, children, conditions, memory operations, events, changes of executables, and their
 * place in stream order.
 */
#include "sim_test.h"

#include <sched.h>

#define N 4096

static CUcontext context;
static CUfunction spin;
static CUdeviceptr a, b;

static CUgraphNode fill(CUgraph graph, const CUgraphNode *from, size_t count, CUdeviceptr p, unsigned char value)
{
	CUgraphNode node;
	CUDA_MEMSET_NODE_PARAMS params = {.dst = p, .value = value, .elementSize = 1, .width = N, .height = 1};
	OK(cuGraphAddMemsetNode(&node, graph, from, count, &params, context));
	return node;
}

static CUDA_MEMCPY3D copy_of(CUdeviceptr to, CUdeviceptr from)
{
	return (CUDA_MEMCPY3D){.srcMemoryType = CU_MEMORYTYPE_DEVICE,
	                       .srcDevice = from,
	                       .dstMemoryType = CU_MEMORYTYPE_DEVICE,
	                       .dstDevice = to,
	                       .WidthInBytes = N,
	                       .Height = 1,
	                       .Depth = 1};
}

static CUgraphNode copy(CUgraph graph, const CUgraphNode *from, size_t count, CUdeviceptr to, CUdeviceptr p)
{
	CUgraphNode node;
	CUDA_MEMCPY3D params = copy_of(to, p);
	OK(cuGraphAddMemcpyNode(&node, graph, from, count, &params, context));
	return node;
}

static CUgraphNode busy(CUgraph graph, const CUgraphNode *from, size_t count, uint64_t ns)
{
	CUgraphNode node;
	void *pointer[] = {&ns};
	CUDA_KERNEL_NODE_PARAMS params = {.func = spin,
	                                  .gridDimX = 1,
	                                  .gridDimY = 1,
	                                  .gridDimZ = 1,
	                                  .blockDimX = 1,
	                                  .blockDimY = 1,
	                                  .blockDimZ = 1,
	                                  .kernelParams = pointer};
	OK(cuGraphAddKernelNode(&node, graph, from, count, &params));
	return node;
}

static CUgraphNode host(CUgraph graph, const CUgraphNode *from, size_t count, CUhostFn function, void *data)
{
	CUgraphNode node;
	CUDA_HOST_NODE_PARAMS params = {.fn = function, .userData = data};
	OK(cuGraphAddHostNode(&node, graph, from, count, &params));
	return node;
}

/* The first byte of device memory, and that all others are the same. */
static int value_at(CUdeviceptr p)
{
	unsigned char bytes[N];
	OK(cuMemcpyDtoH(bytes, p, N));
	for (int i = 1; i < N; i++)
		CHECK(bytes[i] == bytes[0], "byte %d is %d, not %d", i, bytes[i], bytes[0]);
	return bytes[0];
}

static CUgraph new_graph(void)
{
	CUgraph graph;
	OK(cuGraphCreate(&graph, 0));
	return graph;
}

static CUgraphExec instance(CUgraph graph)
{
	CUgraphExec exec;
	OK(cuGraphInstantiate(&exec, graph, 0));
	return exec;
}

static void run(CUgraphExec exec, CUstream stream)
{
	OK(cuGraphLaunch(exec, stream));
	OK(cuStreamSynchronize(stream));
}

/* Launches a graph once, and both go. */
static void run_once(CUgraph graph, CUstream stream)
{
	CUgraphExec exec = instance(graph);
	OK(cuGraphDestroy(graph)); /* the executable has its own */
	run(exec, stream);
	OK(cuGraphExecDestroy(exec));
}

/* Each node undoes what would be right if it ran elsewhere. */
static void bytes_and_order(CUstream stream)
{
	CUgraph graph = new_graph();
	CUgraphNode one = fill(graph, NULL, 0, a, 1), two = copy(graph, &one, 1, b, a);
	fill(graph, &two, 1, a, 2);
	run_once(graph, stream);
	CHECK(value_at(a) == 2 && value_at(b) == 1, "a is %d, b is %d", value_at(a), value_at(b));
	/* created in the wrong order, and joined by edges */
	graph = new_graph();
	one = copy(graph, NULL, 0, b, a);
	two = fill(graph, NULL, 0, a, 3);
	OK(cuGraphAddDependencies(graph, &two, &one, NULL, 1));
	run_once(graph, stream);
	CHECK(value_at(b) == 3, "b is %d", value_at(b));
	/* rows: only the middle of each */
	unsigned char rows[64] = {0};
	graph = new_graph();
	CUDA_MEMCPY3D part = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
	                      .srcDevice = a,
	                      .srcXInBytes = 8,
	                      .srcPitch = 128,
	                      .dstMemoryType = CU_MEMORYTYPE_HOST,
	                      .dstHost = rows,
	                      .dstXInBytes = 4,
	                      .dstPitch = 16,
	                      .WidthInBytes = 8,
	                      .Height = 3,
	                      .Depth = 1};
	OK(cuGraphAddMemcpyNode(&one, graph, NULL, 0, &part, context));
	run_once(graph, stream);
	for (int i = 0; i < 64; i++)
		CHECK(rows[i] == (i < 48 && i % 16 >= 4 && i % 16 < 12 ? 3 : 0), "row byte %d is %d", i, rows[i]);
}

/* The launch has its place between what came before it in the stream and what comes after. */
static void stream_order(CUstream stream)
{
	sem_t gate;
	CUgraph graph = new_graph();
	copy(graph, NULL, 0, b, a);
	CUgraphExec exec = instance(graph);
	test_gate_close(&gate, stream);
	OK(cuMemsetD8Async(a, 4, N, stream));
	OK(cuGraphLaunch(exec, stream));
	OK(cuMemsetD8Async(a, 5, N, stream));
	OK(cuMemsetD8Async(b + N, 0, N, stream));
	OK(cuMemcpyDtoDAsync(b + N, b, N, stream));
	GIVES(CUDA_ERROR_NOT_READY, cuStreamQuery(stream));
	test_gate_open(&gate);
	OK(cuStreamSynchronize(stream));
	CHECK(value_at(b) == 4 && value_at(a) == 5 && value_at(b + N) == 4, "b is %d, a is %d, after it %d",
	      value_at(b), value_at(a), value_at(b + N));
	OK(cuGraphExecDestroy(exec));
	OK(cuGraphDestroy(graph));
}

/* ---- branches ------------------------------------------------------------------------------------------------------ */

/* A byte of the simulated card, which is the process's memory, while the engine may write to it: meant to race. */
__attribute__((noinline, no_sanitize_thread)) static int peek(CUdeviceptr p)
{
	return *(volatile unsigned char *)(uintptr_t)p;
}

static void branches(CUstream stream)
{
	sem_t gate;
	CUgraph graph = new_graph();
	CHECK(sem_init(&gate, 0, 0) == 0, "no semaphore");
	CUgraphNode root = busy(graph, NULL, 0, 1000);
	CUgraphNode held = host(graph, &root, 1, test_gate_function, &gate);
	CUgraphNode free_branch = fill(graph, &root, 1, a, 6);
	copy(graph, (CUgraphNode[]){held, free_branch}, 2, b, a);
	CUgraphExec exec = instance(graph);
	OK(cuMemsetD8(a, 0, N));
	OK(cuMemsetD8(b, 0, N));
	OK(cuGraphLaunch(exec, stream));
	while (peek(a) != 6)
		sched_yield();
	CHECK(peek(b) == 0, "the join ran before all its branches");
	sem_post(&gate);
	OK(cuStreamSynchronize(stream));
	CHECK(value_at(b) == 6, "b is %d", value_at(b));
	OK(cuGraphExecDestroy(exec));
	OK(cuGraphDestroy(graph));
}

/* Engine time of two branches and a root, on the virtual line: the engine is one, so all of it adds up. */
static void device_time(CUstream stream)
{
	CUgraph graph = new_graph();
	CUevent before, after;
	float ms;
	CUgraphNode root = busy(graph, NULL, 0, 1000000);
	busy(graph, &root, 1, 2000000);
	busy(graph, &root, 1, 3000000);
	CUgraphExec exec = instance(graph);
	OK(cuEventCreate(&before, 0));
	OK(cuEventCreate(&after, 0));
	OK(cuEventRecord(before, stream));
	OK(cuGraphLaunch(exec, stream));
	OK(cuGraphLaunch(exec, stream));
	OK(cuEventRecord(after, stream));
	OK(cuStreamSynchronize(stream));
	OK(cuEventElapsedTime(&ms, before, after));
	CHECK(ms >= 12.0f, "two launches of 6 ms took %.3f ms", ms);
	OK(cuGraphExecDestroy(exec));
	OK(cuGraphDestroy(graph));
}

/* Launches of one executable do not overtake each other, in whatever streams. */
static void one_at_a_time(CUstream stream, CUstream other)
{
	sem_t gate;
	CUgraph graph = new_graph();
	CUevent done;
	copy(graph, NULL, 0, b, a);
	CUgraphExec exec = instance(graph);
	OK(cuEventCreate(&done, CU_EVENT_DISABLE_TIMING));
	test_gate_close(&gate, stream);
	OK(cuGraphLaunch(exec, stream));
	OK(cuGraphLaunch(exec, other));
	OK(cuEventRecord(done, other));
	GIVES(CUDA_ERROR_NOT_READY, cuEventQuery(done));
	test_gate_open(&gate);
	OK(cuEventSynchronize(done));
	OK(cuGraphExecDestroy(exec));
	OK(cuGraphDestroy(graph));
}

/* ---- nodes of other kinds ------------------------------------------------------------------------------------------- */

static void count_up(void *data)
{
	__atomic_add_fetch((int *)data, 1, __ATOMIC_RELAXED);
}

static void children(CUstream stream)
{
	int calls = 0;
	CUgraph graph = new_graph(), child = new_graph();
	CUgraphNode node, inner = fill(child, NULL, 0, a, 7);
	host(child, &inner, 1, count_up, &calls);
	CUgraphNode first = fill(graph, NULL, 0, a, 0);
	OK(cuGraphAddChildGraphNode(&node, graph, &first, 1, child));
	copy(graph, &node, 1, b, a);
	CUgraphExec exec = instance(graph);
	run(exec, stream);
	CHECK(value_at(b) == 7 && calls == 1, "b is %d, %d calls", value_at(b), calls);
	/* another child of the same shape */
	CUgraph changed = new_graph();
	inner = fill(changed, NULL, 0, a, 8);
	GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphExecChildGraphNodeSetParams(exec, node, changed));
	host(changed, &inner, 1, count_up, &calls);
	OK(cuGraphExecChildGraphNodeSetParams(exec, node, changed));
	run(exec, stream);
	CHECK(value_at(b) == 8 && calls == 2, "b is %d, %d calls", value_at(b), calls);
	OK(cuGraphExecDestroy(exec));
	OK(cuGraphDestroy(graph));
	OK(cuGraphDestroy(child));
	OK(cuGraphDestroy(changed));
}

/* The value that a launch of this conditional leaves in a: 1 from body 0, 2 from body 1, 9 from none. */
static int conditional(CUstream stream, CUgraphConditionalNodeType type, unsigned size, unsigned value)
{
	CUgraph graph = new_graph();
	CUgraphConditionalHandle handle;
	CUgraphNode node, first = fill(graph, NULL, 0, a, 9);
	OK(cuGraphConditionalHandleCreate(&handle, graph, context, value, CU_GRAPH_COND_ASSIGN_DEFAULT));
	CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_CONDITIONAL};
	params.conditional.handle = handle;
	params.conditional.type = type;
	params.conditional.size = size;
	params.conditional.ctx = context;
	OK(cuGraphAddNode(&node, graph, &first, NULL, 1, &params));
	for (unsigned i = 0; i < size; i++)
		fill(params.conditional.phGraph_out[i], NULL, 0, a, (unsigned char)(i + 1));
	copy(graph, &node, 1, b, a);
	GIVES(CUDA_ERROR_NOT_SUPPORTED, cuGraphClone(&(CUgraph){0}, graph));
	run_once(graph, stream);
	return value_at(b);
}

static void conditionals(CUstream stream)
{
	CHECK(conditional(stream, CU_GRAPH_COND_TYPE_IF, 1, 1) == 1, "the body of a true if did not run");
	CHECK(conditional(stream, CU_GRAPH_COND_TYPE_IF, 1, 0) == 9, "the body of a false if ran");
	CHECK(conditional(stream, CU_GRAPH_COND_TYPE_IF, 2, 0) == 2, "the else of a false if did not run");
	CHECK(conditional(stream, CU_GRAPH_COND_TYPE_WHILE, 1, 0) == 9, "a loop without condition ran");
	CHECK(conditional(stream, CU_GRAPH_COND_TYPE_WHILE, 1, 1) == 1, "a loop did not run");
	CHECK(conditional(stream, CU_GRAPH_COND_TYPE_SWITCH, 3, 2) == 3, "a switch ran another body");
	CHECK(conditional(stream, CU_GRAPH_COND_TYPE_SWITCH, 3, 3) == 9, "a switch ran a body that it has not");
	CUgraph graph = new_graph();
	CUgraphConditionalHandle handle;
	CUgraphExec exec;
	CUDA_GRAPH_INSTANTIATE_PARAMS params = {.flags = 0};
	OK(cuGraphConditionalHandleCreate(&handle, graph, context, 1, CU_GRAPH_COND_ASSIGN_DEFAULT));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphInstantiateWithParams(&exec, graph, &params));
	CHECK(params.result_out == CUDA_GRAPH_INSTANTIATE_CONDITIONAL_HANDLE_UNUSED, "result %d", params.result_out);
	OK(cuGraphDestroy(graph));
}

/* A graph that writes a word another stream waits for, and one that waits for it. */
static void memory_operations(CUstream stream, CUstream other)
{
	CUgraph graph = new_graph();
	CUgraphNode node;
	CUstreamBatchMemOpParams op[2] = {
	        {.waitValue = {.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32,
		               .address = b,
		               .value = 77,
		               .flags = CU_STREAM_WAIT_VALUE_EQ}},
	        {.writeValue = {.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32, .address = a, .value = 78}}};
	CUDA_BATCH_MEM_OP_NODE_PARAMS params = {.ctx = context, .count = 2, .paramArray = op}, got;
	uint32_t word;
	OK(cuMemsetD32(a, 0, 4));
	OK(cuMemsetD32(b, 0, 4));
	OK(cuGraphAddBatchMemOpNode(&node, graph, NULL, 0, &params));
	OK(cuGraphBatchMemOpNodeGetParams(node, &got));
	CHECK(got.count == 2 && got.paramArray != op && got.paramArray[1].writeValue.value == 78, "other operations");
	CUgraphExec exec = instance(graph);
	OK(cuGraphLaunch(exec, stream));
	GIVES(CUDA_ERROR_NOT_READY, cuStreamQuery(stream));
	OK(cuStreamWriteValue32(other, b, 77, 0));
	OK(cuStreamSynchronize(stream));
	OK(cuMemcpyDtoH(&word, a, 4));
	CHECK(word == 78, "the word is %u", word);
	op[1].writeValue.value = 79;
	OK(cuGraphExecBatchMemOpNodeSetParams(exec, node, &params));
	run(exec, stream);
	OK(cuMemcpyDtoH(&word, a, 4));
	CHECK(word == 79, "the word is %u", word);
	OK(cuGraphExecDestroy(exec));
	OK(cuGraphDestroy(graph));
}

static void events(CUstream stream, CUstream other)
{
	sem_t gate;
	CUevent in, out;
	OK(cuEventCreate(&in, CU_EVENT_DISABLE_TIMING));
	OK(cuEventCreate(&out, CU_EVENT_DISABLE_TIMING));
	CUgraph graph = new_graph();
	CUgraphNode wait, record;
	OK(cuGraphAddEventWaitNode(&wait, graph, NULL, 0, in));
	CUgraphNode work = copy(graph, &wait, 1, b, a);
	OK(cuGraphAddEventRecordNode(&record, graph, &work, 1, out));
	CUgraphExec exec = instance(graph);
	OK(cuMemsetD8(a, 1, N));
	test_gate_close(&gate, other);
	OK(cuMemsetD8Async(a, 10, N, other));
	OK(cuEventRecord(in, other));
	OK(cuGraphLaunch(exec, stream));
	GIVES(CUDA_ERROR_NOT_READY, cuEventQuery(out));
	test_gate_open(&gate);
	OK(cuEventSynchronize(out));
	CHECK(value_at(b) == 10, "b is %d", value_at(b));
	OK(cuGraphExecDestroy(exec));
	OK(cuGraphDestroy(graph));
	OK(cuEventDestroy(in));
	OK(cuEventDestroy(out));
}

/* ---- changes ---------------------------------------------------------------------------------------------------------- */

static void changes(CUstream stream)
{
	CUgraph graph = new_graph();
	CUgraphNode one = fill(graph, NULL, 0, a, 11), two = copy(graph, &one, 1, b, a);
	CUgraphExec exec = instance(graph);
	CUDA_MEMSET_NODE_PARAMS params = {.dst = a, .value = 12, .elementSize = 1, .width = N, .height = 1}, got;
	unsigned enabled;
	OK(cuGraphExecMemsetNodeSetParams(exec, one, &params, context));
	run(exec, stream);
	OK(cuGraphMemsetNodeGetParams(one, &got));
	CHECK(value_at(b) == 12 && got.value == 11, "b is %d, the graph's node fills with %u", value_at(b), got.value);
	params.height = 2;
	params.width = 16;
	params.pitch = 64;
	GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphExecMemsetNodeSetParams(exec, one, &params, context));
	OK(cuMemsetD8(a, 13, N));
	OK(cuGraphNodeSetEnabled(exec, one, 0));
	OK(cuGraphNodeGetEnabled(exec, one, &enabled));
	run(exec, stream);
	CHECK(!enabled && value_at(b) == 13, "b is %d after a fill that was disabled", value_at(b));
	OK(cuGraphNodeSetEnabled(exec, one, 1));
	CUDA_MEMCPY3D back = copy_of(b + N, a);
	OK(cuGraphExecMemcpyNodeSetParams(exec, two, &back, context));
	run(exec, stream);
	CHECK(value_at(b + N) == 12 && value_at(b) == 13, "the copy went to the old place");
	GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphExecMemsetNodeSetParams(exec, two, &got, context));
	OK(cuGraphExecDestroy(exec));
	OK(cuGraphDestroy(graph));
}

static void updates(CUstream stream)
{
	CUgraph graph = new_graph(), next = new_graph(), other = new_graph();
	CUgraphExecUpdateResultInfo info;
	CUgraphNode one = fill(graph, NULL, 0, a, 14);
	copy(graph, &one, 1, b, a);
	CUgraphExec exec = instance(graph);
	one = fill(next, NULL, 0, a, 15);
	copy(next, &one, 1, b, a);
	OK(cuGraphExecUpdate(exec, next, &info));
	CHECK(info.result == CU_GRAPH_EXEC_UPDATE_SUCCESS, "result %d", info.result);
	run(exec, stream);
	CHECK(value_at(b) == 15, "b is %d", value_at(b));
	/* the same nodes without the edge, and with another type */
	fill(other, NULL, 0, a, 16);
	CUgraphNode loose = copy(other, NULL, 0, b, a);
	GIVES(CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE, cuGraphExecUpdate(exec, other, &info));
	CHECK(info.result == CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED && info.errorNode == loose, "result %d",
	      info.result);
	OK(cuGraphDestroyNode(loose));
	OK(cuGraphAddEmptyNode(&loose, other, NULL, 0));
	GIVES(CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE, cuGraphExecUpdate(exec, other, &info));
	CHECK(info.result == CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED, "result %d", info.result);
	run(exec, stream);
	CHECK(value_at(b) == 15, "a refused update changed b to %d", value_at(b));
	OK(cuGraphExecDestroy(exec));
	OK(cuGraphDestroy(graph));
	OK(cuGraphDestroy(next));
	OK(cuGraphDestroy(other));
}

/* What is queued runs though its executable and graph are gone. */
static void destroyed_in_flight(CUstream stream)
{
	sem_t gate;
	CUgraph graph = new_graph();
	fill(graph, NULL, 0, b, 17);
	CUgraphExec exec = instance(graph);
	test_gate_close(&gate, stream);
	OK(cuGraphLaunch(exec, stream));
	OK(cuGraphExecDestroy(exec));
	OK(cuGraphDestroy(graph));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphLaunch(exec, stream));
	test_gate_open(&gate);
	OK(cuStreamSynchronize(stream));
	CHECK(value_at(b) == 17, "b is %d", value_at(b));
}

/* More nodes than a stream's queue has room for, behind a gate: a launch does not wait for its own nodes. */
static void large(CUstream stream)
{
	sem_t gate;
	int calls = 0;
	CUgraph graph = new_graph();
	CUgraphNode last = host(graph, NULL, 0, count_up, &calls);
	for (int i = 1; i < 3000; i++)
		last = i % 3 ? busy(graph, &last, 1, 10) : host(graph, &last, 1, count_up, &calls);
	CUgraphExec exec = instance(graph);
	test_gate_close(&gate, stream);
	OK(cuGraphLaunch(exec, stream));
	test_gate_open(&gate);
	OK(cuStreamSynchronize(stream));
	CHECK(calls == 1000, "%d calls", calls);
	OK(cuGraphExecDestroy(exec));
	OK(cuGraphDestroy(graph));
}

int main(void)
{
	CUstream stream, other;
	context = test_context("zero", 0);
	spin = test_function("spin_ns");
	OK(cuMemAlloc(&a, 2 * N));
	OK(cuMemAlloc(&b, 2 * N));
	OK(cuStreamCreate(&stream, CU_STREAM_DEFAULT));
	OK(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
	bytes_and_order(stream);
	bytes_and_order(NULL);
	stream_order(stream);
	branches(stream);
	device_time(stream);
	one_at_a_time(stream, other);
	children(stream);
	conditionals(stream);
	memory_operations(stream, other);
	events(stream, other);
	changes(stream);
	updates(stream);
	destroyed_in_flight(stream);
	large(stream);
	return 0;
}
