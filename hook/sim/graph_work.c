/* graph_work.c: what nodes do: from the parameters of a program to items for the engine, and copies of both.
 *
 * Called by the other graph files and by capture.c with the graph mutex held. Parameters are checked, and addresses
 * looked up, when a node is made or changed, not when it is launched. Kernel nodes are graph_kernel.c's, memory nodes
 * graph_memory.c's. Conditions are set by kernels, which here compute nothing: a conditional node goes by the value its
 * handle begins with. What can go wrong: bad parameters (CUDA_ERROR_INVALID_VALUE), types of nodes that this driver
 * does not run, since it has not what they work on: external semaphores, fabrics (CUDA_ERROR_NOT_SUPPORTED).
 */
#include <stdlib.h>
#include <string.h>

#include "context.h"
#include "copy.h"
#include "graph.h"
#include "sim_impl.h"

#define BODIES_MOST 4096 /* of one conditional node */

bool sim_graph_work_runs(const CUgraphNodeParams *params)
{
	return (unsigned)params->type <= CU_GRAPH_NODE_TYPE_CONDITIONAL &&
	       params->type != CU_GRAPH_NODE_TYPE_EXT_SEMAS_SIGNAL && params->type != CU_GRAPH_NODE_TYPE_EXT_SEMAS_WAIT;
}

static struct sim_item *items_new(struct sim_graph_work *work, unsigned count)
{
	work->items = calloc(count ? count : 1, sizeof(*work->items));
	work->count = work->items ? count : 0;
	return work->items;
}

static CUresult set_context(struct sim_graph_work *work, CUcontext handle)
{
	work->context = sim_context_of(handle);
	return work->context ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

/* ---- each type --------------------------------------------------------------------------------------------------- */

static CUresult make_copy(struct sim_graph_work *work)
{
	CUDA_MEMCPY_NODE_PARAMS *params = &work->params.memcpy;
	struct sim_place dst, src;
	struct sim_box box;
	CUresult error = params->flags ? CUDA_ERROR_INVALID_VALUE : set_context(work, params->copyCtx);
	if (error == CUDA_SUCCESS)
		error = sim_box_of(work->context, &params->copyParams, &box, &dst, &src);
	if (error != CUDA_SUCCESS)
		return error;
	struct sim_item *item = items_new(work, 1);
	if (!item)
		return CUDA_ERROR_OUT_OF_MEMORY;
	params->copyCtx = (CUcontext)work->context;
	item->kind = SIM_ITEM_WORK;
	item->work.run = sim_copy_run;
	item->work.arg_size = sizeof(box);
	memcpy(item->work.arg, &box, sizeof(box));
	sim_copy_cost(work->context, &dst, &src, box.width * box.height * box.depth, &item->work);
	return CUDA_SUCCESS;
}

static CUresult make_fill(struct sim_graph_work *work)
{
	CUDA_MEMSET_NODE_PARAMS_v2 *params = &work->params.memset;
	struct sim_fill fill = {.dst = params->dst,
	                        .pitch = params->pitch,
	                        .width = params->width,
	                        .height = params->height,
	                        .value = params->value,
	                        .element = params->elementSize};
	struct sim_place place;
	if (!fill.width || !fill.height || (fill.element != 1 && fill.element != 2 && fill.element != 4))
		return CUDA_ERROR_INVALID_VALUE;
	CUresult error = set_context(work, params->ctx);
	if (error != CUDA_SUCCESS)
		return error;
	struct sim_item *item = items_new(work, 1);
	if (!item)
		return CUDA_ERROR_OUT_OF_MEMORY;
	params->ctx = (CUcontext)work->context;
	item->kind = SIM_ITEM_WORK;
	return sim_fill_work(work->context, &fill, &place, &item->work);
}

static CUresult make_host(struct sim_graph_work *work)
{
	if (!work->params.host.fn)
		return CUDA_ERROR_INVALID_VALUE;
	if (!items_new(work, 1))
		return CUDA_ERROR_OUT_OF_MEMORY;
	sim_host_item(work->items, work->params.host.fn, work->params.host.userData);
	return CUDA_SUCCESS;
}

static CUresult make_event(struct sim_graph_work *work, CUevent handle, enum sim_item_kind kind)
{
	struct sim_stream_event *event = (struct sim_stream_event *)handle;
	if (!sim_handle_is(event, SIM_TAG_EVENT))
		return CUDA_ERROR_INVALID_VALUE;
	struct sim_item *item = items_new(work, 1);
	if (!item)
		return CUDA_ERROR_OUT_OF_MEMORY;
	item->kind = kind;
	item->event = work->event = event;
	pthread_mutex_lock(&sim_engine_mutex);
	event->refs++;
	pthread_mutex_unlock(&sim_engine_mutex);
	return CUDA_SUCCESS;
}

static CUresult make_memops(struct sim_graph_work *work)
{
	CUDA_BATCH_MEM_OP_NODE_PARAMS_v2 *params = &work->params.memOp;
	if (!params->count || params->count > 256 || !params->paramArray || params->flags)
		return CUDA_ERROR_INVALID_VALUE;
	CUresult error = set_context(work, params->ctx);
	if (error != CUDA_SUCCESS)
		return error;
	work->memory_size = params->count * sizeof(*params->paramArray);
	work->memory = malloc(work->memory_size);
	if (!work->memory || !items_new(work, params->count))
		return CUDA_ERROR_OUT_OF_MEMORY;
	memcpy(work->memory, params->paramArray, work->memory_size);
	params->paramArray = work->memory;
	params->ctx = (CUcontext)work->context;
	work->count = 0;
	for (unsigned i = 0; i < params->count && error == CUDA_SUCCESS; i++) {
		bool empty;
		error = sim_memop_item(&params->paramArray[i], &work->items[work->count], &empty);
		work->count += !empty;
	}
	return error;
}

static CUresult make_alloc(struct sim_graph *graph, struct sim_graph_work *work)
{
	CUDA_MEM_ALLOC_NODE_PARAMS_v2 *params = &work->params.alloc;
	CUresult error = sim_graph_block_new(graph, params, &work->block);
	if (error != CUDA_SUCCESS || !params->accessDescCount) {
		params->accessDescs = NULL;
		return error;
	}
	work->memory_size = params->accessDescCount * sizeof(*params->accessDescs);
	work->memory = malloc(work->memory_size);
	if (!work->memory)
		return CUDA_ERROR_OUT_OF_MEMORY;
	memcpy(work->memory, params->accessDescs, work->memory_size);
	params->accessDescs = work->memory;
	return CUDA_SUCCESS;
}

static bool graphs_new(struct sim_graph_work *work, unsigned count)
{
	work->graph = calloc(count, sizeof(struct sim_graph *));
	work->graphs = work->graph ? count : 0;
	return work->graph;
}

/* May this graph become a child of that one? */
static CUresult check_child(struct sim_graph *graph, struct sim_graph *child, bool move)
{
	if (!child || child->capture || sim_graph_root(graph) == child || child->has_conditionals)
		return CUDA_ERROR_INVALID_VALUE;
	if (move && (child->parent || child->executables))
		return CUDA_ERROR_INVALID_VALUE;
	return child->has_memory && !move ? CUDA_ERROR_NOT_SUPPORTED : CUDA_SUCCESS;
}

static CUresult make_child(struct sim_graph *graph, struct sim_graph_work *work)
{
	CUDA_CHILD_GRAPH_NODE_PARAMS *params = &work->params.graph;
	struct sim_graph *child = sim_graph_of(params->graph);
	bool move = params->ownership == CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE;
	if (!move && params->ownership != CU_GRAPH_CHILD_GRAPH_OWNERSHIP_CLONE)
		return CUDA_ERROR_INVALID_VALUE;
	CUresult error = check_child(graph, child, move);
	if (error != CUDA_SUCCESS)
		return error;
	if (!graphs_new(work, 1))
		return CUDA_ERROR_OUT_OF_MEMORY;
	work->graph[0] = move ? child : sim_graph_clone(child, NULL);
	if (!work->graph[0])
		return CUDA_ERROR_OUT_OF_MEMORY;
	work->graph[0]->moved = true;
	params->graph = (CUgraph)work->graph[0];
	params->ownership = CU_GRAPH_CHILD_GRAPH_OWNERSHIP_INVALID;
	return CUDA_SUCCESS;
}

struct sim_graph_conditional *sim_graph_conditional_of(struct sim_graph *graph, CUgraphConditionalHandle handle)
{
	for (; graph; graph = graph->parent ? graph->parent->graph : NULL)
		for (struct sim_graph_conditional *c = graph->conditionals; c; c = c->next)
			if (c->handle == handle)
				return c;
	return NULL;
}

static CUresult make_conditional(struct sim_graph *graph, struct sim_graph_work *work)
{
	CUDA_CONDITIONAL_NODE_PARAMS *params = &work->params.conditional;
	struct sim_graph_conditional *conditional = sim_graph_conditional_of(graph, params->handle);
	unsigned most = params->type == CU_GRAPH_COND_TYPE_IF      ? 2
	                : params->type == CU_GRAPH_COND_TYPE_WHILE ? 1
	                                                           : BODIES_MOST;
	if (!conditional || conditional->used || (unsigned)params->type > CU_GRAPH_COND_TYPE_SWITCH || !params->size ||
	    params->size > most)
		return CUDA_ERROR_INVALID_VALUE;
	CUresult error = set_context(work, params->ctx);
	if (error == CUDA_SUCCESS && work->context != conditional->context)
		error = CUDA_ERROR_INVALID_CONTEXT;
	if (error != CUDA_SUCCESS)
		return error;
	work->memory_size = params->size * sizeof(CUgraph);
	work->memory = calloc(params->size, sizeof(CUgraph));
	if (!work->memory || !graphs_new(work, params->size))
		return CUDA_ERROR_OUT_OF_MEMORY;
	for (unsigned i = 0; i < params->size; i++) {
		work->graph[i] = sim_graph_new();
		if (!work->graph[i])
			return CUDA_ERROR_OUT_OF_MEMORY;
		work->graph[i]->moved = true; /* bodies take no memory nodes */
		((CUgraph *)work->memory)[i] = (CUgraph)work->graph[i];
	}
	params->phGraph_out = work->memory;
	params->ctx = (CUcontext)work->context;
	conditional->used = true;
	return CUDA_SUCCESS;
}

static CUresult make(struct sim_graph *graph, struct sim_graph_work *work)
{
	switch (work->params.type) {
	case CU_GRAPH_NODE_TYPE_MEMCPY:
		return make_copy(work);
	case CU_GRAPH_NODE_TYPE_MEMSET:
		return make_fill(work);
	case CU_GRAPH_NODE_TYPE_HOST:
		return make_host(work);
	case CU_GRAPH_NODE_TYPE_GRAPH:
		return make_child(graph, work);
	case CU_GRAPH_NODE_TYPE_EMPTY:
		return CUDA_SUCCESS;
	case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
		return make_event(work, work->params.eventWait.event, SIM_ITEM_WAIT);
	case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
		return make_event(work, work->params.eventRecord.event, SIM_ITEM_RECORD);
	case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
		return make_alloc(graph, work);
	case CU_GRAPH_NODE_TYPE_MEM_FREE:
		return sim_graph_block_freed(graph, work->params.free.dptr, &work->block);
	case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP:
		return make_memops(work);
	case CU_GRAPH_NODE_TYPE_CONDITIONAL:
		return make_conditional(graph, work);
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
}

CUresult sim_graph_work_make(struct sim_graph *graph, const CUgraphNodeParams *params, struct sim_graph_work *work)
{
	memset(work, 0, sizeof(*work));
	if (!sim_graph_work_runs(params))
		return (unsigned)params->type <= CU_GRAPH_NODE_TYPE_FABRIC_CPY_BATCH ? CUDA_ERROR_NOT_SUPPORTED
		                                                                     : CUDA_ERROR_INVALID_VALUE;
	if (params->type == CU_GRAPH_NODE_TYPE_KERNEL)
		return sim_graph_work_kernel(&params->kernel, NULL, work);
	work->params = *params;
	CUresult error = make(graph, work);
	if (error != CUDA_SUCCESS)
		sim_graph_work_drop(work);
	return error;
}

/* ---- copies ------------------------------------------------------------------------------------------------------ */

void sim_graph_work_drop(struct sim_graph_work *work)
{
	for (unsigned i = 0; i < work->graphs; i++)
		if (work->graph[i])
			sim_graph_free(work->graph[i]);
	if (work->event) {
		pthread_mutex_lock(&sim_engine_mutex);
		sim_event_put(work->event);
		pthread_mutex_unlock(&sim_engine_mutex);
	}
	if (work->block)
		sim_graph_block_put(work->block);
	free(work->graph);
	free(work->items);
	free(work->memory);
	free(work->attribute);
	memset(work, 0, sizeof(*work));
}

static bool copy_of(void **to, const void *from, size_t size)
{
	*to = from ? malloc(size ? size : 1) : NULL;
	if (*to)
		memcpy(*to, from, size);
	return *to || !from;
}

/* What pointed into the original's memory points into the copy's. */
static void relocate(struct sim_graph_work *copy, const struct sim_graph_work *work)
{
	char **word = copy->memory, *old = work->memory;
	CUgraph *bodies;
	for (size_t i = 0; word && i < copy->pointers; i++)
		if (word[i] >= old && word[i] <= old + work->memory_size)
			word[i] = (char *)copy->memory + (word[i] - old);
	switch (copy->params.type) {
	case CU_GRAPH_NODE_TYPE_KERNEL:
		if (copy->params.kernel.kernelParams)
			copy->params.kernel.kernelParams = copy->memory;
		if (copy->params.kernel.extra)
			copy->params.kernel.extra = copy->memory;
		break;
	case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP:
		copy->params.memOp.paramArray = copy->memory;
		break;
	case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
		copy->params.alloc.accessDescs = copy->memory;
		break;
	case CU_GRAPH_NODE_TYPE_CONDITIONAL:
		bodies = copy->params.conditional.phGraph_out = copy->memory;
		for (unsigned i = 0; bodies && i < copy->graphs; i++)
			bodies[i] = (CUgraph)copy->graph[i];
		break;
	case CU_GRAPH_NODE_TYPE_GRAPH:
		if (copy->graphs)
			copy->params.graph.graph = (CUgraph)copy->graph[0];
		break;
	default:
		break;
	}
}

bool sim_graph_work_copy(const struct sim_graph_work *work, struct sim_graph_node *node)
{
	struct sim_graph_work *copy = &node->work;
	*copy = *work;
	copy->items = NULL;
	copy->memory = NULL;
	copy->attribute = NULL;
	copy->graph = NULL;
	copy->graphs = 0;
	if (copy->event) {
		pthread_mutex_lock(&sim_engine_mutex);
		copy->event->refs++;
		pthread_mutex_unlock(&sim_engine_mutex);
	}
	if (copy->block)
		sim_graph_block_keep(copy->block);
	bool done =
	        copy_of((void **)&copy->items, work->items, work->count * sizeof(*work->items)) &&
	        copy_of(&copy->memory, work->memory, work->memory_size) &&
	        copy_of((void **)&copy->attribute, work->attribute, CU_LAUNCH_ATTRIBUTE_MAX * sizeof(*work->attribute));
	if (done && work->graphs)
		done = graphs_new(copy, work->graphs);
	for (unsigned i = 0; done && i < work->graphs; i++) {
		copy->graph[i] = sim_graph_clone(work->graph[i], node);
		done = copy->graph[i];
	}
	if (done)
		relocate(copy, work);
	return done;
}

/* ---- changes ----------------------------------------------------------------------------------------------------- */

static bool same_copy(const CUDA_MEMCPY3D *a, const CUDA_MEMCPY3D *b)
{
	return a->Height == 1 && b->Height == 1 && a->Depth == 1 && b->Depth == 1 &&
	       a->srcMemoryType == b->srcMemoryType && a->dstMemoryType == b->dstMemoryType;
}

static bool same_fill(const CUDA_MEMSET_NODE_PARAMS_v2 *a, const CUDA_MEMSET_NODE_PARAMS_v2 *b)
{
	if (a->height == 1 && b->height == 1)
		return true;
	return a->height == b->height && a->width == b->width && a->pitch == b->pitch &&
	       a->elementSize == b->elementSize;
}

static bool same_memops(const CUDA_BATCH_MEM_OP_NODE_PARAMS_v2 *a, const CUDA_BATCH_MEM_OP_NODE_PARAMS_v2 *b)
{
	bool same = a->count == b->count;
	for (unsigned i = 0; same && i < a->count; i++)
		same = a->paramArray[i].operation == b->paramArray[i].operation;
	return same;
}

static bool is_cooperative(const struct sim_graph_work *work)
{
	return work->attribute && work->attributes >> CU_LAUNCH_ATTRIBUTE_COOPERATIVE & 1 &&
	       work->attribute[CU_LAUNCH_ATTRIBUTE_COOPERATIVE].cooperative;
}

bool sim_graph_work_fits(const struct sim_graph_work *now, const struct sim_graph_work *next)
{
	if (now->context != next->context)
		return false;
	switch (now->params.type) {
	case CU_GRAPH_NODE_TYPE_KERNEL:
		return is_cooperative(now) == is_cooperative(next);
	case CU_GRAPH_NODE_TYPE_MEMCPY:
		return same_copy(&now->params.memcpy.copyParams, &next->params.memcpy.copyParams);
	case CU_GRAPH_NODE_TYPE_MEMSET:
		return same_fill(&now->params.memset, &next->params.memset);
	case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP:
		return same_memops(&now->params.memOp, &next->params.memOp);
	case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
	case CU_GRAPH_NODE_TYPE_MEM_FREE:
		return now->block == next->block;
	case CU_GRAPH_NODE_TYPE_CONDITIONAL:
		return now->params.conditional.type == next->params.conditional.type && now->graphs == next->graphs;
	default:
		return true;
	}
}

CUresult sim_graph_work_change(struct sim_graph_node *node, const CUgraphNodeParams *params, bool launched)
{
	struct sim_graph_work next;
	CUresult error;
	if (params->type != node->work.params.type)
		return CUDA_ERROR_INVALID_VALUE;
	switch (params->type) {
	case CU_GRAPH_NODE_TYPE_KERNEL:
		error = sim_graph_work_kernel(&params->kernel, &node->work, &next);
		break;
	case CU_GRAPH_NODE_TYPE_GRAPH:
	case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
	case CU_GRAPH_NODE_TYPE_MEM_FREE:
	case CU_GRAPH_NODE_TYPE_CONDITIONAL:
		return CUDA_ERROR_NOT_SUPPORTED;
	default:
		error = sim_graph_work_make(node->graph, params, &next);
	}
	if (error != CUDA_SUCCESS)
		return error;
	if (launched && !sim_graph_work_fits(&node->work, &next)) {
		sim_graph_work_drop(&next);
		return CUDA_ERROR_INVALID_VALUE;
	}
	sim_graph_work_drop(&node->work);
	node->work = next;
	return CUDA_SUCCESS;
}
