/* graph_dot.c: cuGraphDebugDotPrint: a graph as a file for Graphviz.
 *
 * Called by programs. One cluster for each graph, one box for each node with its number and type, and as many of its
 * parameters as the flags ask for. What can go wrong: a file that cannot be written (CUDA_ERROR_OPERATING_SYSTEM).
 */
#include <stdio.h>

#include "graph.h"
#include "module.h"
#include "sim_impl.h"

static const char *const type_name[] = {
        [CU_GRAPH_NODE_TYPE_KERNEL] = "KERNEL",
        [CU_GRAPH_NODE_TYPE_MEMCPY] = "MEMCPY",
        [CU_GRAPH_NODE_TYPE_MEMSET] = "MEMSET",
        [CU_GRAPH_NODE_TYPE_HOST] = "HOST",
        [CU_GRAPH_NODE_TYPE_GRAPH] = "GRAPH",
        [CU_GRAPH_NODE_TYPE_EMPTY] = "EMPTY",
        [CU_GRAPH_NODE_TYPE_WAIT_EVENT] = "EVENT_WAIT",
        [CU_GRAPH_NODE_TYPE_EVENT_RECORD] = "EVENT_RECORD",
        [CU_GRAPH_NODE_TYPE_EXT_SEMAS_SIGNAL] = "EXT_SEMAS_SIGNAL",
        [CU_GRAPH_NODE_TYPE_EXT_SEMAS_WAIT] = "EXT_SEMAS_WAIT",
        [CU_GRAPH_NODE_TYPE_MEM_ALLOC] = "MEM_ALLOC",
        [CU_GRAPH_NODE_TYPE_MEM_FREE] = "MEM_FREE",
        [CU_GRAPH_NODE_TYPE_BATCH_MEM_OP] = "BATCH_MEM_OP",
        [CU_GRAPH_NODE_TYPE_CONDITIONAL] = "CONDITIONAL",
};

static bool wants(unsigned flags, unsigned flag)
{
	return flags & (flag | CU_GRAPH_DEBUG_DOT_FLAGS_VERBOSE);
}

static void print_params(FILE *file, const struct sim_graph_work *work, unsigned flags)
{
	const CUgraphNodeParams *params = &work->params;
	switch (params->type) {
	case CU_GRAPH_NODE_TYPE_KERNEL:
		if (sim_handle_is(work->function, SIM_TAG_FUNCTION))
			fprintf(file, "\\n%s", work->function->image->name);
		if (wants(flags, CU_GRAPH_DEBUG_DOT_FLAGS_KERNEL_NODE_PARAMS))
			fprintf(file, "\\ngrid %ux%ux%u block %ux%ux%u shared %u", params->kernel.gridDimX,
			        params->kernel.gridDimY, params->kernel.gridDimZ, params->kernel.blockDimX,
			        params->kernel.blockDimY, params->kernel.blockDimZ, params->kernel.sharedMemBytes);
		break;
	case CU_GRAPH_NODE_TYPE_MEMCPY:
		if (wants(flags, CU_GRAPH_DEBUG_DOT_FLAGS_MEMCPY_NODE_PARAMS))
			fprintf(file, "\\n%zu x %zu x %zu bytes", params->memcpy.copyParams.WidthInBytes,
			        params->memcpy.copyParams.Height, params->memcpy.copyParams.Depth);
		break;
	case CU_GRAPH_NODE_TYPE_MEMSET:
		if (wants(flags, CU_GRAPH_DEBUG_DOT_FLAGS_MEMSET_NODE_PARAMS))
			fprintf(file, "\\n%#llx: %zu x %zu of %u bytes = %#x", params->memset.dst, params->memset.width,
			        params->memset.height, params->memset.elementSize, params->memset.value);
		break;
	case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
		if (wants(flags, CU_GRAPH_DEBUG_DOT_FLAGS_MEM_ALLOC_NODE_PARAMS))
			fprintf(file, "\\n%#llx: %zu bytes", params->alloc.dptr, params->alloc.bytesize);
		break;
	case CU_GRAPH_NODE_TYPE_MEM_FREE:
		if (wants(flags, CU_GRAPH_DEBUG_DOT_FLAGS_MEM_FREE_NODE_PARAMS))
			fprintf(file, "\\n%#llx", params->free.dptr);
		break;
	default:
		break;
	}
}

static void print_graph(FILE *file, const struct sim_graph *graph, unsigned flags)
{
	fprintf(file, "subgraph cluster_%u {\nlabel=\"graph_%u\"\n", graph->id, graph->id);
	for (const struct sim_graph_node *node = graph->first; node; node = node->next) {
		fprintf(file, "\"graph_%u_node_%u\" [shape=box, label=\"%u\\n%s", graph->id, node->local, node->local,
		        type_name[node->work.params.type]);
		if (wants(flags, CU_GRAPH_DEBUG_DOT_FLAGS_HANDLES))
			fprintf(file, "\\n%p", (const void *)node);
		print_params(file, &node->work, flags);
		fprintf(file, "\"]\n");
	}
	for (const struct sim_graph_node *node = graph->first; node; node = node->next)
		for (size_t i = 0; i < node->to.count; i++)
			fprintf(file, "\"graph_%u_node_%u\" -> \"graph_%u_node_%u\"\n", graph->id, node->local,
			        graph->id, node->to.edge[i].node->local);
	fprintf(file, "}\n");
	for (const struct sim_graph_node *node = graph->first; node; node = node->next)
		for (unsigned i = 0; i < node->work.graphs; i++)
			print_graph(file, node->work.graph[i], flags);
}

CUresult sim_cuGraphDebugDotPrint(CUgraph hGraph, const char *path, unsigned int flags)
{
	CUresult error = CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&sim_graph_mutex);
	const struct sim_graph *graph = sim_graph_of(hGraph);
	FILE *file = graph && path ? fopen(path, "we") : NULL;
	if (file) {
		fprintf(file, "digraph dot {\n");
		print_graph(file, graph, flags);
		fprintf(file, "}\n");
		error = fclose(file) == 0 ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
	} else if (graph && path) {
		error = CUDA_ERROR_OPERATING_SYSTEM;
	}
	pthread_mutex_unlock(&sim_graph_mutex);
	return error;
}
