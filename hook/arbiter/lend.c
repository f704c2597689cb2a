/* lend.c: the device while its holder has nothing in flight.
 *
 * The holder keeps its turn, so that it launches at once when it comes back. Meanwhile one other is open at a time: the
 * best of those that wait; where nobody waits, all that had work in flight a moment ago, so that they need not ask, until
 * one of them uses it. Borrowers keep little in flight (SHORT), say when they begin and end (WATCHED), and are closed as
 * soon as the holder, or a better one, is at work. Companions of the holder (choice.c) are open beside it all the while.
 * Called by decide.c.
 */
#include "arbiter_core.h"

static bool at_work(const struct arb_account *a, uint64_t now)
{
	return a->claim.busy || (a->claim.wants && now - a->opened_at < ARB_GRACE);
}

/* A tenant of several devices has them together or not at all. */
static bool may_borrow(const struct arb_account *a, uint64_t now)
{
	return a->share.gated && !arb_several(a->owner) && a->right != ARB_RIGHT_NONE && a->role == ARB_CLOSED &&
	       !arb_distrusted(a, now);
}

static bool companion(const struct arb_device_state *d, const struct arb_account *a)
{
	return d->holder && d->holder != a && d->holder->role == ARB_HOLDER && arb_companions(a, d->holder);
}

static bool drains(const struct arb_device_state *d, const struct arb_account *but)
{
	for (int i = 0; i < d->accounts; i++)
		if (d->account[i] != but && d->account[i]->draining)
			return true;
	return false;
}

/* The best of the borrowers that are at work, and, where `waiting`, of those that wait. */
static struct arb_account *best_of(struct arb_device_state *d, bool waiting, uint64_t now)
{
	struct arb_account *best = NULL;

	for (int i = 0; i < d->accounts; i++) {
		struct arb_account *a = d->account[i];

		if (waiting ? !may_borrow(a, now) || !a->claim.wants
		            : a->role != ARB_BORROWER || a->helps || a->right == ARB_RIGHT_NONE || !at_work(a, now))
			continue;
		if (!best || arb_before(a, best))
			best = a;
	}
	return best;
}

static void close_borrowers(struct arb_device_state *d, const struct arb_account *but, uint64_t now)
{
	for (int i = 0; i < d->accounts; i++) {
		struct arb_account *a = d->account[i];

		if (a->role == ARB_BORROWER && a != but && !a->helps && !companion(d, a))
			arb_close(a, now);
	}
}

/* In advance: to all that were at work a moment ago, or to the holder's companions among them. */
static void open_recent(struct arb_device_state *d, bool companions, uint64_t now)
{
	for (int i = 0; i < d->accounts; i++) {
		struct arb_account *a = d->account[i];

		if (a->role == ARB_BORROWER && !a->helps && a->right == ARB_RIGHT_NONE)
			arb_close(a, now);
		else if (may_borrow(a, now) && (a->recent || (companions && a->claim.wants)) && !drains(d, a) &&
		         (!companions || companion(d, a)))
			arb_open(a, ARB_BORROWER, now);
	}
}

/* Its tenant has work in flight on another device that does not end although that device was closed. */
static bool stands_still_elsewhere(const struct arb *arb, const struct arb_account *a, uint64_t now)
{
	for (int i = 0; i < arb->devices; i++) {
		const struct arb_account *b = a->owner->account[i];

		if (b && b != a && !b->turn.open && arb_in_flight(b) && now - b->closed_at >= ARB_HELP)
			return true;
	}
	return false;
}

/* A collective whose partner was not launched any more would keep one device until its tenant's next turn: the missing
 * launch is let through, beside whoever has the device, and is charged like any other. */
static void help(const struct arb *arb, struct arb_device_state *d, uint64_t now)
{
	for (int i = 0; i < d->accounts; i++) {
		struct arb_account *a = d->account[i];

		if (!arb_several(a->owner) || !a->share.gated)
			continue;
		if (a->helped && arb_in_flight(a) &&
		    now - a->closed_at < ARB_RECENT) /* was it the one that was missing? */
			a->owner->helped_at = now;
		if (a->helps && (a->claim.busy || now - a->opened_at >= ARB_GRACE))
			arb_close(a, now);
		else if (a->role == ARB_CLOSED && a->claim.wants && !arb_in_flight(a) && a->helped < ARB_HELPS &&
		         !a->owed && arb_since(now, a->claim.want_since) >= ARB_GRACE &&
		         now - a->owner->helped_at >= ARB_HELP && stands_still_elsewhere(arb, a, now)) {
			arb_open(a, ARB_BORROWER, now);
			a->helps = true;
			a->helped++;
			a->owner->helped_at = now;
		}
	}
}

void arb_lend(struct arb *arb, struct arb_device_state *d, uint64_t now)
{
	struct arb_account *h = d->holder, *borrower, *waiter;
	const bool lent = h && (h->role == ARB_RESERVED ? !arb_gang_kept(arb, h->owner, d)
	                                                : arb_rivals(h) > 0 && arb_pausing(h, now));

	help(arb, d, now);
	open_recent(d, true, now);
	borrower = lent ? best_of(d, false, now) : NULL;
	if (!lent || borrower) {
		close_borrowers(d, borrower, now);
		return;
	}
	waiter = best_of(d, true, now);
	if (!waiter) {
		open_recent(d, false, now);
		return;
	}
	close_borrowers(d, NULL, now);
	if (!drains(d, waiter))
		arb_open(waiter, ARB_BORROWER, now);
}
