/* libnvidia-ml.so.1 stands alone: it works without libcuda in the process, and exports every name a client may look up.
 */
#include <dlfcn.h>
#include <stdint.h>
#include <string.h>

#include "check.h"

static int libcuda_mapped(void)
{
	char line[4096];
	int found = 0;
	FILE *maps = fopen("/proc/self/maps", "r");
	CHECK(maps, "own maps");
	while (fgets(line, sizeof(line), maps))
		found |= strstr(line, "libcuda") != NULL;
	fclose(maps);
	return found;
}

int main(void)
{
	static const char *const names[] = {
	        "nvmlInit",
	        "nvmlInit_v2",
	        "nvmlDeviceGetCount",
	        "nvmlDeviceGetHandleByIndex",
	        "nvmlDeviceGetPciInfo",
	        "nvmlDeviceGetComputeRunningProcesses",
	        "nvmlDeviceGetComputeRunningProcesses_v2",
	        "nvmlEventSetWait",
	        "nvmlDeviceGetVgpuUtilization",
	        "nvmlGpmSampleAlloc",
	        "nvmlVgpuInstanceGetLicenseInfo_v2",
	};
	void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
	CHECK(library, "%s", dlerror());
	for (unsigned i = 0; i < sizeof(names) / sizeof(*names); i++)
		CHECK(dlsym(library, names[i]), "no %s", names[i]);
	CHECK(!dlsym(library, "cuInit") && !dlsym(library, "sim_machine_open"), "it exports what is not NVML");

	int (*init)(void), (*count)(unsigned *), (*gpm)(void **);
	void *symbol = dlsym(library, "nvmlInit_v2");
	memcpy(&init, &symbol, sizeof(symbol));
	symbol = dlsym(library, "nvmlDeviceGetCount_v2");
	memcpy(&count, &symbol, sizeof(symbol));
	symbol = dlsym(library, "nvmlGpmSampleAlloc");
	memcpy(&gpm, &symbol, sizeof(symbol));
	unsigned devices = 0;
	void *sample;
	CHECK(init() == 0 && count(&devices) == 0 && devices == 1, "%u devices", devices);
	CHECK(gpm(&sample) == 3, "what is not simulated says NOT_SUPPORTED");
	CHECK(!libcuda_mapped(), "libcuda came along");
	return 0;
}
