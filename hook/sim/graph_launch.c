/* graph_launch.c: launching executables, and uploading them.
 *
 * Called by programs. A launch is an item or two in its stream and the steps in lanes of their own (engine.h): the
 * lanes begin when the stream comes to the launch, and the stream goes on when all their ends have come. So a launch
 * takes its place in stream order, branches run beside each other, and a host function in one of them does not hold up
 * the others. Launches of one executable run one after the other, in whatever streams. What can go wrong: a context
 * that is gone, no memory for what the graph allocates, memory that is still there from the launch before
 * (CUDA_ERROR_INVALID_VALUE, unless the graph frees it by itself).
 */
#include <stdlib.h>

#include "capture.h"
#include "graph.h"
#include "sim_impl.h"

static struct sim_stream_event *event_new(void)
{
	struct sim_stream_event *event = calloc(1, sizeof(*event));
	if (event)
		event->refs = 1;
	return event;
}

static void event_put(struct sim_stream_event *event)
{
	if (!event)
		return;
	pthread_mutex_lock(&sim_engine_mutex);
	sim_event_put(event);
	pthread_mutex_unlock(&sim_engine_mutex);
}

static CUresult submit(struct sim_stream *stream, enum sim_item_kind kind, struct sim_stream_event *event)
{
	struct sim_item item = {.kind = kind, .event = event};
	return event ? sim_engine_submit(stream, &item, false) : CUDA_ERROR_OUT_OF_MEMORY;
}

/* One launch while it is being queued. */
struct run {
	const struct sim_graph_exec *exec;
	struct sim_stream *stream;
	struct sim_stream **lane;        /* by number */
	struct sim_stream_event *begin;
	struct sim_stream_event **event; /* by step: of those that are recorded */
};

static CUresult open_lanes(struct run *run)
{
	const struct sim_graph_exec *exec = run->exec;
	CUresult error = CUDA_SUCCESS;
	for (unsigned i = 0; i < exec->lanes && error == CUDA_SUCCESS; i++) {
		struct sim_context *context = exec->lane[i] ? exec->lane[i] : run->stream->context;
		if (!__atomic_load_n(&context->alive, __ATOMIC_ACQUIRE))
			return CUDA_ERROR_CONTEXT_IS_DESTROYED;
		run->lane[i] = sim_lane_open(context, run->stream->priority);
		if (!run->lane[i])
			return CUDA_ERROR_OUT_OF_MEMORY;
		error = submit(run->lane[i], SIM_ITEM_WAIT, run->begin);
	}
	return error;
}

static CUresult queue_step(struct run *run, unsigned number)
{
	const struct sim_graph_step *step = &run->exec->step[number];
	struct sim_stream *lane = run->lane[step->lane];
	CUresult error = CUDA_SUCCESS;
	for (unsigned i = 0; i < step->from_count && error == CUDA_SUCCESS; i++)
		if (run->exec->step[step->from[i]].lane != step->lane)
			error = submit(lane, SIM_ITEM_WAIT, run->event[step->from[i]]);
	const struct sim_graph_work *work = step->node && !step->node->disabled ? &step->node->work : NULL;
	for (unsigned i = 0; work && i < work->count && error == CUDA_SUCCESS; i++)
		error = sim_engine_submit(lane, &work->items[i], false);
	if (error != CUDA_SUCCESS || !step->recorded)
		return error;
	run->event[number] = event_new();
	return submit(lane, SIM_ITEM_RECORD, run->event[number]);
}

static CUresult queue_steps(struct run *run)
{
	const struct sim_graph_exec *exec = run->exec;
	CUresult error = submit(run->stream, SIM_ITEM_RECORD, run->begin);
	if (error == CUDA_SUCCESS)
		error = open_lanes(run);
	for (unsigned i = 0; i < exec->steps && error == CUDA_SUCCESS; i++)
		error = queue_step(run, i);
	for (unsigned i = 0; i < exec->steps && error == CUDA_SUCCESS; i++)
		if (!exec->step[i].followed)
			error = submit(run->stream, SIM_ITEM_WAIT, run->event[i]);
	return error;
}

static CUresult run_steps(const struct sim_graph_exec *exec, struct sim_stream *stream)
{
	struct run run = {.exec = exec, .stream = stream, .begin = event_new()};
	run.lane = calloc(exec->lanes, sizeof(struct sim_stream *));
	run.event = calloc(exec->steps, sizeof(struct sim_stream_event *));
	CUresult error = run.lane && run.event ? queue_steps(&run) : CUDA_ERROR_OUT_OF_MEMORY;
	for (unsigned i = 0; run.lane && i < exec->lanes; i++)
		if (run.lane[i])
			sim_lane_close(run.lane[i]);
	for (unsigned i = 0; run.event && i < exec->steps; i++)
		event_put(run.event[i]);
	event_put(run.begin);
	free(run.lane);
	free(run.event);
	return error;
}

/* With exec->launching held. */
static CUresult run_in_order(struct sim_graph_exec *exec, struct sim_stream *stream)
{
	CUresult error = CUDA_SUCCESS;
	if (exec->last_stream && exec->last_stream != stream->id)
		error = submit(stream, SIM_ITEM_WAIT, exec->done);
	if (error == CUDA_SUCCESS && exec->steps)
		error = run_steps(exec, stream);
	if (error == CUDA_SUCCESS)
		error = submit(stream, SIM_ITEM_RECORD, exec->done);
	exec->last_stream = stream->id;
	return error;
}

static CUresult launch(struct sim_graph_exec *exec, struct sim_stream *stream)
{
	struct sim_graph_launch *memory = NULL;
	struct sim_work done = {.run = sim_graph_memory_done, .arg_size = sizeof(struct sim_graph_launch *)};
	CUresult error = sim_context_error(stream->context);
	if (error == CUDA_SUCCESS)
		error = sim_capture_forbids(stream);
	if (error == CUDA_SUCCESS)
		error = sim_graph_memory_launch(exec, stream->id, false, &memory);
	if (error != CUDA_SUCCESS)
		return error;
	error = run_in_order(exec, stream);
	if (!memory)
		return error;
	__builtin_memcpy(done.arg, &memory, done.arg_size);
	CUresult queued = sim_enqueue(stream, &done);
	if (queued != CUDA_SUCCESS)
		sim_graph_memory_done(done.arg); /* the stream will never come to it */
	return error != CUDA_SUCCESS ? error : queued;
}

/* A reference to a live executable. */
static struct sim_graph_exec *take(CUgraphExec handle)
{
	pthread_mutex_lock(&sim_graph_mutex);
	struct sim_graph_exec *exec = sim_graph_exec_of(handle);
	if (exec)
		exec->refs++;
	pthread_mutex_unlock(&sim_graph_mutex);
	return exec;
}

static void hold_stream(struct sim_stream *stream, bool hold)
{
	pthread_mutex_lock(&sim_engine_mutex);
	stream->refs += hold ? 1 : -1u;
	if (!hold)
		sim_stream_reap(stream);
	pthread_mutex_unlock(&sim_engine_mutex);
}

CUresult sim_cuGraphLaunch(CUgraphExec hGraphExec, CUstream hStream)
{
	CUresult error;
	struct sim_stream *stream = sim_stream_of(hStream, &error);
	if (!stream)
		return error;
	struct sim_graph_exec *exec = take(hGraphExec);
	if (!exec)
		return CUDA_ERROR_INVALID_VALUE;
	if (sim_stream_capturing(stream)) {
		CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_GRAPH};
		params.graph.graph = (CUgraph)exec->graph;
		error = sim_capture_node(stream, &params);
	} else {
		hold_stream(stream, true);
		pthread_mutex_lock(&exec->launching);
		error = launch(exec, stream);
		pthread_mutex_unlock(&exec->launching);
		hold_stream(stream, false);
	}
	sim_graph_exec_put(exec);
	return error;
}

CUresult sim_graph_upload(struct sim_graph_exec *exec, struct sim_stream *stream)
{
	struct sim_graph_launch *memory;
	pthread_mutex_lock(&exec->launching);
	CUresult error = sim_context_error(stream->context);
	if (error == CUDA_SUCCESS)
		error = sim_capture_forbids(stream);
	if (error == CUDA_SUCCESS)
		error = sim_graph_memory_launch(exec, stream->id, true, &memory);
	pthread_mutex_unlock(&exec->launching);
	return error;
}

CUresult sim_cuGraphUpload(CUgraphExec hGraphExec, CUstream hStream)
{
	CUresult error;
	struct sim_stream *stream = sim_stream_of(hStream, &error);
	if (!stream)
		return error;
	struct sim_graph_exec *exec = take(hGraphExec);
	if (!exec)
		return CUDA_ERROR_INVALID_VALUE;
	error = sim_graph_upload(exec, stream);
	sim_graph_exec_put(exec);
	return error;
}
