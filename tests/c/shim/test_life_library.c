/* The driver and its users come and go while the process lives. This program is not linked with the driver. It opens it,
 * allocates, closes it, and goes on with the pointers it has; it loads a plug-in that uses the driver, lets it allocate,
 * closes it with memory left behind, and frees that through the next load of it; a plug-in's destructor frees inside of
 * dlclose; four threads load and close plug-ins while others allocate. What is charged is what is held all the while.
 * Arguments: the plug-in.
 */
#include <pthread.h>

#include "life.h"

static const char *plugin_path;

static void *open_library(const char *name)
{
	void *handle = dlopen(name, RTLD_NOW | RTLD_LOCAL);
	CHECK(handle != NULL, "%s", dlerror());
	return handle;
}

static void *function(void *handle, const char *name)
{
	void *found = dlsym(handle, name);
	CHECK(found != NULL, "no %s", name);
	return found;
}

struct plugin {
	void *handle;
	CUresult (*start)(void);
	CUresult (*take)(CUdeviceptr *, size_t);
	CUresult (*give)(CUdeviceptr);
	void (*leave)(CUdeviceptr);
};

static struct plugin load(void)
{
	struct plugin p = {.handle = open_library(plugin_path)};
	p.start = (CUresult (*)(void))function(p.handle, "plugin_start");
	p.take = (CUresult (*)(CUdeviceptr *, size_t))function(p.handle, "plugin_take");
	p.give = (CUresult (*)(CUdeviceptr))function(p.handle, "plugin_give");
	p.leave = (void (*)(CUdeviceptr))function(p.handle, "plugin_leave");
	return p;
}

static void same(const char *when, uint64_t expected)
{
	CHECK(life_charged() == expected && held(0) == expected, "%s: charged %lu, held %lu, expected %lu", when,
	      (unsigned long)life_charged(), (unsigned long)held(0), (unsigned long)expected);
}

/* ---- the driver is closed ------------------------------------------------------------------------------------------------- */

static void driver_closed(void)
{
	for (int i = 0; i < 20; i++) {
		void *handle = open_library("libcuda.so.1");
		__typeof__(&cuInit) init = (__typeof__(&cuInit))function(handle, "cuInit");
		__typeof__(&cuDevicePrimaryCtxRetain) retain =
		        (__typeof__(&cuDevicePrimaryCtxRetain))function(handle, "cuDevicePrimaryCtxRetain");
		__typeof__(&cuCtxSetCurrent) use = (__typeof__(&cuCtxSetCurrent))function(handle, "cuCtxSetCurrent");
		__typeof__(&cuMemAlloc_v2) take = (__typeof__(&cuMemAlloc_v2))function(handle, "cuMemAlloc_v2");
		__typeof__(&cuMemFree_v2) give = (__typeof__(&cuMemFree_v2))function(handle, "cuMemFree_v2");
		CUcontext context;
		CUdeviceptr p, q;
		OK(init(0));
		OK(retain(&context, 0));
		OK(use(context));
		OK(take(&p, GIB));
		same("allocated", GIB);
		dlclose(handle);
		dlclose(open_library("libcuda.so.1"));
		same("closed", GIB);
		IS(take(&q, 3 * GIB + 1), CUDA_ERROR_OUT_OF_MEMORY);
		OK(take(&q, 3 * GIB));
		OK(give(q));
		OK(give(p));
		same("freed", 0);
	}
}

/* ---- its users are closed ------------------------------------------------------------------------------------------------- */

static void plugin_closed(void)
{
	CUdeviceptr kept[10], q;
	for (int i = 0; i < 10; i++) {
		struct plugin p = load();
		OK(p.start());
		OK(p.take(&kept[i], 256 * MIB));
		dlclose(p.handle);
		same("closed with memory left", (uint64_t)(i + 1) * 256 * MIB);
	}
	struct plugin p = load();
	IS(p.take(&q, 2 * GIB), CUDA_ERROR_OUT_OF_MEMORY);
	for (int i = 0; i < 9; i++)
		OK(p.give(kept[i]));
	p.leave(kept[9]);
	same("one left", 256 * MIB);
	dlclose(p.handle);
	same("the destructor frees", 0);
}

static void *loads_and_closes(void *unused)
{
	(void)unused;
	for (int i = 0; i < 50; i++) {
		CUdeviceptr mine;
		struct plugin p = load();
		OK(p.start());
		OK(p.take(&mine, 2 * MIB));
		if (i % 2)
			OK(p.give(mine));
		else
			p.leave(mine); /* others may still have it open; then the last one's is lost to the process */
		dlclose(p.handle);
	}
	return NULL;
}

static void many_at_once(void)
{
	pthread_t thread[4];
#ifdef __SANITIZE_THREAD__
	NOTE("many at once: ThreadSanitizer does not see the loader's own lock, and takes dlclose for a race with "
	     "itself");
	return;
#endif
	for (int i = 0; i < 4; i++)
		CHECK(pthread_create(&thread[i], NULL, loads_and_closes, NULL) == 0, "thread");
	for (int i = 0; i < 4; i++)
		pthread_join(thread[i], NULL);
	CHECK(life_charged() == held(0), "charged %lu, held %lu", (unsigned long)life_charged(),
	      (unsigned long)held(0));
}

static void make_machine(void)
{
	OK(((__typeof__(&cuInit))function(open_library("libcuda.so.1"), "cuInit"))(0));
}

int main(int argc, char **argv)
{
	CHECK(argc == 2, "usage: test_life_library PLUGIN");
	plugin_path = argv[1];
	unsetenv("CUDA_DEVICE_MEMORY_LIMIT");
	scene("make the machine", make_machine);
	grant("share", &(struct granted){0, LIFE_LIMIT}, 1);
	scene("the driver is closed", driver_closed);
	scene("its users are closed", plugin_closed);
	scene("many at once", many_at_once);
	CHECK(peak() <= LIFE_LIMIT, "%lu bytes were held", (unsigned long)peak());
	return 0;
}
