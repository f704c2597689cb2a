/* Stream capture under the gate: what is captured does not run, so it never waits and is not counted, in whichever thread
 * and mode the capture was begun; the gate's own calls to the driver end nobody's capture. */
#include "table.h"

static CUfunction spin;
static CUcontext context;
static CUstream captured, other;

/* Commands: b/B: begin to capture, relaxed or global; l: launch into it; e: end: how many nodes it has; o: launch into
 * another stream, in this thread; t: the same in another thread. */
static void *launch_other(void *arg)
{
	OK(cuCtxSetCurrent(context));
	OK(table_spin(spin, other, MS));
	return arg;
}

static uint64_t end_capture(void)
{
	CUgraph graph;
	size_t nodes = 0;
	CUresult result = cuStreamEndCapture(captured, &graph);
	if (result != CUDA_SUCCESS)
		return 1000 + (uint64_t)result;
	OK(cuGraphGetNodes(graph, NULL, &nodes));
	OK(cuGraphDestroy(graph));
	return nodes;
}

static void player(int in, int out)
{
	pthread_t thread;
	context = start(0);
	spin = table_kernel("spin_ns");
	OK(cuStreamCreate(&captured, CU_STREAM_NON_BLOCKING));
	OK(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
	for (unsigned char command; (command = player_next(in)) != 0;) {
		uint64_t answer = 0;
		if (command == 'b')
			OK(cuStreamBeginCapture_v2(captured, CU_STREAM_CAPTURE_MODE_RELAXED));
		else if (command == 'B')
			OK(cuStreamBeginCapture_v2(captured, CU_STREAM_CAPTURE_MODE_GLOBAL));
		else if (command == 'l')
			OK(table_spin(spin, captured, MS));
		else if (command == 'e')
			answer = end_capture();
		else if (command == 'o')
			OK(table_spin(spin, other, MS));
		else if (command == 't')
			CHECK(pthread_create(&thread, NULL, launch_other, NULL) == 0, "thread");
		else if (command == 'j')
			CHECK(pthread_join(thread, NULL) == 0, "join");
		else if (command == 's')
			answer = (uint64_t)cuStreamSynchronize(other);
		player_answer(out, answer);
	}
}

static const struct player *p;

/* It is nobody's turn. */
static void shut_turn_captures(struct table *t, struct ptg_slot_turn *line)
{
	uint64_t launches = LOOK(line->launches), engine = table_engine(0);
	for (int global = 0; global < 2; global++) {
		player_ask(p, global ? 'B' : 'b');
		for (int i = 0; i < 100; i++)
			player_ask(p, 'l');
		CHECK(player_ask(p, 'e') == 100, "nodes");
	}
	CHECK(LOOK(line->waits) == 0 && LOOK(line->want) == 0, "a launch into a capture waited");
	CHECK(LOOK(line->launches) == launches, "launches into a capture were counted");
	CHECK(table_engine(0) == engine, "what was captured ran");
	(void)t;
}

/* One thread captures, another one's launches wait, are marked, and are over; all in one capture. */
static void beside(struct table *t, struct ptg_slot_turn *line, unsigned char how, unsigned char where)
{
	player_ask(p, how);
	player_ask(p, 'l');
	uint64_t launches = LOOK(line->launches), nodes = 1;
	for (int i = 0; i < 20; i++) {
		if (where == 't') {
			player_ask(p, 't');
			TABLE_UNTIL(LOOK(line->want) == 1 && LOOK(line->busy_ns) == 0);
			player_ask(p, 'l');
			table_open(t);
			player_ask(p, 'j');
			nodes++;
		} else {
			table_open(t);
			player_ask(p, 'o');
		}
		TABLE_UNTIL(LOOK(line->busy_ns) == 0);
		table_close(t);
	}
	CHECK(LOOK(line->launches) == launches + 20, "counted %llu",
	      (unsigned long long)(LOOK(line->launches) - launches));
	uint64_t seen = player_ask(p, 'e');
	CHECK(seen == nodes, "%c%c: %llu nodes, not %llu; above 1000: an error", how, where, (unsigned long long)seen,
	      (unsigned long long)nodes);
}

int main(void)
{
	struct table t;
	table_set(&t, "table", 1);
	struct player one = player_start(player);
	p = &one;
	CHECK(player_ask(p, 's') == CUDA_SUCCESS, "a context");
	struct ptg_slot_turn *line = table_line(&t, one.pid, 0);
	shut_turn_captures(&t, line);
	beside(&t, line, 'b', 'o');
	beside(&t, line, 'B', 'o');
	beside(&t, line, 'b', 't');
	beside(&t, line, 'B', 't');
	/* A live flip of the gate while a global capture is under way: nothing is asked that would end it. */
	player_ask(p, 'B');
	player_ask(p, 'l');
	table_gate(&t, 0);
	player_ask(p, 'o');
	table_gate(&t, 1);
	table_open(&t);
	player_ask(p, 'o');
	player_ask(p, 'l');
	CHECK(player_ask(p, 'e') == 2, "a flip of the gate ended a capture");
	table_close(&t);
	player_end(p, false);
	table_end(&t);
	return 0;
}
