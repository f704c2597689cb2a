/* logs.c: the driver's own log of errors: cuLogsRegisterCallback, cuLogsUnregisterCallback, cuLogsCurrent, cuLogsDumpTo*.
 *
 * The entry layer tells every call that failed (sim_logs_note), which becomes a line here and is given to the callbacks, in
 * the thread of the call. The last LINES lines are kept; an iterator is the number of a line. What can go wrong: lines
 * that were overwritten before they were read, which the dump says.
 */
#include "logs.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "sim_impl.h"

#define LINE  160
#define LINES 160 /* 25,600 bytes */

struct CUlogsCallbackEntry_st {
	CUlogsCallback function;
	void *data;
	struct CUlogsCallbackEntry_st *next;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static char lines[LINES][LINE];
static unsigned next_line; /* number of the next one; the first is 0 */
static struct CUlogsCallbackEntry_st *callbacks;
static _Thread_local bool telling;

void sim_logs_note(const char *call, int result)
{
	struct CUlogsCallbackEntry_st told[8];
	char text[LINE];
	const char *name = NULL;
	unsigned n = 0;
	if (result == CUDA_ERROR_NOT_READY || telling)
		return; /* the answer to a question; what a callback itself does wrong */
	sim_cuGetErrorName((CUresult)result, &name);
	int length = snprintf(text, sizeof(text), "[%d][CUDA][E] %s returned %d (%s)\n", (int)getpid(), call, result,
	                      name ? name : "unknown");
	if (length < 0 || (size_t)length >= sizeof(text))
		return;
	pthread_mutex_lock(&mutex);
	memcpy(lines[next_line++ % LINES], text, (size_t)length + 1);
	for (struct CUlogsCallbackEntry_st *c = callbacks; c && n < sizeof(told) / sizeof(told[0]); c = c->next)
		told[n++] = *c;
	pthread_mutex_unlock(&mutex);
	telling = true;
	for (unsigned i = 0; i < n; i++)
		told[i].function(told[i].data, CU_LOG_LEVEL_ERROR, text, (size_t)length);
	telling = false;
}

CUresult sim_cuLogsRegisterCallback(CUlogsCallback callbackFunc, void *userData, CUlogsCallbackHandle *callback_out)
{
	if (!callbackFunc)
		return CUDA_ERROR_INVALID_VALUE;
	struct CUlogsCallbackEntry_st *entry = malloc(sizeof(*entry));
	if (!entry)
		return CUDA_ERROR_OUT_OF_MEMORY;
	entry->function = callbackFunc;
	entry->data = userData;
	pthread_mutex_lock(&mutex);
	entry->next = callbacks;
	callbacks = entry;
	pthread_mutex_unlock(&mutex);
	if (callback_out)
		*callback_out = entry;
	return CUDA_SUCCESS;
}

CUresult sim_cuLogsUnregisterCallback(CUlogsCallbackHandle callback)
{
	pthread_mutex_lock(&mutex);
	struct CUlogsCallbackEntry_st **link = &callbacks;
	while (*link && *link != callback)
		link = &(*link)->next;
	struct CUlogsCallbackEntry_st *found = *link;
	if (found)
		*link = found->next;
	pthread_mutex_unlock(&mutex);
	free(found);
	return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult sim_cuLogsCurrent(CUlogIterator *iterator_out, unsigned int flags)
{
	if (!iterator_out || flags)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&mutex);
	*iterator_out = next_line;
	pthread_mutex_unlock(&mutex);
	return CUDA_SUCCESS;
}

/* With the mutex held: the newest lines from *iterator on that fit, and a first one that says where some are missing.
 * Returns the bytes written, without the NUL. */
static size_t dump(const CUlogIterator *iterator, char *out, size_t room)
{
	static const char missing[] = "[CUDA][W] older lines are missing\n";
	unsigned oldest = next_line > LINES ? next_line - LINES : 0, from = iterator ? *iterator : 0;
	bool lost = from < oldest;
	size_t size = 0, at = 0;
	unsigned first = next_line;
	if (from > next_line)
		from = next_line;
	for (unsigned i = next_line; i > (lost ? oldest : from); i--) {
		size_t length = strlen(lines[(i - 1) % LINES]);
		bool last = i - 1 == (lost ? oldest : from);
		size_t beside = lost || !last ? sizeof(missing) - 1 : 0; /* room for the first line must stay */
		if (size + length + beside >= room)
			break;
		size += length;
		first = i - 1;
	}
	if (first == next_line)
		return 0;
	if (first != from) {
		memcpy(out, missing, sizeof(missing) - 1);
		at = sizeof(missing) - 1;
	}
	for (unsigned i = first; i < next_line; i++) {
		size_t length = strlen(lines[i % LINES]);
		memcpy(out + at, lines[i % LINES], length);
		at += length;
	}
	out[at] = '\0';
	return at;
}

CUresult sim_cuLogsDumpToMemory(CUlogIterator *iterator, char *buffer, size_t *size, unsigned int flags)
{
	if (!buffer || !size || flags)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&mutex);
	bool any = next_line && (!iterator || *iterator < next_line);
	size_t room = *size;
	*size = room ? dump(iterator, buffer, room) : 0;
	CUresult result = any && !*size ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
	if (iterator && result == CUDA_SUCCESS)
		*iterator = next_line;
	pthread_mutex_unlock(&mutex);
	return result;
}

CUresult sim_cuLogsDumpToFile(CUlogIterator *iterator, const char *pathToFile, unsigned int flags)
{
	static const size_t most = LINES * LINE + LINE;
	size_t size = most;
	if (!pathToFile || flags)
		return CUDA_ERROR_INVALID_VALUE;
	char *text = malloc(most);
	if (!text)
		return CUDA_ERROR_OUT_OF_MEMORY;
	int fd = open(pathToFile, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
	CUresult result = fd < 0 ? CUDA_ERROR_INVALID_VALUE : sim_cuLogsDumpToMemory(iterator, text, &size, 0);
	if (result == CUDA_SUCCESS && size && write(fd, text, size) != (ssize_t)size)
		result = CUDA_ERROR_OPERATING_SYSTEM;
	if (fd >= 0)
		close(fd);
	free(text);
	return result;
}
