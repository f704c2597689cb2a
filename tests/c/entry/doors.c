/* D9: every hooked name, through every way of looking it up by name, gives the hook; and nothing else does.
 *
 * doors cuda|nvml. Built twice: linked to the library directly, and opening it as the runtime library does. */
#include "entry_test.h"

struct library {
	const char *soname;
	void *handle;
	unsigned lacking;
};

static void *look_up_next(const char *name)
{
	return dlsym(RTLD_NEXT, name);
}

static void check_name(const char *name, void *argument)
{
	struct library *library = argument;
	if (!driver_own(library->handle, name)) {
		library->lacking++;
		CHECK(dlsym(library->handle, name) == NULL, "%s is handed out though %s lacks it", name,
		      library->soname);
		CHECK(dlsym(RTLD_DEFAULT, name) == NULL, "%s is handed out though %s lacks it", name, library->soname);
		return;
	}
	void *by_handle = dlsym(library->handle, name);
	CHECK(is_hook(by_handle), "dlsym(handle, %s) is of %s", name, owner_of(by_handle));
	CHECK(dlsym(library->handle, name) == by_handle, "the second look-up of %s differs", name);
	CHECK(dlsym(RTLD_DEFAULT, name) == by_handle, "RTLD_DEFAULT gives another %s", name);
	/* A library with versions of any kind has none of this name: libc's own answer, not the driver's function. */
	CHECK(!dlvsym(library->handle, name, "NOBODY_1"), "dlvsym gives a version of %s that nobody has", name);
	/* D9: the same again in the same thread: an interposer that remembers its last answer fails here. */
	CHECK(look_up_next(name) == by_handle, "RTLD_NEXT gives %s of %s", name, owner_of(look_up_next(name)));
	CHECK(look_up_next(name) == by_handle, "RTLD_NEXT gives %s of %s", name, owner_of(look_up_next(name)));
	void *everything = dlopen(NULL, RTLD_LAZY);
	CHECK(dlsym(everything, name) == by_handle, "the program's own handle gives another %s", name);
	dlclose(everything);
}

static void check_more_copies(const struct library *library, const char *name)
{
	void *hook = dlsym(library->handle, name);
#if !defined __SANITIZE_ADDRESS__ && !defined __SANITIZE_THREAD__ /* their run-time allows neither */
	void *deep = dlopen(library->soname, RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
	CHECK(deep && dlsym(deep, name) == hook, "a handle opened with RTLD_DEEPBIND gives %s of %s", name,
	      owner_of(dlsym(deep, name)));
	void *other = dlmopen(LM_ID_NEWLM, library->soname, RTLD_NOW | RTLD_LOCAL);
	CHECK(other, "dlmopen: %s", dlerror());
	CHECK(dlsym(other, name) == hook, "a copy in another namespace gives %s of %s", name,
	      owner_of(dlsym(other, name)));
#endif
	void *ours = dlopen(getenv("TEST_SHIM"), RTLD_NOW | RTLD_NOLOAD);
	CHECK(ours && dlsym(ours, name) == hook, "the shim's own handle gives %s of %s", name,
	      owner_of(dlsym(ours, name)));
}

int main(int argc, char **argv)
{
	bool nvml = argc > 1 && strcmp(argv[1], "nvml") == 0;
	struct library library = {.soname = nvml ? "libnvidia-ml.so.1" : "libcuda.so.1"};
	library.handle = dlopen(library.soname, RTLD_NOW);
	CHECK(library.handle, "%s", dlerror());

	unsigned count = each_export(nvml ? "nvml" : "cu", check_name, &library);
	CHECK(count > 20, "only %u exported names in the version script", count);
	CHECK(library.lacking == 0, "the simulated driver lacks %u hooked names", library.lacking);
	check_more_copies(&library, nvml ? "nvmlDeviceGetMemoryInfo" : "cuMemAlloc_v2");

	/* What is not hooked, or not there, is as without us. */
	const char *plain = nvml ? "nvmlErrorString" : "cuGetErrorString";
	CHECK(dlsym(library.handle, plain) == driver_own(library.handle, plain), "%s is of %s", plain,
	      owner_of(dlsym(library.handle, plain)));
	const char *missing = nvml ? "nvmlNoSuchThing" : "cuNoSuchThing";
	CHECK(!dlsym(library.handle, missing), "%s exists", missing);
	const char *error = dlerror();
	CHECK(error && strstr(error, missing), "dlerror() says: %s", error ? error : "(nothing)");
	NOTE("%u names of %s", count, library.soname);
	return 0;
}
