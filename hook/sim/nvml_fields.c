/* nvml_fields.c: nvmlDeviceGetFieldValues: many small questions in one call, each with its own result.
 *
 * A field is answered from the function that has its own entry point, so that both always agree. Fields of parts that
 * are not simulated answer NOT_SUPPORTED one by one; the call as a whole succeeds, as on hardware.
 */
#include <time.h>

#include "nvml_device.h"

static nvmlReturn_t unsigned_value(nvmlFieldValue_t *field, nvmlReturn_t result, unsigned value)
{
	field->valueType = NVML_VALUE_TYPE_UNSIGNED_INT;
	field->value.uiVal = value;
	return result;
}

static nvmlReturn_t long_value(nvmlFieldValue_t *field, nvmlReturn_t result, unsigned long long value)
{
	field->valueType = NVML_VALUE_TYPE_UNSIGNED_LONG_LONG;
	field->value.ullVal = value;
	return result;
}

static nvmlReturn_t ecc_field(nvmlDevice_t device, nvmlFieldValue_t *field)
{
	nvmlEnableState_t current = NVML_FEATURE_DISABLED, pending = NVML_FEATURE_DISABLED;
	nvmlReturn_t result = sim_nvmlDeviceGetEccMode(device, &current, &pending);

	if (field->fieldId == NVML_FI_DEV_ECC_CURRENT)
		return unsigned_value(field, result, current);
	if (field->fieldId == NVML_FI_DEV_ECC_PENDING)
		return unsigned_value(field, result, pending);
	return long_value(field, result, 0); /* the counters, by kind and place */
}

static nvmlReturn_t remap_field(nvmlDevice_t device, nvmlFieldValue_t *field)
{
	unsigned corrected = 0, uncorrected = 0, pending = 0, failed = 0;
	nvmlReturn_t result = sim_nvmlDeviceGetRemappedRows(device, &corrected, &uncorrected, &pending, &failed);
	return unsigned_value(field, result, 0);
}

static nvmlReturn_t power_field(nvmlDevice_t device, nvmlFieldValue_t *field)
{
	unsigned value = 0, high = 0;
	nvmlReturn_t result;

	switch (field->fieldId) {
	case NVML_FI_DEV_POWER_AVERAGE:
	case NVML_FI_DEV_POWER_INSTANT:
		result = sim_nvmlDeviceGetPowerUsage(device, &value);
		break;
	case NVML_FI_DEV_POWER_MIN_LIMIT:
		result = sim_nvmlDeviceGetPowerManagementLimitConstraints(device, &value, &high);
		break;
	case NVML_FI_DEV_POWER_MAX_LIMIT:
		result = sim_nvmlDeviceGetPowerManagementLimitConstraints(device, &high, &value);
		break;
	default:
		result = sim_nvmlDeviceGetPowerManagementLimit(device, &value);
	}
	return unsigned_value(field, result, value);
}

static nvmlReturn_t energy_field(nvmlDevice_t device, nvmlFieldValue_t *field)
{
	unsigned long long millijoules = 0;
	nvmlReturn_t result = sim_nvmlDeviceGetTotalEnergyConsumption(device, &millijoules);
	return long_value(field, result, millijoules);
}

static nvmlReturn_t nvlink_field(nvmlDevice_t device, nvmlFieldValue_t *field)
{
	uint32_t card;
	nvmlReturn_t result = nvml_card(device, field, &card);
	if (result != NVML_SUCCESS)
		return result;
	if (sim_machine->model[card].nvlink_version == 0)
		return NVML_ERROR_NOT_SUPPORTED;
	nvmlEnableState_t active = NVML_FEATURE_DISABLED;
	unsigned link = field->scopeId;

	switch (field->fieldId) {
	case NVML_FI_DEV_NVLINK_LINK_COUNT:
		return unsigned_value(field, NVML_SUCCESS, nvml_link_count(card));
	case NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON:
		return unsigned_value(field, NVML_SUCCESS, nvml_link_mbps(card));
	case NVML_FI_DEV_NVLINK_GET_SPEED:
		result = sim_nvmlDeviceGetNvLinkState(device, link, &active);
		return unsigned_value(field, result, active ? nvml_link_mbps(card) : 0);
	case NVML_FI_DEV_NVLINK_GET_STATE:
		result = sim_nvmlDeviceGetNvLinkState(device, link, &active);
		return unsigned_value(field, result, active);
	case NVML_FI_DEV_NVLINK_GET_VERSION:
		return unsigned_value(field, NVML_SUCCESS, sim_machine->model[card].nvlink_version);
	case NVML_FI_DEV_NVSWITCH_CONNECTED_LINK_COUNT: {
		nvmlIntNvLinkDeviceType_t type = NVML_NVLINK_DEVICE_TYPE_UNKNOWN;
		unsigned count = 0;
		for (unsigned i = 0; i < nvml_link_count(card); i++) {
			sim_nvmlDeviceGetNvLinkRemoteDeviceType(device, i, &type);
			count += type == NVML_NVLINK_DEVICE_TYPE_SWITCH;
		}
		return unsigned_value(field, NVML_SUCCESS, count);
	}
	default: /* NVML_FI_DEV_NVLINK_SPEED_MBPS_L0 and its followers */
		link = field->fieldId <= NVML_FI_DEV_NVLINK_SPEED_MBPS_L5
		               ? field->fieldId - NVML_FI_DEV_NVLINK_SPEED_MBPS_L0
		               : field->fieldId - NVML_FI_DEV_NVLINK_SPEED_MBPS_L6 + 6;
		result = sim_nvmlDeviceGetNvLinkState(device, link, &active);
		return unsigned_value(field, result, active ? nvml_link_mbps(card) : 0);
	}
}

/* What the driver wants done after the last XID: a reset after those that NVIDIA's catalogue has one for. */
static unsigned recovery_action(uint32_t card)
{
	static const unsigned short fatal[] = {48, 62, 64, 74, 79, 95, 119, 120};
	uint32_t xid = __atomic_load_n(&sim_machine->device[card].xid, __ATOMIC_ACQUIRE);

	for (size_t i = 0; i < sizeof(fatal) / sizeof(*fatal); i++)
		if (fatal[i] == xid)
			return NVML_GPU_RECOVERY_ACTION_GPU_RESET;
	return NVML_GPU_RECOVERY_ACTION_NONE;
}

static nvmlReturn_t other_field(nvmlDevice_t device, nvmlFieldValue_t *field)
{
	uint32_t card;
	unsigned celsius = 0;
	nvmlReturn_t result = nvml_card(device, field, &card);
	if (result != NVML_SUCCESS)
		return result;

	switch (field->fieldId) {
	case NVML_FI_DEV_MEMORY_TEMP:
		/* Only boards with stacked memory have a sensor in it; it runs a little hotter than the chip. */
		if (sim_machine->model[card].bus_width < 1024)
			return NVML_ERROR_NOT_SUPPORTED;
		return unsigned_value(field, NVML_SUCCESS, nvml_celsius(card) + 8);
	case NVML_FI_DEV_GPU_TEMP:
		result = sim_nvmlDeviceGetTemperature(device, NVML_TEMPERATURE_GPU, &celsius);
		return unsigned_value(field, result, celsius);
	case NVML_FI_DEV_PCIE_REPLAY_COUNTER:
	case NVML_FI_DEV_PCIE_REPLAY_ROLLOVER_COUNTER:
	case NVML_FI_DEV_C2C_LINK_COUNT:
		return unsigned_value(field, NVML_SUCCESS, 0);
	case NVML_FI_DEV_GET_GPU_RECOVERY_ACTION:
		return unsigned_value(field, NVML_SUCCESS, recovery_action(card));
	case NVML_FI_DEV_IS_RESETLESS_MIG_SUPPORTED:
		return unsigned_value(field, NVML_SUCCESS,
		                      sim_machine->model[card].architecture >= NVML_DEVICE_ARCH_HOPPER);
	default:
		return NVML_ERROR_NOT_SUPPORTED;
	}
}

static nvmlReturn_t answer(nvmlDevice_t device, nvmlFieldValue_t *field)
{
	unsigned id = field->fieldId;

	if (id >= NVML_FI_DEV_ECC_CURRENT && id <= NVML_FI_DEV_ECC_DBE_AGG_CBU)
		return ecc_field(device, field);
	if (id >= NVML_FI_DEV_REMAPPED_COR && id <= NVML_FI_DEV_REMAPPED_FAILURE)
		return remap_field(device, field);
	if ((id >= NVML_FI_DEV_POWER_AVERAGE && id <= NVML_FI_DEV_POWER_CURRENT_LIMIT) ||
	    id == NVML_FI_DEV_POWER_REQUESTED_LIMIT)
		return power_field(device, field);
	if (id == NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION || id == NVML_FI_DEV_ENERGY)
		return energy_field(device, field);
	if ((id >= NVML_FI_DEV_NVLINK_SPEED_MBPS_L0 && id <= NVML_FI_DEV_NVLINK_LINK_COUNT) ||
	    (id >= NVML_FI_DEV_NVLINK_SPEED_MBPS_L6 && id <= NVML_FI_DEV_NVLINK_SPEED_MBPS_L11) ||
	    (id >= NVML_FI_DEV_NVLINK_GET_SPEED && id <= NVML_FI_DEV_NVLINK_GET_VERSION) ||
	    id == NVML_FI_DEV_NVSWITCH_CONNECTED_LINK_COUNT)
		return nvlink_field(device, field);
	return other_field(device, field);
}

nvmlReturn_t sim_nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *fields)
{
	struct timespec now;
	uint32_t index;
	nvmlReturn_t result = nvml_any(device, fields, &index);
	if (result != NVML_SUCCESS)
		return result;
	if (count <= 0)
		return NVML_ERROR_INVALID_ARGUMENT;
	clock_gettime(CLOCK_REALTIME, &now);
	for (int i = 0; i < count; i++) {
		fields[i].timestamp = (long long)now.tv_sec * 1000000 + now.tv_nsec / 1000;
		fields[i].latencyUsec = 0;
		fields[i].nvmlReturn = answer(device, &fields[i]);
	}
	return NVML_SUCCESS;
}
