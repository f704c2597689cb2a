/* A thousand short processes, 32 at any time, each a program of its own that takes 1/32 of the limit and ends in one of
 * five ways: it frees and ends, ends with memory in hand, is killed with it, becomes another program, or leaves by a
 * thread. A new one starts only when one has ended, so that there is always room for it, to the byte: what a dead one
 * held must be there for the next, and nothing is ever over. Afterwards everything is to be had, and no slot was used
 * that was not needed.
 * Argument: how many (1000).
 */
#include <pthread.h>

#include "life.h"

#define AT_ONCE 32
#define EACH    (LIFE_LIMIT / AT_ONCE)

enum end { FREES, HOLDS, KILLED, BECOMES, BY_THREAD, ENDS };

static void *leaves(void *unused)
{
	(void)unused;
	exit(0);
}

static int role(enum end end)
{
	pthread_t thread;
	start(0);
	CUdeviceptr kept = life_take(EACH);
	CHECK(life_charged_by(getpid()) == EACH, "charged %lu", (unsigned long)life_charged_by(getpid()));
	switch (end) {
	case FREES:
		OK(cuMemFree_v2(kept));
		break;
	case KILLED:
		kill(getpid(), SIGKILL);
		break;
	case BECOMES:
		execl("/bin/true", "true", (char *)NULL);
		return 4;
	case BY_THREAD:
		CHECK(pthread_create(&thread, NULL, leaves, NULL) == 0, "thread");
		pthread_join(thread, NULL);
		return 5;
	default:
		break;
	}
	return 0;
}

static void wait_for_one(pid_t pid[AT_ONCE], enum end end[AT_ONCE], unsigned *running)
{
	int status;
	pid_t ended = waitpid(-1, &status, 0);
	CHECK(ended > 0, "wait");
	unsigned i = 0;
	while (i < *running && pid[i] != ended)
		i++;
	CHECK(i < *running, "%d is none of ours", ended);
	CHECK(end[i] == KILLED ? WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL : status == 0,
	      "a process that ends in way %d ended with status 0x%x", end[i], status);
	--*running;
	pid[i] = pid[*running];
	end[i] = end[*running];
}

static void crowd(unsigned count)
{
	pid_t pid[AT_ONCE];
	enum end end[AT_ONCE];
	unsigned running = 0, random = 1;
	for (unsigned i = 0; i < count; i++) {
		if (running == AT_ONCE)
			wait_for_one(pid, end, &running);
		random = random * 1664525 + 1013904223;
		end[running] = (random >> 16) % ENDS;
		pid[running] = fork();
		CHECK(pid[running] >= 0, "fork");
		if (pid[running] == 0) {
			alarm(120); /* stands for "hangs" */
			life_exec("short", end[running]);
			_exit(6);
		}
		running++;
	}
	while (running > 0)
		wait_for_one(pid, end, &running);
}

int main(int argc, char **argv)
{
	if (argc > 2)
		return role((enum end)strtoul(argv[2], NULL, 10));
	unsigned count = argc > 1 ? (unsigned)strtoul(argv[1], NULL, 10) : 1000;
	life_begin();
	crowd(count);
	/* A process that is about to end may meet one that has not yet been given its room: twice as many slots at most. */
	CHECK(life_ledger()->high <= 2 * AT_ONCE, "slots up to %u were used", life_ledger()->high);
	scene("afterwards", life_all_free);
	CHECK(peak() <= LIFE_LIMIT, "%lu bytes were held", (unsigned long)peak());
	NOTE("%u processes, %u slots, %u given back for the dead", count, life_ledger()->high,
	     life_ledger()->reclaimed);
	return 0;
}
