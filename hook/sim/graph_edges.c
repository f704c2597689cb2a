/* graph_edges.c: the edges of graphs: adding and removing them, and what a program asks about nodes and edges.
 *
 * Called by programs and by the other graph files. Every list can be asked for in two steps: without an array for the
 * number, then with one; what there is no room for is left out, and what is asked for beyond the end is NULL. The older
 * spellings know no data of edges: where there is some, they answer CUDA_ERROR_LOSSY_QUERY. What can go wrong: an edge
 * that exists, or does not; a cycle is not looked for before the graph is instantiated.
 */
#include <stdlib.h>
#include <string.h>

#include "graph.h"
#include "sim_impl.h"

static const CUgraphEdgeData plain;

/* ---- lists of edges ---------------------------------------------------------------------------------------------- */

bool sim_graph_edge_add(struct sim_graph_edges *edges, struct sim_graph_node *node, const CUgraphEdgeData *data)
{
	if (edges->count == edges->room) {
		size_t room = edges->room ? edges->room * 2 : 4;
		struct sim_graph_edge *larger = realloc(edges->edge, room * sizeof(*larger));
		if (!larger)
			return false;
		edges->edge = larger;
		edges->room = room;
	}
	edges->edge[edges->count].node = node;
	edges->edge[edges->count++].data = data ? *data : plain;
	return true;
}

static struct sim_graph_edge *edge_to(const struct sim_graph_edges *edges, const struct sim_graph_node *node)
{
	for (size_t i = 0; i < edges->count; i++)
		if (edges->edge[i].node == node)
			return &edges->edge[i];
	return NULL;
}

void sim_graph_edge_remove(struct sim_graph_edges *edges, const struct sim_graph_node *node)
{
	struct sim_graph_edge *edge = edge_to(edges, node);
	if (!edge)
		return;
	edges->count--;
	memmove(edge, edge + 1, (size_t)(edges->edge + edges->count - edge) * sizeof(*edge));
}

CUresult sim_graph_edge_check(const struct sim_graph_node *from, const CUgraphEdgeData *data)
{
	static const unsigned char zero[sizeof(data->reserved)];
	bool kernel = from->work.params.type == CU_GRAPH_NODE_TYPE_KERNEL;
	if (data->to_port || memcmp(data->reserved, zero, sizeof(zero)) != 0)
		return CUDA_ERROR_INVALID_VALUE;
	if (data->type > CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC ||
	    data->from_port > CU_GRAPH_KERNEL_NODE_PORT_LAUNCH_ORDER)
		return CUDA_ERROR_INVALID_VALUE;
	if (data->type == CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC && !data->from_port)
		return CUDA_ERROR_INVALID_VALUE;
	return (data->type || data->from_port) && !kernel ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

/* ---- order ------------------------------------------------------------------------------------------------------- */

/* Kahn's: a node comes when all before it have come; among those, in order of creation as far as that goes. */
struct sim_graph_node **sim_graph_order(const struct sim_graph *graph, struct sim_graph_node **bad)
{
	struct sim_graph_node **order = calloc(graph->count + 1, sizeof(struct sim_graph_node *));
	size_t come = 0, looked = 0;
	*bad = NULL;
	if (!order)
		return NULL;
	for (struct sim_graph_node *node = graph->first; node; node = node->next) {
		node->mark = (unsigned)node->from.count;
		if (!node->mark)
			order[come++] = node;
	}
	for (; looked < come; looked++) {
		const struct sim_graph_edges *to = &order[looked]->to;
		for (size_t i = 0; i < to->count; i++)
			if (--to->edge[i].node->mark == 0)
				order[come++] = to->edge[i].node;
	}
	if (come == graph->count)
		return order;
	for (struct sim_graph_node *node = graph->first; node && !*bad; node = node->next)
		if (node->mark)
			*bad = node;
	free(order);
	return NULL;
}

/* ---- adding and removing ----------------------------------------------------------------------------------------- */

static CUresult connect(struct sim_graph_node *from, struct sim_graph_node *to, const CUgraphEdgeData *data)
{
	CUresult error = sim_graph_edge_check(from, data);
	if (error != CUDA_SUCCESS)
		return error;
	if (!sim_graph_edge_add(&to->from, from, data))
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (sim_graph_edge_add(&from->to, to, data))
		return CUDA_SUCCESS;
	sim_graph_edge_remove(&to->from, from);
	return CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult change(struct sim_graph *graph, CUgraphNode from, CUgraphNode to, const CUgraphEdgeData *data, bool add)
{
	struct sim_graph_node *first = sim_graph_node_of(from), *second = sim_graph_node_of(to);
	if (!first || !second || first == second || first->graph != graph || second->graph != graph)
		return CUDA_ERROR_INVALID_VALUE;
	struct sim_graph_edge *edge = edge_to(&second->from, first);
	if (add)
		return edge ? CUDA_ERROR_INVALID_VALUE : connect(first, second, data);
	if (!edge || memcmp(&edge->data, data, sizeof(*data)) != 0)
		return CUDA_ERROR_INVALID_VALUE;
	sim_graph_edge_remove(&second->from, first);
	sim_graph_edge_remove(&first->to, second);
	return CUDA_SUCCESS;
}

static CUresult change_all(CUgraph handle, const CUgraphNode *from, const CUgraphNode *to, const CUgraphEdgeData *data,
                           size_t count, bool add)
{
	CUresult error = CUDA_SUCCESS;
	pthread_mutex_lock(&sim_graph_mutex);
	struct sim_graph *graph = sim_graph_of(handle);
	if (!graph || (count && (!from || !to)))
		error = CUDA_ERROR_INVALID_VALUE;
	else if (!add && sim_graph_root(graph)->has_memory)
		error = CUDA_ERROR_NOT_SUPPORTED;
	for (size_t i = 0; i < count && error == CUDA_SUCCESS; i++) {
		error = change(graph, from[i], to[i], data ? &data[i] : &plain, add);
		while (error != CUDA_SUCCESS && i-- > 0) /* all or nothing */
			change(graph, from[i], to[i], data ? &data[i] : &plain, !add);
		if (error != CUDA_SUCCESS)
			break;
	}
	pthread_mutex_unlock(&sim_graph_mutex);
	return error;
}

CUresult sim_cuGraphAddDependencies_v2(CUgraph hGraph, const CUgraphNode *from, const CUgraphNode *to,
                                       const CUgraphEdgeData *edgeData, size_t numDependencies)
{
	return change_all(hGraph, from, to, edgeData, numDependencies, true);
}

CUresult sim_cuGraphAddDependencies(CUgraph hGraph, const CUgraphNode *from, const CUgraphNode *to,
                                    size_t numDependencies)
{
	return change_all(hGraph, from, to, NULL, numDependencies, true);
}

CUresult sim_cuGraphRemoveDependencies_v2(CUgraph hGraph, const CUgraphNode *from, const CUgraphNode *to,
                                          const CUgraphEdgeData *edgeData, size_t numDependencies)
{
	return change_all(hGraph, from, to, edgeData, numDependencies, false);
}

CUresult sim_cuGraphRemoveDependencies(CUgraph hGraph, const CUgraphNode *from, const CUgraphNode *to,
                                       size_t numDependencies)
{
	return change_all(hGraph, from, to, NULL, numDependencies, false);
}

/* ---- questions --------------------------------------------------------------------------------------------------- */

/* A list that a program gave arrays for, or only a counter. */
struct answer {
	CUgraphNode *first, *second;
	CUgraphEdgeData *data;
	size_t room, count;
	bool lossless; /* the caller has a place for the data of edges, or asks for their number only */
	CUresult error;
};

static void say(struct answer *answer, struct sim_graph_node *first, struct sim_graph_node *second,
                const CUgraphEdgeData *data)
{
	size_t at = answer->count++;
	if (!answer->first || at >= answer->room)
		return;
	answer->first[at] = (CUgraphNode)first;
	if (answer->second)
		answer->second[at] = (CUgraphNode)second;
	if (answer->data)
		answer->data[at] = *data;
	else if (!answer->lossless && memcmp(data, &plain, sizeof(plain)) != 0)
		answer->error = CUDA_ERROR_LOSSY_QUERY;
}

static CUresult finish(struct answer *answer, size_t *count)
{
	for (size_t i = answer->count; answer->first && i < answer->room; i++) {
		answer->first[i] = NULL;
		if (answer->second)
			answer->second[i] = NULL;
	}
	*count = answer->first && answer->room < answer->count ? answer->room : answer->count;
	return answer->error;
}

static CUresult get_nodes(CUgraph handle, CUgraphNode *nodes, size_t *count, bool roots)
{
	if (!count)
		return CUDA_ERROR_INVALID_VALUE;
	struct answer answer = {.first = nodes, .room = *count, .lossless = true};
	pthread_mutex_lock(&sim_graph_mutex);
	const struct sim_graph *graph = sim_graph_of(handle);
	for (struct sim_graph_node *node = graph ? graph->first : NULL; node; node = node->next)
		if (!roots || !node->from.count)
			say(&answer, node, NULL, &plain);
	pthread_mutex_unlock(&sim_graph_mutex);
	return graph ? finish(&answer, count) : CUDA_ERROR_INVALID_VALUE;
}

CUresult sim_cuGraphGetNodes(CUgraph hGraph, CUgraphNode *nodes, size_t *numNodes)
{
	return get_nodes(hGraph, nodes, numNodes, false);
}

CUresult sim_cuGraphGetRootNodes(CUgraph hGraph, CUgraphNode *rootNodes, size_t *numRootNodes)
{
	return get_nodes(hGraph, rootNodes, numRootNodes, true);
}

CUresult sim_cuGraphGetEdges_v2(CUgraph hGraph, CUgraphNode *from, CUgraphNode *to, CUgraphEdgeData *edgeData,
                                size_t *numEdges)
{
	if (!numEdges || !from != !to || (edgeData && !from))
		return CUDA_ERROR_INVALID_VALUE;
	struct answer answer = {.first = from, .second = to, .data = edgeData, .room = *numEdges};
	pthread_mutex_lock(&sim_graph_mutex);
	const struct sim_graph *graph = sim_graph_of(hGraph);
	for (struct sim_graph_node *node = graph ? graph->first : NULL; node; node = node->next)
		for (size_t i = 0; i < node->to.count; i++)
			say(&answer, node, node->to.edge[i].node, &node->to.edge[i].data);
	pthread_mutex_unlock(&sim_graph_mutex);
	return graph ? finish(&answer, numEdges) : CUDA_ERROR_INVALID_VALUE;
}

CUresult sim_cuGraphGetEdges(CUgraph hGraph, CUgraphNode *from, CUgraphNode *to, size_t *numEdges)
{
	return sim_cuGraphGetEdges_v2(hGraph, from, to, NULL, numEdges);
}

static CUresult get_edges(CUgraphNode handle, bool dependents, CUgraphNode *nodes, CUgraphEdgeData *data, size_t *count)
{
	if (!count || (data && !nodes))
		return CUDA_ERROR_INVALID_VALUE;
	struct answer answer = {.first = nodes, .data = data, .room = *count};
	pthread_mutex_lock(&sim_graph_mutex);
	const struct sim_graph_node *node = sim_graph_node_of(handle);
	const struct sim_graph_edges *edges = node ? dependents ? &node->to : &node->from : NULL;
	for (size_t i = 0; edges && i < edges->count; i++)
		say(&answer, edges->edge[i].node, NULL, &edges->edge[i].data);
	pthread_mutex_unlock(&sim_graph_mutex);
	return node ? finish(&answer, count) : CUDA_ERROR_INVALID_VALUE;
}

CUresult sim_cuGraphNodeGetDependencies_v2(CUgraphNode hNode, CUgraphNode *dependencies, CUgraphEdgeData *edgeData,
                                           size_t *numDependencies)
{
	return get_edges(hNode, false, dependencies, edgeData, numDependencies);
}

CUresult sim_cuGraphNodeGetDependencies(CUgraphNode hNode, CUgraphNode *dependencies, size_t *numDependencies)
{
	return get_edges(hNode, false, dependencies, NULL, numDependencies);
}

CUresult sim_cuGraphNodeGetDependentNodes_v2(CUgraphNode hNode, CUgraphNode *dependentNodes, CUgraphEdgeData *edgeData,
                                             size_t *numDependentNodes)
{
	return get_edges(hNode, true, dependentNodes, edgeData, numDependentNodes);
}

CUresult sim_cuGraphNodeGetDependentNodes(CUgraphNode hNode, CUgraphNode *dependentNodes, size_t *numDependentNodes)
{
	return get_edges(hNode, true, dependentNodes, NULL, numDependentNodes);
}
