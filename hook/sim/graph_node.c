/* graph_node.c: nodes through the doors of programs: cuGraphAddNode and the older calls for each type.
 *
 * All of them become one CUgraphNodeParams and go to graph_work.c. The calls that return parameters return pointers
 * into the node, valid until it changes or goes. What can go wrong: a node of another type, a graph that is moved into
 * another and takes no memory nodes (CUDA_ERROR_NOT_SUPPORTED), and what graph_work.c finds.
 */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "graph.h"
#include "sim_impl.h"

/* ---- adding ------------------------------------------------------------------------------------------------------ */

/* Where a new node goes. */
struct place {
	CUgraph graph;
	const CUgraphNode *from;
	const CUgraphEdgeData *data;
	size_t count;
};

static CUresult gather(const struct place *place, struct sim_graph_edge **edges)
{
	*edges = NULL;
	if (place->count && !place->from)
		return CUDA_ERROR_INVALID_VALUE;
	if (place->count > SIZE_MAX / sizeof(**edges) || !(*edges = calloc(place->count + 1, sizeof(**edges))))
		return CUDA_ERROR_OUT_OF_MEMORY;
	for (size_t i = 0; i < place->count; i++) {
		(*edges)[i].node = sim_graph_node_of(place->from[i]);
		if (!(*edges)[i].node)
			return CUDA_ERROR_INVALID_VALUE;
		if (place->data)
			(*edges)[i].data = place->data[i];
	}
	return CUDA_SUCCESS;
}

static CUresult add_locked(CUgraphNode *out, const struct place *place, CUgraphNodeParams *params)
{
	struct sim_graph *graph = sim_graph_of(place->graph);
	struct sim_graph_edge *edges;
	struct sim_graph_node *node;
	struct sim_graph_work work;
	if (!graph || !out || !params)
		return CUDA_ERROR_INVALID_VALUE;
	if (graph->moved &&
	    (params->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC || params->type == CU_GRAPH_NODE_TYPE_MEM_FREE))
		return CUDA_ERROR_NOT_SUPPORTED;
	CUresult error = gather(place, &edges);
	if (error == CUDA_SUCCESS)
		error = sim_graph_dependencies_check(graph, edges, place->count);
	if (error == CUDA_SUCCESS)
		error = sim_graph_work_make(graph, params, &work);
	if (error == CUDA_SUCCESS)
		error = sim_graph_node_add(graph, edges, place->count, &work, &node);
	free(edges);
	if (error != CUDA_SUCCESS)
		return error;
	*out = (CUgraphNode)node;
	if (params->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC)
		params->alloc.dptr = node->work.params.alloc.dptr;
	else if (params->type == CU_GRAPH_NODE_TYPE_CONDITIONAL)
		params->conditional.phGraph_out = node->work.params.conditional.phGraph_out;
	return CUDA_SUCCESS;
}

static CUresult add(CUgraphNode *out, CUgraph graph, const CUgraphNode *from, const CUgraphEdgeData *data, size_t count,
                    CUgraphNodeParams *params)
{
	struct place place = {graph, from, data, count};
	pthread_mutex_lock(&sim_graph_mutex);
	CUresult error = add_locked(out, &place, params);
	pthread_mutex_unlock(&sim_graph_mutex);
	return error;
}

CUresult sim_cuGraphAddNode_v2(CUgraphNode *phGraphNode, CUgraph hGraph, const CUgraphNode *dependencies,
                               const CUgraphEdgeData *dependencyData, size_t numDependencies,
                               CUgraphNodeParams *nodeParams)
{
	return add(phGraphNode, hGraph, dependencies, dependencyData, numDependencies, nodeParams);
}

CUresult sim_cuGraphAddNode(CUgraphNode *phGraphNode, CUgraph hGraph, const CUgraphNode *dependencies,
                            size_t numDependencies, CUgraphNodeParams *nodeParams)
{
	return add(phGraphNode, hGraph, dependencies, NULL, numDependencies, nodeParams);
}

/* ---- parameters --------------------------------------------------------------------------------------------------- */

/* The parameters of a node, if it is of this type. */
static CUresult get(CUgraphNode handle, CUgraphNodeType type, CUgraphNodeParams *params)
{
	pthread_mutex_lock(&sim_graph_mutex);
	const struct sim_graph_node *node = sim_graph_node_of(handle);
	bool fits = node && node->work.params.type == type;
	if (fits)
		*params = node->work.params;
	if (fits && type == CU_GRAPH_NODE_TYPE_KERNEL && !params->kernel.func)
		params->kernel.func = (CUfunction)node->work.function;
	pthread_mutex_unlock(&sim_graph_mutex);
	return fits ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* What a getter of one field gives: its beginning, as far as the caller's version of it goes. */
static CUresult give(CUgraphNode handle, CUgraphNodeType type, size_t offset, void *out, size_t bytes)
{
	CUgraphNodeParams params;
	CUresult error = out ? get(handle, type, &params) : CUDA_ERROR_INVALID_VALUE;
	if (error == CUDA_SUCCESS)
		memcpy(out, (const char *)&params + offset, bytes);
	return error;
}
#define GIVE(node, TYPE, field, out)                                                                                   \
	give(node, CU_GRAPH_NODE_TYPE_##TYPE, offsetof(CUgraphNodeParams, field), out, sizeof(*(out)))

static CUresult set(CUgraphNode handle, const CUgraphNodeParams *params)
{
	pthread_mutex_lock(&sim_graph_mutex);
	struct sim_graph_node *node = sim_graph_node_of(handle);
	CUresult error = node ? sim_graph_work_change(node, params, false) : CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_unlock(&sim_graph_mutex);
	return error;
}

CUresult sim_cuGraphNodeSetParams(CUgraphNode hNode, CUgraphNodeParams *nodeParams)
{
	return nodeParams ? set(hNode, nodeParams) : CUDA_ERROR_INVALID_VALUE;
}

CUresult sim_cuGraphNodeGetParams(CUgraphNode hNode, CUgraphNodeParams *nodeParams)
{
	pthread_mutex_lock(&sim_graph_mutex);
	const struct sim_graph_node *node = sim_graph_node_of(hNode);
	bool known = node && nodeParams;
	if (known)
		*nodeParams = node->work.params;
	pthread_mutex_unlock(&sim_graph_mutex);
	return known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* ---- kernels ------------------------------------------------------------------------------------------------------ */

CUresult sim_cuGraphAddKernelNode_v2(CUgraphNode *phGraphNode, CUgraph hGraph, const CUgraphNode *dependencies,
                                     size_t numDependencies, const CUDA_KERNEL_NODE_PARAMS *nodeParams)
{
	CUgraphNodeParams params;
	if (!SIM_GRAPH_PARAMS(&params, KERNEL, kernel, nodeParams))
		return CUDA_ERROR_INVALID_VALUE;
	return add(phGraphNode, hGraph, dependencies, NULL, numDependencies, &params);
}

CUresult sim_cuGraphAddKernelNode(CUgraphNode *phGraphNode, CUgraph hGraph, const CUgraphNode *dependencies,
                                  size_t numDependencies, const CUDA_KERNEL_NODE_PARAMS_v1 *nodeParams)
{
	CUgraphNodeParams params;
	if (!SIM_GRAPH_PARAMS(&params, KERNEL, kernel, nodeParams))
		return CUDA_ERROR_INVALID_VALUE;
	return add(phGraphNode, hGraph, dependencies, NULL, numDependencies, &params);
}

CUresult sim_cuGraphKernelNodeGetParams_v2(CUgraphNode hNode, CUDA_KERNEL_NODE_PARAMS *nodeParams)
{
	return GIVE(hNode, KERNEL, kernel, nodeParams);
}

CUresult sim_cuGraphKernelNodeGetParams(CUgraphNode hNode, CUDA_KERNEL_NODE_PARAMS_v1 *nodeParams)
{
	return GIVE(hNode, KERNEL, kernel, nodeParams);
}

CUresult sim_cuGraphKernelNodeSetParams_v2(CUgraphNode hNode, const CUDA_KERNEL_NODE_PARAMS *nodeParams)
{
	CUgraphNodeParams params;
	if (!SIM_GRAPH_PARAMS(&params, KERNEL, kernel, nodeParams))
		return CUDA_ERROR_INVALID_VALUE;
	return set(hNode, &params);
}

CUresult sim_cuGraphKernelNodeSetParams(CUgraphNode hNode, const CUDA_KERNEL_NODE_PARAMS_v1 *nodeParams)
{
	CUgraphNodeParams params;
	if (!SIM_GRAPH_PARAMS(&params, KERNEL, kernel, nodeParams))
		return CUDA_ERROR_INVALID_VALUE;
	return set(hNode, &params);
}

/* ---- copies and fills --------------------------------------------------------------------------------------------- */

CUresult sim_cuGraphAddMemcpyNode(CUgraphNode *phGraphNode, CUgraph hGraph, const CUgraphNode *dependencies,
                                  size_t numDependencies, const CUDA_MEMCPY3D *copyParams, CUcontext ctx)
{
	CUgraphNodeParams params;
	if (!SIM_GRAPH_PARAMS(&params, MEMCPY, memcpy.copyParams, copyParams))
		return CUDA_ERROR_INVALID_VALUE;
	params.memcpy.copyCtx = ctx;
	return add(phGraphNode, hGraph, dependencies, NULL, numDependencies, &params);
}

CUresult sim_cuGraphMemcpyNodeGetParams(CUgraphNode hNode, CUDA_MEMCPY3D *nodeParams)
{
	return GIVE(hNode, MEMCPY, memcpy.copyParams, nodeParams);
}

/* The call has no context: the node's stays. */
CUresult sim_cuGraphMemcpyNodeSetParams(CUgraphNode hNode, const CUDA_MEMCPY3D *nodeParams)
{
	CUgraphNodeParams params;
	CUresult error = nodeParams ? get(hNode, CU_GRAPH_NODE_TYPE_MEMCPY, &params) : CUDA_ERROR_INVALID_VALUE;
	if (error != CUDA_SUCCESS)
		return error;
	params.memcpy.copyParams = *nodeParams;
	return set(hNode, &params);
}

CUresult sim_cuGraphAddMemsetNode(CUgraphNode *phGraphNode, CUgraph hGraph, const CUgraphNode *dependencies,
                                  size_t numDependencies, const CUDA_MEMSET_NODE_PARAMS *memsetParams, CUcontext ctx)
{
	CUgraphNodeParams params;
	if (!SIM_GRAPH_PARAMS(&params, MEMSET, memset, memsetParams))
		return CUDA_ERROR_INVALID_VALUE;
	params.memset.ctx = ctx;
	return add(phGraphNode, hGraph, dependencies, NULL, numDependencies, &params);
}

CUresult sim_cuGraphMemsetNodeGetParams(CUgraphNode hNode, CUDA_MEMSET_NODE_PARAMS *nodeParams)
{
	return GIVE(hNode, MEMSET, memset, nodeParams);
}

/* Nor has this one. */
CUresult sim_cuGraphMemsetNodeSetParams(CUgraphNode hNode, const CUDA_MEMSET_NODE_PARAMS *nodeParams)
{
	CUgraphNodeParams params;
	CUresult error = nodeParams ? get(hNode, CU_GRAPH_NODE_TYPE_MEMSET, &params) : CUDA_ERROR_INVALID_VALUE;
	if (error != CUDA_SUCCESS)
		return error;
	memcpy(&params.memset, nodeParams, sizeof(*nodeParams));
	return set(hNode, &params);
}

/* ---- host functions, children, joints ----------------------------------------------------------------------------- */

CUresult sim_cuGraphAddHostNode(CUgraphNode *phGraphNode, CUgraph hGraph, const CUgraphNode *dependencies,
                                size_t numDependencies, const CUDA_HOST_NODE_PARAMS *nodeParams)
{
	CUgraphNodeParams params;
	if (!SIM_GRAPH_PARAMS(&params, HOST, host, nodeParams))
		return CUDA_ERROR_INVALID_VALUE;
	return add(phGraphNode, hGraph, dependencies, NULL, numDependencies, &params);
}

CUresult sim_cuGraphHostNodeGetParams(CUgraphNode hNode, CUDA_HOST_NODE_PARAMS *nodeParams)
{
	return GIVE(hNode, HOST, host, nodeParams);
}

CUresult sim_cuGraphHostNodeSetParams(CUgraphNode hNode, const CUDA_HOST_NODE_PARAMS *nodeParams)
{
	CUgraphNodeParams params;
	if (!SIM_GRAPH_PARAMS(&params, HOST, host, nodeParams))
		return CUDA_ERROR_INVALID_VALUE;
	return set(hNode, &params);
}

CUresult sim_cuGraphAddChildGraphNode(CUgraphNode *phGraphNode, CUgraph hGraph, const CUgraphNode *dependencies,
                                      size_t numDependencies, CUgraph childGraph)
{
	CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_GRAPH};
	params.graph.graph = childGraph;
	return add(phGraphNode, hGraph, dependencies, NULL, numDependencies, &params);
}

CUresult sim_cuGraphChildGraphNodeGetGraph(CUgraphNode hNode, CUgraph *phGraph)
{
	return GIVE(hNode, GRAPH, graph.graph, phGraph);
}

CUresult sim_cuGraphAddEmptyNode(CUgraphNode *phGraphNode, CUgraph hGraph, const CUgraphNode *dependencies,
                                 size_t numDependencies)
{
	CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_EMPTY};
	return add(phGraphNode, hGraph, dependencies, NULL, numDependencies, &params);
}

/* ---- events ------------------------------------------------------------------------------------------------------- */

CUresult sim_cuGraphAddEventRecordNode(CUgraphNode *phGraphNode, CUgraph hGraph, const CUgraphNode *dependencies,
                                       size_t numDependencies, CUevent event)
{
	CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_EVENT_RECORD, .eventRecord.event = event};
	return add(phGraphNode, hGraph, dependencies, NULL, numDependencies, &params);
}

CUresult sim_cuGraphEventRecordNodeGetEvent(CUgraphNode hNode, CUevent *event_out)
{
	return GIVE(hNode, EVENT_RECORD, eventRecord.event, event_out);
}

CUresult sim_cuGraphEventRecordNodeSetEvent(CUgraphNode hNode, CUevent event)
{
	CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_EVENT_RECORD, .eventRecord.event = event};
	return set(hNode, &params);
}

CUresult sim_cuGraphAddEventWaitNode(CUgraphNode *phGraphNode, CUgraph hGraph, const CUgraphNode *dependencies,
                                     size_t numDependencies, CUevent event)
{
	CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_WAIT_EVENT, .eventWait.event = event};
	return add(phGraphNode, hGraph, dependencies, NULL, numDependencies, &params);
}

CUresult sim_cuGraphEventWaitNodeGetEvent(CUgraphNode hNode, CUevent *event_out)
{
	return GIVE(hNode, WAIT_EVENT, eventWait.event, event_out);
}

CUresult sim_cuGraphEventWaitNodeSetEvent(CUgraphNode hNode, CUevent event)
{
	CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_WAIT_EVENT, .eventWait.event = event};
	return set(hNode, &params);
}

/* ---- memory operations and memory --------------------------------------------------------------------------------- */

CUresult sim_cuGraphAddBatchMemOpNode(CUgraphNode *phGraphNode, CUgraph hGraph, const CUgraphNode *dependencies,
                                      size_t numDependencies, const CUDA_BATCH_MEM_OP_NODE_PARAMS *nodeParams)
{
	CUgraphNodeParams params;
	if (!SIM_GRAPH_PARAMS(&params, BATCH_MEM_OP, memOp, nodeParams))
		return CUDA_ERROR_INVALID_VALUE;
	return add(phGraphNode, hGraph, dependencies, NULL, numDependencies, &params);
}

CUresult sim_cuGraphBatchMemOpNodeGetParams(CUgraphNode hNode, CUDA_BATCH_MEM_OP_NODE_PARAMS *nodeParams_out)
{
	return GIVE(hNode, BATCH_MEM_OP, memOp, nodeParams_out);
}

CUresult sim_cuGraphBatchMemOpNodeSetParams(CUgraphNode hNode, const CUDA_BATCH_MEM_OP_NODE_PARAMS *nodeParams)
{
	CUgraphNodeParams params;
	if (!SIM_GRAPH_PARAMS(&params, BATCH_MEM_OP, memOp, nodeParams))
		return CUDA_ERROR_INVALID_VALUE;
	return set(hNode, &params);
}

CUresult sim_cuGraphAddMemAllocNode(CUgraphNode *phGraphNode, CUgraph hGraph, const CUgraphNode *dependencies,
                                    size_t numDependencies, CUDA_MEM_ALLOC_NODE_PARAMS *nodeParams)
{
	CUgraphNodeParams params;
	if (!SIM_GRAPH_PARAMS(&params, MEM_ALLOC, alloc, nodeParams))
		return CUDA_ERROR_INVALID_VALUE;
	CUresult error = add(phGraphNode, hGraph, dependencies, NULL, numDependencies, &params);
	if (error == CUDA_SUCCESS)
		nodeParams->dptr = params.alloc.dptr;
	return error;
}

CUresult sim_cuGraphMemAllocNodeGetParams(CUgraphNode hNode, CUDA_MEM_ALLOC_NODE_PARAMS *params_out)
{
	return GIVE(hNode, MEM_ALLOC, alloc, params_out);
}

CUresult sim_cuGraphAddMemFreeNode(CUgraphNode *phGraphNode, CUgraph hGraph, const CUgraphNode *dependencies,
                                   size_t numDependencies, CUdeviceptr dptr)
{
	CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_MEM_FREE};
	params.free.dptr = dptr;
	return add(phGraphNode, hGraph, dependencies, NULL, numDependencies, &params);
}

CUresult sim_cuGraphMemFreeNodeGetParams(CUgraphNode hNode, CUdeviceptr *dptr_out)
{
	return GIVE(hNode, MEM_FREE, free.dptr, dptr_out);
}
