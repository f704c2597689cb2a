/* syscalls.c: counts system calls by ptrace: syscalls [NAME=value...] PROGRAM ARGS...: in the first process, all its
 * threads together, between the marks of marks.h where it makes them, else from exec to its end. The number stands on the
 * last line of stderr. Started by bench/calls.py; the settings NAME=value are the program's alone, since a preload must not
 * stand in the tracer. Exit 2: this system does not let us trace. */
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <elf.h>

#include "marks.h"

#ifndef PTRACE_GET_SYSCALL_INFO
#define PTRACE_GET_SYSCALL_INFO 0x420e
#endif

/* struct ptrace_syscall_info of linux/ptrace.h, which cannot be included beside sys/ptrace.h: only what an entry has. */
struct entry_info {
	uint8_t op;
	uint8_t pad[3];
	uint32_t arch;
	uint64_t instruction_pointer, stack_pointer;
	uint64_t nr, args[6];
	uint64_t more[2];
};
#define OP_ENTRY 1

static _Noreturn void fail(const char *what)
{
	fprintf(stderr, "syscalls: %s: %s\n", what, strerror(errno));
	exit(2);
}

static _Noreturn void start(char **argv)
{
	for (; *argv && strchr(*argv, '='); argv++)
		putenv(*argv);
	if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) != 0)
		_exit(2);
	if (*argv)
		execv(*argv, argv);
	_exit(2);
}

static long all, between;
static bool marks, inside;

static void count(pid_t pid)
{
	struct entry_info info = {0};
	if (ptrace(PTRACE_GET_SYSCALL_INFO, pid, (void *)sizeof info, &info) <= 0 || info.op != OP_ENTRY)
		return;
	if (info.nr == SYS_getpgid && (int)info.args[0] == MARK_BEGIN) {
		marks = inside = true;
		return;
	}
	if (info.nr == SYS_getpgid && (int)info.args[0] == MARK_END) {
		inside = false;
		return;
	}
	all++;
	between += inside;
}

int main(int argc, char **argv)
{
	int status;
	if (argc < 2) {
		fprintf(stderr, "usage: syscalls [NAME=value...] PROGRAM ARGS...\n");
		return 2;
	}
	pid_t child = fork();
	if (child == 0)
		start(argv + 1);
	if (child < 0 || waitpid(child, &status, 0) != child || !WIFSTOPPED(status))
		fail("the program cannot be started and traced");
	if (ptrace(PTRACE_SETOPTIONS, child, NULL,
	           (void *)(PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACECLONE | PTRACE_O_EXITKILL)) != 0)
		fail("PTRACE_SETOPTIONS");
	int signal = 0;
	for (pid_t pid = child;;) {
		if (ptrace(PTRACE_SYSCALL, pid, NULL, (void *)(intptr_t)signal) != 0 && errno != ESRCH)
			fail("PTRACE_SYSCALL");
		pid = waitpid(-1, &status, __WALL);
		if (pid < 0)
			break;
		if (WIFEXITED(status) || WIFSIGNALED(status)) {
			if (pid == child)
				break;
			pid = child;
		}
		signal = 0;
		if (WIFSTOPPED(status) && WSTOPSIG(status) == (SIGTRAP | 0x80))
			count(pid);
		else if (WIFSTOPPED(status) && WSTOPSIG(status) != SIGTRAP && WSTOPSIG(status) != SIGSTOP)
			signal = WSTOPSIG(status);
	}
	fprintf(stderr, "%ld\n", marks ? between : all);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}
