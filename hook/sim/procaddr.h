/* procaddr.h: the table behind the simulated cuGetProcAddress; the rows are generated (sim_procaddr.c). */
#ifndef PARTAGE_SIM_PROCADDR_H
#define PARTAGE_SIM_PROCADDR_H

#include <cuda.h>
#include <stdbool.h>

struct sim_proc {
	const char *name;     /* base name, without _v2 or _ptsz */
	int version;  /* CUDA version that introduced this ABI */
	bool per_thread;
	void *function;
	const char *symbol;   /* name under which it is exported */
};
extern const struct sim_proc sim_proc[]; /* sorted by name, plain before per-thread, rising versions */
extern const unsigned sim_procs;

/* The function for a base name and a version, or NULL with the reason in *status. */
void *sim_procaddr(const char *name, int version, bool per_thread, CUdriverProcAddressQueryResult *status);

#endif
