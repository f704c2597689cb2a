/* Ways past a preloaded library, each with its expected outcome written down, so that what SECURITY says and what
 * happens cannot drift apart. "bypass" rows are what only the host can see (the agent compares NVML with the ledger).
 *
 * bypass LIBRARY; `bypass owner` prints whose cuMemAlloc_v2 the runtime library's way of looking it up gives. */
#include "entry_test.h"

#include <sys/auxv.h>

enum outcome { HOOKED, BYPASS };

static void expect(const char *way, const char *owner, enum outcome outcome)
{
	const char *expected = outcome == HOOKED ? "libvgpu.so" : "libcuda.so.1";
	CHECK(strcmp(owner, expected) == 0, "%s: cuMemAlloc_v2 is of %s, documented is %s", way, owner, expected);
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

static const char *loader(void)
{
	Dl_info info;
	CHECK(dladdr((const void *)getauxval(AT_BASE), &info), "where is ld.so?");
	return info.dli_fname;
}

int main(int argc, char **argv)
{
	CHECK(argc == 2, "usage: bypass LIBRARY|owner");
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
	return 0;
}
