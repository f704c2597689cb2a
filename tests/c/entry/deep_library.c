/* A library that opens the driver by itself; what it finds depends on how the library was loaded. Used by bypass.c. */
#include <dlfcn.h>

__attribute__((visibility("default"))) void *deep_library_allocate(void);

void *deep_library_allocate(void)
{
	void *driver = dlopen("libcuda.so.1", RTLD_NOW);
	void *volatile found = driver ? dlsym(driver, "cuMemAlloc_v2") : 0;
	return found;
}
