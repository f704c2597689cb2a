/* What a turn means while work is in flight: a closed turn stops the next launch and not the work before it, which the
 * process says is in flight until it is over; how much may be in flight is bounded; nobody waits for synchronisation to be
 * told that it is over; a process that sleeps on its turn goes on when the gate is opened for good. */
#include "table.h"

static CUfunction spin;
static CUstream stream;
static struct shared {
	uint64_t ns; /* of one launch */
	uint64_t count; /* launches to make */
	uint64_t made;
	uint64_t streams;
	uint64_t engine; /* what it had done before */
	uint64_t ahead; /* the most launches that it had still to do */
} *shared;

/* Launches wait for the engine, so the most are ahead of it just behind one of them. */
static void count_ahead(uint64_t made)
{
	uint64_t done = (table_engine(0) - shared->engine) / shared->ns;
	if (made > done + shared->ahead)
		__atomic_store_n(&shared->ahead, made - done, __ATOMIC_SEQ_CST);
}

/* Launches on its own, with no synchronisation. */
static void *launcher(void *arg)
{
	CUstream own[4] = {stream, stream, stream, stream};
	OK(cuCtxSetCurrent(arg));
	for (uint64_t i = 1; i < shared->streams && i < 4; i++)
		OK(cuStreamCreate(&own[i], CU_STREAM_NON_BLOCKING));
	for (uint64_t i = 0; i < shared->count; i++) {
		OK(table_spin(spin, own[shared->streams ? i % shared->streams : 0], shared->ns));
		count_ahead(i + 1);
		__atomic_store_n(&shared->made, i + 1, __ATOMIC_SEQ_CST);
	}
	return NULL;
}

/* Commands: l: start a launcher; j: until it has made all; s: synchronise the stream; q: query the stream. */
static void player(int in, int out)
{
	pthread_t thread;
	CUcontext context = start(0);
	spin = table_kernel("spin_ns");
	OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	for (unsigned char command; (command = player_next(in)) != 0;) {
		uint64_t answer = 0;
		if (command == 'l')
			CHECK(pthread_create(&thread, NULL, launcher, context) == 0, "thread");
		else if (command == 'j')
			CHECK(pthread_join(thread, NULL) == 0, "join");
		else if (command == 's')
			answer = (uint64_t)cuStreamSynchronize(stream);
		else if (command == 'q')
			answer = (uint64_t)cuStreamQuery(stream);
		player_answer(out, answer);
	}
}

static void launches(const struct player *p, uint64_t count, uint64_t ns, uint64_t streams)
{
	*shared = (struct shared){.ns = ns, .count = count, .streams = streams, .engine = table_engine(0)};
	player_ask(p, 'l');
}

static uint64_t made(void)
{
	return LOOK(shared->made);
}

/* The turn is closed while a kernel runs. */
static void closed_meanwhile(struct table *t, const struct player *p)
{
	struct ptg_slot_turn *line = table_line(t, p->pid, 0);
	uint64_t engine = table_engine(0);
	table_open(t);
	launches(p, 1, 50 * MS, 1);
	player_ask(p, 'j');
	table_close(t);
	CHECK(LOOK(line->busy_ns) != 0 || table_engine(0) >= engine + 50 * MS, "idle while a kernel runs");
	launches(p, 1, MS, 1);
	TABLE_UNTIL(LOOK(line->want) == 1);
	CHECK(made() == 0, "launched in nobody's turn");
	TABLE_UNTIL(LOOK(line->busy_ns) == 0);
	CHECK(table_engine(0) == engine + 50 * MS, "%llu ns ran, not 50 ms",
	      (unsigned long long)(table_engine(0) - engine));
	CHECK(LOOK(line->flight_ns) >= 50 * MS, "flight %llu ns", (unsigned long long)LOOK(line->flight_ns));
	CHECK(made() == 0, "launched in nobody's turn");
	table_open(t);
	player_ask(p, 'j');
	TABLE_UNTIL(LOOK(line->busy_ns) == 0);
	table_close(t);
}

static uint64_t most_ahead(struct table *t, const struct player *p, uint64_t ns, uint64_t streams)
{
	struct ptg_slot_turn *line = table_line(t, p->pid, 0);
	table_open(t);
	launches(p, 200 * MS / ns, ns, streams);
	player_ask(p, 'j');
	TABLE_UNTIL(LOOK(line->busy_ns) == 0);
	table_close(t);
	return LOOK(shared->ahead);
}

/* The simulator's engine is a thread: while a busy machine does not run it, more is ahead of it than any gate can know.
 * That is not so round after round; of a gate that does not bound, every round is over. */
static void bounded(struct table *t, const struct player *p, uint64_t ns, uint32_t flags, uint64_t streams,
                    uint64_t most)
{
	uint64_t ahead = UINT64_MAX;
	t->turns->turn[0].flags = flags;
	for (int round = 0; round < 10 && ahead > most; round++) {
		ahead = most_ahead(t, p, ns, streams);
		NOTE("%llu ns, flags %u, %llu streams: %llu ahead", (unsigned long long)ns, flags,
		     (unsigned long long)streams, (unsigned long long)ahead);
	}
	CHECK(ahead <= most, "%llu launches of %llu ns were ahead, not %llu", (unsigned long long)ahead,
	      (unsigned long long)ns, (unsigned long long)most);
	t->turns->turn[0].flags = 0;
}

/* Tiny launches are counted, all of them, sooner or later. */
static void counted(struct table *t, const struct player *p)
{
	struct ptg_slot_turn *line = table_line(t, p->pid, 0);
	uint64_t before = LOOK(line->launches);
	table_open(t);
	launches(p, 5000, 2000, 1);
	player_ask(p, 'j');
	player_ask(p, 's');
	TABLE_UNTIL(LOOK(line->busy_ns) == 0);
	launches(p, 1, 1000, 1);
	player_ask(p, 'j');
	TABLE_UNTIL(LOOK(line->busy_ns) == 0);
	CHECK(LOOK(line->launches) == before + 5001, "%llu counted",
	      (unsigned long long)(LOOK(line->launches) - before));
	table_close(t);
}

/* Synchronising and asking tell at once; so the period is over before the answer comes, where somebody watches. */
static void told(struct table *t, const struct player *p, unsigned char how)
{
	struct ptg_slot_turn *line = table_line(t, p->pid, 0);
	t->turns->turn[0].flags = PTG_TURN_WATCHED;
	table_open(t);
	uint32_t bell = LOOK(t->ledger->turn_bell);
	launches(p, 1, 2 * MS, 1);
	player_ask(p, 'j');
	while (player_ask(p, how) != CUDA_SUCCESS) /* asked whether it is over, not told when */
		;
	CHECK(LOOK(line->busy_ns) == 0, "%c: still busy after the answer", how);
	CHECK(LOOK(t->ledger->turn_bell) >= bell + 2, "%c: the bell rang %u times", how,
	      LOOK(t->ledger->turn_bell) - bell);
	t->turns->turn[0].flags = 0;
	table_close(t);
}

/* Who waits goes on when nobody gates it any more; then its launches are not counted; then they are again, and what was
 * queued meanwhile is work in flight. */
static void flipped(struct table *t, const struct player *p)
{
	struct ptg_slot_turn *line = table_line(t, p->pid, 0);
	uint64_t before = LOOK(line->launches);
	launches(p, 3, 30 * MS, 1);
	TABLE_UNTIL(LOOK(line->want) == 1);
	table_gate(t, 0);
	player_ask(p, 'j');
	CHECK(LOOK(line->want) == 0 && LOOK(line->launches) == before, "ungated launches are counted");
	table_gate(t, 1);
	uint64_t engine = table_engine(0);
	launches(p, 1, MS, 1);
	TABLE_UNTIL(LOOK(line->want) == 1);
	CHECK(LOOK(line->busy_ns) != 0 || table_engine(0) > engine, "what was queued before is not in flight");
	TABLE_UNTIL(LOOK(line->busy_ns) == 0);
	CHECK(made() == 0, "launched in nobody's turn");
	CHECK(player_ask(p, 'q') == CUDA_SUCCESS, "said to be idle, and was not");
	table_open(t);
	player_ask(p, 'j');
	TABLE_UNTIL(LOOK(line->busy_ns) == 0);
	table_close(t);
}

int main(void)
{
	struct table t;
	shared = table_shared(sizeof(*shared));
	table_set(&t, "table", 1);
	struct player p = player_start(player);
	CHECK(player_ask(&p, 'q') == CUDA_SUCCESS, "a context");
	closed_meanwhile(&t, &p);
	bounded(&t, &p, MS, 0, 1, 12);
	bounded(&t, &p, MS, 0, 3, 12);
	bounded(&t, &p, 20 * MS, 0, 1, 12); /* until it has learned how long they are */
	bounded(&t, &p, 20 * MS, 0, 1, 3);
	bounded(&t, &p, MS, PTG_TURN_SHORT, 1, 3);
	told(&t, &p, 's'); /* while each launch is marked: a tail that another thread left is only estimated */
	told(&t, &p, 'q');
	bounded(&t, &p, 10000, 0, 1, 1200);
	bounded(&t, &p, 10000, 0, 3, 1200);
	counted(&t, &p);
	flipped(&t, &p);
	player_end(&p, false);
	table_end(&t);
	return 0;
}
