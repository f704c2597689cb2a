/* D12, C030: a driver of another release (fake_driver.c): what it lacks is not handed out and does not crash, what we do not know
 * goes through, and under a limit a newer version of a hooked entry point is refused.
 *
 * other_release free|limited DRIVER: opened by its path, so the shim must find what the program loaded, by its soname.
 */
#include "entry_test.h"

#include <cuda.h>

typedef CUresult look_up_v2(const char *, void **, int, cuuint64_t, CUdriverProcAddressQueryResult *);

/* Resolved from the shim's exports: this program is not linked to a driver. */
extern CUresult cuMemCreate(CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *, unsigned long long)
        __attribute__((weak));

static unsigned lacking;

static void check_name(const char *name, void *driver)
{
	void *pointer = dlsym(driver, name);
	if (driver_own(driver, name)) {
		CHECK(is_hook(pointer), "%s is of %s", name, owner_of(pointer));
		CHECK(dlvsym(driver, name, "ANY") == pointer, "dlvsym gives %s of %s", name,
		      owner_of(dlvsym(driver, name, "ANY")));
		return;
	}
	lacking++;
	CHECK(!pointer, "%s is handed out by handle though the driver lacks it", name);
	CHECK(!dlsym(RTLD_DEFAULT, name), "%s is handed out by RTLD_DEFAULT though the driver lacks it", name);
	const char *error = dlerror();
	CHECK(error && strstr(error, name), "dlerror() about %s says: %s", name, error ? error : "(nothing)");
	CHECK(!dlsym(RTLD_NEXT, name), "%s is handed out by RTLD_NEXT though the driver lacks it", name);
	error = dlerror();
	CHECK(error && strstr(error, name), "dlerror() about %s says: %s", name, error ? error : "(nothing)");
}

static void check_unknown(void *driver, look_up_v2 *look_up)
{
	for (int i = 0; i < 20; i++) {
		char name[32];
		snprintf(name, sizeof name, "cuFuture%d", i);
		CUresult (*future)(void) = (CUresult (*)(void))dlsym(driver, name);
		CHECK(future && (int)future() == 1000 + i, "%s does not go through", name);
	}
	void *pointer = NULL;
	CHECK(look_up("cuFuture7", &pointer, 13000, 0, NULL) == CUDA_SUCCESS &&
	              pointer == driver_own(driver, "cuFuture7"),
	      "cuGetProcAddress changes an unknown name");
}

static void check_newer(void *driver, look_up_v2 *look_up, bool limited)
{
	CUdriverProcAddressQueryResult status = 77;
	void *pointer = (void *)1, *own = driver_own(driver, "cuMemAlloc_v9");
	CUresult result = look_up("cuMemAlloc", &pointer, 99000, 0, &status);
	void *by_name = dlsym(driver, "cuMemAlloc_v9");
	if (!limited) {
		CHECK(result == CUDA_SUCCESS && pointer == own && status == CU_GET_PROC_ADDRESS_SUCCESS,
		      "a newer version without a limit: %d, %p", result, pointer);
		CHECK(by_name == own, "a newer version by name without a limit: %p", by_name);
		return;
	}
	CHECK(result == CUDA_ERROR_NOT_FOUND && !pointer && status == CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT,
	      "a newer version under a limit: %d, %p, status %d", result, pointer, status);
	CHECK(!by_name, "a newer version by name under a limit: %p", by_name);
}

int main(int argc, char **argv)
{
	CHECK(argc == 3, "usage: other_release free|limited DRIVER");
	bool limited = strcmp(argv[1], "limited") == 0;
	void *driver = dlopen(argv[2], RTLD_NOW);
	CHECK(driver, "%s", dlerror());
	const int *calls = driver_own(driver, "fake_calls");
	CHECK(calls, "this is not the fake driver");

	each_export("cu", check_name, driver);
	CHECK(lacking > 20, "the fake driver lacks only %u hooked names", lacking);
	CHECK(*calls == 0, "%d calls reached the driver during look-ups", *calls);

	look_up_v2 *look_up = (look_up_v2 *)dlsym(driver, "cuGetProcAddress_v2");
	void *info = NULL;
	CHECK(look_up("cuMemGetInfo", &info, 3020, 0, NULL) == CUDA_SUCCESS && info == dlsym(driver, "cuMemGetInfo_v2"),
	      "the driver's private cuMemGetInfo is not replaced: %p of %s", info, owner_of(info));
	check_unknown(driver, look_up);
	check_newer(driver, look_up, limited);

	/* Exported by us, lacking in the driver: an error and no crash. */
	CUmemGenericAllocationHandle handle = 0;
	CHECK(cuMemCreate, "the shim does not export cuMemCreate");
	CUresult result = cuMemCreate(&handle, 2 << 20, NULL, 0);
	CHECK(result != CUDA_SUCCESS, "cuMemCreate succeeded without a driver function");
	if (!limited) { /* a limit asks the fake driver more than it can answer */
		CUresult (*allocate)(CUdeviceptr *, size_t) =
		        (CUresult (*)(CUdeviceptr *, size_t))dlsym(driver, "cuMemAlloc_v2");
		CUdeviceptr pointer = 0;
		result = allocate(&pointer, 4096);
		CHECK(result == CUDA_SUCCESS && pointer == 0x10000000, "cuMemAlloc: %d, %llx", result, pointer);
	}
	NOTE("%u hooked names are lacking", lacking);
	return 0;
}
