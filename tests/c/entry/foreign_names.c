/* C028: names that begin like the driver's but are another library's stay that library's, in a process without a driver, and
 * with the shim preloaded from another place than it was installed in.
 *
 * foreign_names PLUGIN: copies the shim, starts itself again with the copy, and does its work there. */
#include "entry_test.h"

#include <fcntl.h>
#include <sys/sendfile.h>
#include <sys/stat.h>

static void start_with_copy(char **argv)
{
	char copy[4096];
	struct stat status;
	snprintf(copy, sizeof copy, "%s/moved-libvgpu.so", getenv("TEST_SCRATCH"));
	int from = open(getenv("TEST_SHIM"), O_RDONLY | O_CLOEXEC);
	int to = open(copy, O_WRONLY | O_CREAT | O_CLOEXEC, 0755);
	CHECK(from >= 0 && to >= 0 && fstat(from, &status) == 0, "cannot copy the shim to %s", copy);
	for (off_t left = status.st_size; left > 0;) {
		ssize_t done = sendfile(to, from, NULL, (size_t)left);
		CHECK(done > 0, "copying the shim stops with %lld bytes to go", (long long)left);
		left -= done;
	}
	char preload[8192];
	const char *shim = getenv("TEST_SHIM"), *old = getenv("LD_PRELOAD");
	const char *at = strstr(old, shim); /* a sanitizer's run-time stays in front */
	CHECK(at, "LD_PRELOAD is %s", old);
	snprintf(preload, sizeof preload, "%.*s%s", (int)(at - old), old, copy);
	setenv("LD_PRELOAD", preload, 1);
	setenv("TEST_SHIM", copy, 1);
	setenv("TEST_MOVED", "1", 1);
	execv(argv[0], argv);
	CHECK(0, "cannot start %s again", argv[0]);
}

static void check_plugin(const char *path, int mode)
{
	void *plugin = dlopen(path, RTLD_NOW | mode);
	CHECK(plugin, "%s", dlerror());
	int *runs = dlsym(plugin, "plugin_runs");
	int before = *runs;

	int (*curl)(void) = (int (*)(void))dlsym(plugin, "curl_plugin");
	CHECK(curl && curl() == 4711 && *runs == before + 1, "curl_plugin ran %d times", *runs - before);

	int (*cublas)(int) = (int (*)(int))dlsym(plugin, "cublasPlugin");
	before = *runs;
	cublas(mode == RTLD_GLOBAL ? 3 : 0);
	CHECK(*runs - before == (mode == RTLD_GLOBAL ? 4 : 1), "cublasPlugin ran %d times", *runs - before);

	unsigned long long pointer = 0;
	int (*allocate)(unsigned long long *, size_t) =
	        (int (*)(unsigned long long *, size_t))dlsym(plugin, "cuMemAlloc_v2");
	before = *runs;
	CHECK(allocate(&pointer, 1) == 0 && pointer == 0x4711 && *runs == before + 1,
	      "the plug-in's own cuMemAlloc_v2 ran %d times, %llx", *runs - before, pointer);
	int (*itself)(unsigned long long *) = (int (*)(unsigned long long *))dlsym(plugin, "plugin_allocate");
	pointer = 0;
	CHECK(itself(&pointer) == 0 && pointer == 0x4711, "the plug-in does not find its own function: %llx", pointer);
	dlclose(plugin);
}

static void check_limits_still_apply(void)
{
	void *driver = dlopen("libcuda.so.1", RTLD_NOW);
	CHECK(driver, "%s", dlerror());
	void *hook = dlsym(driver, "cuMemAlloc_v2");
	CHECK(strcmp(owner_of(hook), "moved-libvgpu.so") == 0, "the driver's cuMemAlloc_v2 is now of %s",
	      owner_of(hook));
}

int main(int argc, char **argv)
{
	CHECK(argc == 2, "usage: foreign_names PLUGIN");
	if (!getenv("TEST_MOVED"))
		start_with_copy(argv);
	check_plugin(argv[1], RTLD_LOCAL);
	check_plugin(argv[1], RTLD_GLOBAL);
	CHECK(!dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD), "the look-ups loaded a driver");
	check_limits_still_apply();
	return 0;
}
