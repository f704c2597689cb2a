/* nvml_ecc.c: ECC mode and counters, retired pages, remapped rows.
 *
 * A simulated board has no defects of its own; its XIDs come from injected faults. Boards without ECC say
 * NOT_SUPPORTED.
 */
#include <string.h>

#include "nvml_device.h"

static nvmlReturn_t ecc_card(nvmlDevice_t device, const void *out, uint32_t *card)
{
	nvmlReturn_t result = nvml_card(device, out, card);
	return result == NVML_SUCCESS && !sim_machine->model[*card].ecc ? NVML_ERROR_NOT_SUPPORTED : result;
}

nvmlReturn_t sim_nvmlDeviceGetEccMode(nvmlDevice_t device, nvmlEnableState_t *current, nvmlEnableState_t *pending)
{
	uint32_t card;
	nvmlReturn_t result = ecc_card(device, pending ? current : NULL, &card);
	if (result == NVML_SUCCESS)
		*current = *pending = NVML_FEATURE_ENABLED;
	return result;
}

nvmlReturn_t sim_nvmlDeviceGetDefaultEccMode(nvmlDevice_t device, nvmlEnableState_t *mode)
{
	uint32_t card;
	nvmlReturn_t result = ecc_card(device, mode, &card);
	if (result == NVML_SUCCESS)
		*mode = NVML_FEATURE_ENABLED;
	return result;
}

nvmlReturn_t sim_nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, nvmlMemoryErrorType_t error,
                                             nvmlEccCounterType_t counter, unsigned long long *count)
{
	uint32_t card;
	nvmlReturn_t result = ecc_card(device, count, &card);
	if (result != NVML_SUCCESS)
		return result;
	if ((unsigned)error >= NVML_MEMORY_ERROR_TYPE_COUNT || (unsigned)counter >= NVML_ECC_COUNTER_TYPE_COUNT)
		return NVML_ERROR_INVALID_ARGUMENT;
	*count = 0;
	return NVML_SUCCESS;
}

nvmlReturn_t sim_nvmlDeviceGetMemoryErrorCounter(nvmlDevice_t device, nvmlMemoryErrorType_t error,
                                                 nvmlEccCounterType_t counter, nvmlMemoryLocation_t location,
                                                 unsigned long long *count)
{
	if ((unsigned)location >= NVML_MEMORY_LOCATION_COUNT)
		return NVML_ERROR_INVALID_ARGUMENT;
	return sim_nvmlDeviceGetTotalEccErrors(device, error, counter, count);
}

nvmlReturn_t sim_nvmlDeviceGetDetailedEccErrors(nvmlDevice_t device, nvmlMemoryErrorType_t error,
                                                nvmlEccCounterType_t counter, nvmlEccErrorCounts_t *counts)
{
	unsigned long long total;
	nvmlReturn_t result = sim_nvmlDeviceGetTotalEccErrors(device, error, counter, counts ? &total : NULL);
	if (result == NVML_SUCCESS)
		memset(counts, 0, sizeof(*counts));
	return result;
}

nvmlReturn_t sim_nvmlDeviceGetRetiredPages(nvmlDevice_t device, nvmlPageRetirementCause_t cause, unsigned int *count,
                                           unsigned long long *addresses)
{
	uint32_t card;
	nvmlReturn_t result = ecc_card(device, count, &card);
	(void)addresses;
	if (result != NVML_SUCCESS)
		return result;
	if ((unsigned)cause >= NVML_PAGE_RETIREMENT_CAUSE_COUNT)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (sim_machine->model[card].architecture >= NVML_DEVICE_ARCH_AMPERE)
		return NVML_ERROR_NOT_SUPPORTED; /* these remap rows instead */
	*count = 0;
	return NVML_SUCCESS;
}

nvmlReturn_t sim_nvmlDeviceGetRetiredPages_v2(nvmlDevice_t device, nvmlPageRetirementCause_t cause, unsigned int *count,
                                              unsigned long long *addresses, unsigned long long *times)
{
	(void)times;
	return sim_nvmlDeviceGetRetiredPages(device, cause, count, addresses);
}

nvmlReturn_t sim_nvmlDeviceGetRetiredPagesPendingStatus(nvmlDevice_t device, nvmlEnableState_t *pending)
{
	unsigned count = 0;
	nvmlReturn_t result = sim_nvmlDeviceGetRetiredPages(device, NVML_PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR,
	                                                    pending ? &count : NULL, NULL);
	if (result == NVML_SUCCESS)
		*pending = NVML_FEATURE_DISABLED;
	return result;
}

static nvmlReturn_t remap_card(nvmlDevice_t device, const void *out, uint32_t *card)
{
	nvmlReturn_t result = ecc_card(device, out, card);
	if (result == NVML_SUCCESS && sim_machine->model[*card].architecture < NVML_DEVICE_ARCH_AMPERE)
		return NVML_ERROR_NOT_SUPPORTED;
	return result;
}

nvmlReturn_t sim_nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned int *corrected, unsigned int *uncorrected,
                                           unsigned int *pending, unsigned int *failed)
{
	uint32_t card;
	nvmlReturn_t result = remap_card(device, corrected && uncorrected && pending ? failed : NULL, &card);
	if (result == NVML_SUCCESS)
		*corrected = *uncorrected = *pending = *failed = 0;
	return result;
}

nvmlReturn_t sim_nvmlDeviceGetRowRemapperHistogram(nvmlDevice_t device, nvmlRowRemapperHistogramValues_t *values)
{
	uint32_t card;
	nvmlReturn_t result = remap_card(device, values, &card);
	if (result != NVML_SUCCESS)
		return result;
	/* 8 banks for each GiB, all with every spare row left. */
	*values = (nvmlRowRemapperHistogramValues_t){.max = (unsigned)(sim_machine->model[card].memory >> 30) * 8};
	return NVML_SUCCESS;
}
