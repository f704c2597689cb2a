/* nvml_utilization.c: how busy each process keeps a device: nvmlDeviceGetProcessUtilization,
 * nvmlDeviceGetProcessesUtilizationInfo.
 *
 * The driver's samples, less those of processes outside this container. Which process ids it uses depends on its
 * version: where any sample bears a host pid that the ledger knows, all are host pids, and are translated; else they
 * are ours.
 */
#include <string.h>

#include "core.h"
#include "nvml_hooks.h"

/* Both kinds of sample begin with fields of their own; `pid` finds the process id. */
struct samples {
	void *data;
	unsigned count;
	size_t size;
	unsigned int *(*pid)(void *sample);
};

static const struct vgpu_process *owner(const struct vgpu_process *own, unsigned n, unsigned int pid, bool host)
{
	for (unsigned i = 0; i < n; i++)
		if (pid != 0 && pid == (host ? own[i].host_pid : own[i].pid))
			return &own[i];
	return NULL;
}

/* Keeps the samples of this container's processes. */
static void keep_own(struct samples *s, int index)
{
	struct vgpu_process own[PTG_SLOTS];
	unsigned n = index < 0 ? 0 : vgpu_processes(index, own, PTG_SLOTS), kept = 0;
	bool host = false;
	for (unsigned i = 0; i < s->count; i++)
		host = host || owner(own, n, *s->pid((char *)s->data + i * s->size), true) != NULL;
	for (unsigned i = 0; i < s->count; i++) {
		void *sample = (char *)s->data + i * s->size;
		const struct vgpu_process *o = owner(own, n, *s->pid(sample), host);
		if (o == NULL)
			continue;
		*s->pid(sample) = o->pid;
		memmove((char *)s->data + kept++ * s->size, sample, s->size);
	}
	s->count = kept;
}

static unsigned int *pid_of_sample(void *sample)
{
	return &((nvmlProcessUtilizationSample_t *)sample)->pid;
}

static unsigned int *pid_of_info(void *info)
{
	return &((nvmlProcessUtilizationInfo_v1_t *)info)->pid;
}

/* A caller without an array asks how large it must be; the driver's number covers all processes, so it will do. */
nvmlReturn_t hook_nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t *utilization,
                                                  unsigned int *processSamplesCount,
                                                  unsigned long long lastSeenTimeStamp)
{
	nvmlReturn_t error =
	        real_nvmlDeviceGetProcessUtilization(device, utilization, processSamplesCount, lastSeenTimeStamp);
	if (vgpu_mode() == VGPU_FREE || error != NVML_SUCCESS || utilization == NULL || processSamplesCount == NULL)
		return error;
	struct samples s = {utilization, *processSamplesCount, sizeof(*utilization), pid_of_sample};
	int index = vgpu_nvml_index(device, &error);
	keep_own(&s, index);
	*processSamplesCount = s.count;
	return s.count != 0 ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t hook_nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice_t device,
                                                        nvmlProcessesUtilizationInfo_t *procesesUtilInfo)
{
	nvmlReturn_t error = real_nvmlDeviceGetProcessesUtilizationInfo(device, procesesUtilInfo);
	if (vgpu_mode() == VGPU_FREE || error != NVML_SUCCESS || procesesUtilInfo->procUtilArray == NULL)
		return error;
	struct samples s = {procesesUtilInfo->procUtilArray, procesesUtilInfo->processSamplesCount,
	                    sizeof(*procesesUtilInfo->procUtilArray), pid_of_info};
	int index = vgpu_nvml_index(device, &error);
	keep_own(&s, index);
	procesesUtilInfo->processSamplesCount = s.count;
	return s.count != 0 ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
}
