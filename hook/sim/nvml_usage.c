/* nvml_usage.c: memory and utilisation, from what the clients wrote into the machine file.
 *
 * Busy time stands in buckets of 50 ms per client and device; utilisation is the sum of the last second's buckets over
 * the living. The dead are recognised by their free OFD lock and count nothing.
 */
#include <string.h>

#include "nvml_device.h"

/* Slots are taken lowest first, so the first that never had a tenant ends the list. Looking further would read, and on
 * a tmpfs allocate, the pages of a thousand clients that never were. */
int nvml_slots(void)
{
	int slots = 0;
	while (slots < SIM_CLIENTS && __atomic_load_n(&sim_machine->client[slots].generation, __ATOMIC_ACQUIRE))
		slots++;
	return slots;
}

uint64_t nvml_used(uint32_t index)
{
	uint64_t used = 0;
	for (uint32_t i = 0; i < sim_machine->ndev; i++)
		if (nvml_belongs(i, index))
			used += sim_device_used((int)i);
	return used;
}

/* ---- memory -------------------------------------------------------------------------------------------------------
 */

static nvmlReturn_t memory_of(nvmlDevice_t device, const void *out, nvmlMemory_v2_t *memory)
{
	uint32_t i;
	nvmlReturn_t result = nvml_any(device, out, &i);
	if (result != NVML_SUCCESS)
		return result;
	const struct sim_device_model *model = &sim_machine->model[i];
	memory->total = model->memory;
	memory->reserved = model->reserved;
	memory->used = nvml_used(i);
	memory->free = model->memory - model->reserved;
	memory->free = memory->used < memory->free ? memory->free - memory->used : 0;
	return NVML_SUCCESS;
}

/* Version 1 knows no reserved memory and counts it as used. */
nvmlReturn_t sim_nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *out)
{
	nvmlMemory_v2_t memory;
	nvmlReturn_t result = memory_of(device, out, &memory);
	if (result == NVML_SUCCESS)
		*out = (nvmlMemory_t){.total = memory.total, .free = memory.free, .used = memory.total - memory.free};
	return result;
}

nvmlReturn_t sim_nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *out)
{
	if (out && out->version != nvmlMemory_v2)
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	if (out)
		return memory_of(device, out, out);
	return NVML_ERROR_INVALID_ARGUMENT;
}

/* The driver maps a little of the window for itself: 1 MiB a process on the card. */
nvmlReturn_t sim_nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, nvmlBAR1Memory_t *out)
{
	uint32_t i, processes = 0;
	int slots = nvml_slots();
	nvmlReturn_t result = nvml_any(device, out, &i);
	if (result != NVML_SUCCESS)
		return result;
	for (int slot = 0; slot < slots; slot++)
		if (__atomic_load_n(&sim_machine->client[slot].device[i].memory, __ATOMIC_RELAXED) &&
		    sim_client_alive(slot))
			processes++;
	out->bar1Total = sim_machine->model[i].bar1;
	out->bar1Used = (unsigned long long)(processes + 1) << 20;
	if (out->bar1Used > out->bar1Total)
		out->bar1Used = out->bar1Total;
	out->bar1Free = out->bar1Total - out->bar1Used;
	return NVML_SUCCESS;
}

/* ---- utilisation --------------------------------------------------------------------------------------------------
 */

static uint64_t busy_ns(const struct sim_client_device *client, uint64_t now)
{
	uint64_t last = now / SIM_BUCKET_NS, sum = 0;

	for (uint64_t n = 1; n <= NVML_WINDOW_BUCKETS && n <= last; n++) {
		uint64_t bucket = last - n;
		if (__atomic_load_n(&client->bucket_at[bucket % SIM_BUCKETS], __ATOMIC_ACQUIRE) == bucket)
			sum += __atomic_load_n(&client->bucket_ns[bucket % SIM_BUCKETS], __ATOMIC_RELAXED);
	}
	return sum;
}

static unsigned percent(uint64_t ns)
{
	uint64_t window = (uint64_t)NVML_WINDOW_BUCKETS * SIM_BUCKET_NS;
	uint64_t value = (ns * 100 + window / 2) / window;
	return value > 100 ? 100 : (unsigned)value;
}

unsigned nvml_client_percent(uint32_t client, uint32_t card)
{
	uint64_t now = sim_now(), sum = 0;
	for (uint32_t i = 0; i < sim_machine->ndev; i++)
		if (nvml_belongs(i, card))
			sum += busy_ns(&sim_machine->client[client].device[i], now);
	return percent(sum);
}

unsigned nvml_busy_percent(uint32_t card)
{
	uint64_t now = sim_now(), sum = 0;
	int slots = nvml_slots();

	for (uint32_t i = 0; i < sim_machine->ndev; i++) {
		if (!nvml_belongs(i, card))
			continue;
		for (int slot = 0; slot < slots; slot++) {
			uint64_t ns = busy_ns(&sim_machine->client[slot].device[i], now);
			if (ns && sim_client_alive(slot)) /* the lock is asked only where there is something to count */
				sum += ns;
		}
	}
	return percent(sum);
}

/* The memory figure says for how much of the time memory was read or written: simulated work always does. */
nvmlReturn_t sim_nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *utilization)
{
	uint32_t i;
	nvmlReturn_t result = nvml_card(device, utilization, &i);
	if (result != NVML_SUCCESS)
		return result;
	if (sim_machine->model[i].mig == SIM_MIG_CARD)
		return NVML_ERROR_NOT_SUPPORTED; /* as on hardware: in MIG mode no figure speaks for the whole card */
	utilization->gpu = utilization->memory = nvml_busy_percent(i);
	return NVML_SUCCESS;
}

/* The same figures by domain: graphics, framebuffer, video, bus. Only the first two are ever busy here. */
nvmlReturn_t sim_nvmlDeviceGetDynamicPstatesInfo(nvmlDevice_t device, nvmlGpuDynamicPstatesInfo_t *info)
{
	uint32_t card;
	nvmlReturn_t result = nvml_card(device, info, &card);
	if (result != NVML_SUCCESS)
		return result;
	if (sim_machine->model[card].mig == SIM_MIG_CARD)
		return NVML_ERROR_NOT_SUPPORTED;
	memset(info, 0, sizeof(*info));
	for (unsigned domain = 0; domain < 4; domain++) {
		info->utilization[domain].bIsPresent = 1;
		info->utilization[domain].percentage = domain < 2 ? nvml_busy_percent(card) : 0;
	}
	return NVML_SUCCESS;
}

/* Engines that no simulated work uses: idle, with the real sampling period. */
static nvmlReturn_t idle_engine(nvmlDevice_t device, unsigned *utilization, unsigned *period_us)
{
	uint32_t i;
	nvmlReturn_t result = nvml_card(device, period_us ? utilization : NULL, &i);
	if (result != NVML_SUCCESS)
		return result;
	*utilization = 0;
	*period_us = 167000;
	return NVML_SUCCESS;
}

nvmlReturn_t sim_nvmlDeviceGetEncoderUtilization(nvmlDevice_t device, unsigned int *utilization,
                                                 unsigned int *period_us)
{
	return idle_engine(device, utilization, period_us);
}

nvmlReturn_t sim_nvmlDeviceGetDecoderUtilization(nvmlDevice_t device, unsigned int *utilization,
                                                 unsigned int *period_us)
{
	return idle_engine(device, utilization, period_us);
}

nvmlReturn_t sim_nvmlDeviceGetJpgUtilization(nvmlDevice_t device, unsigned int *utilization, unsigned int *period_us)
{
	return idle_engine(device, utilization, period_us);
}

nvmlReturn_t sim_nvmlDeviceGetOfaUtilization(nvmlDevice_t device, unsigned int *utilization, unsigned int *period_us)
{
	return idle_engine(device, utilization, period_us);
}

nvmlReturn_t sim_nvmlDeviceGetEncoderStats(nvmlDevice_t device, unsigned int *sessions, unsigned int *fps,
                                           unsigned int *latency)
{
	uint32_t i;
	nvmlReturn_t result = nvml_card(device, fps && latency ? sessions : NULL, &i);
	if (result == NVML_SUCCESS)
		*sessions = *fps = *latency = 0;
	return result;
}

nvmlReturn_t sim_nvmlDeviceGetFBCStats(nvmlDevice_t device, nvmlFBCStats_t *stats)
{
	uint32_t i;
	nvmlReturn_t result = nvml_card(device, stats, &i);
	if (result == NVML_SUCCESS)
		memset(stats, 0, sizeof(*stats));
	return result;
}

/* What crossed the bus in the last second is not known: copies are counted by the time they took. */
nvmlReturn_t sim_nvmlDeviceGetPcieThroughput(nvmlDevice_t device, nvmlPcieUtilCounter_t counter, unsigned int *kb_per_s)
{
	uint32_t i;
	nvmlReturn_t result = nvml_card(device, kb_per_s, &i);
	if (result != NVML_SUCCESS)
		return result;
	return (unsigned)counter < NVML_PCIE_UTIL_COUNT ? NVML_ERROR_NOT_SUPPORTED : NVML_ERROR_INVALID_ARGUMENT;
}

/* One sample a bucket, oldest first, at most the history that is kept. */
nvmlReturn_t sim_nvmlDeviceGetSamples(nvmlDevice_t device, nvmlSamplingType_t type, unsigned long long last_seen_us,
                                      nvmlValueType_t *value_type, unsigned int *count, nvmlSample_t *samples)
{
	const unsigned kept = 100;
	int slots = nvml_slots();
	unsigned n = 0;
	uint32_t i;
	nvmlReturn_t result = nvml_card(device, value_type ? count : NULL, &i);

	if (result != NVML_SUCCESS)
		return result;
	if (type != NVML_GPU_UTILIZATION_SAMPLES && type != NVML_MEMORY_UTILIZATION_SAMPLES)
		return NVML_ERROR_NOT_SUPPORTED;
	*value_type = NVML_VALUE_TYPE_UNSIGNED_INT;
	if (!samples) {
		*count = kept;
		return NVML_SUCCESS;
	}
	uint64_t bucket = sim_now() / SIM_BUCKET_NS, first = bucket > kept ? bucket - kept : 0;
	for (uint64_t b = first; b < bucket && n < *count; b++) {
		unsigned long long at_us = (b + 1) * (SIM_BUCKET_NS / 1000);
		uint64_t ns = 0;
		if (at_us <= last_seen_us)
			continue;
		for (int slot = 0; slot < slots; slot++) {
			const struct sim_client_device *c = &sim_machine->client[slot].device[i];
			if (__atomic_load_n(&c->bucket_at[b % SIM_BUCKETS], __ATOMIC_ACQUIRE) == b &&
			    sim_client_alive(slot))
				ns += c->bucket_ns[b % SIM_BUCKETS];
		}
		samples[n].timeStamp = at_us;
		samples[n++].sampleValue.uiVal = ns >= SIM_BUCKET_NS ? 100 : (unsigned)(ns * 100 / SIM_BUCKET_NS);
	}
	*count = n;
	return n ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
}
