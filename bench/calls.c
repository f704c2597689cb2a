/* calls.c: repeats driver calls and prints what one took: calls OP[,OP...] COUNT. Started by bench/calls.py, with and
 * without a shim, over the null driver, also under callgrind and bench/syscalls.
 *
 * One line per operation: its name and the CPU nanoseconds of a call, of several threads also the hundredths of a second
 * processor that they had; beside a busy neighbour what a call of either takes, and in how many stretches of STRETCH calls
 * that was seen; or its name, `!` and why it could not be done. Before and after the measured calls stands a system call
 * that means nothing, for bench/syscalls to count between, and they are made from a function of their own, `measured`, for
 * callgrind. `calls first 1` allocates once and ends: the caller has the clock. Exit 1: no driver, or no such operation. */
#include "ops.h"

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "marks.h"

#define WARM    20000 /* calls */
#define STRETCH 100   /* calls beside a neighbour, some tens of microseconds */

static jmp_buf given_up;
static double spent, passed; /* nanoseconds of processors, and of a clock */

_Noreturn void give_up(const char *why)
{
	printf(" ! %s\n", why);
	longjmp(given_up, 1);
}

static double now(clockid_t clock)
{
	struct timespec t;
	clock_gettime(clock, &t);
	return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static __attribute__((noinline)) void measured(const struct op *op, long count)
{
	op->run(count);
}

static void repeat(const struct op *op, long count, int measure)
{
	while (count > 0) {
		long some = op->batch && op->batch < count ? op->batch : count;
		if (op->prepare)
			op->prepare(some);
		if (measure) {
			syscall(SYS_getpgid, MARK_BEGIN);
			passed -= now(CLOCK_MONOTONIC);
			spent -= now(CLOCK_PROCESS_CPUTIME_ID);
			measured(op, some);
			spent += now(CLOCK_PROCESS_CPUTIME_ID);
			passed += now(CLOCK_MONOTONIC);
			syscall(SYS_getpgid, MARK_END);
		} else {
			op->run(some);
		}
		count -= some;
	}
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

/* Beside a busy neighbour: what a call of either takes while both are at it. Two clocks run, and whoever gets the line
 * oftener makes more calls. A stretch in which the neighbour was not running, or we were not, says nothing: other work
 * on the machine would only make the figure better. */
static void repeat_beside(const struct op *op, long count)
{
	long stretches = count / STRETCH, both = 0;
	double *took = calloc((size_t)stretches + 1, sizeof *took);
	if (!took)
		give_up("no memory");
	syscall(SYS_getpgid, MARK_BEGIN);
	for (long i = 0; i < stretches; i++) {
		long theirs = -ops_neighbour_calls();
		double begin = now(CLOCK_MONOTONIC);
		measured(op, STRETCH);
		double end = now(CLOCK_MONOTONIC);
		theirs += ops_neighbour_calls();
		if (theirs >= STRETCH / 5 && theirs <= STRETCH * 5)
			took[both++] = 2 * (end - begin) / (double)(STRETCH + theirs);
	}
	syscall(SYS_getpgid, MARK_END);
	qsort(took, (size_t)both, sizeof *took, compare);
	printf(" %.2f %ld\n", took[both / 2], both);
	free(took);
}

static void do_op(const struct op *op, long count)
{
	printf("%s", op->name);
	fflush(stdout);
	spent = 0;
	passed = 0;
	if (setjmp(given_up))
		return;
	if (op->begin)
		op->begin();
	ops_load();
	repeat(op, op->batch ? op->batch : WARM, 0); /* set-up and cold caches are not the call's cost */
	if (ops_neighbour_calls() < 0) {
		repeat(op, count, 1);
		double second = 100 * (spent / passed - 1);
		printf(second > 1 ? " %.2f %.0f\n" : " %.2f\n", spent / (double)count, second);
	} else {
		repeat_beside(op, count);
	}
	if (op->end)
		op->end();
}

static const struct op *find(const char *name)
{
	for (const struct op *op = ops; op->name; op++)
		if (strcmp(op->name, name) == 0)
			return op;
	fprintf(stderr, "calls: no operation %s; there are", name);
	for (const struct op *op = ops; op->name; op++)
		fprintf(stderr, " %s", op->name);
	fprintf(stderr, "\n");
	exit(1);
}

int main(int argc, char **argv)
{
	if (argc != 3) {
		fprintf(stderr, "usage: calls OP[,OP...] COUNT\n");
		return 1;
	}
	if (strcmp(argv[1], "first") == 0) {
		ops_load();
		ops_first();
		_exit(0);
	}
	for (char *name = strtok(argv[1], ","); name; name = strtok(NULL, ","))
		do_op(find(name), strtol(argv[2], NULL, 10));
	return 0;
}
