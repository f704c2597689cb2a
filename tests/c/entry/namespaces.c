/* A driver that the program has only in another namespace (dlmopen): names looked up there give the hooks, and the
 * hooks call that very copy and do not load another.
 *
 * namespaces DRIVER: the driver of fake_driver.c, which counts its calls. */
#include "entry_test.h"

#include <cuda.h>

int main(int argc, char **argv)
{
	CHECK(argc == 2, "usage: namespaces DRIVER");
	void *driver = dlmopen(LM_ID_NEWLM, argv[1], RTLD_NOW | RTLD_LOCAL);
	CHECK(driver, "%s", dlerror());
	const int *calls = driver_own(driver, "fake_calls");
	__typeof__(&cuMemAlloc_v2) allocate = (__typeof__(&cuMemAlloc_v2))dlsym(driver, "cuMemAlloc_v2");
	CHECK(is_hook((void *)allocate), "cuMemAlloc_v2 is of %s", owner_of((void *)allocate));
	CHECK(*calls == 0, "the look-up called the driver %d times", *calls);
	CUdeviceptr pointer = 0;
	CUresult result = allocate(&pointer, 4096);
	CHECK(result == CUDA_SUCCESS && pointer == 0x10000000, "cuMemAlloc_v2: %d, %llx", result, pointer);
	CHECK(*calls > 0, "the call went to another driver");
	CHECK(!dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD), "a second driver was loaded");
	return 0;
}
