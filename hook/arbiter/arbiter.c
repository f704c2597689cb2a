/* arbiter.c: the machine's devices, tenants and accounts, and what is said about them from outside.
 *
 * The entry points of arbiter.h but for arb_decide(). Claims are cut to what can be true (nothing began or ended in the
 * future) and change nothing but their own account. Called by whoever drives the core, from one thread.
 * What can go wrong: no memory for a device or an account; then it is not there and its turn is never open.
 */
#include <stdlib.h>
#include <string.h>

#include "arbiter_core.h"

struct arb *arb_new(void)
{
	return calloc(1, sizeof(struct arb));
}

void arb_free(struct arb *arb)
{
	if (!arb)
		return;
	for (int i = 0; i < arb->devices; i++) {
		for (int j = 0; j < arb->device[i]->accounts; j++)
			free(arb->device[i]->account[j]);
		free(arb->device[i]);
	}
	free(arb);
}

int arb_device(struct arb *arb, const char *uuid)
{
	struct arb_device_state *d;
	int rank = arb->devices;

	for (int i = 0; i < arb->devices; i++)
		if (!strncmp(arb->device[i]->uuid, uuid, PTG_UUID_SIZE - 1))
			return i;
	if (arb->devices == ARB_DEVICES)
		return -1;
	d = calloc(1, sizeof(*d));
	if (!d)
		return -1;
	strncpy(d->uuid, uuid, PTG_UUID_SIZE - 1);
	d->index = arb->devices;
	d->quantum = ARB_QUANTUM_FEW;
	for (; rank > 0 && strcmp(arb->order[rank - 1]->uuid, d->uuid) > 0; rank--)
		arb->order[rank] = arb->order[rank - 1];
	arb->order[rank] = d;
	arb->device[arb->devices] = d;
	return arb->devices++;
}

int arb_tenant(struct arb *arb)
{
	for (int i = 0; i < ARB_TENANTS; i++) {
		if (arb->tenant[i].used)
			continue;
		memset(&arb->tenant[i], 0, sizeof(arb->tenant[i]));
		arb->tenant[i].used = true;
		return i;
	}
	return -1;
}

static struct arb_account *find(const struct arb *arb, int tenant, int device)
{
	if (tenant < 0 || tenant >= ARB_TENANTS || device < 0 || device >= arb->devices)
		return NULL;
	return arb->tenant[tenant].account[device];
}

static void set_priorities(struct arb_device_state *d)
{
	d->first_priority = 2;
	for (int i = 0; i < d->accounts; i++)
		if (d->account[i]->share.gated && d->account[i]->share.priority < d->first_priority)
			d->first_priority = d->account[i]->share.priority;
	arb_set_fallbacks(d);
}

static void drop(struct arb_account *a)
{
	struct arb_device_state *d = a->device;
	int i = 0;

	while (d->account[i] != a)
		i++;
	d->account[i] = d->account[--d->accounts];
	if (d->holder == a)
		d->holder = NULL;
	a->owner->account[d->index] = NULL;
	free(a);
	set_priorities(d);
}

void arb_tenant_gone(struct arb *arb, uint64_t now, int tenant)
{
	if (tenant < 0 || tenant >= ARB_TENANTS)
		return;
	for (int i = 0; i < arb->devices; i++)
		arb_share(arb, now, tenant, i, NULL);
	arb->tenant[tenant].used = false;
}

static struct arb_account *add(struct arb *arb, int tenant, int device)
{
	struct arb_device_state *d = arb->device[device];
	struct arb_account *a = calloc(1, sizeof(*a));

	if (!a)
		return NULL;
	a->tenant = tenant;
	a->owner = &arb->tenant[tenant];
	a->device = d;
	a->vtime = d->vfloor;
	a->ceiling_tokens = 1;
	a->share.gated = true;
	d->account[d->accounts++] = a;
	a->owner->account[device] = a;
	return a;
}

/* Between launching without turns and with them. What it queued before drains like a turn that was closed. */
static void gate(struct arb_account *a, bool gated, uint64_t now)
{
	if (!gated) {
		if (a->device->holder == a)
			a->device->holder = NULL;
		a->role = ARB_CLOSED;
		a->draining = a->undrained = a->turn.watched = a->turn.brief = false;
		a->turn.serial += !a->turn.open;
		a->turn.open = true;
		a->turn.deadline = ARB_NEVER;
		return;
	}
	a->closed_role = ARB_HOLDER;
	a->turn.open = a->fresh = false;
	a->draining = true;
	a->closed_at = now;
}

void arb_share(struct arb *arb, uint64_t now, int tenant, int device, const struct arb_share *share)
{
	struct arb_account *a = find(arb, tenant, device);
	bool gated;

	now = arb->now = arb_most(now, arb->now);
	if (!share) {
		if (a) {
			arb_settle(a->device, now);
			drop(a);
		}
		return;
	}
	if (!a) {
		if (tenant < 0 || tenant >= ARB_TENANTS || !arb->tenant[tenant].used || device < 0 ||
		    device >= arb->devices)
			return;
		a = add(arb, tenant, device);
		if (!a)
			return;
	}
	arb_settle(a->device, now);
	gated = a->share.gated;
	arb_set_share(a, share);
	if (gated != share->gated)
		gate(a, share->gated, now);
	set_priorities(a->device);
}

/* How much it does between two pauses, and how long the pause was before the period in flight that has just begun, where
 * it had its turn all the while. */
static void note_habit(struct arb_account *a, const struct arb_claim *c)
{
	uint64_t pause;

	/* Of several processes, the work of one goes on while another's ends: that is no pause. */
	if ((!c->busy || c->busy_since >= c->idle_since) &&
	    (c->idle_since != a->claim.idle_since ||
	     (a->claim.busy && (!c->busy || c->busy_since != a->claim.busy_since)))) {
		const uint64_t used = a->turn.charged - a->span_from;

		if (a->span_seen || !a->span) /* of one that is not watched, this may be several together */
			a->span = arb_average(a->span, used);
		a->span_seen = a->turn.watched;
		if (c->launches > a->launches_from)
			a->launch = arb_average(a->launch, used / (c->launches - a->launches_from));
		a->launches_from = c->launches;
		a->span_from = a->turn.charged;
	}

	if (!c->busy || !a->turn.open || c->idle_since < a->opened_at || c->busy_since <= c->idle_since ||
	    (a->claim.busy && a->claim.busy_since == c->busy_since))
		return;
	pause = arb_least(c->busy_since - c->idle_since, 10 * ARB_MS);
	a->gap = arb_average(a->gap, pause);
}

void arb_claim(struct arb *arb, uint64_t now, int tenant, int device, const struct arb_claim *claim)
{
	struct arb_account *a = find(arb, tenant, device);
	struct arb_claim c = *claim;

	if (!a)
		return;
	now = arb->now = arb_most(now, arb->now);
	arb_check_claim(arb, a, claim, now);
	c.busy_since = arb_least(c.busy_since, now);
	c.idle_since = arb_least(c.idle_since, now);
	c.want_since = arb_least(c.want_since, now);
	note_habit(a, &c);
	if (a->turn.open && (c.busy || c.idle_since > a->opened_at))
		a->used = true;
	if (c.busy || c.want_since != a->claim.want_since) { /* it lives */
		a->missed_until = 0;
		a->missed = c.busy ? 0 : a->missed;
	}
	if (!a->met) {
		a->met = true;
		a->seen = c.flight;
		if (c.busy && !a->turn.open) {
			a->draining = true;
			a->closed_at = now;
			a->closed_role = ARB_HOLDER;
		}
	}
	a->fresh = true;
	a->claim = c;
}

void arb_audit(struct arb *arb, uint64_t now, int tenant, int device, uint64_t busy)
{
	struct arb_account *a = find(arb, tenant, device);

	if (!a || !busy)
		return;
	arb->now = arb_most(now, arb->now);
	busy = arb_least(busy, ARB_STEP);
	a->owed = arb_least(a->owed + busy, 6 * ARB_STEP);
	a->turn.charged += busy;
	arb_report(arb, ARB_EVENT_LIAR, a, busy);
}

const struct arb_turn *arb_turn(const struct arb *arb, int tenant, int device)
{
	const struct arb_account *a = find(arb, tenant, device);

	return a ? &a->turn : NULL;
}

/* Keeps the latest ARB_EVENTS. */
void arb_report(struct arb *arb, enum arb_event_kind kind, const struct arb_account *a, uint64_t amount)
{
	struct arb_event *event = &arb->event[(arb->event_first + arb->event_count) % ARB_EVENTS];

	*event = (struct arb_event){kind, a->tenant, a->device->index, arb->now, amount};
	if (arb->event_count < ARB_EVENTS)
		arb->event_count++;
	else
		arb->event_first = (arb->event_first + 1) % ARB_EVENTS;
}

bool arb_event(struct arb *arb, struct arb_event *event)
{
	if (!arb->event_count)
		return false;
	*event = arb->event[arb->event_first];
	arb->event_first = (arb->event_first + 1) % ARB_EVENTS;
	arb->event_count--;
	return true;
}
