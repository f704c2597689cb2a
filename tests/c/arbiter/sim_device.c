/* sim_device.c: a device that runs one context at a time, in slices where several have work, each one's work in order.
 *
 * A lane's queue is a number of ns; where its gate may launch, it is filled up again kernel by kernel as it runs. A
 * collective kernel at the head of its queue occupies the device, but comes no further until its like is at the head on
 * the tenant's other devices too.
 */
#include "sim.h"

static bool has_work(const struct tenant *t, int device)
{
	return t->there && t->lane[device].there && t->lane[device].flying > 0;
}

static bool partner_arrived(const struct sim *sim, const struct tenant *t, const struct lane *l)
{
	for (int i = 0; i < sim->devices; i++) {
		const struct lane *other = &t->lane[i];

		if (other != l && other->there && other->done == l->done && !(other->flying && other->arrived))
			return false;
		if (other != l && other->there && other->done < l->done)
			return false;
	}
	return true;
}

/* Work of the lane until something happens to it: a kernel ends that somebody looks at, or the last one. */
static uint64_t until_event(const struct sim *sim, const struct tenant *t, const struct lane *l)
{
	const uint64_t kernel = t->program.kernel;
	const uint64_t to_boundary = (l->flying - 1) % kernel + 1;

	if (t->program.collective)
		return partner_arrived(sim, t, l) ? to_boundary : NEVER;
	if (l->blocked)
		return to_boundary;
	if (l->todo >= ENDLESS && gate_may_launch(sim, t, l))
		return NEVER; /* filled up as it runs */
	if (l->todo > 0)
		return to_boundary;
	return l->flying;
}

/* The next context, round robin. */
static int pick(const struct sim *sim, int device, int from)
{
	for (int i = 1; i <= sim->tenants; i++) {
		const int t = (from + i + sim->tenants) % sim->tenants;

		if (has_work(&sim->tenant[t], device))
			return t;
	}
	return -1;
}

static bool contended(const struct sim *sim, int device)
{
	int count = 0;

	for (int i = 0; i < sim->tenants; i++)
		count += has_work(&sim->tenant[i], device);
	return count > 1;
}

uint64_t device_next(struct sim *sim, int device)
{
	struct device *d = &sim->device[device];
	uint64_t start, work, next = NEVER;

	if (d->current < 0 || !has_work(&sim->tenant[d->current], device)) {
		const int to = pick(sim, device, d->current);

		if (to < 0)
			return NEVER;
		if (to != d->current)
			d->stalled_until = sim->now + sim->switch_cost;
		d->current = to;
		d->slice_end = d->stalled_until + sim->slice;
	}
	start = d->stalled_until > sim->now ? d->stalled_until : sim->now;
	if (sim->tenant[d->current].program.collective && !sim->tenant[d->current].lane[device].arrived)
		return start + 1; /* has been on the device: its partners may go on */
	work = until_event(sim, &sim->tenant[d->current], &sim->tenant[d->current].lane[device]);
	if (work != NEVER)
		next = start + work;
	if (contended(sim, device)) {
		if (d->slice_end <= sim->now)
			d->slice_end = start + sim->slice;
		next = next < d->slice_end ? next : d->slice_end;
	}
	return next;
}

static void refill(const struct sim *sim, const struct tenant *t, struct lane *l)
{
	const uint64_t kernel = t->program.kernel, bound = gate_bound(t, l);
	uint64_t count;

	if (!l->todo || t->program.collective || !gate_may_launch(sim, t, l))
		return;
	if (l->flying + kernel > bound)
		return;
	count = (bound - l->flying) / kernel;
	if (l->todo < ENDLESS) {
		count = count < l->todo / kernel ? count : l->todo / kernel;
		l->todo -= count * kernel;
	}
	l->flying += count * kernel;
	l->launches += count;
}

/* Runs what is current from sim->now until then. */
void device_run(struct sim *sim, int device, uint64_t until)
{
	struct device *d = &sim->device[device];
	struct tenant *t = d->current < 0 ? NULL : &sim->tenant[d->current];
	struct lane *l = t ? &t->lane[device] : NULL;
	const uint64_t start = d->stalled_until > sim->now ? d->stalled_until : sim->now;
	uint64_t ran;

	if (!t || !has_work(t, device) || until <= start)
		return;
	ran = until - start;
	d->busy += ran;
	l->got += ran;
	l->arrived = true;
	if (t->program.collective && !partner_arrived(sim, t, l))
		return;
	if (!t->program.collective && l->todo >= ENDLESS && gate_may_launch(sim, t, l) && ran >= l->flying) {
		const uint64_t kernels = (ran - l->flying) / t->program.kernel + 1;

		l->flying += kernels * t->program.kernel;
		l->launches += kernels;
	}
	l->flying -= ran < l->flying ? ran : l->flying;
	refill(sim, t, l);
}

/* What has happened at sim->now. */
void device_step(struct sim *sim, int device)
{
	struct device *d = &sim->device[device];
	struct tenant *t;
	struct lane *l;

	if (d->current < 0 || d->stalled_until > sim->now)
		return;
	t = &sim->tenant[d->current];
	l = &t->lane[device];
	if (l->there && (l->flying == 0 || l->flying % t->program.kernel == 0) && l->arrived) {
		if (t->program.collective && l->done * t->program.kernel + l->flying < l->launched) {
			l->done++;
			l->arrived = false;
		}
		gate_boundary(sim, t, l);
		if (l->flying == 0 && !l->notices_at)
			gate_drained(sim, t, l);
	}
	if (sim->now >= d->slice_end && contended(sim, device)) {
		const int to = pick(sim, device, d->current);

		if (to != d->current)
			d->stalled_until = sim->now + sim->switch_cost;
		d->current = to;
		d->slice_end = d->stalled_until + sim->slice;
	}
}
