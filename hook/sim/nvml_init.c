/* nvml_init.c: NVML's start and end, its error texts, and what it says of the system as a whole.
 *
 * nvmlInit opens (or creates) the machine file and nothing more: a program that only watches takes no client slot. It
 * refuses with DRIVER_NOT_LOADED where the machine file cannot be had and where a real driver is present, as cuInit
 * does.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "nvml_device.h"

static unsigned init_count;

bool sim_nvml_initialized(void)
{
	return __atomic_load_n(&init_count, __ATOMIC_ACQUIRE) > 0;
}

/* The first to start it looks which cards the process can open; that holds until all have ended it.
 *
 * Opening the machine is idempotent, so the count needs no lock that a fork could copy in the held state. */
nvmlReturn_t sim_nvmlInitWithFlags(unsigned int flags)
{
	if (flags & ~(unsigned)(NVML_INIT_FLAG_NO_GPUS | NVML_INIT_FLAG_NO_ATTACH | NVML_INIT_FLAG_FORCE_INIT))
		return NVML_ERROR_INVALID_ARGUMENT;
	if (sim_real_driver_refuses("NVML") || sim_machine_open() != 0)
		return NVML_ERROR_DRIVER_NOT_LOADED;
	if (!sim_nvml_initialized())
		sim_nodes_look();
	if (!sim_nodes_control())
		return NVML_ERROR_DRIVER_NOT_LOADED;
	__atomic_add_fetch(&init_count, 1, __ATOMIC_RELEASE);
	return NVML_SUCCESS;
}

nvmlReturn_t sim_nvmlInit_v2(void)
{
	return sim_nvmlInitWithFlags(0);
}

nvmlReturn_t sim_nvmlInit(void)
{
	return sim_nvmlInitWithFlags(0);
}

nvmlReturn_t sim_nvmlShutdown(void)
{
	unsigned count = __atomic_load_n(&init_count, __ATOMIC_ACQUIRE);

	while (count > 0)
		if (__atomic_compare_exchange_n(&init_count, &count, count - 1, false, __ATOMIC_RELEASE,
		                                __ATOMIC_ACQUIRE))
			return NVML_SUCCESS;
	return NVML_ERROR_UNINITIALIZED;
}

static const char *const error_texts[] = {
        [NVML_SUCCESS] = "Success",
        [NVML_ERROR_UNINITIALIZED] = "Uninitialized",
        [NVML_ERROR_INVALID_ARGUMENT] = "Invalid Argument",
        [NVML_ERROR_NOT_SUPPORTED] = "Not Supported",
        [NVML_ERROR_NO_PERMISSION] = "Insufficient Permissions",
        [NVML_ERROR_ALREADY_INITIALIZED] = "Already Initialized",
        [NVML_ERROR_NOT_FOUND] = "Not Found",
        [NVML_ERROR_INSUFFICIENT_SIZE] = "Insufficient Size",
        [NVML_ERROR_INSUFFICIENT_POWER] = "Insufficient External Power",
        [NVML_ERROR_DRIVER_NOT_LOADED] = "Driver Not Loaded",
        [NVML_ERROR_TIMEOUT] = "Timeout",
        [NVML_ERROR_IRQ_ISSUE] = "Interrupt Request Issue",
        [NVML_ERROR_LIBRARY_NOT_FOUND] = "NVML Shared Library Not Found",
        [NVML_ERROR_FUNCTION_NOT_FOUND] = "Function Not Found",
        [NVML_ERROR_CORRUPTED_INFOROM] = "Corrupted infoROM",
        [NVML_ERROR_GPU_IS_LOST] = "GPU is lost",
        [NVML_ERROR_RESET_REQUIRED] = "GPU requires restart",
        [NVML_ERROR_OPERATING_SYSTEM] = "Operating System Error",
        [NVML_ERROR_LIB_RM_VERSION_MISMATCH] = "Driver/library version mismatch",
        [NVML_ERROR_IN_USE] = "In use by another client",
        [NVML_ERROR_MEMORY] = "Insufficient Memory",
        [NVML_ERROR_NO_DATA] = "No data",
        [NVML_ERROR_VGPU_ECC_NOT_SUPPORTED] = "Not supported on vGPU while ECC is enabled",
        [NVML_ERROR_INSUFFICIENT_RESOURCES] = "Insufficient Resources",
        [NVML_ERROR_FREQ_NOT_SUPPORTED] = "Frequency not supported",
        [NVML_ERROR_ARGUMENT_VERSION_MISMATCH] = "Argument version mismatch",
        [NVML_ERROR_DEPRECATED] = "Deprecated",
        [NVML_ERROR_NOT_READY] = "Not ready",
        [NVML_ERROR_GPU_NOT_FOUND] = "GPU not found",
        [NVML_ERROR_INVALID_STATE] = "Invalid state",
        [NVML_ERROR_RESET_TYPE_NOT_SUPPORTED] = "Reset type not supported",
};

const char *sim_nvmlErrorString(nvmlReturn_t result)
{
	if ((unsigned)result < sizeof(error_texts) / sizeof(*error_texts) && error_texts[result])
		return error_texts[result];
	return "Unknown Error";
}

nvmlReturn_t sim_nvmlSystemGetDriverVersion(char *version, unsigned int length)
{
	return nvml_text(version, length, sim_machine->driver);
}

nvmlReturn_t sim_nvmlSystemGetNVMLVersion(char *version, unsigned int length)
{
	char text[64];
	snprintf(text, sizeof(text), "%u.%s", sim_machine->cuda_version / 1000, sim_machine->driver);
	return nvml_text(version, length, text);
}

nvmlReturn_t sim_nvmlSystemGetDriverBranch(nvmlSystemDriverBranchInfo_t *info, unsigned int length)
{
	if (!info)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (info->version != nvmlSystemDriverBranchInfo_v1)
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	char text[64];
	snprintf(text, sizeof(text), "r%u_00", (unsigned)strtoul(sim_machine->driver, NULL, 10));
	return nvml_text(info->branch, length < sizeof(info->branch) ? length : sizeof(info->branch), text);
}

/* Asked also before nvmlInit: it is the one question that needs no devices. */
nvmlReturn_t sim_nvmlSystemGetCudaDriverVersion(int *version)
{
	if (!version)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (sim_real_driver_refuses("NVML") || sim_machine_open() != 0)
		return NVML_ERROR_DRIVER_NOT_LOADED;
	*version = (int)sim_machine->cuda_version;
	return NVML_SUCCESS;
}

nvmlReturn_t sim_nvmlSystemGetCudaDriverVersion_v2(int *version)
{
	return sim_nvmlSystemGetCudaDriverVersion(version);
}

/* The program's path as it was started (its first argument), cut to the caller's buffer as the real one does. */
nvmlReturn_t sim_nvmlSystemGetProcessName(unsigned int pid, char *name, unsigned int length)
{
	char path[64];

	if (!name || length == 0)
		return NVML_ERROR_INVALID_ARGUMENT;
	for (int i = 0; i < 2; i++) {
		snprintf(path, sizeof(path), "/proc/%u/%s", pid, i ? "comm" : "cmdline");
		int fd = open(path, O_RDONLY | O_CLOEXEC);
		if (fd < 0)
			return errno == EACCES ? NVML_ERROR_NO_PERMISSION : NVML_ERROR_NOT_FOUND;
		ssize_t got = read(fd, name, length - 1);
		close(fd);
		if (got <= 0) /* a zombie or a kernel thread has no command line, but has a name */
			continue;
		name[got] = 0;
		name[strcspn(name, "\n")] = 0;
		return NVML_SUCCESS;
	}
	return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t sim_nvmlSystemGetHicVersion(unsigned int *count, nvmlHwbcEntry_t *entries)
{
	(void)entries;
	if (!count)
		return NVML_ERROR_INVALID_ARGUMENT;
	*count = 0;
	return NVML_SUCCESS;
}

nvmlReturn_t sim_nvmlUnitGetCount(unsigned int *count)
{
	if (!count)
		return NVML_ERROR_INVALID_ARGUMENT;
	*count = 0; /* S-class units: none in any machine of today */
	return NVML_SUCCESS;
}

nvmlReturn_t sim_nvmlGetExcludedDeviceCount(unsigned int *count)
{
	if (!count)
		return NVML_ERROR_INVALID_ARGUMENT;
	*count = 0;
	return NVML_SUCCESS;
}
