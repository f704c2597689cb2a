/* wakeup.c: how long the worker of a device may sleep without anybody noticing.
 *
 * What work took stands on the virtual timeline (engine.h), so that a worker which looks late changes no result. Waking
 * it at the end of each kernel of a few microseconds would cost more of a core than the program that launches them; so
 * it sleeps to the end of its grant, and wakes earlier only for what somebody sees: an item that a thread waits for,
 * one that does something to memory, one that another stream or unit waits for. Whoever asks instead of waiting brings
 * the line up to date himself (sim_engine_catch_up). Called by engine.c with sim_engine_mutex held. What can go wrong: a
 * time that is too early costs one look in vain; none is too late, since each is a bound from below.
 */
#include "timeline.h"

/* One stream while it is walked through. */
struct walk {
	const struct sim_stream *stream;
	const struct sim_item *item;
	unsigned place; /* of the item in the stream, from 1 */
};

/* Does this thread sleep until this item has run? */
static bool waits_for(const struct sim_waiter *waiter, const struct walk *walk)
{
	const struct sim_item *item = walk->item;
	if (waiter->patient)
		return waiter->stream == walk->stream && walk->place == waiter->patient;
	if (waiter->event)
		return item->event == waiter->event;
	bool own = waiter->stream ? waiter->stream == walk->stream ||
	                                    (waiter->stream->legacy && waiter->stream->context == walk->stream->context)
	                          : waiter->context == walk->stream->context;
	return own && item->seq <= waiter->mark && item->next && item->next->seq > waiter->mark;
}

/* Something happens at the end of this item that must not come late. */
static bool is_noticed(const struct walk *walk, const struct sim_waiter *waiters)
{
	const struct sim_item *item = walk->item, *next = item->next;
	if (item->work.run || item->meeting || !next || (item->kind == SIM_ITEM_RECORD && item->event->waits))
		return true;
	if (next->kind != SIM_ITEM_RECORD && (next->kind != SIM_ITEM_WORK || next->work.unit != item->work.unit))
		return true;
	for (const struct sim_waiter *waiter = waiters; waiter; waiter = waiter->next)
		if (waits_for(waiter, walk))
			return true;
	return false;
}

static uint64_t piece_end(const struct sim_unit *unit)
{
	return unit->cursor_ns + unit->run_ns;
}

/* A stream that has work and can neither run nor begin: it may wait for any of the items that are left. Not one that
 * waits for an event: who records that knows of it. */
static bool is_blocked(const struct sim_engine *engine, const struct sim_stream *stream)
{
	if (stream->running || stream->head->kind == SIM_ITEM_WAIT)
		return false;
	return stream->head->kind != SIM_ITEM_WORK || !sim_stream_runnable(engine, stream) ||
	       !engine->unit[stream->head->work.unit].running;
}

/* When the first item of the stream that is noticed can have ended; `latest` where none can before. */
static uint64_t noticed_ns(const struct sim_engine *engine, const struct sim_stream *stream,
                           const struct sim_waiter *waiters, uint64_t latest)
{
	const struct sim_unit *unit = &engine->unit[stream->head->work.unit];
	struct walk walk = {.stream = stream, .item = stream->head, .place = 1};
	uint64_t end = stream->running ? unit->cursor_ns : piece_end(unit);
	for (; walk.item && end < latest; walk.item = walk.item->next, walk.place++) {
		end += walk.item->left_ns;
		if (is_noticed(&walk, waiters))
			return end < latest ? end : latest;
	}
	return latest;
}

uint64_t sim_engine_alarm(const struct sim_engine *engine, const struct sim_waiter *waiters)
{
	uint64_t pieces = UINT64_MAX, grants = UINT64_MAX;
	for (unsigned i = 0; i < SIM_UNITS; i++) {
		const struct sim_unit *unit = &engine->unit[i];
		if (!unit->running)
			continue;
		pieces = piece_end(unit) < pieces ? piece_end(unit) : pieces;
		grants = unit->until_ns < grants ? unit->until_ns : grants;
		if (unit->running->head->meeting)
			grants = piece_end(unit) < grants ? piece_end(unit) : grants;
	}
	for (const struct sim_stream *stream = engine->active; stream && grants != UINT64_MAX;
	     stream = stream->next_active) {
		if (is_blocked(engine, stream))
			return pieces;
		if (stream->head->kind != SIM_ITEM_WAIT)
			grants = noticed_ns(engine, stream, waiters, grants);
	}
	return grants < pieces ? pieces : grants;
}
