/* Programs whose kernels wait for each other on two devices, beside a neighbour on each: never a dead-lock, and most of the
 * time that they are charged for is of use to them.
 *
 * Drawn: kernel, one thread or one a device, the neighbours, latencies, sometimes a second such program. Arguments: how many
 * machines, the first seed.
 */
#include "sim.h"

#include <stdlib.h>

static const uint64_t kernels[] = {200 * US, MS, 5 * MS};

static uint64_t longest_stall(struct sim *sim, int programs, uint64_t span)
{
	uint64_t done[2] = {0, 0}, since[2] = {sim->now, sim->now}, longest = 0;

	for (const uint64_t end = sim->now + span; sim->now < end;) {
		sim_run(sim, sim->now + 5 * MS);
		for (int i = 0; i < programs; i++) {
			if (sim->tenant[i].lane[0].done != done[i])
				since[i] = sim->now;
			done[i] = sim->tenant[i].lane[0].done;
			if (sim->now - since[i] > longest)
				longest = sim->now - since[i];
		}
	}
	return longest;
}

static void check_machine(uint64_t seed, double *useful, double *used)
{
	struct rng rng = {seed};
	struct sim *sim = sim_new(draw(&rng), 2);
	const int programs = draw(&rng) % 4 ? 1 : 2;
	uint64_t longest, done[2] = {0, 0};

	sim->audit_period = 0;
	for (int i = 0; i < programs; i++) {
		struct program p = saturating(kernels[draw(&rng) % 3]);
		const struct arb_share share = fixed((uint32_t)draw_in(&rng, 250, 400));

		p.collective = true;
		p.one_thread = draw(&rng) & 1;
		sim_tenant(sim, &share, &p, 3);
	}
	for (int d = 0; d < 2; d++) {
		const struct program p = draw(&rng) % 3 ? saturating(MS) : rounds(MS, 3 * MS, 2 * MS);
		const struct arb_share share = draw(&rng) & 1 ? fixed(200) : burst(200, 1000, 100);

		sim_tenant(sim, &share, &p, 1u << d);
	}
	sim_run(sim, sim->now + 500 * MS);
	sim_forget(sim);
	for (int i = 0; i < programs; i++)
		done[i] = sim->tenant[i].lane[0].done;
	longest = longest_stall(sim, programs, 2 * SECOND);
	CHECK(longest <= 1500 * MS, "seed %lu: no kernel ended for %.1f ms", (unsigned long)seed,
	      (double)longest / 1e6);
	for (int i = 0; i < programs; i++) {
		const struct tenant *t = &sim->tenant[i];

		*useful += (double)((t->lane[0].done - done[i]) * t->program.kernel);
		*used += (double)(t->lane[0].got - t->lane[0].forgotten);
	}
	sim_free(sim);
}

int main(int argc, char **argv)
{
	const uint64_t count = argc > 1 ? strtoul(argv[1], NULL, 10) : 100;
	const uint64_t first = argc > 2 ? strtoul(argv[2], NULL, 10) : 1;
	double useful = 0, used = 0;

	printf("%lu machines from seed %lu\n", (unsigned long)count, (unsigned long)first);
	for (uint64_t seed = first; seed < first + count; seed++)
		check_machine(seed, &useful, &used);
	printf("%.1f %% of what they used they did not spend waiting for each other\n", 100 * useful / used);
	CHECK(useful >= 0.8 * used, "%.1f %% of the time that they used was of use", 100 * useful / used);
	return 0;
}
