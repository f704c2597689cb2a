/* Process numbers that come again. A pid is given to another process, within the same clock tick, while the dead one's
 * slot still stands in the ledger: the newcomer is not charged for it, nor does it keep it alive, whether it uses the
 * driver or not. A container's pid 1 is killed and started again on the same ledger: it starts with nothing. Two pid
 * namespaces use one ledger at the same time, each with its pid 1: neither takes the other for dead.
 */
#include <linux/sched.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/syscall.h>

#include "life.h"

#ifndef SYS_clone3
#define SYS_clone3 435
#endif

/* Runs body as pid 1 of a namespace of its own, with its own /proc; where that is not allowed, says so and does nothing. */
static pid_t in_namespace(void (*body)(int), int argument)
{
	if (unshare(CLONE_NEWPID | CLONE_NEWNS) != 0)
		SKIP("no right to make a pid namespace");
	pid_t pid = fork();
	CHECK(pid >= 0, "fork");
	if (pid == 0) {
		CHECK(getpid() == 1, "pid %d", getpid());
		if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
		    mount("proc", "/proc", "proc", 0, NULL) != 0)
			SKIP("no right to mount /proc");
		body(argument);
		_exit(0);
	}
	return pid;
}

/* A child with this pid. */
static pid_t fork_as(pid_t wanted)
{
	uint64_t tid = (uint64_t)wanted & 0xffffffff;
	struct clone_args args = {.exit_signal = SIGCHLD, .set_tid = (uint64_t)(uintptr_t)&tid, .set_tid_size = 1};
	return (pid_t)syscall(SYS_clone3, &args, sizeof(args));
}

/* ---- a pid is given again -------------------------------------------------------------------------------------------------- */

enum { FIRST = 100 };

static void dies_with_memory(void)
{
	pid_t pid = fork_as(FIRST);
	if (pid < 0)
		SKIP("no right to choose a pid");
	if (pid == 0) {
		start(0);
		life_take(3 * GIB);
		kill(getpid(), SIGKILL);
	}
	CHECK(pid == FIRST && waitpid(pid, NULL, 0) == pid, "pid %d", pid);
	CHECK(life_charged_by(FIRST) == 3 * GIB, "the dead one's slot is gone already");
}

static void newcomer_has_all(void)
{
	pid_t pid = fork_as(FIRST);
	if (pid == 0) {
		start(0);
		life_take(2 * GIB);
		CHECK(life_charged() == 2 * GIB && life_slots() == 1, "%lu bytes in %u slots",
		      (unsigned long)life_charged(), life_slots());
		_exit(0);
	}
	life_wait("another process of the same pid", pid, 0);
}

static void asks_beside(void)
{
	start(0);
	life_take(LIFE_LIMIT);
}

/* Has the number and nothing to do with the driver. */
static void newcomer_is_idle(void)
{
	int gate[2], started[2];
	char byte;
	CHECK(pipe2(gate, O_CLOEXEC) == 0 && pipe2(started, O_CLOEXEC) == 0, "pipe");
	pid_t pid = fork_as(FIRST);
	if (pid == 0) {
		dup2(gate[0], 0);
		execl("/bin/cat", "cat", (char *)NULL);
		_exit(1);
	}
	close(started[1]);
	CHECK(read(started[0], &byte, 1) == 0, "closed by exec");
	scene("beside an idle process of the same pid", asks_beside);
	close(started[0]);
	close(gate[0]);
	close(gate[1]);
	life_wait("idle process of the same pid", pid, 0);
}

static void reuse(int unused)
{
	(void)unused;
	for (int i = 0; i < 30; i++) {
		dies_with_memory();
		newcomer_has_all();
		scene("reset", life_all_free);
		dies_with_memory();
		newcomer_is_idle();
	}
}

/* ---- pid 1 ------------------------------------------------------------------------------------------------------------------- */

static void life_of_one(int unused)
{
	(void)unused;
	start(0);
	CHECK(used() == 0, "starts with %lu bytes", (unsigned long)used());
	life_take(3 * GIB);
	CHECK(life_charged() == 3 * GIB && life_charged_by(1) == 3 * GIB, "is charged %lu, all %lu",
	      (unsigned long)life_charged_by(1), (unsigned long)life_charged());
}

static void one_life(void)
{
	life_wait("pid 1", in_namespace(life_of_one, 0), 0);
}

static int go[2][2], told[2];

static void killed_from_outside(int unused)
{
	(void)unused;
	life_of_one(0);
	CHECK(write(told[1], "k", 1) == 1, "tell");
	pause();
}

static void one_killed(void)
{
	char byte;
	CHECK(pipe(told) == 0, "pipe");
	pid_t pid = in_namespace(killed_from_outside, 0);
	close(told[1]);
	CHECK(read(told[0], &byte, 1) == 1, "pid 1 does not start");
	kill(pid, SIGKILL);
	CHECK(waitpid(pid, NULL, 0) == pid, "wait");
	CHECK(life_charged() == 3 * GIB, "nobody has looked yet: %lu", (unsigned long)life_charged());
}

/* ---- two namespaces, one ledger ------------------------------------------------------------------------------------------------ */

static void one_of_two(int which)
{
	char byte = 't';
	start(0);
	CUdeviceptr kept = life_take(GIB);
	CHECK(write(told[1], &byte, 1) == 1 && read(go[which][0], &byte, 1) == 1, "gate");
	IS(cuMemAlloc_v2(&(CUdeviceptr){0}, 3 * GIB), CUDA_ERROR_OUT_OF_MEMORY);
	CHECK(used() == 2 * GIB, "%d: the other one was taken for dead: %lu used", which, (unsigned long)used());
	CHECK(write(told[1], &byte, 1) == 1 && read(go[which][0], &byte, 1) == 1, "gate");
	OK(cuMemFree_v2(kept));
}

static pid_t pid_of_two[2];

static void start_one(int which)
{
	pid_t outer = fork();
	CHECK(outer >= 0, "fork");
	if (outer == 0) {
		pid_t pid = in_namespace(one_of_two, which);
		int status;
		CHECK(waitpid(pid, &status, 0) == pid, "wait");
		CHECK(WIFEXITED(status), "pid 1 of namespace %d: status 0x%x", which, status);
		_exit(WEXITSTATUS(status));
	}
	pid_of_two[which] = outer;
}

static void two_namespaces(void)
{
	char byte;
	CHECK(pipe(go[0]) == 0 && pipe(go[1]) == 0 && pipe(told) == 0, "pipe");
	for (int i = 0; i < 2; i++)
		start_one(i);
	close(told[1]);
	for (int round = 0; round < 2; round++) {
		for (int i = 0; i < 2; i++)
			CHECK(read(told[0], &byte, 1) == 1, "one of two has ended");
		CHECK(life_slots() == 2 && life_charged() == 2 * GIB, "%lu bytes in %u slots",
		      (unsigned long)life_charged(), life_slots());
		for (int i = 0; i < 2; i++)
			CHECK(write(go[i][1], "g", 1) == 1, "go");
	}
	for (int i = 0; i < 2; i++)
		life_wait("one of two", pid_of_two[i], 0);
}

static void pid_reuse(void)
{
	pid_t pid = in_namespace(reuse, 0);
	int status;
	CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status), "status 0x%x", status);
	_exit(WEXITSTATUS(status));
}

/* A scene that may say that it could not be played. */
static bool played(void (*body)(void))
{
	int status;
	pid_t pid = fork();
	CHECK(pid >= 0, "fork");
	if (pid == 0) {
		body();
		exit(0);
	}
	CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status), "status 0x%x", status);
	CHECK(WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == 77, "code %d", WEXITSTATUS(status));
	return WEXITSTATUS(status) == 0;
}

int main(void)
{
	life_begin();
	bool all = played(two_namespaces);
	for (int life = 0; all && life < 3; life++)
		all = played(one_killed);
	for (int life = 0; all && life < 2; life++)
		all = played(one_life);
	all = all && played(pid_reuse);
	scene("afterwards", life_all_free);
	CHECK(peak() <= LIFE_LIMIT, "%lu bytes were held", (unsigned long)peak());
	return all ? 0 : 77;
}
