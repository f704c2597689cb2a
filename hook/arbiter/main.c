/* main.c: the program `partage-arbiter`: a host (host.h) for the hand-overs of one root.
 *
 * Started by `partage run` where a program that it starts has to take turns, in a session of its own; by hand where one
 * wants to look. Ends by itself when nobody is gated for --idle-exit seconds, on SIGTERM and SIGINT (turns closed, locks
 * free), or when its root is gone.
 * Exit codes: 0 it served, or another host serves the root already; 1 it cannot serve (a line says why); 2 usage. */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "host.h"

#define LOG_MOST (1 << 20) /* bytes */
#ifndef SYS_close_range
#define SYS_close_range 436
#endif

static struct ptg_host *host;

struct arguments {
	struct ptg_host_options options;
	const char *log;
	int ready_fd;
};

static const char help[] =
        "usage: partage-arbiter --root DIR --lock-dir DIR [--idle-exit SECONDS] [--log FILE] [--ready-fd FD]\n"
        "\n"
        "Give turns to the programs whose hand-overs lie in a directory.\n"
        "\n"
        "  --root DIR           directory of hand-overs, its owner's alone\n"
        "  --lock-dir DIR       where the arbiters of this machine lock its devices\n"
        "  --idle-exit SECONDS  end when nobody had to take turns for so long (default: never)\n"
        "  --log FILE           append what happens to FILE (default: standard error)\n"
        "  --ready-fd FD        write a line to this descriptor once turns are given, or say who gives them, and close "
        "it\n";

static void end(int signal)
{
	(void)signal;
	int before = errno;
	ptg_host_stop(host);
	errno = before;
}

/* Seconds, to the millisecond, as ns; UINT64_MAX - 1: no such number. */
static uint64_t parse_seconds(const char *text)
{
	char *rest;
	errno = 0;
	double seconds = strtod(text, &rest);
	if (errno || rest == text || *rest || !(seconds >= 0 && seconds < 1e9))
		return UINT64_MAX - 1;
	return (uint64_t)(seconds * 1e3 + 0.5) * 1000000;
}

/* -1: no such number. */
static int parse_descriptor(const char *text)
{
	char *rest;
	errno = 0;
	long number = strtol(text, &rest, 10);
	return errno || rest == text || *rest || number < 0 || number > INT_MAX ? -1 : (int)number;
}

/* The working directory is left; a name that leads nowhere is complained about by whoever opens it. */
static const char *absolute(const char *path, char whole[PATH_MAX])
{
	return realpath(path, whole) ? whole : path;
}

static int parse(int argc, char **argv, struct arguments *a)
{
	static const struct option known[] = {
	        {"root", required_argument, NULL, 'r'},
	        {"lock-dir", required_argument, NULL, 'd'},
	        {"idle-exit", required_argument, NULL, 'i'},
	        {"log", required_argument, NULL, 'l'},
	        {"ready-fd", required_argument, NULL, 'f'},
	        {"help", no_argument, NULL, 'h'},
	        {NULL, 0, NULL, 0},
	};
	*a = (struct arguments){.options = {.idle_ns = PTG_HOST_FOREVER, .log_fd = STDERR_FILENO}, .ready_fd = -1};
	for (int option; (option = getopt_long(argc, argv, "h", known, NULL)) != -1;) {
		switch (option) {
		case 'r':
			a->options.root = optarg;
			break;
		case 'd':
			a->options.lock_dir = optarg;
			break;
		case 'i':
			a->options.idle_ns = parse_seconds(optarg);
			break;
		case 'l':
			a->log = optarg;
			break;
		case 'f':
			a->ready_fd = parse_descriptor(optarg);
			if (a->ready_fd < 0)
				return -1;
			break;
		case 'h':
			fputs(help, stdout);
			exit(0);
		default:
			return -1;
		}
	}
	if (optind < argc || !a->options.root || !a->options.lock_dir || a->options.idle_ns == UINT64_MAX - 1)
		return -1;
	return 0;
}

static void say_ready(int fd, const char *line)
{
	if (fd < 0)
		return;
	if (write(fd, line, strlen(line)) < 0)
		perror("partage-arbiter: --ready-fd");
	close(fd);
}

/* Whoever starts us may have files open that are nobody else's business, and would be kept open with us. */
static void close_inherited(int keep)
{
	unsigned first = STDERR_FILENO + 1, last = keep > STDERR_FILENO ? (unsigned)keep - 1 : UINT_MAX;
	if (first <= last)
		syscall(SYS_close_range, first, last, 0);
	if (last != UINT_MAX)
		syscall(SYS_close_range, (unsigned)keep + 1, UINT_MAX, 0);
}

/* What earlier arbiters said stays, up to a bound. */
static int open_log(const char *path)
{
	struct stat st;
	int fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
	if (fd >= 0 && !fstat(fd, &st) && st.st_size > LOG_MOST && ftruncate(fd, 0))
		perror("partage-arbiter: --log");
	return fd;
}

static void handle_signals(void)
{
	struct sigaction action = {.sa_handler = end};
	sigaction(SIGTERM, &action, NULL);
	sigaction(SIGINT, &action, NULL);
	signal(SIGHUP, SIG_IGN);
	signal(SIGPIPE, SIG_IGN);
}

int main(int argc, char **argv)
{
	struct arguments a;
	char why[1024], line[1100], root[PATH_MAX], lock_dir[PATH_MAX];
	if (parse(argc, argv, &a)) {
		fputs(help, stderr);
		return 2;
	}
	close_inherited(a.ready_fd);
	a.options.root = absolute(a.options.root, root);
	a.options.lock_dir = absolute(a.options.lock_dir, lock_dir);
	if (a.log) {
		a.options.log_fd = open_log(a.log);
		if (a.options.log_fd < 0) {
			fprintf(stderr, "partage-arbiter: %s: %s; a file that can be appended to\n", a.log,
			        strerror(errno));
			return 1;
		}
	}
	host = ptg_host_open(&a.options, why, sizeof why);
	if (chdir("/"))
		perror("partage-arbiter: /");
	if (!host) {
		int served = !strncmp(why, "served by", 9);
		snprintf(line, sizeof line, "%s\n", why);
		say_ready(a.ready_fd, line);
		if (!served)
			fprintf(stderr, "partage-arbiter: %s\n", why);
		return served ? 0 : 1;
	}
	handle_signals();
	ptg_host_adopt(host);
	say_ready(a.ready_fd, "ready\n");
	ptg_host_run(host);
	ptg_host_close(host);
	return 0;
}
