/* credence.c: claims that cannot be, and what is believed of whoever makes them.
 *
 * A ledger is its tenant's to write, so a claim may be anything. What is consistent is charged like work, and harms its
 * maker alone; what cannot have happened (a moment that has not come, more time in flight than passed, work that began
 * before it was seen not to be there) would be charged to nobody, while others wait for its end. So whoever claims such a
 * thing is distrusted for a while: its turn counts as used from its opening to its end, it has little in flight and
 * borrows nothing, and nobody waits long for it to drain. Called by arbiter.c, charge.c, turn.c, lend.c and decide.c.
 */
#include "arbiter_core.h"

#define AHEAD (10 * ARB_MS) /* of the clock: more is no matter of who looked at it first */
#define SKEW  (200 * ARB_MS) /* a thread may be kept from writing down for so long what it has read on the clock */
#define MOST  1024 /* processes: in flight at once, each counts */

static bool lies_ahead(uint64_t moment, uint64_t now)
{
	return moment > now && moment - now > AHEAD;
}

static bool is_absurd(const struct arb_account *a, const struct arb_claim *c, uint64_t now)
{
	const struct arb_claim *before = &a->claim;

	if (c->absurd || lies_ahead(c->idle_since, now) || (c->busy && lies_ahead(c->busy_since, now)) ||
	    (c->wants && lies_ahead(c->want_since, now)))
		return true;
	if (!a->met)
		return false;
	if (c->flight > before->flight && (c->flight - before->flight) / MOST > now - a->claimed_at + SKEW)
		return true;
	return c->busy && !before->busy && c->busy_since + SKEW < a->claimed_at;
}

void arb_check_claim(struct arb *arb, struct arb_account *a, const struct arb_claim *c, uint64_t now)
{
	if (is_absurd(a, c, now)) {
		if (!a->lied_at || now - a->lied_at >= ARB_REPORT)
			arb_report(arb, ARB_EVENT_ABSURD, a, 0);
		a->lied_at = now;
	}
	a->claimed_at = now;
}

bool arb_distrusted(const struct arb_account *a, uint64_t now)
{
	return a->lied_at && now - a->lied_at < ARB_DISTRUST;
}
