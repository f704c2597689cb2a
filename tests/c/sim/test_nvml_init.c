/* Start and end of NVML: counted, refused before and after, error texts complete, an unknown profile named, refused
 * beside a real driver. */
#include <dlfcn.h>

#include "nvml_test.h"

static void counted(void)
{
	unsigned count;
	OK(nvmlInitWithFlags(NVML_INIT_FLAG_NO_ATTACH)); /* the second start */
	OK(nvmlShutdown());
	OK(nvmlDeviceGetCount_v2(&count));
	CHECK(count == 2, "%u devices", count);
	OK(nvmlShutdown());
	GIVES(NVML_ERROR_UNINITIALIZED, nvmlDeviceGetCount_v2(&count));
	GIVES(NVML_ERROR_UNINITIALIZED, nvmlShutdown());
	GIVES(NVML_ERROR_INVALID_ARGUMENT, nvmlInitWithFlags(0x40000000));
	OK(nvmlInit_v2());
	OK(nvmlDeviceGetCount_v2(&count));
}

static void versions(void)
{
	char text[NVML_SYSTEM_NVML_VERSION_BUFFER_SIZE], small[4];
	int cuda = 0;
	OK(nvmlSystemGetDriverVersion(text, sizeof(text)));
	CHECK(strspn(text, "0123456789.") == strlen(text), "tools parse the driver version '%s'", text);
	GIVES(NVML_ERROR_INSUFFICIENT_SIZE, nvmlSystemGetDriverVersion(small, sizeof(small)));
	OK(nvmlSystemGetNVMLVersion(text, sizeof(text)));
	CHECK(strncmp(text, "13.", 3) == 0, "NVML version '%s'", text);
	OK(nvmlSystemGetCudaDriverVersion_v2(&cuda));
	CHECK(cuda >= 13000 && cuda < 14000, "CUDA version %d", cuda);
	OK(nvmlSystemGetProcessName((unsigned)getpid(), text, sizeof(text)));
	CHECK(strstr(text, "nvml_init"), "own name is '%s'", text);
	GIVES(NVML_ERROR_NOT_FOUND, nvmlSystemGetProcessName(0x3fffffff, text, sizeof(text)));
}

static void error_texts(void)
{
	for (int code = 0; code <= NVML_ERROR_RESET_TYPE_NOT_SUPPORTED; code++) {
		const char *text = nvmlErrorString((nvmlReturn_t)code);
		CHECK(text && *text && strcmp(text, "Unknown Error") != 0, "code %d has no text", code);
	}
	CHECK(strcmp(nvmlErrorString(NVML_ERROR_UNKNOWN), "Unknown Error") == 0, "text of 999");
	CHECK(strcmp(nvmlErrorString((nvmlReturn_t)12345), "Unknown Error") == 0, "text of no code");
}

static void unknown_profile(void)
{
	char log[4096], text[4096] = "";
	unsigned count;
	GIVES(NVML_ERROR_UNINITIALIZED, nvmlDeviceGetCount_v2(&count));
	snprintf(log, sizeof(log), "%s/log", getenv("TEST_SCRATCH"));
	setenv("PARTAGE_SIM", "b300", 1);
	setenv("PARTAGE_SIM_LOG", log, 1);
	GIVES(NVML_ERROR_DRIVER_NOT_LOADED, nvmlInit_v2());
	FILE *file = fopen(log, "r");
	CHECK(file, "%s", log);
	CHECK(fread(text, 1, sizeof(text) - 1, file) > 0, "empty log");
	fclose(file);
	CHECK(strstr(text, "b300") && strstr(text, "8xh100") && strstr(text, "zero"), "must list the profiles: %s",
	      text);
}

/* NVML is not simulated beside a real driver, unless it is forced. The probe plays the driver's device node. */
static void real_driver(void)
{
	char probe[4200];
	int version;

	OK(nvmlShutdown());
	snprintf(probe, sizeof(probe), "%s/nvidiactl", getenv("PARTAGE_SIM_DIR"));
	setenv("PARTAGE_SIM_REAL_DRIVER_PROBE", probe, 1);
	unsetenv("PARTAGE_SIM_FORCE");
	OK(nvmlInit_v2());
	OK(nvmlShutdown());
	int fd = open(probe, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
	CHECK(fd >= 0, "%s", probe);
	close(fd);
	GIVES(NVML_ERROR_DRIVER_NOT_LOADED, nvmlInit_v2());
	GIVES(NVML_ERROR_DRIVER_NOT_LOADED, nvmlInitWithFlags(NVML_INIT_FLAG_NO_GPUS));
	GIVES(NVML_ERROR_DRIVER_NOT_LOADED, nvmlSystemGetCudaDriverVersion_v2(&version));
	setenv("PARTAGE_SIM_FORCE", "1", 1);
	OK(nvmlInit_v2());
	OK(nvmlSystemGetCudaDriverVersion_v2(&version));
}

int main(void)
{
	run_on("zero2", counted);
	run_on("h100-80g", versions);
	run_on("zero", error_texts);
	run_on("zero", real_driver);
	unknown_profile();
	return 0;
}
