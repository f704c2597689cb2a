/* test_host_dead.c: processes that are killed in their turn, an arbiter that is killed, one that ends, one that is idle. */
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "world.h"

static bool has_a_ghost(const struct ptg_host_stats *s)
{
	return s->ghosts > 0;
}

/* Start a process that takes its slot and a turn and keeps it; returns once it is in flight. */
static pid_t holder(const struct world *w, const char *name, unsigned slot)
{
	int ends[2];
	char byte;
	CHECK(!pipe(ends), "%s", strerror(errno));
	pid_t pid = fork();
	if (pid == 0) {
		/* A description of its own, as a process has: the lock goes with this process. */
		struct hand mine = hand_open(w, name);
		CHECK(take_slot(&mine, slot), "slot %u", slot);
		want(&mine, 0, slot);
		await_open(&mine, 0);
		begin(&mine, 0, slot);
		CHECK(write(ends[1], "x", 1) == 1, "%s", strerror(errno));
		for (;;)
			pause();
	}
	close(ends[1]);
	CHECK(read(ends[0], &byte, 1) == 1, "the holder ended");
	close(ends[0]);
	return pid;
}

static void kill_and_reap(pid_t pid, int number)
{
	CHECK(!kill(pid, number) && waitpid(pid, NULL, 0) == pid, "%s", strerror(errno));
}

/* What a dead process claims keeps nobody waiting, whether it died before its turn was closed or after. */
static void test_dead_in_its_turn(void)
{
	struct world w = world_make("dead");
	struct hand a = hand_make(&w, "a", GATED30, NULL), b = hand_make(&w, "b", GATED30, NULL);
	struct ptg_host *host = world_host(&w, PTG_HOST_FOREVER, 0);
	take_slot(&b, 0);
	pid_t pid = holder(&w, "a", 2);
	kill_and_reap(pid, SIGKILL);
	take_turn(&b, 0, 0);
	await_stat(host, has_a_ghost, "the dead is found");
	/* The container goes on in another slot, and in the same one once that is cleared. */
	take_slot(&a, 3);
	take_turn(&a, 0, 3);
	take_turn(&b, 0, 0);
	CHECK(take_slot(&a, 2), "the dead one's slot");
	memset(&a.ledger->turn[0][2], 0, sizeof a.ledger->turn[0][2]);
	take_turn(&a, 0, 2);
	pid = holder(&w, "a", 5);
	want(&b, 0, 0);
	await_closed(&a, 0);
	kill_and_reap(pid, SIGKILL);
	await_open(&b, 0);
	ptg_host_close(host);
}

/* Killed at any moment, the next arbiter finds the words as they were left and goes on from there. */
static void test_killed_arbiter(void)
{
	struct world w = world_make("killed");
	struct hand a = hand_make(&w, "a", GATED30, NULL), b = hand_make(&w, "b", GATED30, NULL);
	take_slot(&a, 0);
	take_slot(&b, 0);
	for (int i = 0; i < 20; i++) {
		int ready;
		uint32_t before = word_of(&a, 0);
		pid_t pid = world_arbiter(&w, "60", &ready);
		world_ready(ready, "ready");
		CHECK(a.turns->arbiter == pid, "arbiter %d, not %d", a.turns->arbiter, pid);
		want(&a, 0, 0);
		await_open(&a, 0);
		CHECK(word_of(&a, 0) > before, "the word went back: %u, %u", before, word_of(&a, 0));
		begin(&a, 0, 0);
		if (i % 2) {
			want(&b, 0, 0);
			await_closed(&a, 0);
		}
		kill_and_reap(pid, SIGKILL);
		finish(&a, 0, 0);
	}
	int ready, status;
	pid_t pid = world_arbiter(&w, "60", &ready);
	world_ready(ready, "ready");
	await_open(&b, 0);
	/* Asked to end, it closes what is open and lets its locks go. */
	CHECK(!kill(pid, SIGTERM) && waitpid(pid, &status, 0) == pid, "%s", strerror(errno));
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "status %#x", status);
	CHECK(!(word_of(&a, 0) & 1) && !(word_of(&b, 0) & 1), "words %u, %u", word_of(&a, 0), word_of(&b, 0));
	CHECK(a.turns->arbiter == 0, "it still says %d", a.turns->arbiter);
	struct ptg_host *host = world_host(&w, PTG_HOST_FOREVER, 0);
	begin(&b, 0, 0);
	finish(&b, 0, 0);
	take_turn(&a, 0, 0);
	ptg_host_close(host);
}

/* It goes when nobody has to take turns, not before, and never while somebody is just being started. */
static void test_idle(void)
{
	struct world w = world_make("idle");
	struct hand a = hand_make(&w, "a", FREE, NULL);
	struct ptg_host *host = world_open(&w, w.root, 0, 0);
	CHECK(ptg_host_run(host) == PTG_HOST_IDLE, "somebody who launches freely needs no arbiter");
	ptg_host_close(host);
	hand_share(&a, GATED30);
	int ready, status;
	pid_t pid = world_arbiter(&w, "0.001", &ready);
	world_ready(ready, "ready");
	take_slot(&a, 0);
	take_turn(&a, 0, 0);
	CHECK(waitpid(pid, &status, WNOHANG) == 0, "it left a tenant that takes turns, status %#x", status);
	hand_leave(&a);
	CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && !WEXITSTATUS(status), "status %#x", status);
	CHECK(log_waits(&w, "idle: gone"), "no word");
	hand_remove(&a);
	/* And when there is nothing left to serve. */
	host = world_open(&w, w.root, PTG_HOST_FOREVER, 0);
	char moved[300];
	snprintf(moved, sizeof moved, "%s.moved", w.root);
	CHECK(!rename(w.root, moved), "%s", strerror(errno));
	CHECK(ptg_host_run(host) == PTG_HOST_ROOT_GONE, "it serves a root that is gone");
	ptg_host_close(host);
	CHECK(!rename(moved, w.root), "%s", strerror(errno));
	host = world_open(&w, w.root, 1000000, 0);
	const char *left[] = {".arbiter", ".lock"};
	for (unsigned i = 0; i < sizeof left / sizeof *left; i++) {
		snprintf(moved, sizeof moved, "%s/%s", w.root, left[i]);
		unlink(moved);
	}
	CHECK(!rmdir(w.root), "%s", strerror(errno));
	CHECK(ptg_host_run(host) == PTG_HOST_ROOT_GONE, "it serves a root that is removed");
	ptg_host_close(host);
}

int main(void)
{
	test_dead_in_its_turn();
	test_killed_arbiter();
	test_idle();
	return 0;
}
