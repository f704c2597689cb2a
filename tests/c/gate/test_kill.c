/* kill -9 anywhere in a launch under the gate, on its slow way, in the driver and behind it: whoever gives turns can tell
 * that the process is gone, by the lock of its slot, and the next process has its turn as if nothing had been. */
#include <sys/ptrace.h>

#include "table.h"

#define POINTS_MAX 60
#define POINTS_MIN 6
#define STEPS      300000 /* of all points together, at 50 µs or so each */

static CUfunction spin;

/* Two launches: the second one is looked at. */
static void victim(void)
{
	CHECK(ptrace(PTRACE_TRACEME, 0, NULL, NULL) == 0, "PTRACE_TRACEME");
	start(0);
	spin = table_kernel("spin_ns");
	OK(table_spin(spin, NULL, MS));
	OK(cuCtxSynchronize());
	raise(SIGUSR2);
	OK(table_spin(spin, NULL, MS));
	raise(SIGUSR2);
	_exit(0);
}

static pid_t begin(void)
{
	int status;
	pid_t pid = fork();
	CHECK(pid >= 0, "fork");
	if (pid == 0)
		victim();
	CHECK(waitpid(pid, &status, 0) == pid, "wait");
	if (!WIFSTOPPED(status))
		SKIP("this system lets nobody trace");
	CHECK(WSTOPSIG(status) == SIGUSR2, "stopped by %d", WSTOPSIG(status));
	return pid;
}

/* That many steps, or to the end of the launch; how many it were. */
static unsigned step(pid_t pid, unsigned steps)
{
	int status;
	for (unsigned i = 0; i < steps; i++) {
		CHECK(ptrace(PTRACE_SINGLESTEP, pid, NULL, NULL) == 0, "step");
		CHECK(waitpid(pid, &status, 0) == pid && WIFSTOPPED(status), "status 0x%x", status);
		if (WSTOPSIG(status) == SIGUSR2)
			return i;
	}
	return steps;
}

static void end(pid_t pid)
{
	int status;
	CHECK(kill(pid, SIGKILL) == 0 && waitpid(pid, &status, 0) == pid, "kill");
}

static void next_player(int in, int out)
{
	start(0);
	spin = table_kernel("spin_ns");
	while (player_next(in) != 0) {
		OK(table_spin(spin, NULL, 100000));
		player_answer(out, (uint64_t)cuCtxSynchronize());
	}
}

int main(void)
{
	struct table t;
	table_set(&t, "table", 1);
	struct player next = player_start(next_player);
	table_open(&t);
	pid_t pid = begin();
	unsigned all = step(pid, 1000000);
	end(pid);
	NOTE("%u instructions in a launch on the slow way", all);
	CHECK(all > 500, "%u instructions: it was not launched through the gate", all);
	/* A sanitizer makes a launch forty times as long: fewer points then, for the steps that it takes, not for the time. */
	unsigned points = 2 * STEPS / all;
	points = points > POINTS_MAX ? POINTS_MAX : points < POINTS_MIN ? POINTS_MIN : points;
	for (unsigned i = 0; i < points; i++) {
		pid = begin();
		uint32_t slot = table_slot(&t, pid);
		step(pid, (unsigned)((uint64_t)all * i / points));
		end(pid);
		table_await_death(&t, slot);
		bool busy = LOOK(t.ledger->turn[0][slot].busy_ns) != 0;
		CHECK(player_ask(&next, 1) == CUDA_SUCCESS, "the next process");
		CHECK(!busy || LOOK(t.ledger->turn[0][slot].busy_ns) == 0, "a dead one was waited for in vain");
		TABLE_UNTIL(LOOK(table_line(&t, next.pid, 0)->busy_ns) == 0);
	}
	CHECK(LOOK(table_line(&t, next.pid, 0)->waits) == 0, "the next process waited in its turn");
	player_end(&next, false);
	table_end(&t);
	return 0;
}
