/* Modes, clocks, limits, fans, ECC and field values: each board says what it has, and says NOT_SUPPORTED for the rest.
 */
#include "nvml_test.h"

static void a_data_centre_board(void)
{
	nvmlDevice_t device = device_at(0);
	nvmlEnableState_t current, pending;
	nvmlPstates_t state;
	nvmlComputeMode_t mode;
	unsigned long long count = 7;
	unsigned value, high;
	unsigned a, b, c, d;

	OK(nvmlDeviceGetEccMode(device, &current, &pending));
	CHECK(current == NVML_FEATURE_ENABLED && pending == NVML_FEATURE_ENABLED, "ECC is on");
	OK(nvmlDeviceGetTotalEccErrors(device, NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC, &count));
	CHECK(count == 0, "%llu errors", count);
	GIVES(NVML_ERROR_INVALID_ARGUMENT, nvmlDeviceGetTotalEccErrors(device, 9, NVML_VOLATILE_ECC, &count));
	GIVES(NVML_ERROR_NOT_SUPPORTED,
	      nvmlDeviceGetRetiredPages(device, NVML_PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR, &value, NULL));
	OK(nvmlDeviceGetRemappedRows(device, &a, &b, &c, &d));
	GIVES(NVML_ERROR_NOT_SUPPORTED, nvmlDeviceGetFanSpeed(device, &value));
	OK(nvmlDeviceGetNumFans(device, &value));
	CHECK(value == 0, "%u fans", value);
	OK(nvmlDeviceGetPerformanceState(device, &state));
	CHECK(state == NVML_PSTATE_0, "P%d", (int)state);
	OK(nvmlDeviceGetMaxClockInfo(device, NVML_CLOCK_SM, &value));
	CHECK(value == 1980, "%u MHz", value);
	OK(nvmlDeviceGetMaxClockInfo(device, NVML_CLOCK_MEM, &value));
	CHECK(value == 2619, "%u MHz", value);
	GIVES(NVML_ERROR_INVALID_ARGUMENT, nvmlDeviceGetMaxClockInfo(device, NVML_CLOCK_COUNT, &value));
	OK(nvmlDeviceGetPowerManagementLimitConstraints(device, &value, &high));
	CHECK(value < high && high == 700000, "%u to %u mW", value, high);
	OK(nvmlDeviceGetComputeMode(device, &mode));
	CHECK(mode == NVML_COMPUTEMODE_DEFAULT, "mode %d", (int)mode);
	GIVES(NVML_ERROR_NO_PERMISSION, nvmlDeviceSetComputeMode(device, NVML_COMPUTEMODE_PROHIBITED));
	GIVES(NVML_ERROR_NO_PERMISSION, nvmlDeviceSetPowerManagementLimit(device, 300000));
}

static void older_and_consumer_boards(void)
{
	nvmlEnableState_t state;
	nvmlDevice_t device = device_at(0);
	unsigned value = 7, fan;
	nvmlPciInfo_t pci;
	bool consumer;
	nvmlBrandType_t brand;

	OK(nvmlDeviceGetBrand(device, &brand));
	consumer = brand == NVML_BRAND_GEFORCE;
	nvmlPstates_t states[3];
	OK(nvmlDeviceGetSupportedPerformanceStates(device, states, sizeof(states)));
	CHECK(states[0] == NVML_PSTATE_0 && states[1] == (consumer ? NVML_PSTATE_8 : NVML_PSTATE_UNKNOWN), "states");
	GIVES(NVML_ERROR_INSUFFICIENT_SIZE, nvmlDeviceGetSupportedPerformanceStates(device, states, 0));
	GIVES(consumer ? NVML_ERROR_NOT_SUPPORTED : NVML_SUCCESS, nvmlDeviceGetEccMode(device, &state, &state));
	GIVES(consumer ? NVML_ERROR_NOT_SUPPORTED : NVML_SUCCESS,
	      nvmlDeviceGetRetiredPages(device, NVML_PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR, &value, NULL));
	GIVES(consumer ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED, nvmlDeviceGetFanSpeed_v2(device, 1, &fan));
	GIVES(consumer ? NVML_ERROR_INVALID_ARGUMENT : NVML_ERROR_NOT_SUPPORTED,
	      nvmlDeviceGetFanSpeed_v2(device, 2, &fan));
	GIVES(NVML_ERROR_NOT_SUPPORTED, nvmlDeviceGetMigMode(device, &value, &fan));
	GIVES(NVML_ERROR_NOT_SUPPORTED, nvmlDeviceGetNvLinkRemotePciInfo_v2(device, 0, &pci));
}

static void fields_agree_with_functions(void)
{
	nvmlFieldValue_t fields[] = {
	        {.fieldId = NVML_FI_DEV_ECC_CURRENT},
	        {.fieldId = NVML_FI_DEV_POWER_MAX_LIMIT},
	        {.fieldId = NVML_FI_DEV_NVLINK_LINK_COUNT},
	        {.fieldId = NVML_FI_DEV_NVLINK_GET_STATE, .scopeId = 18},
	        {.fieldId = NVML_FI_DEV_MEMORY_TEMP},
	        {.fieldId = NVML_FI_DEV_NVSWITCH_CONNECTED_LINK_COUNT},
	        {.fieldId = NVML_FI_MAX},
	        {.fieldId = NVML_FI_DEV_NVLINK_SPEED_MBPS_L6},
	};
	OK(nvmlDeviceGetFieldValues(device_at(0), sizeof(fields) / sizeof(*fields), fields));
	const unsigned expected[] = {1, 700000, 18, 0, 39, 18, 0, 26562};
	for (unsigned i = 0; i < sizeof(fields) / sizeof(*fields); i++) {
		if (fields[i].fieldId == NVML_FI_MAX) {
			CHECK(fields[i].nvmlReturn == NVML_ERROR_NOT_SUPPORTED, "no field answers %d",
			      fields[i].nvmlReturn);
			continue;
		}
		CHECK(fields[i].nvmlReturn == NVML_SUCCESS, "field %u answers %d", fields[i].fieldId,
		      fields[i].nvmlReturn);
		CHECK(fields[i].value.uiVal == expected[i] && fields[i].timestamp > 0, "field %u is %u",
		      fields[i].fieldId, fields[i].value.uiVal);
	}
	GIVES(NVML_ERROR_INVALID_ARGUMENT, nvmlDeviceGetFieldValues(device_at(0), 0, fields));
}

int main(void)
{
	run_on("h100-80g", a_data_centre_board);
	run_on("rtx4090", older_and_consumer_boards);
	run_on("v100", older_and_consumer_boards);
	run_on("8xh100", fields_agree_with_functions);
	return 0;
}
