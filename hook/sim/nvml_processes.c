/* nvml_processes.c: which processes run on a device, and how much each uses it.
 *
 * A pid is told as the caller's pid namespace knows it (machine_pids.c): the agent on the host sees the host's pids of
 * what runs in containers, whatever user and namespaces it runs under. A process that the caller's namespace does not
 * contain is left out, as today's drivers do; older ones gave a pid that means nothing to the caller: the fault
 * "foreign-pids" does the same.
 */
#include <string.h>

#include "nvml_device.h"

/* ---- pids ---------------------------------------------------------------------------------------------------------
 */

static bool foreign_pids_wanted(void)
{
	for (int i = 0; i < SIM_FAULTS; i++)
		if (__atomic_load_n(&sim_machine->fault[i].active, __ATOMIC_ACQUIRE) &&
		    strcmp(sim_machine->fault[i].call, "foreign-pids") == 0)
			return true;
	return false;
}

/* The client's pid as the caller knows it; 0 where its namespace does not contain the process. */
static int visible_pid(int slot)
{
	int found = sim_client_pid(slot);
	return found > 0 || !foreign_pids_wanted() ? found : sim_machine->client[slot].pid;
}

/* ---- running processes --------------------------------------------------------------------------------------------
 */

struct process {
	unsigned pid, gpu_instance, compute_instance;
	unsigned long long memory;
};

/* A process is on the device while it has a context there, also one that costs nothing. */
static bool uses(const struct sim_client_device *device)
{
	return __atomic_load_n(&device->ncontexts, __ATOMIC_RELAXED) ||
	       __atomic_load_n(&device->memory, __ATOMIC_RELAXED);
}

/* Fills at most `room` entries and returns how many there are. */
static unsigned list_processes(uint32_t card, struct process *list, unsigned room)
{
	int slots = nvml_slots();
	unsigned n = 0;

	for (uint32_t i = 0; i < sim_machine->ndev; i++) {
		const struct sim_device_model *model = &sim_machine->model[i];
		bool cut = model->mig == SIM_MIG_INSTANCE;
		if (!nvml_belongs(i, card))
			continue;
		for (int slot = 0; slot < slots; slot++) {
			const struct sim_client *client = &sim_machine->client[slot];
			int pid;
			if (!uses(&client->device[i]) || !sim_client_alive(slot) || (pid = visible_pid(slot)) <= 0)
				continue;
			if (n < room)
				list[n] = (struct process){(unsigned)pid, cut ? model->gpu_instance : NVML_NO_INSTANCE,
				                           cut ? model->compute_instance : NVML_NO_INSTANCE,
				                           client->device[i].memory};
			n++;
		}
	}
	return n;
}

/* NVML's convention: *count is the room and becomes the number; too little room is INSUFFICIENT_SIZE with the number.
 */
static nvmlReturn_t give_processes(nvmlDevice_t device, unsigned *count, void *infos, size_t size)
{
	uint32_t card;
	nvmlReturn_t result = nvml_any(device, count, &card);
	if (result != NVML_SUCCESS)
		return result;
	struct process list[SIM_CLIENTS];
	unsigned room = *count, there = list_processes(card, list, SIM_CLIENTS);

	*count = there;
	if (there > SIM_CLIENTS || there > room)
		return NVML_ERROR_INSUFFICIENT_SIZE;
	if (there && !infos)
		return NVML_ERROR_INVALID_ARGUMENT;
	for (unsigned i = 0; i < there; i++) {
		nvmlProcessInfo_t info = {list[i].pid, list[i].memory, list[i].gpu_instance, list[i].compute_instance};
		memcpy((char *)infos + i * size, &info, size); /* version 1 is the beginning of the later ones */
	}
	return NVML_SUCCESS;
}

nvmlReturn_t sim_nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *count,
                                                         nvmlProcessInfo_t *infos)
{
	return give_processes(device, count, infos, sizeof(*infos));
}

nvmlReturn_t sim_nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t device, unsigned int *count,
                                                         nvmlProcessInfo_v2_t *infos)
{
	return give_processes(device, count, infos, sizeof(*infos));
}

nvmlReturn_t sim_nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t device, unsigned int *count,
                                                      nvmlProcessInfo_v1_t *infos)
{
	return give_processes(device, count, infos, sizeof(*infos));
}

/* The simulator has neither displays nor an MPS server. */
static nvmlReturn_t no_processes(nvmlDevice_t device, unsigned *count)
{
	uint32_t i;
	nvmlReturn_t result = nvml_any(device, count, &i);
	if (result == NVML_SUCCESS)
		*count = 0;
	return result;
}
#define NO_PROCESSES(name, info)                                                                                       \
	nvmlReturn_t sim_##name(nvmlDevice_t device, unsigned int *count, info *infos)                                 \
	{                                                                                                              \
		(void)infos;                                                                                           \
		return no_processes(device, count);                                                                    \
	}

NO_PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v3, nvmlProcessInfo_t)
NO_PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v2, nvmlProcessInfo_v2_t)
NO_PROCESSES(nvmlDeviceGetGraphicsRunningProcesses, nvmlProcessInfo_v1_t)
NO_PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v3, nvmlProcessInfo_t)
NO_PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v2, nvmlProcessInfo_v2_t)
NO_PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses, nvmlProcessInfo_v1_t)

nvmlReturn_t sim_nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device, nvmlProcessDetailList_t *out)
{
	uint32_t card;
	nvmlReturn_t result = nvml_any(device, out, &card);
	if (result != NVML_SUCCESS)
		return result;
	if (out->version != nvmlProcessDetailList_v1)
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	if (out->mode >= NVML_PROCESS_MODE_MAX)
		return NVML_ERROR_INVALID_ARGUMENT;
	struct process list[SIM_CLIENTS];
	bool compute = out->mode == NVML_PROCESS_MODE_COMPUTE || out->mode == NVML_PROCESS_MODE_ALL;
	unsigned room = out->numProcArrayEntries, there = compute ? list_processes(card, list, SIM_CLIENTS) : 0;

	out->numProcArrayEntries = there;
	if (there > SIM_CLIENTS || there > room || (there && !out->procArray))
		return NVML_ERROR_INSUFFICIENT_SIZE;
	for (unsigned i = 0; i < there; i++)
		out->procArray[i] = (nvmlProcessDetail_v1_t){list[i].pid, list[i].memory, list[i].gpu_instance,
		                                             list[i].compute_instance, 0};
	return NVML_SUCCESS;
}

/* ---- use by process -----------------------------------------------------------------------------------------------
 */

/* Who used the card within the last second; one sample each, stamped now. */
static unsigned list_samples(uint32_t card, nvmlProcessUtilizationInfo_v1_t *list, unsigned room)
{
	unsigned long long now_us = sim_now() / 1000;
	int slots = nvml_slots();
	unsigned n = 0;

	for (int slot = 0; slot < slots; slot++) {
		unsigned used = nvml_client_percent((uint32_t)slot, card);
		int pid;
		if (!used || !sim_client_alive(slot) || (pid = visible_pid(slot)) <= 0)
			continue;
		if (n < room)
			list[n] = (nvmlProcessUtilizationInfo_v1_t){
			        .timeStamp = now_us, .pid = (unsigned)pid, .smUtil = used, .memUtil = used};
		n++;
	}
	return n;
}

nvmlReturn_t sim_nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t *out,
                                                 unsigned int *count, unsigned long long last_seen_us)
{
	nvmlProcessUtilizationInfo_v1_t list[SIM_CLIENTS];
	uint32_t card;
	nvmlReturn_t result = nvml_card(device, count, &card);
	if (result != NVML_SUCCESS)
		return result;
	unsigned room = *count, there = list_samples(card, list, SIM_CLIENTS);
	if (there && list[0].timeStamp <= last_seen_us)
		there = 0;
	*count = there;
	if (!there)
		return NVML_ERROR_NOT_FOUND;
	if (!out || there > room)
		return NVML_ERROR_INSUFFICIENT_SIZE;
	for (unsigned i = 0; i < there; i++)
		out[i] = (nvmlProcessUtilizationSample_t){.pid = list[i].pid,
		                                          .timeStamp = list[i].timeStamp,
		                                          .smUtil = list[i].smUtil,
		                                          .memUtil = list[i].memUtil};
	return NVML_SUCCESS;
}

nvmlReturn_t sim_nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice_t device, nvmlProcessesUtilizationInfo_t *out)
{
	nvmlProcessUtilizationInfo_v1_t list[SIM_CLIENTS];
	uint32_t card;
	nvmlReturn_t result = nvml_card(device, out, &card);
	if (result != NVML_SUCCESS)
		return result;
	if (out->version != nvmlProcessesUtilizationInfo_v1)
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	unsigned room = out->processSamplesCount, there = list_samples(card, list, SIM_CLIENTS);
	if (there && list[0].timeStamp <= out->lastSeenTimeStamp)
		there = 0;
	out->processSamplesCount = there;
	if (!there)
		return NVML_ERROR_NOT_FOUND;
	if (!out->procUtilArray || there > room)
		return NVML_ERROR_INSUFFICIENT_SIZE;
	memcpy(out->procUtilArray, list, there * sizeof(*list));
	return NVML_SUCCESS;
}

/* ---- accounting: a mode that root switches on; here it is off for good ----------------------------------------------
 */

NVML_GETTER(nvmlDeviceGetAccountingMode, nvmlEnableState_t, nvml_card, NVML_FEATURE_DISABLED)

nvmlReturn_t sim_nvmlDeviceGetAccountingPids(nvmlDevice_t device, unsigned int *count, unsigned int *pids)
{
	(void)pids;
	return no_processes(device, count);
}

nvmlReturn_t sim_nvmlDeviceGetAccountingStats(nvmlDevice_t device, unsigned int pid, nvmlAccountingStats_t *stats)
{
	uint32_t i;
	nvmlReturn_t result = nvml_card(device, stats, &i);
	(void)pid;
	return result == NVML_SUCCESS ? NVML_ERROR_NOT_FOUND : result;
}

NVML_GETTER(nvmlDeviceGetAccountingBufferSize, unsigned int, nvml_card, 4000)
