/* libc.h: the functions of libc that we use without importing them (libc.c says why). Used by all of "getting in". */
#ifndef PARTAGE_SHIM_LIBC_H
#define PARTAGE_SHIM_LIBC_H

#include <dlfcn.h>

enum libc_function {
	LIBC_dlsym,
	LIBC_dlvsym,
	LIBC_dlopen,
	LIBC_dlmopen,
	LIBC_dlerror,
	LIBC_dlinfo,
	LIBC_dladdr1,
	LIBC_dl_iterate_phdr,
	LIBC_FUNCTIONS
};

/* LIBC(dlsym)(...) calls libc's own dlsym; the expression is NULL where libc has none. */
#define LIBC(function) ((__typeof__(&function))vgpu_libc_function(LIBC_##function))

void *vgpu_libc_function(enum libc_function function);
void *vgpu_libc_handle(void); /* libc.so.6 as dlsym's handle: the place to fail in, since no entry point is there */
void *vgpu_global_handle(void); /* the global scope: RTLD_DEFAULT would depend on how our own object is linked */

#endif
