/* decide.c: arb_decide(): one look at all devices of the machine.
 *
 * Charge what was used, see what has drained, find out who has which right and which devices a tenant works on; then end
 * turns and choose, in UUID order; open what can be opened; lend what pauses; bring what is published up to date; and
 * say when to look again. Called by whoever drives the core (host_*.c, tests). No allocation, no system call.
 */
#include "arbiter_core.h"

static bool busy_lately(const struct arb_account *a, uint64_t now, uint64_t span)
{
	return a->claim.busy || (a->claim.idle_since && arb_since(now, a->claim.idle_since) < span);
}

/* On which devices each tenant works, and whether it asks for any. */
static void survey_tenants(struct arb *arb, uint64_t now)
{
	for (int rank = 0; rank < arb->devices; rank++)
		for (int i = 0; i < arb->order[rank]->accounts; i++) {
			struct arb_tenant_state *t = arb->order[rank]->account[i]->owner;

			t->gang = 0;
			t->wants = t->drains = false;
		}
	for (int rank = 0; rank < arb->devices; rank++)
		for (int i = 0; i < arb->order[rank]->accounts; i++) {
			const struct arb_account *a = arb->order[rank]->account[i];

			if (!a->share.gated)
				continue;
			if (a->claim.wants || busy_lately(a, now, ARB_GANG))
				a->owner->gang |= UINT64_C(1) << rank;
			a->owner->wants |= a->claim.wants && !a->turn.open;
			a->owner->drains |= !a->turn.open && arb_in_flight(a);
		}
}

/* It waits after a pause of its own of at least that length, not for its next turn. */
static bool comes_back(const struct arb_account *a, uint64_t pause)
{
	return a->claim.wants && !a->turn.open && a->right == ARB_RIGHT_GUARANTEED && a->claim.idle_since &&
	       arb_since(a->claim.want_since, a->claim.idle_since) >= pause;
}

/* Rights, activity and the quantum of a device. */
static void survey(struct arb_device_state *d, int rank, uint64_t now)
{
	bool back = false, away = false;

	d->active = d->waiting = 0;
	d->demand = 0;
	arb_level(d);
	arb_raise_floor(d);
	for (int i = 0; i < d->accounts; i++) {
		struct arb_account *a = d->account[i];

		if (!a->share.gated)
			continue;
		a->joins = arb_several(a->owner) && (a->owner->gang >> rank & 1) && a->owner->wants;
		a->recent = busy_lately(a, now, ARB_RECENT);
		arb_judge(a, now);
		if (a->recent || a->claim.wants) {
			d->active++;
			d->demand += arb_demand(a);
		}
		d->waiting += a->claim.wants && !a->turn.open;
		back |= comes_back(a, ARB_PAUSE);
		away |= comes_back(a, ARB_AWAY);
	}
	d->quantum = away ? ARB_QUANTUM_AWAY : back ? ARB_QUANTUM_BACK : d->active > 2 ? ARB_QUANTUM : ARB_QUANTUM_FEW;
}

static void survey_all(struct arb *arb, uint64_t now)
{
	for (int rank = 0; rank < arb->devices; rank++) {
		arb_settle(arb->order[rank], now);
		arb_drain(arb, arb->order[rank], now);
	}
	survey_tenants(arb, now);
	for (int rank = 0; rank < arb->devices; rank++)
		survey(arb->order[rank], rank, now);
}

/* Closed for want of a right: when it will have one is known, and until then nothing that others do is of use to it. What
 * it still has in flight it reports itself. */
static bool has_to_wait(const struct arb_account *a)
{
	return !a->turn.open && a->right == ARB_RIGHT_NONE;
}

/* Somebody could use the device whenever this one does nothing. */
static bool is_heard(const struct arb_account *a)
{
	for (int i = 0; i < a->device->accounts; i++) {
		const struct arb_account *b = a->device->account[i];

		if (b != a && b->share.gated && (b->recent || b->claim.wants) && !has_to_wait(b))
			return true;
	}
	return false;
}

/* All that are at work are open beside each other: no beginning and no end changes anything for anybody, and whoever else
 * comes has to ask. */
static bool all_together(const struct arb_device_state *d)
{
	const struct arb_account *h = d->holder;
	int others = 0;

	if (!h || h->role != ARB_HOLDER)
		return false;
	for (int i = 0; i < d->accounts; i++) {
		const struct arb_account *a = d->account[i];

		if (!a->share.gated || a == h || !(a->recent || a->claim.wants) || has_to_wait(a))
			continue;
		if (!a->turn.open || a->helps || !arb_companions(a, h))
			return false;
		others++;
	}
	return others > 0;
}

/* A guaranteed one with a better claim is away, and may come back any moment, or does. What is in flight then, it waits for
 * each time, and each time that is lost to it. */
static bool awaits_better(const struct arb_account *a, uint64_t now)
{
	for (int i = 0; i < a->device->accounts; i++) {
		const struct arb_account *b = a->device->account[i];
		const bool away =
		        !b->claim.busy && !b->claim.wants && arb_since(now, b->claim.idle_since) < ARB_AWAY_LAST;

		if (b != a && b->share.gated && b->right == ARB_RIGHT_GUARANTEED &&
		    ((away && b->claim.idle_since) || comes_back(b, ARB_AWAY)) && arb_before(b, a))
			return true;
	}
	return false;
}

/* What is published beside the word itself. */
static void describe(struct arb_device_state *d, uint64_t now)
{
	d->together = all_together(d);
	for (int i = 0; i < d->accounts; i++) {
		struct arb_account *a = d->account[i];
		struct arb_turn *t = &a->turn;
		const bool asking = a->claim.busy || a->claim.wants;

		if (!a->share.gated || !t->open)
			continue;
		t->outstanding_us = awaits_better(a, now) ? ARB_AWAY_US : 0;
		t->brief = a->role == ARB_BORROWER || arb_distrusted(a, now) || a->share.priority > d->first_priority;
		t->watched = !d->together &&
		             (a->role == ARB_BORROWER || (is_heard(a) && !(a->gap && a->gap < ARB_GAP_SHORT)));
		if (asking && t->deadline < now + ARB_DEADLINE / 2)
			t->deadline = now + ARB_DEADLINE;
		else if (a->role == ARB_BORROWER && now >= t->deadline)
			arb_close(a, now);
	}
}

/* When the holder's turn may have to end, or its pause to be lent. */
static uint64_t holder_at(const struct arb_device_state *d, uint64_t now)
{
	const struct arb_account *h = d->holder;
	uint64_t at = ARB_NEVER;

	if (!h || h->role != ARB_HOLDER)
		return at;
	if (arb_rivals(h) > 0 || h->share.ceiling < 1000 || (h->kind == ARB_RIGHT_GUARANTEED && h->share.cores < 1000))
		at = h->claim.busy ? now + arb_since(d->quantum, h->spent) : arb_most(h->began_at + d->quantum, now);
	if (!d->waiting)
		return at;
	if (!h->used) { /* once it is lent, there is nothing more to wait for here */
		const uint64_t lent_at = h->opened_at + (h->claim.wants ? ARB_GRACE : ARB_GAP_SHORT);

		return lent_at > now ? arb_least(at, lent_at) : at;
	}
	return h->gap && h->gap < ARB_GAP_SHORT ? arb_least(at, now + ARB_GAP_CHECK) : at;
}

static uint64_t next_look(const struct arb *arb, const struct arb_device_state *d, uint64_t now)
{
	uint64_t at = d->together ? now + ARB_TOGETHER : holder_at(d, now);

	for (int i = 0; i < d->accounts; i++) {
		const struct arb_account *a = d->account[i];
		const bool asking = a->claim.busy || a->claim.wants;

		if (!a->share.gated)
			continue;
		if (a->draining)
			at = arb_least(at, a->closed_at + arb_guard(arb, a));
		if (a->turn.open)
			at = arb_least(at, a->turn.deadline - (asking ? ARB_DEADLINE / 2 : 0));
		else if (a->claim.wants && a->right == ARB_RIGHT_NONE)
			at = arb_least(at, arb_has_right_at(a, now));
		if (a->joins && a->claim.wants && a->owner->drains) /* may need help */
			at = arb_least(at, now + ARB_GRACE);
	}
	return at == ARB_NEVER ? at : arb_most(at, now + ARB_SOON);
}

uint64_t arb_decide(struct arb *arb, uint64_t now)
{
	uint64_t at = ARB_NEVER;

	now = arb->now = arb_most(now, arb->now);
	if (now - arb->decided_at > ARB_DEADLINE / 2)
		arb->resumed_at = now;
	arb->decided_at = now;
	survey_all(arb, now);
	for (int rank = 0; rank < arb->devices; rank++)
		arb_turns(arb, arb->order[rank], now);
	for (int rank = 0; rank < arb->devices; rank++)
		arb_start_turns(arb, arb->order[rank], now);
	for (int rank = 0; rank < arb->devices; rank++) {
		struct arb_device_state *d = arb->order[rank];

		arb_lend(arb, d, now);
		describe(d, now);
		at = arb_least(at, next_look(arb, d, now));
	}
	return at;
}
