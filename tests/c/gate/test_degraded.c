/* An arbiter that does not answer: whoever has asked in vain goes on by the container's own bucket, at the rate of its share,
 * says so, and waits for turns again when the arbiter is back. Whatever stands in the turns file, nobody hangs or dies, and
 * neither does a program whose work in flight does not end before more is launched. */
#include <semaphore.h>

#include "table.h"

static CUfunction spin;
static struct shared {
	uint64_t made;
	uint64_t stop;
} *shared;

static void *launcher(void *arg)
{
	OK(cuCtxSetCurrent(arg));
	while (!LOOK(shared->stop)) {
		OK(table_spin(spin, NULL, MS));
		TABLE_TELL(shared->made, shared->made + 1);
	}
	return NULL;
}

static void hold(void *gate)
{
	while (sem_wait(gate) != 0)
		;
}

/* Work that waits for what is launched behind it. */
static uint64_t launch_behind(void)
{
	CUstream stream;
	sem_t gate;
	CHECK(sem_init(&gate, 0, 0) == 0, "sem_init");
	OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	OK(cuLaunchHostFunc(stream, hold, &gate));
	for (int i = 0; i < 20; i++)
		OK(table_spin(spin, stream, MS));
	CHECK(sem_post(&gate) == 0, "sem_post");
	return (uint64_t)cuStreamSynchronize(stream);
}

/* Commands: l: launch without a pause in a thread; j: until that has ended; b: launch behind work that waits for it. */
static void player(int in, int out)
{
	pthread_t thread;
	CUcontext context = start(0);
	spin = table_kernel("spin_ns");
	for (unsigned char command; (command = player_next(in)) != 0;) {
		uint64_t answer = 0;
		if (command == 'l')
			CHECK(pthread_create(&thread, NULL, launcher, context) == 0, "thread");
		else if (command == 'j')
			CHECK(pthread_join(thread, NULL) == 0, "join");
		else if (command == 'b')
			answer = launch_behind();
		player_answer(out, answer);
	}
}

static void goes_on(uint64_t count)
{
	uint64_t from = LOOK(shared->made);
	TABLE_UNTIL(LOOK(shared->made) >= from + count);
}

/* It waits: what it says, and that nothing is launched any more from then on, however often it is woken and looks. */
static void stands(struct table *t, struct ptg_slot_turn *line)
{
	TABLE_UNTIL(LOOK(line->want) == 1 && LOOK(line->busy_ns) == 0);
	uint64_t made = LOOK(shared->made), engine = table_engine(0);
	for (int i = 0; i < 50; i++)
		while (table_wake(t, 0) == 0)
			sched_yield(); /* it is on its way to sleep */
	CHECK(LOOK(line->degraded) == 0 && LOOK(shared->made) == made && table_engine(0) == engine,
	      "launches while it is nobody's turn");
}

static void scribble(struct table *t, unsigned seed)
{
	unsigned char *at = (unsigned char *)&t->turns->turn[0];
	for (size_t i = 0; i < sizeof(t->turns->turn[0]); i++) {
		seed = seed * 1103515245 + 12345;
		at[i] = (unsigned char)(seed >> 16);
	}
	table_wake(t, 0);
}

int main(void)
{
	struct table t;
	shared = table_shared(sizeof(*shared));
	table_set(&t, "table", 1);
	struct player p = player_start(player);
	player_ask(&p, 'l');
	struct ptg_slot_turn *line = table_line(&t, p.pid, 0);
	stands(&t, line);
	CHECK(LOOK(line->degraded) == 0, "degraded beside a living arbiter");
	table_open(&t);
	goes_on(20);

	/* Dies in its turn: the word stays odd and the deadline passes. Then half of the time, by the policy's cores. */
	table_die(&t);
	TABLE_UNTIL(LOOK(line->degraded) == 1);
	uint64_t began = table_now(), engine = table_engine(0);
	goes_on(300);
	uint64_t took = table_now() - began, ran = table_engine(0) - engine;
	NOTE("degraded: %llu of %llu ms", (unsigned long long)(ran / MS), (unsigned long long)(took / MS));
	/* The window lets it run 100 ms of its share ahead, and what is in flight besides; a slow machine only less. */
	CHECK(ran <= took / 2 + 70 * MS, "%llu ms of %llu were used under 50 %%", (unsigned long long)(ran / MS),
	      (unsigned long long)(took / MS));

	table_live(&t);
	TABLE_UNTIL(LOOK(line->degraded) == 0);
	table_close(&t);
	stands(&t, line);

	/* Dies while everybody waits. */
	table_die(&t);
	goes_on(20);
	CHECK(LOOK(line->degraded) == 1, "not degraded");

	/* Garbage is an arbiter that does not answer, and one that comes makes it whole. */
	for (unsigned seed = 1; seed <= 20; seed++) {
		scribble(&t, seed);
		goes_on(5);
	}
	memset(&t.turns->turn[0], 0, sizeof(t.turns->turn[0]));
	table_live(&t);
	stands(&t, line);
	CHECK(LOOK(line->degraded) == 0, "still degraded");

	/* A bucket full of garbage. */
	t.ledger->device[0].bucket_ns = UINT64_MAX;
	table_die(&t);
	goes_on(20);
	t.ledger->device[0].bucket_ns = UINT64_MAX / 2;
	goes_on(20);
	table_live(&t);
	table_open(&t);
	__atomic_store_n(&shared->stop, 1, __ATOMIC_SEQ_CST);
	player_ask(&p, 'j');

	/* The bucket pays for half of the time for as long as anything is in flight: it is empty until the end of that. */
	table_close(&t);
	table_die(&t);
	CHECK(player_ask(&p, 'b') == CUDA_SUCCESS, "launched behind work that waits for it");
	CHECK(LOOK(line->degraded) == 1, "not degraded");
	player_end(&p, false);
	table_end(&t);
	return 0;
}
