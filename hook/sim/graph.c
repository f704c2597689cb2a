/* graph.c: graphs and their nodes from creation to destruction, clones, and what a handle of either means.
 *
 * Called by programs, by the other graph files and by capture.c. A node keeps its place in the order of creation, its
 * number in the graph and an id that is never used again; a clone's node remembers the id it came from, by which
 * executables and cuGraphNodeFindInClone find it. What can go wrong: a stale handle (CUDA_ERROR_INVALID_VALUE), a node
 * of another graph, a change to a graph whose memory nodes forbid it (CUDA_ERROR_NOT_SUPPORTED).
 */
#include "graph.h"

#include <stdlib.h>

#include "context.h"
#include "sim_impl.h"

pthread_mutex_t sim_graph_mutex = PTHREAD_MUTEX_INITIALIZER;

static uint64_t last_node;
static unsigned last_graph;

struct sim_graph *sim_graph_of(CUgraph handle)
{
	return sim_handle_is(handle, SIM_TAG_GRAPH) ? (struct sim_graph *)handle : NULL;
}

struct sim_graph_node *sim_graph_node_of(CUgraphNode handle)
{
	return sim_handle_is(handle, SIM_TAG_GRAPH_NODE) ? (struct sim_graph_node *)handle : NULL;
}

struct sim_graph *sim_graph_root(struct sim_graph *graph)
{
	while (graph->parent)
		graph = graph->parent->graph;
	return graph;
}

/* ---- graphs ------------------------------------------------------------------------------------------------------ */

struct sim_graph *sim_graph_new(void)
{
	struct sim_graph *graph = calloc(1, sizeof(*graph));
	if (!graph)
		return NULL;
	graph->tag = SIM_TAG_GRAPH;
	graph->id = ++last_graph;
	sim_handle_add(graph, SIM_TAG_GRAPH);
	return graph;
}

static void node_free(struct sim_graph_node *node)
{
	struct sim_graph *graph = node->graph;
	for (size_t i = 0; i < node->from.count; i++)
		sim_graph_edge_remove(&node->from.edge[i].node->to, node);
	for (size_t i = 0; i < node->to.count; i++)
		sim_graph_edge_remove(&node->to.edge[i].node->from, node);
	*(node->prev ? &node->prev->next : &graph->first) = node->next;
	*(node->next ? &node->next->prev : &graph->last) = node->prev;
	graph->count--;
	sim_handle_drop(node);
	sim_graph_work_drop(&node->work);
	free(node->from.edge);
	free(node->to.edge);
	free(node);
}

void sim_graph_free(struct sim_graph *graph)
{
	while (graph->last)
		node_free(graph->last);
	while (graph->conditionals) {
		struct sim_graph_conditional *next = graph->conditionals->next;
		free(graph->conditionals);
		graph->conditionals = next;
	}
	sim_graph_objects_drop(graph);
	sim_handle_drop(graph);
	free(graph);
}

/* An empty node at the end of the graph; NULL: no memory. */
static struct sim_graph_node *node_new(struct sim_graph *graph)
{
	struct sim_graph_node *node = calloc(1, sizeof(*node));
	if (!node)
		return NULL;
	node->tag = SIM_TAG_GRAPH_NODE;
	node->graph = graph;
	node->id = ++last_node;
	node->local = graph->nodes_made++;
	node->prev = graph->last;
	*(graph->last ? &graph->last->next : &graph->first) = node;
	graph->last = node;
	graph->count++;
	sim_handle_add(node, SIM_TAG_GRAPH_NODE);
	return node;
}

/* What a graph holds, its parents hold. */
static void note_kind(struct sim_graph *graph, const struct sim_graph_work *work)
{
	bool memory =
	        work->params.type == CU_GRAPH_NODE_TYPE_MEM_ALLOC || work->params.type == CU_GRAPH_NODE_TYPE_MEM_FREE;
	bool conditional = work->params.type == CU_GRAPH_NODE_TYPE_CONDITIONAL;
	for (unsigned i = 0; i < work->graphs; i++) {
		memory = memory || work->graph[i]->has_memory;
		conditional = conditional || work->graph[i]->has_conditionals;
	}
	for (; graph; graph = graph->parent ? graph->parent->graph : NULL) {
		graph->has_memory = graph->has_memory || memory;
		graph->has_conditionals = graph->has_conditionals || conditional;
	}
}

CUresult sim_graph_dependencies_check(const struct sim_graph *graph, const struct sim_graph_edge *from, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		if (from[i].node->graph != graph)
			return CUDA_ERROR_INVALID_VALUE;
		CUresult error = sim_graph_edge_check(from[i].node, &from[i].data);
		if (error != CUDA_SUCCESS)
			return error;
		for (size_t k = 0; k < i; k++)
			if (from[k].node == from[i].node)
				return CUDA_ERROR_INVALID_VALUE;
	}
	return CUDA_SUCCESS;
}

CUresult sim_graph_node_add(struct sim_graph *graph, const struct sim_graph_edge *from, size_t count,
                            struct sim_graph_work *work, struct sim_graph_node **out)
{
	CUresult error = sim_graph_dependencies_check(graph, from, count);
	struct sim_graph_node *node = error == CUDA_SUCCESS ? node_new(graph) : NULL;
	if (!node) {
		sim_graph_work_drop(work);
		return error != CUDA_SUCCESS ? error : CUDA_ERROR_OUT_OF_MEMORY;
	}
	node->work = *work;
	for (unsigned i = 0; i < work->graphs; i++)
		work->graph[i]->parent = node;
	note_kind(graph, work);
	for (size_t i = 0; i < count; i++) {
		if (!sim_graph_edge_add(&node->from, from[i].node, &from[i].data) ||
		    !sim_graph_edge_add(&from[i].node->to, node, &from[i].data)) {
			node_free(node);
			return CUDA_ERROR_OUT_OF_MEMORY;
		}
	}
	*out = node;
	return CUDA_SUCCESS;
}

/* ---- clones ------------------------------------------------------------------------------------------------------ */

static bool clone_node(struct sim_graph *clone, const struct sim_graph_node *node)
{
	struct sim_graph_node *copy = node_new(clone);
	if (!copy)
		return false;
	copy->origin = node->id;
	copy->local = node->local;
	copy->disabled = node->disabled;
	if (!sim_graph_work_copy(&node->work, copy))
		return false;
	for (size_t i = 0; i < node->from.count; i++) {
		const struct sim_graph_edge *edge = &node->from.edge[i];
		if (!sim_graph_edge_add(&copy->from, NULL, &edge->data))
			return false;
		copy->from.edge[i].node = edge->node; /* the original's, until all nodes are there */
	}
	return true;
}

/* The clone's edges so far point to the original's nodes: those that were marked with their place. */
static bool clone_edges(struct sim_graph *clone, struct sim_graph_node **copies)
{
	bool done = true;
	for (struct sim_graph_node *node = clone->first; node; node = node->next) {
		size_t wanted = node->from.count;
		for (size_t i = 0; i < wanted; i++) {
			struct sim_graph_edge *edge = &node->from.edge[i];
			edge->node = copies[edge->node->mark];
			done = done && sim_graph_edge_add(&edge->node->to, node, &edge->data);
		}
	}
	return done;
}

static bool clone_conditionals(struct sim_graph *clone, const struct sim_graph *graph)
{
	struct sim_graph_conditional **end = &clone->conditionals;
	for (const struct sim_graph_conditional *from = graph->conditionals; from; from = from->next) {
		struct sim_graph_conditional *copy = malloc(sizeof(*copy));
		if (!copy)
			return false;
		*copy = *from;
		copy->next = NULL;
		*end = copy;
		end = &copy->next;
	}
	return true;
}

struct sim_graph *sim_graph_clone(const struct sim_graph *graph, struct sim_graph_node *parent)
{
	struct sim_graph *clone = sim_graph_new();
	struct sim_graph_node **copies = calloc(graph->count + 1, sizeof(struct sim_graph_node *));
	bool done = clone && copies && clone_conditionals(clone, graph);
	unsigned place = 0;
	if (clone) {
		clone->parent = parent;
		clone->moved = graph->moved;
		clone->has_memory = graph->has_memory;
		clone->has_conditionals = graph->has_conditionals;
	}
	for (struct sim_graph_node *node = graph->first; node && done; node = node->next) {
		node->mark = place;
		done = clone_node(clone, node);
		copies[place++] = clone->last;
	}
	if (clone && done) {
		clone->nodes_made = graph->nodes_made;
		done = clone_edges(clone, copies);
		sim_graph_objects_copy(clone, graph);
	} else if (clone) { /* its edges point to the original's nodes */
		for (struct sim_graph_node *node = clone->first; node; node = node->next)
			node->from.count = 0;
	}
	free(copies);
	if (clone && !done) {
		sim_graph_free(clone);
		clone = NULL;
	}
	return clone;
}

struct sim_graph_node *sim_graph_node_from(const struct sim_graph *graph, uint64_t origin)
{
	for (struct sim_graph_node *node = graph->first; node; node = node->next) {
		if (node->origin == origin)
			return node;
		for (unsigned i = 0; i < node->work.graphs; i++) {
			struct sim_graph_node *found = sim_graph_node_from(node->work.graph[i], origin);
			if (found)
				return found;
		}
	}
	return NULL;
}

/* ---- entry points ------------------------------------------------------------------------------------------------ */

CUresult sim_cuGraphCreate(CUgraph *phGraph, unsigned int flags)
{
	if (!phGraph || flags)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&sim_graph_mutex);
	*phGraph = (CUgraph)sim_graph_new();
	pthread_mutex_unlock(&sim_graph_mutex);
	return *phGraph ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult sim_cuGraphDestroy(CUgraph hGraph)
{
	pthread_mutex_lock(&sim_graph_mutex);
	struct sim_graph *graph = sim_graph_of(hGraph);
	bool ours = graph && !graph->parent && !graph->capture; /* a child is its node's */
	if (ours)
		sim_graph_free(graph);
	pthread_mutex_unlock(&sim_graph_mutex);
	return ours ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult clone_for(const struct sim_graph *graph, CUgraph *out)
{
	if (!graph || !out)
		return CUDA_ERROR_INVALID_VALUE;
	if (graph->has_memory || graph->has_conditionals)
		return CUDA_ERROR_NOT_SUPPORTED;
	struct sim_graph *copy = sim_graph_clone(graph, NULL);
	if (!copy)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*out = (CUgraph)copy;
	return CUDA_SUCCESS;
}

CUresult sim_cuGraphClone(CUgraph *phGraphClone, CUgraph originalGraph)
{
	pthread_mutex_lock(&sim_graph_mutex);
	CUresult error = clone_for(sim_graph_of(originalGraph), phGraphClone);
	pthread_mutex_unlock(&sim_graph_mutex);
	return error;
}

CUresult sim_cuGraphNodeFindInClone(CUgraphNode *phNode, CUgraphNode hOriginalNode, CUgraph hClonedGraph)
{
	pthread_mutex_lock(&sim_graph_mutex);
	const struct sim_graph *graph = sim_graph_of(hClonedGraph);
	const struct sim_graph_node *node = sim_graph_node_of(hOriginalNode);
	struct sim_graph_node *found = graph && node && phNode ? sim_graph_node_from(graph, node->id) : NULL;
	if (found)
		*phNode = (CUgraphNode)found;
	pthread_mutex_unlock(&sim_graph_mutex);
	return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult sim_cuGraphDestroyNode(CUgraphNode hNode)
{
	CUresult error = CUDA_SUCCESS;
	pthread_mutex_lock(&sim_graph_mutex);
	struct sim_graph_node *node = sim_graph_node_of(hNode);
	if (!node)
		error = CUDA_ERROR_INVALID_VALUE;
	else if (sim_graph_root(node->graph)->has_memory || node->graph->capture)
		error = CUDA_ERROR_NOT_SUPPORTED;
	else
		node_free(node);
	pthread_mutex_unlock(&sim_graph_mutex);
	return error;
}

/* One number of a node; `what` says which. */
enum number { NODE_TYPE, NODE_LOCAL_ID, NODE_TOOLS_ID };

static CUresult number_of(CUgraphNode handle, enum number what, uint64_t *value)
{
	pthread_mutex_lock(&sim_graph_mutex);
	const struct sim_graph_node *node = sim_graph_node_of(handle);
	if (node)
		*value = what == NODE_TYPE       ? (uint64_t)node->work.params.type
		         : what == NODE_LOCAL_ID ? node->local
		                                 : (uint64_t)node->graph->id << 32 | node->local;
	pthread_mutex_unlock(&sim_graph_mutex);
	return node ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult sim_cuGraphNodeGetType(CUgraphNode hNode, CUgraphNodeType *type)
{
	uint64_t value;
	CUresult error = type ? number_of(hNode, NODE_TYPE, &value) : CUDA_ERROR_INVALID_VALUE;
	if (error == CUDA_SUCCESS)
		*type = (CUgraphNodeType)value;
	return error;
}

CUresult sim_cuGraphNodeGetLocalId(CUgraphNode hNode, unsigned int *nodeId)
{
	uint64_t value;
	CUresult error = nodeId ? number_of(hNode, NODE_LOCAL_ID, &value) : CUDA_ERROR_INVALID_VALUE;
	if (error == CUDA_SUCCESS)
		*nodeId = (unsigned)value;
	return error;
}

CUresult sim_cuGraphNodeGetToolsId(CUgraphNode hNode, unsigned long long *toolsNodeId)
{
	uint64_t value;
	CUresult error = toolsNodeId ? number_of(hNode, NODE_TOOLS_ID, &value) : CUDA_ERROR_INVALID_VALUE;
	if (error == CUDA_SUCCESS)
		*toolsNodeId = value;
	return error;
}

CUresult sim_cuGraphNodeGetContainingGraph(CUgraphNode hNode, CUgraph *phGraph)
{
	pthread_mutex_lock(&sim_graph_mutex);
	const struct sim_graph_node *node = sim_graph_node_of(hNode);
	bool known = node && phGraph;
	if (known)
		*phGraph = (CUgraph)node->graph;
	pthread_mutex_unlock(&sim_graph_mutex);
	return known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult sim_cuGraphGetId(CUgraph hGraph, unsigned int *graphId)
{
	pthread_mutex_lock(&sim_graph_mutex);
	const struct sim_graph *graph = sim_graph_of(hGraph);
	bool known = graph && graphId;
	if (known)
		*graphId = graph->id;
	pthread_mutex_unlock(&sim_graph_mutex);
	return known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult conditional_new(struct sim_graph *graph, struct sim_context *context, unsigned value, unsigned flags,
                                CUgraphConditionalHandle *out)
{
	static uint64_t last;
	if (!graph || !context || !out || (flags & ~(unsigned)CU_GRAPH_COND_ASSIGN_DEFAULT))
		return CUDA_ERROR_INVALID_VALUE;
	struct sim_graph_conditional *conditional = calloc(1, sizeof(*conditional));
	if (!conditional)
		return CUDA_ERROR_OUT_OF_MEMORY;
	conditional->handle = ++last;
	conditional->context = context;
	conditional->value = flags & CU_GRAPH_COND_ASSIGN_DEFAULT ? value : 0;
	conditional->next = graph->conditionals;
	graph->conditionals = conditional;
	*out = conditional->handle;
	return CUDA_SUCCESS;
}

CUresult sim_cuGraphConditionalHandleCreate(CUgraphConditionalHandle *pHandle_out, CUgraph hGraph, CUcontext ctx,
                                            unsigned int defaultLaunchValue, unsigned int flags)
{
	pthread_mutex_lock(&sim_graph_mutex);
	CUresult error =
	        conditional_new(sim_graph_of(hGraph), sim_context_of(ctx), defaultLaunchValue, flags, pHandle_out);
	pthread_mutex_unlock(&sim_graph_mutex);
	return error;
}
