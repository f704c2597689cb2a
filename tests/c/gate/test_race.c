/* A thread that is descheduled between the gate and the driver, at every instruction of a launch: the process must not say
 * that it is idle while that thread can still launch into another's turn. The thread is stopped there by a tracer, its turn
 * is closed, and all other work ends; where the process then says that it is idle, the thread, let go, has to wait. */
#include <sys/ptrace.h>

#include "table.h"

#define LONG_NS (8 * MS)
#define STEPS   140
#define CALM_NS (4 * MS) /* who says nothing for so long stays busy */

static struct shared {
	pid_t thread;
	uint32_t made;
} *shared;
static CUfunction nothing;
static CUcontext context;
static int go[2];

/* Launches that get it some in advance, then the one that is looked at. */
static void *launcher(void *arg)
{
	CUstream stream;
	char byte;
	OK(cuCtxSetCurrent(context));
	OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	TABLE_TELL(shared->thread, (pid_t)syscall(SYS_gettid));
	while (read(go[0], &byte, 1) == 1 && byte) {
		for (int i = 0; i < (byte == 'w' ? 400 : 3); i++)
			OK(cuLaunchKernel(nothing, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL));
		if (byte == 'w')
			OK(cuStreamSynchronize(stream));
		else
			syscall(SYS_tgkill, getpid(), shared->thread, SIGUSR2); /* the tracer stops it here */
		OK(cuLaunchKernel(nothing, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL));
		TABLE_TELL(shared->made, shared->made + 1);
	}
	return arg;
}

/* Commands: g: keep the device busy for a while; l, w: let the launcher go. */
static void player(int in, int out)
{
	pthread_t thread;
	CUstream stream;
	context = start(0);
	nothing = table_kernel("nothing");
	uint64_t ns = LONG_NS;
	CUgraphExec exec = table_graph(table_kernel("spin_ns"), (void *[]){&ns});
	OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	CHECK(pipe(go) == 0 && pthread_create(&thread, NULL, launcher, NULL) == 0, "thread");
	for (unsigned char command; (command = player_next(in)) != 0;) {
		if (command == 'g')
			OK(cuGraphLaunch(exec, stream));
		else
			CHECK(write(go[1], &command, 1) == 1, "go");
		player_answer(out, 0);
	}
}

static void stopped_by(pid_t thread, int signal)
{
	int status;
	CHECK(waitpid(thread, &status, __WALL) == thread && WIFSTOPPED(status), "status 0x%x", status);
	CHECK(WSTOPSIG(status) == signal, "stopped by %d, not %d", WSTOPSIG(status), signal);
}

static void step(pid_t thread, unsigned steps)
{
	for (unsigned i = 0; i < steps; i++) {
		CHECK(ptrace(PTRACE_SINGLESTEP, thread, NULL, NULL) == 0, "step");
		stopped_by(thread, SIGTRAP);
	}
}

/* Whether the process says that it is idle, once everything but the stopped thread is over. */
static bool says_idle(struct table *t, struct ptg_slot_turn *line, uint64_t engine)
{
	struct timespec calm = {.tv_nsec = CALM_NS};
	for (bool over = false;;) {
		uint32_t bell = LOOK(t->ledger->turn_bell);
		if (LOOK(line->busy_ns) == 0 || over)
			return LOOK(line->busy_ns) == 0;
		bool ran = table_engine(0) >= engine + LONG_NS;
		over = syscall(SYS_futex, &t->ledger->turn_bell, FUTEX_WAIT, bell, &calm, NULL, 0) != 0 && ran;
	}
}

static bool once(struct table *t, const struct player *p, struct ptg_slot_turn *line, pid_t thread, unsigned steps)
{
	uint32_t made = LOOK(shared->made);
	uint64_t engine = table_engine(0);
	table_open(t);
	player_ask(p, 'g');
	player_ask(p, 'l');
	stopped_by(thread, SIGUSR2);
	step(thread, steps);
	table_close(t);
	bool idle = says_idle(t, line, engine);
	engine = table_engine(0);
	CHECK(ptrace(PTRACE_CONT, thread, NULL, NULL) == 0, "go on");
	if (idle && LOOK(shared->made) == made) {
		TABLE_UNTIL(LOOK(line->want) == 1 || LOOK(shared->made) != made);
		CHECK(LOOK(shared->made) == made && table_engine(0) == engine,
		      "after %u instructions: the process said that it was idle, and then launched", steps);
	}
	table_open(t);
	TABLE_UNTIL(LOOK(shared->made) == made + 1);
	TABLE_UNTIL(LOOK(line->busy_ns) == 0);
	table_close(t);
	return idle;
}

int main(void)
{
#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
	SKIP("a sanitizer's instructions are counted: the launch is not reached in %u", STEPS);
#endif
	struct table t;
	unsigned idle = 0, busy = 0;
	shared = table_shared(sizeof(*shared));
	table_set(&t, "table", 1);
	t.turns->turn[0].outstanding_us = 200000;
	struct player p = player_start(player);
	struct ptg_slot_turn *line = table_line(&t, p.pid, 0);
	TABLE_UNTIL(LOOK(shared->thread) != 0);
	pid_t thread = shared->thread;
	table_open(&t);
	for (uint32_t i = 0; i < 5; i++) {
		player_ask(&p, 'w');
		TABLE_UNTIL(LOOK(shared->made) == i + 1);
	}
	TABLE_UNTIL(LOOK(line->busy_ns) == 0);
	table_close(&t);
	if (ptrace(PTRACE_SEIZE, thread, NULL, NULL) != 0)
		SKIP("this system lets nobody trace");
	for (unsigned steps = 0; steps < STEPS; steps++)
		*(once(&t, &p, line, thread, steps) ? &idle : &busy) += 1;
	NOTE("%u stops before the launch, %u in it", idle, busy);
	CHECK(idle > 10 && busy > 10, "the launch was not hit: idle %u, busy %u", idle, busy);
	CHECK(ptrace(PTRACE_INTERRUPT, thread, NULL, NULL) == 0, "interrupt");
	stopped_by(thread, SIGTRAP);
	CHECK(ptrace(PTRACE_DETACH, thread, NULL, NULL) == 0, "detach");
	player_end(&p, false);
	table_end(&t);
	return 0;
}
