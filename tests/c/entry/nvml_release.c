/* C030: an NVML of another release (fake_nvml.c): what it lacks is not handed out, and called all the same is "not found"
 * instead of a crash or a hang; what nobody knows goes through; a function that calls back into a hooked one is answered.
 *
 * nvml_release free|limited LIBRARY */
#include "entry_test.h"

#include <nvml.h>

typedef int any_call(void *, void *, void *, void *, void *, void *, void *, void *);

static unsigned lacking;

static void check_name(const char *name, void *library)
{
	void *pointer = dlsym(library, name);
	if (driver_own(library, name)) {
		CHECK(is_hook(pointer), "%s is of %s", name, owner_of(pointer));
		return;
	}
	CHECK(!pointer, "%s is handed out though the library lacks it", name);
	const char *error = dlerror();
	CHECK(error && strstr(error, name), "dlerror() about %s says: %s", name, error ? error : "(nothing)");
	/* A program that is linked to it calls what we export. */
	void *shim = dlopen(getenv("TEST_SHIM"), RTLD_NOW | RTLD_NOLOAD);
	CHECK(shim, "the shim is not here");
	any_call *exported = (any_call *)driver_own(shim, name);
	static char page[65536];
	CHECK(exported, "the shim does not export %s", name);
	int code = exported(page, page, page, page, page, page, page, page);
	CHECK(code == NVML_ERROR_FUNCTION_NOT_FOUND || code == NVML_ERROR_NOT_SUPPORTED ||
	              code == NVML_ERROR_UNINITIALIZED,
	      "%s, which is not there, gives %d", name, code);
	lacking++;
}

static void check_present(void *library, bool limited)
{
	nvmlReturn_t (*init)(void) = (nvmlReturn_t (*)(void))dlsym(library, "nvmlInit_v2");
	__typeof__(&nvmlDeviceGetHandleByIndex_v2) handle_of =
	        (__typeof__(&nvmlDeviceGetHandleByIndex_v2))dlsym(library, "nvmlDeviceGetHandleByIndex_v2");
	__typeof__(&nvmlDeviceGetMemoryInfo) info =
	        (__typeof__(&nvmlDeviceGetMemoryInfo))dlsym(library, "nvmlDeviceGetMemoryInfo");
	nvmlDevice_t device;
	nvmlMemory_t memory;
	CHECK(init && handle_of && info, "a name that is there is not found");
	CHECK(init() == NVML_SUCCESS && handle_of(0, &device) == NVML_SUCCESS, "a device");
	nvmlReturn_t result = info(device, &memory);
	CHECK(result == NVML_SUCCESS, "memory: %d", result);
	CHECK(memory.total == (limited ? 256ull << 20 : 1ull << 30), "a total of %llu", memory.total);
}

int main(int argc, char **argv)
{
	CHECK(argc == 3, "usage: nvml_release free|limited LIBRARY");
	alarm(60); /* a look-up that never ends must not outlive the test */
	void *library = dlopen(argv[2], RTLD_NOW | RTLD_GLOBAL);
	CHECK(library, "%s", dlerror());
	const int *calls = driver_own(library, "fake_calls");
	CHECK(calls && *calls == 0, "this is not the fake library, or a look-up called it");
	check_present(library, strcmp(argv[1], "limited") == 0);
	each_export("nvml", check_name, library);
	CHECK(lacking >= 20, "the fake library lacks only %u hooked names", lacking);
	for (int i = 0; i < 20; i++) {
		char name[32];
		snprintf(name, sizeof name, "nvmlFuture%d", i);
		int (*future)(void) = (int (*)(void))dlsym(library, name);
		CHECK(future && future() == 1000 + i, "%s does not go through", name);
	}
	NOTE("%u hooked names are lacking", lacking);
	return 0;
}
