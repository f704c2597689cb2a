/* elf_object.c: symbols, names and address ranges of loaded objects, read from their own dynamic sections.
 *
 * Called by libc.c to find the real dlsym, by resolve.c to find the driver's functions, by dlsym.c to tell whose a
 * pointer is. Reading instead of calling dlsym has three reasons: dlsym is what we replace; a look-up that fails would
 * overwrite the program's dlerror(); and no lock is taken and nothing allocated, so that it works in a constructor.
 * What can go wrong: an object without a dynamic section or a hash table has no symbols for us, and answers NULL.
 */
#include "elf_object.h"

#include "libc.h"

#include <stddef.h>

struct tables {
	const char *strings;
	const elf_sym *symbols;
	const elf_half *versions;
	const uint32_t *gnu_hash;
	const uint32_t *hash;
	const char *soname;
};

VGPU_EARLY bool elf_same(const char *a, const char *b)
{
	while (*a && *a == *b) {
		a++;
		b++;
	}
	return *a == *b;
}

VGPU_EARLY struct elf_object elf_of_map(const struct link_map *map)
{
	return (struct elf_object){.base = map->l_addr, .dynamic = map->l_ld};
}

/* glibc relocates these addresses in place where the section can be written, and leaves them (vdso) where not. */
VGPU_EARLY static const void *address(const struct elf_object *object, elf_addr value)
{
	return (const void *)(value < object->base ? value + object->base : value);
}

VGPU_EARLY static struct tables read_tables(const struct elf_object *object)
{
	struct tables t = {0};
	size_t soname = 0;
	for (const elf_dyn *d = object->dynamic; d && d->d_tag != DT_NULL; d++) {
		switch (d->d_tag) {
		case DT_STRTAB:
			t.strings = address(object, d->d_un.d_ptr);
			break;
		case DT_SYMTAB:
			t.symbols = address(object, d->d_un.d_ptr);
			break;
		case DT_VERSYM:
			t.versions = address(object, d->d_un.d_ptr);
			break;
		case DT_GNU_HASH:
			t.gnu_hash = address(object, d->d_un.d_ptr);
			break;
		case DT_HASH:
			t.hash = address(object, d->d_un.d_ptr);
			break;
		case DT_SONAME:
			soname = d->d_un.d_val;
			break;
		default:
			break;
		}
	}
	if (t.strings && soname)
		t.soname = t.strings + soname;
	return t;
}

VGPU_EARLY const char *elf_soname(const struct elf_object *object)
{
	const char *soname = read_tables(object).soname;
	return soname ? soname : "";
}

VGPU_EARLY static bool matches(const struct tables *t, uint32_t index, const char *name)
{
	enum { HIDDEN_VERSION = 0x8000 };
	const elf_sym *symbol = &t->symbols[index];
	/* ELF32_ST_TYPE and ELF64_ST_TYPE are the same. */
	unsigned type = ELF64_ST_TYPE(symbol->st_info);
	if (symbol->st_shndx == SHN_UNDEF || symbol->st_value == 0)
		return false;
	if (type != STT_FUNC && type != STT_OBJECT && type != STT_NOTYPE)
		return false;
	if (t->versions && (t->versions[index] & HIDDEN_VERSION))
		return false;
	return elf_same(t->strings + symbol->st_name, name);
}

VGPU_EARLY static uint32_t find_gnu(const struct tables *t, const char *name)
{
	enum { WORD_BITS = sizeof(elf_addr) * 8 };
	uint32_t buckets = t->gnu_hash[0], first = t->gnu_hash[1], words = t->gnu_hash[2], shift = t->gnu_hash[3];
	const elf_addr *bloom = (const elf_addr *)(t->gnu_hash + 4);
	const uint32_t *bucket = (const uint32_t *)(bloom + words);
	const uint32_t *chain = bucket + buckets;
	uint32_t hash = 5381;
	for (const unsigned char *c = (const unsigned char *)name; *c; c++)
		hash = hash * 33 + *c;
	if (!buckets || !words)
		return 0;
	elf_addr word = bloom[hash / WORD_BITS % words];
	if (!(word >> hash % WORD_BITS & word >> (hash >> shift) % WORD_BITS & 1))
		return 0;
	uint32_t index = bucket[hash % buckets];
	if (index < first)
		return 0;
	for (;; index++) {
		uint32_t entry = chain[index - first];
		if ((entry | 1) == (hash | 1) && matches(t, index, name))
			return index;
		if (entry & 1)
			return 0;
	}
}

VGPU_EARLY static uint32_t find_sysv(const struct tables *t, const char *name)
{
	uint32_t buckets = t->hash[0];
	const uint32_t *bucket = t->hash + 2;
	const uint32_t *chain = bucket + buckets;
	uint32_t hash = 0;
	for (const unsigned char *c = (const unsigned char *)name; *c; c++) {
		hash = (hash << 4) + *c;
		uint32_t high = hash & 0xf0000000;
		hash = (hash ^ high >> 24) & ~high;
	}
	if (!buckets)
		return 0;
	for (uint32_t index = bucket[hash % buckets]; index; index = chain[index])
		if (matches(t, index, name))
			return index;
	return 0;
}

VGPU_EARLY void *elf_symbol(const struct elf_object *object, const char *name)
{
	struct tables t = read_tables(object);
	if (!t.strings || !t.symbols)
		return NULL;
	uint32_t index = t.gnu_hash ? find_gnu(&t, name) : t.hash ? find_sysv(&t, name) : 0;
	return index ? (void *)(object->base + t.symbols[index].st_value) : NULL;
}

VGPU_EARLY bool elf_contains(const struct elf_object *object, uintptr_t address)
{
	for (unsigned i = 0; i < object->header_count; i++) {
		const elf_phdr *header = &object->headers[i];
		if (header->p_type == PT_LOAD && address - (object->base + header->p_vaddr) < header->p_memsz)
			return true;
	}
	return false;
}

struct walk {
	elf_visitor *visit;
	void *argument;
};

VGPU_EARLY static int visit_one(struct dl_phdr_info *info, size_t size, void *argument)
{
	const struct walk *walk = argument;
	struct elf_object object = {
	        .base = info->dlpi_addr, .headers = info->dlpi_phdr, .header_count = info->dlpi_phnum};
	(void)size;
	for (unsigned i = 0; i < object.header_count; i++)
		if (object.headers[i].p_type == PT_DYNAMIC)
			object.dynamic = (const elf_dyn *)(object.base + object.headers[i].p_vaddr);
	return walk->visit(&object, walk->argument);
}

VGPU_EARLY bool elf_walk(elf_visitor *visit, void *argument)
{
	struct walk walk = {visit, argument};
	__typeof__(&dl_iterate_phdr) iterate = LIBC(dl_iterate_phdr);
	return iterate && iterate(visit_one, &walk) != 0;
}
