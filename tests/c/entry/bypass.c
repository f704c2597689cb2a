/* Ways past a preloaded library, each with its expected outcome written down, so that what SECURITY says and what
 * happens cannot drift apart. "bypass" rows are what only the host can see (the agent compares NVML with the ledger).
 *
 * bypass LIBRARY [STATIC PROGRAM]; `bypass owner` prints whose cuMemAlloc_v2 the runtime library's way of looking it up
 * gives. */
#include "entry_test.h"

#include <sys/auxv.h>

enum outcome { HOOKED, BYPASS };

static void expect(const char *way, const char *owner, enum outcome outcome)
{
	const char *expected = outcome == HOOKED ? "libvgpu.so" : "not libvgpu.so";
	CHECK((strcmp(owner, "libvgpu.so") == 0) == (outcome == HOOKED), "%s: cuMemAlloc_v2 is of %s, documented is %s",
	      way, owner, expected);
	NOTE("%-60s %s", way, outcome == HOOKED ? "hooked" : "bypass (as documented)");
}

static const char *owner_here(void)
{
	void *driver = dlopen("libcuda.so.1", RTLD_NOW);
	CHECK(driver, "%s", dlerror());
	return owner_of(dlsym(driver, "cuMemAlloc_v2"));
}

/* What a child started by this shell command says. */
static const char *owner_there(const char *command)
{
	static char line[256];
	FILE *child = popen(command, "r");
	CHECK(child && fgets(line, sizeof line, child), "no answer from %s", command);
	CHECK(pclose(child) == 0, "%s failed", command);
	line[strcspn(line, "\n")] = '\0';
	return line;
}

/* A copy of the driver under another file name, with this soname; its own name where that is NULL. */
static void *copy_of_driver(const char *name, const char *soname)
{
	char path[512], *bytes;
	Dl_info info;
	long size;
	CHECK(dladdr(driver_own(dlopen("libcuda.so.1", RTLD_NOW), "cuInit"), &info), "where is the driver?");
	FILE *file = fopen(info.dli_fname, "rbe");
	CHECK(file && fseek(file, 0, SEEK_END) == 0 && (size = ftell(file)) > 0, "%s cannot be read", info.dli_fname);
	rewind(file);
	bytes = malloc((size_t)size);
	CHECK(bytes && fread(bytes, 1, (size_t)size, file) == (size_t)size, "%s cannot be read", info.dli_fname);
	fclose(file);
	for (char *at = bytes; soname && (at = memmem(at, (size_t)(bytes + size - at), "libcuda.so.1", 13)) != NULL;
	     at++)
		memcpy(at, soname, 13);
	snprintf(path, sizeof path, "%s/%s", getenv("TEST_SCRATCH"), name);
	file = fopen(path, "wbe");
	CHECK(file && fwrite(bytes, 1, (size_t)size, file) == (size_t)size && fclose(file) == 0, "%s", path);
	free(bytes);
	void *copy = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	CHECK(copy, "%s", dlerror());
	return copy;
}

static const char *loader(void)
{
	Dl_info info;
	CHECK(dladdr((const void *)getauxval(AT_BASE), &info), "where is ld.so?");
	return info.dli_fname;
}

int main(int argc, char **argv)
{
	CHECK(argc >= 2, "usage: bypass LIBRARY [STATIC PROGRAM] | owner");
	if (strcmp(argv[1], "owner") == 0) {
		puts(owner_here());
		return 0;
	}
	char command[9000];
	expect("dlopen and dlsym on the handle", owner_here(), HOOKED);
	snprintf(command, sizeof command, "%s %s owner", loader(), argv[0]);
	expect("started through ld.so", owner_there(command), HOOKED);
	snprintf(command, sizeof command, "env -i LD_LIBRARY_PATH=%s %s owner", getenv("LD_LIBRARY_PATH"), argv[0]);
	expect("LD_PRELOAD removed (a read-only ld.so.preload stays)", owner_there(command), BYPASS);

	void *library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
	CHECK(library, "%s", dlerror());
	void *(*find)(void) = (void *(*)(void))dlsym(library, "deep_library_allocate");
	expect("a library that opens the driver", owner_of(find()), HOOKED);
	dlclose(library);
	library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
	CHECK(library, "%s", dlerror());
	find = (void *(*)(void))dlsym(library, "deep_library_allocate");
	expect("a library loaded with RTLD_DEEPBIND that opens the driver", owner_of(find()), BYPASS);

	void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
	expect("reading the driver's symbol table", owner_of(driver_own(driver, "cuMemAlloc_v2")), BYPASS);
	expect("a copy of the driver under another file name",
	       owner_of(dlsym(copy_of_driver("other.so", NULL), "cuMemAlloc_v2")), HOOKED);
	void *renamed = copy_of_driver("renamed.so", "libcudb.so.1");
	expect("a copy of the driver with its soname changed", owner_of(dlsym(renamed, "cuMemAlloc_v2")), BYPASS);

	if (argc > 2)
		expect("a statically linked program", owner_there(argv[2]), BYPASS);
	return 0;
}
