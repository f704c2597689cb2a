/* launch.h: one kernel launch, whichever entry point it came through. */
#ifndef PARTAGE_SIM_LAUNCH_H
#define PARTAGE_SIM_LAUNCH_H

#include "engine.h"
#include "module.h"

struct sim_launch {
	unsigned grid[3], block[3];
	unsigned shared;   /* dynamic, bytes */
	void **params;     /* one pointer per parameter, or NULL */
	void **extra;      /* CU_LAUNCH_PARAM_*, or NULL */
	bool cooperative;
	unsigned cluster[3]; /* 0: none asked for */
};

/* Checks the launch: the engine time that it needs on so many SMs; 0: all of the device's. */
CUresult sim_launch_cost(const struct sim_function *function, const struct sim_launch *launch, unsigned sms,
                         uint64_t *device_ns);
/* Checks the launch and queues it. */
CUresult sim_launch(struct sim_function *function, struct sim_stream *stream, const struct sim_launch *launch);
/* The current context, the stream and the function in it; where the function is NULL, why. */
struct sim_function *sim_launch_target(CUfunction f, CUstream handle, struct sim_stream **stream, CUresult *error);

#endif
