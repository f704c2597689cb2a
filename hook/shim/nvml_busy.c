/* nvml_busy.c: how busy a device is: nvmlDeviceGetUtilizationRates, nvmlDeviceGetSamples, nvmlDeviceGetDynamicPstatesInfo.
 *
 * A container sees its own use, not its neighbours': the part of the whole device's time in which its kernels ran, so a
 * share of 30 % that computes without a pause reads 30 and not 100. That is the sum of what the same NVML says of its
 * processes, and what `partage top` says it got; it needs no idea of what the share is at the moment, and a burst fits
 * into it. Video engines and the bus are the card's.
 *
 * The driver's samples of processes say it. Where they do not say whose they are (no such samples on this card, or
 * process ids of a namespace that the ledger does not know), it is taken from the time that this container had work in
 * flight, between two questions; and where it takes no turns, nobody knows, and the card's figure stands. A device that
 * was not granted says nothing.
 */
#include <string.h>

#include "core.h"
#include "nvml_hooks.h"

#define PERIOD_NS UINT64_C(166000000) /* between two looks that are compared, at least */

struct busy {
	unsigned gpu, memory; /* percent */
};

/* ---- from the ledger ---------------------------------------------------------------------------------------------- */

struct look {
	uint64_t at, flight_ns;
};

/* All the container's processes; false: none of them launches under the gate. */
static bool in_flight(const struct ptg_ledger *ledger, int index, struct look *look)
{
	bool any = false;
	look->flight_ns = 0;
	for (unsigned i = 0; i < PTG_SLOTS; i++) {
		const struct ptg_slot_turn *line = &ledger->turn[index][i];
		if (__atomic_load_n(&ledger->slot[i].state, __ATOMIC_ACQUIRE) != PTG_SLOT_USED)
			continue;
		uint64_t since = __atomic_load_n(&line->busy_ns, __ATOMIC_RELAXED);
		look->flight_ns += __atomic_load_n(&line->flight_ns, __ATOMIC_RELAXED);
		if (since != 0 && since < look->at)
			look->flight_ns += look->at - since;
		any = any || __atomic_load_n(&line->launches, __ATOMIC_RELAXED) != 0;
	}
	return any;
}

/* What was in flight since the look before the last one that is a period old; the first question has none, and is told
 * whether anything is. */
static bool from_ledger(int index, unsigned *gpu)
{
	static struct look last[PTG_DEVICES], before[PTG_DEVICES]; /* under the state's lock */
	struct vgpu_state *s = vgpu_state();
	struct look now = {.at = vgpu_now_ns()};
	bool known = false;
	if (s == NULL)
		return false;
	vgpu_lock(&s->lock);
	if (vgpu_ledger_ready(s))
		known = in_flight(s->ledger.map, index, &now);
	if (last[index].at == 0 || now.at - last[index].at >= PERIOD_NS) {
		before[index] = last[index];
		last[index] = now;
	}
	struct look from = before[index];
	vgpu_unlock(&s->lock);
	if (from.at == 0)
		*gpu = now.flight_ns != 0 ? 100 : 0;
	else
		*gpu = now.flight_ns > from.flight_ns
		               ? (unsigned)((now.flight_ns - from.flight_ns) * 100 / (now.at - from.at))
		               : 0;
	*gpu = *gpu > 100 ? 100 : *gpu;
	return known;
}

/* ---- what the container is told ----------------------------------------------------------------------------------- */

/* NVML_SUCCESS: `own` is the container's; NVML_ERROR_NOT_FOUND: the driver's figures stand; else what to answer. */
static nvmlReturn_t own_use(nvmlDevice_t device, struct busy *own)
{
	nvmlReturn_t error;
	int index = vgpu_nvml_index(device, &error);
	if (index < 0)
		return error == NVML_SUCCESS && vgpu_granted_count() >= 0 ? NVML_ERROR_NO_PERMISSION
		                                                          : NVML_ERROR_NOT_FOUND;
	if (vgpu_own_samples(device, index, &own->gpu, &own->memory))
		return NVML_SUCCESS;
	if (!from_ledger(index, &own->gpu))
		return NVML_ERROR_NOT_FOUND;
	own->memory = own->gpu;
	return NVML_SUCCESS;
}

nvmlReturn_t hook_nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *utilization)
{
	struct busy own;
	nvmlReturn_t error = real_nvmlDeviceGetUtilizationRates(device, utilization);
	if (vgpu_mode() == VGPU_FREE || error != NVML_SUCCESS || utilization == NULL)
		return error;
	error = own_use(device, &own);
	if (error == NVML_ERROR_NOT_FOUND)
		return NVML_SUCCESS;
	*utilization = (nvmlUtilization_t){0};
	if (error == NVML_SUCCESS)
		*utilization = (nvmlUtilization_t){.gpu = own.gpu, .memory = own.memory};
	return error;
}

nvmlReturn_t hook_nvmlDeviceGetDynamicPstatesInfo(nvmlDevice_t device, nvmlGpuDynamicPstatesInfo_t *pDynamicPstatesInfo)
{
	struct busy own;
	nvmlReturn_t error = real_nvmlDeviceGetDynamicPstatesInfo(device, pDynamicPstatesInfo);
	if (vgpu_mode() == VGPU_FREE || error != NVML_SUCCESS || pDynamicPstatesInfo == NULL)
		return error;
	error = own_use(device, &own);
	if (error == NVML_ERROR_NOT_FOUND)
		return NVML_SUCCESS;
	if (error != NVML_SUCCESS) {
		memset(pDynamicPstatesInfo, 0, sizeof(*pDynamicPstatesInfo));
		return error;
	}
	pDynamicPstatesInfo->utilization[0].percentage = own.gpu; /* domain 0 is the GPU, 1 its memory */
	pDynamicPstatesInfo->utilization[1].percentage = own.memory;
	return NVML_SUCCESS;
}

/* The driver keeps a history of the card, and none of each process: of the container there is the latest sample. A caller
 * without an array asks how large it must be; the driver's number will do. */
nvmlReturn_t hook_nvmlDeviceGetSamples(nvmlDevice_t device, nvmlSamplingType_t type,
                                       unsigned long long lastSeenTimeStamp, nvmlValueType_t *sampleValType,
                                       unsigned int *sampleCount, nvmlSample_t *samples)
{
	struct busy own;
	nvmlReturn_t error =
	        real_nvmlDeviceGetSamples(device, type, lastSeenTimeStamp, sampleValType, sampleCount, samples);
	bool use = type == NVML_GPU_UTILIZATION_SAMPLES || type == NVML_MEMORY_UTILIZATION_SAMPLES;
	if (vgpu_mode() == VGPU_FREE || error != NVML_SUCCESS || !use || samples == NULL || *sampleCount == 0)
		return error;
	error = own_use(device, &own);
	if (error == NVML_ERROR_NOT_FOUND)
		return NVML_SUCCESS;
	unsigned latest = 0;
	for (unsigned i = 1; i < *sampleCount; i++)
		if (samples[i].timeStamp > samples[latest].timeStamp)
			latest = i;
	nvmlSample_t one = {.timeStamp = samples[latest].timeStamp};
	memset(samples, 0, *sampleCount * sizeof(*samples));
	*sampleCount = 0;
	if (error != NVML_SUCCESS)
		return error;
	unsigned percent = type == NVML_GPU_UTILIZATION_SAMPLES ? own.gpu : own.memory;
	if (*sampleValType == NVML_VALUE_TYPE_DOUBLE)
		one.sampleValue.dVal = percent;
	else if (*sampleValType == NVML_VALUE_TYPE_UNSIGNED_LONG_LONG)
		one.sampleValue.ullVal = percent;
	else
		one.sampleValue.uiVal = percent;
	samples[0] = one;
	*sampleCount = 1;
	return NVML_SUCCESS;
}
