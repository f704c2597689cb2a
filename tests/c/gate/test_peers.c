/* Processes of one container in its turn: while the kernel of one runs, another that wants to launch waits until the first
 * has ended or says that it is leaving; one that is stopped or killed in flight is not waited for for ever; and beside a
 * kernel that is long without anybody having known it, no thousands are let through. */
#include "table.h"

enum { PLAYERS = 3 };
static struct shared {
	uint64_t ns, count, made;
} *shared; /* by player */
static unsigned self;

/* Commands: l: launch as often as is said, without synchronising; s: synchronise. */
static void play(int in, int out)
{
	CUstream stream;
	start(0);
	CUfunction spin = table_kernel("spin_ns");
	OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	for (unsigned char command; (command = player_next(in)) != 0;) {
		if (command == 'l')
			player_answer(out, 0); /* before it has launched any */
		for (uint64_t i = 0; command == 'l' && i < shared[self].count; i++) {
			OK(table_spin(spin, stream, shared[self].ns));
			__atomic_store_n(&shared[self].made, i + 1, __ATOMIC_SEQ_CST);
		}
		if (command == 's')
			player_answer(out, (uint64_t)cuStreamSynchronize(stream));
	}
}

static void launches(const struct player *p, unsigned number, uint64_t count, uint64_t ns)
{
	shared[number] = (struct shared){.ns = ns, .count = count};
	player_ask(&p[number], 'l');
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
	struct ptg_slot_turn *line = table_line(t, p[0].pid, 0);
	struct ptg_ledger_device *common = &t->ledger->device[0];
	launches(p, 0, 1, 100 * MS); /* learned: how long they are */
	player_ask(&p[0], 's');
	for (int round = 0; round < 3; round++) {
		launches(p, 0, 1, 100 * MS);
		uint64_t since = flies(t, &p[0]);
		launches(p, 1, 1, MS);
		while (LOOK(line->busy_ns) == since) {
			bool launched = made(1) != 0; /* in this order: it was before we look on */
			uint64_t busy = LOOK(line->busy_ns), leaves = LOOK(common->peer_leaves);
			CHECK(!launched || busy != since || leaves == since, "round %d: launched beside another",
			      round);
			table_breathe();
		}
		CHECK(LOOK(common->peer_ns) != 0, "nobody said that it waits");
		TABLE_UNTIL(made(1) == 1);
		player_ask(&p[0], 's');
		player_ask(&p[1], 's');
	}
}

/* Who has had its part lets the others go first, and they go on together without an end. */
static void all_get_on(const struct player *p)
{
	for (unsigned i = 0; i < PLAYERS; i++)
		launches(p, i, 60, MS);
	for (unsigned i = 0; i < PLAYERS; i++)
		player_ask(&p[i], 's');
}

/* The first stops in flight, for ever as far as the others can know; they do not wait for ever. */
static void stopped(struct table *t, const struct player *p, int signal)
{
	launches(p, 0, 1, 300 * MS);
	flies(t, &p[0]);
	CHECK(kill(p[0].pid, signal) == 0, "kill");
	launches(p, 1, 20, 2 * MS);
	player_ask(&p[1], 's');
	CHECK(made(1) == 20, "made %llu", (unsigned long long)made(1));
	if (signal != SIGSTOP)
		return;
	CHECK(kill(p[0].pid, SIGCONT) == 0, "kill");
	player_ask(&p[0], 's');
}

/* Work that does not end in time may be waiting for another process: the others need not wait for its end. */
static void stands(struct table *t, const struct player *p)
{
	launches(p, 0, 1, 3000 * MS);
	uint64_t since = flies(t, &p[0]);
	launches(p, 1, 1, MS);
	TABLE_UNTIL(LOOK(t->ledger->device[0].peer_leaves) == since);
	TABLE_UNTIL(made(1) == 1);
	player_ask(&p[0], 's');
	player_ask(&p[1], 's');
}

static void long_unknown(const struct player *p)
{
	uint64_t engine = table_engine(0);
	launches(p, 2, 2000, 1000 * MS);
	TABLE_UNTIL(table_engine(0) >= engine + 1000 * MS);
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
		launches(p, i, 1, MS);
		player_ask(&p[i], 's');
	}
	one_after_the_other(&t, p);
	all_get_on(p);
	stands(&t, p);
	stopped(&t, p, SIGSTOP);
	stopped(&t, p, SIGKILL);
	player_end(&p[1], false);
	player_end(&p[0], true);
	long_unknown(p);
	player_end(&p[2], true);
	table_end(&t);
	return 0;
}
