/* context.h: how contexts and memory find each other. */
#ifndef PARTAGE_SIM_CONTEXT_H
#define PARTAGE_SIM_CONTEXT_H

#include "sim.h"

/* memory.c: what a context owns; the second frees all of it. */
struct sim_memory_space *sim_memory_space_new(void);
void sim_memory_space_free(struct sim_context *context);
/* pool.c: the last context on the device is gone, and with it what its pool held. */
void sim_pools_close(int device);

/* array.c: what it owns of arrays and mip-maps is gone. */
void sim_arrays_destroy(struct sim_context *context);
void sim_externals_destroy(struct sim_context *context);

bool sim_context_flags_valid(unsigned flags);         /* context.c: as cuCtxCreate takes them */
void sim_limits_init(struct sim_context *context);   /* context_state.c */
bool sim_devices_peer(int device, int other);         /* device.c: one can reach the other's memory */
bool sim_device_place(int device, unsigned *domain, unsigned *bus, unsigned *slot); /* device.c: on the PCI bus */

/* The handle as a context: a live one, or the current one for NULL; NULL: neither. */
struct sim_context *sim_context_of(CUcontext handle);

#endif
