/* A plug-in that uses the driver: linked with it, loaded and closed by test_life_library.c. Its destructor frees what its
 * last user left, which happens inside of dlclose, with the loader's lock held. */
#include <cuda.h>

#define PUBLIC __attribute__((visibility("default")))

PUBLIC CUresult plugin_start(void);
PUBLIC CUresult plugin_take(CUdeviceptr *p, size_t bytes);
PUBLIC CUresult plugin_give(CUdeviceptr p);
PUBLIC void plugin_leave(CUdeviceptr p);

static CUdeviceptr left;

CUresult plugin_start(void)
{
	CUcontext context;
	CUresult error = cuInit(0);
	if (error == CUDA_SUCCESS)
		error = cuDevicePrimaryCtxRetain(&context, 0);
	return error == CUDA_SUCCESS ? cuCtxSetCurrent(context) : error;
}

CUresult plugin_take(CUdeviceptr *p, size_t bytes)
{
	return cuMemAlloc_v2(p, bytes);
}

CUresult plugin_give(CUdeviceptr p)
{
	return cuMemFree_v2(p);
}

void plugin_leave(CUdeviceptr p)
{
	__atomic_store_n(&left, p, __ATOMIC_RELAXED); /* several threads may have the plug-in open */
}

__attribute__((destructor)) static void closing(void)
{
	CUdeviceptr p = __atomic_exchange_n(&left, 0, __ATOMIC_RELAXED);
	if (p)
		cuMemFree_v2(p);
}
