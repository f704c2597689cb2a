/* Graphs as data: nodes, edges and their data, clones, parameters of every type read back, user objects, and the file
 * for Graphviz. Nothing is launched here; test_graph_launch.c does that.
 */
#include "sim_test.h"

static CUcontext context;
static CUfunction spin;

static CUgraphNode empty_after(CUgraph graph, const CUgraphNode *from, size_t count)
{
	CUgraphNode node;
	OK(cuGraphAddEmptyNode(&node, graph, from, count));
	return node;
}

static size_t dependencies(CUgraphNode node, CUgraphNode *first)
{
	CUgraphNode from[8] = {NULL};
	CUgraphEdgeData data[8];
	size_t count = 8;
	OK(cuGraphNodeGetDependencies(node, from, data, &count));
	*first = from[0];
	return count;
}

static void edges(void)
{
	CUgraph graph;
	CUgraphNode all[3], from[4], to[4], first;
	CUgraphEdgeData data[4];
	size_t count = 0;
	OK(cuGraphCreate(&graph, 0));
	CUgraphNode a = empty_after(graph, NULL, 0), b = empty_after(graph, &a, 1);
	CUgraphNode c = empty_after(graph, (CUgraphNode[]){a, b}, 2);
	CHECK(dependencies(c, &first) == 2 && first == a, "c has other dependencies");
	OK(cuGraphGetNodes(graph, NULL, &count));
	CHECK(count == 3, "%zu nodes", count);
	OK(cuGraphGetNodes(graph, all, &count));
	CHECK(all[0] == a && all[1] == b && all[2] == c, "nodes are not in order of creation");
	OK(cuGraphGetEdges(graph, NULL, NULL, NULL, &count));
	CHECK(count == 3, "%zu edges", count);
	OK(cuGraphGetEdges(graph, from, to, data, &count));
	OK(cuGraphGetRootNodes(graph, NULL, &count));
	CHECK(count == 1, "%zu roots", count);
	OK(cuGraphNodeGetDependentNodes(a, NULL, NULL, &count));
	CHECK(count == 2, "%zu nodes after a", count);
	GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphAddDependencies(graph, &a, &b, NULL, 1));
	OK(cuGraphRemoveDependencies(graph, &a, &c, NULL, 1));
	CHECK(dependencies(c, &first) == 1 && first == b, "the edge a -> c is still there");
	GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphRemoveDependencies(graph, &a, &c, NULL, 1));
	/* all or nothing */
	GIVES(CUDA_ERROR_INVALID_VALUE,
	      cuGraphAddDependencies(graph, (CUgraphNode[]){a, a}, (CUgraphNode[]){c, b}, NULL, 2));
	CHECK(dependencies(c, &first) == 1, "half of a refused change stayed");
	OK(cuGraphDestroyNode(b));
	CHECK(dependencies(c, &first) == 0, "c comes after a node that is gone");
	GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphDestroyNode(b));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphAddEmptyNode(&b, graph, (CUgraphNode[]){a, a}, 2));
	OK(cuGraphDestroy(graph));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphDestroy(graph));
}

static CUDA_KERNEL_NODE_PARAMS kernel_params(uint64_t *ns, void **pointer)
{
	pointer[0] = ns;
	return (CUDA_KERNEL_NODE_PARAMS){.func = spin,
	                                 .gridDimX = 1,
	                                 .gridDimY = 1,
	                                 .gridDimZ = 1,
	                                 .blockDimX = 32,
	                                 .blockDimY = 1,
	                                 .blockDimZ = 1,
	                                 .kernelParams = pointer};
}

/* Data of edges: only kernels have ports, and the older spelling refuses to lose them. */
static void edge_data(void)
{
	CUgraph graph;
	CUgraphNode a, b, from;
	uint64_t ns = 5;
	void *pointer[1];
	CUDA_KERNEL_NODE_PARAMS kernel = kernel_params(&ns, pointer);
	CUgraphEdgeData data = {.from_port = CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC,
	                        .type = CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC};
	CUgraphEdgeData got;
	size_t count = 1;
	OK(cuGraphCreate(&graph, 0));
	OK(cuGraphAddKernelNode(&a, graph, NULL, 0, &kernel));
	OK(cuGraphAddKernelNode(&b, graph, NULL, 0, &kernel));
	OK(cuGraphAddDependencies(graph, &a, &b, &data, 1));
	OK(cuGraphNodeGetDependencies(b, &from, &got, &count));
	CHECK(from == a && memcmp(&got, &data, sizeof(got)) == 0, "the edge's data were not kept");
	count = 1;
	GIVES(CUDA_ERROR_LOSSY_QUERY, cuGraphNodeGetDependencies(b, &from, NULL, &count));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphRemoveDependencies(graph, &a, &b, NULL, 1));
	CUgraphNode e = empty_after(graph, NULL, 0);
	GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphAddDependencies(graph, &e, &b, &data, 1));
	OK(cuGraphRemoveDependencies(graph, &a, &b, &data, 1));
	OK(cuGraphDestroy(graph));
}

/* The node keeps its own copy of the arguments, and gives a pointer to it. */
static void kernels(void)
{
	CUgraph graph;
	CUgraphNode a, b;
	uint64_t ns = 7;
	void *pointer[1];
	CUDA_KERNEL_NODE_PARAMS kernel = kernel_params(&ns, pointer), got;
	CUlaunchAttributeValue value = {.priority = -2}, read;
	OK(cuGraphCreate(&graph, 0));
	OK(cuGraphAddKernelNode(&a, graph, NULL, 0, &kernel));
	ns = 9;
	OK(cuGraphKernelNodeGetParams(a, &got));
	CHECK(got.func == spin && got.blockDimX == 32 && *(uint64_t *)got.kernelParams[0] == 7,
	      "the node has argument %lu", (unsigned long)*(uint64_t *)got.kernelParams[0]);
	size_t size = sizeof(ns);
	void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &ns, CU_LAUNCH_PARAM_BUFFER_SIZE, &size, CU_LAUNCH_PARAM_END};
	kernel.kernelParams = NULL;
	kernel.extra = extra;
	OK(cuGraphKernelNodeSetParams(a, &kernel));
	OK(cuGraphKernelNodeGetParams(a, &got));
	CHECK(!got.kernelParams && got.extra && *(uint64_t *)got.extra[1] == 9, "extra was not kept");
	kernel.extra = NULL;
	GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphKernelNodeSetParams(a, &kernel));
	kernel = kernel_params(&ns, pointer);
	kernel.blockDimX = 4096;
	GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphAddKernelNode(&b, graph, NULL, 0, &kernel));
	kernel.blockDimX = 32;
	OK(cuGraphAddKernelNode(&b, graph, NULL, 0, &kernel));
	OK(cuGraphKernelNodeSetAttribute(a, CU_LAUNCH_ATTRIBUTE_PRIORITY, &value));
	OK(cuGraphKernelNodeCopyAttributes(b, a));
	OK(cuGraphKernelNodeGetAttribute(b, CU_LAUNCH_ATTRIBUTE_PRIORITY, &read));
	CHECK(read.priority == -2, "priority %d", read.priority);
	GIVES(CUDA_ERROR_INVALID_VALUE,
	      cuGraphKernelNodeGetAttribute(b, CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT, &read));
	OK(cuGraphDestroy(graph));
}

static void nothing_host(void *data)
{
	(void)data;
}

static void other_params(void)
{
	CUgraph graph;
	CUgraphNode node;
	CUdeviceptr p;
	CUevent event, got_event;
	CUgraphNodeParams all = {.type = CU_GRAPH_NODE_TYPE_MEMSET};
	OK(cuMemAlloc(&p, 4096));
	OK(cuEventCreate(&event, 0));
	OK(cuGraphCreate(&graph, 0));
	CUDA_MEMSET_NODE_PARAMS fill = {.dst = p, .value = 3, .elementSize = 1, .width = 16, .height = 1}, got_fill;
	OK(cuGraphAddMemsetNode(&node, graph, NULL, 0, &fill, context));
	fill.value = 4;
	OK(cuGraphMemsetNodeSetParams(node, &fill));
	OK(cuGraphMemsetNodeGetParams(node, &got_fill));
	CHECK(got_fill.value == 4 && got_fill.dst == p, "the fill was not changed");
	fill.width = 4097;
	GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphMemsetNodeSetParams(node, &fill));
	OK(cuGraphNodeGetParams(node, &all));
	CHECK(all.type == CU_GRAPH_NODE_TYPE_MEMSET && all.memset.ctx == context, "the node's context is missing");
	CUDA_HOST_NODE_PARAMS host = {.fn = nothing_host, .userData = &p}, got_host;
	OK(cuGraphAddHostNode(&node, graph, NULL, 0, &host));
	OK(cuGraphHostNodeGetParams(node, &got_host));
	CHECK(got_host.fn == nothing_host && got_host.userData == &p, "the host node has other parameters");
	GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphMemsetNodeGetParams(node, &got_fill));
	OK(cuGraphAddEventRecordNode(&node, graph, NULL, 0, event));
	OK(cuGraphEventRecordNodeGetEvent(node, &got_event));
	CHECK(got_event == event, "another event");
	GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphAddEventWaitNode(&node, graph, NULL, 0, (CUevent)&event));
	all = (CUgraphNodeParams){.type = CU_GRAPH_NODE_TYPE_EXT_SEMAS_SIGNAL};
	GIVES(CUDA_ERROR_NOT_SUPPORTED, cuGraphAddNode(&node, graph, NULL, NULL, 0, &all));
	all.type = 99;
	GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphAddNode(&node, graph, NULL, NULL, 0, &all));
	OK(cuEventDestroy(event)); /* the graph keeps it */
	OK(cuGraphDestroy(graph));
	OK(cuMemFree(p));
}

static void clones(void)
{
	CUgraph graph, clone, child, inner;
	CUgraphNode found, child_node, first, in_child;
	CUgraphNodeType type;
	size_t count;
	OK(cuGraphCreate(&graph, 0));
	OK(cuGraphCreate(&child, 0));
	in_child = empty_after(child, NULL, 0);
	CUgraphNode a = empty_after(graph, NULL, 0);
	OK(cuGraphAddChildGraphNode(&child_node, graph, &a, 1, child));
	OK(cuGraphChildGraphNodeGetGraph(child_node, &inner));
	CHECK(inner != child, "the child was not cloned");
	OK(cuGraphNodeFindInClone(&found, in_child, inner));
	OK(cuGraphGetNodes(inner, &first, &(size_t){1}));
	CHECK(found == first, "another node in the child");
	GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphDestroy(inner));
	OK(cuGraphClone(&clone, graph));
	empty_after(graph, NULL, 0);
	OK(cuGraphGetNodes(clone, NULL, &count));
	CHECK(count == 2, "the clone has %zu nodes", count);
	OK(cuGraphNodeFindInClone(&found, child_node, clone));
	OK(cuGraphNodeGetType(found, &type));
	CHECK(type == CU_GRAPH_NODE_TYPE_GRAPH && dependencies(found, &first) == 1, "the clone is another graph");
	OK(cuGraphNodeFindInClone(&first, a, clone));
	CHECK(first != a, "the clone shares a node");
	GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphNodeFindInClone(&found, first, graph));
	CUgraph containing;
	OK(cuGraphNodeGetContainingGraph(first, &containing));
	CHECK(containing == clone, "the node is in another graph");
	OK(cuGraphDestroy(graph));
	OK(cuGraphDestroy(clone));
	OK(cuGraphDestroy(child));
}

/* ---- user objects ------------------------------------------------------------------------------------------------- */

static sem_t gone;

static void destroyed(void *data)
{
	__atomic_store_n((int *)data, 1, __ATOMIC_RELEASE);
	sem_post(&gone);
}

static void user_objects(void)
{
	static int is_gone;
	CUgraph graph;
	CUgraphExec exec;
	CUuserObject object;
	CHECK(sem_init(&gone, 0, 0) == 0, "no semaphore");
	OK(cuUserObjectCreate(&object, &is_gone, destroyed, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
	OK(cuGraphCreate(&graph, 0));
	OK(cuGraphRetainUserObject(graph, object, 1, CU_GRAPH_USER_OBJECT_MOVE));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphReleaseUserObject(graph, object, 2));
	OK(cuGraphInstantiate(&exec, graph, 0));
	OK(cuGraphDestroy(graph));
	OK(cuUserObjectRetain(object, 2)); /* the executable still refers to it */
	OK(cuUserObjectRelease(object, 2));
	CHECK(!__atomic_load_n(&is_gone, __ATOMIC_ACQUIRE), "destroyed under the executable");
	OK(cuGraphExecDestroy(exec));
	while (sem_wait(&gone) != 0)
		;
	GIVES(CUDA_ERROR_INVALID_VALUE, cuUserObjectRetain(object, 1));
}

static void dot(void)
{
	CUgraph graph;
	char path[4096], text[4096];
	OK(cuGraphCreate(&graph, 0));
	CUgraphNode a = empty_after(graph, NULL, 0);
	empty_after(graph, &a, 1);
	snprintf(path, sizeof(path), "%s/graph.dot", getenv("PARTAGE_SIM_DIR"));
	OK(cuGraphDebugDotPrint(graph, path, CU_GRAPH_DEBUG_DOT_FLAGS_VERBOSE));
	FILE *file = fopen(path, "re");
	CHECK(file, "%s was not written", path);
	text[fread(text, 1, sizeof(text) - 1, file)] = '\0';
	fclose(file);
	CHECK(strstr(text, "digraph") && strstr(text, "EMPTY") && strstr(text, "->"), "not a graph: %s", text);
	GIVES(CUDA_ERROR_OPERATING_SYSTEM, cuGraphDebugDotPrint(graph, "/nonexistent/graph.dot", 0));
	OK(cuGraphDestroy(graph));
}

static void cycles(void)
{
	CUgraph graph;
	CUgraphExec exec;
	OK(cuGraphCreate(&graph, 0));
	CUgraphNode a = empty_after(graph, NULL, 0), b = empty_after(graph, &a, 1);
	OK(cuGraphAddDependencies(graph, &b, &a, NULL, 1));
	CUDA_GRAPH_INSTANTIATE_PARAMS params = {.flags = 0};
	GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphInstantiateWithParams(&exec, graph, &params));
	CHECK(params.result_out == CUDA_GRAPH_INSTANTIATE_INVALID_STRUCTURE &&
	              (params.hErrNode_out == a || params.hErrNode_out == b),
	      "result %d", params.result_out);
	OK(cuGraphDestroy(graph));
}

int main(void)
{
	context = test_context("zero", 0);
	spin = test_function("spin_ns");
	edges();
	edge_data();
	kernels();
	other_params();
	clones();
	user_objects();
	dot();
	cycles();
	return 0;
}
