/* nvml_utilization.c: how busy each process keeps a device: nvmlDeviceGetProcessUtilization,
 * nvmlDeviceGetProcessesUtilizationInfo.
 *
 * The driver's samples, less those of processes outside this container. Which process ids it uses depends on its
 * version: where any sample bears a host pid that the ledger knows, all are host pids, and are translated; else they
 * are ours.
 */
#include <errno.h>
#include <signal.h>
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

/* Keeps the samples of this container's processes; returns how many of those there are. */
static unsigned keep_own(struct samples *s, int index)
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
	return n;
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

/* ---- all of this container's together, for nvml_busy.c ------------------------------------------------------------ */

#define PERIOD_US 1000000ULL /* a driver may keep older samples of who does nothing now */

/* The pids are those of our namespace if any of them is somebody there: the driver then leaves nobody of ours out. */
static bool names_our_world(const nvmlProcessUtilizationSample_t *sample, unsigned count)
{
	for (unsigned i = 0; i < count; i++)
		if (sample[i].pid != 0 && (kill((pid_t)sample[i].pid, 0) == 0 || errno == EPERM))
			return true;
	return count == 0;
}

bool vgpu_own_samples(nvmlDevice_t device, int index, unsigned *gpu, unsigned *memory)
{
	nvmlProcessUtilizationSample_t sample[PTG_SLOTS];
	unsigned count = PTG_SLOTS;
	unsigned long long newest = 0;
	*gpu = *memory = 0;
	nvmlReturn_t error = real_nvmlDeviceGetProcessUtilization(device, sample, &count, 0);
	if (error == NVML_ERROR_NOT_FOUND)
		count = 0;
	else if (error != NVML_SUCCESS)
		return false;
	bool ours = names_our_world(sample, count);
	for (unsigned i = 0; i < count; i++)
		newest = sample[i].timeStamp > newest ? sample[i].timeStamp : newest;
	struct samples s = {sample, count, sizeof(*sample), pid_of_sample};
	unsigned processes = keep_own(&s, index);
	for (unsigned i = 0; i < s.count; i++) {
		if (sample[i].timeStamp + PERIOD_US < newest)
			continue;
		*gpu += sample[i].smUtil;
		*memory += sample[i].memUtil;
	}
	*gpu = *gpu > 100 ? 100 : *gpu;
	*memory = *memory > 100 ? 100 : *memory;
	return s.count != 0 || processes == 0 || ours;
}
