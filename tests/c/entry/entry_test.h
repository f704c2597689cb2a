/* entry_test.h: what the tests of "getting in" share: whose is a pointer, the list of what the shim exports, and the
 * driver's own functions, read from its symbol table (no shim can stand in that way; it is the oracle here). */
#ifndef PARTAGE_TESTS_ENTRY_TEST_H
#define PARTAGE_TESTS_ENTRY_TEST_H

#include "check.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <string.h>

#include "elf_object.h"

static inline const char *owner_of(const void *pointer)
{
	Dl_info info;
	if (!pointer)
		return "nobody";
	if (!dladdr(pointer, &info) || !info.dli_fname)
		return "unknown";
	const char *slash = strrchr(info.dli_fname, '/');
	return slash ? slash + 1 : info.dli_fname;
}

static inline bool is_hook(const void *pointer)
{
	return strcmp(owner_of(pointer), "libvgpu.so") == 0;
}

static inline void *driver_own(void *handle, const char *symbol)
{
	struct elf_object object = elf_of_map(handle);
	return elf_symbol(&object, symbol);
}

/* Call `each` for every exported hook name that starts with `prefix`, from the version script that the shim was linked
 * with. Returns how many there are. */
static inline unsigned each_export(const char *prefix, void (*each)(const char *name, void *argument), void *argument)
{
	char path[4096], line[256], name[200];
	unsigned count = 0;
	snprintf(path, sizeof path, "%s/generated/vgpu.map", getenv("TEST_BUILD"));
	FILE *file = fopen(path, "r");
	CHECK(file, "cannot read %s", path);
	while (fgets(line, sizeof line, file)) {
		if (sscanf(line, "\t\t%199[A-Za-z0-9_];", name) == 1 && strncmp(name, prefix, strlen(prefix)) == 0) {
			each(name, argument);
			count++;
		}
	}
	fclose(file);
	return count;
}

#endif
