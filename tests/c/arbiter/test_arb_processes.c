/* A tenant of several processes, whose claims are of all of them together: the work of one goes on while another's ends.
 * That is no pause, and no end of the period in flight. Claims are given by hand, without a simulated machine. */
#include "arbiter.h"
#include "check.h"
#include "partage/policy.h"

#define MS UINT64_C(1000000)

static const struct arb_share burst_500 = {500, 1000, 100, PTG_CLASS_BURST, 1, true};
static const struct arb_share best_effort = {0, 1000, 100, PTG_CLASS_BEST_EFFORT, 1, true};

enum { FIRST, SECOND, TENANTS };
struct world {
	struct arb *arb;
	uint64_t now;
	int tenant[TENANTS]; /* on the one device */
	struct arb_claim claim[TENANTS];
};

static struct world begin(const struct arb_share *share)
{
	struct world w = {.arb = arb_new(), .now = 1000 * MS};
	CHECK(w.arb && arb_device(w.arb, "GPU-0") == 0, "a device");
	for (int i = 0; i < TENANTS; i++) {
		w.tenant[i] = arb_tenant(w.arb);
		arb_share(w.arb, w.now, w.tenant[i], 0, share);
	}
	return w;
}

/* What both claim as it is now, and a decision. */
static void decide(struct world *w)
{
	for (int i = 0; i < TENANTS; i++)
		arb_claim(w->arb, w->now, w->tenant[i], 0, &w->claim[i]);
	arb_decide(w->arb, w->now);
}

static const struct arb_turn *turn(const struct world *w, int who)
{
	return arb_turn(w->arb, w->tenant[who], 0);
}

/* Asks where its turn is not open. */
static void want(struct world *w, int who)
{
	w->claim[who].wants = !turn(w, who)->open;
	w->claim[who].want_since = w->claim[who].wants ? w->now : 0;
	decide(w);
}

static void work_since(struct world *w, int who, uint64_t since)
{
	w->claim[who].wants = false;
	w->claim[who].want_since = 0;
	w->claim[who].busy = since != 0;
	w->claim[who].busy_since = since;
}

/* A process of it ends what it has in flight. */
static void ends(struct world *w, int who, uint64_t at)
{
	w->claim[who].flight += at - w->claim[who].busy_since;
	w->claim[who].idle_since = at;
}

/* The first one's other process began after the second one's work, and goes on when its first process ends: all of it is
 * one period, that began before the second's, so the first goes on paying. */
static void one_period(void)
{
	struct world w = begin(&burst_500);
	want(&w, FIRST);
	work_since(&w, FIRST, w.now);
	want(&w, SECOND);
	for (; !turn(&w, SECOND)->open; decide(&w)) /* beyond the guard, beside the first */
		w.now += MS;
	work_since(&w, SECOND, w.now);
	w.now += MS / 2;
	decide(&w);
	const uint64_t other = w.now; /* the first one's other process begins: its claim stays the same */
	const uint64_t before = turn(&w, SECOND)->charged;
	w.now += MS;
	ends(&w, FIRST, w.now - MS / 10);
	work_since(&w, FIRST, other);
	decide(&w);
	const uint64_t paid = turn(&w, SECOND)->charged - before;
	CHECK(paid >= MS / 5 && paid <= MS * 3 / 10,
	      "who came second paid %.2f ms: half of what came later than 1 ms behind its first", (double)paid / 1e6);
	arb_free(w.arb);
}

/* Works for `pieces` ms: each of its processes ends something while another goes on, but for the last one; then pauses. */
static void work(struct world *w, int who, unsigned pieces)
{
	want(w, who);
	CHECK(turn(w, who)->open, "who wants a device that stands idle has it");
	work_since(w, who, w->now);
	decide(w);
	for (unsigned i = 1; i <= pieces; i++) {
		w->now += MS;
		ends(w, who, w->now);
		work_since(w, who, i < pieces ? w->now - MS / 10 : 0);
		decide(w);
	}
	w->now += MS;
	decide(w);
}

/* Whether the second may launch while the first is at work: both do their work in short pieces with pauses between, as far
 * as the arbiter knows. */
static bool side_by_side(unsigned pieces)
{
	struct world w = begin(&best_effort);
	for (int i = 0; i < 20; i++)
		work(&w, FIRST, pieces);
	for (int i = 0; i < 20; i++)
		work(&w, SECOND, 1);
	want(&w, FIRST);
	work_since(&w, FIRST, w.now);
	want(&w, SECOND);
	w.now += MS / 10;
	decide(&w);
	CHECK(turn(&w, FIRST)->open, "the first is at work and has no turn");
	const bool both = turn(&w, SECOND)->open;
	arb_free(w.arb);
	return both;
}

static void no_pause(void)
{
	CHECK(side_by_side(1), "two of 1 ms of work and 1 ms of pause do not get on beside each other");
	CHECK(!side_by_side(12), "12 ms of work by several processes was taken for pieces with pauses between");
}

int main(void)
{
	one_period();
	no_pause();
	return 0;
}
