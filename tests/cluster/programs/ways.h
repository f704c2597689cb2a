/*
 * The ways in which programs come to a call of the driver, for greedy.c. `handle`: dlsym on what dlopen gave, as the
 * runtime library does; `deep`, `namespace`: the same on a driver opened with RTLD_DEEPBIND, or by dlmopen; `address`:
 * cuGetProcAddress; `library`: by a library that was opened with RTLD_DEEPBIND (/deep.so); `table`: read out of the
 * driver's own symbol table. The last two are those that nothing in the process can see. C libraries that have no such
 * way know `handle` and `address` only. What is not found is NULL.
 */
#ifndef WAYS_H
#define WAYS_H

#include <dlfcn.h>
#include <stddef.h>
#include <string.h>

#ifdef __GLIBC__
#include <elf.h>
#include <link.h>

/* Look a name up in a library's own symbol table; its strings lie right behind it. */
static void *in_table(void *driver, const char *name)
{
	const ElfW(Sym) *symbol = NULL, *last;
	const char *strings = NULL;
	struct link_map *map;

	if (dlinfo(driver, RTLD_DI_LINKMAP, &map))
		return NULL;
	for (const ElfW(Dyn) *entry = map->l_ld; entry->d_tag != DT_NULL; entry++) {
		if (entry->d_tag == DT_SYMTAB)
			symbol = (const ElfW(Sym) *)entry->d_un.d_ptr;
		if (entry->d_tag == DT_STRTAB)
			strings = (const char *)entry->d_un.d_ptr;
	}
	if (!symbol || (const char *)symbol > strings)
		return NULL;
	last = symbol + ((size_t)(strings - (const char *)symbol) / sizeof(*symbol));
	for (; symbol < last; symbol++)
		if (symbol->st_shndx != SHN_UNDEF && strcmp(strings + symbol->st_name, name) == 0)
			return (char *)map->l_addr + symbol->st_value;
	return NULL;
}
#endif

static void *open_driver(const char *way)
{
	(void)way;
#ifdef __GLIBC__
	if (strcmp(way, "deep") == 0)
		return dlopen("libcuda.so.1", RTLD_NOW | RTLD_DEEPBIND);
	if (strcmp(way, "namespace") == 0)
		return dlmopen(LM_ID_NEWLM, "libcuda.so.1", RTLD_NOW);
#endif
	return dlopen("libcuda.so.1", RTLD_NOW);
}

static void *by_address(void *driver, const char *name)
{
	int (*ask)(const char *, void **, int, unsigned long long, int *) =
	        (int (*)(const char *, void **, int, unsigned long long, int *))dlsym(driver, "cuGetProcAddress_v2");
	void *found = NULL;
	char plain[64];

	strncpy(plain, name, sizeof(plain) - 1);
	plain[sizeof(plain) - 1] = '\0';
	if (strlen(plain) > 3 && strcmp(plain + strlen(plain) - 3, "_v2") == 0)
		plain[strlen(plain) - 3] = '\0'; /* the driver adds the version that fits */
	return ask && ask(plain, &found, 12000, 0, NULL) == 0 ? found : NULL;
}

static void *find_by(const char *way, void *driver, const char *name)
{
	if (strcmp(way, "address") == 0)
		return by_address(driver, name);
#ifdef __GLIBC__
	if (strcmp(way, "table") == 0)
		return in_table(driver, name);
	if (strcmp(way, "library") == 0) {
		void *library = dlopen("/deep.so", RTLD_NOW | RTLD_DEEPBIND);
		void *(*find)(void) = library ? (void *(*)(void))dlsym(library, "deep_library_allocate") : NULL;
		return find ? find() : NULL;
	}
#endif
	return dlsym(driver, name);
}

#endif
