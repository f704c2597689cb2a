/* charge.c: who used the device since the last decision.
 *
 * At each instant the device's time is charged to those who have work in flight on it, in equal parts where several
 * have: to the holder; to borrowers and to whoever still drains, as long as that is believed (ARB_STALE). So the charges
 * of a device add up to the time in which it was busy. A pause of the holder that is too short to be lent while others
 * wait is charged to it as well: nobody else can use it.
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

/* Sets [from, to): the part of [begin, now) in which it had work in flight, as one piece; false: none. */
static bool find_flight(struct arb_account *a, uint64_t begin, uint64_t now)
{
	const struct arb_claim *c = &a->claim;
	const uint64_t total = c->flight + (c->busy ? arb_since(now, c->busy_since) : 0);
	uint64_t flight = total > a->seen ? arb_least(total - a->seen, now - begin) : 0;

	a->seen = total;
	if (!charged(a, now))
		return false;
	a->to = c->busy ? now : arb_least(now, arb_most(c->idle_since, begin + flight));
	if (pauses_count(a))
		flight = arb_least(a->to, now) - begin;
	a->from = a->to - flight;
	return flight > 0;
}

/* Charges [begin, now) piece by piece; within a piece the same accounts have work in flight. */
static void split(struct arb_account *const *flying, int count, uint64_t begin, uint64_t now)
{
	for (uint64_t at = begin, next; at < now; at = next) {
		uint64_t sharers = 0;

		next = now;
		for (int i = 0; i < count; i++) {
			const struct arb_account *a = flying[i];

			if (a->from > at)
				next = arb_least(next, a->from);
			else if (a->to > at) {
				next = arb_least(next, a->to);
				sharers++;
			}
		}
		for (int i = 0; i < count; i++)
			if (flying[i]->from <= at && flying[i]->to > at)
				arb_pay(flying[i], (next - at) / sharers);
	}
}

void arb_settle(struct arb_device_state *d, uint64_t now)
{
	struct arb_account *flying[ARB_TENANTS];
	uint64_t begin = d->settled_at ? d->settled_at : now;
	int count = 0;

	if (now <= begin && d->settled_at)
		return;
	d->settled_at = now;
	if (now - begin > ARB_STEP)
		begin = now - ARB_STEP;
	for (int i = 0; i < d->accounts; i++) {
		arb_refill(d->account[i], now - begin);
		if (find_flight(d->account[i], begin, now))
			flying[count++] = d->account[i];
	}
	if (count == 1)
		arb_pay(flying[0], flying[0]->to - flying[0]->from);
	else if (count)
		split(flying, count, begin, now);
}
