/* timeline.c: each unit of a device, shared by all processes as a line of granted time.
 *
 * sim_device_state.engine_until is the end of what is granted of a unit. A client that has work moves it forward by at
 * most one slice, with one compare-and-swap, and owns the interval between; it asks again only when that is used up. So
 * each client has at most one grant outstanding, clients are served in turn (who was served longest ago comes next), and
 * there is nothing to hand over: nobody holds a lock, nobody waits to be woken by another process, and one that is
 * killed wastes no more than the rest of its slice. Grants are times and not events, hence a worker that wakes late
 * finds its next grant where it would have been anyway.
 *
 * The hand-over of the compute unit from one context to another takes switch_us and is nobody's time: neither a client
 * nor the device is busy meanwhile. Who was granted time last is known without a word for it: the line still ends where
 * one's own last grant does.
 *
 * Called by engine.c. What can go wrong: a machine file that outlived a reboot, whose end of the line lies in a future
 * that no set of clients can have asked for; such a value is dropped.
 */
#include "timeline.h"

#define PATIENCE_NS UINT64_C(10000000000) /* how long a collective waits for its partner */

uint64_t sim_slice_ns(int device)
{
	uint32_t slice_us = sim_machine->model[device].slice_us;
	return (slice_us ? slice_us : 2000) * UINT64_C(1000);
}

/* What going from the context that used the unit last to this one takes. Copy engines keep every context at hand. */
static uint64_t switch_ns(const struct sim_engine *engine, unsigned unit, uint64_t context_id, uint64_t end)
{
	const struct sim_unit *own = &engine->unit[unit];
	if (unit != SIM_UNIT_COMPUTE || !end || (end == own->until_ns && context_id == own->context_id))
		return 0;
	return sim_machine->model[engine->device].switch_us * UINT64_C(1000);
}

static void count_switch(const struct sim_engine *engine, uint64_t took_ns)
{
	if (took_ns)
		__atomic_fetch_add(&sim_machine->device[engine->device].switches, 1, __ATOMIC_RELAXED);
}

/* The next work is another context's, and the grant is not used up. */
static void change_context(struct sim_engine *engine, unsigned unit, uint64_t context_id)
{
	struct sim_unit *own = &engine->unit[unit];
	uint64_t took = switch_ns(engine, unit, context_id, own->until_ns);
	own->context_id = context_id;
	own->cursor_ns += took;
	count_switch(engine, took);
}

void sim_timeline_take(struct sim_engine *engine, unsigned unit, uint64_t context_id, uint64_t ready, uint64_t amount)
{
	struct sim_unit *own = &engine->unit[unit];
	if (own->cursor_ns < ready)
		own->cursor_ns = ready;
	if (own->cursor_ns < own->until_ns && own->context_id != context_id)
		change_context(engine, unit, context_id);
	if (own->cursor_ns < own->until_ns)
		return;
	ready = own->cursor_ns; /* not before what was done already */
	struct sim_device_state *state = &sim_machine->device[engine->device];
	uint64_t took_ns, start;
	uint64_t longest = sim_slice_ns(engine->device) + sim_machine->model[engine->device].switch_us * UINT64_C(1000);
	uint64_t latest = sim_now() + SIM_CLIENTS * longest;
	uint64_t old = __atomic_load_n(&state->engine_until[unit], __ATOMIC_RELAXED);
	do {
		took_ns = switch_ns(engine, unit, context_id, old);
		start = (old > ready && old <= latest ? old : ready) + took_ns;
	} while (!__atomic_compare_exchange_n(&state->engine_until[unit], &old, start + amount, false, __ATOMIC_ACQ_REL,
	                                      __ATOMIC_RELAXED));
	own->cursor_ns = start;
	own->until_ns = start + amount;
	own->context_id = context_id;
	count_switch(engine, took_ns);
	if (unit != SIM_UNIT_COMPUTE)
		return;
	struct sim_client_device *client = &sim_machine->client[sim_client_slot()].device[engine->device];
	__atomic_store_n(&client->granted_at, start, __ATOMIC_RELAXED);
	__atomic_store_n(&client->pending_ns, amount, __ATOMIC_RELAXED);
}

/* Busy time by buckets of SIM_BUCKET_NS, for whoever asks what the last second looked like. */
static void fill_buckets(struct sim_client_device *client, uint64_t from, uint64_t to)
{
	while (from < to) {
		uint64_t number = from / SIM_BUCKET_NS;
		uint64_t end = (number + 1) * SIM_BUCKET_NS;
		uint64_t ns = (to < end ? to : end) - from;
		unsigned i = number % SIM_BUCKETS;
		if (client->bucket_at[i] != number) {
			__atomic_store_n(&client->bucket_ns[i], 0, __ATOMIC_RELAXED);
			__atomic_store_n(&client->bucket_at[i], number, __ATOMIC_RELEASE);
		}
		__atomic_store_n(&client->bucket_ns[i], client->bucket_ns[i] + (uint32_t)ns, __ATOMIC_RELAXED);
		from += ns;
	}
}

void sim_timeline_used(struct sim_engine *engine, unsigned unit)
{
	struct sim_client_device *client = &sim_machine->client[sim_client_slot()].device[engine->device];
	struct sim_unit *own = &engine->unit[unit];
	uint64_t end = own->cursor_ns + own->run_ns;
	if (unit == SIM_UNIT_COMPUTE) {
		fill_buckets(client, own->cursor_ns, end);
		__atomic_store_n(&client->busy_ns, client->busy_ns + own->run_ns, __ATOMIC_RELAXED);
		__atomic_store_n(&client->pending_ns, own->until_ns - end, __ATOMIC_RELAXED);
		__atomic_fetch_add(&sim_machine->device[engine->device].engine_busy_ns, own->run_ns, __ATOMIC_RELAXED);
	} else {
		__atomic_store_n(&client->copy_ns[unit], client->copy_ns[unit] + own->run_ns, __ATOMIC_RELAXED);
	}
	own->cursor_ns = end;
}

void sim_timeline_return(struct sim_engine *engine, unsigned unit)
{
	struct sim_unit *own = &engine->unit[unit];
	if (own->cursor_ns >= own->until_ns)
		return;
	uint64_t end = own->until_ns;
	if (__atomic_compare_exchange_n(&sim_machine->device[engine->device].engine_until[unit], &end, own->cursor_ns,
	                                false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
		own->until_ns = own->cursor_ns;
}

bool sim_meeting_over(struct sim_item *item, int device)
{
	uint64_t now = sim_now();
	if (!item->meet_by_ns)
		item->meet_by_ns = now + PATIENCE_NS;
	bool give_up = now > item->meet_by_ns;
	if (give_up)
		sim_log("device %d: a collective waited %llu ms for its partner on another device; it goes on alone",
		        device, (unsigned long long)(PATIENCE_NS / 1000000));
	return sim_meeting_met(item->meeting, device, item->seq, give_up) || give_up;
}

uint64_t sim_copy_ns(int device, size_t bytes)
{
	uint32_t mbps = sim_machine->model[device].copy_mbps;
	return mbps ? (uint64_t)((unsigned __int128)bytes * 1000 / mbps) : 0;
}
