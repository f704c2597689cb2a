/* graph_exec.c: executables: instantiation, and the plan by which their steps run.
 *
 * Called by programs. Instantiation clones the graph, so that later changes of either do not touch the other, and lays
 * out the steps: children and the chosen bodies of conditionals are put in their places, and each step is given a lane,
 * that of a step before it where that one has no other heir, else a new one. What can go wrong: a cycle, a conditional
 * handle that no node uses, a second executable of a graph with memory or conditional nodes.
 */
#include <stdlib.h>
#include <string.h>

#include "graph.h"
#include "sim_impl.h"

#define FLAGS                                                                                                          \
	(CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH | CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH |                 \
	 CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY)

struct sim_graph_exec *sim_graph_exec_of(CUgraphExec handle)
{
	return sim_handle_is(handle, SIM_TAG_GRAPH_EXEC) ? (struct sim_graph_exec *)handle : NULL;
}

/* ---- steps ------------------------------------------------------------------------------------------------------- */

static void drop_steps(struct sim_graph_exec *exec)
{
	for (unsigned i = 0; i < exec->steps; i++)
		free(exec->step[i].from);
	free(exec->step);
	free(exec->lane);
	exec->step = NULL;
	exec->lane = NULL;
	exec->steps = exec->lanes = 0;
}

/* A step after those in `from`; SIM_GRAPH_NONE: no memory. Room grows by doubling. */
static unsigned step_new(struct sim_graph_exec *exec, struct sim_graph_node *node, const unsigned *from,
                         unsigned from_count)
{
	unsigned at = exec->steps;
	if ((at & (at - 1)) == 0) {
		struct sim_graph_step *larger = realloc(exec->step, (at ? at * 2 : 1) * sizeof(*larger));
		if (!larger)
			return SIM_GRAPH_NONE;
		exec->step = larger;
	}
	struct sim_graph_step *step = &exec->step[at];
	*step = (struct sim_graph_step){
	        .node = node, .context = node ? node->work.context : NULL, .from_count = from_count};
	step->from = malloc((from_count ? from_count : 1) * sizeof(*step->from));
	if (!step->from)
		return SIM_GRAPH_NONE;
	if (from_count)
		memcpy(step->from, from, from_count * sizeof(*from));
	exec->steps++;
	return at;
}

/* The steps that a node of the graph comes after: those of its dependencies, else the graph's entry. */
static unsigned *steps_before(const struct sim_graph_node *node, unsigned entry, unsigned *count)
{
	unsigned *from = malloc((node->from.count + 1) * sizeof(*from));
	*count = 0;
	for (size_t i = 0; from && i < node->from.count; i++)
		from[(*count)++] = node->from.edge[i].node->step;
	if (from && *count == 0 && entry != SIM_GRAPH_NONE)
		from[(*count)++] = entry;
	return from;
}

/* What a node that holds graphs runs; NULL: nothing. Nobody can set the condition anew: a loop runs once. */
static struct sim_graph *body_of(const struct sim_graph_node *node)
{
	const struct sim_graph_work *work = &node->work;
	if (work->params.type == CU_GRAPH_NODE_TYPE_GRAPH)
		return work->graph[0];
	const struct sim_graph_conditional *conditional =
	        sim_graph_conditional_of(node->graph, work->params.conditional.handle);
	unsigned value = conditional ? conditional->value : 0;
	if (work->params.conditional.type != CU_GRAPH_COND_TYPE_SWITCH)
		value = value ? 0 : 1;
	return value < work->graphs ? work->graph[value] : NULL;
}

static CUresult expand(struct sim_graph_exec *exec, const struct sim_graph *graph, unsigned entry,
                       struct sim_graph_node **bad);

/* A node that holds graphs: a joint before its body and one behind all ends of the body. */
static CUresult expand_node(struct sim_graph_exec *exec, struct sim_graph_node *node, const unsigned *from,
                            unsigned from_count, struct sim_graph_node **bad)
{
	const struct sim_graph *body = body_of(node);
	unsigned entry = step_new(exec, NULL, from, from_count), ends = 0;
	if (entry == SIM_GRAPH_NONE)
		return CUDA_ERROR_OUT_OF_MEMORY;
	node->step = entry;
	if (!body || !body->count)
		return CUDA_SUCCESS;
	CUresult error = expand(exec, body, entry, bad);
	if (error != CUDA_SUCCESS)
		return error;
	unsigned *end = malloc(body->count * sizeof(*end));
	if (!end)
		return CUDA_ERROR_OUT_OF_MEMORY;
	for (const struct sim_graph_node *inner = body->first; inner; inner = inner->next)
		if (!inner->to.count)
			end[ends++] = inner->step;
	node->step = step_new(exec, NULL, end, ends);
	free(end);
	return node->step == SIM_GRAPH_NONE ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

static CUresult expand(struct sim_graph_exec *exec, const struct sim_graph *graph, unsigned entry,
                       struct sim_graph_node **bad)
{
	struct sim_graph_node **order = sim_graph_order(graph, bad);
	CUresult error = CUDA_SUCCESS;
	if (!order)
		return *bad ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_OUT_OF_MEMORY;
	for (size_t i = 0; i < graph->count && error == CUDA_SUCCESS; i++) {
		unsigned from_count, *from = steps_before(order[i], entry, &from_count);
		if (!from) {
			error = CUDA_ERROR_OUT_OF_MEMORY;
		} else if (order[i]->work.graphs) {
			error = expand_node(exec, order[i], from, from_count, bad);
		} else {
			order[i]->step = step_new(exec, order[i], from, from_count);
			if (order[i]->step == SIM_GRAPH_NONE)
				error = CUDA_ERROR_OUT_OF_MEMORY;
		}
		free(from);
	}
	free(order);
	return error;
}

/* ---- lanes ------------------------------------------------------------------------------------------------------- */

/* The lane of a step before this one that ends there and is in the same context, else a new one. */
static unsigned lane_for(struct sim_graph_exec *exec, const struct sim_graph_step *step, const unsigned *tail)
{
	for (unsigned i = 0; i < step->from_count; i++) {
		unsigned lane = exec->step[step->from[i]].lane;
		bool fits = !step->context || !exec->lane[lane] || exec->lane[lane] == step->context;
		if (tail[lane] == step->from[i] && fits)
			return lane;
	}
	return exec->lanes++;
}

static CUresult assign_lanes(struct sim_graph_exec *exec)
{
	unsigned *tail = calloc(exec->steps + 1, sizeof(*tail));
	exec->lane = calloc(exec->steps + 1, sizeof(struct sim_context *));
	if (!tail || !exec->lane) {
		free(tail);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	for (unsigned i = 0; i < exec->steps; i++) {
		struct sim_graph_step *step = &exec->step[i];
		step->lane = lane_for(exec, step, tail);
		tail[step->lane] = i;
		if (step->context)
			exec->lane[step->lane] = step->context;
		for (unsigned k = 0; k < step->from_count; k++) {
			struct sim_graph_step *before = &exec->step[step->from[k]];
			before->followed = true;
			before->recorded = before->recorded || before->lane != step->lane;
		}
	}
	for (unsigned i = 0; i < exec->steps; i++) /* the launching stream waits for the ends */
		exec->step[i].recorded = exec->step[i].recorded || !exec->step[i].followed;
	free(tail);
	return CUDA_SUCCESS;
}

CUresult sim_graph_plan(struct sim_graph_exec *exec, struct sim_graph_node **bad)
{
	*bad = NULL;
	drop_steps(exec);
	CUresult error = expand(exec, exec->graph, SIM_GRAPH_NONE, bad);
	if (error == CUDA_SUCCESS)
		error = assign_lanes(exec);
	if (error != CUDA_SUCCESS)
		drop_steps(exec);
	return error;
}

/* ---- instantiation ----------------------------------------------------------------------------------------------- */

static void exec_free(struct sim_graph_exec *exec)
{
	if (exec->source && sim_graph_of((CUgraph)exec->source) && exec->source->id == exec->source_id)
		exec->source->executables--;
	drop_steps(exec);
	if (exec->graph)
		sim_graph_free(exec->graph);
	if (exec->done) {
		pthread_mutex_lock(&sim_engine_mutex);
		sim_event_put(exec->done);
		pthread_mutex_unlock(&sim_engine_mutex);
	}
	pthread_mutex_destroy(&exec->launching);
	free(exec);
}

void sim_graph_exec_put(struct sim_graph_exec *exec)
{
	pthread_mutex_lock(&sim_graph_mutex);
	if (--exec->refs == 0)
		exec_free(exec);
	pthread_mutex_unlock(&sim_graph_mutex);
}

static bool all_used(const struct sim_graph *graph)
{
	for (const struct sim_graph_conditional *c = graph->conditionals; c; c = c->next)
		if (!c->used)
			return false;
	return true;
}

/* What may be launched from the device: work in one context that needs no host. */
static CUgraphInstantiateResult check_device_launch(const struct sim_graph *graph, struct sim_graph_node **bad)
{
	const struct sim_context *context = NULL;
	for (struct sim_graph_node *node = graph->first; node; node = node->next) {
		*bad = node;
		if (node->work.params.type == CU_GRAPH_NODE_TYPE_GRAPH) {
			CUgraphInstantiateResult inner = check_device_launch(node->work.graph[0], bad);
			if (inner != CUDA_GRAPH_INSTANTIATE_SUCCESS)
				return inner;
			continue;
		}
		if (node->work.params.type > CU_GRAPH_NODE_TYPE_MEMSET)
			return CUDA_GRAPH_INSTANTIATE_NODE_OPERATION_NOT_SUPPORTED;
		if (context && node->work.context != context)
			return CUDA_GRAPH_INSTANTIATE_MULTIPLE_CTXS_NOT_SUPPORTED;
		context = node->work.context;
	}
	*bad = NULL;
	return graph->count ? CUDA_GRAPH_INSTANTIATE_SUCCESS : CUDA_GRAPH_INSTANTIATE_INVALID_STRUCTURE;
}

static CUgraphInstantiateResult check(const struct sim_graph *graph, uint64_t flags, struct sim_graph_node **bad)
{
	bool device = flags & CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH;
	*bad = NULL;
	if (!graph || graph->parent || graph->capture || (flags & ~(uint64_t)FLAGS))
		return CUDA_GRAPH_INSTANTIATE_ERROR;
	if (device && (flags & CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH))
		return CUDA_GRAPH_INSTANTIATE_ERROR;
	if ((graph->has_memory || graph->has_conditionals) && graph->executables)
		return CUDA_GRAPH_INSTANTIATE_ERROR;
	if (!all_used(graph))
		return CUDA_GRAPH_INSTANTIATE_CONDITIONAL_HANDLE_UNUSED;
	return device ? check_device_launch(graph, bad) : CUDA_GRAPH_INSTANTIATE_SUCCESS;
}

static struct sim_graph_exec *exec_new(struct sim_graph *graph, uint64_t flags)
{
	struct sim_graph_exec *exec = calloc(1, sizeof(*exec));
	if (!exec)
		return NULL;
	exec->tag = SIM_TAG_GRAPH_EXEC;
	exec->refs = 1;
	exec->flags = flags;
	pthread_mutex_init(&exec->launching, NULL);
	exec->graph = sim_graph_clone(graph, NULL);
	exec->done = calloc(1, sizeof(*exec->done));
	if (exec->done)
		exec->done->refs = 1;
	if (!exec->graph || !exec->done) {
		exec_free(exec);
		return NULL;
	}
	exec->source = graph;
	exec->source_id = graph->id;
	graph->executables++;
	return exec;
}

/* Makes it and says in *params how that went. */
static CUresult instantiate(CUgraphExec *out, CUgraph handle, CUDA_GRAPH_INSTANTIATE_PARAMS *params)
{
	struct sim_graph *graph = sim_graph_of(handle);
	struct sim_graph_node *bad;
	params->hErrNode_out = NULL;
	params->result_out = check(graph, params->flags, &bad);
	params->hErrNode_out = (CUgraphNode)bad;
	if (!out)
		params->result_out = CUDA_GRAPH_INSTANTIATE_ERROR;
	if (params->result_out != CUDA_GRAPH_INSTANTIATE_SUCCESS)
		return CUDA_ERROR_INVALID_VALUE;
	struct sim_graph_exec *exec = exec_new(graph, params->flags);
	CUresult error = exec ? sim_graph_plan(exec, &bad) : CUDA_ERROR_OUT_OF_MEMORY;
	if (error == CUDA_SUCCESS) {
		sim_handle_add(exec, SIM_TAG_GRAPH_EXEC);
		*out = (CUgraphExec)exec;
		return CUDA_SUCCESS;
	}
	params->result_out = bad ? CUDA_GRAPH_INSTANTIATE_INVALID_STRUCTURE : CUDA_GRAPH_INSTANTIATE_ERROR;
	for (struct sim_graph_node *node = graph->first; bad && node; node = node->next)
		if (node->id == bad->origin)
			params->hErrNode_out = (CUgraphNode)node;
	if (exec)
		exec_free(exec);
	return error;
}

static CUresult instantiate_with(CUgraphExec *out, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params)
{
	pthread_mutex_lock(&sim_graph_mutex);
	CUresult error = instantiate(out, graph, params);
	pthread_mutex_unlock(&sim_graph_mutex);
	return error;
}

CUresult sim_cuGraphInstantiateWithFlags(CUgraphExec *phGraphExec, CUgraph hGraph, unsigned long long flags)
{
	CUDA_GRAPH_INSTANTIATE_PARAMS params = {.flags = flags};
	return instantiate_with(phGraphExec, hGraph, &params);
}

CUresult sim_cuGraphInstantiate_v2(CUgraphExec *phGraphExec, CUgraph hGraph, CUgraphNode *phErrorNode, char *logBuffer,
                                   size_t bufferSize)
{
	CUDA_GRAPH_INSTANTIATE_PARAMS params = {.flags = 0};
	CUresult error = instantiate_with(phGraphExec, hGraph, &params);
	if (phErrorNode)
		*phErrorNode = params.hErrNode_out;
	if (logBuffer && bufferSize)
		*logBuffer = '\0';
	return error;
}

CUresult sim_cuGraphInstantiateWithParams(CUgraphExec *phGraphExec, CUgraph hGraph,
                                          CUDA_GRAPH_INSTANTIATE_PARAMS *instantiateParams)
{
	CUresult error = CUDA_SUCCESS;
	if (!instantiateParams)
		return CUDA_ERROR_INVALID_VALUE;
	bool upload = instantiateParams->flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD;
	CUDA_GRAPH_INSTANTIATE_PARAMS params = *instantiateParams;
	params.flags &= ~(uint64_t)CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD;
	struct sim_stream *stream = upload ? sim_stream_of(params.hUploadStream, &error) : NULL;
	if (error == CUDA_SUCCESS)
		error = instantiate_with(phGraphExec, hGraph, &params);
	else
		params.result_out = CUDA_GRAPH_INSTANTIATE_ERROR;
	if (error == CUDA_SUCCESS && upload) {
		error = sim_graph_upload((struct sim_graph_exec *)*phGraphExec, stream);
		if (error != CUDA_SUCCESS) {
			params.result_out = CUDA_GRAPH_INSTANTIATE_ERROR;
			sim_cuGraphExecDestroy(*phGraphExec);
		}
	}
	instantiateParams->result_out = params.result_out;
	instantiateParams->hErrNode_out = params.hErrNode_out;
	return error;
}

/* ---- what an executable is asked ---------------------------------------------------------------------------------- */

CUresult sim_cuGraphExecDestroy(CUgraphExec hGraphExec)
{
	pthread_mutex_lock(&sim_graph_mutex);
	struct sim_graph_exec *exec = sim_graph_exec_of(hGraphExec);
	if (exec)
		sim_handle_drop(exec);
	pthread_mutex_unlock(&sim_graph_mutex);
	if (!exec)
		return CUDA_ERROR_INVALID_VALUE;
	sim_graph_exec_put(exec); /* what runs goes on: it has copies of all it needs */
	return CUDA_SUCCESS;
}

CUresult sim_cuGraphExecGetFlags(CUgraphExec hGraphExec, cuuint64_t *flags)
{
	pthread_mutex_lock(&sim_graph_mutex);
	const struct sim_graph_exec *exec = sim_graph_exec_of(hGraphExec);
	bool known = exec && flags;
	if (known)
		*flags = exec->flags;
	pthread_mutex_unlock(&sim_graph_mutex);
	return known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult sim_cuGraphExecGetId(CUgraphExec hGraphExec, unsigned int *graphId)
{
	pthread_mutex_lock(&sim_graph_mutex);
	const struct sim_graph_exec *exec = sim_graph_exec_of(hGraphExec);
	bool known = exec && graphId;
	if (known)
		*graphId = exec->graph->id;
	pthread_mutex_unlock(&sim_graph_mutex);
	return known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
