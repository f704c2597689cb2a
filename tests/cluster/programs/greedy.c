/*
 * A tenant in one small C program: takes device memory in pieces of 1 MiB until it is refused, prints how much it got,
 * and holds it until it is told to end. Linked to libc alone: it opens the driver by name, as most programs do.
 * Usage: greedy [MIB_AT_MOST [hold|once [WAY]]]; `once` ends where `hold` holds. WAY is how it comes to the call that
 * allocates (ways.h). Prints `free F total T of UUID` (bytes) and `held N MiB, then CODE` (0: it got all it asked for);
 * exit code 1 with the call where another call than an allocation fails, 2 where there is no driver.
 */
#define _GNU_SOURCE
#include "ways.h"

#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MIB = 1 << 20 };

typedef struct context *Context;
typedef unsigned long long Pointer;

#define LOAD(driver, name, ...) ((int (*)(__VA_ARGS__))symbol(driver, name))
#define MUST(what)                                                                                                     \
	do {                                                                                                           \
		int must_code = (what);                                                                                \
		if (must_code) {                                                                                       \
			printf("%s: %d\n", #what, must_code);                                                          \
			exit(1);                                                                                       \
		}                                                                                                      \
	} while (0)

static void end(int number)
{
	(void)number;
	_exit(0);
}

static void *symbol(void *driver, const char *name)
{
	void *found = dlsym(driver, name);
	if (!found) {
		printf("the driver has no %s\n", name);
		exit(1);
	}
	return found;
}

static void print_uuid(const unsigned char *uuid)
{
	printf("GPU-");
	for (int i = 0; i < 16; i++)
		printf(i == 4 || i == 6 || i == 8 || i == 10 ? "-%02x" : "%02x", uuid[i]);
	printf("\n");
}

static void take_context(void *driver)
{
	int device = 0;
	Context context = NULL;
	size_t available = 0, total = 0;
	unsigned char uuid[16];

	MUST(LOAD(driver, "cuInit", unsigned)(0));
	MUST(LOAD(driver, "cuDeviceGet", int *, int)(&device, 0));
	MUST(LOAD(driver, "cuDeviceGetUuid_v2", unsigned char *, int)(uuid, device));
	MUST(LOAD(driver, "cuDevicePrimaryCtxRetain", Context *, int)(&context, device));
	MUST(LOAD(driver, "cuCtxSetCurrent", Context)(context));
	MUST(LOAD(driver, "cuMemGetInfo_v2", size_t *, size_t *)(&available, &total));
	printf("free %zu total %zu of ", available, total);
	print_uuid(uuid);
}

int main(int argc, char **argv)
{
	long most = argc > 1 ? atol(argv[1]) : LONG_MAX, held = 0;
	const char *way = argc > 3 ? argv[3] : "handle";
	int code = 0;
	Pointer piece;
	int (*allocate)(Pointer *, size_t);
	void *driver;

	setvbuf(stdout, NULL, _IOLBF, 0);
	signal(SIGTERM, end);
	driver = open_driver(way);
	if (!driver) {
		printf("no driver: %s\n", dlerror());
		return 2;
	}
	take_context(driver);
	allocate = (int (*)(Pointer *, size_t))find_by(way, driver, "cuMemAlloc_v2");
	if (!allocate) {
		printf("no cuMemAlloc_v2 by %s\n", way);
		return 1;
	}
	while (held < most && !(code = allocate(&piece, MIB)))
		held++;
	printf("held %ld MiB, then %d\n", held, code);
	if (argc > 2 && strcmp(argv[2], "once") == 0)
		return 0;
	for (;;)
		pause();
}
