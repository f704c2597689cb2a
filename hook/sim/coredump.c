/* coredump.c: what a program asks to be dumped when a kernel fails: cuCoredump*.
 *
 * Settings of the process and, where they differ, of a context; each can be read back. Kernels do not run here and raise no
 * exceptions, so no dump is ever written and no callback called. What can go wrong: a value of the wrong size, a setting
 * that only the process has (NOT_PERMITTED for a context).
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "sim.h"
#include "sim_impl.h"

#define TEXT 1024

struct settings {
	uint64_t context; /* whose; 0: the process's */
	bool on_exception, trigger_host, lightweight, user_trigger;
	unsigned flags;
	char file[TEXT], pipe[TEXT];
	struct settings *next;
};

struct CUcoredumpCallbackEntry_st {
	bool start;
	struct CUcoredumpCallbackEntry_st *next;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct settings process;
static struct settings *contexts;
static struct CUcoredumpCallbackEntry_st *callbacks;

/* With the mutex held. */
static struct settings *of_process(void)
{
	char host[256] = "localhost";
	if (process.file[0])
		return &process;
	gethostname(host, sizeof(host) - 1);
	process.trigger_host = true;
	snprintf(process.file, TEXT, "core.cuda.%s.%d", host, (int)getpid());
	snprintf(process.pipe, TEXT, "corepipe.cuda.%s.%d", host, (int)getpid());
	return &process;
}

/* With the mutex held: what holds for a context; `own`: made where it has none yet. NULL: no memory. */
static struct settings *of_context(uint64_t id, bool own)
{
	struct settings *s = contexts;
	while (s && s->context != id)
		s = s->next;
	if (s || !own)
		return s ? s : of_process();
	s = malloc(sizeof(*s));
	if (!s)
		return NULL;
	*s = *of_process();
	s->context = id;
	s->next = contexts;
	contexts = s;
	return s;
}

static void *field_of(struct settings *s, CUcoredumpSettings attrib, size_t *size)
{
	*size = sizeof(bool);
	switch (attrib) {
	case CU_COREDUMP_ENABLE_ON_EXCEPTION:
		return &s->on_exception;
	case CU_COREDUMP_TRIGGER_HOST:
		return &s->trigger_host;
	case CU_COREDUMP_LIGHTWEIGHT:
		return &s->lightweight;
	case CU_COREDUMP_ENABLE_USER_TRIGGER:
		return &s->user_trigger;
	case CU_COREDUMP_GENERATION_FLAGS:
		*size = sizeof(unsigned);
		return &s->flags;
	case CU_COREDUMP_FILE:
		*size = TEXT;
		return s->file;
	case CU_COREDUMP_PIPE:
		*size = TEXT;
		return s->pipe;
	default:
		return NULL;
	}
}

static CUresult get(struct settings *s, CUcoredumpSettings attrib, void *value, size_t *size)
{
	size_t wanted;
	const void *field = field_of(s, attrib, &wanted);
	if (!field || !size)
		return CUDA_ERROR_INVALID_VALUE;
	if (value && *size < wanted && (wanted != TEXT || *size <= strlen(field)))
		return CUDA_ERROR_INVALID_VALUE;
	if (value)
		memcpy(value, field, wanted == TEXT ? strlen(field) + 1 : wanted);
	else
		*size = wanted;
	return CUDA_SUCCESS;
}

static CUresult set(struct settings *s, CUcoredumpSettings attrib, const void *value, const size_t *size)
{
	size_t wanted;
	void *field = field_of(s, attrib, &wanted);
	if (!field || !value || !size)
		return CUDA_ERROR_INVALID_VALUE;
	size_t length = wanted == TEXT ? strnlen(value, *size) : wanted;
	if (wanted == TEXT ? length >= TEXT : *size != wanted)
		return CUDA_ERROR_INVALID_VALUE;
	memcpy(field, value, length);
	if (wanted == TEXT)
		((char *)field)[length] = '\0';
	if (attrib == CU_COREDUMP_LIGHTWEIGHT)
		s->flags = s->lightweight ? s->flags | (unsigned)CU_COREDUMP_LIGHTWEIGHT_FLAGS
		                          : s->flags & ~(unsigned)CU_COREDUMP_LIGHTWEIGHT_FLAGS;
	return CUDA_SUCCESS;
}

CUresult sim_cuCoredumpGetAttribute(CUcoredumpSettings attrib, void *value, size_t *size)
{
	struct sim_context *context;
	CUresult result = sim_require(&context);
	if (result != CUDA_SUCCESS)
		return result;
	pthread_mutex_lock(&mutex);
	result = get(of_context(context->id, false), attrib, value, size);
	pthread_mutex_unlock(&mutex);
	return result;
}

CUresult sim_cuCoredumpGetAttributeGlobal(CUcoredumpSettings attrib, void *value, size_t *size)
{
	pthread_mutex_lock(&mutex);
	CUresult result = get(of_process(), attrib, value, size);
	pthread_mutex_unlock(&mutex);
	return result;
}

CUresult sim_cuCoredumpSetAttribute(CUcoredumpSettings attrib, void *value, size_t *size)
{
	struct sim_context *context;
	CUresult result = sim_require(&context);
	if (result != CUDA_SUCCESS)
		return result;
	if (attrib == CU_COREDUMP_ENABLE_USER_TRIGGER || attrib == CU_COREDUMP_PIPE)
		return CUDA_ERROR_NOT_PERMITTED;
	pthread_mutex_lock(&mutex);
	struct settings *own = of_context(context->id, true);
	result = own ? set(own, attrib, value, size) : CUDA_ERROR_OUT_OF_MEMORY;
	pthread_mutex_unlock(&mutex);
	return result;
}

CUresult sim_cuCoredumpSetAttributeGlobal(CUcoredumpSettings attrib, void *value, size_t *size)
{
	pthread_mutex_lock(&mutex);
	CUresult result = set(of_process(), attrib, value, size);
	pthread_mutex_unlock(&mutex);
	return result;
}

/* ---- callbacks ------------------------------------------------------------------------------------------------------ */

static CUresult enter(CUcoredumpStatusCallback function, CUcoredumpCallbackHandle *out, bool start)
{
	if (!function)
		return CUDA_ERROR_INVALID_VALUE;
	struct CUcoredumpCallbackEntry_st *entry = malloc(sizeof(*entry));
	if (!entry)
		return CUDA_ERROR_OUT_OF_MEMORY;
	entry->start = start;
	pthread_mutex_lock(&mutex);
	entry->next = callbacks;
	callbacks = entry;
	pthread_mutex_unlock(&mutex);
	if (out)
		*out = entry;
	return CUDA_SUCCESS;
}

static CUresult leave(CUcoredumpCallbackHandle callback, bool start)
{
	pthread_mutex_lock(&mutex);
	struct CUcoredumpCallbackEntry_st **link = &callbacks;
	while (*link && (*link != callback || (*link)->start != start))
		link = &(*link)->next;
	struct CUcoredumpCallbackEntry_st *found = *link;
	if (found)
		*link = found->next;
	pthread_mutex_unlock(&mutex);
	free(found);
	return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult sim_cuCoredumpRegisterStartCallback(CUcoredumpStatusCallback callback, void *userData,
                                             CUcoredumpCallbackHandle *callbackOut)
{
	(void)userData;
	return enter(callback, callbackOut, true);
}

CUresult sim_cuCoredumpRegisterCompleteCallback(CUcoredumpStatusCallback callback, void *userData,
                                                CUcoredumpCallbackHandle *callbackOut)
{
	(void)userData;
	return enter(callback, callbackOut, false);
}

CUresult sim_cuCoredumpDeregisterStartCallback(CUcoredumpCallbackHandle callback)
{
	return leave(callback, true);
}

CUresult sim_cuCoredumpDeregisterCompleteCallback(CUcoredumpCallbackHandle callback)
{
	return leave(callback, false);
}
