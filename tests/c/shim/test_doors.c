/* D3c, D13, C034: the same byte over the limit is refused by every door to the driver (linked, dlsym, cuGetProcAddress
 * with and without per-thread streams, through itself), for every entry point that allocates, with
 * CUDA_ERROR_OUT_OF_MEMORY and no other code, and after a free the same call succeeds.
 */
#include "shim_test.h"

#define LIMIT (4 * GIB)

typedef CUresult get_proc(const char *, void **, int, cuuint64_t, CUdriverProcAddressQueryResult *);

static get_proc *lookup;
static cuuint64_t lookup_flags;
static void *driver;

static void *by_dlsym(const char *symbol, const char *name, int version)
{
	(void)name;
	(void)version;
	return dlsym(driver, symbol);
}

static void *by_lookup(const char *symbol, const char *name, int version)
{
	void *function = NULL;
	CUdriverProcAddressQueryResult status = (CUdriverProcAddressQueryResult)-1;
	(void)symbol;
	OK(lookup(name, &function, version, lookup_flags, &status));
	CHECK(status == CU_GET_PROC_ADDRESS_SUCCESS, "%s: status %d", name, (int)status);
	return function;
}

static void *linked(const char *symbol, const char *name, int version)
{
	(void)name;
	(void)version;
	if (strcmp(symbol, "cuMemAlloc_v2") == 0)
		return (void *)cuMemAlloc_v2;
	if (strcmp(symbol, "cuMemAllocManaged") == 0)
		return (void *)cuMemAllocManaged;
	if (strcmp(symbol, "cuMemAllocPitch_v2") == 0)
		return (void *)cuMemAllocPitch_v2;
	if (strcmp(symbol, "cuMemAllocAsync") == 0)
		return (void *)cuMemAllocAsync;
	if (strcmp(symbol, "cuMemAllocFromPoolAsync") == 0)
		return (void *)cuMemAllocFromPoolAsync;
	return (void *)cuMemCreate;
}

static uint64_t allocation_calls(void)
{
	return partage_sim_calls("cuMemAlloc_v2") + partage_sim_calls("cuMemAllocManaged") +
	       partage_sim_calls("cuMemAllocPitch_v2") + partage_sim_calls("cuMemAllocAsync") +
	       partage_sim_calls("cuMemAllocAsync_ptsz") + partage_sim_calls("cuMemAllocFromPoolAsync") +
	       partage_sim_calls("cuMemAllocFromPoolAsync_ptsz") + partage_sim_calls("cuMemCreate");
}

/* All but the last granule is taken: what needs two is refused, and what needs one is not. */
static void refused_then_granted(const char *door, void *(*find)(const char *, const char *, int))
{
	CUdeviceptr p = 1;
	size_t pitch, size = GRANULE + 1;
	CUmemoryPool pool;
	CUmemGenericAllocationHandle h;
	CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED};
	prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	CUresult (*alloc)(CUdeviceptr *, size_t) =
	        (CUresult (*)(CUdeviceptr *, size_t))find("cuMemAlloc_v2", "cuMemAlloc", 3020);
	CUresult (*managed)(CUdeviceptr *, size_t, unsigned) =
	        (CUresult (*)(CUdeviceptr *, size_t, unsigned))find("cuMemAllocManaged", "cuMemAllocManaged", 6000);
	CUresult (*pitched)(CUdeviceptr *, size_t *, size_t, size_t, unsigned) =
	        (CUresult (*)(CUdeviceptr *, size_t *, size_t, size_t, unsigned))find("cuMemAllocPitch_v2",
		                                                                      "cuMemAllocPitch", 3020);
	CUresult (*async)(CUdeviceptr *, size_t, CUstream) =
	        (CUresult (*)(CUdeviceptr *, size_t, CUstream))find("cuMemAllocAsync", "cuMemAllocAsync", 11020);
	CUresult (*from_pool)(CUdeviceptr *, size_t, CUmemoryPool, CUstream) =
	        (CUresult (*)(CUdeviceptr *, size_t, CUmemoryPool, CUstream))find("cuMemAllocFromPoolAsync",
		                                                                  "cuMemAllocFromPoolAsync", 11020);
	CUresult (*create)(CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *, unsigned long long) =
	        (CUresult (*)(CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *,
		              unsigned long long))find("cuMemCreate", "cuMemCreate", 10020);
	NOTE("door: %s", door);
	CHECK(alloc && managed && pitched && async && from_pool && create, "%s: an entry point is missing", door);
	uint64_t before = allocation_calls();
	IS(alloc(&p, size), CUDA_ERROR_OUT_OF_MEMORY);
	IS(managed(&p, size, CU_MEM_ATTACH_GLOBAL), CUDA_ERROR_OUT_OF_MEMORY);
	IS(pitched(&p, &pitch, 512, size / 512 + 1, 4), CUDA_ERROR_OUT_OF_MEMORY);
	IS(async(&p, 1, NULL), CUDA_ERROR_OUT_OF_MEMORY);
	OK(cuDeviceGetDefaultMemPool(&pool, 0));
	IS(from_pool(&p, 1, pool, NULL), CUDA_ERROR_OUT_OF_MEMORY);
	IS(create(&h, 2 * GRANULE, &prop, 0), CUDA_ERROR_OUT_OF_MEMORY);
	CHECK(p == 1, "%s: a refusal wrote an address", door);
	CHECK(allocation_calls() == before, "%s: a refused allocation reached the driver", door);
	OK(alloc(&p, GRANULE));
	IS(alloc(&(CUdeviceptr){0}, 1), CUDA_ERROR_OUT_OF_MEMORY);
	OK(cuMemFree_v2(p));
	OK(managed(&p, GRANULE, CU_MEM_ATTACH_GLOBAL));
	OK(cuMemFree_v2(p));
	OK(create(&h, GRANULE, &prop, 0));
	OK(cuMemRelease(h));
}

int main(void)
{
	CUdeviceptr most;
	driver = dlopen("libcuda.so.1", RTLD_NOW);
	CHECK(driver != NULL, "%s", dlerror());
	start(0);
	OK(cuMemAlloc_v2(&most, LIMIT - GRANULE));
	refused_then_granted("linked", linked);
	refused_then_granted("dlsym", by_dlsym);
	lookup = (get_proc *)dlsym(driver, "cuGetProcAddress_v2");
	CHECK(lookup != NULL, "cuGetProcAddress_v2 is missing");
	refused_then_granted("cuGetProcAddress", by_lookup);
	lookup_flags = CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
	refused_then_granted("cuGetProcAddress, per-thread streams", by_lookup);
	lookup_flags = 0;
	void *again = NULL;
	OK(lookup("cuGetProcAddress", &again, 12000, 0, NULL));
	lookup = (get_proc *)again;
	refused_then_granted("cuGetProcAddress through itself", by_lookup);
	OK(cuMemFree_v2(most));
	CHECK(used() == 0, "%lu bytes stay charged", (unsigned long)used());
	CHECK(peak() <= LIMIT, "%lu bytes were held", (unsigned long)peak());
	return 0;
}
