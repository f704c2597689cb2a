/* ops.h: the calls that bench/calls repeats (ops.c). */
#ifndef PARTAGE_BENCH_OPS_H
#define PARTAGE_BENCH_OPS_H

struct op {
	const char *name;
	long batch;            /* calls of `run` at most, with one `prepare` before; 0: any number */
	void (*begin)(void);   /* once, or NULL */
	void (*prepare)(long); /* before each run, not measured, or NULL */
	void (*run)(long);     /* that many calls */
	void (*end)(void);     /* once, or NULL */
};

extern const struct op ops[];

void ops_load(void); /* loads the driver, makes its context current; leaves the program where that fails */
void ops_first(void); /* one allocation */

void turn_take(void); /* turn.c: from now on this process is under a gate, and it is its turn */

/* Calls that a busy neighbour on another processor has made so far; below 0 without one. */
long ops_neighbour_calls(void);

/* The operation under way cannot go on: prints why and leaves it (longjmp in calls.c). */
_Noreturn void give_up(const char *why);

#endif
