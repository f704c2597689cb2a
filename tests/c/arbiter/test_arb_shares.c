/* What each gets against what it asked for: the matrix of shares, kernels and loads, in simulated time.
 *
 * asked = the least of the share and of what the program keeps busy alone. Each row: run, forget the first seconds, then
 * compare the device's own count of what it spent on each. Also: the sum (nothing is lost), Jain's index, two undisturbed
 * turns at once (never). Argument: seconds of simulated time per row.
 */
#include "sim.h"

#include <math.h>
#include <stdlib.h>

struct row {
	const char *name;
	int tenants;
	struct arb_share share[8];
	struct program program[8];
	double asked[8];
	double within;    /* points */
	double aggregate; /* at least, per cent of the device's time; 0: not asked */
};

static uint64_t seconds = 20;

static struct sim *run(const struct row *row, bool native)
{
	struct sim *sim = sim_new(7, 1);

	sim->native = native;
	for (int i = 0; i < row->tenants; i++)
		sim_tenant(sim, &row->share[i], &row->program[i], 1);
	sim_run(sim, sim->now + 5 * SECOND);
	sim_forget(sim);
	sim_run(sim, sim->now + seconds * SECOND);
	return sim;
}

static void check_row(const struct row *row)
{
	struct sim *sim = run(row, false);
	double got[8], ratio[8], sum = 0;

	printf("%-40s", row->name);
	for (int i = 0; i < row->tenants; i++) {
		got[i] = sim_share_of(sim, i, 0);
		ratio[i] = got[i] / row->asked[i];
		sum += got[i];
		printf(" %5.1f", got[i]);
	}
	printf("   of");
	for (int i = 0; i < row->tenants; i++)
		printf(" %g", row->asked[i]);
	printf("\n");
	for (int i = 0; i < row->tenants; i++)
		CHECK(fabs(got[i] - row->asked[i]) <= row->within,
		      "%s: tenant %d got %.2f %%, asked %.2f, within %.1f points", row->name, i, got[i], row->asked[i],
		      row->within);
	CHECK(sum >= row->aggregate, "%s: the device was busy %.2f %% of the time, at least %.2f", row->name, sum,
	      row->aggregate);
	CHECK(sim_jain(ratio, row->tenants) >= 0.99, "%s: Jain's index %.4f", row->name, sim_jain(ratio, row->tenants));
	CHECK(!sim->holders && !sim->disturbed, "%s: %lu turns beside another, %lu beside another's work", row->name,
	      (unsigned long)sim->holders, (unsigned long)sim->disturbed);
	CHECK(!sim->liars, "%s: honest tenants were taken for liars %lu times", row->name, (unsigned long)sim->liars);
	sim_free(sim);
}

/* The shares of the matrix, all with the same program. */
static void check_matrix(void)
{
	static const uint32_t cores[][8] = {{100, 900},
	                                    {300, 700},
	                                    {500, 500},
	                                    {250, 250, 250, 250},
	                                    {125, 125, 125, 125, 125, 125, 125, 125},
	                                    {100},
	                                    {300},
	                                    {500},
	                                    {800}};
	const struct {
		const char *name;
		struct program program;
		double alone; /* per cent that it keeps busy alone */
	} loads[] = {{"20 us", saturating(20 * US), 100},
	             {"1 ms", saturating(MS), 100},
	             {"80 ms", saturating(80 * MS), 100},
	             {"1 ms and 1 ms pause", rounds(MS, MS, MS), 49.2}};

	for (unsigned l = 0; l < sizeof(loads) / sizeof(*loads); l++) {
		for (unsigned c = 0; c < sizeof(cores) / sizeof(*cores); c++) {
			struct row row = {.within = 2};
			char name[64];
			int length = 0;

			for (int i = 0; i < 8 && cores[c][i]; i++) {
				row.share[i] = fixed(cores[c][i]);
				row.program[i] = loads[l].program;
				row.asked[i] = fmin(cores[c][i] / 10.0, loads[l].alone);
				row.aggregate += 0.97 * row.asked[i];
				row.tenants++;
				length += snprintf(name + length, sizeof(name) - (size_t)length, "%s%g", i ? "/" : "",
				                   cores[c][i] / 10.0);
			}
			snprintf(name + length, sizeof(name) - (size_t)length, " %s", loads[l].name);
			row.name = name;
			check_row(&row);
		}
	}
}

static void check_classes(void)
{
	const struct program busy = saturating(MS), tiny = saturating(20 * US), long_one = saturating(80 * MS);
	const struct row rows[] = {
	        {"fixed 30, one without cores", 2, {fixed(300), burst(0, 1000, 100)}, {busy, busy}, {30, 70}, 2, 97},
	        {"fixed 30, one without cores: 80 ms",
		 2,
		 {fixed(300), burst(0, 1000, 100)},
		 {busy, long_one},
		 {30, 70},
		 2,
		 97},
	        {"burst 30, 50", 2, {burst(300, 1000, 100), burst(500, 1000, 100)}, {busy, busy}, {40, 60}, 3, 97},
	        {"burst 30, 50, weights 1 to 3",
		 2,
		 {burst(300, 1000, 100), burst(500, 1000, 300)},
		 {busy, busy},
		 {35, 65},
		 3,
		 97},
	        {"burst 30 up to 60, alone", 1, {burst(300, 600, 100)}, {busy}, {60}, 2, 58},
	        {"burst 30, alone", 1, {burst(300, 1000, 100)}, {busy}, {100}, 1, 97},
	        {"fixed 50, best-effort", 2, {fixed(500), best_effort()}, {busy, busy}, {50, 50}, 2, 97},
	        {"fixed 50, two best-effort",
		 3,
		 {fixed(500), best_effort(), best_effort()},
		 {busy, busy, tiny},
		 {50, 25, 25},
		 2,
		 97},
	        {"burst 30 of P0, burst 30 of P2",
		 2,
		 {with_priority(burst(300, 1000, 100), 0), with_priority(burst(300, 1000, 100), 2)},
		 {busy, busy},
		 {70, 30},
		 2,
		 97},
	        {"fixed 20: bursts of 50 ms", 1, {fixed(200)}, {rounds(MS, 50 * MS, 50 * MS)}, {20}, 2, 0},
	        {"fixed 30, fixed 70: 20 ms and 20 ms pause",
		 2,
		 {fixed(300), fixed(700)},
		 {busy, rounds(MS, 20 * MS, 20 * MS)},
		 {30, 49.7},
		 2,
		 77},
	        {"fixed 30: 20 us, fixed 70: 20 ms and 20 ms pause",
		 2,
		 {fixed(300), fixed(700)},
		 {tiny, rounds(MS, 20 * MS, 20 * MS)},
		 {30, 49.7},
		 2,
		 77},
	        {"best-effort, fixed 50: 20 ms and 20 ms pause",
		 2,
		 {best_effort(), fixed(500)},
		 {busy, rounds(MS, 20 * MS, 20 * MS)},
		 {50, 49.7},
		 2,
		 97},
	        {"fixed 50: 4 ms and 1 ms pause, burst 50",
		 2,
		 {fixed(500), burst(500, 1000, 100)},
		 {rounds(4 * MS, 4 * MS, MS), busy},
		 {50, 50},
		 5,
		 94},
	};

	for (unsigned i = 0; i < sizeof(rows) / sizeof(*rows); i++)
		check_row(&rows[i]);
}

/* Two programs that leave each other room get what they get without turns. */
static void check_pairs(void)
{
	for (int class = 0; class < 2; class++) {
		const struct arb_share share = class ? burst(500, 1000, 100) : fixed(500);
		const struct row row = {class ? "burst" : "fixed",
		                        2,
		                        {share, share},
		                        {rounds(MS, MS, MS), rounds(MS, MS, MS)},
		                        {50, 50},
		                        2,
		                        90};
		struct sim *sim = run(&row, false), *native = run(&row, true);

		for (int i = 0; i < 2; i++) {
			const double got = sim_share_of(sim, i, 0), free = sim_share_of(native, i, 0);

			printf("pair of %s 50, 1 ms and 1 ms pause        %5.1f   of %5.1f without turns\n", row.name,
			       got, free);
			CHECK(got >= free - 2 && got >= 44, "a pair of pauses: %.2f %%, without turns %.2f", got, free);
		}
		sim_free(sim);
		sim_free(native);
	}
}

static int by_size(const void *a, const void *b)
{
	const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

/* P0 comes and goes beside a P2 that launches without end; with a guarantee, or with no more right than that one has. */
static void check_priority(const char *class, struct arb_share share)
{
	static const uint64_t pauses[] = {5 * MS, 50 * MS, 300 * MS};

	for (unsigned i = 0; i < sizeof(pauses) / sizeof(*pauses); i++) {
		const struct row row = {"P0",
		                        2,
		                        {with_priority(share, 0), with_priority(best_effort(), 2)},
		                        {rounds(MS, 2 * MS, pauses[i]), saturating(MS)},
		                        {0, 0},
		                        0,
		                        0};
		struct sim *sim = run(&row, false);
		struct tenant *t = &sim->tenant[0];
		double p95;

		qsort(t->waits, t->wait_count, sizeof(*t->waits), by_size);
		p95 = t->wait_count ? (double)t->waits[t->wait_count * 95 / 100] / 1e6 : 0;
		printf("P0, %s, every %3lu ms: waited %.2f ms (P95 of %u)\n", class, (unsigned long)(pauses[i] / MS),
		       p95, t->wait_count);
		CHECK(p95 <= 3, "a P0 waits %.2f ms (P95), at most a launch of 1 ms and 2 ms", p95);
		sim_free(sim);
	}
}

/* How often the arbiter has to look at eight that work for 1 ms and pause for 1 ms: far less often than they begin and end,
 * which is nearly 2,000 times a second, also where buckets that run empty close one or the other all the time. */
static void check_effort(uint32_t cores, uint64_t most)
{
	const struct arb_share share = fixed(cores);
	struct row row = {.name = "eight that pause", .tenants = 8};
	struct sim *sim;
	uint64_t decisions;

	for (int i = 0; i < 8; i++) {
		row.share[i] = share;
		row.program[i] = rounds(MS, MS, MS);
	}
	sim = run(&row, false);
	decisions = sim->decisions / seconds;
	printf("eight of %g, 1 ms and 1 ms pause: %lu decisions a second\n", cores / 10.0, (unsigned long)decisions);
	CHECK(decisions <= most, "eight of %g that pause: %lu decisions a second, at most %lu", cores / 10.0,
	      (unsigned long)decisions, (unsigned long)most);
	sim_free(sim);
}

int main(int argc, char **argv)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	if (argc > 1)
		seconds = strtoul(argv[1], NULL, 10);
	check_matrix();
	check_classes();
	check_pairs();
	check_effort(125, 500);
	check_effort(120, 900);
	check_effort(100, 900);
	check_priority("burst", burst(500, 1000, 100));
	check_priority("best-effort", best_effort());
	return 0;
}
