/* turn.c: opening and closing, when a turn is over, and when what was closed has drained.
 *
 * A turn is over when its quantum of device time is used and somebody else is next, or when it pauses for longer than
 * that; it is revoked for a claim of higher priority. Whoever is next has the device reserved, and is opened when
 * nothing of another's is left on it, all devices of its gang at once. Called by decide.c.
 */
#include "arbiter_core.h"

void arb_open(struct arb_account *a, enum arb_role role, uint64_t now)
{
	a->role = role;
	a->turn.open = true;
	a->turn.serial++;
	a->turn.deadline = now + ARB_DEADLINE;
	a->draining = a->undrained = a->used = a->gang = a->helps = false;
	a->opened_at = now;
	arb_begin_quantum(a, now);
}

/* From now on it is charged by its present right. */
void arb_begin_quantum(struct arb_account *a, uint64_t now)
{
	a->began_at = now;
	a->spent = 0;
	if (a->entitled != ARB_RIGHT_NONE)
		a->right = a->kind = a->entitled;
}

/* A turn that was given and not used kept the device from others who waited. */
static void missed(struct arb_account *a, uint64_t now)
{
	if (a->used || a->role != ARB_HOLDER || !a->device->waiting || now - a->opened_at < ARB_GRACE)
		return;
	arb_pay(a, ARB_GRACE);
	a->missed_until = now + (ARB_MISSED << a->missed);
	if (a->missed < 2) /* a waiter that is slow to wake on a busy machine must not be shut out */
		a->missed++;
}

void arb_close(struct arb_account *a, uint64_t now)
{
	if (a->device->holder == a)
		a->device->holder = NULL;
	if (a->role == ARB_RESERVED) {
		a->role = ARB_CLOSED;
		return;
	}
	missed(a, now);
	if (a->role == ARB_HOLDER)
		a->helped = 0;
	a->closed_role = a->role;
	a->role = ARB_CLOSED;
	a->turn.open = false;
	a->draining = true;
	a->fresh = a->gang = a->helps = false;
	a->closed_at = now;
	a->closed_charged = a->turn.charged;
}

/* Closes it, and with it what its tenant holds together with it. */
static void end_turn(struct arb_account *a, uint64_t now)
{
	const bool gang = a->gang;

	arb_close(a, now);
	for (int i = 0; gang && i < ARB_DEVICES; i++) {
		struct arb_account *b = a->owner->account[i];

		if (b && b->gang && b->role >= ARB_RESERVED)
			arb_close(b, now);
	}
}

void arb_drain(struct arb *arb, struct arb_device_state *d, uint64_t now)
{
	for (int i = 0; i < d->accounts; i++) {
		struct arb_account *a = d->account[i];

		if (!a->share.gated || a->turn.open)
			continue;
		if (a->fresh && !a->claim.busy) {
			a->draining = a->undrained = false;
		} else if (a->draining && now - a->closed_at >= arb_guard(arb, a)) {
			a->draining = false;
			a->undrained = true;
			if (d->waiting && (!a->reported_at || now - a->reported_at >= ARB_REPORT)) {
				a->reported_at = now;
				arb_report(arb, ARB_EVENT_UNDRAINED, a, now - a->closed_at);
			}
		} else if (!a->draining && !a->undrained && a->claim.busy && a->claim.degraded &&
		           now - arb->resumed_at < ARB_STUCK) {
			a->draining = true;
			a->closed_at = now;
			a->closed_role = ARB_BORROWER;
		}
	}
}

/* Nothing in flight, and not about to have: the device may be lent. */
bool arb_pausing(const struct arb_account *a, uint64_t now)
{
	if (a->claim.busy || arb_distrusted(a, now))
		return false;
	if (!a->used)
		return now - a->opened_at >= (a->claim.wants ? ARB_GRACE : ARB_GAP_SHORT);
	if (a->gap && a->gap < ARB_GAP_SHORT)
		return arb_since(now, a->claim.idle_since) >= 2 * ARB_GAP_SHORT;
	return true;
}

static bool over(const struct arb_account *h, uint64_t now)
{
	const uint64_t quantum = h->device->quantum;

	return h->spent >= quantum || (now - h->began_at >= quantum && arb_pausing(h, now));
}

/* Whether the holder's turn ends now; `next` is the best of the others, NULL: none. */
static bool ends(struct arb *arb, const struct arb_account *h, const struct arb_account *next, uint64_t now)
{
	const bool late = now >= h->turn.deadline && (!h->claim.busy || h->claim.wants);
	const bool again = h->entitled != ARB_RIGHT_NONE;

	if (h->owed)
		return true;
	if (next && next->share.priority < h->share.priority &&
	    next->right >= (h->role == ARB_RESERVED ? h->right : h->kind))
		return true;
	if (h->role == ARB_RESERVED)
		return !again || !(h->claim.wants || h->joins || arb_in_flight(h));
	if (late)
		return true;
	if (!over(h, now))
		return false;
	if (!next)
		return !again;
	if (!again || (arb_pausing(h, now) && !h->recent))
		return true;
	if (h->joins && !arb_gang_kept(arb, h->owner, h->device)) /* it may be waiting for its others */
		return true;
	return arb_before(next, h);
}

void arb_turns(struct arb *arb, struct arb_device_state *d, uint64_t now)
{
	struct arb_account *next = arb_choose(arb, d);
	struct arb_account *h = d->holder;

	if (h && h->role == ARB_HOLDER && over(h, now))
		h->right = h->entitled; /* from here on it is compared by its buckets */
	if (h && ends(arb, h, next, now)) {
		if (next && next->role == ARB_BORROWER && h->role == ARB_HOLDER && arb_companions(h, next)) {
			h->role = ARB_BORROWER;
			d->holder = NULL;
		} else {
			end_turn(h, now);
		}
	} else if (h && h->role == ARB_HOLDER && over(h, now))
		arb_begin_quantum(h, now);
	if (d->holder || !next)
		return;
	d->holder = next;
	if (next->role == ARB_BORROWER) { /* open already: no hand-over */
		next->role = ARB_HOLDER;
		arb_begin_quantum(next, now);
	} else {
		next->role = ARB_RESERVED;
	}
}

/* Nothing of another's is on the device. */
static bool clear(const struct arb_device_state *d, const struct arb_account *but)
{
	for (int i = 0; i < d->accounts; i++) {
		const struct arb_account *a = d->account[i];

		if (a != but && a->share.gated && (a->draining || a->turn.open))
			return false;
	}
	return true;
}

/* Opens what is reserved for the holder's tenant, if all of it can be opened. */
void arb_start_turns(struct arb *arb, struct arb_device_state *d, uint64_t now)
{
	struct arb_account *h = d->holder;
	struct arb_tenant_state *t;

	if (!h || h->role != ARB_RESERVED || !arb_gang_kept(arb, h->owner, NULL))
		return;
	t = h->owner;
	for (int i = 0; i < arb->devices; i++)
		if (t->account[i] && t->account[i]->role == ARB_RESERVED &&
		    !clear(t->account[i]->device, t->account[i]))
			return;
	for (int i = 0; i < arb->devices; i++) {
		struct arb_account *a = t->account[i];

		if (!a || a->role < ARB_RESERVED)
			continue;
		if (a->role == ARB_RESERVED)
			arb_open(a, ARB_HOLDER, now);
		else if (arb_several(t))
			arb_begin_quantum(a, now);
		a->gang = arb_several(t);
	}
}
