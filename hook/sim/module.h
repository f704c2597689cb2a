/* module.h: loaded code: modules, libraries, functions, kernels.
 *
 * A *module* is an image loaded into one context; a *function* is a kernel in it. A *library* belongs to no context:
 * it keeps the image and loads it as a module into each context where it is used; a *kernel* names the same function
 * in all of them. One mutex (module.c) guards the lists; images never change after loading.
 */
#ifndef PARTAGE_SIM_MODULE_H
#define PARTAGE_SIM_MODULE_H

#include <pthread.h>

#include "module_image.h"

/* What programs set on a function; a library's functions on one device share what was set on the kernel. */
struct sim_settings {
	bool set[CU_FUNC_ATTRIBUTE_MAX];
	int value[CU_FUNC_ATTRIBUTE_MAX];
};

struct sim_old_call; /* launch_old.c: arguments set one by one */

struct sim_function {
	uint32_t tag;
	struct sim_module *module;
	const struct sim_kernel_image *image;
	const struct sim_cost *cost; /* rule for its name; NULL: takes no time */
	uint64_t meeting;            /* collective: what partners have in common; 0 = none */
	struct sim_settings own;
	struct sim_settings *settings;
	struct sim_old_call *old;
};

struct sim_module {
	uint32_t tag;
	struct sim_context *context;
	struct sim_library *library; /* NULL: loaded by the program itself */
	struct sim_image image;
	struct sim_function *functions; /* as image.kernels */
	CUdeviceptr *variables;         /* as image.variables; 0: not there */
	void **references;              /* likewise: what textures and surfaces are bound to; NULL: a variable */
	struct sim_module *next, *prev; /* the context's */
	struct sim_module *next_of_library;
};

struct sim_kernel {
	uint32_t tag;
	struct sim_library *library;
	unsigned index;
	struct sim_settings settings[SIM_DEVICES]; /* by physical device */
};

struct sim_library {
	uint32_t tag;
	void *code;
	size_t size;
	struct sim_image image; /* as the first device that looked at it sees it */
	struct sim_kernel *kernels;
	struct sim_module *modules;
};

/* The options of a JIT call, and the two logs it fills. */
struct sim_jit {
	struct sim_jit_log log;
	unsigned n;
	CUjit_option *options;
	void **values;
	size_t error_room, info_room; /* the sizes as given: a link fills its logs more than once */
};

CUresult sim_jit_begin(struct sim_jit *jit, unsigned n, CUjit_option *options, void **values);
CUresult sim_jit_end(struct sim_jit *jit, CUresult error); /* writes the logs; returns error */

int sim_compute_capability(int device); /* 90 for 9.0 */
/* A module out of an image; NULL and *error where it does not load. `library` may be NULL. */
struct sim_module *sim_module_new(struct sim_context *context, struct sim_library *library, const void *code,
                                  size_t size, struct sim_jit_log *log, CUresult *error);
void sim_module_free(struct sim_module *module);
/* The library's module in a context, or in any for NULL; NULL: none. */
struct sim_module *sim_module_of_library(struct sim_library *library, const struct sim_context *context);
struct sim_function *sim_module_function(struct sim_module *module, const char *name); /* NULL: has none */
CUresult sim_module_variable(struct sim_module *module, const char *name, bool managed, CUdeviceptr *out,
                             size_t *bytes);
/* The whole of a file, malloc()ed, with a zero byte after it. */
CUresult sim_read_file(const char *path, void **data, size_t *size);

/* library.c: the library's module in a context, loaded if need be; then the function of a kernel. */
struct sim_module *sim_library_module(struct sim_library *library, struct sim_context *context, CUresult *error);
struct sim_function *sim_kernel_function(struct sim_kernel *kernel, struct sim_context *context, CUresult *error);

/* function.c: a CUfunction, or a CUkernel where one is given instead, in this context. */
struct sim_function *sim_function_of(CUfunction handle, struct sim_context *context, CUresult *error);
int sim_kernel_attribute(const struct sim_image *image, const struct sim_kernel_image *kernel,
                         const struct sim_settings *settings, int device, CUfunction_attribute attribute,
                         CUresult *error);
CUresult sim_kernel_set(const struct sim_kernel_image *kernel, struct sim_settings *settings, int device,
                        CUfunction_attribute attribute, int value);
int sim_shared_limit(int device, CUdevice_attribute attribute); /* a device attribute, by physical index */

/* texture_ref.c: what a texture or surface of a module is bound to. */
void *sim_module_ref_new(bool surface); /* NULL: no memory */
void sim_module_ref_free(void *ref);

/* occupancy.c */
unsigned sim_blocks_per_sm(const struct sim_function *function, unsigned threads, size_t dynamic_shared);

#endif
