/* event.c: events, with times from the virtual timeline of the device (engine.h).
 *
 * Each cuEventRecord begins a new *generation* of the event; waiting and querying mean the latest one, of any process
 * where the event is one between processes (event_share.c).
 */
#include <stdlib.h>

#include "capture.h"
#include "context.h"
#include "event_share.h"
#include "sim_impl.h"

static struct sim_stream_event *event_of(CUevent handle)
{
	struct sim_stream_event *event = (struct sim_stream_event *)handle;
	return sim_handle_is(event, SIM_TAG_EVENT) ? event : NULL;
}

static CUresult make_event(CUevent *out, unsigned flags, struct sim_shared_event *shared)
{
	struct sim_context *context = sim_current();
	struct sim_stream_event *event = calloc(1, sizeof(*event));
	if (!event)
		return CUDA_ERROR_OUT_OF_MEMORY;
	event->tag = SIM_TAG_EVENT;
	event->flags = flags;
	event->device = context->device;
	event->context_id = context->id;
	event->refs = 1;
	event->shared = shared;
	sim_handle_add(event, SIM_TAG_EVENT);
	*out = (CUevent)event;
	return CUDA_SUCCESS;
}

struct sim_shared_event *sim_event_shared(CUevent handle)
{
	struct sim_stream_event *event = event_of(handle);
	return event ? event->shared : NULL;
}

CUresult sim_event_open(CUevent *out, struct sim_shared_event *shared)
{
	return make_event(out, CU_EVENT_DISABLE_TIMING, shared);
}

CUresult sim_cuEventCreate(CUevent *phEvent, unsigned int Flags)
{
	struct sim_context *context = sim_current();
	if (!context)
		return CUDA_ERROR_INVALID_CONTEXT;
	unsigned all = CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;
	if (!phEvent || (Flags & ~all) || ((Flags & CU_EVENT_INTERPROCESS) && !(Flags & CU_EVENT_DISABLE_TIMING)))
		return CUDA_ERROR_INVALID_VALUE;
	struct sim_shared_event *shared = NULL;
	if ((Flags & CU_EVENT_INTERPROCESS) && !(shared = sim_shared_event_new()))
		return CUDA_ERROR_OUT_OF_MEMORY;
	CUresult error = make_event(phEvent, Flags, shared);
	if (error != CUDA_SUCCESS && shared)
		sim_shared_event_drop(shared);
	return error;
}

CUresult sim_cuEventDestroy_v2(CUevent hEvent)
{
	struct sim_stream_event *event = event_of(hEvent);
	if (!event)
		return CUDA_ERROR_INVALID_HANDLE;
	sim_capture_forget(event);
	sim_handle_drop(event);
	pthread_mutex_lock(&sim_engine_mutex);
	sim_event_put(event);
	pthread_mutex_unlock(&sim_engine_mutex);
	return CUDA_SUCCESS;
}

CUresult sim_cuEventDestroy(CUevent hEvent)
{
	return sim_cuEventDestroy_v2(hEvent);
}

CUresult sim_cuEventRecordWithFlags(CUevent hEvent, CUstream hStream, unsigned int flags)
{
	CUresult error;
	struct sim_stream *stream = sim_stream_of(hStream, &error);
	if (!stream)
		return error;
	struct sim_stream_event *event = event_of(hEvent);
	if (!event)
		return CUDA_ERROR_INVALID_HANDLE;
	if (flags & ~(unsigned)CU_EVENT_RECORD_EXTERNAL)
		return CUDA_ERROR_INVALID_VALUE;
	if (event->context_id != stream->context->id)
		return CUDA_ERROR_INVALID_HANDLE;
	if (sim_stream_capturing(stream)) {
		CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_EVENT_RECORD, .eventRecord.event = hEvent};
		return flags & CU_EVENT_RECORD_EXTERNAL ? sim_capture_node(stream, &params)
		                                        : sim_capture_record(stream, event);
	}
	sim_capture_forget(event);
	struct sim_item item = {.kind = SIM_ITEM_RECORD, .event = event};
	error = sim_engine_submit(stream, &item, false);
	return error == CUDA_SUCCESS && event->shared ? sim_shared_event_record(event->shared, stream) : error;
}

CUresult sim_cuEventRecord(CUevent hEvent, CUstream hStream)
{
	return sim_cuEventRecordWithFlags(hEvent, hStream, CU_EVENT_RECORD_DEFAULT);
}

CUresult sim_cuStreamWaitEvent(CUstream hStream, CUevent hEvent, unsigned int Flags)
{
	CUresult error;
	struct sim_stream *stream = sim_stream_of(hStream, &error);
	if (!stream)
		return error;
	struct sim_stream_event *event = event_of(hEvent);
	if (!event)
		return CUDA_ERROR_INVALID_HANDLE;
	if (Flags & ~(unsigned)CU_EVENT_WAIT_EXTERNAL)
		return CUDA_ERROR_INVALID_VALUE;
	if (sim_stream_capturing(stream) && (Flags & CU_EVENT_WAIT_EXTERNAL)) {
		CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_WAIT_EVENT, .eventWait.event = hEvent};
		return sim_capture_node(stream, &params);
	}
	if (sim_capture_wait(stream, event, &error))
		return error;
	struct sim_item item = {.kind = SIM_ITEM_WAIT, .event = event};
	if (event->shared)
		sim_shared_event_item(event->shared, &item);
	return sim_engine_submit(stream, &item, false);
}

/* ---- a whole context --------------------------------------------------------------------------------------------- */

/* Both are items of the context's barrier stream: a record there completes when everything that any stream of the
 * context was given before it has, and a wait there holds up everything that is given to them after it. */
static CUresult submit_to_context(CUcontext handle, CUevent hEvent, enum sim_item_kind kind)
{
	struct sim_context *context = sim_context_of(handle);
	if (!context)
		return CUDA_ERROR_INVALID_CONTEXT;
	struct sim_stream_event *event = event_of(hEvent);
	if (!event || (kind == SIM_ITEM_RECORD && event->context_id != context->id))
		return CUDA_ERROR_INVALID_HANDLE;
	if (kind == SIM_ITEM_WAIT && sim_capture_forbids_event(event) != CUDA_SUCCESS)
		return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	CUresult error = sim_capture_forbids_context(context);
	if (error != CUDA_SUCCESS)
		return error;
	sim_capture_forget(event);
	struct sim_stream *barrier = sim_stream_barrier(context);
	if (!barrier)
		return CUDA_ERROR_OUT_OF_MEMORY;
	struct sim_item item = {.kind = kind, .event = event};
	return sim_engine_submit(barrier, &item, false);
}

CUresult sim_cuCtxRecordEvent(CUcontext hCtx, CUevent hEvent)
{
	return submit_to_context(hCtx, hEvent, SIM_ITEM_RECORD);
}

CUresult sim_cuCtxWaitEvent(CUcontext hCtx, CUevent hEvent)
{
	return submit_to_context(hCtx, hEvent, SIM_ITEM_WAIT);
}

static CUresult device_error(const struct sim_stream_event *event)
{
	return __atomic_load_n(&sim_machine->device[event->device].lost, __ATOMIC_RELAXED) ? SIM_ERROR_LOST
	                                                                                   : CUDA_SUCCESS;
}

/* An event of a capture is told apart from the rest of what captures forbid: the program can act on it. */
static CUresult forbids_asking(struct sim_stream_event *event)
{
	int prohibited;
	CUresult error = sim_capture_forbids_event(event);
	return error == CUDA_SUCCESS && sim_capture_prohibits(&prohibited) ? (CUresult)prohibited : error;
}

/* The latest record of it has completed; with the mutex held, which may be let go meanwhile. */
static bool is_over(struct sim_stream_event *event)
{
	if (event->completed == event->recorded)
		return true;
	event->refs++;
	sim_engine_catch_up(event->device);
	bool done = event->completed == event->recorded;
	sim_event_put(event);
	return done;
}

CUresult sim_cuEventQuery(CUevent hEvent)
{
	struct sim_stream_event *event = event_of(hEvent);
	if (!event)
		return CUDA_ERROR_INVALID_HANDLE;
	CUresult error = forbids_asking(event);
	if (error != CUDA_SUCCESS)
		return error;
	pthread_mutex_lock(&sim_engine_mutex);
	bool done = is_over(event);
	pthread_mutex_unlock(&sim_engine_mutex);
	if (event->shared)
		done = sim_shared_event_reached(event->shared, sim_shared_event_mark(event->shared));
	error = device_error(event);
	return error != CUDA_SUCCESS ? error : done ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

static bool event_done(const struct sim_waiter *waiter)
{
	return waiter->event->completed >= waiter->mark;
}

CUresult sim_cuEventSynchronize(CUevent hEvent)
{
	struct sim_stream_event *event = event_of(hEvent);
	if (!event)
		return CUDA_ERROR_INVALID_HANDLE;
	CUresult error = forbids_asking(event);
	if (error != CUDA_SUCCESS)
		return error;
	pthread_mutex_lock(&sim_engine_mutex);
	event->refs++;
	struct sim_waiter waiter = {.satisfied = event_done, .event = event, .mark = event->recorded};
	if (event->shared) {
		pthread_mutex_unlock(&sim_engine_mutex);
		sim_shared_event_sleep(event->shared, sim_shared_event_mark(event->shared));
		pthread_mutex_lock(&sim_engine_mutex);
	} else {
		sim_engine_wait(&waiter);
	}
	error = device_error(event);
	int device = event->device;
	sim_event_put(event);
	pthread_mutex_unlock(&sim_engine_mutex);
	sim_pools_synchronized(device);
	return error;
}

CUresult sim_cuEventElapsedTime_v2(float *pMilliseconds, CUevent hStart, CUevent hEnd)
{
	struct sim_stream_event *start = event_of(hStart), *end = event_of(hEnd);
	if (!start || !end)
		return CUDA_ERROR_INVALID_HANDLE;
	if (!pMilliseconds)
		return CUDA_ERROR_INVALID_VALUE;
	if (((start->flags | end->flags) & CU_EVENT_DISABLE_TIMING) || start->context_id != end->context_id)
		return CUDA_ERROR_INVALID_HANDLE;
	CUresult error = sim_capture_forbids_event(start);
	if (error == CUDA_SUCCESS)
		error = sim_capture_forbids_event(end);
	if (error != CUDA_SUCCESS)
		return error;
	pthread_mutex_lock(&sim_engine_mutex);
	bool recorded = start->recorded && end->recorded;
	bool done = is_over(start) && is_over(end);
	double ns = (double)(int64_t)(end->time_ns - start->time_ns);
	pthread_mutex_unlock(&sim_engine_mutex);
	if (!recorded)
		return CUDA_ERROR_INVALID_HANDLE;
	if (!done)
		return CUDA_ERROR_NOT_READY;
	*pMilliseconds = (float)(ns / 1e6);
	return CUDA_SUCCESS;
}

CUresult sim_cuEventElapsedTime(float *pMilliseconds, CUevent hStart, CUevent hEnd)
{
	return sim_cuEventElapsedTime_v2(pMilliseconds, hStart, hEnd);
}
