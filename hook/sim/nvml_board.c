/* nvml_board.c: figures of the board that exporters ask for once: interrupt, speeds, ranges of clocks and fans.
 *
 * All of them follow from the profile and never change. A board that has no such part says NOT_SUPPORTED.
 */
#include "nvml_device.h"

#define CLOCK_STEP_MHZ 15 /* core clocks of all these boards come in steps of this */
#define CLOCK_LOW_MHZ  210
#define FAN_LOW        30 /* per cent */

static const struct sim_device_model *model_of(uint32_t card)
{
	return &sim_machine->model[card];
}

/* One line of the machine's interrupt controller for each card, behind those of the host. */
NVML_GETTER(nvmlDeviceGetIrqNum, unsigned int, nvml_card, 64 + model_of(i)->minor)

static unsigned link_speed(uint32_t card)
{
	return model_of(card)->pcie_gen <= NVML_PCIE_LINK_MAX_SPEED_64000MBPS ? model_of(card)->pcie_gen
	                                                                      : NVML_PCIE_LINK_MAX_SPEED_INVALID;
}

NVML_GETTER(nvmlDeviceGetPcieLinkMaxSpeed, unsigned int, nvml_card, link_speed(i))

nvmlReturn_t sim_nvmlDeviceGetMinMaxFanSpeed(nvmlDevice_t device, unsigned int *low, unsigned int *high)
{
	uint32_t card;
	nvmlReturn_t result = nvml_card(device, high ? low : NULL, &card);
	if (result != NVML_SUCCESS)
		return result;
	if (model_of(card)->fans == 0)
		return NVML_ERROR_NOT_SUPPORTED;
	*low = FAN_LOW;
	*high = 100;
	return NVML_SUCCESS;
}

/* The host's memory is reached through registered pages only, as where the kernel's HMM is not used. */
nvmlReturn_t sim_nvmlDeviceGetAddressingMode(nvmlDevice_t device, nvmlDeviceAddressingMode_t *mode)
{
	uint32_t card;
	if (mode && mode->version != nvmlDeviceAddressingMode_v1)
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	nvmlReturn_t result = nvml_card(device, mode, &card);
	if (result == NVML_SUCCESS)
		mode->value = NVML_DEVICE_ADDRESSING_MODE_NONE;
	return result;
}

/* ---- clocks that could be asked for: one of the memory, and the core's from the highest down ------------------------
 */

nvmlReturn_t sim_nvmlDeviceGetSupportedMemoryClocks(nvmlDevice_t device, unsigned int *count, unsigned int *mhz)
{
	uint32_t card;
	nvmlReturn_t result = nvml_card(device, count, &card);
	if (result != NVML_SUCCESS)
		return result;
	unsigned room = *count;
	*count = 1;
	if (room < 1 || !mhz)
		return NVML_ERROR_INSUFFICIENT_SIZE;
	mhz[0] = model_of(card)->memory_clock_khz / 1000;
	return NVML_SUCCESS;
}

nvmlReturn_t sim_nvmlDeviceGetSupportedGraphicsClocks(nvmlDevice_t device, unsigned int memory_mhz, unsigned int *count,
                                                      unsigned int *mhz)
{
	uint32_t card;
	nvmlReturn_t result = nvml_card(device, count, &card);
	if (result != NVML_SUCCESS)
		return result;
	if (memory_mhz != model_of(card)->memory_clock_khz / 1000)
		return NVML_ERROR_NOT_FOUND;
	unsigned high = model_of(card)->clock_khz / 1000, room = *count;
	unsigned there = high > CLOCK_LOW_MHZ ? (high - CLOCK_LOW_MHZ) / CLOCK_STEP_MHZ + 1 : 1;
	*count = there;
	if (room < there || !mhz)
		return NVML_ERROR_INSUFFICIENT_SIZE;
	for (unsigned i = 0; i < there; i++)
		mhz[i] = high - i * CLOCK_STEP_MHZ;
	return NVML_SUCCESS;
}
