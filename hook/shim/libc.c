/* libc.c: libc's own functions, found in libc's own symbol table.
 *
 * Called for dlsym and its relatives by everything in "getting in", and with any other name by whoever needs a function
 * whose symbol version is newer than the oldest libc we load into (pthread_create moved in 2.34), so that it cannot be
 * imported. An imported dlsym would be our own, or another interposer's; dlvsym(RTLD_NEXT) meets the same interposers.
 * The list of objects is read without the loader's lock: libc stands among the objects of program start, which neither
 * move nor go, and new ones are only appended behind them.
 * What can go wrong: a libc of another kind (musl), where nothing is found and every answer is NULL.
 */
#include "libc.h"

#include "elf_object.h"
#include "shim.h"

static const char *const function_name[LIBC_FUNCTIONS] = {
        [LIBC_dlsym] = "dlsym",     [LIBC_dlvsym] = "dlvsym",
        [LIBC_dlopen] = "dlopen",   [LIBC_dlmopen] = "dlmopen",
        [LIBC_dlerror] = "dlerror", [LIBC_dlinfo] = "dlinfo",
        [LIBC_dladdr1] = "dladdr1", [LIBC_dl_iterate_phdr] = "dl_iterate_phdr",
};

static void *found[LIBC_FUNCTIONS];

VGPU_EARLY static const struct link_map *map_of(const char *soname)
{
	for (const struct link_map *map = _r_debug.r_map; map; map = map->l_next) {
		struct elf_object object = elf_of_map(map);
		if (elf_same(elf_soname(&object), soname))
			return map;
	}
	return NULL;
}

VGPU_EARLY void *vgpu_libc(const char *symbol)
{
	/* Before 2.34 the last two were libraries of their own; since then they are empty. */
	static const char *const libraries[] = {"libc.so.6", "libdl.so.2", "libpthread.so.0"};
	for (unsigned i = 0; i < sizeof libraries / sizeof *libraries; i++) {
		const struct link_map *map = map_of(libraries[i]);
		if (!map)
			continue;
		struct elf_object object = elf_of_map(map);
		void *address = elf_symbol(&object, symbol);
		if (address)
			return address;
	}
	return NULL;
}

VGPU_EARLY void *vgpu_libc_function(enum libc_function function)
{
	void *address = __atomic_load_n(&found[function], __ATOMIC_RELAXED);
	if (!address) {
		address = vgpu_libc(function_name[function]);
		__atomic_store_n(&found[function], address, __ATOMIC_RELAXED);
	}
	return address;
}

/* Only dlopen makes a handle: an object of program start has no search list of its own before that. */
VGPU_EARLY static void *handle_of(const char *soname, void **cache)
{
	void *handle = __atomic_load_n(cache, __ATOMIC_RELAXED);
	if (!handle && LIBC(dlopen)) {
		handle = LIBC(dlopen)(soname, RTLD_LAZY | RTLD_NOLOAD);
		__atomic_store_n(cache, handle, __ATOMIC_RELAXED);
	}
	return handle;
}

VGPU_EARLY void *vgpu_libc_handle(void)
{
	static void *libc;
	return handle_of("libc.so.6", &libc);
}

VGPU_EARLY void *vgpu_global_handle(void)
{
	static void *global;
	return handle_of(NULL, &global);
}
