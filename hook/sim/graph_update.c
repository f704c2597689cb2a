/* graph_update.c: changing executables: parameters of one node, whether it runs, or all nodes from another graph.
 *
 * Called by programs. A node is named by the graph's node from which the executable's was cloned. Changes hold for later
 * launches: what is queued has its own copies. An update pairs nodes by order of creation and changes all or nothing.
 * What can go wrong: an update that changes the topology or a node in a way that needs a new instantiation
 * (CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE, with the reason), or a single change of that sort (CUDA_ERROR_INVALID_VALUE).
 */
#include <string.h>

#include "graph.h"
#include "sim_impl.h"

/* ---- executables that do not launch meanwhile --------------------------------------------------------------------- */

/* Locks the executable against launches, then the mutex; NULL, and nothing locked, where there is none. */
static struct sim_graph_exec *begin(CUgraphExec handle)
{
	pthread_mutex_lock(&sim_graph_mutex);
	struct sim_graph_exec *exec = sim_graph_exec_of(handle);
	if (exec)
		exec->refs++;
	pthread_mutex_unlock(&sim_graph_mutex);
	if (!exec)
		return NULL;
	pthread_mutex_lock(&exec->launching);
	pthread_mutex_lock(&sim_graph_mutex);
	return exec;
}

static void end(struct sim_graph_exec *exec)
{
	pthread_mutex_unlock(&sim_graph_mutex);
	pthread_mutex_unlock(&exec->launching);
	sim_graph_exec_put(exec);
}

static struct sim_graph_node *node_in(const struct sim_graph_exec *exec, CUgraphNode handle)
{
	const struct sim_graph_node *node = sim_graph_node_of(handle);
	return node ? sim_graph_node_from(exec->graph, node->id) : NULL;
}

/* ---- all nodes ---------------------------------------------------------------------------------------------------- */

static bool fail(CUgraphExecUpdateResultInfo *info, CUgraphExecUpdateResult result, struct sim_graph_node *node,
                 struct sim_graph_node *from)
{
	info->result = result;
	info->errorNode = (CUgraphNode)node;
	info->errorFromNode = (CUgraphNode)from;
	return false;
}

/* The edges of two paired nodes lead to paired nodes: those with the same mark. */
static bool same_edges(const struct sim_graph_node *now, struct sim_graph_node *next, CUgraphExecUpdateResultInfo *info)
{
	if (now->from.count != next->from.count)
		return fail(info, CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED, next, NULL);
	for (size_t i = 0; i < next->from.count; i++) {
		bool found = false;
		for (size_t k = 0; k < now->from.count && !found; k++)
			found = now->from.edge[k].node->mark == next->from.edge[i].node->mark;
		if (!found)
			return fail(info, CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED, next, next->from.edge[i].node);
	}
	return true;
}

static bool same_node(const struct sim_graph_node *now, struct sim_graph_node *next, CUgraphExecUpdateResultInfo *info)
{
	if (now->work.params.type != next->work.params.type)
		return fail(info, CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED, next, NULL);
	if (sim_graph_work_fits(&now->work, &next->work))
		return true;
	bool kernel = now->work.params.type == CU_GRAPH_NODE_TYPE_KERNEL;
	if (kernel && now->work.context != next->work.context)
		return fail(info, CU_GRAPH_EXEC_UPDATE_ERROR_UNSUPPORTED_FUNCTION_CHANGE, next, NULL);
	return fail(info,
	            kernel ? CU_GRAPH_EXEC_UPDATE_ERROR_ATTRIBUTES_CHANGED
	                   : CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED,
	            next, NULL);
}

static void number(struct sim_graph *graph)
{
	unsigned place = 0;
	for (struct sim_graph_node *node = graph->first; node; node = node->next)
		node->mark = place++;
}

static bool same_graph(struct sim_graph *now, struct sim_graph *next, CUgraphExecUpdateResultInfo *info)
{
	if (now->count != next->count)
		return fail(info, CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED, NULL, NULL);
	number(now);
	number(next);
	struct sim_graph_node *other = next->first;
	for (struct sim_graph_node *node = now->first; node; node = node->next, other = other->next)
		if (!same_node(node, other, info) || !same_edges(node, other, info))
			return false;
	other = next->first;
	for (struct sim_graph_node *node = now->first; node; node = node->next, other = other->next)
		for (unsigned i = 0; i < node->work.graphs; i++)
			if (!same_graph(node->work.graph[i], other->work.graph[i], info))
				return false;
	return true;
}

static CUresult take_over_node(struct sim_graph_node *node, const struct sim_graph_node *other);

/* What a graph was found to fit becomes its own. */
static CUresult take_over(struct sim_graph *now, const struct sim_graph *next)
{
	CUresult error = CUDA_SUCCESS;
	struct sim_graph_conditional *to = now->conditionals;
	for (const struct sim_graph_conditional *from = next->conditionals; from && to;
	     from = from->next, to = to->next)
		to->value = from->value;
	const struct sim_graph_node *other = next->first;
	for (struct sim_graph_node *node = now->first; node && error == CUDA_SUCCESS;
	     node = node->next, other = other->next)
		error = take_over_node(node, other);
	return error;
}

static CUresult take_over_node(struct sim_graph_node *node, const struct sim_graph_node *other)
{
	struct sim_graph_node copy = {.graph = node->graph};
	if (node->work.graphs) {
		CUresult error = CUDA_SUCCESS;
		for (unsigned i = 0; i < node->work.graphs && error == CUDA_SUCCESS; i++)
			error = take_over(node->work.graph[i], other->work.graph[i]);
		return error;
	}
	if (!sim_graph_work_copy(&other->work, &copy)) {
		sim_graph_work_drop(&copy.work);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	sim_graph_work_drop(&node->work);
	node->work = copy.work;
	return CUDA_SUCCESS;
}

static CUresult update(struct sim_graph_exec *exec, struct sim_graph *graph, CUgraphExecUpdateResultInfo *info)
{
	struct sim_graph_node *bad;
	if (!graph || graph->capture || graph->parent) {
		info->result = CU_GRAPH_EXEC_UPDATE_ERROR;
		return CUDA_ERROR_INVALID_VALUE;
	}
	if (!same_graph(exec->graph, graph, info))
		return CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
	CUresult error = take_over(exec->graph, graph);
	if (error == CUDA_SUCCESS) /* conditions, and with them the steps, may be others now */
		error = sim_graph_plan(exec, &bad);
	info->result = error == CUDA_SUCCESS ? CU_GRAPH_EXEC_UPDATE_SUCCESS : CU_GRAPH_EXEC_UPDATE_ERROR;
	return error;
}

CUresult sim_cuGraphExecUpdate_v2(CUgraphExec hGraphExec, CUgraph hGraph, CUgraphExecUpdateResultInfo *resultInfo)
{
	CUgraphExecUpdateResultInfo info = {.result = CU_GRAPH_EXEC_UPDATE_ERROR};
	struct sim_graph_exec *exec = resultInfo ? begin(hGraphExec) : NULL;
	CUresult error = CUDA_ERROR_INVALID_VALUE;
	if (exec) {
		error = update(exec, sim_graph_of(hGraph), &info);
		end(exec);
	}
	if (resultInfo)
		*resultInfo = info;
	return error;
}

CUresult sim_cuGraphExecUpdate(CUgraphExec hGraphExec, CUgraph hGraph, CUgraphNode *hErrorNode_out,
                               CUgraphExecUpdateResult *updateResult_out)
{
	CUgraphExecUpdateResultInfo info;
	if (!updateResult_out)
		return CUDA_ERROR_INVALID_VALUE;
	CUresult error = sim_cuGraphExecUpdate_v2(hGraphExec, hGraph, &info);
	*updateResult_out = info.result;
	if (hErrorNode_out)
		*hErrorNode_out = info.errorNode;
	return error;
}

/* ---- one node ------------------------------------------------------------------------------------------------------ */

static CUresult change_child(struct sim_graph_node *node, CUgraph handle)
{
	CUgraphExecUpdateResultInfo info;
	struct sim_graph *graph = sim_graph_of(handle);
	if (!graph || graph->has_memory || node->work.params.type != CU_GRAPH_NODE_TYPE_GRAPH)
		return CUDA_ERROR_INVALID_VALUE;
	return same_graph(node->work.graph[0], graph, &info) ? take_over(node->work.graph[0], graph)
	                                                     : CUDA_ERROR_INVALID_VALUE;
}

static CUresult set(CUgraphExec handle, CUgraphNode node_handle, const CUgraphNodeParams *params)
{
	struct sim_graph_exec *exec = begin(handle);
	if (!exec)
		return CUDA_ERROR_INVALID_VALUE;
	struct sim_graph_node *node = node_in(exec, node_handle);
	CUresult error = CUDA_ERROR_INVALID_VALUE;
	if (node && params->type == CU_GRAPH_NODE_TYPE_GRAPH)
		error = change_child(node, params->graph.graph);
	else if (node)
		error = sim_graph_work_change(node, params, true);
	end(exec);
	return error;
}

CUresult sim_cuGraphExecNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode, CUgraphNodeParams *nodeParams)
{
	return nodeParams ? set(hGraphExec, hNode, nodeParams) : CUDA_ERROR_INVALID_VALUE;
}

CUresult sim_cuGraphExecKernelNodeSetParams_v2(CUgraphExec hGraphExec, CUgraphNode hNode,
                                               const CUDA_KERNEL_NODE_PARAMS *nodeParams)
{
	CUgraphNodeParams params;
	if (!SIM_GRAPH_PARAMS(&params, KERNEL, kernel, nodeParams))
		return CUDA_ERROR_INVALID_VALUE;
	return set(hGraphExec, hNode, &params);
}

CUresult sim_cuGraphExecKernelNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
                                            const CUDA_KERNEL_NODE_PARAMS_v1 *nodeParams)
{
	CUgraphNodeParams params;
	if (!SIM_GRAPH_PARAMS(&params, KERNEL, kernel, nodeParams))
		return CUDA_ERROR_INVALID_VALUE;
	return set(hGraphExec, hNode, &params);
}

CUresult sim_cuGraphExecMemcpyNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode, const CUDA_MEMCPY3D *copyParams,
                                            CUcontext ctx)
{
	CUgraphNodeParams params;
	if (!SIM_GRAPH_PARAMS(&params, MEMCPY, memcpy.copyParams, copyParams))
		return CUDA_ERROR_INVALID_VALUE;
	params.memcpy.copyCtx = ctx;
	return set(hGraphExec, hNode, &params);
}

CUresult sim_cuGraphExecMemsetNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
                                            const CUDA_MEMSET_NODE_PARAMS *memsetParams, CUcontext ctx)
{
	CUgraphNodeParams params;
	if (!SIM_GRAPH_PARAMS(&params, MEMSET, memset, memsetParams))
		return CUDA_ERROR_INVALID_VALUE;
	params.memset.ctx = ctx;
	return set(hGraphExec, hNode, &params);
}

CUresult sim_cuGraphExecHostNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
                                          const CUDA_HOST_NODE_PARAMS *nodeParams)
{
	CUgraphNodeParams params;
	if (!SIM_GRAPH_PARAMS(&params, HOST, host, nodeParams))
		return CUDA_ERROR_INVALID_VALUE;
	return set(hGraphExec, hNode, &params);
}

CUresult sim_cuGraphExecChildGraphNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode, CUgraph childGraph)
{
	CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_GRAPH, .graph.graph = childGraph};
	return set(hGraphExec, hNode, &params);
}

CUresult sim_cuGraphExecEventRecordNodeSetEvent(CUgraphExec hGraphExec, CUgraphNode hNode, CUevent event)
{
	CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_EVENT_RECORD, .eventRecord.event = event};
	return set(hGraphExec, hNode, &params);
}

CUresult sim_cuGraphExecEventWaitNodeSetEvent(CUgraphExec hGraphExec, CUgraphNode hNode, CUevent event)
{
	CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_WAIT_EVENT, .eventWait.event = event};
	return set(hGraphExec, hNode, &params);
}

CUresult sim_cuGraphExecBatchMemOpNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
                                                const CUDA_BATCH_MEM_OP_NODE_PARAMS *nodeParams)
{
	CUgraphNodeParams params;
	if (!SIM_GRAPH_PARAMS(&params, BATCH_MEM_OP, memOp, nodeParams))
		return CUDA_ERROR_INVALID_VALUE;
	return set(hGraphExec, hNode, &params);
}

/* Kernels, copies and fills may be left out. */
static CUresult enabled(CUgraphExec handle, CUgraphNode node_handle, const unsigned *set_to, unsigned *is)
{
	struct sim_graph_exec *exec = begin(handle);
	if (!exec)
		return CUDA_ERROR_INVALID_VALUE;
	struct sim_graph_node *node = node_in(exec, node_handle);
	bool may = node && node->work.params.type <= CU_GRAPH_NODE_TYPE_MEMSET;
	if (may && set_to)
		node->disabled = !*set_to;
	if (may && is)
		*is = !node->disabled;
	end(exec);
	return may ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult sim_cuGraphNodeSetEnabled(CUgraphExec hGraphExec, CUgraphNode hNode, unsigned int isEnabled)
{
	return enabled(hGraphExec, hNode, &isEnabled, NULL);
}

CUresult sim_cuGraphNodeGetEnabled(CUgraphExec hGraphExec, CUgraphNode hNode, unsigned int *isEnabled)
{
	return isEnabled ? enabled(hGraphExec, hNode, NULL, isEnabled) : CUDA_ERROR_INVALID_VALUE;
}
