/* sim_gate.c: a tenant's program and its library's gate: launches while its turn is open, keeps work in flight within the
 * bound, asks at the boundary of a kernel, says when it is busy and when it is not, some time after it is so.
 *
 * As hook/shim's gate does: a thread that waits for room in its queue learns that the turn is over only then; a turn is
 * seen open at once by a program that comes by, and after a wake-up by one that waits; bells ring when a turn is wanted
 * and, where the turn is watched or closed, when work in flight begins or ends. Liars do otherwise.
 */
#include "sim.h"

static uint64_t floor_to(uint64_t value, uint64_t step)
{
	return value < step ? step : value / step * step;
}

uint64_t gate_bound(const struct tenant *t, const struct lane *l)
{
	if (t->program.lie == SAYS_DRAINED)
		return floor_to(t->program.queued, t->program.kernel);
	return floor_to(l->brief ? MS : l->outstanding_us ? l->outstanding_us * US : 5 * MS, t->program.kernel);
}

bool gate_may_launch(const struct sim *sim, const struct tenant *t, const struct lane *l)
{
	if (sim->now < t->stopped_until)
		return false;
	if (sim->native || t->program.lie == LAUNCHES_ANYWAY)
		return true;
	return l->open && !l->wants && sim->now < l->deadline;
}

static void ask(struct sim *sim, struct lane *l)
{
	if (l->wants)
		return;
	l->wants = true;
	l->want_since = sim->now;
	sim_ring(sim);
}

static void begin(struct sim *sim, struct lane *l)
{
	l->notices_at = 0;
	if (l->busy)
		return;
	l->busy = true;
	l->busy_since = sim->now;
	if (l->watched)
		sim_ring(sim);
}

/* Kernels that wait for each other: in the order of the devices by one thread, or one thread a device. */
static void launch_collective(struct sim *sim, struct tenant *t)
{
	for (bool more = true; more;) {
		struct lane *first = NULL;

		more = false;
		for (int i = 0; i < sim->devices; i++)
			if (t->lane[i].there && (!first || t->lane[i].round < first->round))
				first = &t->lane[i];
		for (int i = 0; i < sim->devices; i++) {
			struct lane *l = &t->lane[i];

			if (!l->there || (t->program.one_thread && l != first) ||
			    l->flying + t->program.kernel > gate_bound(t, l))
				continue;
			if (!gate_may_launch(sim, t, l)) {
				if (sim->now >= t->stopped_until)
					ask(sim, l);
				continue;
			}
			begin(sim, l);
			l->flying += t->program.kernel;
			l->launched += t->program.kernel;
			l->round++;
			l->launches++;
			more = true;
		}
	}
}

static void launch(struct sim *sim, struct tenant *t, struct lane *l)
{
	uint64_t room;

	if (t->program.collective) {
		launch_collective(sim, t);
		return;
	}
	if (!l->todo)
		return;
	if (!gate_may_launch(sim, t, l)) {
		ask(sim, l);
		return;
	}
	l->blocked = false;
	begin(sim, l);
	if (l->flying >= gate_bound(t, l))
		return;
	room = floor_to(gate_bound(t, l) - l->flying, t->program.kernel);
	if (l->todo < ENDLESS) {
		room = room < l->todo ? room : l->todo;
		l->todo -= room;
	}
	l->flying += room;
	l->launches += room / t->program.kernel;
}

void gate_publish(struct sim *sim, struct tenant *t, struct lane *l, const struct arb_turn *turn)
{
	const bool closed = l->open && (!turn->open || turn->serial != l->serial);
	const bool opened = turn->open && turn->serial != l->serial;

	l->open = turn->open;
	l->watched = turn->watched;
	l->brief = turn->brief;
	l->outstanding_us = turn->outstanding_us;
	l->deadline = turn->deadline;
	l->serial = turn->serial;
	if (closed) {
		l->closed_at = sim->now;
		l->blocked = l->todo > 0 && !l->wants;
		if (l->blocked && !l->flying) {
			l->blocked = false;
			launch(sim, t, l);
		}
	}
	if (opened && l->wants && !l->wakes_at)
		l->wakes_at = sim->now + sim_hop(sim);
}

/* A kernel has ended. */
void gate_boundary(struct sim *sim, struct tenant *t, struct lane *l)
{
	if (sim->now < t->stopped_until)
		return;
	if (t->program.collective) {
		launch_collective(sim, t);
	} else if (l->blocked) {
		l->blocked = false;
		launch(sim, t, l);
	}
}

/* The last one has: who waits for it, or the helper thread, will notice. */
void gate_drained(struct sim *sim, struct tenant *t, struct lane *l)
{
	const bool waits = t->program.work < ENDLESS && !l->todo;

	if (l->busy)
		l->notices_at =
		        sim->now + (waits ? draw_in(&sim->rng, 5 * US, 20 * US) : draw_in(&sim->rng, 20 * US, 80 * US));
}

static void notice(struct sim *sim, struct tenant *t, struct lane *l)
{
	l->notices_at = 0;
	if (l->flying || !l->busy)
		return;
	l->busy = false;
	l->idle_since = sim->now;
	l->flight += sim->now - l->busy_since;
	l->periods++;
	if (l->watched || !l->open)
		sim_ring(sim);
	if (!l->todo && !t->program.collective)
		l->thinks_until = sim->now + t->program.pause + draw_in(&sim->rng, 0, t->program.pause / 50);
	else
		launch(sim, t, l);
}

static void wake(struct sim *sim, struct tenant *t, struct lane *l)
{
	const uint64_t waited = sim->now - l->want_since;

	l->wakes_at = 0;
	if (!l->open || sim->now >= l->deadline)
		return;
	l->wants = false;
	if (t->wait_count < WAITS)
		t->waits[t->wait_count++] = waited;
	if (waited > t->longest_wait)
		t->longest_wait = waited;
	launch(sim, t, l);
}

static uint64_t earlier(uint64_t at, uint64_t other)
{
	return other && other < at ? other : at;
}

uint64_t gate_next(const struct sim *sim, const struct tenant *t, const struct lane *l)
{
	uint64_t at = NEVER;

	at = earlier(at, l->wakes_at);
	at = earlier(at, l->notices_at);
	at = earlier(at, l->thinks_until);
	if (t->stopped_until && !t->program.collective)
		at = earlier(at, t->stopped_until);
	if (!sim->native && l->open && !l->wants && l->todo && !l->blocked && l->deadline > sim->now)
		at = earlier(at, l->deadline);
	return at > t->stopped_until || at == NEVER ? at : t->stopped_until;
}

void gate_step(struct sim *sim, struct tenant *t, struct lane *l)
{
	if (sim->now < t->stopped_until)
		return;
	if (t->stopped_until) {
		t->stopped_until = 0;
		if (!l->flying && l->busy && !l->notices_at)
			l->notices_at = sim->now;
		if (l->wants && l->open)
			l->wakes_at = sim->now;
		launch(sim, t, l);
	}
	if (l->wakes_at && l->wakes_at <= sim->now)
		wake(sim, t, l);
	if (l->notices_at && l->notices_at <= sim->now)
		notice(sim, t, l);
	if (l->thinks_until && l->thinks_until <= sim->now) {
		l->thinks_until = 0;
		l->todo = t->program.work;
		launch(sim, t, l);
	}
	if (!sim->native && l->open && l->deadline <= sim->now && l->todo && !l->wants)
		l->blocked = true;
}

static void garble(struct sim *sim, struct arb_claim *c)
{
	struct rng *rng = &sim->rng;
	const uint64_t any[4] = {0, sim->now, draw(rng), NEVER};

	c->wants = draw(rng) & 1;
	c->busy = draw(rng) & 1;
	c->degraded = draw(rng) & 1;
	c->busy_since = any[draw(rng) & 3];
	c->idle_since = any[draw(rng) & 3];
	c->want_since = any[draw(rng) & 3];
	c->flight = any[draw(rng) & 3];
}

static void invent(struct sim *sim, struct arb_claim *c)
{
	struct rng *rng = &sim->rng;
	const uint64_t lately = sim->now - draw_in(rng, 0, 5 * MS);

	*c = (struct arb_claim){.wants = draw(rng) & 1, .busy = draw(rng) & 1, .degraded = draw(rng) & 1};
	c->busy_since = c->idle_since = c->want_since = draw(rng) & 1 ? sim->now : lately;
}

void gate_claim(struct sim *sim, struct tenant *t, struct lane *l, struct arb_claim *claim)
{
	*claim = (struct arb_claim){.wants = l->wants,
	                            .busy = l->busy,
	                            .busy_since = l->busy_since,
	                            .idle_since = l->idle_since,
	                            .want_since = l->want_since,
	                            .flight = l->flight,
	                            .launches = l->launches};
	switch (t->program.lie) {
	case HONEST:
		break;
	case NEVER_DRAINED:
		claim->busy = l->busy_since != 0;
		break;
	case SAYS_DRAINED:
		claim->busy = l->busy && l->open;
		break;
	case LAUNCHES_ANYWAY:
		*claim = (struct arb_claim){0};
		break;
	case GARBAGE:
		garble(sim, claim);
		break;
	case PLAUSIBLE:
		invent(sim, claim);
		break;
	}
}
