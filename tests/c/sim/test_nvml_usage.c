/* Utilisation: the sum of the living clients' last second, per device and per process; power, heat and clocks follow.
 */
#include "nvml_test.h"

static nvmlUtilization_t use_of(unsigned index)
{
	nvmlUtilization_t use;
	OK(nvmlDeviceGetUtilizationRates(device_at(index), &use));
	return use;
}

static void sums_over_the_living(void)
{
	struct sim_machine *machine = map_machine();
	CHECK(use_of(0).gpu == 0, "idle: %u %%", use_of(0).gpu);
	int first = play_client(machine, 10, 1001), second = play_client(machine, 500, 1002);
	play_busy(machine, 10, 0, SIM_BUCKET_NS / 4);
	play_busy(machine, 500, 0, SIM_BUCKET_NS / 2);
	CHECK(use_of(0).gpu == 75 && use_of(0).memory == 75, "%u %%", use_of(0).gpu);
	CHECK(use_of(1).gpu == 0, "the other device: %u %%", use_of(1).gpu);
	nvmlGpuDynamicPstatesInfo_t domains;
	OK(nvmlDeviceGetDynamicPstatesInfo(device_at(0), &domains));
	CHECK(domains.utilization[0].percentage == 75 && domains.utilization[2].percentage == 0, "by domain");
	close(second);
	CHECK(use_of(0).gpu == 25, "after the second died: %u %%", use_of(0).gpu);
	play_busy(machine, 10, 0, SIM_BUCKET_NS * 3);
	CHECK(use_of(0).gpu == 100, "never more than all: %u %%", use_of(0).gpu);
	close(first);
	CHECK(use_of(0).gpu == 0, "nobody left: %u %%", use_of(0).gpu);
}

static void old_buckets_do_not_count(void)
{
	struct sim_machine *machine = map_machine();
	int client = play_client(machine, 5, 1001);
	play_busy(machine, 5, 0, SIM_BUCKET_NS);
	for (unsigned i = 0; i < SIM_BUCKETS; i++) /* the same entries, one lap earlier */
		machine->client[5].device[0].bucket_at[i] -= SIM_BUCKETS;
	CHECK(use_of(0).gpu == 0, "%u %%", use_of(0).gpu);
	close(client);
}

static void by_process(void)
{
	struct sim_machine *machine = map_machine();
	nvmlProcessUtilizationSample_t samples[8];
	nvmlProcessUtilizationInfo_v1_t infos[8];
	nvmlProcessesUtilizationInfo_t list = {.version = nvmlProcessesUtilizationInfo_v1};
	unsigned count = 0;
	GIVES(NVML_ERROR_NOT_FOUND, nvmlDeviceGetProcessUtilization(device_at(0), NULL, &count, 0));
	int first = play_client(machine, 1, 1001), second = play_client(machine, 2, 1002);
	play_busy(machine, 1, 0, SIM_BUCKET_NS * 3 / 10);
	play_busy(machine, 2, 0, SIM_BUCKET_NS * 7 / 10);
	GIVES(NVML_ERROR_INSUFFICIENT_SIZE, nvmlDeviceGetProcessUtilization(device_at(0), NULL, &count, 0));
	CHECK(count == 2, "%u samples", count);
	OK(nvmlDeviceGetProcessUtilization(device_at(0), samples, &count, 0));
	CHECK(samples[0].pid == 1001 && samples[0].smUtil == 30, "pid %u: %u %%", samples[0].pid, samples[0].smUtil);
	CHECK(samples[1].pid == 1002 && samples[1].smUtil == 70, "pid %u: %u %%", samples[1].pid, samples[1].smUtil);
	count = 8;
	GIVES(NVML_ERROR_NOT_FOUND, nvmlDeviceGetProcessUtilization(device_at(0), samples, &count, UINT64_MAX));
	GIVES(NVML_ERROR_INSUFFICIENT_SIZE, nvmlDeviceGetProcessesUtilizationInfo(device_at(0), &list));
	list.procUtilArray = infos;
	OK(nvmlDeviceGetProcessesUtilizationInfo(device_at(0), &list));
	CHECK(list.processSamplesCount == 2 && infos[1].smUtil == 70, "%u samples", list.processSamplesCount);
	close(first);
	close(second);
}

static void what_follows_from_it(void)
{
	struct sim_machine *machine = map_machine();
	unsigned idle_mw, busy_mw, cold, hot, slow, fast, limit;
	unsigned long long reasons, before, after;
	nvmlPstates_t state;
	nvmlDevice_t device = device_at(0);

	OK(nvmlDeviceGetPowerUsage(device, &idle_mw));
	OK(nvmlDeviceGetTemperature(device, NVML_TEMPERATURE_GPU, &cold));
	OK(nvmlDeviceGetClockInfo(device, NVML_CLOCK_SM, &slow));
	OK(nvmlDeviceGetPerformanceState(device, &state));
	CHECK(state == NVML_PSTATE_8, "an idle consumer card is at P%d", (int)state);
	OK(nvmlDeviceGetCurrentClocksEventReasons(device, &reasons));
	CHECK(reasons == nvmlClocksEventReasonGpuIdle, "reasons %#llx", reasons);
	OK(nvmlDeviceGetTotalEnergyConsumption(device, &before));
	int client = play_client(machine, 5, 1001);
	play_busy(machine, 5, 0, SIM_BUCKET_NS);
	machine->device[0].engine_busy_ns += UINT64_C(3600000000000);
	OK(nvmlDeviceGetPowerUsage(device, &busy_mw));
	OK(nvmlDeviceGetEnforcedPowerLimit(device, &limit));
	OK(nvmlDeviceGetTemperature(device, NVML_TEMPERATURE_GPU, &hot));
	OK(nvmlDeviceGetClockInfo(device, NVML_CLOCK_SM, &fast));
	OK(nvmlDeviceGetPerformanceState(device, &state));
	OK(nvmlDeviceGetTotalEnergyConsumption(device, &after));
	CHECK(idle_mw < busy_mw && busy_mw == limit, "%u mW idle, %u busy, limit %u", idle_mw, busy_mw, limit);
	CHECK(cold < hot && slow < fast && state == NVML_PSTATE_0, "%u C, %u MHz, P%d", hot, fast, (int)state);
	CHECK(after - before > 1000ull * 3600 * 400, "an hour at 450 W took %llu mJ", after - before);
	close(client);
}

static void samples_by_bucket(void)
{
	struct sim_machine *machine = map_machine();
	nvmlSample_t samples[100];
	nvmlValueType_t type;
	unsigned count = 0;
	int client = play_client(machine, 5, 1001);
	play_busy(machine, 5, 0, SIM_BUCKET_NS / 5);
	OK(nvmlDeviceGetSamples(device_at(0), NVML_GPU_UTILIZATION_SAMPLES, 0, &type, &count, NULL));
	CHECK(count == 100 && type == NVML_VALUE_TYPE_UNSIGNED_INT, "%u samples", count);
	OK(nvmlDeviceGetSamples(device_at(0), NVML_GPU_UTILIZATION_SAMPLES, 0, &type, &count, samples));
	CHECK(samples[count - 1].sampleValue.uiVal == 20, "%u %%", samples[count - 1].sampleValue.uiVal);
	CHECK(samples[0].timeStamp < samples[count - 1].timeStamp, "oldest first");
	unsigned long long last = samples[count - 1].timeStamp + 1000000000;
	GIVES(NVML_ERROR_NOT_FOUND,
	      nvmlDeviceGetSamples(device_at(0), NVML_GPU_UTILIZATION_SAMPLES, last, &type, &count, samples));
	close(client);
}

int main(void)
{
	run_on("zero2", sums_over_the_living);
	run_on("zero", old_buckets_do_not_count);
	run_on("zero", by_process);
	run_on("rtx4090", what_follows_from_it);
	run_on("zero", samples_by_bucket);
	return 0;
}
