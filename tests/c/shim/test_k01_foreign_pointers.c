/* K01, C005, D15: addresses that the library does not know, and frees across the flavours. Memory that the driver gave
 * past the library is freed for real by every call that frees, with the driver's own code, and nothing is refunded for
 * it; an ordinary block may be freed in stream order and a block of a stream at once; nonsense gets the driver's answer.
 */
#include "entry/entry_test.h"
#include "shim_test.h"

static void *driver;
static CUstream stream;

/* The driver's own, past every hook. */
#define OWN(name) ((__typeof__(&name))driver_own(driver, #name))

static void nothing_left(const char *what)
{
	OK(cuCtxSynchronize());
	CHECK(used() == 0 && held(0) == 0, "%s: charged %lu, held %lu", what, (unsigned long)used(),
	      (unsigned long)held(0));
}

/* What an earlier library, or a tool, has allocated before we came. */
static void unknown_blocks(void)
{
	CUdeviceptr p, ours;
	OK(OWN(cuMemAlloc_v2)(&p, 10 * MIB));
	CHECK(used() == 0 && held(0) == 10 * MIB, "charged %lu, held %lu", (unsigned long)used(),
	      (unsigned long)held(0));
	OK(cuMemFree_v2(p));
	nothing_left("freed at once");
	OK(OWN(cuMemAlloc_v2)(&p, 10 * MIB));
	OK(cuMemFreeAsync(p, stream));
	OK(cuStreamSynchronize(stream));
	nothing_left("freed in stream order");
	OK(OWN(cuMemAllocAsync)(&p, 10 * MIB, stream));
	OK(cuStreamSynchronize(stream));
	OK(cuMemFree_v2(p));
	nothing_left("a stream's block freed at once");
	OK(cuMemAlloc_v2(&ours, 6 * MIB));
	OK(OWN(cuMemAlloc_v2)(&p, 10 * MIB));
	OK(cuMemFree_v2(p));
	CHECK(used() == 6 * MIB, "freeing what is not ours changed the charge to %lu", (unsigned long)used());
	OK(cuMemFree_v2(ours));
	nothing_left("both");
}

static void across_the_flavours(void)
{
	CUdeviceptr p;
	OK(cuMemAllocAsync(&p, 5 * MIB, stream));
	OK(cuMemFree_v2(p));
	nothing_left("async, then at once");
	OK(cuMemAlloc_v2(&p, 5 * MIB));
	OK(cuMemFreeAsync(p, stream));
	nothing_left("at once, then async");
	OK(cuMemAllocManaged(&p, 5 * MIB, CU_MEM_ATTACH_GLOBAL));
	OK(cuMemFree_v2(p));
	nothing_left("managed");
}

static void unknown_physical_memory(void)
{
	CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED};
	CUmemGenericAllocationHandle handle;
	CUdeviceptr at;
	prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	OK(OWN(cuMemCreate)(&handle, 4 * MIB, &prop, 0));
	OK(cuMemAddressReserve(&at, 4 * MIB, 0, 0, 0));
	OK(cuMemMap(at, 4 * MIB, 0, handle, 0));
	OK(cuMemUnmap(at, 4 * MIB));
	OK(cuMemRelease(handle));
	OK(cuMemAddressFree(at, 4 * MIB));
	nothing_left("physical memory");
}

static void nonsense(void)
{
	CUdeviceptr block, wrong[8];
	void *host;
	OK(cuMemAlloc_v2(&block, 4 * MIB));
	OK(cuMemAllocHost_v2(&host, 4096));
	unsigned n = 0;
	wrong[n++] = 0;
	wrong[n++] = 1;
	wrong[n++] = block + 4096; /* inside a block that is ours */
	wrong[n++] = block + 4 * MIB;
	wrong[n++] = (CUdeviceptr)(uintptr_t)host;
	wrong[n++] = (CUdeviceptr)(uintptr_t)&block;
	wrong[n++] = UINT64_C(1) << 47;
	wrong[n++] = UINT64_MAX;
	for (unsigned i = 0; i < n; i++) {
		IS(cuMemFree_v2(wrong[i]), OWN(cuMemFree_v2)(wrong[i]));
		IS(cuMemFreeAsync(wrong[i], stream), OWN(cuMemFreeAsync)(wrong[i], stream));
		IS(cuMemUnmap(wrong[i], 4 * MIB), OWN(cuMemUnmap)(wrong[i], 4 * MIB));
		IS(cuMemRelease(wrong[i]), OWN(cuMemRelease)(wrong[i]));
		CHECK(used() == 4 * MIB, "freeing %llx changed the charge to %lu", wrong[i], (unsigned long)used());
	}
	OK(cuMemFreeHost(host));
	OK(cuMemFree_v2(block));
	for (int i = 0; i < 3; i++)
		CHECK(cuMemFree_v2(block) != CUDA_SUCCESS, "a block is freed again and again");
	nothing_left("nonsense");
}

int main(void)
{
	driver = dlopen("libcuda.so.1", RTLD_NOW);
	CHECK(driver != NULL, "%s", dlerror());
	start(0);
	OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	unknown_blocks();
	across_the_flavours();
	unknown_physical_memory();
	nonsense();
	return 0;
}
