/*
 * A tenant that keeps its card busy: kernels that run for a time that is their argument, always a few of them queued.
 * Twenty times a second it prints what it got by its own count: `busy DONE_NS AT_NS free F total T`: time of all kernels that
 * are done, CLOCK_MONOTONIC (the same in all containers), and what the driver says of memory. Usage: busy MIB KERNEL_NS:
 * it holds so much memory meanwhile. Works until SIGTERM. Exit code 1 with the call that failed, 2: no driver.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { QUEUED = 4, APART_NS = 50000000 };

typedef struct handle *Handle;
typedef unsigned long long Number;

static void *driver;
static Handle stream, spin;

#define CALL(name, types, ...)                                                                                         \
	do {                                                                                                           \
		void *call_found = dlsym(driver, name);                                                                \
		int call_code = call_found ? ((int(*) types)call_found)(__VA_ARGS__) : -1;                             \
		if (call_code) {                                                                                       \
			printf("%s: %d\n", name, call_code);                                                           \
			exit(1);                                                                                       \
		}                                                                                                      \
	} while (0)

/* The name says to the simulated card that the first argument is the kernel's time. */
static const char image[] = ".version 7.0\n.target sm_70\n.address_size 64\n"
                            ".visible .entry spin_ns(.param .u64 ns) { ret; }\n";

static void end(int number)
{
	(void)number;
	_exit(0);
}

static Number now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (Number)t.tv_sec * 1000000000u + (Number)t.tv_nsec;
}

static void prepare(size_t bytes)
{
	Handle context, module;
	Number memory;
	int device;

	CALL("cuInit", (unsigned), 0);
	CALL("cuDeviceGet", (int *, int), &device, 0);
	CALL("cuDevicePrimaryCtxSetFlags_v2", (int, unsigned), device, 4); /* wait asleep */
	CALL("cuDevicePrimaryCtxRetain", (Handle *, int), &context, device);
	CALL("cuCtxSetCurrent", (Handle), context);
	CALL("cuMemAlloc_v2", (Number *, size_t), &memory, bytes);
	CALL("cuModuleLoadData", (Handle *, const void *), &module, image);
	CALL("cuModuleGetFunction", (Handle *, Handle, const char *), &spin, module, "spin_ns");
	CALL("cuStreamCreate", (Handle *, unsigned), &stream, 1);
}

static void launch(Number *nanoseconds)
{
	void *parameters[] = {nanoseconds};
	CALL("cuLaunchKernel",
	     (Handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, Handle, void **, void **),
	     spin, 264, 1, 1, 256, 1, 1, 0, stream, parameters, NULL);
}

int main(int argc, char **argv)
{
	Number nanoseconds = argc > 2 ? strtoull(argv[2], NULL, 10) : 2000000, done = 0, told = 0;
	size_t available, total;

	setvbuf(stdout, NULL, _IOLBF, 0);
	signal(SIGTERM, end);
	driver = dlopen("libcuda.so.1", RTLD_NOW);
	if (!driver) {
		printf("no driver: %s\n", dlerror());
		return 2;
	}
	prepare((argc > 1 ? strtoul(argv[1], NULL, 10) : 1) << 20);
	for (;;) {
		for (int i = 0; i < QUEUED; i++)
			launch(&nanoseconds);
		CALL("cuStreamSynchronize", (Handle), stream);
		done += QUEUED * nanoseconds;
		Number at = now();
		if (at - told < APART_NS)
			continue;
		told = at;
		CALL("cuMemGetInfo_v2", (size_t *, size_t *), &available, &total);
		printf("busy %llu %llu free %zu total %zu\n", done, at, available, total);
	}
}
