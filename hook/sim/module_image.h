/* module_image.h: what the driver needs to know of a program image, whatever its form.
 *
 * PTX text (module_ptx.c), cubin (module_elf.c) and fatbin (module_fatbin.c) all become a `struct sim_image`: the names
 * and parameters of kernels, and the variables. Code itself is not kept: kernels do not compute. All readers check
 * bounds against the size they are given, and say in `struct sim_jit_log` what is wrong.
 */
#ifndef PARTAGE_SIM_MODULE_IMAGE_H
#define PARTAGE_SIM_MODULE_IMAGE_H

#include "sim.h"

#define SIM_KERNEL_PARAMS      4096       /* most parameters of one kernel */
#define SIM_KERNEL_PARAM_BYTES 32764 /* most bytes of them */

struct sim_param {
	uint32_t offset, size;
};

struct sim_kernel_image {
	char *name;
	struct sim_param *params;
	unsigned nparams;
	uint32_t param_bytes;
	uint32_t shared;      /* bytes, static */
	uint32_t local;       /* bytes per thread */
	uint32_t registers;
	uint32_t max_threads; /* per block, by launch bounds; 0 = as the device */
	uint32_t cluster[3];  /* required cluster; 0 = none */
};

struct sim_variable {
	char *name;
	uint64_t size;
	uint64_t align;
	unsigned char *init; /* init_size bytes; the rest is zero */
	uint64_t init_size;
	bool constant, managed;
	bool texture, surface; /* a reference, which the driver holds */
	bool external;       /* declared here, defined in another input of a link */
};

struct sim_image {
	struct sim_kernel_image *kernels;
	unsigned nkernels;
	struct sim_variable *variables;
	unsigned nvariables;
	char **functions;    /* device functions defined here */
	unsigned nfunctions;
	char **wanted;       /* device functions declared and not defined */
	unsigned nwanted;
	uint64_t constants;  /* bytes of constant memory */
	int ptx_version;     /* 87 for 8.7; 0: from a cubin */
	int sm;              /* 90 for sm_90 */
};

struct sim_jit_log {
	char text[1024];
	size_t length;
};

void sim_jit_say(struct sim_jit_log *log, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Reads an image for a device of compute capability cc (90 for 9.0). size may be SIZE_MAX: then as the image's own
 * headers, or the end of the text, say. On an error *image is empty. Adds to *image where it is not: a link of
 * several. */
CUresult sim_image_read(struct sim_image *image, const void *data, size_t size, int cc, struct sim_jit_log *log);
/* An image of unknown size: where it really begins (inside nvcc's wrapper) and its size; NULL: it cannot be told. */
const void *sim_image_whole(const void *data, size_t *size);
/* A function or variable that is wanted and not defined; NULL: none. */
const char *sim_image_unresolved(const struct sim_image *image);
void sim_image_free(struct sim_image *image);

/* The readers; they add to *image. */
CUresult sim_image_read_ptx(struct sim_image *image, const char *text, size_t size, int cc, struct sim_jit_log *log);
CUresult sim_image_read_elf(struct sim_image *image, const void *data, size_t size, int cc, struct sim_jit_log *log);
CUresult sim_image_read_fatbin(struct sim_image *image, const void *data, size_t size, int cc, struct sim_jit_log *log);
/* Of an ELF image by its own headers; 0: they make no sense. */
size_t sim_elf_size(const void *data);
/* Bytes out of an LZ4 block, or -1 where it is not one or does not fit. */
int64_t sim_lz4_decode(const unsigned char *in, size_t in_size, unsigned char *out, size_t out_size);

/* The whole of a link: an image as a cubin that sim_image_read_elf() reads. malloc()ed; NULL without memory. */
void *sim_image_write_elf(const struct sim_image *image, int cc, size_t *size);

/* For the readers. All copy the name; NULL without memory. */
struct sim_kernel_image *sim_image_kernel(struct sim_image *image, const char *name, size_t length); /* found or new */
struct sim_variable *sim_image_variable(struct sim_image *image, const char *name, size_t length); /* found or new */
bool sim_image_function(struct sim_image *image, const char *name, size_t length, bool defined);
bool sim_kernel_param(struct sim_kernel_image *kernel, unsigned index, uint32_t offset, uint32_t size);

#endif
