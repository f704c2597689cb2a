/* graph.h: CUDA graphs: what the graph_*.c and capture*.c files share.
 *
 * A *graph* holds *nodes* and edges between them; a node's *work* is what it does, once as the program reads it back and
 * once as items for the engine. An *executable* holds a private clone of a graph, flattened into *steps*: what a child
 * graph or the body of a conditional holds stands among the others. Steps run in *lanes*, streams of the driver's own
 * that live for one launch, so that branches of the graph run beside each other.
 *
 * One mutex guards graphs, nodes, executables and captures. It is never held while work is queued or waited for; the
 * memory mutex and the engine's are taken inside.
 */
#ifndef PARTAGE_SIM_GRAPH_H
#define PARTAGE_SIM_GRAPH_H

#include <pthread.h>
#include <stddef.h>
#include <string.h>

#include "engine.h"

extern pthread_mutex_t sim_graph_mutex;

/* The parameters of a node, of which an older call gives one field, or the beginning of it as its version has it;
 * false: it gives none. */
static inline bool sim_graph_params(CUgraphNodeParams *params, CUgraphNodeType type, size_t offset, const void *given,
                                    size_t bytes)
{
	*params = (CUgraphNodeParams){.type = type};
	if (given)
		memcpy((char *)params + offset, given, bytes);
	return given;
}
#define SIM_GRAPH_PARAMS(params, TYPE, field, given)                                                                   \
	sim_graph_params(params, CU_GRAPH_NODE_TYPE_##TYPE, offsetof(CUgraphNodeParams, field), given, sizeof(*(given)))

struct sim_graph_block; /* graph_memory.c: memory that an allocation node stands for */

struct sim_graph_work {
	CUgraphNodeParams params;       /* as a program reads it back; what it points to is in `memory` */
	struct sim_context *context;    /* where it runs; NULL: where the graph is launched */
	struct sim_item *items;         /* what is queued, in this order */
	unsigned count;
	void *memory;                   /* arguments of a kernel, memory operations, access descriptions */
	size_t memory_size, pointers;   /* its first `pointers` words may point into it */
	struct sim_function *function;  /* kernels */
	CUlaunchAttributeValue *attribute; /* kernels: by id, of those in `attributes`; NULL: none was set */
	uint32_t attributes;
	struct sim_stream_event *event; /* event nodes: one reference */
	struct sim_graph_block *block;  /* allocation and free nodes: one reference */
	struct sim_graph **graph;       /* child graph: one; conditional: its bodies */
	unsigned graphs;
};

struct sim_graph_node;

struct sim_graph_edge {
	struct sim_graph_node *node; /* at the other end */
	CUgraphEdgeData data;
};

struct sim_graph_edges {
	struct sim_graph_edge *edge;
	size_t count, room;
};

struct sim_graph_node {
	uint32_t tag;
	struct sim_graph *graph;
	uint64_t id, origin; /* unique in the process; of the node that this one was cloned from, 0 = none */
	unsigned local;      /* unique in its graph */
	struct sim_graph_node *next, *prev; /* in order of creation */
	struct sim_graph_edges from, to;    /* dependencies, dependents */
	struct sim_graph_work work;
	bool disabled;       /* in executables */
	unsigned mark, step; /* scratch of whoever walks the graph */
};

struct sim_graph_conditional {
	struct sim_graph_conditional *next;
	CUgraphConditionalHandle handle;
	struct sim_context *context;
	unsigned value; /* what a launch begins with */
	bool used;      /* a node has it */
};

struct sim_graph_object { /* references to a user object */
	struct sim_graph_object *next;
	struct sim_user_object *object;
	unsigned count;
};

struct sim_graph {
	uint32_t tag;
	unsigned id;
	unsigned nodes_made;
	size_t count;
	struct sim_graph_node *first, *last;
	struct sim_graph_node *parent;       /* the node that holds it, NULL: a graph of its own */
	struct sim_graph_conditional *conditionals;
	struct sim_graph_object *objects;
	struct sim_capture *capture;         /* under way into it */
	bool has_memory;                     /* allocation or free nodes, also in children */
	bool has_conditionals;
	bool moved;                          /* into a child node: takes no more memory nodes */
	unsigned executables;                /* made from it and not destroyed */
};

/* ---- graph.c: graphs and nodes as such; all with the mutex held --------------------------------------------------- */

struct sim_graph *sim_graph_new(void);
void sim_graph_free(struct sim_graph *graph);
struct sim_graph *sim_graph_clone(const struct sim_graph *graph, struct sim_graph_node *parent); /* NULL: no memory */
struct sim_graph *sim_graph_of(CUgraph handle);          /* NULL: no live graph */
struct sim_graph_node *sim_graph_node_of(CUgraphNode handle);
/* A node of this graph or its children that was cloned, perhaps over several clones, from the one with this id. */
struct sim_graph_node *sim_graph_node_from(const struct sim_graph *graph, uint64_t origin);
CUresult sim_graph_dependencies_check(const struct sim_graph *graph, const struct sim_graph_edge *from, size_t count);
/* Takes over `work` in any case. */
CUresult sim_graph_node_add(struct sim_graph *graph, const struct sim_graph_edge *from, size_t count,
                            struct sim_graph_work *work, struct sim_graph_node **out);
struct sim_graph *sim_graph_root(struct sim_graph *graph); /* the graph that holds it in the end */

/* ---- graph_edges.c ------------------------------------------------------------------------------------------------ */

bool sim_graph_edge_add(struct sim_graph_edges *edges, struct sim_graph_node *node, const CUgraphEdgeData *data);
void sim_graph_edge_remove(struct sim_graph_edges *edges, const struct sim_graph_node *node);
CUresult sim_graph_edge_check(const struct sim_graph_node *from, const CUgraphEdgeData *data);
/* Nodes in an order in which they can run, malloc()ed: NULL and *bad set where there is a cycle, *bad NULL without
 * memory. */
struct sim_graph_node **sim_graph_order(const struct sim_graph *graph, struct sim_graph_node **bad);

/* ---- graph_work.c, graph_kernel.c: what nodes do; with the mutex held ---------------------------------------------- */

/* From what a program gives. Child graphs are cloned, or taken over where it moves them; for conditionals the bodies
 * are made. What goes wrong leaves *work empty. */
CUresult sim_graph_work_make(struct sim_graph *graph, const CUgraphNodeParams *params, struct sim_graph_work *work);
CUresult sim_graph_work_kernel(const CUDA_KERNEL_NODE_PARAMS_v3 *params, const struct sim_graph_work *like,
                               struct sim_graph_work *work);
bool sim_graph_work_copy(const struct sim_graph_work *work, struct sim_graph_node *node); /* into the node */
void sim_graph_work_drop(struct sim_graph_work *work);
/* Replaces what a node does, if it stays the same kind of thing. `launched`: in an executable, where less may change. */
CUresult sim_graph_work_change(struct sim_graph_node *node, const CUgraphNodeParams *params, bool launched);
/* May a node of an executable become this? What was laid down when it was instantiated stays. */
bool sim_graph_work_fits(const struct sim_graph_work *now, const struct sim_graph_work *next);
/* A conditional handle as this graph, or one that holds it, has it; NULL: none. */
struct sim_graph_conditional *sim_graph_conditional_of(struct sim_graph *graph, CUgraphConditionalHandle handle);
bool sim_graph_work_runs(const CUgraphNodeParams *params); /* a type that we run */

/* ---- graph_exec.c: executables ------------------------------------------------------------------------------------ */

#define SIM_GRAPH_NONE UINT32_MAX

struct sim_graph_step {
	struct sim_graph_node *node; /* NULL: only joins others */
	struct sim_context *context;
	unsigned *from; /* steps that it comes after */
	unsigned from_count, lane;
	bool followed; /* some step comes after it */
	bool recorded; /* somebody outside its lane waits for it */
};

struct sim_graph_exec {
	uint32_t tag;
	unsigned refs;
	uint64_t flags;
	struct sim_graph *graph; /* the clone */
	struct sim_graph *source; /* that it was made from, if it is still live and has this id */
	unsigned source_id;
	struct sim_graph_step *step;
	unsigned steps, lanes;
	struct sim_context **lane; /* context of each lane, NULL: of the launch */
	pthread_mutex_t launching; /* held by who launches, also while its work is queued */
	struct sim_stream_event *done;
	uint64_t last_stream; /* id of the stream of its latest launch */
};

struct sim_graph_exec *sim_graph_exec_of(CUgraphExec handle); /* with the mutex held; NULL: not live */
void sim_graph_exec_put(struct sim_graph_exec *exec); /* without the mutex */
/* graph_launch.c: takes memory for the executable without running it. */
CUresult sim_graph_upload(struct sim_graph_exec *exec, struct sim_stream *stream);
CUresult sim_graph_plan(struct sim_graph_exec *exec, struct sim_graph_node **bad); /* makes the steps (anew) */

/* ---- graph_memory.c ----------------------------------------------------------------------------------------------- */

/* A fixed address for an allocation node: fills in params->dptr; *block holds one reference. With the graph mutex. */
CUresult sim_graph_block_new(struct sim_graph *graph, CUDA_MEM_ALLOC_NODE_PARAMS_v2 *params,
                             struct sim_graph_block **block);
/* The block that a free node of this graph is to free: one more reference. */
CUresult sim_graph_block_freed(struct sim_graph *graph, CUdeviceptr p, struct sim_graph_block **block);
void sim_graph_block_keep(struct sim_graph_block *block);
void sim_graph_block_put(struct sim_graph_block *block);
/* Physical memory for a launch in the stream of this id, or only for an upload. *launch is what sim_graph_memory_done
 * takes when the launch has run, NULL where there is nothing to be done. */
struct sim_graph_launch;
CUresult sim_graph_memory_launch(const struct sim_graph_exec *exec, uint64_t stream, bool upload,
                                 struct sim_graph_launch **launch);
void sim_graph_memory_done(void *launch); /* a struct sim_graph_launch ** */
/* cuMemFree (stream NULL) or cuMemFreeAsync of memory of a graph; false: p is no such memory. */
bool sim_graph_memory_free(CUdeviceptr p, struct sim_stream *stream, CUresult *result);
void sim_graph_memory_close(int device); /* with the memory mutex: the last context on the device is gone */

/* ---- graph_object.c ----------------------------------------------------------------------------------------------- */

void sim_graph_objects_copy(struct sim_graph *to, const struct sim_graph *from);
void sim_graph_objects_drop(struct sim_graph *graph);

#endif
