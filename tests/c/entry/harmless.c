/* D10, D24: a process that has nothing to do with a GPU stays as it is: look-ups of names that begin like the driver's load
 * nothing, open nothing and start nothing; its own globals and functions with names such as ours are its own. Built
 * with -rdynamic, without a driver in the library path. */
#include "entry_test.h"

#include <dirent.h>

/* Names that interposers are known to have exported, or that we use inside. */
int mutex = 1, initialized = 2, ledger = 3, pidfound = 4, context_size = 5, vgpu_real = 6;
static int called;

#define OWN(name)                                                                                                      \
	void name(void);                                                                                               \
	void name(void)                                                                                                \
	{                                                                                                              \
		called++;                                                                                              \
	}
OWN(vgpu_mode)
OWN(vgpu_reserve)
OWN(vgpu_libc)
OWN(vgpu_swap)
OWN(vgpu_real_fn)
OWN(round_up)

static unsigned entries_of(const char *path)
{
	unsigned count = 0;
	DIR *directory = opendir(path);
	CHECK(directory, "cannot read %s", path);
	while (readdir(directory))
		count++;
	closedir(directory);
	return count;
}

static bool is_mapped(const char *what)
{
	char line[4096];
	bool found = false;
	FILE *maps = fopen("/proc/self/maps", "r");
	while (fgets(line, sizeof line, maps))
		found |= strstr(line, what) != NULL;
	fclose(maps);
	return found;
}

int main(void)
{
	static const char *const names[] = {
	        "cuInit",  "cuMemAlloc_v2", "cublasCreate_v2",       "curl_easy_init",      "cudaMalloc",
	        "cutlass", "nvmlInit_v2",   "nvmlDeviceGetCount_v2", "cuGetProcAddress_v2", "cuMemAlloc_v99"};
	unsigned files = entries_of("/proc/self/fd"), threads = entries_of("/proc/self/task");
	void *everything = dlopen(NULL, RTLD_LAZY);
	CHECK(is_mapped("libvgpu.so"), "the shim is not here, and nothing was tested");
	for (unsigned i = 0; i < sizeof names / sizeof *names; i++) {
		CHECK(!dlsym(RTLD_DEFAULT, names[i]), "%s exists without a driver", names[i]);
		const char *error = dlerror();
		CHECK(error && strstr(error, names[i]), "dlerror() about %s says: %s", names[i],
		      error ? error : "(nothing)");
		CHECK(!dlerror(), "a second dlerror() about %s", names[i]);
		CHECK(!dlsym(everything, names[i]), "%s exists in the program's own handle", names[i]);
		CHECK(!dlsym(RTLD_NEXT, names[i]), "%s exists behind the program", names[i]);
	}
	CHECK(!is_mapped("libcuda") && !is_mapped("libnvidia-ml"), "a look-up loaded the driver");
	CHECK(entries_of("/proc/self/fd") == files, "a look-up opened a file");
	CHECK(entries_of("/proc/self/task") == threads, "a look-up started a thread");
	CHECK(entries_of(getenv("XDG_RUNTIME_DIR")) == 2, "something was made in the runtime directory");
	CHECK(called == 0, "the shim called a function of the program");
	CHECK(mutex == 1 && initialized == 2 && ledger == 3 && pidfound == 4 && context_size == 5 && vgpu_real == 6,
	      "the shim wrote to a variable of the program");
	CHECK(dlsym(RTLD_NEXT, "malloc") == dlsym(RTLD_NEXT, "malloc") && dlsym(RTLD_NEXT, "malloc"),
	      "RTLD_NEXT lost malloc");
	return 0;
}
