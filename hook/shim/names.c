/* names.c: from the name of an entry point to its hook.
 *
 * Called by dlsym.c for every look-up of the process and by procaddr.c for pointers that it does not know. The two hash
 * tables are filled at the first name that could be ours, never earlier, by whoever comes: filling is idempotent, so
 * threads that meet do the same work twice, and nobody waits for anybody.
 */
#include "elf_object.h"
#include "entry.h"
#include "hooks.h"

#include <stddef.h>

/* At most a quarter full, so that a name that is not ours is answered after one or two probes. */
#define NAME_SLOTS 4096u
_Static_assert(VGPU_HOOKS * 4 <= NAME_SLOTS, "NAME_SLOTS is too small for the hooks");

struct names {
	uint16_t slot[NAME_SLOTS]; /* place in the list + 1 */
	bool ready;
};

static struct names symbols;
static struct names bases;

typedef const char *name_at(unsigned index);

VGPU_EARLY static const char *symbol_at(unsigned index)
{
	return vgpu_hook_name[index];
}

VGPU_EARLY static const char *base_at(unsigned index)
{
	return vgpu_hook_proc[index].name;
}

VGPU_EARLY static uint32_t hash_of(const char *name)
{
	uint32_t hash = 2166136261u;
	for (const unsigned char *c = (const unsigned char *)name; *c; c++)
		hash = (hash ^ *c) * 16777619u;
	return hash ^ hash >> 15;
}

VGPU_EARLY static void fill(struct names *names, name_at *at, unsigned count)
{
	for (unsigned i = 0; i < count; i++) {
		uint32_t place = hash_of(at(i)) % NAME_SLOTS;
		for (;; place = (place + 1) % NAME_SLOTS) {
			uint16_t taken = 0;
			if (__atomic_compare_exchange_n(&names->slot[place], &taken, (uint16_t)(i + 1), false,
			                                __ATOMIC_RELEASE, __ATOMIC_ACQUIRE))
				break;
			if (elf_same(at(taken - 1), at(i)))
				break;
		}
	}
	__atomic_store_n(&names->ready, true, __ATOMIC_RELEASE);
}

VGPU_EARLY static int find(struct names *names, name_at *at, unsigned count, const char *name)
{
	if (!__atomic_load_n(&names->ready, __ATOMIC_ACQUIRE))
		fill(names, at, count);
	for (uint32_t place = hash_of(name) % NAME_SLOTS;; place = (place + 1) % NAME_SLOTS) {
		unsigned entry = __atomic_load_n(&names->slot[place], __ATOMIC_RELAXED);
		if (!entry)
			return -1;
		if (elf_same(at(entry - 1), name))
			return (int)entry - 1;
	}
}

VGPU_EARLY static bool could_be_ours(const char *name)
{
	return (name[0] == 'c' && name[1] == 'u') ||
	       (name[0] == 'n' && name[1] == 'v' && name[2] == 'm' && name[3] == 'l');
}

VGPU_EARLY int vgpu_name_hook(const char *symbol)
{
	return could_be_ours(symbol) ? find(&symbols, symbol_at, VGPU_HOOKS, symbol) : -1;
}

VGPU_EARLY bool vgpu_name_is_base(const char *base)
{
	return could_be_ours(base) && find(&bases, base_at, VGPU_PROCS, base) >= 0;
}

VGPU_EARLY bool vgpu_name_is_variant(const char *symbol)
{
	char base[128];
	size_t length = 0;
	if (!could_be_ours(symbol))
		return false;
	for (; symbol[length] && !(symbol[length] == '_' && length > 0); length++) {
		if (length == sizeof base - 1)
			return false;
		base[length] = symbol[length];
	}
	base[length] = '\0';
	/* No public base name has an underscore, and no version lacks it. */
	return symbol[length] == '_' && vgpu_name_is_base(base);
}
