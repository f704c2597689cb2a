/* A library that has nothing to do with the driver, but whose names begin like the driver's, one even being the same
 * (simulators and test doubles do that). It calls itself through dlsym; `plugin_runs` counts. Used by foreign_names.c.
 */
#include <dlfcn.h>
#include <stddef.h>

#define EXPORT __attribute__((visibility("default")))

EXPORT int plugin_runs;

EXPORT int cublasPlugin(int depth)
{
	plugin_runs++;
	int (*self)(int) = (int (*)(int))dlsym(RTLD_DEFAULT, "cublasPlugin");
	return depth > 0 && self ? self(depth - 1) : depth;
}

EXPORT int curl_plugin(void)
{
	plugin_runs++;
	return 4711;
}

EXPORT int cuMemAlloc_v2(unsigned long long *pointer, size_t bytes)
{
	(void)bytes;
	plugin_runs++;
	*pointer = 0x4711;
	return 0;
}

/* Looks its own function up as a local library does. */
EXPORT int plugin_allocate(unsigned long long *pointer)
{
	int (*allocate)(unsigned long long *, size_t) =
	        (int (*)(unsigned long long *, size_t))dlsym(RTLD_DEFAULT, "cuMemAlloc_v2");
	return allocate ? allocate(pointer, 1) : -1;
}
