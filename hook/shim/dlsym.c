/* dlsym.c: what a look-up by name answers.
 *
 * Called by the assembler entries of dlsym and dlvsym (dlsym_<machine>.S), which hand over the caller's return address
 * and either return the value or jump on to libc's own function with everything as it was. Names that we do not hook
 * always jump on: libc tells RTLD_NEXT and RTLD_DEFAULT apart by the caller's return address, and so must still see it.
 * For the others libc is asked first, and only a pointer into the driver is replaced; hence another library's function
 * of the same name stays its own, and a name that the driver lacks is not handed out. Nothing is loaded or initialised.
 * The names dlsym and dlvsym are ours as well: libc's own, fetched through us, would be a way round.
 * What can go wrong: an interposer of dlsym beside us. We call libc's own and nobody else's, so no circle can form.
 */
#include "elf_object.h"
#include "entry.h"
#include "hooks.h"
#include "libc.h"
#include "shim.h"

struct answer {
	void *value;
	void *jump; /* not NULL: go on to this function */
};

/* Called from assembler only. `version` is NULL for dlsym. */
struct answer vgpu_dlsym_answer(void *handle, const char *name, const char *version, uintptr_t caller);

/* The assembler entries. */
extern char vgpu_dlsym_entry[] __attribute__((visibility("hidden")));
extern char vgpu_dlvsym_entry[] __attribute__((visibility("hidden")));

/* A name that means something to us: a hook, or (hook < 0) one of the two look-up functions. */
struct entry {
	const char *name;
	int hook;
	void *ours;
};

VGPU_EARLY static bool is_us(const struct elf_object *object)
{
	return object->dynamic == _DYNAMIC;
}

VGPU_EARLY static bool find_entry(const char *name, struct entry *entry)
{
	*entry = (struct entry){.name = name, .hook = -1};
	if (elf_same(name, "dlsym"))
		entry->ours = vgpu_dlsym_entry;
	else if (elf_same(name, "dlvsym"))
		entry->ours = vgpu_dlvsym_entry;
	else if ((entry->hook = vgpu_name_hook(name)) >= 0)
		entry->ours = vgpu_hook_fn[entry->hook];
	return entry->ours != NULL;
}

/* Is this object where the real function of the entry lives? */
VGPU_EARLY static bool is_home(const struct elf_object *object, const struct entry *entry)
{
	if (entry->hook >= 0)
		return vgpu_driver_is(object, entry->name);
	const char *soname = elf_soname(object);
	return elf_same(soname, "libc.so.6") || elf_same(soname, "libdl.so.2");
}

/* We export the name, but may only give it where somebody has the real one. */
VGPU_EARLY static void *if_there(const struct entry *entry)
{
	return entry->hook < 0 || vgpu_driver_has((unsigned)entry->hook) ? entry->ours : NULL;
}

/* NULL with the right dlerror(): libc is asked for a name that it certainly lacks. */
VGPU_EARLY static struct answer absent(const struct entry *entry)
{
	void *libc = vgpu_libc_handle();
	return (struct answer){.value = libc ? LIBC(dlsym)(libc, entry->name) : NULL};
}

struct owner {
	const struct entry *entry;
	uintptr_t address;
	bool found, is_us, is_home;
};

VGPU_EARLY static bool find_owner(const struct elf_object *object, void *argument)
{
	struct owner *owner = argument;
	if (!elf_contains(object, owner->address))
		return false;
	owner->found = true;
	owner->is_us = is_us(object);
	owner->is_home = is_home(object, owner->entry);
	return true;
}

/* The same for an object that the program loaded into another namespace (dlmopen): only the loader knows those. */
VGPU_EARLY static void find_foreign_owner(struct owner *owner)
{
	Dl_info info;
	struct link_map *map = NULL;
	Lmid_t namespace = LM_ID_BASE;
	if (!LIBC(dladdr1)((const void *)owner->address, &info, (void **)&map, RTLD_DL_LINKMAP) || !map)
		return;
	struct elf_object object = elf_of_map(map);
	owner->is_home = is_home(&object, owner->entry);
	if (owner->is_home && owner->entry->hook >= 0 && LIBC(dlinfo)(map, RTLD_DI_LMID, &namespace) == 0)
		vgpu_driver_seen(owner->entry->name, namespace);
}

struct next {
	const struct entry *entry;
	uintptr_t caller;
	bool passed; /* the walk is behind the caller's object */
	void *value;
};

VGPU_EARLY static bool find_in_caller(const struct elf_object *object, void *argument)
{
	struct next *own = argument;
	if (elf_contains(object, own->caller)) {
		own->passed = true;
		own->value = is_us(object) ? NULL : elf_symbol(object, own->entry->name);
	}
	return own->passed;
}

/* What the search would have found without us: first behind us, then in the caller's own object. */
VGPU_EARLY static void *without_us(const struct entry *entry, uintptr_t caller)
{
	struct next own = {.entry = entry, .caller = caller};
	void *value = LIBC(dlsym)(RTLD_NEXT, entry->name);
	if (!value)
		elf_walk(find_in_caller, &own);
	return value ? value : own.value;
}

/* libc has answered `value`: the driver's function and our export become the hook, everything else stays. */
VGPU_EARLY static struct answer settle(const struct entry *entry, void *handle, void *value, uintptr_t caller)
{
	struct owner owner = {.entry = entry, .address = (uintptr_t)value};
	if (!value)
		return (struct answer){0};
	if (!elf_walk(find_owner, &owner))
		find_foreign_owner(&owner);
	if (owner.is_home)
		return (struct answer){.value = entry->ours};
	if (!owner.is_us)
		return (struct answer){.value = value};
	value = if_there(entry);
	if (!value && handle == RTLD_DEFAULT)
		value = without_us(entry, caller);
	return value ? (struct answer){.value = value} : absent(entry);
}

/* ---- RTLD_NEXT: the first definition behind the caller ------------------------------------------------------ */

VGPU_EARLY static bool find_next(const struct elf_object *object, void *argument)
{
	struct next *next = argument;
	if (!next->passed) {
		next->passed = elf_contains(object, next->caller);
		return false;
	}
	void *value = elf_symbol(object, next->entry->name);
	if (value && is_us(object))
		next->value = if_there(next->entry);
	else if (value)
		next->value = is_home(object, next->entry) ? next->entry->ours : value;
	return next->value != NULL;
}

/* libc cannot be asked on the caller's behalf and still return to us, so its search is done here. */
VGPU_EARLY static struct answer after_caller(const struct entry *entry, uintptr_t caller, void *jump)
{
	struct next next = {.entry = entry, .caller = caller};
	elf_walk(find_next, &next);
	if (!next.passed) /* code that belongs to no object: libc knows what to say */
		return (struct answer){.jump = jump};
	return next.value ? (struct answer){.value = next.value} : absent(entry);
}

/* ---- versions that are newer than we are -------------------------------------------------------------------- */

/* A version of a hooked entry point that we do not know, in the driver itself: under a limit it would be a way past. */
VGPU_EARLY static struct answer unknown_variant(const char *name, void *value)
{
	struct entry entry = {.name = name, .hook = 0, .ours = value};
	struct owner owner = {.entry = &entry, .address = (uintptr_t)value};
	if (value && !elf_walk(find_owner, &owner))
		find_foreign_owner(&owner);
	if (owner.is_home && vgpu_mode() != VGPU_FREE)
		return absent(&entry);
	return (struct answer){.value = value};
}

VGPU_EARLY struct answer vgpu_dlsym_answer(void *handle, const char *name, const char *version, uintptr_t caller)
{
	void *real = version ? (void *)LIBC(dlvsym) : (void *)LIBC(dlsym);
	struct entry entry;
	bool known = real && name && find_entry(name, &entry);
	bool variant =
	        real && name && !known && handle != RTLD_NEXT && handle != RTLD_DEFAULT && vgpu_name_is_variant(name);
	if (!known && !variant)
		return (struct answer){.jump = real};
	if (handle == RTLD_NEXT)
		return after_caller(&entry, caller, real);
	void *scope = handle == RTLD_DEFAULT ? vgpu_global_handle() : handle;
	void *value = version ? LIBC(dlvsym)(scope, name, version) : LIBC(dlsym)(scope, name);
	return known ? settle(&entry, handle, value, caller) : unknown_variant(name, value);
}
