/* D11, D17, C033, C035, C036, C038: what a program is told about memory, and that asking never hurts: before cuInit,
 * without a context, with outputs left out, with a limit above the card, below what is used, and on boards whose NVML
 * knows no memory totals.
 * Argument: `above` with a limit larger than the card.
 */
#include <nvml.h>

#include "shim_test.h"

static void before_init(void)
{
	size_t f = 1, t = 1;
	CUdeviceptr p;
	CUcontext context;
	int count;
	nvmlMemory_t memory;
	unsigned int n = 0;
	IS(cuMemGetInfo_v2(&f, &t), CUDA_ERROR_NOT_INITIALIZED);
	IS(cuMemAlloc_v2(&p, 4096), CUDA_ERROR_NOT_INITIALIZED);
	IS(cuMemAllocAsync(&p, 4096, NULL), CUDA_ERROR_NOT_INITIALIZED);
	IS(cuMemFree_v2(0x1000), CUDA_ERROR_NOT_INITIALIZED);
	IS(cuDeviceGetCount(&count), CUDA_ERROR_NOT_INITIALIZED);
	IS(cuDeviceTotalMem_v2(&t, 0), CUDA_ERROR_NOT_INITIALIZED);
	IS(cuDevicePrimaryCtxRetain(&context, 0), CUDA_ERROR_NOT_INITIALIZED);
	CHECK(nvmlDeviceGetMemoryInfo((nvmlDevice_t)&n, &memory) == NVML_ERROR_UNINITIALIZED,
	      "NVML memory before nvmlInit");
	CHECK(nvmlDeviceGetCount_v2(&n) == NVML_ERROR_UNINITIALIZED, "NVML count before nvmlInit");
	CHECK(nvmlDeviceGetComputeRunningProcesses_v3((nvmlDevice_t)&n, &n, NULL) == NVML_ERROR_UNINITIALIZED,
	      "NVML processes before nvmlInit");
}

static void without_context(void)
{
	size_t f = 1, t = 1;
	CUdeviceptr p = 5;
	CUmemGenericAllocationHandle h;
	OK(cuInit(0));
	IS(cuMemGetInfo_v2(&f, &t), CUDA_ERROR_INVALID_CONTEXT);
	IS(cuMemAlloc_v2(&p, 4096), CUDA_ERROR_INVALID_CONTEXT);
	IS(cuMemAllocManaged(&p, 4096, CU_MEM_ATTACH_GLOBAL), CUDA_ERROR_INVALID_CONTEXT);
	IS(cuMemAllocAsync(&p, 4096, NULL), CUDA_ERROR_INVALID_CONTEXT);
	CHECK(f == 1 && t == 1 && p == 5, "outputs were touched");
	IS(cuMemCreate(&h, GRANULE, NULL, 0), CUDA_ERROR_INVALID_VALUE);
	IS(cuMemCreate(NULL, GRANULE, NULL, 0), CUDA_ERROR_INVALID_VALUE);
}

static void missing_outputs(void)
{
	size_t one;
	start(0);
	IS(cuMemGetInfo_v2(NULL, &one), CUDA_ERROR_INVALID_VALUE);
	IS(cuMemGetInfo_v2(&one, NULL), CUDA_ERROR_INVALID_VALUE);
	IS(cuMemGetInfo_v2(NULL, NULL), CUDA_ERROR_INVALID_VALUE);
	IS(cuMemAlloc_v2(NULL, 4096), CUDA_ERROR_INVALID_VALUE);
	IS(cuMemAlloc_v2(&(CUdeviceptr){0}, 0), CUDA_ERROR_INVALID_VALUE);
	IS(cuMemAllocAsync(NULL, 4096, NULL), CUDA_ERROR_INVALID_VALUE);
	IS(cuMemAllocPitch_v2(NULL, &one, 16, 16, 4), CUDA_ERROR_INVALID_VALUE);
	IS(cuDeviceTotalMem_v2(NULL, 0), CUDA_ERROR_INVALID_VALUE);
	CHECK(used() == 0, "%lu bytes are charged", (unsigned long)used());
}

/* Boards whose NVML knows no totals: its own error, and the limit holds all the same. */
static void without_nvml_totals(void)
{
	nvmlDevice_t device;
	nvmlMemory_t memory;
	CUdeviceptr p;
	CHECK(nvmlInit_v2() == NVML_SUCCESS && nvmlDeviceGetHandleByIndex_v2(0, &device) == NVML_SUCCESS, "NVML");
	arm("nvmlDeviceGetMemoryInfo", (CUresult)NVML_ERROR_NOT_SUPPORTED, 0, 1);
	CHECK(nvmlDeviceGetMemoryInfo(device, &memory) == NVML_ERROR_NOT_SUPPORTED, "NVML's own error");
	disarm();
	IS(cuMemAlloc_v2(&p, 4 * GIB + 1), CUDA_ERROR_OUT_OF_MEMORY);
}

int main(int argc, char **argv)
{
	size_t f, t, total;
	(void)argv;
	before_init();
	without_context();
	missing_outputs();
	OK(cuMemGetInfo_v2(&f, &t));
	OK(cuDeviceTotalMem_v2(&total, 0));
	uint64_t card = machine()->model[0].memory;
	if (argc > 1) {
		CHECK(t == card && total == card, "limit above the card: totals %zu and %zu of %lu", t, total,
		      (unsigned long)card);
		return 0;
	}
	CHECK(t == 4 * GIB && total == 4 * GIB && f == 4 * GIB, "free %zu of %zu, device total %zu", f, t, total);
	CUdeviceptr p;
	OK(cuMemAlloc_v2(&p, 4 * GIB));
	OK(cuMemGetInfo_v2(&f, &t));
	CHECK(f == 0 && t == 4 * GIB, "full: free %zu of %zu", f, t);
	OK(cuMemFree_v2(p));
	without_nvml_totals();
	return 0;
}
