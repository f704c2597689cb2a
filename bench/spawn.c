/* spawn.c: the time of whole processes: spawn ROUNDS COPIES [NAME=value...] PROGRAM ARGS...: starts that many copies at
 * once, waits until all have ended, and prints the nanoseconds of the quickest round. The settings are the programs' alone.
 * Started by bench/calls.py. Exit 1: a program could not be started, or failed. */
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static long now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000L + t.tv_nsec;
}

static long one_round(long copies, char **argv, char **environment)
{
	long begin = now();
	int status;
	for (long i = 0; i < copies; i++) {
		pid_t pid;
		if (posix_spawn(&pid, argv[0], NULL, NULL, argv, environment) != 0) {
			perror(argv[0]);
			exit(1);
		}
	}
	for (long i = 0; i < copies; i++) {
		if (wait(&status) < 0 || !WIFEXITED(status) || WEXITSTATUS(status) != 0) {
			fprintf(stderr, "spawn: %s ended with status %#x\n", argv[0], status);
			exit(1);
		}
	}
	return now() - begin;
}

int main(int argc, char **argv)
{
	char **program = argv + 3, *environment[256];
	int settings = 0, variables = 0;
	if (argc < 4) {
		fprintf(stderr, "usage: spawn ROUNDS COPIES [NAME=value...] PROGRAM ARGS...\n");
		return 1;
	}
	while (program[settings] && strchr(program[settings], '='))
		environment[variables++] = program[settings++];
	for (char **e = environ; *e && variables < 255; e++)
		environment[variables++] = *e;
	environment[variables] = NULL;
	if (!program[settings]) {
		fprintf(stderr, "spawn: no PROGRAM\n");
		return 1;
	}
	long best = 0;
	for (long round = strtol(argv[1], NULL, 10); round > 0; round--) {
		long took = one_round(strtol(argv[2], NULL, 10), program + settings, environment);
		best = best == 0 || took < best ? took : best;
	}
	printf("%ld\n", best);
	return 0;
}
