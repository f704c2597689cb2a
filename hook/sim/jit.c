/* jit.c: the options of calls that take code, and the two log buffers that programs read after them.
 *
 * Options that steer a compiler are accepted and change nothing. The buffers' sizes come in, and the bytes written go
 * out, in the value of the *_SIZE_BYTES options. Called by module.c, library.c, link.c.
 */
#include <string.h>

#include "module.h"

static void **value_of(struct sim_jit *jit, CUjit_option option)
{
	for (unsigned i = 0; i < jit->n; i++)
		if (jit->options[i] == option)
			return &jit->values[i];
	return NULL;
}

CUresult sim_jit_begin(struct sim_jit *jit, unsigned n, CUjit_option *options, void **values)
{
	*jit = (struct sim_jit){.n = n, .options = options, .values = values};
	if (n && (!options || !values)) {
		jit->n = 0;
		return CUDA_ERROR_INVALID_VALUE;
	}
	for (unsigned i = 0; i < n; i++)
		if (options[i] >= CU_JIT_NUM_OPTIONS) {
			jit->n = 0;
			return CUDA_ERROR_INVALID_VALUE;
		}
	return CUDA_SUCCESS;
}

static void fill(struct sim_jit *jit, CUjit_option buffer, CUjit_option size, const char *text)
{
	void **to = value_of(jit, buffer), **room = value_of(jit, size);
	if (!to || !*to || !room || !*room)
		return;
	size_t n = strlen(text), most = (size_t)(uintptr_t)*room - 1;
	n = n < most ? n : most;
	memcpy(*to, text, n);
	((char *)*to)[n] = '\0';
	*room = (void *)(uintptr_t)n;
}

CUresult sim_jit_end(struct sim_jit *jit, CUresult error)
{
	bool failed = error != CUDA_SUCCESS;
	fill(jit, CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES, failed ? jit->log.text : "");
	fill(jit, CU_JIT_INFO_LOG_BUFFER, CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES, failed ? "" : jit->log.text);
	void **wall = value_of(jit, CU_JIT_WALL_TIME);
	if (wall) {
		float none = 0;
		*wall = NULL;
		memcpy(wall, &none, sizeof(none));
	}
	if (failed && jit->log.length)
		sim_log("code refused with error %d: %s", error, jit->log.text);
	return error;
}
