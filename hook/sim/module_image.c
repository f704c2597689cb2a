/* module_image.c: program images in memory, and telling PTX, cubin and fatbin apart; see module_image.h. */
#include "module_image.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FATBIN_MAGIC  0xba55ed50u
#define FATBINC_MAGIC 0x466243b1u /* the wrapper that nvcc puts around a fatbin in an object file */
#define FATBIN_HEADER 16
#define ELF_MAGIC     0x464c457fu

void sim_jit_say(struct sim_jit_log *log, const char *format, ...)
{
	if (!log || log->length + 2 >= sizeof(log->text))
		return;
	va_list args;
	va_start(args, format);
	int n = vsnprintf(log->text + log->length, sizeof(log->text) - log->length - 1, format, args);
	va_end(args);
	if (n < 0)
		return;
	size_t room = sizeof(log->text) - log->length - 2;
	log->length += (size_t)n < room ? (size_t)n : room;
	log->text[log->length++] = '\n';
	log->text[log->length] = '\0';
}

/* One more element in an array whose length is a power of two, or zero, whenever it must grow. NULL without memory. */
static void *grown(void *array, unsigned n, size_t size)
{
	if (n & (n - 1))
		return array;
	return realloc(array, (n ? 2 * (size_t)n : 1) * size);
}

struct sim_kernel_image *sim_image_kernel(struct sim_image *image, const char *name, size_t length)
{
	for (unsigned i = 0; i < image->nkernels; i++)
		if (strlen(image->kernels[i].name) == length && !memcmp(image->kernels[i].name, name, length))
			return &image->kernels[i];
	struct sim_kernel_image *all = grown(image->kernels, image->nkernels, sizeof(*all));
	if (!all)
		return NULL;
	image->kernels = all;
	struct sim_kernel_image *kernel = &all[image->nkernels];
	*kernel = (struct sim_kernel_image){.name = strndup(name, length), .registers = 32};
	if (!kernel->name)
		return NULL;
	image->nkernels++;
	return kernel;
}

struct sim_variable *sim_image_variable(struct sim_image *image, const char *name, size_t length)
{
	for (unsigned i = 0; i < image->nvariables; i++)
		if (strlen(image->variables[i].name) == length && !memcmp(image->variables[i].name, name, length))
			return &image->variables[i];
	struct sim_variable *all = grown(image->variables, image->nvariables, sizeof(*all));
	if (!all)
		return NULL;
	image->variables = all;
	struct sim_variable *variable = &all[image->nvariables];
	*variable = (struct sim_variable){.name = strndup(name, length), .align = 1, .external = true};
	if (!variable->name)
		return NULL;
	image->nvariables++;
	return variable;
}

static bool list_has(char **list, unsigned n, const char *name, size_t length)
{
	for (unsigned i = 0; i < n; i++)
		if (strlen(list[i]) == length && !memcmp(list[i], name, length))
			return true;
	return false;
}

bool sim_image_function(struct sim_image *image, const char *name, size_t length, bool defined)
{
	char ***list = defined ? &image->functions : &image->wanted;
	unsigned *n = defined ? &image->nfunctions : &image->nwanted;
	if (list_has(*list, *n, name, length))
		return true;
	char **all = grown(*list, *n, sizeof(*all));
	if (!all)
		return false;
	*list = all;
	all[*n] = strndup(name, length);
	if (!all[*n])
		return false;
	++*n;
	return true;
}

bool sim_kernel_param(struct sim_kernel_image *kernel, unsigned index, uint32_t offset, uint32_t size)
{
	if (index >= SIM_KERNEL_PARAMS || size > SIM_KERNEL_PARAM_BYTES || offset > SIM_KERNEL_PARAM_BYTES - size)
		return false;
	if (index >= kernel->nparams) {
		struct sim_param *all = realloc(kernel->params, (index + 1) * sizeof(*all));
		if (!all)
			return false;
		memset(all + kernel->nparams, 0, (index + 1 - kernel->nparams) * sizeof(*all));
		kernel->params = all;
		kernel->nparams = index + 1;
	}
	kernel->params[index] = (struct sim_param){offset, size};
	if (offset + size > kernel->param_bytes)
		kernel->param_bytes = offset + size;
	return true;
}

void sim_image_free(struct sim_image *image)
{
	for (unsigned i = 0; i < image->nkernels; i++) {
		free(image->kernels[i].name);
		free(image->kernels[i].params);
	}
	for (unsigned i = 0; i < image->nvariables; i++) {
		free(image->variables[i].name);
		free(image->variables[i].init);
	}
	for (unsigned i = 0; i < image->nfunctions; i++)
		free(image->functions[i]);
	for (unsigned i = 0; i < image->nwanted; i++)
		free(image->wanted[i]);
	free(image->kernels);
	free(image->variables);
	free(image->functions);
	free(image->wanted);
	*image = (struct sim_image){0};
}

/* Functions that the device runtime provides. */
static bool is_built_in(const char *name)
{
	return !strncmp(name, "__", 2) || !strncmp(name, "cuda", 4) || !strcmp(name, "vprintf") ||
	       !strcmp(name, "malloc") || !strcmp(name, "free");
}

const char *sim_image_unresolved(const struct sim_image *image)
{
	for (unsigned i = 0; i < image->nwanted; i++) {
		const char *name = image->wanted[i];
		if (!is_built_in(name) && !list_has(image->functions, image->nfunctions, name, strlen(name)))
			return name;
	}
	for (unsigned i = 0; i < image->nvariables; i++)
		if (image->variables[i].external)
			return image->variables[i].name;
	return NULL;
}

/* Text begins with a comment, white space or a directive. */
static bool looks_like_ptx(const unsigned char *data, size_t size)
{
	return size > 0 && (*data == '.' || *data == '/' || isspace(*data));
}

/* The first four bytes, fewer where a text ends before. */
static uint32_t magic_of(const unsigned char *data, size_t size)
{
	uint32_t magic = 0;
	for (unsigned i = 0; i < 4 && i < size; i++) {
		magic |= (uint32_t)data[i] << (8 * i);
		if (!data[i])
			break;
	}
	return magic;
}

const void *sim_image_whole(const void *data, size_t *size)
{
	uint32_t magic = magic_of(data, SIZE_MAX);
	if (magic == FATBINC_MAGIC) {
		const struct {
			uint32_t magic, version;
			const void *data;
			void *file;
		} *wrapper = data;
		data = wrapper->data;
		if (!data || magic_of(data, SIZE_MAX) == FATBINC_MAGIC)
			return NULL;
		return sim_image_whole(data, size);
	}
	if (magic == FATBIN_MAGIC) {
		uint64_t payload;
		memcpy(&payload, (const char *)data + 8, sizeof(payload));
		*size = payload < (UINT64_C(1) << 40) ? FATBIN_HEADER + payload : 0;
	} else if (magic == ELF_MAGIC) {
		*size = sim_elf_size(data);
	} else {
		*size = strlen(data);
	}
	return *size ? data : NULL;
}

static CUresult read_any(struct sim_image *image, const void *data, size_t size, int cc, struct sim_jit_log *log)
{
	uint32_t magic = magic_of(data, size);
	if (magic == FATBIN_MAGIC)
		return sim_image_read_fatbin(image, data, size, cc, log);
	if (magic == ELF_MAGIC)
		return sim_image_read_elf(image, data, size, cc, log);
	size = strnlen(data, size);
	if (looks_like_ptx(data, size))
		return sim_image_read_ptx(image, data, size, cc, log);
	sim_jit_say(log, "error   : the image is neither PTX text nor a cubin nor a fatbin (first bytes %08x)", magic);
	return CUDA_ERROR_INVALID_IMAGE;
}

CUresult sim_image_read(struct sim_image *image, const void *data, size_t size, int cc, struct sim_jit_log *log)
{
	if (!data || !size)
		return CUDA_ERROR_INVALID_VALUE;
	if (size == SIZE_MAX && !(data = sim_image_whole(data, &size))) {
		sim_jit_say(log, "error   : the image is empty, or its headers make no sense");
		return CUDA_ERROR_INVALID_IMAGE;
	}
	CUresult error = read_any(image, data, size, cc, log);
	if (error != CUDA_SUCCESS)
		sim_image_free(image);
	return error;
}
