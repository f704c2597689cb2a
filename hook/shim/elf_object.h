/* elf_object.h: reading loaded objects without the loader's own functions (elf_object.c). Used by libc.c, resolve.c and
 * dlsym.c. */
#ifndef PARTAGE_SHIM_ELF_OBJECT_H
#define PARTAGE_SHIM_ELF_OBJECT_H

#include <link.h>
#include <stdbool.h>
#include <stdint.h>

/* For functions that a sanitizer's own start-up reaches through our dlsym, before its shadow memory exists. They also
 * call no string function of libc: those are interposed by then, and not ready. */
#define VGPU_EARLY __attribute__((no_sanitize("address"), no_sanitize("thread"), no_sanitize("undefined")))

typedef ElfW(Addr) elf_addr;
typedef ElfW(Dyn) elf_dyn;
typedef ElfW(Half) elf_half;
typedef ElfW(Phdr) elf_phdr;
typedef ElfW(Sym) elf_sym;

struct elf_object {
	uintptr_t base;
	const elf_dyn *dynamic; /* NULL: the object has none */
	const elf_phdr *headers; /* NULL where it was made from a link map */
	unsigned header_count;
};

bool elf_same(const char *a, const char *b);
struct elf_object elf_of_map(const struct link_map *map);
const char *elf_soname(const struct elf_object *object); /* "" if it has none */
/* The default version of a defined symbol, NULL if there is none. Indirect functions count as none. */
void *elf_symbol(const struct elf_object *object, const char *name);
bool elf_contains(const struct elf_object *object, uintptr_t address); /* needs headers */

/* Visit the objects of the program's own namespace in load order, under the loader's list lock, until `visit` says
 * true. `visit` may walk again, and must neither load nor unload. Returns whether it said true. */
typedef bool elf_visitor(const struct elf_object *object, void *argument);
bool elf_walk(elf_visitor *visit, void *argument);

#endif
