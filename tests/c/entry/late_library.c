/* A library that uses the driver in its constructor, under the loader's lock, as communication libraries do: it looks
 * the entry points up, asks for memory information and creates physical memory, 4 MiB of which it keeps. Used by
 * constructor.c. */
#include <cuda.h>
#include <dlfcn.h>
#include <stddef.h>

__attribute__((visibility("default"))) int late_library_state; /* 1: done, < 0: the step that failed */

static int use_driver(void)
{
	void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
	if (!driver)
		return -1;
	__typeof__(&cuGetProcAddress_v2) look_up =
	        (__typeof__(&cuGetProcAddress_v2))dlsym(driver, "cuGetProcAddress_v2");
	__typeof__(&cuMemGetInfo_v2) get_info = NULL;
	__typeof__(&cuMemCreate) create = (__typeof__(&cuMemCreate))dlsym(driver, "cuMemCreate");
	__typeof__(&cuMemRelease) release = (__typeof__(&cuMemRelease))dlsym(driver, "cuMemRelease");
	__typeof__(&cuCtxSetCurrent) set_current = (__typeof__(&cuCtxSetCurrent))dlsym(driver, "cuCtxSetCurrent");
	__typeof__(&cuDevicePrimaryCtxRetain) retain =
	        (__typeof__(&cuDevicePrimaryCtxRetain))dlsym(driver, "cuDevicePrimaryCtxRetain");
	if (!look_up || !create || !release || !set_current || !retain ||
	    look_up("cuMemGetInfo", (void **)&get_info, 3020, 0, NULL) != CUDA_SUCCESS)
		return -2;
	CUcontext context;
	if (retain(&context, 0) != CUDA_SUCCESS || set_current(context) != CUDA_SUCCESS)
		return -3;
	size_t free_before, free_after, total;
	if (get_info(&free_before, &total) != CUDA_SUCCESS || total == 0)
		return -4;
	CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
	                            .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
	CUmemGenericAllocationHandle kept, handle;
	if (create(&kept, (size_t)4 << 20, &prop, 0) != CUDA_SUCCESS ||
	    create(&handle, (size_t)4 << 20, &prop, 0) != CUDA_SUCCESS)
		return -5;
	if (get_info(&free_after, &total) != CUDA_SUCCESS || release(handle) != CUDA_SUCCESS)
		return -6;
	return 1;
}

__attribute__((constructor)) static void late_library_start(void)
{
	late_library_state = use_driver();
}
