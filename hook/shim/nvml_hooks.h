/* nvml_hooks.h: what nvml_devices.c, nvml_memory.c, nvml_processes.c and nvml_utilization.c share. */
#ifndef PARTAGE_SHIM_NVML_HOOKS_H
#define PARTAGE_SHIM_NVML_HOOKS_H

#include "hooks.h"
#include "shim.h"

/* Index of an NVML device in policy and ledger, by its UUID alone; -1: not granted or without a limit, or the driver
 * could not say (its error). */
int vgpu_nvml_index(nvmlDevice_t device, nvmlReturn_t *error);

/* One process of this container on one device. */
struct vgpu_process {
	unsigned int pid;      /* as this container counts */
	unsigned int host_pid; /* 0 = not known */
	unsigned long long bytes;
};
/* Those that have something charged on the device, at most `room` are stored; returns how many there are. Their bytes
 * add up to what is used. */
unsigned vgpu_processes(int index, struct vgpu_process *out, unsigned room);
/* Percent of the last period in which kernels of this container's processes ran, and in which they used memory, by the
 * driver's samples; false: it does not say whose they are. */
bool vgpu_own_samples(nvmlDevice_t device, int index, unsigned *gpu, unsigned *memory);
/* Gives back what processes that have died had charged: what is used and who uses it are told of one moment. */
void vgpu_forget_dead(void);

#endif
