/* K01: managed memory goes to whichever device touches it, so two shares are not one: what is allocated under the first
 * device's limit and then used from the second counts there too. It is charged on every device on which the process has
 * a context, or to which it sends some, and the call that makes a device one of them is refused where it does not fit.
 */
#include "grant.h"

static uint64_t charged(CUdevice device)
{
	return grant_charged_by("share", getpid(), (unsigned)device);
}

static void expect(uint64_t first, uint64_t second, const char *when)
{
	CHECK(charged(0) == first && charged(1) == second, "%s: charged %lu and %lu, expected %lu and %lu", when,
	      (unsigned long)charged(0), (unsigned long)charged(1), (unsigned long)first, (unsigned long)second);
}

/* Device 0 has 2 GiB, device 1 has 1 GiB. */
static void one_process(void)
{
	CUdeviceptr p, q, small;
	CUcontext context;
	CUmemLocation second = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 1};
	start(0);
	OK(cuMemAllocManaged(&p, 1536 * MIB, CU_MEM_ATTACH_GLOBAL));
	expect(1536 * MIB, 0, "used from the first only");
	IS(cuMemPrefetchAsync_v2(p, 1536 * MIB, second, 0, NULL), CUDA_ERROR_OUT_OF_MEMORY);
	IS(cuMemPrefetchAsync(p, 1536 * MIB, 1, NULL), CUDA_ERROR_OUT_OF_MEMORY);
	IS(cuMemAdvise_v2(p, 1536 * MIB, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, second), CUDA_ERROR_OUT_OF_MEMORY);
	IS(cuMemAdvise(p, 1536 * MIB, CU_MEM_ADVISE_SET_ACCESSED_BY, 1), CUDA_ERROR_OUT_OF_MEMORY);
	IS(cuDevicePrimaryCtxRetain(&context, 1), CUDA_ERROR_OUT_OF_MEMORY);
	IS(cuCtxCreate_v2(&context, 0, 1), CUDA_ERROR_OUT_OF_MEMORY);
	expect(1536 * MIB, 0, "after the refusals");
	OK(cuMemPrefetchAsync(p, 1536 * MIB, 0, NULL));
	OK(cuMemPrefetchAsync(p, 1536 * MIB, CU_DEVICE_CPU, NULL));
	OK(cuCtxSynchronize());
	OK(cuMemFree_v2(p));

	OK(cuMemAllocManaged(&p, 512 * MIB, CU_MEM_ATTACH_GLOBAL));
	OK(cuMemPrefetchAsync_v2(p, 512 * MIB, second, 0, NULL));
	OK(cuCtxSynchronize());
	expect(512 * MIB, 512 * MIB, "sent to the second");
	IS(cuMemAllocManaged(&q, 768 * MIB, CU_MEM_ATTACH_GLOBAL), CUDA_ERROR_OUT_OF_MEMORY);
	expect(512 * MIB, 512 * MIB, "what does not fit on one is refused on both");
	OK(cuMemAllocManaged(&small, 4096, CU_MEM_ATTACH_GLOBAL));
	OK(cuMemAlloc_v2(&q, 4096));
	expect(516 * MIB, 514 * MIB, "small ones");
	OK(cuMemFree_v2(small));
	OK(cuMemFree_v2(q));
	OK(cuMemFree_v2(p));
	expect(0, 0, "all freed");
}

/* A device that does not exist has no room for anything: blocks that follow must not be asked to fit there. */
static void wrong_device(void)
{
	CUdeviceptr p;
	CUcontext context;
	OK(cuInit(0));
	IS(cuCtxCreate_v2(&context, 0, 9), CUDA_ERROR_INVALID_DEVICE);
	start(0);
	IS(cuMemPrefetchAsync(0, 1, 9, NULL), CUDA_ERROR_INVALID_DEVICE);
	OK(cuMemAllocManaged(&p, 512 * MIB, CU_MEM_ATTACH_GLOBAL));
	OK(cuMemFree_v2(p));
}

int main(void)
{
	const struct granted both[] = {{0, 2 * GIB}, {1, GIB}};
	setenv("CUDA_DEVICE_MEMORY_LIMIT", "2g", 1);
	scene("a device that does not exist", wrong_device);
	unsetenv("CUDA_DEVICE_MEMORY_LIMIT");
	grant("share", both, 2);
	scene("one process", one_process);
	return 0;
}
