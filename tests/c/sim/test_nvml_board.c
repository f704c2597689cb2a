/* What exporters ask about a board once: it answers from its profile, or says that it has no such part. */
#include "nvml_test.h"

static void clocks(nvmlDevice_t device, unsigned high)
{
	unsigned memory = 0, list[256], count = 0, highest;

	GIVES(NVML_ERROR_INSUFFICIENT_SIZE, nvmlDeviceGetSupportedMemoryClocks(device, &count, NULL));
	CHECK(count == 1, "%u memory clocks", count);
	OK(nvmlDeviceGetSupportedMemoryClocks(device, &count, &memory));
	OK(nvmlDeviceGetMaxClockInfo(device, NVML_CLOCK_MEM, &highest));
	CHECK(memory == highest, "%u MHz, at most %u", memory, highest);
	count = 0;
	GIVES(NVML_ERROR_INSUFFICIENT_SIZE, nvmlDeviceGetSupportedGraphicsClocks(device, memory, &count, NULL));
	CHECK(count > 1 && count <= 256, "%u core clocks", count);
	OK(nvmlDeviceGetSupportedGraphicsClocks(device, memory, &count, list));
	CHECK(list[0] == high, "the highest is %u MHz", list[0]);
	for (unsigned i = 1; i < count; i++)
		CHECK(list[i] < list[i - 1] && list[i] >= 210, "%u after %u MHz", list[i], list[i - 1]);
	GIVES(NVML_ERROR_NOT_FOUND, nvmlDeviceGetSupportedGraphicsClocks(device, memory + 1, &count, list));
}

static void a_data_centre_board(void)
{
	nvmlDeviceAddressingMode_t mode = {.version = nvmlDeviceAddressingMode_v1, .value = 7};
	unsigned low, high, irq, other;
	nvmlDevice_t device = device_at(1);

	clocks(device, 1980);
	OK(nvmlDeviceGetPcieLinkMaxSpeed(device, &high));
	CHECK(high == NVML_PCIE_LINK_MAX_SPEED_32000MBPS, "PCIe speed %u", high);
	GIVES(NVML_ERROR_NOT_SUPPORTED, nvmlDeviceGetMinMaxFanSpeed(device, &low, &high));
	OK(nvmlDeviceGetAddressingMode(device, &mode));
	CHECK(mode.value == NVML_DEVICE_ADDRESSING_MODE_NONE, "mode %u", mode.value);
	mode.version = 0;
	GIVES(NVML_ERROR_ARGUMENT_VERSION_MISMATCH, nvmlDeviceGetAddressingMode(device, &mode));
	OK(nvmlDeviceGetIrqNum(device, &irq));
	OK(nvmlDeviceGetIrqNum(device_at(2), &other));
	CHECK(irq && irq != other, "interrupts %u and %u", irq, other);
}

static void a_consumer_board(void)
{
	unsigned low, high;

	OK(nvmlDeviceGetMinMaxFanSpeed(device_at(0), &low, &high));
	CHECK(low < high && high == 100, "fans from %u to %u %%", low, high);
	GIVES(NVML_ERROR_INVALID_ARGUMENT, nvmlDeviceGetMinMaxFanSpeed(device_at(0), NULL, &high));
}

int main(void)
{
	run_on("8xh100", a_data_centre_board);
	run_on("rtx4090", a_consumer_board);
	return 0;
}
