/* Green contexts are charged like further contexts, and so is the primary context that they keep alive. One that does not
 * fit is refused without a call to the driver; what is allocated while one is current lies in the primary context and
 * stays charged until that ends; a reset of the device ends both. The machine's contexts take 506 MiB each.
 */
#include <nvml.h>

#include "shim_test.h"

#define CONTEXT (506 * MIB)

/* Also without a context; and the driver holds as much. */
static void charged(uint64_t expected, const char *when)
{
	nvmlDevice_t device;
	nvmlMemory_t memory;
	CHECK(nvmlInit_v2() == NVML_SUCCESS && nvmlDeviceGetHandleByIndex_v2(0, &device) == NVML_SUCCESS, "NVML");
	CHECK(nvmlDeviceGetMemoryInfo(device, &memory) == NVML_SUCCESS, "memory");
	CHECK(memory.used == expected && held(0) == expected, "%s: charged %llu, held %lu, expected %lu", when,
	      memory.used, (unsigned long)held(0), (unsigned long)expected);
}

static CUdevResourceDesc description(void)
{
	static CUdevResourceDesc desc;
	CUdevResource all, group;
	unsigned n = 1;
	if (desc)
		return desc;
	OK(cuDeviceGetDevResource(0, &all, CU_DEV_RESOURCE_TYPE_SM));
	OK(cuDevSmResourceSplitByCount(&group, &n, &all, NULL, 0, 16));
	OK(cuDevResourceGenerateDesc(&desc, &group, 1));
	return desc;
}

static void alone(void)
{
	CUgreenCtx green;
	CUcontext as;
	CUdeviceptr p;
	arm("cuGreenCtxCreate", CUDA_ERROR_UNKNOWN, 0, 1);
	IS(cuGreenCtxCreate(&green, description(), 0, 0), CUDA_ERROR_UNKNOWN);
	disarm();
	charged(0, "a failed one");
	OK(cuGreenCtxCreate(&green, description(), 0, CU_GREEN_CTX_DEFAULT_STREAM));
	charged(2 * CONTEXT, "a green context and its primary one");
	OK(cuCtxFromGreenCtx(&as, green));
	OK(cuCtxSetCurrent(as));
	OK(cuMemAlloc_v2(&p, GIB));
	charged(2 * CONTEXT + GIB, "memory in it");
	OK(cuGreenCtxDestroy(green));
	charged(0, "destroyed, and the primary context with it");
	CHECK(cuGreenCtxDestroy(green) != CUDA_SUCCESS, "a green context that is gone");
}

static void beside_the_primary(void)
{
	CUgreenCtx green[8];
	CUcontext as, primary = start(0);
	CUdeviceptr p;
	for (int i = 0; i < 7; i++)
		OK(cuGreenCtxCreate(&green[i], description(), 0, 0));
	charged(8 * CONTEXT, "eight contexts of 506 MiB in 4 GiB");
	uint64_t calls = partage_sim_calls("cuGreenCtxCreate");
	IS(cuGreenCtxCreate(&green[7], description(), 0, 0), CUDA_ERROR_OUT_OF_MEMORY);
	CHECK(partage_sim_calls("cuGreenCtxCreate") == calls, "the driver was called for a refused one");
	charged(8 * CONTEXT, "one is refused");
	OK(cuCtxFromGreenCtx(&as, green[0]));
	OK(cuCtxSetCurrent(as));
	OK(cuMemAlloc_v2(&p, 40 * MIB));
	IS(cuMemAlloc_v2(&p, 40 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
	for (int i = 0; i < 7; i++)
		OK(cuGreenCtxDestroy(green[i]));
	OK(cuCtxSetCurrent(primary));
	charged(CONTEXT + 40 * MIB, "what was allocated in a green context");
	OK(cuDevicePrimaryCtxRelease_v2(0));
	charged(0, "the primary context is gone");
}

static void reset(void)
{
	CUgreenCtx green[2];
	CUcontext as;
	CUdeviceptr p;
	start(0);
	OK(cuGreenCtxCreate(&green[0], description(), 0, 0));
	OK(cuGreenCtxCreate(&green[1], description(), 0, 0));
	OK(cuCtxFromGreenCtx(&as, green[0]));
	OK(cuCtxSetCurrent(as));
	OK(cuMemAlloc_v2(&p, GIB));
	charged(3 * CONTEXT + GIB, "two green contexts");
	OK(cuDevicePrimaryCtxReset_v2(0));
	charged(0, "after a reset");
	CHECK(cuGreenCtxDestroy(green[0]) != CUDA_SUCCESS, "a green context that is gone");
	start(0);
	charged(CONTEXT, "a new start");
	OK(cuDevicePrimaryCtxRelease_v2(0));
}

int main(void)
{
	OK(cuInit(0));
	alone();
	beside_the_primary();
	reset();
	return 0;
}
