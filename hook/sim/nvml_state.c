/* nvml_state.c: clocks, temperature, power, fans, performance state and modes.
 *
 * Nothing here is modelled for its own sake: the figures follow from how busy the card was in the last second, so that
 * a watcher sees them move with the load. What would change a device (locked clocks, power limits, modes) answers
 * NO_PERMISSION as for a user who is not root, since the description of the machine never changes.
 */
#include <string.h>

#include "nvml_device.h"

static const struct sim_device_model *model_of(uint32_t card)
{
	return &sim_machine->model[card];
}

/* ---- power --------------------------------------------------------------------------------------------------------
 */

unsigned nvml_power_mw(uint32_t card)
{
	const struct sim_device_model *model = model_of(card);
	uint64_t span = model->power_limit_mw > model->idle_mw ? model->power_limit_mw - model->idle_mw : 0;
	return model->idle_mw + (unsigned)(span * nvml_busy_percent(card) / 100);
}

/* Since the machine was switched on, as the monotonic clock counts: idle power all the time, the rest while busy. */
unsigned long long nvml_energy_mj(uint32_t card)
{
	const struct sim_device_model *model = model_of(card);
	uint64_t span = model->power_limit_mw > model->idle_mw ? model->power_limit_mw - model->idle_mw : 0;
	uint64_t busy_ms = 0;
	for (uint32_t i = 0; i < sim_machine->ndev; i++)
		if (nvml_belongs(i, card))
			busy_ms += __atomic_load_n(&sim_machine->device[i].engine_busy_ns, __ATOMIC_RELAXED) / 1000000;
	return sim_now() / 1000000 * model->idle_mw / 1000 + busy_ms * span / 1000;
}

NVML_GETTER(nvmlDeviceGetPowerUsage, unsigned int, nvml_card, nvml_power_mw(i))
NVML_GETTER(nvmlDeviceGetTotalEnergyConsumption, unsigned long long, nvml_card, nvml_energy_mj(i))
NVML_GETTER(nvmlDeviceGetPowerManagementLimit, unsigned int, nvml_card, model_of(i)->power_limit_mw)
NVML_GETTER(nvmlDeviceGetPowerManagementDefaultLimit, unsigned int, nvml_card, model_of(i)->power_limit_mw)
NVML_GETTER(nvmlDeviceGetEnforcedPowerLimit, unsigned int, nvml_card, model_of(i)->power_limit_mw)

nvmlReturn_t sim_nvmlDeviceGetPowerManagementLimitConstraints(nvmlDevice_t device, unsigned int *low,
                                                              unsigned int *high)
{
	uint32_t card;
	nvmlReturn_t result = nvml_card(device, high ? low : NULL, &card);
	if (result != NVML_SUCCESS)
		return result;
	*low = model_of(card)->power_limit_mw * 2 / 7 / 1000 *
	       1000; /* about the lowest that boards of this class accept */
	*high = model_of(card)->power_limit_mw;
	return NVML_SUCCESS;
}

NVML_GETTER(nvmlDeviceGetPowerManagementMode, nvmlEnableState_t, nvml_card, NVML_FEATURE_ENABLED)
NVML_GETTER(nvmlDeviceGetPowerSource, nvmlPowerSource_t, nvml_card, NVML_POWER_SOURCE_AC)

/* ---- temperature and fans -------------------------------------------------------------------------------------------
 */

unsigned nvml_celsius(uint32_t card)
{
	return 31 + nvml_busy_percent(card) * 2 / 5;
}

nvmlReturn_t sim_nvmlDeviceGetTemperature(nvmlDevice_t device, nvmlTemperatureSensors_t sensor, unsigned int *celsius)
{
	uint32_t card;
	nvmlReturn_t result = nvml_card(device, celsius, &card);
	if (result != NVML_SUCCESS)
		return result;
	if (sensor != NVML_TEMPERATURE_GPU)
		return NVML_ERROR_INVALID_ARGUMENT;
	*celsius = nvml_celsius(card);
	return NVML_SUCCESS;
}

nvmlReturn_t sim_nvmlDeviceGetTemperatureV(nvmlDevice_t device, nvmlTemperature_t *out)
{
	unsigned celsius = 0;
	if (out && out->version != nvmlTemperature_v1)
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	nvmlReturn_t result = sim_nvmlDeviceGetTemperature(device, out ? out->sensorType : NVML_TEMPERATURE_GPU,
	                                                   out ? &celsius : NULL);
	if (result == NVML_SUCCESS)
		out->temperature = (int)celsius;
	return result;
}

nvmlReturn_t sim_nvmlDeviceGetTemperatureThreshold(nvmlDevice_t device, nvmlTemperatureThresholds_t threshold,
                                                   unsigned int *celsius)
{
	uint32_t card;
	nvmlReturn_t result = nvml_card(device, celsius, &card);
	if (result != NVML_SUCCESS)
		return result;
	switch (threshold) {
	case NVML_TEMPERATURE_THRESHOLD_SHUTDOWN:
		*celsius = 92;
		return NVML_SUCCESS;
	case NVML_TEMPERATURE_THRESHOLD_SLOWDOWN:
		*celsius = 89;
		return NVML_SUCCESS;
	case NVML_TEMPERATURE_THRESHOLD_MEM_MAX:
		*celsius = 95;
		return NVML_SUCCESS;
	case NVML_TEMPERATURE_THRESHOLD_GPU_MAX:
		*celsius = 87;
		return NVML_SUCCESS;
	default:
		return (unsigned)threshold < NVML_TEMPERATURE_THRESHOLD_COUNT ? NVML_ERROR_NOT_SUPPORTED
		                                                              : NVML_ERROR_INVALID_ARGUMENT;
	}
}

nvmlReturn_t sim_nvmlDeviceGetMarginTemperature(nvmlDevice_t device, nvmlMarginTemperature_t *out)
{
	uint32_t card;
	if (out && out->version != nvmlMarginTemperature_v1)
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	nvmlReturn_t result = nvml_card(device, out, &card);
	if (result == NVML_SUCCESS)
		out->marginTemperature = 87 - (int)nvml_celsius(card);
	return result;
}

/* Passively cooled boards have no fan to tell of. */
static nvmlReturn_t fan_percent(nvmlDevice_t device, unsigned fan, unsigned *percent)
{
	uint32_t card;
	nvmlReturn_t result = nvml_card(device, percent, &card);
	if (result != NVML_SUCCESS)
		return result;
	if (model_of(card)->fans == 0)
		return NVML_ERROR_NOT_SUPPORTED;
	if (fan >= model_of(card)->fans)
		return NVML_ERROR_INVALID_ARGUMENT;
	unsigned celsius = nvml_celsius(card);
	*percent = celsius > 40 ? 30 + celsius - 40 : 0; /* they stand still while the board is cool */
	return NVML_SUCCESS;
}

nvmlReturn_t sim_nvmlDeviceGetFanSpeed(nvmlDevice_t device, unsigned int *percent)
{
	return fan_percent(device, 0, percent);
}

nvmlReturn_t sim_nvmlDeviceGetFanSpeed_v2(nvmlDevice_t device, unsigned int fan, unsigned int *percent)
{
	return fan_percent(device, fan, percent);
}

nvmlReturn_t sim_nvmlDeviceGetTargetFanSpeed(nvmlDevice_t device, unsigned int fan, unsigned int *percent)
{
	return fan_percent(device, fan, percent);
}

NVML_GETTER(nvmlDeviceGetNumFans, unsigned int, nvml_card, model_of(i)->fans)

/* ---- clocks -------------------------------------------------------------------------------------------------------
 */

/* Boards with fans drop to an idle state; data-centre boards stay at P0. */
static bool sleeps(uint32_t card)
{
	return model_of(card)->fans > 0 && nvml_busy_percent(card) == 0;
}

static nvmlReturn_t clock_mhz(nvmlDevice_t device, nvmlClockType_t type, bool now, unsigned *mhz)
{
	uint32_t card;
	nvmlReturn_t result = nvml_card(device, mhz, &card);
	if (result != NVML_SUCCESS)
		return result;
	if ((unsigned)type >= NVML_CLOCK_COUNT)
		return NVML_ERROR_INVALID_ARGUMENT;
	const struct sim_device_model *model = model_of(card);
	unsigned highest = (type == NVML_CLOCK_MEM ? model->memory_clock_khz : model->clock_khz) / 1000;
	if (type == NVML_CLOCK_VIDEO)
		highest = highest * 9 / 10;
	*mhz = highest;
	if (now && type == NVML_CLOCK_MEM && sleeps(card))
		*mhz = highest / 25;
	else if (now && type != NVML_CLOCK_MEM && nvml_busy_percent(card) == 0)
		*mhz = highest / 6; /* core clocks fall as soon as nothing runs, whatever the performance state */
	return NVML_SUCCESS;
}

nvmlReturn_t sim_nvmlDeviceGetClockInfo(nvmlDevice_t device, nvmlClockType_t type, unsigned int *mhz)
{
	return clock_mhz(device, type, true, mhz);
}

nvmlReturn_t sim_nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, nvmlClockType_t type, unsigned int *mhz)
{
	return clock_mhz(device, type, false, mhz);
}

nvmlReturn_t sim_nvmlDeviceGetMaxCustomerBoostClock(nvmlDevice_t device, nvmlClockType_t type, unsigned int *mhz)
{
	return clock_mhz(device, type, false, mhz);
}

nvmlReturn_t sim_nvmlDeviceGetApplicationsClock(nvmlDevice_t device, nvmlClockType_t type, unsigned int *mhz)
{
	return clock_mhz(device, type, false, mhz);
}

nvmlReturn_t sim_nvmlDeviceGetDefaultApplicationsClock(nvmlDevice_t device, nvmlClockType_t type, unsigned int *mhz)
{
	return clock_mhz(device, type, false, mhz);
}

nvmlReturn_t sim_nvmlDeviceGetClock(nvmlDevice_t device, nvmlClockType_t type, nvmlClockId_t id, unsigned int *mhz)
{
	if ((unsigned)id >= NVML_CLOCK_ID_COUNT)
		return NVML_ERROR_INVALID_ARGUMENT;
	return clock_mhz(device, type, id == NVML_CLOCK_ID_CURRENT, mhz);
}

NVML_GETTER(nvmlDeviceGetPerformanceState, nvmlPstates_t, nvml_card, sleeps(i) ? NVML_PSTATE_8 : NVML_PSTATE_0)

nvmlReturn_t sim_nvmlDeviceGetPowerState(nvmlDevice_t device, nvmlPstates_t *state)
{
	return sim_nvmlDeviceGetPerformanceState(device, state);
}

/* The states that sleeps() knows; the rest of the array is filled with UNKNOWN. */
nvmlReturn_t sim_nvmlDeviceGetSupportedPerformanceStates(nvmlDevice_t device, nvmlPstates_t *states, unsigned int bytes)
{
	uint32_t card;
	unsigned room = bytes / sizeof(*states);
	nvmlReturn_t result = nvml_card(device, states, &card);
	if (result != NVML_SUCCESS)
		return result;
	unsigned there = model_of(card)->fans ? 2 : 1;
	for (unsigned i = there; i < room; i++)
		states[i] = NVML_PSTATE_UNKNOWN;
	if (room < there)
		return NVML_ERROR_INSUFFICIENT_SIZE;
	states[0] = NVML_PSTATE_0;
	if (there > 1)
		states[1] = NVML_PSTATE_8;
	return NVML_SUCCESS;
}

NVML_GETTER(nvmlDeviceGetCurrentClocksEventReasons, unsigned long long, nvml_card,
            nvml_busy_percent(i) ? nvmlClocksEventReasonNone : nvmlClocksEventReasonGpuIdle)

nvmlReturn_t sim_nvmlDeviceGetCurrentClocksThrottleReasons(nvmlDevice_t device, unsigned long long *reasons)
{
	return sim_nvmlDeviceGetCurrentClocksEventReasons(device, reasons);
}

NVML_GETTER(nvmlDeviceGetSupportedClocksEventReasons, unsigned long long, nvml_card, nvmlClocksEventReasonGpuIdle)

nvmlReturn_t sim_nvmlDeviceGetSupportedClocksThrottleReasons(nvmlDevice_t device, unsigned long long *reasons)
{
	return sim_nvmlDeviceGetSupportedClocksEventReasons(device, reasons);
}

nvmlReturn_t sim_nvmlDeviceGetViolationStatus(nvmlDevice_t device, nvmlPerfPolicyType_t policy,
                                              nvmlViolationTime_t *time)
{
	uint32_t card;
	nvmlReturn_t result = nvml_card(device, time, &card);
	if (result != NVML_SUCCESS)
		return result;
	if ((unsigned)policy >= NVML_PERF_POLICY_COUNT)
		return NVML_ERROR_INVALID_ARGUMENT;
	*time = (nvmlViolationTime_t){.referenceTime = sim_now() / 1000, .violationTime = 0};
	return NVML_SUCCESS;
}

/* ---- modes --------------------------------------------------------------------------------------------------------
 */

NVML_GETTER(nvmlDeviceGetPersistenceMode, nvmlEnableState_t, nvml_card, NVML_FEATURE_ENABLED)
NVML_GETTER(nvmlDeviceGetDisplayMode, nvmlEnableState_t, nvml_card, NVML_FEATURE_DISABLED)
NVML_GETTER(nvmlDeviceGetDisplayActive, nvmlEnableState_t, nvml_card, NVML_FEATURE_DISABLED)

nvmlReturn_t sim_nvmlDeviceGetAPIRestriction(nvmlDevice_t device, nvmlRestrictedAPI_t api,
                                             nvmlEnableState_t *restricted)
{
	uint32_t card;
	if ((unsigned)api >= NVML_RESTRICTED_API_COUNT)
		return NVML_ERROR_INVALID_ARGUMENT;
	nvmlReturn_t result = nvml_card(device, restricted, &card);
	if (result == NVML_SUCCESS)
		*restricted = NVML_FEATURE_ENABLED;
	return result;
}

NVML_GETTER(nvmlDeviceGetComputeMode, nvmlComputeMode_t, nvml_card, NVML_COMPUTEMODE_DEFAULT)
NVML_GETTER(nvmlDeviceGetVirtualizationMode, nvmlGpuVirtualizationMode_t, nvml_card, NVML_GPU_VIRTUALIZATION_MODE_NONE)

nvmlReturn_t sim_nvmlDeviceGetGridLicensableFeatures_v4(nvmlDevice_t device, nvmlGridLicensableFeatures_t *features)
{
	uint32_t card;
	nvmlReturn_t result = nvml_card(device, features, &card);
	if (result == NVML_SUCCESS)
		features->isGridLicenseSupported = features->licensableFeaturesCount = 0;
	return result;
}

nvmlReturn_t sim_nvmlDeviceGetGspFirmwareMode(nvmlDevice_t device, unsigned int *enabled, unsigned int *standard)
{
	uint32_t card;
	nvmlReturn_t result = nvml_card(device, standard ? enabled : NULL, &card);
	if (result == NVML_SUCCESS)
		*enabled = *standard = model_of(card)->architecture >= NVML_DEVICE_ARCH_TURING;
	return result;
}

nvmlReturn_t sim_nvmlDeviceGetGspFirmwareVersion(nvmlDevice_t device, char *version)
{
	uint32_t card;
	nvmlReturn_t result = nvml_card(device, version, &card);
	if (result != NVML_SUCCESS)
		return result;
	if (model_of(card)->architecture < NVML_DEVICE_ARCH_TURING)
		return NVML_ERROR_NOT_SUPPORTED;
	return nvml_text(version, NVML_GSP_FIRMWARE_VERSION_BUF_SIZE, sim_machine->driver);
}

static nvmlReturn_t refuse_change(nvmlDevice_t device)
{
	uint32_t card;
	nvmlReturn_t result = nvml_card(device, device, &card);
	return result == NVML_SUCCESS ? NVML_ERROR_NO_PERMISSION : result;
}

nvmlReturn_t sim_nvmlDeviceSetPersistenceMode(nvmlDevice_t device, nvmlEnableState_t mode)
{
	(void)mode;
	return refuse_change(device);
}

nvmlReturn_t sim_nvmlDeviceSetComputeMode(nvmlDevice_t device, nvmlComputeMode_t mode)
{
	(void)mode;
	return refuse_change(device);
}

nvmlReturn_t sim_nvmlDeviceSetPowerManagementLimit(nvmlDevice_t device, unsigned int limit)
{
	(void)limit;
	return refuse_change(device);
}

nvmlReturn_t sim_nvmlDeviceSetGpuLockedClocks(nvmlDevice_t device, unsigned int low, unsigned int high)
{
	(void)low;
	(void)high;
	return refuse_change(device);
}
