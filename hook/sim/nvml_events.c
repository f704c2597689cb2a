/* nvml_events.c: event sets: XIDs as they happen.
 *
 * Whoever raises an XID (fault injection, from C or Python) writes it into the machine file's ring under SIM_LOCK_EVENT
 * and bumps event_word; a waiter sleeps on that futex word. A set sees what happens after a device was registered in
 * it. A writer killed between the bump and the wake costs a waiter at most one second, not its life. What can go wrong:
 * a waiter that falls more than SIM_EVENTS behind misses the oldest.
 */
#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "nvml_device.h"

#define LOST_WAKE_NS UINT64_C(1000000000)

struct nvmlEventSet_st {
	uint64_t magic; /* EVENT_SET while live */
	pthread_mutex_t lock; /* NVML is thread-safe: two threads may wait on one set, each event goes to one of them */
	uint64_t next; /* sequence of the next event to look at */
	unsigned long long types[SIM_DEVICES];
};

#define EVENT_SET UINT64_C(0x7465736576656d6e)

static bool is_set(nvmlEventSet_t set)
{
	return set && set->magic == EVENT_SET;
}

nvmlReturn_t sim_nvmlEventSetCreate(nvmlEventSet_t *out)
{
	if (!out)
		return NVML_ERROR_INVALID_ARGUMENT;
	nvmlEventSet_t set = calloc(1, sizeof(*set));
	if (!set)
		return NVML_ERROR_MEMORY;
	set->magic = EVENT_SET;
	pthread_mutex_init(&set->lock, NULL);
	set->next = __atomic_load_n(&sim_machine->event_count, __ATOMIC_ACQUIRE) + 1;
	*out = set;
	return NVML_SUCCESS;
}

nvmlReturn_t sim_nvmlEventSetFree(nvmlEventSet_t set)
{
	if (!is_set(set))
		return NVML_ERROR_INVALID_ARGUMENT;
	set->magic = 0;
	free(set);
	return NVML_SUCCESS;
}

static unsigned long long supported_types(uint32_t card)
{
	unsigned long long types = nvmlEventTypeXidCriticalError;
	if (sim_machine->model[card].ecc)
		types |= nvmlEventTypeSingleBitEccError | nvmlEventTypeDoubleBitEccError;
	return types;
}

NVML_GETTER(nvmlDeviceGetSupportedEventTypes, unsigned long long, nvml_card, supported_types(i))

nvmlReturn_t sim_nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types, nvmlEventSet_t set)
{
	uint32_t card;
	nvmlReturn_t result = nvml_card(device, is_set(set) ? set : NULL, &card);
	if (result != NVML_SUCCESS)
		return result;
	if (types & ~supported_types(card))
		return NVML_ERROR_NOT_SUPPORTED;
	pthread_mutex_lock(&set->lock);
	set->types[card] |= types;
	pthread_mutex_unlock(&set->lock);
	return NVML_SUCCESS;
}

static uint32_t card_of(int32_t device)
{
	const struct sim_device_model *model = &sim_machine->model[device];
	return model->mig == SIM_MIG_INSTANCE ? (uint32_t)model->parent : (uint32_t)device;
}

static void describe(const struct sim_event *event, nvmlEventData_t *data)
{
	const struct sim_device_model *model = &sim_machine->model[event->device];
	bool cut = model->mig == SIM_MIG_INSTANCE;
	*data = (nvmlEventData_t){
	        .device = nvml_handle(card_of(event->device)),
	        .eventType = nvmlEventTypeXidCriticalError,
	        .eventData = event->xid,
	        .gpuInstanceId = cut ? model->gpu_instance : NVML_NO_INSTANCE,
	        .computeInstanceId = cut ? model->compute_instance : NVML_NO_INSTANCE,
	};
}

/* The next event that the set asked for; under its lock. */
static bool take_event(nvmlEventSet_t set, nvmlEventData_t *data)
{
	uint64_t last = __atomic_load_n(&sim_machine->event_count, __ATOMIC_ACQUIRE);

	if (last >= SIM_EVENTS && set->next <= last - SIM_EVENTS)
		set->next = last - SIM_EVENTS + 1; /* overwritten meanwhile */
	while (set->next <= last) {
		const struct sim_event *slot = &sim_machine->event[(set->next - 1) % SIM_EVENTS];
		struct sim_event event = {.device = __atomic_load_n(&slot->device, __ATOMIC_ACQUIRE),
		                          .xid = __atomic_load_n(&slot->xid, __ATOMIC_ACQUIRE)};
		/* After the copy: an entry that was overwritten meanwhile has another number, or none. */
		bool whole = __atomic_load_n(&slot->sequence, __ATOMIC_ACQUIRE) == set->next++;
		if (!whole || event.device < 0 || (uint32_t)event.device >= sim_machine->ndev)
			continue;
		if (!(set->types[card_of(event.device)] & nvmlEventTypeXidCriticalError))
			continue;
		describe(&event, data);
		return true;
	}
	return false;
}

static bool lost_device(nvmlEventSet_t set)
{
	for (uint32_t i = 0; i < sim_machine->ndev; i++)
		if (set->types[i] && __atomic_load_n(&sim_machine->device[i].lost, __ATOMIC_ACQUIRE))
			return true;
	return false;
}

/* An event, or what a waiter is told without one; TIMEOUT: nothing yet. */
static nvmlReturn_t look(nvmlEventSet_t set, nvmlEventData_t *data)
{
	pthread_mutex_lock(&set->lock);
	nvmlReturn_t result = take_event(set, data) ? NVML_SUCCESS
	                      : lost_device(set)    ? NVML_ERROR_GPU_IS_LOST
	                                            : NVML_ERROR_TIMEOUT;
	pthread_mutex_unlock(&set->lock);
	return result;
}

nvmlReturn_t sim_nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int timeout_ms)
{
	if (!is_set(set) || !data)
		return NVML_ERROR_INVALID_ARGUMENT;
	uint64_t deadline = sim_now() + timeout_ms * UINT64_C(1000000);

	for (;;) {
		/* The word first: what happens after this load makes the wait return at once. */
		uint32_t word = __atomic_load_n(&sim_machine->event_word, __ATOMIC_ACQUIRE);
		nvmlReturn_t result = look(set, data);
		if (result != NVML_ERROR_TIMEOUT)
			return result;
		uint64_t now = sim_now();
		if (now >= deadline)
			return NVML_ERROR_TIMEOUT;
		uint64_t span = deadline - now < LOST_WAKE_NS ? deadline - now : LOST_WAKE_NS;
		struct timespec time = {.tv_sec = (time_t)(span / 1000000000), .tv_nsec = (long)(span % 1000000000)};
		syscall(SYS_futex, &sim_machine->event_word, FUTEX_WAIT, word, &time, NULL, 0);
	}
}

/* Version 1 knows no instances; its structure is shorter by those two words. */
nvmlReturn_t sim_nvmlEventSetWait(nvmlEventSet_t set, nvmlEventData_t *out, unsigned int timeout_ms)
{
	nvmlEventData_t data;
	nvmlReturn_t result = sim_nvmlEventSetWait_v2(set, out ? &data : NULL, timeout_ms);
	if (result == NVML_SUCCESS)
		memcpy(out, &data, offsetof(nvmlEventData_t, gpuInstanceId));
	return result;
}
