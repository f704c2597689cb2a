/* capture.c: streams whose work becomes a graph: beginning, ending, and what is not allowed meanwhile.
 *
 * A *capture* begins in one stream and spreads to others by events. Each stream that takes part, and each event that was
 * recorded in one, has a *captured* state: the nodes that come before whatever comes next. Called by programs, and by
 * the entry points that queue work (capture.h). A call that a capture does not allow ends it: the stream stays in the
 * capture, which is *invalid*, until cuStreamEndCapture. What can go wrong is what the header lists by the names
 * CUDA_ERROR_STREAM_CAPTURE_*.
 */
#include "capture.h"

#include <stdlib.h>
#include <string.h>

#include "context.h"
#include "graph.h"
#include "green.h"
#include "sim_impl.h"

struct sim_capture {
	struct sim_capture *next;
	struct sim_captured *streams;
	struct sim_graph *graph;
	struct sim_stream *origin;
	const void *thread; /* that began it */
	CUstreamCaptureMode mode;
	uint64_t id;
	unsigned refs;      /* captured states */
	bool owns_graph;    /* it made the graph */
	bool invalid, ended;
};

/* Of a stream or an event. */
struct sim_captured {
	struct sim_captured *next; /* the capture's streams */
	struct sim_capture *capture;
	struct sim_stream *stream; /* NULL: an event's, or of a stream that is gone */
	struct sim_graph_edges from;
	CUgraphNode *nodes;        /* what cuStreamGetCaptureInfo gave out */
	CUgraphEdgeData *data;
};

/* All under the graph mutex. */
static struct sim_capture *captures;
static unsigned active; /* their number; also read without the mutex */
static uint64_t last_id;

static _Thread_local CUstreamCaptureMode thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

bool sim_stream_capturing(struct sim_stream *stream)
{
	return __atomic_load_n(&stream->captured, __ATOMIC_ACQUIRE) != NULL;
}

/* ---- captured states --------------------------------------------------------------------------------------------- */

static struct sim_captured *captured_new(struct sim_capture *capture, struct sim_stream *stream)
{
	struct sim_captured *captured = calloc(1, sizeof(*captured));
	if (!captured)
		return NULL;
	captured->capture = capture;
	captured->stream = stream;
	capture->refs++;
	if (!stream)
		return captured;
	captured->next = capture->streams;
	capture->streams = captured;
	__atomic_store_n(&stream->captured, captured, __ATOMIC_RELEASE);
	return captured;
}

static void capture_put(struct sim_capture *capture)
{
	if (--capture->refs == 0)
		free(capture);
}

static void captured_free(struct sim_captured *captured)
{
	if (captured->stream)
		__atomic_store_n(&captured->stream->captured, NULL, __ATOMIC_RELEASE);
	capture_put(captured->capture);
	free(captured->from.edge);
	free(captured->nodes);
	free(captured->data);
	free(captured);
}

/* Adds what `more` has and `edges` has not. */
static bool merge(struct sim_graph_edges *edges, const struct sim_graph_edges *more)
{
	for (size_t i = 0; i < more->count; i++) {
		bool known = false;
		for (size_t k = 0; k < edges->count && !known; k++)
			known = edges->edge[k].node == more->edge[i].node;
		if (!known && !sim_graph_edge_add(edges, more->edge[i].node, &more->edge[i].data))
			return false;
	}
	return true;
}

/* ---- adding nodes ------------------------------------------------------------------------------------------------ */

static CUresult add(struct sim_captured *captured, struct sim_graph_work *work, struct sim_graph_node **node)
{
	struct sim_graph *graph = captured->capture->graph;
	if (graph->moved &&
	    (work->params.type == CU_GRAPH_NODE_TYPE_MEM_ALLOC || work->params.type == CU_GRAPH_NODE_TYPE_MEM_FREE)) {
		sim_graph_work_drop(work);
		return CUDA_ERROR_NOT_SUPPORTED;
	}
	CUresult error = sim_graph_node_add(graph, captured->from.edge, captured->from.count, work, node);
	if (error != CUDA_SUCCESS)
		return error;
	captured->from.count = 0;
	return sim_graph_edge_add(&captured->from, *node, NULL) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* The stream's part of a capture that goes on; NULL: why not. */
static struct sim_captured *captured_of(struct sim_stream *stream, CUresult *error)
{
	struct sim_captured *captured = stream->captured;
	*error = !captured                    ? CUDA_ERROR_ILLEGAL_STATE
	         : captured->capture->invalid ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
	                                      : CUDA_SUCCESS;
	return *error == CUDA_SUCCESS ? captured : NULL;
}

CUresult sim_capture_node(struct sim_stream *stream, CUgraphNodeParams *params)
{
	struct sim_graph_work work;
	struct sim_graph_node *node;
	CUresult error;
	pthread_mutex_lock(&sim_graph_mutex);
	struct sim_captured *captured = captured_of(stream, &error);
	if (captured)
		error = sim_graph_work_make(captured->capture->graph, params, &work);
	if (error == CUDA_SUCCESS)
		error = add(captured, &work, &node);
	if (error == CUDA_SUCCESS && params->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC)
		params->alloc.dptr = node->work.params.alloc.dptr;
	pthread_mutex_unlock(&sim_graph_mutex);
	return error;
}

CUresult sim_capture_launch(struct sim_stream *stream, struct sim_function *function, const struct sim_launch *launch)
{
	CUlaunchAttributeValue value[CU_LAUNCH_ATTRIBUTE_MAX] = {0};
	struct sim_graph_work work, like = {.attribute = value};
	struct sim_graph_node *node;
	CUDA_KERNEL_NODE_PARAMS_v3 params = {.func = (CUfunction)function,
	                                     .gridDimX = launch->grid[0],
	                                     .gridDimY = launch->grid[1],
	                                     .gridDimZ = launch->grid[2],
	                                     .blockDimX = launch->block[0],
	                                     .blockDimY = launch->block[1],
	                                     .blockDimZ = launch->block[2],
	                                     .sharedMemBytes = launch->shared,
	                                     .kernelParams = launch->params,
	                                     .extra = launch->extra};
	if (stream->green)
		params.ctx = (CUcontext)&stream->green->context;
	value[CU_LAUNCH_ATTRIBUTE_COOPERATIVE].cooperative = launch->cooperative;
	value[CU_LAUNCH_ATTRIBUTE_PRIORITY].priority = stream->priority;
	value[CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION].clusterDim.x = launch->cluster[0];
	value[CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION].clusterDim.y = launch->cluster[1];
	value[CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION].clusterDim.z = launch->cluster[2];
	like.attributes = UINT32_C(1) << CU_LAUNCH_ATTRIBUTE_PRIORITY |
	                  (uint32_t)launch->cooperative << CU_LAUNCH_ATTRIBUTE_COOPERATIVE |
	                  (uint32_t)(launch->cluster[0] != 0) << CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
	CUresult error;
	pthread_mutex_lock(&sim_graph_mutex);
	struct sim_captured *captured = captured_of(stream, &error);
	if (captured)
		error = sim_graph_work_kernel(&params, &like, &work);
	if (error == CUDA_SUCCESS)
		error = add(captured, &work, &node);
	pthread_mutex_unlock(&sim_graph_mutex);
	return error;
}

CUresult sim_capture_copy(struct sim_stream *stream, const struct sim_box *box, const struct sim_place *dst,
                          const struct sim_place *src)
{
	CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_MEMCPY};
	params.memcpy.copyCtx = (CUcontext)stream->context;
	sim_box_params(box, dst, src, &params.memcpy.copyParams);
	return sim_capture_node(stream, &params);
}

CUresult sim_capture_fill(struct sim_stream *stream, const struct sim_fill *fill)
{
	CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_MEMSET};
	params.memset.dst = fill->dst;
	params.memset.pitch = fill->pitch;
	params.memset.value = fill->value;
	params.memset.elementSize = fill->element;
	params.memset.width = fill->width;
	params.memset.height = fill->height;
	params.memset.ctx = (CUcontext)stream->context;
	return sim_capture_node(stream, &params);
}

CUresult sim_capture_alloc(struct sim_stream *stream, CUdevice ordinal, size_t bytes, CUdeviceptr *out)
{
	CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_MEM_ALLOC};
	CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = ordinal},
	                          .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	params.alloc.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
	params.alloc.poolProps.location = access.location;
	params.alloc.accessDescs = &access;
	params.alloc.accessDescCount = 1;
	params.alloc.bytesize = bytes;
	CUresult error = sim_capture_node(stream, &params);
	if (error == CUDA_SUCCESS)
		*out = params.alloc.dptr;
	return error;
}

CUresult sim_capture_free(struct sim_stream *stream, CUdeviceptr p)
{
	CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_MEM_FREE};
	params.free.dptr = p;
	return sim_capture_node(stream, &params);
}

/* ---- events ------------------------------------------------------------------------------------------------------ */

static void event_forget(struct sim_stream_event *event)
{
	if (event->captured)
		captured_free(event->captured);
	event->captured = NULL;
}

void sim_capture_forget(struct sim_stream_event *event)
{
	if (!__atomic_load_n(&event->captured, __ATOMIC_ACQUIRE))
		return;
	pthread_mutex_lock(&sim_graph_mutex);
	event_forget(event);
	pthread_mutex_unlock(&sim_graph_mutex);
}

CUresult sim_capture_record(struct sim_stream *stream, struct sim_stream_event *event)
{
	CUresult error;
	pthread_mutex_lock(&sim_graph_mutex);
	struct sim_captured *captured = captured_of(stream, &error);
	if (captured) {
		event_forget(event);
		struct sim_captured *mark = captured_new(captured->capture, NULL);
		if (!mark || !merge(&mark->from, &captured->from))
			error = CUDA_ERROR_OUT_OF_MEMORY;
		event->captured = mark;
	}
	pthread_mutex_unlock(&sim_graph_mutex);
	return error;
}

/* The stream joins the event's capture, or only waits in its own. */
static CUresult join(struct sim_stream *stream, const struct sim_captured *mark)
{
	struct sim_captured *captured = stream->captured;
	if (mark && mark->capture->ended)
		return CUDA_ERROR_CAPTURED_EVENT;
	if ((captured && captured->capture->invalid) || (mark && mark->capture->invalid))
		return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	CUresult error = CUDA_SUCCESS;
	if (!mark)
		error = CUDA_ERROR_STREAM_CAPTURE_ISOLATION; /* what it waits for is not part of the graph */
	else if (captured && captured->capture != mark->capture)
		error = CUDA_ERROR_STREAM_CAPTURE_MERGE;
	else if (stream->legacy)
		error = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
	if (error != CUDA_SUCCESS) {
		if (captured)
			captured->capture->invalid = true;
		if (mark)
			mark->capture->invalid = true;
		return error;
	}
	if (!captured)
		captured = captured_new(mark->capture, stream);
	return captured && merge(&captured->from, &mark->from) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

bool sim_capture_wait(struct sim_stream *stream, struct sim_stream_event *event, CUresult *error)
{
	if (!__atomic_load_n(&event->captured, __ATOMIC_ACQUIRE) && !sim_stream_capturing(stream))
		return false;
	pthread_mutex_lock(&sim_graph_mutex);
	*error = join(stream, event->captured);
	pthread_mutex_unlock(&sim_graph_mutex);
	return true;
}

CUresult sim_capture_forbids_event(struct sim_stream_event *event)
{
	if (!__atomic_load_n(&event->captured, __ATOMIC_ACQUIRE))
		return CUDA_SUCCESS;
	pthread_mutex_lock(&sim_graph_mutex);
	bool captured = event->captured;
	if (captured)
		event->captured->capture->invalid = true;
	pthread_mutex_unlock(&sim_graph_mutex);
	return captured ? CUDA_ERROR_CAPTURED_EVENT : CUDA_SUCCESS;
}

/* ---- what captures do not allow ---------------------------------------------------------------------------------- */

/* Ends the captures in which a blocking stream of the context takes part: says whether there are any. */
static bool invalidate(const struct sim_context *context, bool blocking_only)
{
	bool any = false;
	for (struct sim_capture *capture = captures; capture; capture = capture->next) {
		for (const struct sim_captured *part = capture->streams; part; part = part->next) {
			if (!part->stream || part->stream->context != context ||
			    (blocking_only && (part->stream->flags & CU_STREAM_NON_BLOCKING)))
				continue;
			capture->invalid = any = true;
		}
	}
	return any;
}

static bool any_active(void)
{
	return __atomic_load_n(&active, __ATOMIC_ACQUIRE);
}

CUresult sim_capture_forbids(struct sim_stream *stream)
{
	CUresult error = CUDA_SUCCESS;
	if (!any_active() || stream->lane)
		return CUDA_SUCCESS;
	pthread_mutex_lock(&sim_graph_mutex);
	if (stream->captured) {
		error = stream->captured->capture->invalid ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
		                                           : CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
		stream->captured->capture->invalid = true;
	} else if (stream->legacy && invalidate(stream->context, true)) {
		error = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
	}
	pthread_mutex_unlock(&sim_graph_mutex);
	return error;
}

CUresult sim_capture_forbids_context(struct sim_context *context)
{
	if (!any_active())
		return CUDA_SUCCESS;
	pthread_mutex_lock(&sim_graph_mutex);
	bool any = invalidate(context, false);
	pthread_mutex_unlock(&sim_graph_mutex);
	return any ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS;
}

/* As cuThreadExchangeStreamCaptureMode describes it. */
bool sim_capture_prohibits(int *result)
{
	bool any = false;
	if (!any_active() || thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED)
		return false;
	pthread_mutex_lock(&sim_graph_mutex);
	for (struct sim_capture *capture = captures; capture; capture = capture->next) {
		bool own = capture->thread == &thread_mode && capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED;
		bool other =
		        thread_mode == CU_STREAM_CAPTURE_MODE_GLOBAL && capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
		if (own || other)
			capture->invalid = any = true;
	}
	pthread_mutex_unlock(&sim_graph_mutex);
	*result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	return any;
}

CUresult sim_cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode)
{
	if (!mode || (unsigned)*mode > CU_STREAM_CAPTURE_MODE_RELAXED)
		return CUDA_ERROR_INVALID_VALUE;
	CUstreamCaptureMode old = thread_mode;
	thread_mode = *mode;
	*mode = old;
	return CUDA_SUCCESS;
}

/* ---- beginning and ending ---------------------------------------------------------------------------------------- */

static CUresult begin(struct sim_stream *stream, CUstreamCaptureMode mode, struct sim_graph *graph,
                      const struct sim_graph_edges *from)
{
	if ((unsigned)mode > CU_STREAM_CAPTURE_MODE_RELAXED)
		return CUDA_ERROR_INVALID_VALUE;
	if (stream->legacy || (stream->green && stream->green->own == stream))
		return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	if (stream->captured)
		return CUDA_ERROR_ILLEGAL_STATE;
	struct sim_capture *capture = calloc(1, sizeof(*capture));
	struct sim_captured *captured = capture ? captured_new(capture, stream) : NULL;
	if (!captured || (from && !merge(&captured->from, from)) ||
	    !(capture->graph = graph ? graph : sim_graph_new())) {
		if (captured)
			captured_free(captured);
		else
			free(capture);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	capture->owns_graph = !graph;
	capture->graph->capture = capture;
	capture->origin = stream;
	capture->thread = &thread_mode;
	capture->mode = mode;
	capture->id = ++last_id;
	capture->next = captures;
	captures = capture;
	__atomic_add_fetch(&active, 1, __ATOMIC_RELEASE);
	return CUDA_SUCCESS;
}

/* All streams leave it; the graph is the program's, or goes. */
static void finish(struct sim_capture *capture, bool keep_graph)
{
	struct sim_capture **link = &captures;
	while (*link != capture)
		link = &(*link)->next;
	*link = capture->next;
	__atomic_sub_fetch(&active, 1, __ATOMIC_RELEASE);
	capture->ended = true;
	capture->graph->capture = NULL;
	if (!keep_graph && capture->owns_graph)
		sim_graph_free(capture->graph);
	capture->graph = NULL;
	capture->refs++;
	while (capture->streams) {
		struct sim_captured *part = capture->streams;
		capture->streams = part->next;
		captured_free(part);
	}
	capture_put(capture);
}

static size_t mark_all(const struct sim_graph_edges *edges, struct sim_graph_node **list, size_t count)
{
	for (size_t i = 0; i < edges->count; i++) {
		struct sim_graph_node *node = edges->edge[i].node;
		if (node->mark)
			continue;
		node->mark = 1;
		list[count++] = node;
	}
	return count;
}

/* Marks these nodes and what comes before them. */
static bool mark_before(const struct sim_graph *graph, const struct sim_graph_edges *edges)
{
	struct sim_graph_node **list = calloc(graph->count + 1, sizeof(struct sim_graph_node *));
	if (!list)
		return false;
	for (struct sim_graph_node *node = graph->first; node; node = node->next)
		node->mark = 0;
	size_t count = mark_all(edges, list, 0);
	for (size_t i = 0; i < count; i++)
		count = mark_all(&list[i]->from, list, count);
	free(list);
	return true;
}

/* Every other stream's last nodes come before the origin's. */
static bool is_joined(const struct sim_capture *capture)
{
	if (!mark_before(capture->graph, &capture->origin->captured->from))
		return false;
	for (const struct sim_captured *part = capture->streams; part; part = part->next)
		for (size_t i = 0; i < part->from.count; i++)
			if (!part->from.edge[i].node->mark)
				return false;
	return true;
}

static CUresult end(struct sim_stream *stream, CUgraph *out)
{
	struct sim_capture *capture = stream->captured ? stream->captured->capture : NULL;
	if (!capture)
		return CUDA_ERROR_ILLEGAL_STATE;
	if (capture->origin != stream) {
		capture->invalid = true;
		return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
	}
	if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED && capture->thread != &thread_mode)
		return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
	CUresult error = capture->invalid      ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
	                 : !is_joined(capture) ? CUDA_ERROR_STREAM_CAPTURE_UNJOINED
	                                       : CUDA_SUCCESS;
	*out = error == CUDA_SUCCESS ? (CUgraph)capture->graph : NULL;
	finish(capture, error == CUDA_SUCCESS);
	return error;
}

/* A stream goes, or all of a context (stream NULL). Without its origin a capture is over; of another stream it keeps what
 * has yet to be joined. */
static void abandon(struct sim_capture *capture, const struct sim_stream *stream, const struct sim_context *context)
{
	if (capture->origin == stream || (!stream && capture->origin->context == context)) {
		finish(capture, false);
		return;
	}
	for (struct sim_captured *part = capture->streams; part; part = part->next) {
		if (!part->stream || (stream ? part->stream != stream : part->stream->context != context))
			continue;
		__atomic_store_n(&part->stream->captured, NULL, __ATOMIC_RELEASE);
		part->stream = NULL;
	}
}

void sim_capture_abandon(struct sim_stream *stream)
{
	if (!sim_stream_capturing(stream))
		return;
	pthread_mutex_lock(&sim_graph_mutex);
	if (stream->captured)
		abandon(stream->captured->capture, stream, NULL);
	pthread_mutex_unlock(&sim_graph_mutex);
}

void sim_capture_abandon_all(struct sim_context *context)
{
	struct sim_capture *next;
	if (!any_active())
		return;
	pthread_mutex_lock(&sim_graph_mutex);
	for (struct sim_capture *capture = captures; capture; capture = next) {
		next = capture->next;
		abandon(capture, NULL, context);
	}
	pthread_mutex_unlock(&sim_graph_mutex);
}

CUresult sim_cuStreamBeginCapture_v2(CUstream hStream, CUstreamCaptureMode mode)
{
	CUresult error;
	struct sim_stream *stream = sim_stream_of(hStream, &error);
	if (!stream)
		return error;
	pthread_mutex_lock(&sim_graph_mutex);
	error = begin(stream, mode, NULL, NULL);
	pthread_mutex_unlock(&sim_graph_mutex);
	return error;
}

CUresult sim_cuStreamBeginCapture(CUstream hStream)
{
	return sim_cuStreamBeginCapture_v2(hStream, CU_STREAM_CAPTURE_MODE_GLOBAL);
}

/* Nodes of a graph, as a program names them. */
static CUresult gather(const struct sim_graph *graph, const CUgraphNode *nodes, const CUgraphEdgeData *data,
                       size_t count, struct sim_graph_edges *edges)
{
	if (count && !nodes)
		return CUDA_ERROR_INVALID_VALUE;
	for (size_t i = 0; i < count; i++) {
		struct sim_graph_node *node = sim_graph_node_of(nodes[i]);
		if (!node || node->graph != graph)
			return CUDA_ERROR_INVALID_VALUE;
		if (!sim_graph_edge_add(edges, node, data ? &data[i] : NULL))
			return CUDA_ERROR_OUT_OF_MEMORY;
		CUresult error = sim_graph_edge_check(node, &edges->edge[i].data);
		if (error != CUDA_SUCCESS)
			return error;
	}
	return CUDA_SUCCESS;
}

CUresult sim_cuStreamBeginCaptureToGraph(CUstream hStream, CUgraph hGraph, const CUgraphNode *dependencies,
                                         const CUgraphEdgeData *dependencyData, size_t numDependencies,
                                         CUstreamCaptureMode mode)
{
	CUresult error;
	struct sim_graph_edges from = {0};
	struct sim_stream *stream = sim_stream_of(hStream, &error);
	if (!stream)
		return error;
	pthread_mutex_lock(&sim_graph_mutex);
	struct sim_graph *graph = sim_graph_of(hGraph);
	error = graph && !graph->capture ? gather(graph, dependencies, dependencyData, numDependencies, &from)
	                                 : CUDA_ERROR_INVALID_VALUE;
	if (error == CUDA_SUCCESS)
		error = begin(stream, mode, graph, &from);
	pthread_mutex_unlock(&sim_graph_mutex);
	free(from.edge);
	return error;
}

CUresult sim_cuStreamEndCapture(CUstream hStream, CUgraph *phGraph)
{
	CUresult error;
	struct sim_stream *stream = sim_stream_of(hStream, &error);
	if (!stream)
		return error;
	if (!phGraph)
		return CUDA_ERROR_INVALID_VALUE;
	*phGraph = NULL;
	pthread_mutex_lock(&sim_graph_mutex);
	error = end(stream, phGraph);
	pthread_mutex_unlock(&sim_graph_mutex);
	return error;
}

/* ---- questions ---------------------------------------------------------------------------------------------------- */

/* With the mutex held: the stream's status, or that it may not be asked. */
static CUresult status_of(const struct sim_stream *stream, CUstreamCaptureStatus *status)
{
	*status = CU_STREAM_CAPTURE_STATUS_NONE;
	if (stream->captured)
		*status = stream->captured->capture->invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
		                                             : CU_STREAM_CAPTURE_STATUS_ACTIVE;
	for (const struct sim_capture *capture = stream->legacy ? captures : NULL; capture; capture = capture->next)
		for (const struct sim_captured *part = capture->streams; part; part = part->next)
			if (part->stream && part->stream->context == stream->context &&
			    !(part->stream->flags & CU_STREAM_NON_BLOCKING))
				return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
	return CUDA_SUCCESS;
}

CUresult sim_cuStreamIsCapturing(CUstream hStream, CUstreamCaptureStatus *captureStatus)
{
	CUresult error;
	struct sim_stream *stream = sim_stream_of(hStream, &error);
	if (!stream)
		return error;
	if (!captureStatus)
		return CUDA_ERROR_INVALID_VALUE;
	*captureStatus = CU_STREAM_CAPTURE_STATUS_NONE;
	if (!any_active())
		return CUDA_SUCCESS;
	pthread_mutex_lock(&sim_graph_mutex);
	error = status_of(stream, captureStatus);
	pthread_mutex_unlock(&sim_graph_mutex);
	return error;
}

/* What a capturing stream is asked; all but the first may be missing. */
struct question {
	CUstreamCaptureStatus *status;
	cuuint64_t *id;
	CUgraph *graph;
	const CUgraphNode **nodes;
	const CUgraphEdgeData **data;
	size_t *count;
};

/* Copies of the stream's dependencies that last until it is asked again. */
static CUresult give_out(struct sim_captured *captured, const struct question *question)
{
	static const CUgraphEdgeData plain;
	size_t count = captured->from.count;
	CUgraphNode *nodes = realloc(captured->nodes, (count + 1) * sizeof(*nodes));
	captured->nodes = nodes ? nodes : captured->nodes;
	CUgraphEdgeData *data = realloc(captured->data, (count + 1) * sizeof(*data));
	captured->data = data ? data : captured->data;
	if (!nodes || !data)
		return CUDA_ERROR_OUT_OF_MEMORY;
	for (size_t i = 0; i < count; i++) {
		nodes[i] = (CUgraphNode)captured->from.edge[i].node;
		data[i] = captured->from.edge[i].data;
		if (!question->data && memcmp(&data[i], &plain, sizeof(plain)) != 0)
			return CUDA_ERROR_LOSSY_QUERY;
	}
	*question->nodes = nodes;
	if (question->data)
		*question->data = data;
	return CUDA_SUCCESS;
}

static CUresult answer(struct sim_stream *stream, const struct question *question)
{
	struct sim_captured *captured = stream->captured;
	CUresult error = status_of(stream, question->status);
	if (error != CUDA_SUCCESS || *question->status != CU_STREAM_CAPTURE_STATUS_ACTIVE)
		return error;
	if (question->id)
		*question->id = captured->capture->id;
	if (question->graph)
		*question->graph = (CUgraph)captured->capture->graph;
	if (question->count)
		*question->count = captured->from.count;
	return question->nodes ? give_out(captured, question) : CUDA_SUCCESS;
}

CUresult sim_cuStreamGetCaptureInfo_v3(CUstream hStream, CUstreamCaptureStatus *captureStatus_out, cuuint64_t *id_out,
                                       CUgraph *graph_out, const CUgraphNode **dependencies_out,
                                       const CUgraphEdgeData **edgeData_out, size_t *numDependencies_out)
{
	CUresult error;
	struct question question = {captureStatus_out, id_out,       graph_out,
	                            dependencies_out,  edgeData_out, numDependencies_out};
	struct sim_stream *stream = sim_stream_of(hStream, &error);
	if (!stream)
		return error;
	if (!captureStatus_out || (edgeData_out && !dependencies_out))
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&sim_graph_mutex);
	error = answer(stream, &question);
	pthread_mutex_unlock(&sim_graph_mutex);
	return error;
}

CUresult sim_cuStreamGetCaptureInfo_v2(CUstream hStream, CUstreamCaptureStatus *captureStatus_out, cuuint64_t *id_out,
                                       CUgraph *graph_out, const CUgraphNode **dependencies_out,
                                       size_t *numDependencies_out)
{
	return sim_cuStreamGetCaptureInfo_v3(hStream, captureStatus_out, id_out, graph_out, dependencies_out, NULL,
	                                     numDependencies_out);
}

CUresult sim_cuStreamGetCaptureInfo(CUstream hStream, CUstreamCaptureStatus *captureStatus_out, cuuint64_t *id_out)
{
	return sim_cuStreamGetCaptureInfo_v3(hStream, captureStatus_out, id_out, NULL, NULL, NULL, NULL);
}

static CUresult update(struct sim_captured *captured, const struct sim_graph_edges *from, unsigned flags)
{
	if (flags == CU_STREAM_SET_CAPTURE_DEPENDENCIES)
		captured->from.count = 0;
	return merge(&captured->from, from) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult sim_cuStreamUpdateCaptureDependencies_v2(CUstream hStream, CUgraphNode *dependencies,
                                                  const CUgraphEdgeData *dependencyData, size_t numDependencies,
                                                  unsigned int flags)
{
	CUresult error;
	struct sim_graph_edges from = {0};
	struct sim_stream *stream = sim_stream_of(hStream, &error);
	if (!stream)
		return error;
	if (flags > CU_STREAM_SET_CAPTURE_DEPENDENCIES)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&sim_graph_mutex);
	struct sim_captured *captured = captured_of(stream, &error);
	if (captured)
		error = gather(captured->capture->graph, dependencies, dependencyData, numDependencies, &from);
	if (error == CUDA_SUCCESS)
		error = update(captured, &from, flags);
	pthread_mutex_unlock(&sim_graph_mutex);
	free(from.edge);
	return error;
}

CUresult sim_cuStreamUpdateCaptureDependencies(CUstream hStream, CUgraphNode *dependencies, size_t numDependencies,
                                               unsigned int flags)
{
	return sim_cuStreamUpdateCaptureDependencies_v2(hStream, dependencies, NULL, numDependencies, flags);
}
