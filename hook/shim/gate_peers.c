/* gate_peers.c: the processes of one container, while it has its turn: one after the other.
 *
 * A device goes from one context to another at a price, and what it has in flight of each is what a closed turn still has
 * to wait for. So one process of a container launches at a time, as much as the bound allows; who has had that much, while
 * others of the container wait, lets it run to its end and stands behind them. So that the device does not stand still
 * meanwhile, the next one begins when little is left of it: it is *leaving* then, and launches nothing more.
 * Called by gate_turn.c, gate_flight.c and gate_helper.c with the gate's lock. There is no queue and no owner: who has work
 * in flight says so in its own line of the ledger (`busy_ns`), the common line says which of them is leaving
 * (`peer_leaves`, by when it began), who waits says when it last did (`peer_ns`), and sleeps on `peer_bell`.
 * What can go wrong: a kernel waits for one of a process that waits here; so who has work in flight for several times as
 * long as it should take leaves as well. A process dies: who waits in vain for a moment asks whether those that it waits
 * for live, and gives the slots of the dead back. A process is stopped in flight: where nothing has ended for PATIENCE_NS,
 * one of those that wait goes on, and waits for none of what is in flight then any more. A scribbled ledger harms its own
 * container alone. */
#include "gate_core.h"

#define LITTLE_NS 1000000 /* so much is left of who leaves */
#define WORKS_NS  50000000 /* work in flight of others that began longer ago does not spare a ring */
#define WAITS_NS  150000000 /* the same of others that wait */
#define QUIET_NS  200000 /* who has launched nothing for so long waits for what it has launched */
#define RECENT_NS 10000000 /* who waits says so twice as often */
#define ASK_NS    4000000 /* nothing has ended for so long: does it live? Then after twice as long; a sleep is longer */
#define PATIENCE_NS UINT64_C(500000000)
#define COUNT_NS    5000000 /* how old the count of busy processes may be */

/* ---- counting ---------------------------------------------------------------------------------------------------------- */

struct peers {
	uint32_t busy; /* with work in flight, besides this one */
	uint32_t before; /* of them began before this one, and may launch */
	uint32_t longer; /* wait for the turn, and their last period ended before this one's */
	bool leaving; /* one of them leaves */
};

/* The line of one that was killed counts until its slot is given back. */
static struct peers look(const struct gate *g, int device)
{
	const struct gate_device *d = &g->device[device];
	struct vgpu_state *s = vgpu_state();
	struct peers peers = {0};
	if (!d->common || !s)
		return peers;
	uint64_t leaves = __atomic_load_n(&d->common->peer_leaves, __ATOMIC_SEQ_CST);
	uint64_t own = d->busy_ns ? d->busy_ns : UINT64_MAX;
	for (uint32_t i = 0; i < vgpu_slot_high(s->ledger.map); i++) {
		const struct ptg_slot_turn *line = &s->ledger.map->turn[device][i];
		uint64_t busy = __atomic_load_n(&line->busy_ns, __ATOMIC_SEQ_CST);
		if (i != s->slot && busy == 0)
			peers.longer += __atomic_load_n(&line->want, __ATOMIC_RELAXED) &&
			                __atomic_load_n(&line->idle_ns, __ATOMIC_RELAXED) < d->line->idle_ns;
		if (i == s->slot || busy <= d->past_ns)
			continue;
		peers.busy++;
		if (busy == leaves)
			peers.leaving = true;
		else
			peers.before += busy < own || (busy == own && i < s->slot);
	}
	return peers;
}

uint32_t gate_peers(struct gate *g, int device, uint64_t now)
{
	struct gate_device *d = &g->device[device];
	if (d->peers == 0 || now - d->peers_at >= COUNT_NS) {
		d->peers = 1 + look(g, device).busy;
		d->peers_at = now;
	}
	return d->peers;
}

/* ---- sparing rings ------------------------------------------------------------------------------------------------------- */

/* Some other one's line says that it works, or waits, since earlier than `before`; not since long ago: it may be a dead
 * process's, for which nobody rings. */
static bool says(const struct gate *g, int device, bool waits, uint64_t before, uint64_t now)
{
	struct vgpu_state *s = vgpu_state();
	if (!g->device[device].common || !s)
		return false;
	for (uint32_t i = 0; i < vgpu_slot_high(s->ledger.map); i++) {
		const struct ptg_slot_turn *line = &s->ledger.map->turn[device][i];
		if (i == s->slot || (waits && __atomic_load_n(&line->want, __ATOMIC_SEQ_CST) == 0))
			continue;
		uint64_t since = __atomic_load_n(waits ? &line->want_ns : &line->busy_ns, __ATOMIC_SEQ_CST);
		if (since != 0 && since + (waits ? WAITS_NS : WORKS_NS) > now &&
		    (since < before || (since == before && i < s->slot)))
			return true;
	}
	return false;
}

bool gate_peers_began(const struct gate *g, int device, uint64_t now)
{
	return says(g, device, false, g->device[device].busy_ns, now);
}

bool gate_peers_go_on(const struct gate *g, int device, uint64_t now)
{
	return says(g, device, false, UINT64_MAX, now);
}

bool gate_peers_asked(const struct gate *g, int device, uint64_t now)
{
	return says(g, device, true, g->device[device].want_ns, now);
}

/* ---- waiting for each other ---------------------------------------------------------------------------------------------- */

bool gate_peers_wait(const struct gate_device *d, uint64_t now)
{
	uint64_t said = d->common ? __atomic_load_n(&d->common->peer_ns, __ATOMIC_SEQ_CST) : 0;
	return said > now ? said - now < RECENT_NS : now - said < RECENT_NS; /* it may have looked at the clock later */
}

static void ring(struct gate_device *d)
{
	__atomic_add_fetch(&d->common->peer_bell, 1, __ATOMIC_SEQ_CST);
	vgpu_futex_wake(&d->common->peer_bell, 1);
}

void gate_peers_ended(struct gate_device *d, uint64_t now)
{
	if (!d->leaving && gate_peers_wait(d, now)) /* else one has been woken already */
		ring(d);
	d->leaving = false;
}

/* From when until when what it has in flight has little left, as far as is known; and from when on it stands: it may be
 * waiting for work of another process. */
struct end {
	uint64_t little, last, stands;
};

static struct end end_of(struct gate *g, int device)
{
	const struct gate_device *d = &g->device[device];
	uint64_t flight = gate_in_flight(g, device), over = d->seen_ns + flight;
	struct end end = {over > LITTLE_NS ? over - LITTLE_NS : 0, over + LITTLE_NS, over + 3 * flight + 5 * LITTLE_NS};
	bool known = !d->unknown_ns;
	for (int work = 0; work < VGPU_WORKS; work++)
		known = known && (!d->queued[work] || d->mean_ns[work]);
	if (!known) /* of what was never seen to end, nobody knows how long it should take */
		return (struct end){UINT64_MAX, UINT64_MAX, UINT64_MAX};
	if (d->stuck)
		end.little = end.last = end.stands;
	return end;
}

void gate_peers_leave(struct gate *g, int device, uint64_t now)
{
	struct gate_device *d = &g->device[device];
	if (!d->busy_ns || d->leaving || d->inside || !gate_peers_wait(d, now))
		return;
	struct end end = end_of(g, device);
	bool launches = d->part_ns < gate_bound(g, device) && now - d->launched_ns < QUIET_NS;
	if (now < end.little || (now > end.last && now < end.stands) || launches || look(g, device).leaving)
		return;
	d->leaving = true;
	__atomic_store_n(&d->common->peer_leaves, d->busy_ns, __ATOMIC_SEQ_CST);
	ring(d);
}

uint64_t gate_peers_look_at(struct gate *g, int device, uint64_t now)
{
	struct gate_device *d = &g->device[device];
	if (!d->busy_ns || d->leaving || !gate_peers_wait(d, now))
		return UINT64_MAX;
	struct end end = end_of(g, device);
	uint64_t at = now > end.last ? end.stands : end.little, quiet = d->launched_ns + QUIET_NS;
	at = at > quiet ? at : quiet;
	return at > now ? at : now + 5 * GATE_POLL_NS; /* another one is leaving still */
}

/* Some of those that it waits for may be dead: their lines say for ever what they said last. */
static void bury_dead(const struct gate_device *d, int device, struct gate_wait *wait, uint64_t now)
{
	struct vgpu_state *s = vgpu_state();
	if (!s || wait->peers_ns == 0 || now - wait->peers_ns < wait->ask_after ||
	    __atomic_load_n(&d->common->peer_bell, __ATOMIC_RELAXED) != wait->peer_bell)
		return;
	wait->ask_after = 2 * (now - wait->peers_ns);
	vgpu_lock(&s->lock);
	for (uint32_t i = 0; i < vgpu_slot_high(s->ledger.map); i++) {
		const struct ptg_slot_turn *line = &s->ledger.map->turn[device][i];
		if (i != s->slot && (__atomic_load_n(&line->busy_ns, __ATOMIC_RELAXED) != 0 ||
		                     __atomic_load_n(&line->want, __ATOMIC_RELAXED) != 0))
			vgpu_slot_reclaim_one(&s->ledger, i);
	}
	vgpu_unlock(&s->lock);
}

/* Nothing has ended since it began to wait, for long: what is in flight is stuck, or its process is. */
static bool in_vain(struct gate_device *d, struct gate_wait *wait, uint64_t now)
{
	uint32_t bell = __atomic_load_n(&d->common->peer_bell, __ATOMIC_SEQ_CST);
	if (wait->peers_ns == 0 || bell != wait->peer_bell) {
		wait->peers_ns = now;
		wait->peer_bell = bell;
		wait->ask_after = ASK_NS;
	}
	if (now - wait->peers_ns < PATIENCE_NS + 2 * gate_mean(d, wait->work))
		return false;
	wait->peers_ns = 0; /* and of those that wait as long, one at a time goes on */
	if (!__atomic_compare_exchange_n(&d->common->peer_bell, &bell, bell + 1, false, __ATOMIC_SEQ_CST,
	                                 __ATOMIC_SEQ_CST))
		return false;
	d->past_ns = now;
	return true;
}

bool gate_peers_full(struct gate *g, int device, struct gate_wait *wait, uint64_t now)
{
	struct gate_device *d = &g->device[device];
	if (!d->common)
		return false;
	bury_dead(d, device, wait, now);
	struct peers peers = look(g, device);
	if (peers.longer &&
	    !wait->let_pass) /* all wake when the turn opens: first who has waited longest, unless it is slow */
		wait->behind = wait->let_pass = true;
	if ((!wait->behind && peers.before == 0) || in_vain(d, wait, now))
		return false;
	__atomic_store_n(&d->common->peer_ns, now, __ATOMIC_SEQ_CST);
	/* One that has ended in between did not hear that somebody waits. */
	return wait->behind || look(g, device).before != 0;
}

bool gate_peers_before(const struct gate *g, int device)
{
	return look(g, device).before != 0;
}

bool gate_peers_next(const struct gate *g, int device, const struct gate_wait *wait, uint64_t now)
{
	const struct gate_device *d = &g->device[device];
	return d->leaving || (d->part_ns != 0 && d->part_ns + gate_mean(d, wait->work) > gate_bound(g, device) &&
	                      gate_peers_wait(d, now));
}

void gate_peers_sleep(struct gate *g, int device, struct gate_wait *wait)
{
	struct gate_device *d = &g->device[device];
	uint32_t bell = wait->peer_bell;
	wait->behind = false;
	vgpu_unlock(&g->lock);
	gate_sleep(&d->common->peer_bell, bell, RECENT_NS / 2, true);
	vgpu_lock(&g->lock);
}
