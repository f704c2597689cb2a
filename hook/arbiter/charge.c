/* charge.c: who used the device since the last decision.
 *
 * At each instant the device's time is charged to those who have work in flight on it: to the holder; to borrowers and
 * to whoever still drains, as long as that is believed (ARB_STALE). Where several have, a device first ends what it
 * is at, or its slice, then works on all in turn: so whoever came first pays alone for that long, then all pay equal
 * parts; and who was closed with little in flight pays for no more than that little. Where
 * somebody's work came in several pieces since, all pay in proportion. So the charges of a device add up to the time in
 * which it was busy. A pause of the holder that is too short to be lent while others wait is charged to it as well:
 * nobody else can use it.
 * What a tenant says of itself is cut to the time that passed. Called by decide.c and arbiter.c.
 */
#include "arbiter_core.h"

static bool charged(const struct arb_account *a, uint64_t now)
{
	if (!a->share.gated)
		return false;
	if (a->turn.open)
		return true;
	return (a->draining || a->undrained) && now - a->closed_at <= ARB_STALE;
}

static bool pauses_count(const struct arb_account *a)
{
	return a->role == ARB_HOLDER && a->used && a->device->waiting > 0 && a->gap && a->gap < ARB_GAP_SHORT;
}

/* Of whom nothing is believed, and others wait for it: all the time is its. */
static bool all_counts(const struct arb_account *a, uint64_t now)
{
	return arb_distrusted(a, now) && (a->role == ARB_HOLDER || a->draining);
}

/* When the period in flight began that reaches into this step: where it has ended meanwhile, the claim does not say so any
 * more, and whoever came later must not pass for the first. */
static void find_beginning(struct arb_account *a, uint64_t begin)
{
	const struct arb_claim *c = &a->claim;

	/* Still the same where the work of one process goes on while another's ends. */
	if (!a->flying || a->from > begin || (c->busy && c->busy_since >= c->idle_since))
		a->since = c->busy && c->busy_since && c->busy_since < a->from ? c->busy_since : a->from;
	a->flying = c->busy;
}

/* Sets [from, to): the part of [begin, now) in which it had work in flight, as one piece; false: none. */
static bool find_flight(struct arb_account *a, uint64_t begin, uint64_t now)
{
	const struct arb_claim *c = &a->claim;
	const uint64_t total = c->flight + (c->busy ? arb_since(now, c->busy_since) : 0);
	uint64_t flight = total > a->seen ? arb_least(total - a->seen, now - begin) : 0;

	/* A period is known to have ended a little before somebody noticed: what was counted meanwhile is not counted again. */
	if (total > a->seen || a->seen - total > ARB_GUARD)
		a->seen = total;
	a->to = c->busy ? now : arb_least(now, arb_most(c->idle_since, begin + flight));
	if (all_counts(a, now)) {
		a->from = a->since = begin;
		a->to = now;
		return a->whole = true;
	}
	if (pauses_count(a))
		flight = arb_least(a->to, now) - begin;
	a->from = a->to - flight;
	find_beginning(a, begin);
	a->whole = c->busy ? a->from <= begin || a->from == c->busy_since : a->from <= begin;
	return flight > 0 && charged(a, now);
}

/* What a closed turn of which little was in flight (SHORT) can still use of the device. */
static uint64_t room(const struct arb_account *a)
{
	if (a->turn.open || !a->turn.brief || !a->launch)
		return ARB_STEP;
	return arb_since(arb_most(ARB_MS, a->launch), a->turn.charged - a->closed_charged);
}

/* Who pays at the instant `at`, and until when at most: whoever came first, for a slice; else all in equal parts. Whoever
 * has no room left waits for the others. */
static int find_payers(struct arb_account *const *flying, int count, uint64_t at, uint64_t *until,
                       struct arb_account **payer)
{
	struct arb_account *first = NULL, *second = NULL;
	int payers = 0, waiting = 0;

	for (int i = 0; i < count; i++) {
		struct arb_account *a = flying[i];

		if (a->from > at)
			*until = arb_least(*until, a->from);
		if (a->from > at || a->to <= at)
			continue;
		*until = arb_least(*until, a->to);
		payer[payers + waiting] = a;
		if (!room(a)) {
			waiting++;
			continue;
		}
		payer[payers + waiting] = payer[payers];
		payer[payers++] = a;
		if (!first || a->since < first->since) {
			second = first;
			first = a;
		} else if (!second || a->since < second->since) {
			second = a;
		}
	}
	if (!payers)
		return waiting;
	if (second && at < second->since + ARB_SLICE) {
		*until = arb_least(*until, second->since + ARB_SLICE);
		payer[0] = first;
		payers = 1;
	}
	for (int i = 0; i < payers; i++)
		*until = arb_least(*until, at + room(payer[i]) * (uint64_t)payers);
	return payers;
}

/* Charges [begin, now) piece by piece; within a piece the same accounts pay. */
static void split(struct arb_account *const *flying, int count, uint64_t begin, uint64_t now)
{
	struct arb_account *payer[ARB_TENANTS];

	for (uint64_t at = begin, until; at < now; at = until) {
		int payers;

		until = now;
		payers = find_payers(flying, count, at, &until, payer);
		for (int i = 0; i < payers; i++)
			arb_pay(payer[i], (until - at) / (uint64_t)payers);
	}
}

static void share_out(struct arb_account *const *flying, int count, uint64_t time)
{
	uint64_t sum = 0;

	for (int i = 0; i < count; i++)
		sum += flying[i]->to - flying[i]->from;
	for (int i = 0; i < count; i++) {
		const uint64_t flight = flying[i]->to - flying[i]->from;

		arb_pay(flying[i], sum > time ? flight * time / sum : flight);
	}
}

void arb_settle(struct arb_device_state *d, uint64_t now)
{
	struct arb_account *flying[ARB_TENANTS];
	uint64_t begin = d->settled_at ? d->settled_at : now;
	int count = 0;
	bool whole = true;

	if (now <= begin && d->settled_at)
		return;
	d->settled_at = now;
	if (now - begin > ARB_STEP)
		begin = now - ARB_STEP;
	for (int i = 0; i < d->accounts; i++) {
		arb_refill(d->account[i], now - begin);
		if (find_flight(d->account[i], begin, now)) {
			whole = whole && d->account[i]->whole;
			flying[count++] = d->account[i];
		}
	}
	if (count > 1 && whole)
		split(flying, count, begin, now);
	else
		share_out(flying, count, now - begin);
}
