/*
 * A tenant in one small C program: takes device memory in pieces of 1 MiB until it is refused, prints how much it got,
 * and holds it until it is told to end. Linked to libc alone: it opens the driver by name, as most programs do.
 * Usage: greedy [MIB_AT_MOST]. Prints `free F total T` (bytes) and `held N MiB, then CODE` (0: it got all it asked
 * for); exit code 1 with the call where another call than an allocation fails, 2 where there is no driver.
 */
#include <dlfcn.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
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

static void take_context(void *driver)
{
	int device = 0;
	Context context = NULL;
	size_t available = 0, total = 0;

	MUST(LOAD(driver, "cuInit", unsigned)(0));
	MUST(LOAD(driver, "cuDeviceGet", int *, int)(&device, 0));
	MUST(LOAD(driver, "cuDevicePrimaryCtxRetain", Context *, int)(&context, device));
	MUST(LOAD(driver, "cuCtxSetCurrent", Context)(context));
	MUST(LOAD(driver, "cuMemGetInfo_v2", size_t *, size_t *)(&available, &total));
	printf("free %zu total %zu\n", available, total);
}

int main(int argc, char **argv)
{
	long most = argc > 1 ? atol(argv[1]) : LONG_MAX, held = 0;
	int code = 0;
	Pointer piece;
	void *driver;

	setvbuf(stdout, NULL, _IOLBF, 0);
	signal(SIGTERM, end);
	driver = dlopen("libcuda.so.1", RTLD_NOW);
	if (!driver) {
		printf("no driver: %s\n", dlerror());
		return 2;
	}
	take_context(driver);
	while (held < most && !(code = LOAD(driver, "cuMemAlloc_v2", Pointer *, size_t)(&piece, MIB)))
		held++;
	printf("held %ld MiB, then %d\n", held, code);
	for (;;)
		pause();
}
