/* host_log.c: what the host says, a line each with the time, to a file that somebody may read later.
 *
 * Called wherever something happens that a person would ask about: never for a turn. One write() a line, so lines of
 * several processes do not mix. What can go wrong: a full disk or no file; the line is lost. */
#include "host_local.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Names come from directories and lock files of others: nothing of them may move a terminal's cursor. */
static void make_printable(char *text)
{
	for (; *text; text++)
		if ((unsigned char)*text < ' ' || *text == 0x7f)
			*text = '?';
}

void host_log(struct ptg_host *host, const char *format, ...)
{
	char line[2048];
	struct timespec wall;
	struct tm utc;
	if (host->log_fd < 0)
		return;
	clock_gettime(CLOCK_REALTIME, &wall);
	gmtime_r(&wall.tv_sec, &utc);
	size_t n = strftime(line, sizeof line, "%Y-%m-%dT%H:%M:%S", &utc);
	n += (size_t)snprintf(line + n, sizeof line - n, ".%03ldZ ", wall.tv_nsec / 1000000);
	va_list args;
	va_start(args, format);
	int more = vsnprintf(line + n, sizeof line - n - 1, format, args);
	va_end(args);
	make_printable(line + n);
	n = more < 0 ? n : n + (size_t)more < sizeof line - 1 ? n + (size_t)more : sizeof line - 2;
	line[n++] = '\n';
	if (write(host->log_fd, line, n) < 0)
		return;
}
