/* ops.c: one driver call each, repeated; called by calls.c, which has the clock.
 *
 * Each has a function of its own, that nobody inlines, so that callgrind tells them apart. What can go wrong: the driver,
 * or what stands before it, refuses; give_up() then says which call with which error. */
#include "ops.h"

#include <cuda.h>
#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define NOINLINE     __attribute__((noinline))
#define MIB          ((size_t)1 << 20)
#define MANY         100000
#define OTHERS       1000 /* registered processes */
#define SOME         10   /* calls between two reports of a busy one */
#define AT_ONCE      8    /* of them started together */
#define DRIVER(name) static __typeof__(&name) driver_##name;

DRIVER(cuInit)
DRIVER(cuDevicePrimaryCtxRetain)
DRIVER(cuMemAlloc_v2)
DRIVER(cuMemFree_v2)
DRIVER(cuMemAllocAsync)
DRIVER(cuMemFreeAsync)
DRIVER(cuMemPoolCreate)
DRIVER(cuMemPoolDestroy)
DRIVER(cuMemAllocFromPoolAsync)
DRIVER(cuMemGetInfo_v2)
DRIVER(cuGetProcAddress_v2)
DRIVER(cuLaunchKernel)
DRIVER(cuLaunchKernel_ptsz)
DRIVER(cuLaunchKernelEx)
DRIVER(cuLaunchCooperativeKernel)
DRIVER(cuLaunchGrid)
DRIVER(cuGraphLaunch)

static void *driver;
static CUdeviceptr block[MANY];
static CUmemoryPool pool;
static uint32_t seed = 12345;

static void *symbol(const char *name)
{
	void *function = dlsym(driver, name);
	if (!function) {
		fprintf(stderr, "calls: the driver has no %s\n", name);
		exit(1);
	}
	return function;
}

static void need(CUresult error, const char *call)
{
	char text[96];
	if (__builtin_expect(error == CUDA_SUCCESS, 1))
		return;
	snprintf(text, sizeof text, "%s: error %d", call, (int)error);
	give_up(text);
}

void ops_load(void)
{
	driver = dlopen("libcuda.so.1", RTLD_NOW);
	if (!driver) {
		fprintf(stderr, "calls: no libcuda.so.1: %s\n", dlerror());
		exit(1);
	}
#define LOAD(name) driver_##name = (__typeof__(driver_##name))symbol(#name)
	LOAD(cuInit);
	LOAD(cuDevicePrimaryCtxRetain);
	LOAD(cuMemAlloc_v2);
	LOAD(cuMemFree_v2);
	LOAD(cuMemAllocAsync);
	LOAD(cuMemFreeAsync);
	LOAD(cuMemPoolCreate);
	LOAD(cuMemPoolDestroy);
	LOAD(cuMemAllocFromPoolAsync);
	LOAD(cuMemGetInfo_v2);
	LOAD(cuGetProcAddress_v2);
	LOAD(cuLaunchKernel);
	LOAD(cuLaunchKernel_ptsz);
	LOAD(cuLaunchKernelEx);
	LOAD(cuLaunchCooperativeKernel);
	LOAD(cuLaunchGrid);
	LOAD(cuGraphLaunch);
	CUcontext context;
	if (driver_cuInit(0) != CUDA_SUCCESS || driver_cuDevicePrimaryCtxRetain(&context, 0) != CUDA_SUCCESS) {
		fprintf(stderr, "calls: no context\n");
		exit(1);
	}
}

void ops_first(void)
{
	CUdeviceptr p;
	if (driver_cuMemAlloc_v2(&p, 4096) != CUDA_SUCCESS)
		_exit(1);
}

/* ---- launches -------------------------------------------------------------------------------------------------------- */

static NOINLINE void launch(long count)
{
	for (long i = 0; i < count; i++)
		need(driver_cuLaunchKernel(NULL, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL), "cuLaunchKernel");
}

static NOINLINE void launch_ptsz(long count)
{
	for (long i = 0; i < count; i++)
		need(driver_cuLaunchKernel_ptsz(NULL, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL), "cuLaunchKernel_ptsz");
}

static NOINLINE void launch_ex(long count)
{
	CUlaunchConfig config = {
	        .gridDimX = 1, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 1, .blockDimY = 1, .blockDimZ = 1};
	for (long i = 0; i < count; i++)
		need(driver_cuLaunchKernelEx(&config, NULL, NULL, NULL), "cuLaunchKernelEx");
}

static NOINLINE void launch_cooperative(long count)
{
	for (long i = 0; i < count; i++)
		need(driver_cuLaunchCooperativeKernel(NULL, 1, 1, 1, 1, 1, 1, 0, NULL, NULL),
		     "cuLaunchCooperativeKernel");
}

static NOINLINE void launch_grid(long count)
{
	for (long i = 0; i < count; i++)
		need(driver_cuLaunchGrid(NULL, 1, 1), "cuLaunchGrid");
}

static NOINLINE void launch_graph(long count)
{
	for (long i = 0; i < count; i++)
		need(driver_cuGraphLaunch(NULL, NULL), "cuGraphLaunch");
}

/* ---- allocations ----------------------------------------------------------------------------------------------------- */

static void pairs(size_t bytes, long count)
{
	for (long i = 0; i < count; i++) {
		CUdeviceptr p;
		need(driver_cuMemAlloc_v2(&p, bytes), "cuMemAlloc");
		need(driver_cuMemFree_v2(p), "cuMemFree");
	}
}

static NOINLINE void pair_large(long count)
{
	pairs(2 * MIB, count);
}

static NOINLINE void pair_small(long count)
{
	pairs(4096, count);
}

static void fill(size_t bytes, long count)
{
	for (long i = 0; i < count; i++)
		need(driver_cuMemAlloc_v2(&block[i], bytes), "cuMemAlloc");
}

static void shuffle(long count)
{
	for (long i = count - 1; i > 0; i--) {
		seed = seed * 1664525 + 1013904223;
		long k = (long)((uint64_t)seed * (uint64_t)(i + 1) >> 32);
		CUdeviceptr other = block[k];
		block[k] = block[i];
		block[i] = other;
	}
}

static void live_blocks(long count)
{
	fill(4096, count);
	shuffle(count);
}

static NOINLINE void free_live(long count)
{
	for (long i = 0; i < count; i++)
		need(driver_cuMemFree_v2(block[i]), "cuMemFree");
}

static long held;

static void free_held(long count)
{
	(void)count;
	free_live(held);
	held = 0;
}

static NOINLINE void allocate(long count)
{
	fill(2 * MIB, count);
	held = count;
}

static NOINLINE void pair_async(long count)
{
	for (long i = 0; i < count; i++) {
		CUdeviceptr p;
		need(driver_cuMemAllocAsync(&p, 4096, NULL), "cuMemAllocAsync");
		need(driver_cuMemFreeAsync(p, NULL), "cuMemFreeAsync");
	}
}

static void make_pool(void)
{
	CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
	                        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
	ops_load();
	need(driver_cuMemPoolCreate(&pool, &props), "cuMemPoolCreate");
}

static NOINLINE void pair_pool(long count)
{
	for (long i = 0; i < count; i++) {
		CUdeviceptr p;
		need(driver_cuMemAllocFromPoolAsync(&p, 4096, pool, NULL), "cuMemAllocFromPoolAsync");
		need(driver_cuMemFreeAsync(p, NULL), "cuMemFreeAsync");
	}
}

static void drop_pool(void)
{
	need(driver_cuMemPoolDestroy(pool), "cuMemPoolDestroy");
}

/* ---- refusals: the null driver says how many calls asked it for memory ------------------------------------------------- */

static uint64_t reached(void)
{
	const uint64_t *count = dlsym(driver, "null_driver_allocations");
	return count ? *count : 0;
}

static NOINLINE void refused(long count)
{
	uint64_t before = reached();
	bool unlimited = getenv("CALLS_UNLIMITED") != NULL;
	CUdeviceptr p;
	for (long i = 0; i < count; i++)
		if (driver_cuMemAlloc_v2(&p, (size_t)1 << 40) == CUDA_SUCCESS && !unlimited)
			give_up("1 TiB was given: there is no limit");
	if (reached() != before && !unlimited)
		give_up("a refused allocation reached the driver");
}

/* ---- other processes --------------------------------------------------------------------------------------------------- */

static pid_t other[OTHERS];
static int others;
static struct {
	long calls; /* of a busy one */
	char apart[120];
	uint64_t line; /* for two_swaps */
} *shared; /* with the others */
static bool busy;

long ops_neighbour_calls(void)
{
	return busy ? __atomic_load_n(&shared->calls, __ATOMIC_RELAXED) : -1;
}

static void end_others(void)
{
	for (int i = 0; i < others; i++)
		kill(other[i], SIGKILL);
	for (int i = 0; i < others; i++)
		waitpid(other[i], NULL, 0);
	others = 0;
	busy = false;
}

/* Keep this process to one of the processors it may use: a busy neighbour on the same one would only take turns. */
static void keep_to(int which)
{
	cpu_set_t may, one;
	CPU_ZERO(&one);
	if (sched_getaffinity(0, sizeof may, &may) != 0 || CPU_COUNT(&may) < 2)
		give_up("a neighbour needs a second processor");
	for (int cpu = 0; cpu < CPU_SETSIZE && CPU_COUNT(&one) == 0; cpu++)
		if (CPU_ISSET(cpu, &may) && which-- == 0)
			CPU_SET(cpu, &one);
	sched_setaffinity(0, sizeof one, &one);
}

/* Registered: it has allocated once, and lives. */
static _Noreturn void be_registered(int ready, void (*then)(long))
{
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (then)
		keep_to(1);
	ops_load();
	ops_first();
	if (write(ready, "", 1) != 1)
		_exit(1);
	close(ready);
	for (;;) {
		if (!then)
			pause();
		then(SOME);
		__atomic_store_n(&shared->calls, shared->calls + SOME, __ATOMIC_RELAXED);
	}
}

/* That many at once: each is ready, or has failed. */
static void begin_some(int count, void (*then)(long))
{
	int pipes[2], ready = 0, begun = 0;
	char byte;
	shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (pipe(pipes) != 0 || shared == MAP_FAILED)
		give_up("no pipe or no shared memory");
	for (pid_t pid = 0; begun < count && pid >= 0; begun += pid > 0) {
		pid = fork();
		if (pid == 0) {
			close(pipes[0]);
			be_registered(pipes[1], then);
		}
		if (pid > 0)
			other[others++] = pid;
	}
	close(pipes[1]);
	while (ready < count && read(pipes[0], &byte, 1) == 1) /* ends with the last of them */
		ready++;
	close(pipes[0]);
	if (ready == count)
		return;
	end_others();
	give_up(begun < count ? "no more processes can be started here" : "a neighbour could not allocate");
}

/* They begin from nothing, as by exec: this process has not touched the driver when its operation begins here. */
static void begin_others(int count, void (*then)(long))
{
	for (int i = 0; i < count; i += AT_ONCE)
		begin_some(count - i < AT_ONCE ? count - i : AT_ONCE, then);
}

static void one_busy(void (*then)(long))
{
	begin_others(1, then);
	busy = true;
	keep_to(0);
}

static void one_busy_large(void)
{
	one_busy(pair_large);
}

static void one_busy_small(void)
{
	one_busy(pair_small);
}

/* What an allocation and a free cannot do without where two processes count on one line: the machine's own price. */
static NOINLINE void two_swaps(long count)
{
	for (long i = 0; i < 2 * count; i++) {
		uint64_t value = __atomic_load_n(&shared->line, __ATOMIC_ACQUIRE);
		while (!__atomic_compare_exchange_n(&shared->line, &value, value + 1, false, __ATOMIC_ACQ_REL,
		                                    __ATOMIC_ACQUIRE))
			;
	}
}

static void one_swaps(void)
{
	one_busy(two_swaps);
}

static void three(void)
{
	begin_others(3, NULL);
}

static void a_thousand(void)
{
	begin_others(OTHERS, NULL);
}

/* ---- threads: `count` pairs in all ------------------------------------------------------------------------------------ */

static void *pairs_of_thread(void *count)
{
	pairs(4096, (long)(intptr_t)count);
	return NULL;
}

static void in_threads(long count, int threads)
{
	pthread_t thread[8];
	for (int i = 0; i < threads; i++)
		if (pthread_create(&thread[i], NULL, pairs_of_thread, (void *)(intptr_t)(count / threads)) != 0)
			give_up("no thread");
	for (int i = 0; i < threads; i++)
		pthread_join(thread[i], NULL);
}

static NOINLINE void pair_in_4(long count)
{
	in_threads(count, 4);
}

static NOINLINE void pair_in_8(long count)
{
	in_threads(count, 8);
}

/* ---- questions ------------------------------------------------------------------------------------------------------- */

static NOINLINE void info(long count)
{
	size_t a, b;
	for (long i = 0; i < count; i++)
		need(driver_cuMemGetInfo_v2(&a, &b), "cuMemGetInfo");
}

static NOINLINE void proc(long count)
{
	CUdriverProcAddressQueryResult status;
	void *function;
	for (long i = 0; i < count; i++)
		need(driver_cuGetProcAddress_v2("cuMemAlloc", &function, 3020, 0, &status), "cuGetProcAddress_v2");
}

static NOINLINE void look_up_ours(long count)
{
	for (long i = 0; i < count; i++)
		if (!dlsym(driver, "cuMemAlloc_v2"))
			give_up("dlsym: no cuMemAlloc_v2");
}

static NOINLINE void look_up_foreign(long count)
{
	for (long i = 0; i < count; i++)
		if (!dlsym(RTLD_DEFAULT, "strlen"))
			give_up("dlsym: no strlen");
}

const struct op ops[] = {
        {"launch", 0, NULL, NULL, launch, NULL},
        {"launch-turn", 0, turn_take, NULL, launch, NULL},
        {"launch-ptsz", 0, NULL, NULL, launch_ptsz, NULL},
        {"launch-ex", 0, NULL, NULL, launch_ex, NULL},
        {"launch-cooperative", 0, NULL, NULL, launch_cooperative, NULL},
        {"launch-grid", 0, NULL, NULL, launch_grid, NULL},
        {"launch-graph", 0, NULL, NULL, launch_graph, NULL},
        {"pair-2MiB", 0, NULL, NULL, pair_large, NULL},
        {"pair-4KiB", 0, NULL, NULL, pair_small, NULL},
        {"contend-2MiB", 0, one_busy_large, NULL, pair_large, end_others},
        {"contend-4KiB", 0, one_busy_small, NULL, pair_small, end_others},
        {"contend-swaps", 0, one_swaps, NULL, two_swaps, end_others},
        {"threads-4", 0, NULL, NULL, pair_in_4, NULL},
        {"threads-8", 0, NULL, NULL, pair_in_8, NULL},
        {"free-1000", 1000, NULL, live_blocks, free_live, NULL},
        {"free-10000", 10000, NULL, live_blocks, free_live, NULL},
        {"free-100000", 100000, NULL, live_blocks, free_live, NULL},
        {"processes-1000", 64, a_thousand, free_held, allocate, end_others},
        {"refused", 0, NULL, NULL, refused, NULL},
        {"refused-3", 0, three, NULL, refused, end_others},
        {"info", 0, NULL, NULL, info, NULL},
        {"proc", 0, NULL, NULL, proc, NULL},
        {"dlsym-ours", 0, NULL, NULL, look_up_ours, NULL},
        {"dlsym-foreign", 0, NULL, NULL, look_up_foreign, NULL},
        {"async-4KiB", 0, NULL, NULL, pair_async, NULL},
        {"pool-4KiB", 0, make_pool, NULL, pair_pool, drop_pool},
        {NULL, 0, NULL, NULL, NULL, NULL},
};
