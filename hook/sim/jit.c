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

static size_t room_of(struct sim_jit *jit, CUjit_option size)
{
	void **value = value_of(jit, size);
	return value ? (unsigned)(uintptr_t)*value : 0;
}

CUresult sim_jit_begin(struct sim_jit *jit, unsigned n, CUjit_option *options, void **values)
{
	*jit = (struct sim_jit){.n = 0};
	if (n && (!options || !values))
		return CUDA_ERROR_INVALID_VALUE;
	for (unsigned i = 0; i < n; i++)
		if (options[i] >= CU_JIT_NUM_OPTIONS)
			return CUDA_ERROR_INVALID_VALUE;
	jit->n = n;
	jit->options = options;
	jit->values = values;
	jit->error_room = room_of(jit, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES);
	jit->info_room = room_of(jit, CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES);
	return CUDA_SUCCESS;
}

static void fill(struct sim_jit *jit, CUjit_option buffer, CUjit_option size, size_t room, const char *text)
{
	void **to = value_of(jit, buffer), **used = value_of(jit, size);
	if (!to || !*to || !used || !room)
		return;
	size_t n = strlen(text);
	n = n < room - 1 ? n : room - 1;
	memcpy(*to, text, n);
	((char *)*to)[n] = '\0';
	*used = (void *)(uintptr_t)n;
}

CUresult sim_jit_end(struct sim_jit *jit, CUresult error)
{
	bool failed = error != CUDA_SUCCESS;
	fill(jit, CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES, jit->error_room,
	     failed ? jit->log.text : "");
	fill(jit, CU_JIT_INFO_LOG_BUFFER, CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES, jit->info_room,
	     failed ? "" : jit->log.text);
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
