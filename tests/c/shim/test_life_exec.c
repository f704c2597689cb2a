/* New programs in all the ways there are: vfork, posix_spawn, fork and exec, each from a process with live memory, and
 * exec of the process that holds the memory itself, into a program that uses the driver, into one that never does, and
 * twenty times over. A child is charged for its own, its parent goes on being charged once, and an image that is
 * gone holds nothing, neither in the ledger nor on the card, as soon as somebody asks.
 */
#include <spawn.h>

#include "life.h"

extern char **environ;

/* ---- roles: this program, started afresh ------------------------------------------------------------------------------ */

/* Beside a parent that holds `before` bytes. */
static void beside(uint64_t before)
{
	start(0);
	CHECK(used() == before, "a new program sees %lu, others hold %lu", (unsigned long)used(),
	      (unsigned long)before);
	life_take(512 * MIB);
	CHECK(life_charged_by(getpid()) == 512 * MIB, "charged %lu", (unsigned long)life_charged_by(getpid()));
	CHECK(life_charged() == before + 512 * MIB, "all: %lu", (unsigned long)life_charged());
}

/* 2.5 of 4 GiB: there is room for one image only. */
static void again(uint64_t times)
{
	start(0);
	life_take(2560 * MIB);
	CHECK(life_slots() == 1, "%u slots for one process", life_slots());
	if (times > 0)
		life_exec("again", times - 1);
	CHECK(times == 0, "exec");
}

/* Never touches the driver: tells that it is there, and waits until it is told to end. */
static void idle(uint64_t descriptors)
{
	char byte = 'i';
	CHECK(write((int)(descriptors & 0xffff), &byte, 1) == 1, "tell");
	CHECK(read((int)(descriptors >> 16), &byte, 1) == 0, "end");
}

static int role(const char *name, uint64_t number)
{
	if (strcmp(name, "beside") == 0)
		beside(number);
	else if (strcmp(name, "again") == 0)
		again(number);
	else if (strcmp(name, "idle") == 0)
		idle(number);
	else
		return 3;
	return 0;
}

/* ---- scenes ------------------------------------------------------------------------------------------------------------ */

static pid_t by_vfork(char **argv)
{
	pid_t pid = vfork();
	if (pid == 0) {
		execve("/proc/self/exe", argv, environ);
		_exit(4);
	}
	return pid;
}

static pid_t by_spawn(char **argv)
{
	pid_t pid;
	return posix_spawn(&pid, "/proc/self/exe", NULL, NULL, argv, environ) == 0 ? pid : -1;
}

static pid_t by_fork(char **argv)
{
	pid_t pid = fork();
	if (pid == 0) {
		execve("/proc/self/exe", argv, environ);
		_exit(4);
	}
	return pid;
}

/* A shell that replaces itself, started by a shell. */
static pid_t by_chain(char **argv)
{
	char line[600], self[400];
	ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);
	CHECK(n > 0, "own name");
	self[n] = '\0';
	snprintf(line, sizeof(line), "sh -c 'exec %s %s %s'; exit $?", self, argv[1], argv[2]);
	return by_spawn((char *[]){argv[0], "shell", line, NULL});
}

static void children(void)
{
	static pid_t (*const ways[])(char **argv) = {by_vfork, by_spawn, by_fork, by_chain};
	start(0);
	CUdeviceptr kept = life_take(GIB);
	char number[32];
	snprintf(number, sizeof(number), "%lu", (unsigned long)GIB);
	char *argv[] = {"life", "beside", number, NULL};
	for (int round = 0; round < 3; round++)
		for (unsigned i = 0; i < sizeof(ways) / sizeof(*ways); i++) {
			life_wait("a child's program", ways[i](argv), 0);
			CHECK(life_charged_by(getpid()) == GIB, "way %u: the parent is charged %lu", i,
			      (unsigned long)life_charged_by(getpid()));
			/* Nobody watches here: the dead are looked for before a refusal. */
			OK(cuMemFree_v2(life_take(LIFE_LIMIT - GIB)));
			CHECK(used() == GIB, "way %u: after its end all use %lu", i, (unsigned long)used());
		}
	OK(cuMemFree_v2(kept));
	CHECK(used() == 0, "%lu used", (unsigned long)used());
}

/* exec where the file does not exist: the process goes on as if nothing had been asked. */
static void failing_exec(void)
{
	start(0);
	CUdeviceptr kept = life_take(3 * GIB);
	CHECK(execl("/nonexistent/program", "x", (char *)NULL) == -1, "exec");
	CHECK(life_charged() == 3 * GIB, "charged %lu", (unsigned long)life_charged());
	IS(cuMemAlloc_v2(&(CUdeviceptr){0}, 2 * GIB), CUDA_ERROR_OUT_OF_MEMORY);
	OK(cuMemFree_v2(kept));
	CHECK(life_charged() == 0, "charged %lu", (unsigned long)life_charged());
}

static void over_and_over(void)
{
	life_exec("again", 20);
	CHECK(false, "exec");
}

/* The process lives on without the driver: what its former image held is to be had, while it lives. */
static void into_another_program(void)
{
	int told[2], end[2];
	char byte;
	CHECK(pipe(told) == 0 && pipe(end) == 0, "pipe");
	pid_t pid = fork();
	CHECK(pid >= 0, "fork");
	if (pid == 0) {
		close(end[1]);
		start(0);
		life_take(3 * GIB);
		life_exec("idle", (uint64_t)end[0] << 16 | (uint64_t)told[1]);
		_exit(4);
	}
	close(told[1]);
	CHECK(read(told[0], &byte, 1) == 1, "the child does not live on");
	CHECK(life_charged_by(pid) == 3 * GIB, "nobody has looked yet: charged %lu",
	      (unsigned long)life_charged_by(pid));
	start(0);
	OK(cuMemFree_v2(life_take(LIFE_LIMIT)));
	CHECK(used() == 0, "%lu used", (unsigned long)used());
	close(end[1]);
	life_wait("the other program", pid, 0);
}

int main(int argc, char **argv)
{
	if (argc > 2 && strcmp(argv[1], "shell") == 0) {
		execl("/bin/sh", "sh", "-c", argv[2], (char *)NULL);
		return 4;
	}
	if (argc > 2)
		return role(argv[1], strtoull(argv[2], NULL, 10));
	life_begin();
	scene("children", children);
	scene("exec that fails", failing_exec);
	scene("exec over and over", over_and_over);
	scene("exec into a program without the driver", into_another_program);
	scene("afterwards", life_all_free);
	CHECK(peak() <= LIFE_LIMIT, "%lu bytes were held", (unsigned long)peak());
	return 0;
}
