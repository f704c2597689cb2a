/* Shares that change while their programs run: the new ones hold from half a second later. */
#include "sim.h"

#include <math.h>

static void check_after(struct sim *sim, const char *what, double first, double second, double within)
{
	sim_run(sim, sim->now + 500 * MS);
	sim_forget(sim);
	sim_run(sim, sim->now + 10 * SECOND);
	printf("%-44s %.2f of %g, %.2f of %g\n", what, sim_share_of(sim, 0, 0), first, sim_share_of(sim, 1, 0), second);
	CHECK(fabs(sim_share_of(sim, 0, 0) - first) <= within && fabs(sim_share_of(sim, 1, 0) - second) <= within,
	      "%s: the 10 s from half a second later: %.2f of %g, %.2f of %g", what, sim_share_of(sim, 0, 0), first,
	      sim_share_of(sim, 1, 0), second);
}

static void step(uint64_t kernel)
{
	const struct program p = saturating(kernel);
	struct arb_share first = fixed(300), second = fixed(700);
	struct sim *sim = sim_new(kernel, 1);
	char what[64];

	sim_tenant(sim, &first, &p, 1);
	sim_tenant(sim, &second, &p, 1);
	snprintf(what, sizeof(what), "30/70, kernels of %lu us", (unsigned long)(kernel / US));
	sim_run(sim, sim->now + 5 * SECOND);
	check_after(sim, what, 30, 70, 2);
	first = fixed(600);
	second = fixed(400);
	sim_share(sim, 1, &second);
	sim_share(sim, 0, &first);
	check_after(sim, "60/40 since", 60, 40, 2);
	first = burst(200, 1000, 100);
	second = burst(400, 1000, 300);
	sim_share(sim, 0, &first);
	sim_share(sim, 1, &second);
	check_after(sim, "burst 20/40, weights 1 to 3, since", 30, 70, 3);
	first = with_priority(burst(200, 1000, 100), 0);
	sim_share(sim, 0, &first);
	check_after(sim, "P0 since", 60, 40, 3);
	sim_free(sim);
}

/* A lone tenant without a limit launches without turns; a guaranteed neighbour arrives, and goes. */
static void gates(void)
{
	const struct program p = saturating(MS);
	struct arb_share free = burst(0, 1000, 100), share = fixed(300);
	struct sim *sim = sim_new(5, 1);
	uint64_t decisions;

	free.gated = false;
	sim_tenant(sim, &free, &p, 1);
	sim_run(sim, sim->now + SECOND);
	decisions = sim->decisions;
	sim_forget(sim);
	sim_run(sim, sim->now + 5 * SECOND);
	CHECK(sim_share_of(sim, 0, 0) > 99.9, "without turns it has the device: %.2f %%", sim_share_of(sim, 0, 0));
	CHECK(sim->decisions < decisions + 5, "and costs nothing: %lu decisions", (unsigned long)sim->decisions);
	CHECK(!arb_turn(sim->arb, sim->tenant[0].id, 0)->charged, "and nothing is charged");
	free.gated = true;
	sim_share(sim, 0, &free);
	sim_tenant(sim, &share, &p, 1);
	check_after(sim, "a guaranteed neighbour arrives", 70, 30, 2);
	sim_gone(sim, 1);
	free.gated = false;
	sim_share(sim, 0, &free);
	sim_forget(sim);
	sim_run(sim, sim->now + SECOND);
	CHECK(sim_share_of(sim, 0, 0) > 99, "alone again it has the device: %.2f %%", sim_share_of(sim, 0, 0));
	CHECK(!sim->holders && !sim->disturbed, "turns beside another: %lu, beside its work: %lu",
	      (unsigned long)sim->holders, (unsigned long)sim->disturbed);
	sim_free(sim);
}

/* Programs that come and go beside one that stays. */
static void comings(void)
{
	const struct program p = saturating(MS), guest = rounds(MS, 3 * MS, MS);
	const struct arb_share share = fixed(400), other = burst(100, 1000, 100);
	struct sim *sim = sim_new(6, 1);

	sim_tenant(sim, &share, &p, 1);
	for (int i = 0; i < 2000; i++) {
		const int index = sim_tenant(sim, &other, &guest, 1);

		sim_run(sim, sim->now + draw_in(&sim->rng, 0, 20 * MS));
		if (draw(&sim->rng) % 4)
			sim_gone(sim, index);
		for (int j = 1; sim->tenants > 6 && j < sim->tenants; j++)
			if (sim->tenant[j].there)
				sim_gone(sim, j);
	}
	CHECK(sim->tenant[0].longest_wait < 400 * MS, "who stays waits %.1f ms at most",
	      (double)sim->tenant[0].longest_wait / 1e6);
	sim_free(sim);
}

int main(void)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	step(20 * US);
	step(MS);
	step(80 * MS);
	gates();
	comings();
	return 0;
}
