/* Lives and ends under the gate: fork while another thread waits; exit, a signal, cancellation and kill -9 while a thread
 * waits or a kernel runs that never ends; threads that come and go; contexts, streams and devices that end with work in
 * flight. Each ends as it would without, and nothing of it keeps the next process from its turn. */
#include "table.h"

#ifdef __SANITIZE_THREAD__
#define RAW false /* its runtime does not live through a fork that it does not see */
#else
#define RAW true
#endif

static CUfunction spin;
static CUcontext context;
static uint32_t signals;
static struct shared {
	uint64_t made, result;
} *shared;

static void on_signal(int number)
{
	__atomic_add_fetch(&signals, number == SIGUSR1, __ATOMIC_SEQ_CST);
}

static void *launch_once(void *arg)
{
	OK(cuCtxSetCurrent(context));
	OK(table_spin(spin, NULL, MS));
	__atomic_add_fetch(&shared->made, 1, __ATOMIC_SEQ_CST);
	return arg;
}

static void *launch_many(void *arg)
{
	for (int i = 0; i < 50; i++)
		launch_once(arg);
	return arg;
}

/* A child of a process that is under the gate: the driver does not work in it, and that is all. */
static uint64_t fork_child(bool raw)
{
	int status;
	/* By the system call, no handler of anybody's runs. */
	pid_t pid = raw ? (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0) : fork();
	if (pid == 0) {
		CUresult result = table_spin(spin, NULL, MS);
		_exit(result == CUDA_SUCCESS ? 1 : 0);
	}
	return waitpid(pid, &status, 0) == pid ? (uint64_t)status : UINT64_MAX;
}

/* Kernels are in flight when their context ends, by its destruction or with its last attachment. */
static uint64_t ended_context(bool detached)
{
	CUcontext own, back;
	CUstream stream;
	CUfunction kernel;
	OK(cuCtxCreate_v4(&own, NULL, 0, 0));
	OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	kernel = table_kernel("spin_ns");
	for (int i = 0; i < 4; i++)
		OK(table_spin(kernel, stream, 3 * MS));
	OK(cuStreamDestroy_v2(stream));
	if (detached) {
		OK(cuCtxAttach(&back, 0));
		OK(cuCtxDetach(back));
		OK(cuCtxDetach(own));
	} else {
		OK(cuCtxPopCurrent_v2(&back));
		OK(cuCtxDestroy_v2(own));
	}
	OK(cuCtxSetCurrent(context));
	return 0;
}

static uint64_t cancelled(pthread_t thread)
{
	void *result;
	CHECK(pthread_cancel(thread) == 0 && pthread_join(thread, &result) == 0, "cancel");
	return result == PTHREAD_CANCELED;
}

/* Commands: w: a thread that launches once; j: join it; k: cancel it; m: 8 threads that launch and end; f: fork; u: signals
 * to the thread; x: exit; c: contexts end; s: synchronise. */
static void player(int in, int out)
{
	pthread_t thread, many[8];
	struct sigaction action = {.sa_handler = on_signal};
	sigaction(SIGUSR1, &action, NULL);
	context = start(0);
	spin = table_kernel("spin_ns");
	for (unsigned char command; (command = player_next(in)) != 0;) {
		uint64_t answer = 0;
		switch (command) {
		case 'w':
			CHECK(pthread_create(&thread, NULL, launch_once, NULL) == 0, "thread");
			break;
		case 'j':
			CHECK(pthread_join(thread, NULL) == 0, "join");
			break;
		case 'k':
			answer = cancelled(thread);
			break;
		case 'm':
			for (int i = 0; i < 8; i++)
				CHECK(pthread_create(&many[i], NULL, launch_many, NULL) == 0, "thread");
			for (int i = 0; i < 8; i++)
				CHECK(pthread_join(many[i], NULL) == 0, "join");
			break;
		case 'f':
			answer = fork_child(false) | fork_child(RAW);
			break;
		case 'u':
			CHECK(pthread_kill(thread, SIGUSR1) == 0, "kill");
			answer = LOOK(signals);
			break;
		case 'x':
			exit(0);
		case 'c':
			answer = ended_context(false) + ended_context(true);
			break;
		case 's':
			answer = (uint64_t)cuCtxSynchronize();
			break;
		default:
			break;
		}
		player_answer(out, answer);
	}
}

static struct player begin(void)
{
	struct player p = player_start(player);
	CHECK(player_ask(&p, 's') == CUDA_SUCCESS, "a context");
	return p;
}

static void waits(const struct player *p, struct ptg_slot_turn *line)
{
	player_ask(p, 'w');
	TABLE_UNTIL(LOOK(line->want) == 1 && LOOK(line->busy_ns) == 0);
}

static void works(struct table *t, const struct player *p, struct ptg_slot_turn *line)
{
	uint64_t made = LOOK(shared->made);
	table_open(t);
	player_ask(p, 'w');
	player_ask(p, 'j');
	TABLE_UNTIL(LOOK(line->busy_ns) == 0);
	CHECK(LOOK(line->want) == 0 && LOOK(shared->made) == made + 1, "want %u", LOOK(line->want));
	table_close(t);
}

static void ends(const struct player *p, int expected)
{
	int status;
	CHECK(waitpid(p->pid, &status, 0) == p->pid, "wait");
	CHECK(status == expected, "status 0x%x, not 0x%x", status, expected);
	close(p->to);
	close(p->from);
}

static void while_waiting(struct table *t)
{
	struct player p = begin();
	struct ptg_slot_turn *line = table_line(t, p.pid, 0);
	waits(&p, line);
	CHECK(player_ask(&p, 'f') == 0, "a fork's child launched, or died");
	for (uint64_t i = 0; i < 50; i++)
		player_ask(&p, 'u');
	CHECK(LOOK(line->want) == 1, "a signal ended the wait");
	table_open(t);
	player_ask(&p, 'j');
	TABLE_UNTIL(LOOK(line->busy_ns) == 0);
	table_close(t);
	works(t, &p, line);
	player_ask(&p, 'w');
	TABLE_UNTIL(LOOK(line->want) == 1);
	CHECK(write(p.to, "x", 1) == 1, "exit");
	ends(&p, 0);
}

/* A thread that is to be cancelled while it waits: waiting is no point of cancellation, so it goes when it has launched. */
static void cancelled_waiting(struct table *t)
{
	struct player p = begin();
	struct ptg_slot_turn *line = table_line(t, p.pid, 0);
	waits(&p, line);
	char k = 'k';
	CHECK(write(p.to, &k, 1) == 1, "cancel");
	table_open(t);
	uint64_t answer;
	CHECK(read(p.from, &answer, sizeof(answer)) == sizeof(answer), "no answer");
	TABLE_UNTIL(LOOK(line->busy_ns) == 0);
	CHECK(LOOK(line->want) == 0, "it still waits");
	table_close(t);
	works(t, &p, line);
	player_end(&p, false);
}

static void killed(struct table *t)
{
	struct player p = begin(), next = begin();
	struct ptg_slot_turn *line = table_line(t, p.pid, 0);
	waits(&p, line);
	player_end(&p, true);
	works(t, &next, table_line(t, next.pid, 0));
	player_end(&next, false);
}

static void threads(struct table *t)
{
	struct player p = begin();
	struct ptg_slot_turn *line = table_line(t, p.pid, 0);
	uint64_t launches = LOOK(line->launches);
	table_open(t);
	for (int i = 0; i < 5; i++)
		player_ask(&p, 'm');
	player_ask(&p, 's');
	TABLE_UNTIL(LOOK(line->busy_ns) == 0);
	CHECK(LOOK(line->launches) == launches + 2000, "counted %llu", (unsigned long long)LOOK(line->launches));
	table_close(t);
	works(t, &p, line);
	table_open(t);
	for (int i = 0; i < 20; i++)
		player_ask(&p, 'c');
	TABLE_UNTIL(LOOK(line->busy_ns) == 0);
	table_close(t);
	works(t, &p, line);
	player_end(&p, false);
}

/* The device falls off the bus with work in flight: launches fail, nothing is in flight any more, and the process ends. */
static void lost(struct table *t)
{
	struct player p = begin();
	struct ptg_slot_turn *line = table_line(t, p.pid, 0);
	table_open(t);
	player_ask(&p, 'w');
	player_ask(&p, 'j');
	__atomic_store_n(&machine()->device[0].lost, 1, __ATOMIC_SEQ_CST);
	TABLE_UNTIL(LOOK(line->busy_ns) == 0);
	player_end(&p, false);
	__atomic_store_n(&machine()->device[0].lost, 0, __ATOMIC_SEQ_CST);
	table_close(t);
}

int main(void)
{
	struct table t;
	shared = table_shared(sizeof(*shared));
	table_set(&t, "table", 1);
	while_waiting(&t);
	cancelled_waiting(&t);
	killed(&t);
	threads(&t);
	lost(&t);
	table_end(&t);
	return 0;
}
