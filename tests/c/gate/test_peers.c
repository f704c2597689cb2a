/* Processes of one container in its turn: while the kernel of one runs, another that wants to launch waits until the first
 * has ended or says that it is leaving; one that is stopped in flight is not waited for for ever, a dead one hardly; beside a
 * kernel that is long without anybody having known it, no thousands are let through. */
#include "table.h"

enum { PLAYERS = 3 };
static struct shared {
	uint64_t ns, count, made;
	uint32_t first; /* slot of the first player */
	/* What that one said just behind the first of these launches: since when it is busy, who leaves. */
	uint64_t beside, leaves;
	bool over; /* the first of them */
} *shared; /* by player */
static unsigned self;
static uint32_t first; /* slot */

static void first_over(void *unused)
{
	(void)unused;
	TABLE_TELL(shared[self].over, true);
}

static void launch_all(CUfunction spin, CUstream stream, bool tells)
{
	struct shared *own = &shared[self];
	struct ptg_ledger *ledger = table_own->ledger;
	for (uint64_t i = 0; i < own->count; i++) {
		OK(table_spin(spin, stream, own->ns));
		if (i == 0) { /* in this order: where it is busy still, it did not leave before */
			own->beside = LOOK(ledger->turn[0][own->first].busy_ns);
			own->leaves = LOOK(ledger->device[0].peer_leaves);
		}
		if (i == 0 && tells)
			OK(cuLaunchHostFunc(stream, first_over, NULL));
		TABLE_TELL(own->made, i + 1);
	}
}

/* Commands: l: launch as often as is said, without synchronising; L: the same, and tell when the first is over;
 * s: synchronise. */
static void play(int in, int out)
{
	CUstream stream;
	start(0);
	CUfunction spin = table_kernel("spin_ns");
	OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	for (unsigned char command; (command = player_next(in)) != 0;) {
		if (command == 's') {
			player_answer(out, (uint64_t)cuStreamSynchronize(stream));
			continue;
		}
		player_answer(out, 0); /* before it has launched any */
		launch_all(spin, stream, command == 'L');
	}
}

static void launches(const struct player *p, unsigned number, uint64_t count, uint64_t ns, unsigned char command)
{
	shared[number] = (struct shared){.ns = ns, .count = count, .first = first};
	player_ask(&p[number], command);
}

static uint64_t made(unsigned number)
{
	return LOOK(shared[number].made);
}

/* Waits until the first process has its kernel in flight and returns since when. */
static uint64_t flies(struct table *t, const struct player *p)
{
	struct ptg_slot_turn *line = table_line(t, p->pid, 0);
	TABLE_UNTIL(made(0) == 1);
	return LOOK(line->busy_ns);
}

static void one_after_the_other(struct table *t, const struct player *p)
{
	launches(p, 0, 1, 100 * MS, 'l'); /* learned: how long they are */
	player_ask(&p[0], 's');
	for (int round = 0; round < 3; round++) {
		launches(p, 0, 1, 100 * MS, 'l');
		uint64_t since = flies(t, &p[0]);
		launches(p, 1, 1, MS, 'l');
		TABLE_UNTIL(made(1) == 1);
		CHECK(shared[1].beside != since || shared[1].leaves == since, "round %d: launched beside another",
		      round);
		CHECK(LOOK(t->ledger->device[0].peer_ns) != 0, "nobody said that it waits");
		player_ask(&p[0], 's');
		player_ask(&p[1], 's');
	}
}

/* Both wait for the turn, as far as the second can know, and the first has or has not waited for longer: then the second
 * says that it waits for it, or goes at once. The first one's line is written for it; it does nothing meanwhile. */
static void opens(struct table *t, const struct player *p, bool longer)
{
	struct ptg_slot_turn *line = table_line(t, p[0].pid, 0), *own = table_line(t, p[1].pid, 0);
	TABLE_UNTIL(LOOK(line->busy_ns) == 0 && LOOK(own->busy_ns) == 0);
	table_close(t);
	uint64_t idle = LOOK(own->idle_ns), said = LOOK(t->ledger->device[0].peer_ns);
	__atomic_store_n(&line->idle_ns, longer ? idle - 1 : idle + 1, __ATOMIC_SEQ_CST);
	__atomic_store_n(&line->want, 1, __ATOMIC_SEQ_CST);
	launches(p, 1, 1, MS, 'l');
	TABLE_UNTIL(LOOK(own->want) == 1);
	table_open(t);
	TABLE_UNTIL(made(1) == 1);
	CHECK((LOOK(t->ledger->device[0].peer_ns) != said) == longer, "who has waited %s: the second %s",
	      longer ? "longest goes first" : "less", longer ? "did not let it pass" : "let it pass");
	__atomic_store_n(&line->want, 0, __ATOMIC_SEQ_CST);
	player_ask(&p[1], 's');
}

/* The first one's line is written for it: since then it has work in flight, and is leaving; 0: it has none. */
static void works(struct table *t, struct ptg_slot_turn *line, uint64_t since)
{
	__atomic_store_n(&t->ledger->device[0].peer_leaves, since, __ATOMIC_SEQ_CST);
	__atomic_store_n(&line->busy_ns, since, __ATOMIC_SEQ_CST);
}

/* The arbiter hears of a container when the first of its processes begins and the last ends, and not of those between.
 * Long ago spares nobody a ring: this test may have stood still. */
enum beside { NOTHING, EARLIER, LATER };

static void rings(struct table *t, const struct player *p, enum beside beside)
{
	static const uint32_t expected[] = {[NOTHING] = 2, [EARLIER] = 0, [LATER] = 1};
	struct ptg_slot_turn *line = table_line(t, p[0].pid, 0), *own = table_line(t, p[1].pid, 0);
	TABLE_UNTIL(LOOK(line->busy_ns) == 0 && LOOK(own->busy_ns) == 0);
	table_watch();
	uint64_t now = table_now(), later = now + 1000000 * MS;
	uint32_t bell = LOOK(t->ledger->turn_bell);
	works(t, line, beside == NOTHING ? 0 : beside == EARLIER ? now : later);
	launches(p, 1, 1, MS, 'l');
	player_ask(&p[1], 's'); /* it is over for the gate too, and behind that the answer comes */
	CHECK(LOOK(own->busy_ns) == 0, "still busy after the answer");
	bell = LOOK(t->ledger->turn_bell) - bell - 1; /* once by the player itself, which has launched */
	CHECK(bell == expected[beside] || (beside == EARLIER && table_now() - now >= 50 * MS),
	      "work %d: the bell rang %u times", (int)beside, bell);
	works(t, line, 0);
	table_unwatch(1);
}

/* And that it waits, from the first that does: the others ring where nothing has come of it for long. */
static void asks(struct table *t, const struct player *p, bool beside)
{
	struct ptg_slot_turn *line = table_line(t, p[0].pid, 0), *own = table_line(t, p[1].pid, 0);
	table_close(t);
	uint64_t now = table_now();
	uint32_t bell = LOOK(t->ledger->turn_bell);
	__atomic_store_n(&line->want_ns, now, __ATOMIC_SEQ_CST);
	__atomic_store_n(&line->want, beside, __ATOMIC_SEQ_CST);
	launches(p, 1, 1, MS, 'l');
	while (LOOK(own->want) == 0)
		sched_yield(); /* it tells nobody */
	table_open(t);
	player_ask(&p[1], 's');
	bell = LOOK(t->ledger->turn_bell) - bell - 1; /* once by the player itself, which has launched */
	CHECK(bell == !beside || table_now() - now >= 100 * MS, "%s another that waits the bell rang %u times",
	      beside ? "beside" : "without", bell);
	__atomic_store_n(&line->want, 0, __ATOMIC_SEQ_CST);

	/* Where nobody has rung for both, it does. */
	table_close(t);
	__atomic_store_n(&line->want_ns, table_now(), __ATOMIC_SEQ_CST);
	__atomic_store_n(&line->want, 1, __ATOMIC_SEQ_CST);
	bell = LOOK(t->ledger->turn_bell);
	launches(p, 1, 1, MS, 'l');
	TABLE_UNTIL(LOOK(t->ledger->turn_bell) != bell);
	CHECK(LOOK(own->want) == 1, "it does not wait");
	__atomic_store_n(&line->want, 0, __ATOMIC_SEQ_CST);
	table_open(t);
	player_ask(&p[1], 's');
}

/* Who has had its part lets the others go first, and they go on together without an end. */
static void all_get_on(const struct player *p)
{
	for (unsigned i = 0; i < PLAYERS; i++)
		launches(p, i, 60, MS, 'l');
	for (unsigned i = 0; i < PLAYERS; i++)
		player_ask(&p[i], 's');
}

/* The first stops in flight, for ever as far as the others can know; they do not wait for ever. */
static void stopped(struct table *t, const struct player *p)
{
	launches(p, 0, 1, 300 * MS, 'l');
	flies(t, &p[0]);
	CHECK(kill(p[0].pid, SIGSTOP) == 0, "kill");
	launches(p, 1, 20, 2 * MS, 'l');
	player_ask(&p[1], 's');
	CHECK(made(1) == 20, "made %llu", (unsigned long long)made(1));
	CHECK(kill(p[0].pid, SIGCONT) == 0, "kill");
	player_ask(&p[0], 's');
}

/* The first is killed in flight: who waits for it finds out, and gives its slot back instead of waiting on. */
static void killed(struct table *t, const struct player *p)
{
	launches(p, 0, 1, 300 * MS, 'l');
	flies(t, &p[0]);
	CHECK(kill(p[0].pid, SIGKILL) == 0, "kill");
	table_await_death(t, first);
	CHECK(LOOK(t->ledger->turn[0][first].busy_ns) != 0, "it was not in flight");
	launches(p, 1, 20, 2 * MS, 'l');
	player_ask(&p[1], 's');
	CHECK(LOOK(t->ledger->slot[first].state) == PTG_SLOT_FREE, "the dead still have their slot");
}

/* Work that does not end in time may be waiting for another process: the others need not wait for its end. */
static void stands(struct table *t, const struct player *p)
{
	launches(p, 0, 1, 3000 * MS, 'l');
	uint64_t since = flies(t, &p[0]);
	launches(p, 1, 1, MS, 'l');
	TABLE_UNTIL(made(1) == 1);
	TABLE_UNTIL(LOOK(t->ledger->device[0].peer_leaves) == since);
	player_ask(&p[0], 's');
	player_ask(&p[1], 's');
}

static void long_unknown(const struct player *p)
{
	launches(p, 2, 2000, 1000 * MS, 'L');
	TABLE_UNTIL(LOOK(shared[2].over));
	CHECK(made(2) <= 200, "%llu launches of a second each", (unsigned long long)made(2));
}

int main(void)
{
	struct table t;
	struct player p[PLAYERS];
	shared = table_shared(PLAYERS * sizeof(*shared));
	table_set(&t, "table", 1);
	for (self = 0; self < PLAYERS; self++)
		p[self] = player_start(play);
	table_open(&t);
	for (unsigned i = 0; i < PLAYERS; i++) {
		launches(p, i, 1, MS, 'l');
		player_ask(&p[i], 's');
	}
	first = table_slot(&t, p[0].pid);
	for (int round = 0; round < 6; round++)
		opens(&t, p, round % 2 == 0);
	for (int round = 0; round < 6; round++) {
		rings(&t, p, (enum beside)(round % 3));
		asks(&t, p, round % 2 == 0);
	}
	one_after_the_other(&t, p);
	all_get_on(p);
	stands(&t, p);
	stopped(&t, p);
	killed(&t, p);
	player_end(&p[1], false);
	player_end(&p[0], true);
	long_unknown(p);
	player_end(&p[2], true);
	table_end(&t);
	return 0;
}
