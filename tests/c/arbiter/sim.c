/* sim.c: the loop around the policy core (as hook/arbiter's host drives it), the clock, and the counting. */
#include "sim.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

uint64_t draw(struct rng *rng)
{
	uint64_t z = rng->state += UINT64_C(0x9e3779b97f4a7c15);

	z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
	return z ^ z >> 31;
}

uint64_t draw_in(struct rng *rng, uint64_t least, uint64_t most)
{
	return least + draw(rng) % (most - least + 1);
}

struct sim *sim_new(uint64_t seed, int devices)
{
	struct sim *sim = calloc(1, sizeof(*sim));

	CHECK(sim, "memory for a simulation");
	*sim = (struct sim){.rng = {seed}, .devices = devices, .slice = 2 * MS, .switch_cost = 10 * US};
	sim->hop_least = 50 * US;
	sim->hop_most = 200 * US;
	sim->audit_period = 3 * SECOND;
	sim->now = sim->sampled_at = 1000 * SECOND;
	sim->audit_at = sim->now + sim->audit_period;
	sim->arb_at = NEVER;
	sim->arb = arb_new();
	CHECK(sim->arb, "memory for an arbiter");
	for (int i = 0; i < devices; i++) {
		char uuid[PTG_UUID_SIZE];

		snprintf(uuid, sizeof(uuid), "GPU-%04d", i);
		CHECK(arb_device(sim->arb, uuid) == i, "device %d", i);
		sim->device[i].current = -1;
	}
	return sim;
}

void sim_free(struct sim *sim)
{
	for (int i = 0; i < sim->tenants; i++)
		free(sim->tenant[i].waits);
	arb_free(sim->arb);
	free(sim);
}

int sim_tenant(struct sim *sim, const struct arb_share *share, const struct program *program, unsigned devices)
{
	struct tenant *t = NULL;
	int index;

	for (index = 0; index < sim->tenants && sim->tenant[index].there; index++)
		;
	CHECK(index < TENANTS, "%d tenants at most", TENANTS);
	sim->tenants = index == sim->tenants ? index + 1 : sim->tenants;
	t = &sim->tenant[index];
	free(t->waits);
	*t = (struct tenant){.there = true, .program = *program, .share = *share};
	t->waits = calloc(WAITS, sizeof(*t->waits));
	t->id = arb_tenant(sim->arb);
	CHECK(t->id >= 0 && t->waits, "a tenant");
	for (int i = 0; i < sim->devices; i++) {
		if (!(devices >> i & 1))
			continue;
		t->lane[i] = (struct lane){.there = true, .device = i};
		t->lane[i].thinks_until = sim->now + draw_in(&sim->rng, 1, MS);
		arb_share(sim->arb, sim->now, t->id, i, share);
	}
	sim_ring(sim);
	return index;
}

void sim_gone(struct sim *sim, int tenant)
{
	struct tenant *t = &sim->tenant[tenant];

	arb_tenant_gone(sim->arb, sim->now, t->id);
	t->there = false;
	for (int i = 0; i < sim->devices; i++)
		t->lane[i].there = false;
	sim_ring(sim);
}

void sim_share(struct sim *sim, int tenant, const struct arb_share *share)
{
	struct tenant *t = &sim->tenant[tenant];

	t->share = *share;
	for (int i = 0; i < sim->devices; i++)
		if (t->lane[i].there)
			arb_share(sim->arb, sim->now, t->id, i, share);
	sim_ring(sim);
}

uint64_t sim_hop(struct sim *sim)
{
	return draw_in(&sim->rng, sim->hop_least, sim->hop_most);
}

void sim_ring(struct sim *sim)
{
	const uint64_t at = sim->now + sim_hop(sim);

	if (!sim->native && at < sim->arb_at)
		sim->arb_at = at;
}

/* An undisturbed turn opens: is it alone? */
static void check_alone(struct sim *sim, const struct tenant *t, int device)
{
	for (int i = 0; i < sim->tenants; i++) {
		const struct tenant *other = &sim->tenant[i];
		const struct lane *l = &other->lane[device];

		if (other == t || !other->there || !l->there || !other->share.gated)
			continue;
		sim->holders += l->open && !l->brief;
		sim->disturbed += !other->program.lie && l->flying && !other->stopped_until &&
		                  (l->open || sim->now - l->closed_at < 50 * MS);
	}
}

static void claim_all(struct sim *sim)
{
	for (int i = 0; i < sim->tenants; i++) {
		struct tenant *t = &sim->tenant[i];

		for (int d = 0; d < sim->devices; d++) {
			struct arb_claim claim;

			if (!t->there || !t->lane[d].there)
				continue;
			gate_claim(sim, t, &t->lane[d], &claim);
			arb_claim(sim->arb, sim->now, t->id, d, &claim);
		}
	}
}

static void publish(struct sim *sim, struct tenant *t, int device, bool closing)
{
	struct lane *l = &t->lane[device];
	const struct arb_turn *turn;

	if (!t->there || !l->there)
		return;
	turn = arb_turn(sim->arb, t->id, device);
	CHECK(turn, "an account has a turn");
	if (closing != (l->open && !turn->open)) /* what closes is closed before anything opens */
		return;
	sim->again |= (l->open && !turn->open) || (turn->watched && !l->watched);
	if (turn->open && turn->serial != l->serial && !turn->brief && t->share.gated)
		check_alone(sim, t, device);
	gate_publish(sim, t, l, turn);
}

static void count_events(struct sim *sim)
{
	struct arb_event event;

	while (arb_event(sim->arb, &event)) {
		sim->undrained += event.kind == ARB_EVENT_UNDRAINED;
		sim->liars += event.kind == ARB_EVENT_LIAR;
	}
}

static void arbitrate(struct sim *sim)
{
	uint64_t next;

	sim->again = false;
	sim->arb_at = NEVER; /* bells from here on are heard */
	claim_all(sim);
	next = arb_decide(sim->arb, sim->now);
	sim->decisions++;
	for (int closing = 1; closing >= 0; closing--)
		for (int i = 0; i < sim->tenants; i++)
			for (int d = 0; d < sim->devices; d++)
				publish(sim, &sim->tenant[i], d, closing);
	count_events(sim);
	if (sim->again)
		next = sim->now + 5 * US;
	if (next < sim->arb_at)
		sim->arb_at = next;
}

/* What NVML says of each process, against what was charged: more than 10 points over is a lie. */
static void audit(struct sim *sim)
{
	for (int i = 0; i < sim->tenants; i++) {
		struct tenant *t = &sim->tenant[i];

		for (int d = 0; t->there && d < sim->devices; d++) {
			struct lane *l = &t->lane[d];
			uint64_t charged, over;

			if (!l->there)
				continue;
			charged = arb_turn(sim->arb, t->id, d)->charged;
			over = (l->got - l->audited_got) - (charged - l->audited_charged);
			if (t->share.gated && (int64_t)over > (int64_t)(sim->audit_period / 10))
				arb_audit(sim->arb, sim->now, t->id, d, over);
			l->audited_got = l->got;
			l->audited_charged = arb_turn(sim->arb, t->id, d)->charged;
		}
	}
	sim_ring(sim);
}

static void sample(struct sim *sim)
{
	sim->sampled_at = sim->now;
	if (sim->samples == SAMPLES)
		return;
	for (int i = 0; i < sim->tenants; i++)
		for (int d = 0; d < sim->devices; d++)
			sim->tenant[i].lane[d].sample[sim->samples] = (uint32_t)(sim->tenant[i].lane[d].got / US);
	sim->samples++;
}

static uint64_t next_event(struct sim *sim)
{
	uint64_t at = sim->arb_at < sim->sampled_at + SAMPLE ? sim->arb_at : sim->sampled_at + SAMPLE;

	if (sim->audit_period && sim->audit_at < at)
		at = sim->audit_at;
	for (int d = 0; d < sim->devices; d++) {
		const uint64_t next = device_next(sim, d);

		at = next < at ? next : at;
		for (int i = 0; i < sim->tenants; i++) {
			const struct tenant *t = &sim->tenant[i];
			const uint64_t other = t->there && t->lane[d].there ? gate_next(sim, t, &t->lane[d]) : NEVER;

			at = other < at ? other : at;
		}
	}
	return at > sim->now ? at : sim->now;
}

void sim_run(struct sim *sim, uint64_t until)
{
	while (sim->now < until) {
		uint64_t next = next_event(sim);

		next = next < until ? next : until;
		for (int d = 0; d < sim->devices; d++)
			device_run(sim, d, next);
		sim->now = next;
		for (int d = 0; d < sim->devices; d++)
			device_step(sim, d);
		for (int i = 0; i < sim->tenants; i++)
			for (int d = 0; d < sim->devices; d++)
				if (sim->tenant[i].there && sim->tenant[i].lane[d].there)
					gate_step(sim, &sim->tenant[i], &sim->tenant[i].lane[d]);
		if (!sim->native && sim->arb_at <= sim->now)
			arbitrate(sim);
		if (sim->audit_period && sim->audit_at <= sim->now) {
			sim->audit_at = sim->now + sim->audit_period;
			if (!sim->native)
				audit(sim);
		}
		if (sim->sampled_at + SAMPLE <= sim->now)
			sample(sim);
	}
}

void sim_forget(struct sim *sim)
{
	sim->samples = 0;
	sim->decisions = 0;
	for (int i = 0; i < sim->tenants; i++) {
		struct tenant *t = &sim->tenant[i];

		t->wait_count = 0;
		t->longest_wait = 0;
		for (int d = 0; d < sim->devices; d++) {
			t->lane[d].forgotten = t->lane[d].got;
			t->lane[d].periods = 0;
		}
	}
	for (int d = 0; d < sim->devices; d++)
		sim->device[d].busy = 0;
	sim->forgotten_at = sim->now;
}

double sim_share_of(const struct sim *sim, int tenant, int device)
{
	const struct lane *l = &sim->tenant[tenant].lane[device];

	return 100.0 * (double)(l->got - l->forgotten) / (double)(sim->now - sim->forgotten_at);
}

void sim_window(const struct sim *sim, int tenant, int device, uint64_t window, uint32_t *least, uint32_t *most)
{
	const uint32_t *sample = sim->tenant[tenant].lane[device].sample;
	const int span = (int)(window / SAMPLE);

	*least = UINT32_MAX;
	*most = 0;
	for (int i = 0; i + span < sim->samples; i++) {
		const uint32_t got = sample[i + span] - sample[i];

		*least = got < *least ? got : *least;
		*most = got > *most ? got : *most;
	}
}

double sim_jain(const double *x, int count)
{
	double sum = 0, squares = 0;

	for (int i = 0; i < count; i++) {
		sum += x[i];
		squares += x[i] * x[i];
	}
	return squares > 0 ? sum * sum / (count * squares) : 0;
}
