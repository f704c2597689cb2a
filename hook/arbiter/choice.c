/* choice.c: who is next on a device.
 *
 * Guaranteed work first: by priority, then who has been kept waiting longest for its share (tokens / cores). Then
 * surplus: by priority, then least virtual time. A tenant that works on several devices takes them in UUID order and
 * only where it has a right on all of them, so that two such tenants never wait for each other. A device where its work
 * has been in flight for long counts as had: that work may be waiting for its partner on another.
 * Called by turn.c and lend.c. Nothing here changes any state.
 */
#include "arbiter_core.h"

/* The tenant keeps a device already: it is waiting for this one. */
static bool keeps_others(const struct arb_account *a)
{
	const struct arb_tenant_state *t = a->owner;

	if (!arb_several(t))
		return false;
	for (int i = 0; i < ARB_DEVICES; i++)
		if (t->account[i] && t->account[i] != a && t->account[i]->role >= ARB_RESERVED)
			return true;
	return false;
}

bool arb_before(const struct arb_account *a, const struct arb_account *b)
{
	int64_t waited_a, waited_b;

	if (a->right != b->right)
		return a->right > b->right;
	if (a->share.priority != b->share.priority)
		return a->share.priority < b->share.priority;
	if (keeps_others(a) != keeps_others(b))
		return keeps_others(a);
	if (a->right == ARB_RIGHT_SURPLUS) {
		waited_a = (int64_t)(b->vtime - a->vtime);
		waited_b = 0;
	} else {
		waited_a = a->tokens * (int64_t)b->share.cores;
		waited_b = b->tokens * (int64_t)a->share.cores;
	}
	if (waited_a != waited_b)
		return waited_a > waited_b;
	return a->closed_at < b->closed_at;
}

/* It works in short pieces with pauses between that are long enough to be lent. */
static bool has_pauses(const struct arb_account *a)
{
	return a->gap >= ARB_GAP_SHORT && a->span && a->span <= ARB_SPAN &&
	       (!a->claim.busy || a->turn.charged - a->span_from <= ARB_SPAN);
}

/* Permille of the device's time that it would use alone. */
uint32_t arb_demand(const struct arb_account *a)
{
	return has_pauses(a) ? (uint32_t)(a->span * 1000 / (a->span + a->gap)) : 1000;
}

/* Both may be open while both are at work: they leave each other room, and there is room for all, or neither is ahead of
 * the other. The device hands over between the two without the delay of a turn. */
bool arb_companions(const struct arb_account *a, const struct arb_account *b)
{
	const int64_t slack = (int64_t)ARB_QUANTUM_FEW;
	int64_t ahead;

	if (a->share.priority != b->share.priority || a->right != b->right || a->right == ARB_RIGHT_NONE ||
	    !has_pauses(a) || !has_pauses(b))
		return false;
	if (a->device->demand <= ARB_ROOM)
		return true;
	if (a->right == ARB_RIGHT_SURPLUS) {
		ahead = (int64_t)(a->vtime - b->vtime);
		return ahead <= slack * 1000 / a->share.weight && -ahead <= slack * 1000 / b->share.weight;
	}
	ahead = a->tokens / (int64_t)a->share.cores - b->tokens / (int64_t)b->share.cores;
	return ahead <= slack && -ahead <= slack;
}

/* Its other devices: those before this one are had, on those behind it it has a right. */
static bool in_order(struct arb *arb, const struct arb_account *a)
{
	const uint64_t gang = a->owner->gang;
	bool before = true;

	if (!arb_several(a->owner))
		return true;
	for (int rank = 0; rank < arb->devices; rank++) {
		const struct arb_device_state *d = arb->order[rank];
		const struct arb_account *b = a->owner->account[d->index];

		if (d == a->device) {
			before = false;
			continue;
		}
		if (!(gang >> rank & 1) || b->role >= ARB_RESERVED || arb_stuck(arb, b))
			continue;
		if (before || b->right == ARB_RIGHT_NONE)
			return false;
	}
	return true;
}

static bool asks(const struct arb_account *a)
{
	if (a->helps)
		return false;
	if (a->role == ARB_BORROWER)
		return a->claim.busy || a->claim.wants;
	return a->claim.wants || a->joins;
}

struct arb_account *arb_choose(struct arb *arb, struct arb_device_state *d)
{
	struct arb_account *best = NULL;

	for (int i = 0; i < d->accounts; i++) {
		struct arb_account *a = d->account[i];

		if (!a->share.gated || a == d->holder || a->right == ARB_RIGHT_NONE || !asks(a) || !in_order(arb, a))
			continue;
		if (!best || arb_before(a, best))
			best = a;
	}
	return best;
}

/* On every device of its gang but `but` the tenant is next, or stuck, and no turn is being waited for. */
bool arb_gang_kept(struct arb *arb, const struct arb_tenant_state *t, const struct arb_device_state *but)
{
	for (int rank = 0; rank < arb->devices; rank++) {
		const struct arb_device_state *d = arb->order[rank];
		const struct arb_account *a = t->account[d->index];

		if (!a || d == but || (!(t->gang >> rank & 1) && a->role != ARB_RESERVED))
			continue;
		if (a->role < ARB_RESERVED && !arb_stuck(arb, a))
			return false;
		if (a->role != ARB_RESERVED)
			continue;
		for (int i = 0; i < d->accounts; i++)
			if (d->account[i] != a && d->account[i]->draining && d->account[i]->closed_role != ARB_BORROWER)
				return false;
	}
	return true;
}
