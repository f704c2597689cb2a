/* graph_object.c: user objects: things of a program that live as long as the graphs which refer to them.
 *
 * Called by programs; graph.c copies the references of a graph to its clones, executables among them, and drops them
 * with it. The destructor of an object runs in a thread of its own, as it may not be waited for by anybody who holds a
 * lock of the driver. What can go wrong: references given up that nobody had (CUDA_ERROR_INVALID_VALUE), no thread: then
 * the destructor runs in the caller's.
 */
#include <limits.h>
#include <signal.h>
#include <stdlib.h>

#include "graph.h"
#include "sim_impl.h"

struct sim_user_object {
	uint32_t tag;
	CUhostFn destroy;
	void *data;
	uint64_t refs;
};

static void *run_destructor(void *arg)
{
	struct sim_user_object *object = arg;
	object->destroy(object->data);
	free(object);
	return NULL;
}

/* With the graph mutex held. */
static void put(struct sim_user_object *object, uint64_t count)
{
	sigset_t all, old;
	pthread_t thread;
	object->refs -= count;
	if (object->refs)
		return;
	sim_handle_drop(object);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	int error = pthread_create(&thread, NULL, run_destructor, object);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (error)
		run_destructor(object);
	else
		pthread_detach(thread);
}

static struct sim_user_object *object_of(CUuserObject handle)
{
	return sim_handle_is(handle, SIM_TAG_USER_OBJECT) ? (struct sim_user_object *)handle : NULL;
}

/* ---- references of graphs, with the graph mutex held ---------------------------------------------------------------- */

static struct sim_graph_object *reference_to(const struct sim_graph *graph, const struct sim_user_object *object)
{
	struct sim_graph_object *reference = graph->objects;
	while (reference && reference->object != object)
		reference = reference->next;
	return reference;
}

static bool refer(struct sim_graph *graph, struct sim_user_object *object, unsigned count)
{
	struct sim_graph_object *reference = reference_to(graph, object);
	if (!reference) {
		reference = calloc(1, sizeof(*reference));
		if (!reference)
			return false;
		reference->object = object;
		reference->next = graph->objects;
		graph->objects = reference;
	}
	reference->count += count;
	return true;
}

static void forget(struct sim_graph *graph, struct sim_graph_object *reference)
{
	struct sim_graph_object **link = &graph->objects;
	while (*link != reference)
		link = &(*link)->next;
	*link = reference->next;
	free(reference);
}

void sim_graph_objects_copy(struct sim_graph *to, const struct sim_graph *from)
{
	for (const struct sim_graph_object *reference = from->objects; reference; reference = reference->next)
		if (refer(to, reference->object, reference->count))
			reference->object->refs += reference->count;
}

void sim_graph_objects_drop(struct sim_graph *graph)
{
	while (graph->objects) {
		struct sim_graph_object *reference = graph->objects;
		graph->objects = reference->next;
		put(reference->object, reference->count);
		free(reference);
	}
}

/* ---- entry points ------------------------------------------------------------------------------------------------ */

CUresult sim_cuUserObjectCreate(CUuserObject *object_out, void *ptr, CUhostFn destroy, unsigned int initialRefcount,
                                unsigned int flags)
{
	if (!object_out || !destroy || !initialRefcount || initialRefcount > INT_MAX ||
	    flags != CU_USER_OBJECT_NO_DESTRUCTOR_SYNC)
		return CUDA_ERROR_INVALID_VALUE;
	struct sim_user_object *object = calloc(1, sizeof(*object));
	if (!object)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*object = (struct sim_user_object){
	        .tag = SIM_TAG_USER_OBJECT, .destroy = destroy, .data = ptr, .refs = initialRefcount};
	sim_handle_add(object, SIM_TAG_USER_OBJECT);
	*object_out = (CUuserObject)object;
	return CUDA_SUCCESS;
}

static CUresult change(CUuserObject handle, unsigned count, bool more)
{
	CUresult error = CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&sim_graph_mutex);
	struct sim_user_object *object = object_of(handle);
	if (object && count && count <= INT_MAX && (more || object->refs >= count)) {
		if (more)
			object->refs += count;
		else
			put(object, count);
		error = CUDA_SUCCESS;
	}
	pthread_mutex_unlock(&sim_graph_mutex);
	return error;
}

CUresult sim_cuUserObjectRetain(CUuserObject object, unsigned int count)
{
	return change(object, count, true);
}

CUresult sim_cuUserObjectRelease(CUuserObject object, unsigned int count)
{
	return change(object, count, false);
}

CUresult sim_cuGraphRetainUserObject(CUgraph handle, CUuserObject object_handle, unsigned int count, unsigned int flags)
{
	CUresult error = CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&sim_graph_mutex);
	struct sim_graph *graph = sim_graph_of(handle);
	struct sim_user_object *object = object_of(object_handle);
	bool move = flags == CU_GRAPH_USER_OBJECT_MOVE;
	if (graph && object && count && count <= INT_MAX && (!flags || move) && (!move || object->refs >= count)) {
		error = refer(graph, object, count) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
		if (error == CUDA_SUCCESS && !move)
			object->refs += count;
	}
	pthread_mutex_unlock(&sim_graph_mutex);
	return error;
}

CUresult sim_cuGraphReleaseUserObject(CUgraph handle, CUuserObject object_handle, unsigned int count)
{
	CUresult error = CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&sim_graph_mutex);
	struct sim_graph *graph = sim_graph_of(handle);
	struct sim_user_object *object = object_of(object_handle);
	struct sim_graph_object *reference = graph && object ? reference_to(graph, object) : NULL;
	if (reference && count && reference->count >= count) {
		reference->count -= count;
		if (!reference->count)
			forget(graph, reference);
		put(object, count);
		error = CUDA_SUCCESS;
	}
	pthread_mutex_unlock(&sim_graph_mutex);
	return error;
}
