/* resolve.c: the driver's own functions, and which loaded object is the driver.
 *
 * Called by the generated real_cuX()/real_nvmlX() at their first use, and by dlsym.c and swap.c. The library that the
 * program has already loaded is preferred; else it is opened at the first *call* of an entry point, never by a look-up.
 * It is found by its soname and asked by its own symbol table: the program's global scope would answer with ourselves.
 * Once found it stays loaded (RTLD_NODELETE), since our table and the program's pointers go into it.
 * What can go wrong: there is no driver, or it lacks a symbol; the answer is NULL and dlerror() is as it was. No lock
 * of ours is held here: two threads may both open the library and find the same one.
 */
#include "elf_object.h"
#include "entry.h"
#include "hooks.h"
#include "libc.h"
#include "shim.h"

#include <stddef.h>

struct driver {
	const char *soname;
	struct link_map *map; /* set once */
	long seen;            /* 1 + namespace in which the program loaded its own copy; 0: nowhere */
};

static struct driver cuda = {.soname = "libcuda.so.1"};
static struct driver nvml = {.soname = "libnvidia-ml.so.1"};

void *vgpu_real[VGPU_REALS];

VGPU_EARLY static struct driver *driver_of(const char *symbol)
{
	return symbol[0] == 'n' ? &nvml : &cuda;
}

static struct link_map *open_driver(struct driver *driver)
{
	const int pin = RTLD_LAZY | RTLD_NODELETE;
	struct link_map *map = __atomic_load_n(&driver->map, __ATOMIC_ACQUIRE);
	if (map)
		return map;
	__typeof__(&dlopen) open = LIBC(dlopen);
	__typeof__(&dlmopen) open_in = LIBC(dlmopen);
	long seen = __atomic_load_n(&driver->seen, __ATOMIC_RELAXED);
	if (!open)
		return NULL;
	map = open(driver->soname, pin | RTLD_NOLOAD);
	if (!map && seen && open_in)
		map = open_in(seen - 1, driver->soname, pin | RTLD_NOLOAD);
	if (!map)
		map = open(driver->soname, pin);
	if (!map)
		LIBC(dlerror)(); /* our attempt is none of the program's business */
	else
		__atomic_store_n(&driver->map, map, __ATOMIC_RELEASE);
	return map;
}

static void *real_symbol(struct driver *driver, const char *symbol)
{
	struct link_map *map = open_driver(driver);
	if (!map)
		return NULL;
	struct elf_object object = elf_of_map(map);
	return elf_symbol(&object, symbol);
}

void *vgpu_real_cuda(const char *symbol)
{
	return real_symbol(&cuda, symbol);
}

void *vgpu_real_nvml(const char *symbol)
{
	return real_symbol(&nvml, symbol);
}

void *vgpu_real_fn(unsigned hook)
{
	void *real = __atomic_load_n(&vgpu_real[hook], __ATOMIC_RELAXED);
	if (!real) {
		real = real_symbol(driver_of(vgpu_hook_name[hook]), vgpu_hook_name[hook]);
		if (real)
			__atomic_store_n(&vgpu_real[hook], real, __ATOMIC_RELAXED);
	}
	return real;
}

VGPU_EARLY bool vgpu_driver_is(const struct elf_object *object, const char *symbol)
{
	return elf_same(elf_soname(object), driver_of(symbol)->soname);
}

struct wanted {
	const char *symbol;
	bool has;
};

VGPU_EARLY static bool look_in_driver(const struct elf_object *object, void *argument)
{
	struct wanted *wanted = argument;
	if (!vgpu_driver_is(object, wanted->symbol))
		return false;
	wanted->has = elf_symbol(object, wanted->symbol) != NULL;
	return wanted->has;
}

VGPU_EARLY bool vgpu_driver_has(unsigned hook)
{
	struct wanted wanted = {.symbol = vgpu_hook_name[hook]};
	struct link_map *map = __atomic_load_n(&driver_of(wanted.symbol)->map, __ATOMIC_ACQUIRE);
	if (!map)
		return elf_walk(look_in_driver, &wanted);
	struct elf_object object = elf_of_map(map);
	return elf_symbol(&object, wanted.symbol) != NULL;
}

void vgpu_driver_seen(const char *symbol, long namespace)
{
	__atomic_store_n(&driver_of(symbol)->seen, namespace + 1, __ATOMIC_RELAXED);
}
