/* K05, C034, D3c, D13: one limit, many doors. For every entry point that allocates, the largest size that is granted is
 * the same through every way to it, to the byte, and one unit more is CUDA_ERROR_OUT_OF_MEMORY without the driver's
 * allocation being called: linked, dlsym by handle, RTLD_DEFAULT and RTLD_NEXT, both look-up functions at every flag, a
 * look-up function fetched through itself, per-thread variants by each of them, and the first, 32-bit entry points.
 */
#include "shim_test.h"

#define LEFT (128 * MIB) /* of the limit when the sizes are sought: the 32-bit calls have little room of their own */

typedef CUresult get_proc(const char *, void **, int, cuuint64_t, CUdriverProcAddressQueryResult *);
typedef CUresult get_proc_v1(const char *, void **, int, cuuint64_t);

/* Exported, but declared by the header only for programs that ask for per-thread streams. */
CUresult cuMemAllocAsync_ptsz(CUdeviceptr *, size_t, CUstream);
CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *, size_t, CUmemoryPool, CUstream);

/* ---- the kinds: allocate `n` units and free them again ------------------------------------------------------------ */

static CUmemoryPool pool;

static CUresult freed(CUresult error, const CUdeviceptr *p)
{
	if (error == CUDA_SUCCESS) {
		OK(cuMemFree_v2(*p));
		OK(cuCtxSynchronize()); /* an empty pool gives its memory back */
	}
	return error;
}

static CUresult use_plain(void *function, uint64_t n)
{
	CUdeviceptr p = 0;
	return freed(((CUresult (*)(CUdeviceptr *, size_t))function)(&p, n), &p);
}

static CUresult use_old(void *function, uint64_t n)
{
	CUdeviceptr_v1 p = 0;
	CUresult error = ((CUresult (*)(CUdeviceptr_v1 *, unsigned))function)(&p, (unsigned)n);
	if (error == CUDA_SUCCESS)
		OK(cuMemFree(p));
	return error;
}

static CUresult use_managed(void *function, uint64_t n)
{
	CUdeviceptr p = 0;
	return freed(((CUresult (*)(CUdeviceptr *, size_t, unsigned))function)(&p, n, CU_MEM_ATTACH_GLOBAL), &p);
}

static CUresult use_pitched(void *function, uint64_t n)
{
	CUdeviceptr p = 0;
	size_t pitch;
	return freed(((CUresult (*)(CUdeviceptr *, size_t *, size_t, size_t, unsigned))function)(&p, &pitch, 512, n, 4),
	             &p);
}

static CUresult use_old_pitched(void *function, uint64_t n)
{
	CUdeviceptr_v1 p = 0;
	unsigned pitch;
	CUresult error = ((CUresult (*)(CUdeviceptr_v1 *, unsigned *, unsigned, unsigned, unsigned))function)(
	        &p, &pitch, 512, (unsigned)n, 4);
	if (error == CUDA_SUCCESS)
		OK(cuMemFree(p));
	return error;
}

static CUresult use_async(void *function, uint64_t n)
{
	CUdeviceptr p = 0;
	return freed(((CUresult (*)(CUdeviceptr *, size_t, CUstream))function)(&p, n, NULL), &p);
}

static CUresult use_pool(void *function, uint64_t n)
{
	CUdeviceptr p = 0;
	return freed(((CUresult (*)(CUdeviceptr *, size_t, CUmemoryPool, CUstream))function)(&p, n, pool, NULL), &p);
}

static CUresult use_create(void *function, uint64_t n)
{
	CUmemGenericAllocationHandle handle;
	CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED};
	prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	CUresult error = ((CUresult (*)(CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *,
	                                unsigned long long))function)(&handle, n * GRANULE, &prop, 0);
	if (error == CUDA_SUCCESS)
		OK(cuMemRelease(handle));
	return error;
}

/* Rows of 16 KiB, 128 of them for each granule: no layout adds anything. */
static CUDA_ARRAY3D_DESCRIPTOR granules(uint64_t n)
{
	return (CUDA_ARRAY3D_DESCRIPTOR){
	        .Width = 4096, .Height = n * GRANULE / 16384, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 1};
}

static CUresult destroyed(CUresult error, CUarray array)
{
	if (error == CUDA_SUCCESS)
		OK(cuArrayDestroy(array));
	return error;
}

static CUresult use_array(void *function, uint64_t n)
{
	CUDA_ARRAY3D_DESCRIPTOR d = granules(n);
	CUDA_ARRAY_DESCRIPTOR flat = {d.Width, d.Height, d.Format, d.NumChannels};
	CUarray array;
	CUresult error = ((CUresult (*)(CUarray *, const CUDA_ARRAY_DESCRIPTOR *))function)(&array, &flat);
	return destroyed(error, array);
}

static CUresult use_old_array(void *function, uint64_t n)
{
	CUDA_ARRAY3D_DESCRIPTOR d = granules(n);
	CUDA_ARRAY_DESCRIPTOR_v1 flat = {(unsigned)d.Width, (unsigned)d.Height, d.Format, d.NumChannels};
	CUarray array;
	CUresult error = ((CUresult (*)(CUarray *, const CUDA_ARRAY_DESCRIPTOR_v1 *))function)(&array, &flat);
	return destroyed(error, array);
}

static CUresult use_array_3d(void *function, uint64_t n)
{
	CUDA_ARRAY3D_DESCRIPTOR d = granules(n);
	CUarray array;
	CUresult error = ((CUresult (*)(CUarray *, const CUDA_ARRAY3D_DESCRIPTOR *))function)(&array, &d);
	return destroyed(error, array);
}

static CUresult use_old_array_3d(void *function, uint64_t n)
{
	CUDA_ARRAY3D_DESCRIPTOR d = granules(n);
	CUDA_ARRAY3D_DESCRIPTOR_v1 old = {(unsigned)d.Width, (unsigned)d.Height, 0, d.Format, d.NumChannels, 0};
	CUarray array;
	CUresult error = ((CUresult (*)(CUarray *, const CUDA_ARRAY3D_DESCRIPTOR_v1 *))function)(&array, &old);
	return destroyed(error, array);
}

static CUresult use_mipmap(void *function, uint64_t n)
{
	CUDA_ARRAY3D_DESCRIPTOR d = granules(n);
	CUmipmappedArray mipmap;
	CUresult error =
	        ((CUresult (*)(CUmipmappedArray *, const CUDA_ARRAY3D_DESCRIPTOR *, unsigned))function)(&mipmap, &d, 1);
	if (error == CUDA_SUCCESS)
		OK(cuMipmappedArrayDestroy(mipmap));
	return error;
}

static const struct kind {
	const char *symbol, *base;
	int version;
	bool per_thread;
	uint64_t unit; /* bytes */
	CUresult (*use)(void *function, uint64_t n);
	void *linked;
} kinds[] = {
        {"cuMemAlloc_v2", "cuMemAlloc", 3020, false, 1, use_plain, (void *)cuMemAlloc_v2},
        {"cuMemAlloc", "cuMemAlloc", 2000, false, 1, use_old, (void *)cuMemAlloc},
        {"cuMemAllocManaged", "cuMemAllocManaged", 6000, false, 1, use_managed, (void *)cuMemAllocManaged},
        {"cuMemAllocPitch_v2", "cuMemAllocPitch", 3020, false, 512, use_pitched, (void *)cuMemAllocPitch_v2},
        {"cuMemAllocPitch", "cuMemAllocPitch", 2000, false, 512, use_old_pitched, (void *)cuMemAllocPitch},
        {"cuMemAllocAsync", "cuMemAllocAsync", 11020, false, 1, use_async, (void *)cuMemAllocAsync},
        {"cuMemAllocAsync_ptsz", "cuMemAllocAsync", 11020, true, 1, use_async, (void *)cuMemAllocAsync_ptsz},
        {"cuMemAllocFromPoolAsync", "cuMemAllocFromPoolAsync", 11020, false, 1, use_pool,
	 (void *)cuMemAllocFromPoolAsync},
        {"cuMemAllocFromPoolAsync_ptsz", "cuMemAllocFromPoolAsync", 11020, true, 1, use_pool,
	 (void *)cuMemAllocFromPoolAsync_ptsz},
        {"cuMemCreate", "cuMemCreate", 10020, false, GRANULE, use_create, (void *)cuMemCreate},
        {"cuArrayCreate_v2", "cuArrayCreate", 3020, false, GRANULE, use_array, (void *)cuArrayCreate_v2},
        {"cuArrayCreate", "cuArrayCreate", 2000, false, GRANULE, use_old_array, (void *)cuArrayCreate},
        {"cuArray3DCreate_v2", "cuArray3DCreate", 3020, false, GRANULE, use_array_3d, (void *)cuArray3DCreate_v2},
        {"cuArray3DCreate", "cuArray3DCreate", 2000, false, GRANULE, use_old_array_3d, (void *)cuArray3DCreate},
        {"cuMipmappedArrayCreate", "cuMipmappedArrayCreate", 5000, false, GRANULE, use_mipmap,
	 (void *)cuMipmappedArrayCreate},
};
#define KINDS (sizeof(kinds) / sizeof(*kinds))

/* ---- the doors ---------------------------------------------------------------------------------------------------- */

static void *driver;
static get_proc *look_up;
static get_proc_v1 *look_up_v1;
static cuuint64_t plain_flags; /* of a look-up for what is not per thread */

static void *linked(const struct kind *k)
{
	return k->linked;
}

static void *by_handle(const struct kind *k)
{
	return dlsym(driver, k->symbol);
}

static void *by_default(const struct kind *k)
{
	return dlsym(RTLD_DEFAULT, k->symbol);
}

static void *by_next(const struct kind *k)
{
	void *volatile found = dlsym(RTLD_NEXT, k->symbol);
	return found;
}

static cuuint64_t flags_of(const struct kind *k)
{
	return k->per_thread ? CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM : plain_flags;
}

static void *by_look_up(const struct kind *k)
{
	CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
	void *found = NULL;
	OK(look_up(k->base, &found, k->version, flags_of(k), &status));
	CHECK(status == CU_GET_PROC_ADDRESS_SUCCESS, "%s: status %d", k->symbol, (int)status);
	return found;
}

static void *by_look_up_v1(const struct kind *k)
{
	void *found = NULL;
	OK(look_up_v1(k->base, &found, k->version, flags_of(k)));
	return found;
}

/* ---- the search --------------------------------------------------------------------------------------------------- */

static uint64_t allocation_calls(void)
{
	uint64_t calls = 0;
	for (unsigned i = 0; i < KINDS; i++)
		calls += partage_sim_calls(kinds[i].symbol);
	return calls;
}

static uint64_t largest(const struct kind *k, void *function, const char *door)
{
	uint64_t granted = 0, refused = 2 * LEFT / k->unit;
	while (refused - granted > 1) {
		uint64_t middle = granted + (refused - granted) / 2, before = allocation_calls();
		CUresult error = k->use(function, middle);
		CHECK(error == CUDA_SUCCESS || error == CUDA_ERROR_OUT_OF_MEMORY, "%s by %s: %lu units give %d",
		      k->symbol, door, (unsigned long)middle, (int)error);
		CHECK(error == CUDA_SUCCESS || allocation_calls() == before, "%s by %s: a refusal reached the driver",
		      k->symbol, door);
		if (error == CUDA_SUCCESS)
			granted = middle;
		else
			refused = middle;
	}
	return granted * k->unit;
}

static void door(const char *name, void *(*find)(const struct kind *))
{
	for (unsigned i = 0; i < KINDS; i++) {
		void *function = find(&kinds[i]);
		CHECK(function != NULL, "%s is not found by %s", kinds[i].symbol, name);
		uint64_t bytes = largest(&kinds[i], function, name);
		CHECK(bytes == LEFT, "%s by %s: refused after %lu bytes, %lu were left", kinds[i].symbol, name,
		      (unsigned long)bytes, (unsigned long)LEFT);
	}
	NOTE("%s: %u entry points are refused at the same byte", name, (unsigned)KINDS);
}

int main(void)
{
	CUdeviceptr most;
	void *itself = NULL;
	driver = dlopen("libcuda.so.1", RTLD_NOW);
	CHECK(driver != NULL, "%s", dlerror());
	start(0);
	OK(cuDeviceGetDefaultMemPool(&pool, 0));
	OK(cuMemAlloc_v2(&most, 4 * GIB - LEFT));
	door("the linker", linked);
	door("dlsym on the handle", by_handle);
	door("dlsym(RTLD_DEFAULT)", by_default);
	door("dlsym(RTLD_NEXT)", by_next);
	look_up = cuGetProcAddress_v2;
	look_up_v1 = (get_proc_v1 *)dlsym(driver, "cuGetProcAddress");
	for (plain_flags = 0; plain_flags < 2; plain_flags++) {
		door(plain_flags ? "cuGetProcAddress_v2, legacy streams" : "cuGetProcAddress_v2", by_look_up);
		door(plain_flags ? "cuGetProcAddress, legacy streams" : "cuGetProcAddress", by_look_up_v1);
	}
	plain_flags = 0;
	OK(look_up("cuGetProcAddress", &itself, 12000, 0, NULL));
	look_up = (get_proc *)itself;
	OK(look_up("cuGetProcAddress", &itself, 12000, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, NULL));
	look_up = (get_proc *)itself;
	door("cuGetProcAddress_v2 through itself, twice", by_look_up);
	OK(look_up("cuGetProcAddress", &itself, 11030, 0, NULL));
	look_up_v1 = (get_proc_v1 *)itself;
	door("cuGetProcAddress through cuGetProcAddress_v2", by_look_up_v1);
	CHECK(used() == 4 * GIB - LEFT, "%lu bytes are charged", (unsigned long)used());
	CHECK(peak() <= 4 * GIB, "%lu bytes were held", (unsigned long)peak());
	return 0;
}
