/* visible.h: which devices this process sees. Beside sim_visible_count() and sim_physical() of sim.h. */
#ifndef PARTAGE_SIM_VISIBLE_H
#define PARTAGE_SIM_VISIBLE_H

#include "sim.h"

void sim_visible_freeze(void);     /* reads CUDA_VISIBLE_DEVICES; called by cuInit before it succeeds */
CUdevice sim_ordinal(int physical); /* -1: not visible */

/* The physical index of an ordinal, or why a device query fails: not initialised, no such device, device lost. */
CUresult sim_device_of(CUdevice ordinal, int *physical);

#endif
