/* Event sets: what was registered arrives once and in order, the rest does not; a lost card says so everywhere. */
#include <linux/futex.h>
#include <pthread.h>
#include <sys/syscall.h>

#include "nvml_test.h"

static struct sim_machine *machine;

/* As fault injection does it; one writer here, so without the lock. */
static void raise_xid(int device, unsigned xid)
{
	uint64_t sequence = machine->event_count + 1;
	struct sim_event *event = &machine->event[(sequence - 1) % SIM_EVENTS];
	event->device = device;
	event->xid = xid;
	__atomic_store_n(&event->sequence, sequence, __ATOMIC_RELEASE);
	__atomic_store_n(&machine->event_count, sequence, __ATOMIC_RELEASE);
	__atomic_add_fetch(&machine->event_word, 1, __ATOMIC_RELEASE);
	syscall(SYS_futex, &machine->event_word, FUTEX_WAKE, 100, NULL, NULL, 0);
}

static void registered_and_in_order(void)
{
	nvmlEventSet_t set;
	nvmlEventData_t data;
	unsigned long long types;
	machine = map_machine();

	raise_xid(1, 11); /* before anybody watches */
	OK(nvmlEventSetCreate(&set));
	GIVES(NVML_ERROR_TIMEOUT, nvmlEventSetWait_v2(set, &data, 0));
	OK(nvmlDeviceGetSupportedEventTypes(device_at(1), &types));
	CHECK(types & nvmlEventTypeXidCriticalError, "types %#llx", types);
	GIVES(NVML_ERROR_NOT_SUPPORTED, nvmlDeviceRegisterEvents(device_at(1), nvmlEventTypePState, set));
	OK(nvmlDeviceRegisterEvents(device_at(1), nvmlEventTypeXidCriticalError, set));
	raise_xid(1, 13);
	raise_xid(0, 31); /* nobody asked about device 0 */
	raise_xid(1, 43);
	OK(nvmlEventSetWait_v2(set, &data, 1000));
	CHECK(data.device == device_at(1) && data.eventData == 13, "XID %llu", data.eventData);
	CHECK(data.eventType == nvmlEventTypeXidCriticalError && data.gpuInstanceId == 0xffffffff, "its kind");
	OK(nvmlEventSetWait_v2(set, &data, 1000));
	CHECK(data.eventData == 43, "XID %llu", data.eventData);
	GIVES(NVML_ERROR_TIMEOUT, nvmlEventSetWait_v2(set, &data, 0));
	for (unsigned i = 0; i < SIM_EVENTS + 10; i++)
		raise_xid(1, 1000 + i);
	OK(nvmlEventSetWait_v2(set, &data, 1000));
	CHECK(data.eventData == 1010, "the oldest that is kept is %llu", data.eventData);
	OK(nvmlEventSetFree(set));
	GIVES(NVML_ERROR_INVALID_ARGUMENT, nvmlEventSetCreate(NULL));
	GIVES(NVML_ERROR_INVALID_ARGUMENT, nvmlEventSetWait_v2(NULL, &data, 0));
}

static void *waiter(void *set)
{
	static nvmlEventData_t data;
	GIVES(NVML_SUCCESS, nvmlEventSetWait_v2(set, &data, 60000));
	return &data;
}

static void wakes_a_sleeper(void)
{
	nvmlEventSet_t set;
	pthread_t thread;
	void *result;
	machine = map_machine();
	OK(nvmlEventSetCreate(&set));
	OK(nvmlDeviceRegisterEvents(device_at(0), nvmlEventTypeXidCriticalError, set));
	CHECK(pthread_create(&thread, NULL, waiter, set) == 0, "thread");
	raise_xid(0, 79);
	CHECK(pthread_join(thread, &result) == 0 && ((nvmlEventData_t *)result)->eventData == 79, "woken");
	OK(nvmlEventSetFree(set));
}

static void lost(void)
{
	nvmlEventSet_t set;
	nvmlEventData_t data;
	nvmlMemory_t memory;
	nvmlDevice_t one = device_at(1), handle;
	unsigned count;
	machine = map_machine();
	OK(nvmlEventSetCreate(&set));
	OK(nvmlDeviceRegisterEvents(one, nvmlEventTypeXidCriticalError, set));
	machine->device[1].lost = 1;
	OK(nvmlDeviceGetCount_v2(&count));
	CHECK(count == 2, "a lost card is still counted: %u", count);
	GIVES(NVML_ERROR_GPU_IS_LOST, nvmlDeviceGetHandleByIndex_v2(1, &handle));
	GIVES(NVML_ERROR_GPU_IS_LOST, nvmlDeviceGetMemoryInfo(one, &memory));
	GIVES(NVML_ERROR_GPU_IS_LOST, nvmlEventSetWait_v2(set, &data, 60000));
	OK(nvmlDeviceGetMemoryInfo(device_at(0), &memory));
	machine->device[1].lost = 0;
	OK(nvmlDeviceGetMemoryInfo(one, &memory));
}

int main(void)
{
	run_on("zero2", registered_and_in_order);
	run_on("zero2", wakes_a_sleeper);
	run_on("zero2", lost);
	return 0;
}
