/* Tenants that do not play by the rules: what they cost their neighbours, and what they get themselves.
 *
 * Never drained, drained with work queued, launching without a turn, claims of garbage, stopped in a turn, killed in a
 * turn. Neighbours are `fixed` and launch without end. Argument: how many machines with a tenant of garbage.
 */
#include "sim.h"

#include <stdlib.h>

static struct sim *machine(const struct program *odd, uint64_t seed)
{
	const struct arb_share share = fixed(300), other = fixed(400);
	const struct program honest = saturating(MS);
	struct sim *sim = sim_new(seed, 1);

	sim_tenant(sim, &share, &honest, 1);
	sim_tenant(sim, &other, &honest, 1);
	sim_tenant(sim, &share, odd, 1);
	return sim;
}

static struct program lying(enum lie lie)
{
	struct program p = saturating(MS);

	p.lie = lie;
	p.queued = 100 * MS;
	return p;
}

static void check_neighbours(const struct sim *sim, const char *what, double loss)
{
	const double first = sim_share_of(sim, 0, 0), second = sim_share_of(sim, 1, 0);

	printf("%-36s neighbours %.1f of 30 and %.1f of 40, it %.1f of 30\n", what, first, second,
	       sim_share_of(sim, 2, 0));
	CHECK(first >= 30 - loss && second >= 40 - loss, "%s: neighbours got %.2f of 30 and %.2f of 40", what, first,
	      second);
}

/* Let it run for so long, and look what the neighbours got in that time. */
static void watch_neighbours(struct sim *sim, uint64_t ns, const char *when, double points)
{
	sim_forget(sim);
	sim_run(sim, sim->now + ns);
	check_neighbours(sim, when, points);
}

static void until_it_works(struct sim *sim)
{
	while (!sim->tenant[2].lane[0].busy)
		sim_run(sim, sim->now + MS);
}

static void never_drained(void)
{
	const struct program p = lying(NEVER_DRAINED);
	struct sim *sim = machine(&p, 1);

	until_it_works(sim);
	watch_neighbours(sim, 2 * SECOND, "never drained, the next 2 s", 5);
	CHECK(sim->undrained == 1, "it is reported once, not %lu times", (unsigned long)sim->undrained);
	CHECK(sim_share_of(sim, 2, 0) < 2, "it got %.2f %% without being drained", sim_share_of(sim, 2, 0));
	sim->tenant[2].program.lie = HONEST; /* it says so at last, and pays its debt */
	sim_run(sim, sim->now + 4 * SECOND);
	watch_neighbours(sim, 5 * SECOND, "drained at last", 3);
	CHECK(sim_share_of(sim, 2, 0) > 27, "once drained it gets its share again: %.2f", sim_share_of(sim, 2, 0));
	sim_free(sim);
}

static void says_drained(void)
{
	const struct program p = lying(SAYS_DRAINED);
	struct sim *sim = machine(&p, 2);
	double lost;

	sim->audit_period = 500 * MS;
	sim_run(sim, sim->now + 5 * SECOND);
	sim_forget(sim);
	sim_run(sim, sim->now + 20 * SECOND);
	lost = 70 - sim_share_of(sim, 0, 0) - sim_share_of(sim, 1, 0);
	check_neighbours(sim, "says drained with 100 ms queued", 15);
	CHECK(sim->liars > 5, "it is reported: %lu times", (unsigned long)sim->liars);
	CHECK(lost <= sim_share_of(sim, 2, 0) + 2, "the others lost %.2f %%, more than the %.2f that it used", lost,
	      sim_share_of(sim, 2, 0));
	CHECK(sim_share_of(sim, 2, 0) <= 35, "it repays: got %.2f of 30", sim_share_of(sim, 2, 0));
	sim_free(sim);
}

static void launches_anyway(void)
{
	const struct program p = lying(LAUNCHES_ANYWAY);
	struct sim *sim = machine(&p, 3);

	sim->audit_period = 500 * MS;
	sim_run(sim, sim->now + 5 * SECOND);
	CHECK(sim->liars >= 3, "who launches without turns is reported: %lu times", (unsigned long)sim->liars);
	CHECK(arb_turn(sim->arb, sim->tenant[2].id, 0)->charged > SECOND, "and charged: %.1f ms",
	      (double)arb_turn(sim->arb, sim->tenant[2].id, 0)->charged / 1e6);
	sim_free(sim);
}

/* An honest tenant begins to lie; the least that a neighbour gets of its share from then on, in points below it. */
static double loss(enum lie lie, uint64_t seed, uint64_t span, double *its)
{
	const struct program p = saturating(MS);
	struct sim *sim = machine(&p, seed);
	double first, second;

	sim->audit_period = lie == PLAUSIBLE ? SECOND : 0; /* what cannot be needs no witness */
	sim->audit_at = sim->now + SECOND;
	sim_run(sim, sim->now + SECOND + draw_in(&sim->rng, 0, 100 * MS));
	sim->tenant[2].program.lie = lie;
	sim_forget(sim);
	sim_run(sim, sim->now + span);
	first = 30 - sim_share_of(sim, 0, 0);
	second = 40 - sim_share_of(sim, 1, 0);
	*its = sim_share_of(sim, 2, 0);
	sim_free(sim);
	return first > second ? first : second;
}

/* Whoever claims what cannot be is charged for all of its turn, and nobody waits long for it; whoever claims what can be,
 * and launches nothing by its own words, is found by the audit. */
static void garbage(enum lie lie, const char *what, uint64_t count, double most, double most_later)
{
	double worst = 0, worst_later = 0, its = 0, it;

	for (uint64_t seed = 1; seed <= count; seed++) {
		const double at_first = loss(lie, seed, 2 * SECOND, &it), later = loss(lie, seed, 10 * SECOND, &it);

		worst = at_first > worst ? at_first : worst;
		worst_later = later > worst_later ? later : worst_later;
		its = it > its ? it : its;
	}
	printf("%s: a neighbour lost at most %.2f points in the next 2 s, %.2f in 10 s; it got at most %.1f of 30\n",
	       what, worst, worst_later, its);
	CHECK(worst <= most && worst_later <= most_later, "%s: %.2f points in 2 s, %.2f in 10 s", what, worst,
	      worst_later);
	CHECK(its <= 35, "%s: it got %.1f of 30", what, its);
}

static void stopped(void)
{
	const struct program p = saturating(MS);
	struct sim *sim = machine(&p, 4);

	sim_run(sim, sim->now + 3 * SECOND);
	until_it_works(sim);
	sim->tenant[2].stopped_until = sim->now + 2 * SECOND;
	watch_neighbours(sim, 2 * SECOND, "stopped in its turn, the next 2 s", 5);
	sim_run(sim, sim->now + 3 * SECOND);
	watch_neighbours(sim, 5 * SECOND, "goes on", 3);
	CHECK(sim_share_of(sim, 2, 0) > 27, "who goes on has its share again: %.2f", sim_share_of(sim, 2, 0));
	sim_free(sim);
}

static void killed(void)
{
	const struct program p = saturating(MS);

	for (uint64_t seed = 1; seed <= 50; seed++) {
		struct sim *sim = machine(&p, seed);
		uint64_t before, at;

		sim_run(sim, sim->now + 200 * MS + draw_in(&sim->rng, 0, 100 * MS));
		while (!sim->tenant[2].lane[0].busy)
			sim_run(sim, sim->now + MS / 4);
		sim_gone(sim, 2);
		before = sim->tenant[0].lane[0].got + sim->tenant[1].lane[0].got;
		for (at = sim->now; sim->tenant[0].lane[0].got + sim->tenant[1].lane[0].got == before;)
			sim_run(sim, sim->now + MS / 4);
		CHECK(sim->now - at <= 100 * MS, "seed %lu: %.1f ms from a kill to the next turn", (unsigned long)seed,
		      (double)(sim->now - at) / 1e6);
		sim_free(sim);
	}
}

int main(int argc, char **argv)
{
	const uint64_t count = argc > 1 ? strtoul(argv[1], NULL, 10) : 20;

	setvbuf(stdout, NULL, _IOLBF, 0);
	never_drained();
	says_drained();
	launches_anyway();
	garbage(GARBAGE, "garbage", count, 5, 3);
	garbage(PLAUSIBLE, "lies that can be true", count, 15, 10);
	stopped();
	killed();
	return 0;
}
