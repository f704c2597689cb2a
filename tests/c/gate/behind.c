/* Runs a program of another test behind a shut gate: behind HOW PROFILE PROGRAM [ARGS...]; it must give the results that it
 * gives without. HOW is `open`: it is always its turn; `flaps`: every few milliseconds it is not, for some; `deserted`:
 * nobody gives turns, and its share is the whole device. PROFILE is the machine that the program would make. */
#include "table.h"

static uint32_t running = 1;

static struct table t;
static bool flaps;

/* The arbiter: the program does not know table.h, whose heart beats when somebody looks at the clock. */
static void *arbiter(void *arg)
{
	for (unsigned i = 0; LOOK(running); i++) {
		struct timespec some = {.tv_nsec = i % 2 ? 2 * MS : 5 * MS};
		table_now();
		for (uint32_t d = 0; flaps && d < t.policy.ndev; d++)
			table_turn(&t, (int)d, i % 2 == 0);
		nanosleep(&some, NULL);
	}
	return arg;
}

/* The machine is made here, by the program's profile. */
static void hand_over(const char *profile)
{
	setenv("PARTAGE_SIM", profile, 1);
	scene("the machine", touch);
	table_set(&t, "table", machine()->ndev);
	for (unsigned i = 0; i < t.policy.ndev; i++) {
		t.policy.device[i].memory = UINT64_C(8) << 40;
		t.policy.device[i].cores = 0;
	}
	grant_change("table", t.policy);
}

int main(int argc, char **argv)
{
	pthread_t thread;
	int status;
	CHECK(argc > 3, "behind open|flaps|deserted PROFILE PROGRAM [ARGS...]");
	bool deserted = strcmp(argv[1], "deserted") == 0;
	flaps = strcmp(argv[1], "flaps") == 0;
	hand_over(argv[2]);
	if (deserted)
		table_die(&t);
	for (uint32_t d = 0; !deserted && d < t.policy.ndev; d++)
		table_turn(&t, (int)d, true);
	CHECK(deserted || pthread_create(&thread, NULL, arbiter, NULL) == 0, "thread");
	pid_t pid = fork();
	CHECK(pid >= 0, "fork");
	if (pid == 0) {
		execv(argv[3], argv + 3);
		_exit(127);
	}
	CHECK(waitpid(pid, &status, 0) == pid, "wait");
	__atomic_store_n(&running, 0, __ATOMIC_SEQ_CST);
	CHECK(deserted || pthread_join(thread, NULL) == 0, "join");
	if (WIFSIGNALED(status))
		CHECK(false, "%s ended by signal %d", argv[3], WTERMSIG(status));
	return WEXITSTATUS(status);
}
