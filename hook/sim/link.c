/* link.c: cuLink*: several inputs (PTX, cubin, fatbin, object, library) become one cubin.
 *
 * Inputs are read as they are added, so that an error belongs to its input; completing checks that every device
 * function and variable wanted by one is defined by another. The logs go into the buffers given at cuLinkCreate. What
 * can go wrong: input kinds that need a compiler (CU_JIT_INPUT_NVVM), symbols that nobody defines.
 */
#include <stdlib.h>
#include <string.h>

#include "module.h"
#include "sim_impl.h"

struct sim_link_state {
	uint32_t tag;
	int device;
	struct sim_image image;
	void *cubin;
	struct sim_jit jit; /* points to the program's option arrays, which must outlive the link: so the header says */
};

static struct sim_link_state *state_of(CUlinkState handle)
{
	return sim_handle_is(handle, SIM_TAG_LINK) ? (struct sim_link_state *)handle : NULL;
}

CUresult sim_cuLinkCreate_v2(unsigned int numOptions, CUjit_option *options, void **optionValues, CUlinkState *stateOut)
{
	struct sim_context *context;
	CUresult error = sim_require(&context);
	if (error != CUDA_SUCCESS)
		return error;
	if (!stateOut)
		return CUDA_ERROR_INVALID_VALUE;
	struct sim_link_state *state = calloc(1, sizeof(*state));
	if (!state)
		return CUDA_ERROR_OUT_OF_MEMORY;
	state->tag = SIM_TAG_LINK;
	state->device = context->device;
	error = sim_jit_begin(&state->jit, numOptions, options, optionValues);
	if (error != CUDA_SUCCESS) {
		free(state);
		return error;
	}
	sim_handle_add(state, SIM_TAG_LINK);
	*stateOut = (CUlinkState)state;
	return CUDA_SUCCESS;
}

/* An ar archive: 60-byte headers, each followed by its member; the members that are objects are inputs. */
static CUresult add_archive(struct sim_link_state *state, const char *data, size_t size)
{
	int cc = sim_compute_capability(state->device);
	for (size_t at = 8; size - at >= 60;) {
		char digits[11] = "";
		memcpy(digits, data + at + 48, 10);
		size_t member = strtoull(digits, NULL, 10);
		at += 60;
		if (member > size - at)
			return CUDA_ERROR_INVALID_IMAGE;
		if (member > 4 && !memcmp(data + at, "\177ELF", 4)) {
			CUresult error = sim_image_read_elf(&state->image, data + at, member, cc, &state->jit.log);
			if (error != CUDA_SUCCESS && error != CUDA_ERROR_NO_BINARY_FOR_GPU) /* host code only */
				return error;
		}
		at += member + (member & 1);
		at = at < size ? at : size;
	}
	return CUDA_SUCCESS;
}

static CUresult add(struct sim_link_state *state, CUjitInputType type, const void *data, size_t size)
{
	struct sim_jit_log *log = &state->jit.log;
	int cc = sim_compute_capability(state->device);
	switch (type) {
	case CU_JIT_INPUT_PTX:
		return sim_image_read_ptx(&state->image, data, strnlen(data, size), cc, log);
	case CU_JIT_INPUT_LIBRARY:
		if (size >= 8 && !memcmp(data, "!<arch>\n", 8))
			return add_archive(state, data, size);
		return sim_image_read(&state->image, data, size, cc, log);
	case CU_JIT_INPUT_CUBIN:
	case CU_JIT_INPUT_FATBINARY:
	case CU_JIT_INPUT_OBJECT:
		return sim_image_read(&state->image, data, size, cc, log);
	default:
		sim_jit_say(log, "error   : input of kind %d needs a compiler, which this driver does not have", type);
		return type == CU_JIT_INPUT_NVVM ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_INVALID_VALUE;
	}
}

/* An error belongs to the name of the input; what was added before it is lost, and the link with it. */
static CUresult add_named(struct sim_link_state *state, CUjitInputType type, const void *data, size_t size,
                          const char *name)
{
	CUresult error = add(state, type, data, size);
	if (error != CUDA_SUCCESS)
		sim_jit_say(&state->jit.log, "error   : in the input '%s'", name ? name : "<unnamed>");
	return sim_jit_end(&state->jit, error);
}

CUresult sim_cuLinkAddData_v2(CUlinkState handle, CUjitInputType type, void *data, size_t size, const char *name,
                              unsigned int numOptions, CUjit_option *options, void **optionValues)
{
	struct sim_link_state *state = state_of(handle);
	struct sim_jit ignored; /* only steering options are allowed here; the logs belong to the whole link */
	if (!state)
		return CUDA_ERROR_INVALID_HANDLE;
	CUresult error = sim_jit_begin(&ignored, numOptions, options, optionValues);
	if (error != CUDA_SUCCESS || !data || !size || state->cubin)
		return error != CUDA_SUCCESS ? error : CUDA_ERROR_INVALID_VALUE;
	return add_named(state, type, data, size, name);
}

CUresult sim_cuLinkAddFile_v2(CUlinkState handle, CUjitInputType type, const char *path, unsigned int numOptions,
                              CUjit_option *options, void **optionValues)
{
	struct sim_link_state *state = state_of(handle);
	struct sim_jit ignored;
	if (!state)
		return CUDA_ERROR_INVALID_HANDLE;
	CUresult error = sim_jit_begin(&ignored, numOptions, options, optionValues);
	if (error != CUDA_SUCCESS || !path || state->cubin)
		return error != CUDA_SUCCESS ? error : CUDA_ERROR_INVALID_VALUE;
	void *data;
	size_t size;
	error = sim_read_file(path, &data, &size);
	if (error != CUDA_SUCCESS)
		return error;
	error = size ? add_named(state, type, data, size, path) : CUDA_ERROR_INVALID_IMAGE;
	free(data);
	return error;
}

CUresult sim_cuLinkComplete(CUlinkState handle, void **cubinOut, size_t *sizeOut)
{
	struct sim_link_state *state = state_of(handle);
	if (!state)
		return CUDA_ERROR_INVALID_HANDLE;
	if (!cubinOut)
		return CUDA_ERROR_INVALID_VALUE;
	const char *missing = sim_image_unresolved(&state->image);
	if (missing) {
		sim_jit_say(&state->jit.log, "error   : Undefined reference to '%s'", missing);
		return sim_jit_end(&state->jit, CUDA_ERROR_UNKNOWN);
	}
	size_t size = 0;
	void *cubin = sim_image_write_elf(&state->image, sim_compute_capability(state->device), &size);
	if (!cubin)
		return sim_jit_end(&state->jit, CUDA_ERROR_OUT_OF_MEMORY);
	free(state->cubin);
	state->cubin = cubin;
	*cubinOut = cubin;
	if (sizeOut)
		*sizeOut = size;
	return sim_jit_end(&state->jit, CUDA_SUCCESS);
}

CUresult sim_cuLinkDestroy(CUlinkState handle)
{
	struct sim_link_state *state = state_of(handle);
	if (!state)
		return CUDA_ERROR_INVALID_HANDLE;
	sim_handle_drop(state);
	sim_image_free(&state->image);
	free(state->cubin);
	free(state);
	return CUDA_SUCCESS;
}

/* The spellings of CUDA 5.5, with the same arguments. */
CUresult sim_cuLinkCreate(unsigned int numOptions, CUjit_option *options, void **optionValues, CUlinkState *stateOut)
{
	return sim_cuLinkCreate_v2(numOptions, options, optionValues, stateOut);
}

CUresult sim_cuLinkAddData(CUlinkState state, CUjitInputType type, void *data, size_t size, const char *name,
                           unsigned int numOptions, CUjit_option *options, void **optionValues)
{
	return sim_cuLinkAddData_v2(state, type, data, size, name, numOptions, options, optionValues);
}

CUresult sim_cuLinkAddFile(CUlinkState state, CUjitInputType type, const char *path, unsigned int numOptions,
                           CUjit_option *options, void **optionValues)
{
	return sim_cuLinkAddFile_v2(state, type, path, numOptions, options, optionValues);
}
