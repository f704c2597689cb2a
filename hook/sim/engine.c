/* engine.c: queued work of this process and the threads that run it; see engine.h for the words.
 *
 * Called by stream.c, event.c, launch.c and, through sim_enqueue(), by the copies of memory. Work that needs no engine
 * time on a stream that stands idle runs in the caller's own thread; everything else is for the device's worker, made
 * at the first such work. What can go wrong: a thread cannot be made (CUDA_ERROR_OPERATING_SYSTEM; the item stays
 * queued and the next call tries again), the device is lost (the queue is run off without taking time, calls get the
 * error), and a forked child, which has no worker and never gets one (CUDA_ERROR_NOT_INITIALIZED).
 */
#include "engine.h"
#include "event_share.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

#include "capture.h"
#include "timeline.h"

#define POLL_NS 100000 /* how often memory is looked at for a stream that waits for a value in it */
#define SPIN_GRANT_NS                                                                                                  \
	(5 * SIM_SPIN_NS) /* what a collective that waits is granted at once: it spins, and yields to nobody */

pthread_mutex_t sim_engine_mutex = PTHREAD_MUTEX_INITIALIZER;

static struct sim_engine engines[SIM_DEVICES];
static struct sim_waiter *waiters;
static struct sim_item *spare_items;
static struct sim_stream *spare_streams;
static uint64_t last_seq;
static bool forked;

static bool is_lost(int device)
{
	return __atomic_load_n(&sim_machine->device[device].lost, __ATOMIC_RELAXED) != 0;
}

CUresult sim_context_error(const struct sim_context *context)
{
	if (is_lost(context->device))
		return SIM_ERROR_LOST;
	return (CUresult)__atomic_load_n(&context->error, __ATOMIC_RELAXED);
}

uint64_t sim_engine_seq(void)
{
	return last_seq;
}

/* ---- waiters ----------------------------------------------------------------------------------------------------- */

/* Wakes the worker if it sleeps. */
static void kick(struct sim_engine *engine)
{
	if (engine->asleep) {
		engine->asleep = false;
		pthread_cond_signal(&engine->wake);
	}
}

/* Somebody waits who did not when the workers went to sleep. */
static void hasten(void)
{
	for (int i = 0; i < SIM_DEVICES; i++) {
		struct sim_engine *engine = &engines[i];
		if (engine->active && engine->asleep && sim_engine_alarm(engine, waiters) < engine->asleep_until)
			kick(engine);
	}
}

void sim_engine_wait(struct sim_waiter *waiter)
{
	if (waiter->satisfied(waiter))
		return;
	pthread_cond_init(&waiter->cond, NULL);
	waiter->done = false;
	waiter->prev = NULL;
	waiter->next = waiters;
	if (waiters)
		waiters->prev = waiter;
	waiters = waiter;
	hasten();
	while (!waiter->done)
		pthread_cond_wait(&waiter->cond, &sim_engine_mutex);
	pthread_cond_destroy(&waiter->cond);
}

static void wake_waiters(void)
{
	for (struct sim_waiter *waiter = waiters, *next; waiter; waiter = next) {
		next = waiter->next;
		if (!waiter->satisfied(waiter))
			continue;
		if (waiter->prev)
			waiter->prev->next = waiter->next;
		else
			waiters = waiter->next;
		if (waiter->next)
			waiter->next->prev = waiter->prev;
		waiter->done = true;
		pthread_cond_signal(&waiter->cond);
	}
}

/* ---- items and lists --------------------------------------------------------------------------------------------- */

static struct sim_item *item_new(const struct sim_item *like)
{
	struct sim_item *item = spare_items;
	if (item)
		spare_items = item->next;
	else if (!(item = malloc(sizeof(*item))))
		return NULL;
	memcpy(item, like, offsetof(struct sim_item, work.arg) + like->work.arg_size);
	item->next = NULL;
	item->claimed = false;
	item->seq = ++last_seq;
	item->queued_ns = sim_now();
	item->left_ns = like->work.device_ns;
	item->meet_by_ns = 0;
	if (item->event) {
		item->event->refs++;
		if (item->kind == SIM_ITEM_RECORD)
			item->event->recorded++;
		if (item->kind == SIM_ITEM_WAIT)
			item->event->waits++;
		item->generation = item->event->recorded;
	}
	return item;
}

void sim_event_put(struct sim_stream_event *event)
{
	if (--event->refs)
		return;
	if (event->shared)
		sim_shared_event_drop(event->shared);
	free(event);
}

static void activate(struct sim_engine *engine, struct sim_stream *stream)
{
	stream->active = true;
	stream->prev_active = NULL;
	stream->next_active = engine->active;
	if (engine->active)
		engine->active->prev_active = stream;
	engine->active = stream;
}

static void deactivate(struct sim_engine *engine, struct sim_stream *stream)
{
	stream->active = false;
	if (stream->prev_active)
		stream->prev_active->next_active = stream->next_active;
	else
		engine->active = stream->next_active;
	if (stream->next_active)
		stream->next_active->prev_active = stream->prev_active;
}

void sim_stream_reap(struct sim_stream *stream)
{
	if (stream->reaped || !stream->destroyed || stream->head || stream->refs)
		return;
	if (stream->barrier)
		stream->context->barrier = NULL;
	if (stream->prev)
		stream->prev->next = stream->next;
	else if (stream->context->streams == stream)
		stream->context->streams = stream->next;
	if (stream->next)
		stream->next->prev = stream->prev;
	stream->reaped = true;
	stream->prev = NULL;
	stream->next = spare_streams;
	spare_streams = stream;
	wake_waiters();
}

struct sim_stream *sim_stream_spare(void)
{
	struct sim_stream **link = &spare_streams, *stream;
	while (*link && (*link)->refs) /* somebody still looks at that one */
		link = &(*link)->next;
	stream = *link;
	if (!stream)
		return calloc(1, sizeof(*stream));
	*link = stream->next;
	memset(stream, 0, sizeof(*stream));
	return stream;
}

static bool is_blocking(const struct sim_stream *stream)
{
	return !stream->legacy && !(stream->flags & CU_STREAM_NON_BLOCKING);
}

/* cuCtxWaitEvent: a wait in the context's barrier stream holds up whatever any stream of the context was given later. */
static bool is_held_up(const struct sim_stream *stream)
{
	const struct sim_stream *barrier = stream->context->barrier;
	for (const struct sim_item *item = barrier && barrier != stream ? barrier->head : NULL;
	     item && item->seq < stream->head->seq; item = item->next)
		if (item->kind == SIM_ITEM_WAIT)
			return true;
	return false;
}

/* The NULL stream and the blocking streams of its context run in the order in which their items were queued. */
bool sim_stream_runnable(const struct sim_engine *engine, const struct sim_stream *stream)
{
	const struct sim_item *item = stream->head;
	if (!item || item->claimed || stream->running || is_held_up(stream))
		return false;
	if (is_blocking(stream)) {
		const struct sim_item *other = stream->context->legacy->head;
		return !other || other->seq > item->seq;
	}
	if (!stream->legacy)
		return true;
	for (const struct sim_stream *other = engine->active; other; other = other->next_active)
		if (other->context == stream->context && is_blocking(other) && other->head->seq < item->seq)
			return false;
	return true;
}

/* cuCtxRecordEvent: nothing that any stream of the context was given earlier is left, and when the last of it ended. */
static bool context_drained(const struct sim_stream *barrier, uint64_t *ready)
{
	for (const struct sim_stream *other = barrier->context->streams; other; other = other->next) {
		if (other == barrier)
			continue;
		if (other->head && other->head->seq < barrier->head->seq)
			return false;
		*ready = other->last_ns > *ready ? other->last_ns : *ready;
	}
	return true;
}

/* Virtual time from which the head could run, as far as its own stream and the NULL-stream rules say. */
static uint64_t ready_ns(const struct sim_stream *stream)
{
	uint64_t ready = stream->head->queued_ns > stream->last_ns ? stream->head->queued_ns : stream->last_ns;
	uint64_t other = stream->legacy ? stream->blocking_ns : 0;
	if (is_blocking(stream))
		other = stream->context->legacy->last_ns;
	if (stream->context->barrier && stream->context->barrier->held_ns > other)
		other = stream->context->barrier->held_ns;
	return ready > other ? ready : other;
}

bool sim_stream_drained(const struct sim_stream *stream, uint64_t seq)
{
	if (stream->head && stream->head->seq <= seq)
		return false;
	if (!stream->legacy)
		return true;
	for (const struct sim_stream *other = stream->context->streams; other; other = other->next)
		if (is_blocking(other) && other->head && other->head->seq <= seq)
			return false;
	return true;
}

/* ---- running ----------------------------------------------------------------------------------------------------- */

static void kick_host(struct sim_engine *engine)
{
	if (engine->host_asleep) {
		engine->host_asleep = false;
		pthread_cond_signal(&engine->host_wake);
	}
}

static void kick_all(void)
{
	for (int i = 0; i < SIM_DEVICES; i++)
		if (engines[i].active)
			kick(&engines[i]);
}

/* The head of a stream is over, at virtual time `at`. */
static void complete(struct sim_engine *engine, struct sim_stream *stream, uint64_t at)
{
	struct sim_item *item = stream->head;
	if (at > stream->last_ns)
		stream->last_ns = at;
	if (is_blocking(stream) && at > stream->context->legacy->blocking_ns)
		stream->context->legacy->blocking_ns = at;
	if (stream->barrier && item->kind == SIM_ITEM_WAIT)
		stream->held_ns = at;
	if (item->kind == SIM_ITEM_RECORD && item->generation > item->event->completed) {
		item->event->completed = item->generation;
		item->event->time_ns = at;
		kick_all(); /* streams of any device may wait for it */
	}
	if (item->kind == SIM_ITEM_WAIT)
		item->event->waits--;
	if (item->event)
		sim_event_put(item->event);
	stream->head = item->next;
	stream->depth--;
	item->next = spare_items;
	spare_items = item;
	if (!stream->head) {
		stream->tail = NULL;
		deactivate(engine, stream);
	}
	wake_waiters();
	sim_stream_reap(stream);
}

/* Runs what the head has to run, without the mutex, then completes it. */
static void run_head(struct sim_engine *engine, struct sim_stream *stream, uint64_t at)
{
	struct sim_item *item = stream->head;
	if (item->work.run) {
		item->claimed = true;
		pthread_mutex_unlock(&sim_engine_mutex);
		item->work.run(item->work.arg);
		pthread_mutex_lock(&sim_engine_mutex);
	}
	if (item->kind == SIM_ITEM_HOST) {
		uint64_t now = sim_now();
		at = now > at ? now : at;
	}
	complete(engine, stream, at);
}

/* Runs the head of a runnable stream where it needs no engine time; says whether it did. */
static bool step(struct sim_engine *engine, struct sim_stream *stream)
{
	struct sim_item *item = stream->head;
	bool lost = is_lost(stream->context->device);
	uint64_t ready = ready_ns(stream);
	switch (item->kind) {
	case SIM_ITEM_WORK:
		if (!lost && (item->left_ns || item->meeting))
			return false;
		break;
	case SIM_ITEM_WAIT:
		if (!lost && item->event->completed < item->generation)
			return false;
		if (item->event->completed == item->generation && item->event->time_ns > ready)
			ready = item->event->time_ns;
		break;
	case SIM_ITEM_POLL:
		if (!lost && !item->poll(item->work.arg))
			return false;
		ready = sim_now() > ready ? sim_now() : ready;
		break;
	case SIM_ITEM_HOST:
		kick_host(engine);
		return false;
	case SIM_ITEM_RECORD:
		if (stream->barrier && !context_drained(stream, &ready))
			return false;
		break;
	}
	run_head(engine, stream, ready);
	return true;
}

static bool step_any(struct sim_engine *engine)
{
	for (struct sim_stream *stream = engine->active; stream; stream = stream->next_active)
		if (sim_stream_runnable(engine, stream) && step(engine, stream))
			return true;
	return false;
}

/* ---- slices of engine time --------------------------------------------------------------------------------------- */

static struct sim_stream *pick(struct sim_engine *engine, unsigned unit)
{
	struct sim_stream *best = NULL;
	for (struct sim_stream *stream = engine->active; stream; stream = stream->next_active) {
		if (stream->head->kind != SIM_ITEM_WORK || stream->head->work.unit != unit ||
		    !sim_stream_runnable(engine, stream))
			continue;
		if (!best || stream->priority < best->priority ||
		    (stream->priority == best->priority && stream->head->seq < best->head->seq))
			best = stream;
	}
	return best;
}

/* Time of a unit that could run one after the other without waiting for anything, up to one slice: tiny kernels share a
 * slice, so that processes do not take turns every few microseconds. */
static uint64_t batch_ns(struct sim_engine *engine, unsigned unit)
{
	uint64_t slice = sim_slice_ns(engine->device), total = 0;
	unsigned steps = 0;
	for (struct sim_stream *stream = engine->active; stream; stream = stream->next_active) {
		if (!sim_stream_runnable(engine, stream))
			continue;
		for (struct sim_item *item = stream->head; item && total < slice && ++steps < 4096; item = item->next) {
			bool work = item->kind == SIM_ITEM_WORK && (item->work.unit == unit || !item->left_ns);
			if (!work && item->kind != SIM_ITEM_RECORD)
				break;
			total += item->meeting ? SPIN_GRANT_NS : item->left_ns;
		}
	}
	if (!total) /* queues without end are in the way */
		total = SIM_SPIN_NS;
	return total < slice ? total : slice;
}

static bool begin_slice(struct sim_engine *engine, unsigned kind)
{
	struct sim_unit *unit = &engine->unit[kind];
	struct sim_stream *stream = pick(engine, kind);
	if (!stream) {
		sim_timeline_return(engine, kind);
		return false;
	}
	struct sim_item *item = stream->head;
	if (item->meeting && sim_meeting_over(item, engine->device))
		item->meeting = 0;
	if (!item->meeting && !item->left_ns)
		return true; /* step() runs it */
	sim_timeline_take(engine, kind, stream->context->id, ready_ns(stream), batch_ns(engine, kind));
	uint64_t want = item->meeting ? SIM_SPIN_NS : item->left_ns;
	uint64_t have = unit->until_ns - unit->cursor_ns;
	unit->run_ns = want < have ? want : have;
	unit->running = stream;
	stream->running = true;
	return true;
}

/* The end of the running slice has come, or not yet. */
static bool end_slice(struct sim_engine *engine, unsigned kind)
{
	struct sim_unit *unit = &engine->unit[kind];
	struct sim_stream *stream = unit->running;
	uint64_t end = unit->cursor_ns + unit->run_ns;
	bool lost = is_lost(engine->device);
	if (!lost && sim_now() < end)
		return false;
	sim_timeline_used(engine, kind);
	unit->running = NULL;
	stream->running = false;
	struct sim_item *item = stream->head;
	if (!item->meeting)
		item->left_ns -= unit->run_ns;
	if (lost)
		item->left_ns = item->meeting = 0;
	if (!item->left_ns && !item->meeting)
		run_head(engine, stream, end);
	return true;
}

/* Does one thing that can be done now; false: there is none. */
static bool advance(struct sim_engine *engine)
{
	if (step_any(engine))
		return true;
	for (unsigned kind = 0; kind < SIM_UNITS; kind++)
		if (engine->unit[kind].running ? end_slice(engine, kind) : begin_slice(engine, kind))
			return true;
	return false;
}

void sim_engine_catch_up(int device)
{
	struct sim_engine *engine = &engines[device];
	bool any = false;
	while (engine->worker && !forked && engine->active && advance(engine))
		any = true;
	if (any)
		kick(engine);
}

static void worker_sleep(struct sim_engine *engine)
{
	uint64_t until = sim_engine_alarm(engine, waiters);
	for (struct sim_stream *stream = engine->active; stream; stream = stream->next_active)
		if (stream->head->kind == SIM_ITEM_POLL || is_lost(engine->device)) {
			uint64_t poll = sim_now() + POLL_NS;
			until = poll < until ? poll : until;
			break;
		}
	engine->asleep = true;
	engine->asleep_until = until;
	if (until == UINT64_MAX) {
		pthread_cond_wait(&engine->wake, &sim_engine_mutex);
	} else {
		struct timespec at = {.tv_sec = (time_t)(until / 1000000000), .tv_nsec = (long)(until % 1000000000)};
		pthread_cond_timedwait(&engine->wake, &sim_engine_mutex, &at);
	}
	engine->asleep = false;
}

static void *worker_main(void *arg)
{
	struct sim_engine *engine = arg;
	/* This thread's only: the default of 50 us is a whole kernel. */
	prctl(PR_SET_TIMERSLACK, 1000UL, 0UL, 0UL, 0UL);
	pthread_mutex_lock(&sim_engine_mutex);
	for (;;)
		if (!advance(engine))
			worker_sleep(engine);
	return NULL;
}

static struct sim_stream *oldest_host_call(const struct sim_engine *engine)
{
	struct sim_stream *oldest = NULL;
	for (struct sim_stream *stream = engine->active; stream; stream = stream->next_active)
		if (stream->head->kind == SIM_ITEM_HOST && sim_stream_runnable(engine, stream) &&
		    (!oldest || stream->head->seq < oldest->head->seq))
			oldest = stream;
	return oldest;
}

/* Host functions have a thread of their own: one that blocks holds up its stream, not the device. */
static void *host_main(void *arg)
{
	struct sim_engine *engine = arg;
	pthread_mutex_lock(&sim_engine_mutex);
	for (;;) {
		struct sim_stream *stream = oldest_host_call(engine);
		if (stream) {
			run_head(engine, stream, ready_ns(stream));
			kick(engine);
		} else {
			engine->host_asleep = true;
			pthread_cond_wait(&engine->host_wake, &sim_engine_mutex);
			engine->host_asleep = false;
		}
	}
	return NULL;
}

static void mark_forked(void)
{
	forked = true;
}

static int start_thread(void *(*entry)(void *), struct sim_engine *engine, pthread_cond_t *wake, const char *name)
{
	static bool watching;
	if (!watching && pthread_atfork(NULL, NULL, mark_forked) != 0)
		return -1;
	watching = true;
	pthread_condattr_t attr;
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(wake, &attr);
	pthread_condattr_destroy(&attr);
	sigset_t all, old;
	sigfillset(&all);
	pthread_t thread;
	pthread_sigmask(SIG_SETMASK, &all, &old);
	int error = pthread_create(&thread, NULL, entry, engine);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (error) {
		sim_log("cannot make the thread %s: %s; check the limit on processes", name, strerror(error));
		return -1;
	}
	pthread_setname_np(thread, name);
	pthread_detach(thread);
	return 0;
}

/* The threads that an item of this kind needs exist. */
static CUresult man(struct sim_engine *engine, enum sim_item_kind kind)
{
	if (!engine->worker && start_thread(worker_main, engine, &engine->wake, "sim-engine") != 0)
		return CUDA_ERROR_OPERATING_SYSTEM;
	engine->worker = true;
	if (kind != SIM_ITEM_HOST || engine->host)
		return CUDA_SUCCESS;
	if (start_thread(host_main, engine, &engine->host_wake, "sim-hostfn") != 0)
		return CUDA_ERROR_OPERATING_SYSTEM;
	engine->host = true;
	return CUDA_SUCCESS;
}

/* ---- queueing ---------------------------------------------------------------------------------------------------- */

static bool has_room(const struct sim_waiter *waiter)
{
	return waiter->stream->depth < waiter->mark;
}

static bool has_drained(const struct sim_waiter *waiter)
{
	return sim_stream_drained(waiter->stream, waiter->mark);
}

/* More urgent work comes: what ended before it came must not seem to have been overtaken by it. */
static void pass(struct sim_engine *engine, const struct sim_stream *stream)
{
	const struct sim_stream *running = engine->unit[SIM_UNIT_COMPUTE].running;
	if (running && stream->priority < running->priority)
		sim_engine_catch_up(engine->device);
}

/* The worker cannot have known of it when it went to sleep: its unit stands still, or its effect can be seen. */
static bool needs_waking(const struct sim_engine *engine, const struct sim_item *item)
{
	if (!engine->unit[item->kind == SIM_ITEM_WORK ? item->work.unit : SIM_UNIT_COMPUTE].running)
		return true;
	return item->work.run != NULL;
}

static CUresult push(struct sim_engine *engine, struct sim_stream *stream, const struct sim_item *like, uint64_t *seq)
{
	uint32_t depth = sim_machine->model[engine->device].queue_depth;
	struct sim_waiter room = {.satisfied = has_room, .stream = stream, .mark = depth ? depth : 1024};
	room.patient = room.mark < 8 ? 1 : (unsigned)room.mark / 8;
	if (!stream->lane)
		sim_engine_wait(&room);
	pass(engine, stream);
	struct sim_item *item = item_new(like);
	if (!item)
		/* NOLINTNEXTLINE(clang-analyzer-core.StackAddressEscape): who wakes a waiter has taken it off the list */
		return CUDA_ERROR_OUT_OF_MEMORY;
	*seq = item->seq;
	if (stream->tail)
		stream->tail->next = item;
	else
		stream->head = item;
	stream->tail = item;
	stream->depth++;
	if (!stream->active)
		activate(engine, stream);
	enum sim_item_kind kind = item->kind;
	bool at_head = stream->head == item;
	bool needs_engine = kind == SIM_ITEM_WORK && (item->left_ns || item->meeting);
	if (at_head && sim_stream_runnable(engine, stream) && step(engine, stream)) {
		kick(engine);
		return CUDA_SUCCESS;
	}
	if ((at_head && !needs_engine) || needs_waking(engine, item))
		kick(engine);
	return man(engine, kind);
}

CUresult sim_engine_submit(struct sim_stream *stream, const struct sim_item *like, bool wait)
{
	if (forked)
		return CUDA_ERROR_NOT_INITIALIZED;
	CUresult error = sim_context_error(stream->context);
	if (error == CUDA_SUCCESS)
		error = sim_capture_forbids(stream);
	if (error != CUDA_SUCCESS)
		return error;
	struct sim_engine *engine = &engines[stream->context->device];
	uint64_t seq = 0;
	pthread_mutex_lock(&sim_engine_mutex);
	if (stream->reaped) { /* its context went after the caller had looked it up */
		pthread_mutex_unlock(&sim_engine_mutex);
		return CUDA_ERROR_CONTEXT_IS_DESTROYED;
	}
	engine->device = stream->context->device;
	stream->refs++;
	error = push(engine, stream, like, &seq);
	if (wait && seq) {
		struct sim_waiter waiter = {.satisfied = has_drained, .stream = stream, .mark = seq};
		sim_engine_wait(&waiter);
		if (error == CUDA_SUCCESS)
			error = sim_context_error(stream->context);
	}
	stream->refs--;
	sim_stream_reap(stream);
	pthread_mutex_unlock(&sim_engine_mutex);
	/* NOLINTNEXTLINE(clang-analyzer-core.StackAddressEscape): who wakes a waiter has taken it off the list */
	return error;
}

CUresult sim_enqueue(struct sim_stream *stream, const struct sim_work *work)
{
	struct sim_item like = {.kind = SIM_ITEM_WORK};
	like.work.device_ns = work->device_ns;
	like.work.unit = work->unit;
	like.work.run = work->run;
	like.work.arg_size = work->arg_size < SIM_WORK_ARG ? work->arg_size : SIM_WORK_ARG;
	memcpy(like.work.arg, work->arg, like.work.arg_size);
	return sim_engine_submit(stream, &like, false);
}

CUresult sim_enqueue_wait(struct sim_stream *stream, const struct sim_work *work)
{
	struct sim_item like = {.kind = SIM_ITEM_WORK};
	like.work = *work;
	return sim_engine_submit(stream, &like, true);
}
