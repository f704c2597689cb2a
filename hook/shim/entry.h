/* entry.h: what the files of "getting in" (names.c, resolve.c, swap.c, dlsym.c, procaddr.c) share.
 * The lists of hooks are generated; an index below is a place in them. */
#ifndef PARTAGE_SHIM_ENTRY_H
#define PARTAGE_SHIM_ENTRY_H

#include <stdbool.h>
#include <stdint.h>

struct elf_object;

/* ---- names.c
 * ---------------------------------------------------------------------------------------------------------- */

/* The hook of a symbol (`cuMemAlloc_v2`), -1 if it is not hooked. */
int vgpu_name_hook(const char *symbol);
/* Is this what cuGetProcAddress calls a hooked entry point (`cuMemAlloc`)? */
bool vgpu_name_is_base(const char *base);
/* Does this look like another version (`cuMemAlloc_v9_ptsz`) of a hooked entry point? */
bool vgpu_name_is_variant(const char *symbol);

/* ---- resolve.c
 * -------------------------------------------------------------------------------------------------------- */

/* Does a loaded driver (NVML for an nvml hook) have the symbol of this hook? Loads nothing. */
bool vgpu_driver_has(unsigned hook);
/* Is this object the library that the symbol's real function lives in, by its soname? */
bool vgpu_driver_is(const struct elf_object *object, const char *symbol);
/* A program uses a driver that it loaded into this namespace of its own: taken if no other is there. */
void vgpu_driver_seen(const char *symbol, long namespace);

/* ---- swap.c
 * ----------------------------------------------------------------------------------------------------------- */

/* Replace a driver function by its hook. False: no hook belongs to this pointer. True without a change: there is
 * nothing to compare with (no driver, or the driver asks us while it answers us). */
bool vgpu_hook_of(void **pointer);

#endif
