/* stream.c: streams from creation to destruction, what a stream handle means, and waiting for streams.
 *
 * Three kinds: the *legacy* (NULL) stream of each context, which runs in order with the blocking streams; a
 * *per-thread* stream per thread and context, made when first named, a blocking stream otherwise; and those that
 * programs create. A launch of a graph has streams of its own besides, its lanes. What can go wrong: a stale handle
 * (CUDA_ERROR_INVALID_HANDLE), no current context (CUDA_ERROR_INVALID_CONTEXT), another thread that destroys the context
 * meanwhile (CUDA_ERROR_CONTEXT_IS_DESTROYED), a green context that is gone (CUDA_ERROR_STREAM_DETACHED).
 */
#include <stdlib.h>

#include "capture.h"
#include "green.h"
#include "sim_impl.h"

static uint64_t last_id; /* under sim_engine_mutex */

static struct sim_stream *stream_new(struct sim_context *context, struct sim_green *green, unsigned flags, int priority)
{
	pthread_mutex_lock(&sim_engine_mutex);
	struct sim_stream *stream = context->closing ? NULL : sim_stream_spare();
	if (!stream) {
		pthread_mutex_unlock(&sim_engine_mutex);
		return NULL;
	}
	stream->tag = SIM_TAG_STREAM;
	stream->flags = flags;
	stream->priority = priority < SIM_PRIORITY_GREATEST ? SIM_PRIORITY_GREATEST : priority > 0 ? 0 : priority;
	stream->context = context;
	stream->green = green;
	stream->id = ++last_id;
	stream->next = context->streams;
	if (context->streams)
		context->streams->prev = stream;
	context->streams = stream;
	pthread_mutex_unlock(&sim_engine_mutex);
	return stream;
}

/* Once: whoever drops the handle ends the stream. False: another thread has, or the context went. */
static bool destroy(struct sim_stream *stream)
{
	pthread_mutex_lock(&sim_engine_mutex);
	bool own = sim_handle_drop(stream);
	if (own) {
		stream->destroyed = true;
		sim_stream_reap(stream);
	}
	pthread_mutex_unlock(&sim_engine_mutex);
	return own;
}

struct sim_stream *sim_green_stream_new(struct sim_green *green, unsigned flags, int priority)
{
	return stream_new(green->primary, green, flags, priority);
}

void sim_stream_drop(struct sim_stream *stream)
{
	pthread_mutex_lock(&sim_engine_mutex);
	stream->destroyed = true;
	sim_stream_reap(stream);
	pthread_mutex_unlock(&sim_engine_mutex);
}

/* ---- per-thread streams ------------------------------------------------------------------------------------------ */

#define THREAD_CONTEXTS 32 /* contexts in which one thread may have a stream of its own */

struct thread_streams {
	uint64_t thread;
	struct {
		uint64_t context;
		struct sim_stream *stream;
	} entry[THREAD_CONTEXTS];
};

static pthread_key_t thread_key;
static bool thread_key_made;
static _Thread_local struct thread_streams *thread_streams;

/* A per-thread stream goes with its thread, once its work is done; its context may have taken it already. */
static void thread_gone(void *arg)
{
	struct thread_streams *own = arg;
	for (int i = 0; i < THREAD_CONTEXTS; i++) {
		struct sim_stream *stream = own->entry[i].stream;
		if (!stream || !sim_handle_is(stream, SIM_TAG_STREAM) || stream->thread != own->thread)
			continue;
		sim_capture_abandon(stream);
		destroy(stream);
	}
	free(own);
}

static void make_thread_key(void)
{
	thread_key_made = pthread_key_create(&thread_key, thread_gone) == 0;
}

static struct thread_streams *own_streams(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	static uint64_t last_thread;
	if (thread_streams)
		return thread_streams;
	pthread_once(&once, make_thread_key);
	struct thread_streams *own = calloc(1, sizeof(*own));
	if (!own)
		return NULL;
	own->thread = __atomic_add_fetch(&last_thread, 1, __ATOMIC_RELAXED);
	if (!thread_key_made || pthread_setspecific(thread_key, own) != 0) {
		free(own);
		return NULL;
	}
	return thread_streams = own;
}

static struct sim_stream *per_thread_stream(struct sim_context *context)
{
	struct thread_streams *own = own_streams();
	if (!own)
		return NULL;
	int spare = -1;
	for (int i = 0; i < THREAD_CONTEXTS; i++) {
		struct sim_stream *stream = own->entry[i].stream;
		if (stream && own->entry[i].context == context->id)
			return stream;
		if (stream && (!sim_handle_is(stream, SIM_TAG_STREAM) || stream->thread != own->thread))
			own->entry[i].stream = stream = NULL; /* its context is gone */
		if (!stream && spare < 0)
			spare = i;
	}
	if (spare < 0)
		return NULL;
	struct sim_stream *stream = stream_new(context, NULL, CU_STREAM_DEFAULT, 0);
	if (!stream)
		return NULL;
	stream->thread = own->thread;
	sim_handle_add(stream, SIM_TAG_STREAM);
	own->entry[spare].context = context->id;
	own->entry[spare].stream = stream;
	return stream;
}

/* ---- handles ----------------------------------------------------------------------------------------------------- */

struct sim_stream *sim_stream_of(CUstream handle, CUresult *error)
{
	struct sim_context *context = sim_current();
	*error = CUDA_ERROR_INVALID_CONTEXT;
	if (!context)
		return NULL;
	*error = CUDA_SUCCESS;
	struct sim_green *green = sim_thread.green[sim_thread.depth - 1];
	struct sim_stream *stream = (struct sim_stream *)handle;
	if (handle == CU_STREAM_LEGACY || (!handle && !sim_thread.per_thread_stream)) {
		stream = green && green->own ? green->own : __atomic_load_n(&context->legacy, __ATOMIC_ACQUIRE);
		if (!stream)
			*error = CUDA_ERROR_CONTEXT_IS_DESTROYED;
		return stream;
	}
	if (handle == CU_STREAM_PER_THREAD || !handle) {
		if (green) { /* a green context has none */
			*error = CUDA_ERROR_INVALID_HANDLE;
			return NULL;
		}
		stream = per_thread_stream(context);
		if (!stream)
			*error = CUDA_ERROR_OUT_OF_MEMORY;
		return stream;
	}
	if (!sim_handle_is(stream, SIM_TAG_STREAM) || stream->thread) {
		*error = CUDA_ERROR_INVALID_HANDLE;
		return NULL;
	}
	if (stream->green && !sim_green_alive(stream->green)) {
		*error = CUDA_ERROR_STREAM_DETACHED;
		return NULL;
	}
	return stream;
}

int sim_stream_device(struct sim_stream *stream)
{
	return stream->context->device;
}

struct sim_context *sim_stream_context(struct sim_stream *stream)
{
	return stream->context;
}

/* ---- waiting ----------------------------------------------------------------------------------------------------- */

static bool stream_done(const struct sim_waiter *waiter)
{
	return sim_stream_drained(waiter->stream, waiter->mark);
}

static bool context_done(const struct sim_waiter *waiter)
{
	for (const struct sim_stream *stream = waiter->context->streams; stream; stream = stream->next)
		if (stream->head && stream->head->seq <= waiter->mark)
			return false;
	return true;
}

CUresult sim_stream_wait(struct sim_stream *stream)
{
	struct sim_context *context = stream->context;
	CUresult forbidden = sim_capture_forbids(stream);
	if (forbidden != CUDA_SUCCESS)
		return forbidden;
	pthread_mutex_lock(&sim_engine_mutex);
	if (stream->reaped) {
		pthread_mutex_unlock(&sim_engine_mutex);
		return CUDA_ERROR_CONTEXT_IS_DESTROYED;
	}
	struct sim_waiter waiter = {.satisfied = stream_done, .stream = stream, .mark = sim_engine_seq()};
	stream->refs++;
	sim_engine_wait(&waiter);
	CUresult error = sim_context_error(context);
	stream->refs--;
	sim_stream_reap(stream);
	pthread_mutex_unlock(&sim_engine_mutex);
	sim_pools_synchronized(context->device);
	return error;
}

CUresult sim_context_wait(struct sim_context *context)
{
	pthread_mutex_lock(&sim_engine_mutex);
	struct sim_waiter waiter = {.satisfied = context_done, .context = context, .mark = sim_engine_seq()};
	sim_engine_wait(&waiter);
	pthread_mutex_unlock(&sim_engine_mutex);
	sim_pools_synchronized(context->device);
	return sim_context_error(context);
}

/* ---- a context's streams ----------------------------------------------------------------------------------------- */

void sim_streams_init(struct sim_context *context)
{
	context->closing = false;
	context->legacy = stream_new(context, NULL, CU_STREAM_DEFAULT, 0);
	if (context->legacy)
		context->legacy->legacy = true;
}

struct sim_stream *sim_stream_barrier(struct sim_context *context)
{
	static pthread_mutex_t making = PTHREAD_MUTEX_INITIALIZER;

	pthread_mutex_lock(&making);
	if (!context->barrier) {
		struct sim_stream *stream = stream_new(context, NULL, CU_STREAM_NON_BLOCKING, 0);
		pthread_mutex_lock(&sim_engine_mutex);
		if (stream)
			stream->barrier = true;
		context->barrier = stream;
		pthread_mutex_unlock(&sim_engine_mutex);
	}
	pthread_mutex_unlock(&making);
	return context->barrier;
}

struct sim_stream *sim_lane_open(struct sim_context *context, int priority)
{
	struct sim_stream *lane = stream_new(context, NULL, CU_STREAM_NON_BLOCKING, priority);
	if (!lane)
		return NULL;
	pthread_mutex_lock(&sim_engine_mutex);
	lane->lane = true;
	lane->refs++;
	pthread_mutex_unlock(&sim_engine_mutex);
	return lane;
}

void sim_lane_close(struct sim_stream *lane)
{
	pthread_mutex_lock(&sim_engine_mutex);
	lane->refs--;
	lane->destroyed = true;
	sim_stream_reap(lane);
	pthread_mutex_unlock(&sim_engine_mutex);
}

static bool only_legacy_left(const struct sim_waiter *waiter)
{
	return waiter->context->streams == waiter->context->legacy &&
	       (!waiter->context->legacy || !waiter->context->legacy->next);
}

static bool none_left(const struct sim_waiter *waiter)
{
	return !waiter->context->streams;
}

void sim_streams_destroy(struct sim_context *context)
{
	struct sim_stream *legacy = context->legacy, *next;
	sim_capture_abandon_all(context);
	pthread_mutex_lock(&sim_engine_mutex);
	context->closing = true; /* a thread that makes a stream at this moment gets none */
	for (struct sim_stream *stream = context->streams; stream; stream = next) {
		next = stream->next;
		if (stream == legacy)
			continue;
		if (!stream->destroyed)
			sim_handle_drop(stream);
		stream->destroyed = true;
		sim_stream_reap(stream);
	}
	/* The others look at the legacy stream as long as they have work: it goes last. */
	struct sim_waiter others = {.satisfied = only_legacy_left, .context = context};
	sim_engine_wait(&others);
	if (legacy) {
		legacy->destroyed = true;
		sim_stream_reap(legacy);
	}
	struct sim_waiter all = {.satisfied = none_left, .context = context};
	sim_engine_wait(&all);
	__atomic_store_n(&context->legacy, NULL, __ATOMIC_RELEASE); /* threads may look for it until they see this */
	pthread_mutex_unlock(&sim_engine_mutex);
}

/* ---- entry points ------------------------------------------------------------------------------------------------ */

CUresult sim_cuStreamCreateWithPriority(CUstream *phStream, unsigned int flags, int priority)
{
	struct sim_context *context = sim_current();
	if (!context)
		return CUDA_ERROR_INVALID_CONTEXT;
	if (!phStream || (flags & ~(unsigned)CU_STREAM_NON_BLOCKING))
		return CUDA_ERROR_INVALID_VALUE;
	CUresult error = sim_context_error(context);
	if (error != CUDA_SUCCESS)
		return error;
	struct sim_green *green = sim_thread.green[sim_thread.depth - 1];
	struct sim_stream *stream = stream_new(context, green, flags, priority);
	if (!stream)
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (green && (error = sim_green_join(stream)) != CUDA_SUCCESS) {
		sim_stream_drop(stream);
		return error;
	}
	sim_handle_add(stream, SIM_TAG_STREAM);
	*phStream = (CUstream)stream;
	return CUDA_SUCCESS;
}

CUresult sim_cuStreamCreate(CUstream *phStream, unsigned int Flags)
{
	return sim_cuStreamCreateWithPriority(phStream, Flags, 0);
}

/* Returns at once; what is queued still runs, as the documentation promises. */
CUresult sim_cuStreamDestroy_v2(CUstream hStream)
{
	struct sim_stream *stream = (struct sim_stream *)hStream;
	if (!sim_handle_is(stream, SIM_TAG_STREAM) || stream->thread)
		return CUDA_ERROR_INVALID_HANDLE;
	sim_capture_abandon(stream);
	return destroy(stream) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult sim_cuStreamDestroy(CUstream hStream)
{
	return sim_cuStreamDestroy_v2(hStream);
}

CUresult sim_cuStreamQuery(CUstream hStream)
{
	CUresult error;
	struct sim_stream *stream = sim_stream_of(hStream, &error);
	if (!stream)
		return error;
	error = sim_context_error(stream->context);
	if (error == CUDA_SUCCESS)
		error = sim_capture_forbids(stream);
	if (error != CUDA_SUCCESS)
		return error;
	pthread_mutex_lock(&sim_engine_mutex);
	uint64_t mark = sim_engine_seq();
	sim_engine_catch_up(stream->context->device);
	bool done = sim_stream_drained(stream, mark);
	pthread_mutex_unlock(&sim_engine_mutex);
	return done ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult sim_cuStreamSynchronize(CUstream hStream)
{
	CUresult error;
	struct sim_stream *stream = sim_stream_of(hStream, &error);
	return stream ? sim_stream_wait(stream) : error;
}

/* The NULL stream of a green context may be the primary context's. */
static struct sim_green *green_of(const struct sim_stream *stream)
{
	return stream->legacy ? sim_thread.green[sim_thread.depth - 1] : stream->green;
}

CUresult sim_cuStreamGetCtx(CUstream hStream, CUcontext *pctx)
{
	CUresult error;
	struct sim_stream *stream = sim_stream_of(hStream, &error);
	if (!stream)
		return error;
	if (!pctx)
		return CUDA_ERROR_INVALID_VALUE;
	struct sim_green *green = green_of(stream);
	*pctx = green ? (CUcontext)&green->context : (CUcontext)stream->context;
	return CUDA_SUCCESS;
}

CUresult sim_cuStreamGetCtx_v2(CUstream hStream, CUcontext *pCtx, CUgreenCtx *pGreenCtx)
{
	CUresult error;
	struct sim_stream *stream = sim_stream_of(hStream, &error);
	if (!stream)
		return error;
	if (!pCtx)
		return CUDA_ERROR_INVALID_VALUE;
	*pCtx = (CUcontext)stream->context;
	if (pGreenCtx)
		*pGreenCtx = (CUgreenCtx)green_of(stream);
	return CUDA_SUCCESS;
}

CUresult sim_cuStreamGetGreenCtx(CUstream hStream, CUgreenCtx *phCtx)
{
	CUresult error;
	struct sim_stream *stream = sim_stream_of(hStream, &error);
	if (!stream)
		return error;
	if (!phCtx)
		return CUDA_ERROR_INVALID_VALUE;
	*phCtx = (CUgreenCtx)green_of(stream);
	return CUDA_SUCCESS;
}

CUresult sim_cuStreamGetDevice(CUstream hStream, CUdevice *device)
{
	CUresult error;
	struct sim_stream *stream = sim_stream_of(hStream, &error);
	if (!stream)
		return error;
	if (!device)
		return CUDA_ERROR_INVALID_VALUE;
	*device = stream->context->ordinal;
	return CUDA_SUCCESS;
}

CUresult sim_cuStreamGetFlags(CUstream hStream, unsigned int *flags)
{
	CUresult error;
	struct sim_stream *stream = sim_stream_of(hStream, &error);
	if (!stream)
		return error;
	if (!flags)
		return CUDA_ERROR_INVALID_VALUE;
	*flags = stream->flags;
	return CUDA_SUCCESS;
}

CUresult sim_cuStreamGetPriority(CUstream hStream, int *priority)
{
	CUresult error;
	struct sim_stream *stream = sim_stream_of(hStream, &error);
	if (!stream)
		return error;
	if (!priority)
		return CUDA_ERROR_INVALID_VALUE;
	*priority = stream->priority;
	return CUDA_SUCCESS;
}

CUresult sim_cuStreamGetId(CUstream hStream, unsigned long long *streamId)
{
	CUresult error;
	struct sim_stream *stream = sim_stream_of(hStream, &error);
	if (!stream)
		return error;
	if (!streamId)
		return CUDA_ERROR_INVALID_VALUE;
	*streamId = stream->id;
	return CUDA_SUCCESS;
}
