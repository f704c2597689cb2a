/* green_event.c: events of all streams of a green context: cuGreenCtxRecordEvent, cuGreenCtxWaitEvent.
 *
 * The green context has a lane of its own for this (its *order*). A record there comes after a wait for every stream of
 * the context; a wait there is what every stream of the context waits for, also one that is made later
 * (sim_green_join). Called by programs. What can go wrong: a stream of the context captures, an event of another context.
 */
#include <stdlib.h>

#include "capture.h"
#include "green.h"
#include "sim_impl.h"

/* An event of our own between two streams; put it back when it is queued. */
static struct sim_stream_event *event_new(const struct sim_context *context)
{
	struct sim_stream_event *event = calloc(1, sizeof(*event));
	if (!event)
		return NULL;
	event->tag = SIM_TAG_EVENT;
	event->device = context->device;
	event->context_id = context->id;
	event->refs = 1;
	return event;
}

static void put(struct sim_stream_event *event)
{
	pthread_mutex_lock(&sim_engine_mutex);
	sim_event_put(event);
	pthread_mutex_unlock(&sim_engine_mutex);
}

static CUresult submit(struct sim_stream *stream, enum sim_item_kind kind, struct sim_stream_event *event)
{
	struct sim_item item = {.kind = kind, .event = event};
	return sim_engine_submit(stream, &item, false);
}

/* What `behind` was given so far comes before what `stream` is given from now on. */
static CUresult order_after(struct sim_stream *stream, struct sim_stream *behind)
{
	struct sim_stream_event *event = event_new(behind->context);
	if (!event)
		return CUDA_ERROR_OUT_OF_MEMORY;
	CUresult result = submit(behind, SIM_ITEM_RECORD, event);
	if (result == CUDA_SUCCESS)
		result = submit(stream, SIM_ITEM_WAIT, event);
	put(event);
	return result;
}

static struct sim_stream *order_of(struct sim_green *green)
{
	static pthread_mutex_t making = PTHREAD_MUTEX_INITIALIZER;
	pthread_mutex_lock(&making);
	if (!green->order)
		green->order = sim_lane_open(green->primary, 0);
	pthread_mutex_unlock(&making);
	return green->order;
}

CUresult sim_green_join(struct sim_stream *stream)
{
	struct sim_stream *order = stream->green->order;
	return order ? order_after(stream, order) : CUDA_SUCCESS;
}

/* ---- all streams of one green context ----------------------------------------------------------------------------- */

struct streams {
	struct sim_stream **at;
	unsigned count;
};

static CUresult hold(struct sim_green *green, struct streams *all)
{
	*all = (struct streams){0};
	unsigned most = 0;
	pthread_mutex_lock(&sim_engine_mutex);
	for (const struct sim_stream *stream = green->primary->streams; stream; stream = stream->next)
		most += stream->green == green;
	all->at = calloc(most + 1, sizeof(struct sim_stream *));
	for (struct sim_stream *stream = green->primary->streams; all->at && stream; stream = stream->next)
		if (stream->green == green)
			(all->at[all->count++] = stream)->refs++;
	pthread_mutex_unlock(&sim_engine_mutex);
	return all->at ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static void let_go(struct streams *all)
{
	pthread_mutex_lock(&sim_engine_mutex);
	for (unsigned i = 0; i < all->count; i++) {
		all->at[i]->refs--;
		sim_stream_reap(all->at[i]);
	}
	pthread_mutex_unlock(&sim_engine_mutex);
	free(all->at);
}

/* No stream of it may capture: those captures are ended. */
static CUresult no_capture(const struct streams *all)
{
	CUresult result = CUDA_SUCCESS;
	for (unsigned i = 0; i < all->count; i++)
		if (sim_capture_forbids(all->at[i]) != CUDA_SUCCESS)
			result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	return result;
}

static CUresult record(struct sim_green *green, const struct streams *all, struct sim_stream_event *event)
{
	struct sim_stream *order = order_of(green);
	CUresult result = order ? no_capture(all) : CUDA_ERROR_OUT_OF_MEMORY;
	for (unsigned i = 0; i < all->count && result == CUDA_SUCCESS; i++)
		result = order_after(order, all->at[i]);
	if (result != CUDA_SUCCESS)
		return result;
	sim_capture_forget(event);
	return submit(order, SIM_ITEM_RECORD, event);
}

static CUresult wait(struct sim_green *green, const struct streams *all, struct sim_stream_event *event)
{
	if (sim_capture_forbids_event(event) != CUDA_SUCCESS)
		return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	struct sim_stream *order = order_of(green);
	CUresult result = order ? no_capture(all) : CUDA_ERROR_OUT_OF_MEMORY;
	if (result == CUDA_SUCCESS)
		result = submit(order, SIM_ITEM_WAIT, event);
	for (unsigned i = 0; i < all->count && result == CUDA_SUCCESS; i++)
		result = order_after(all->at[i], order);
	return result;
}

static CUresult with_all(CUgreenCtx handle, CUevent hEvent, bool records)
{
	struct streams all;
	if (!sim_initialized())
		return CUDA_ERROR_NOT_INITIALIZED;
	struct sim_green *green = (struct sim_green *)handle;
	if (!sim_handle_is(green, SIM_TAG_GREEN) || !sim_green_alive(green))
		return CUDA_ERROR_INVALID_CONTEXT;
	struct sim_stream_event *event = (struct sim_stream_event *)hEvent;
	if (!sim_handle_is(event, SIM_TAG_EVENT) || (records && event->context_id != green->primary->id))
		return CUDA_ERROR_INVALID_HANDLE;
	CUresult result = hold(green, &all);
	if (result != CUDA_SUCCESS)
		return result;
	result = records ? record(green, &all, event) : wait(green, &all, event);
	let_go(&all);
	return result;
}

CUresult sim_cuGreenCtxRecordEvent(CUgreenCtx hCtx, CUevent hEvent)
{
	return with_all(hCtx, hEvent, true);
}

CUresult sim_cuGreenCtxWaitEvent(CUgreenCtx hCtx, CUevent hEvent)
{
	return with_all(hCtx, hEvent, false);
}
