/* Several devices in one grant: a launch waits for the turn of the device that it goes to, by its stream or the current
 * context, and for no other; each has its own line; one launch on several devices waits for all of them. */
#include "table.h"

static CUcontext context[2];
static CUfunction spin[2];
static CUstream stream[2];
static uint64_t ns = MS;
static void *params[] = {&ns};

static void launch(int device, bool by_stream)
{
	OK(cuCtxSetCurrent(context[device]));
	OK(table_spin(spin[device], by_stream ? stream[device] : NULL, ns));
}

static void launch_both(void)
{
	CUDA_LAUNCH_PARAMS list[2];
	OK(cuCtxSetCurrent(context[0]));
	for (int d = 0; d < 2; d++)
		list[d] = (CUDA_LAUNCH_PARAMS){.function = spin[d],
		                               .gridDimX = 1,
		                               .gridDimY = 1,
		                               .gridDimZ = 1,
		                               .blockDimX = 1,
		                               .blockDimY = 1,
		                               .blockDimZ = 1,
		                               .hStream = stream[d],
		                               .kernelParams = params};
	OK(cuLaunchCooperativeKernelMultiDevice(list, 2, 0));
}

static unsigned char what;

static void *do_it(void *arg)
{
	if (what == 'b')
		launch_both();
	else
		launch((what - '0') % 2, what >= '2');
	return arg;
}

/* Commands: 0, 1: launch there by the current context; 2, 3: by a stream; b: on both; j: join; y: synchronise the second
 * device's stream. */
static void player(int in, int out)
{
	pthread_t thread;
	OK(cuInit(0));
	for (int d = 0; d < 2; d++) {
		context[d] = start(d);
		spin[d] = table_kernel("spin_ns");
		OK(cuStreamCreate(&stream[d], CU_STREAM_NON_BLOCKING));
	}
	for (unsigned char command; (command = player_next(in)) != 0;) {
		if (command == 'j') {
			CHECK(pthread_join(thread, NULL) == 0, "join");
		} else if (command == 'y') {
			OK(cuStreamSynchronize(stream[1]));
		} else if (command != 's') {
			what = command;
			CHECK(pthread_create(&thread, NULL, do_it, NULL) == 0, "thread");
		}
		player_answer(out, 0);
	}
}

static void each(struct table *t, const struct player *p, unsigned char command, int device)
{
	struct ptg_slot_turn *line = table_line(t, p->pid, device), *other = table_line(t, p->pid, !device);
	uint64_t launches = LOOK(line->launches), others = LOOK(other->launches), engine = table_engine(device);
	table_turn(t, !device, true);
	player_ask(p, command);
	TABLE_UNTIL(LOOK(line->want) == 1);
	CHECK(LOOK(other->want) == 0 && table_engine(device) == engine, "%c waits for the other device", command);
	table_turn(t, device, true);
	player_ask(p, 'j');
	TABLE_UNTIL(LOOK(line->busy_ns) == 0);
	CHECK(LOOK(line->launches) == launches + 1 && LOOK(other->launches) == others, "%c is counted elsewhere",
	      command);
	CHECK(table_engine(device) == engine + MS, "%c ran elsewhere", command);
	table_turn(t, device, false);
	table_turn(t, !device, false);
}

static void both(struct table *t, const struct player *p)
{
	struct ptg_slot_turn *line[2] = {table_line(t, p->pid, 0), table_line(t, p->pid, 1)};
	uint64_t engine[2] = {table_engine(0), table_engine(1)};
	for (int d = 0; d < 2; d++) {
		player_ask(p, 's');
		table_turn(t, d, false);
	}
	player_ask(p, 'b');
	TABLE_UNTIL(LOOK(line[0]->want) + LOOK(line[1]->want) == 1);
	table_turn(t, 0, true);
	TABLE_UNTIL(LOOK(line[1]->want) == 1);
	CHECK(table_engine(0) == engine[0] && table_engine(1) == engine[1], "it ran with one turn of two");
	table_turn(t, 1, true);
	player_ask(p, 'j');
	for (int d = 0; d < 2; d++) {
		TABLE_UNTIL(LOOK(line[d]->busy_ns) == 0);
		CHECK(table_engine(d) == engine[d] + MS, "device %d did not run", d);
	}
}

/* Only one of them is gated: the other one's launches do not wait. */
static void one_gated(struct table *t, const struct player *p)
{
	struct ptg_slot_turn *line = table_line(t, p->pid, 1);
	table_turn(t, 0, false);
	table_turn(t, 1, false);
	table_gate(t, 1);
	uint64_t waits = LOOK(line->waits), engine = table_engine(1);
	player_ask(p, '3');
	player_ask(p, 'j');
	player_ask(p, 'y');
	CHECK(table_engine(1) == engine + MS, "it did not run there");
	CHECK(LOOK(line->waits) == waits, "an ungated device's launch waited");
	table_gate(t, 3);
}

int main(void)
{
	struct table t;
	table_set(&t, "table", 2);
	struct player p = player_start(player);
	player_ask(&p, 's');
	for (int d = 0; d < 2; d++) {
		each(&t, &p, (unsigned char)('0' + d), d);
		each(&t, &p, (unsigned char)('2' + d), d);
	}
	both(&t, &p);
	one_gated(&t, &p);
	player_end(&p, false);
	table_end(&t);
	return 0;
}
