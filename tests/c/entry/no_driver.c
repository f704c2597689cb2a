/* Entry points that we export, called in a process that has no driver: an error, no crash, no message, and the
 * program's dlerror() is its own. Starts itself again without the driver in the library path. */
#include "entry_test.h"

#include <cuda.h>
#include <nvml.h>

#pragma weak cuMemAlloc_v2
#pragma weak cuMemGetInfo_v2
#pragma weak cuGetProcAddress_v2
#pragma weak nvmlDeviceGetCount_v2

int main(int argc, char **argv)
{
	if (argc == 1) {
		char *again[] = {argv[0], "again", NULL};
		unsetenv("LD_LIBRARY_PATH");
		execv(argv[0], again);
		CHECK(0, "cannot start %s again", argv[0]);
	}
	void *driver = dlopen("libcuda.so.1", RTLD_NOW);
	if (driver)
		SKIP("this machine has a driver of its own");
	dlerror();
	CHECK(cuMemAlloc_v2 && cuMemGetInfo_v2 && cuGetProcAddress_v2 && nvmlDeviceGetCount_v2, "not exported");
	CUdeviceptr pointer;
	size_t free_bytes, total;
	void *found;
	unsigned count;
	CUdriverProcAddressQueryResult status;
	for (int i = 0; i < 2; i++) {
		CUresult result = cuMemAlloc_v2(&pointer, 4096);
		CHECK(result != CUDA_SUCCESS, "allocated without a driver");
		result = cuMemGetInfo_v2(&free_bytes, &total);
		CHECK(result != CUDA_SUCCESS, "memory information without a driver");
		result = cuGetProcAddress_v2("cuInit", &found, 12000, 0, &status);
		CHECK(result != CUDA_SUCCESS, "an entry point without a driver");
		nvmlReturn_t answer = nvmlDeviceGetCount_v2(&count);
		CHECK(answer != NVML_SUCCESS, "devices without a driver");
		const char *error = dlerror();
		CHECK(!error, "our search shows in the program's dlerror(): %s", error);
	}
	return 0;
}
