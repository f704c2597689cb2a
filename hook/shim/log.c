/* log.c: what the library has to say, for those who asked to hear it.
 *
 * Called by setup.c and charge.c. Silent unless PARTAGE_LOG names a file or is "stderr"; PARTAGE_LOG_LEVEL is 0 (silent)
 * to 4 (debug), or error, warning, info, debug; 3 where unset. One write per line, so that lines of several processes do
 * not mix; at most MOST_LINES per process, since a program may be refused a million times. Never standard output.
 * What can go wrong: the file cannot be opened; the line is then lost, the program is not. A program that runs with
 * another user's rights does not follow PARTAGE_LOG. */
#include "core.h"

#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MOST_LINES 200

static char target[VGPU_PATH_MAX];
static unsigned most; /* level up to which lines are written */
static const char *const names[] = {"silent", "error", "warning", "info", "debug"};

static unsigned level_wanted(void)
{
	const char *text = secure_getenv("PARTAGE_LOG_LEVEL");
	if (!text || !*text)
		return VGPU_LOG_INFO;
	for (unsigned i = 0; i < sizeof names / sizeof *names; i++)
		if (strcmp(text, names[i]) == 0 || (text[0] == (char)('0' + i) && text[1] == '\0'))
			return i;
	return VGPU_LOG_INFO;
}

/* The environment is read once: refusals may be many, and a program may change its environment while another thread
 * is being refused. */
static bool wanted(enum vgpu_level level)
{
	enum { UNREAD, READING, READ };
	static uint32_t state;
	uint32_t seen = UNREAD;
	if (__atomic_compare_exchange_n(&state, &seen, READING, false, __ATOMIC_ACQUIRE, __ATOMIC_ACQUIRE)) {
		const char *text = secure_getenv("PARTAGE_LOG");
		if (text && *text && snprintf(target, sizeof target, "%s", text) < (int)sizeof target)
			most = level_wanted();
		__atomic_store_n(&state, READ, __ATOMIC_RELEASE);
		seen = READ;
	}
	return seen == READ && level <= most;
}

static void write_line(const char *line, size_t length)
{
	bool to_stderr = strcmp(target, "stderr") == 0;
	int fd = to_stderr ? STDERR_FILENO
	                   : vgpu_open(AT_FDCWD, target, O_WRONLY | O_APPEND | O_CREAT | O_NONBLOCK, 0600);
	if (fd < 0)
		return;
	syscall(SYS_write, fd, line, length);
	if (!to_stderr)
		vgpu_close(fd);
}

void vgpu_log(enum vgpu_level level, const char *format, ...)
{
	static uint32_t lines;
	char line[VGPU_REASON_MAX + 256];
	if (!wanted(level))
		return;
	if (__atomic_fetch_add(&lines, 1, __ATOMIC_RELAXED) >= MOST_LINES)
		return;
	int n = snprintf(line, sizeof line, "partage[%d] %s: ", (int)getpid(), names[level]);
	va_list arguments;
	va_start(arguments, format);
	n += vsnprintf(line + n, sizeof line - (size_t)n - 1, format, arguments);
	va_end(arguments);
	if (n > (int)sizeof line - 2)
		n = (int)sizeof line - 2;
	line[n++] = '\n';
	write_line(line, (size_t)n);
}
