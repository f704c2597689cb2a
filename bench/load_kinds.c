/* load_kinds.c: what one process of bench/loads does on the device, kind by kind; called by loads.c behind the fork.
 *
 * The kernel runs for a time that is its argument where the device is simulated, and for a number of loops on a real
 * one, where it also counts its launches in host memory that it sees: work done by the device's own word, no
 * synchronisation needed. A *step* is what a user of the program waits for: a launch until it is done, a graph, a burst;
 * of the kinds that never synchronise, the launches of about a millisecond. What can go wrong: the driver, or what stands
 * before it, refuses a call: the worker says which one and ends; the other processes go on. */
#include "loads.h"

#include <cuda.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define STEP_NS     1000000u
#define BLOCK       256
#define PROBE_LOOPS 2000000u

#define DRIVER(name) static __typeof__(&name) driver_##name;
#define CALL(name, ...)                                                                                                \
	do {                                                                                                           \
		CUresult call_result = driver_##name(__VA_ARGS__);                                                     \
		if (call_result != CUDA_SUCCESS)                                                                       \
			give_up(#name, call_result);                                                                   \
	} while (0)

DRIVER(cuInit)
DRIVER(cuDevicePrimaryCtxRetain)
DRIVER(cuDevicePrimaryCtxSetFlags_v2)
DRIVER(cuDeviceGetAttribute)
DRIVER(cuCtxSetCurrent)
DRIVER(cuCtxSynchronize)
DRIVER(cuModuleLoadData)
DRIVER(cuModuleGetFunction)
DRIVER(cuMemHostAlloc)
DRIVER(cuMemHostGetDevicePointer_v2)
DRIVER(cuStreamCreate)
DRIVER(cuStreamSynchronize)
DRIVER(cuEventCreate)
DRIVER(cuEventRecord)
DRIVER(cuEventSynchronize)
DRIVER(cuLaunchKernel)
DRIVER(cuGraphCreate)
DRIVER(cuGraphAddKernelNode_v2)
DRIVER(cuGraphInstantiateWithFlags)
DRIVER(cuGraphLaunch)

/* The name says to the simulated device that the first argument is the time. A loop that stores nothing would be
 * compiled away: the store behind `never` cannot happen, which the compiler cannot know. */
static const char image[] =
        ".version 7.0\n.target sm_70\n.address_size 64\n"
        ".visible .entry spin_ns(.param .u64 ns, .param .u64 loops, .param .u64 count)\n{\n"
        "\t.reg .pred %again, %never, %first;\n\t.reg .b64 %left, %count, %n;\n\t.reg .b32 %t, %b;\n"
        "\t.reg .f32 %x;\n"
        "\tld.param.u64 %left, [loops];\n\tld.param.u64 %count, [count];\n\tmov.f32 %x, 0f3F800000;\n"
        "LOOP:\n\tsetp.ne.u64 %again, %left, 0;\n\t@!%again bra DONE;\n"
        "\tfma.rn.f32 %x, %x, %x, %x;\n\tsub.u64 %left, %left, 1;\n\tbra LOOP;\n"
        "DONE:\n\tsetp.lt.f32 %never, %x, 0f00000000;\n\t@%never st.global.f32 [%count+8], %x;\n"
        "\tmov.u32 %t, %tid.x;\n\tmov.u32 %b, %ctaid.x;\n\tor.b32 %t, %t, %b;\n\tsetp.eq.u32 %first, %t, 0;\n"
        "\t@!%first bra END;\n\tld.volatile.global.u64 %n, [%count];\n\tadd.u64 %n, %n, 1;\n"
        "\tst.volatile.global.u64 [%count], %n;\n\tmembar.sys;\nEND:\n\tret;\n}\n"
        ".visible .entry ncclDevKernel_AllReduce_bench() { ret; }\n";

/* One device of a worker. */
struct side {
	CUcontext context;
	CUstream stream;
	CUfunction spin, collective;
	CUdeviceptr count;
	volatile uint64_t *counter;
	unsigned blocks;
};

static struct order *order;
static struct worker *self;
static const struct load *load;
static struct side side[2];

static _Noreturn void give_up(const char *what, CUresult code)
{
	char words[160];
	if (code == CUDA_SUCCESS)
		snprintf(words, sizeof(words), "%s", what);
	else
		snprintf(words, sizeof(words), "%s gave %d", what, code);
	if (!self) {
		fprintf(stderr, "loads: %s\n", words);
		exit(1);
	}
	memcpy(self->error, words, sizeof(words));
	atomic_store(&self->ready, 2);
	load_settled(order);
	_exit(1);
}

static void *symbol(void *driver, const char *name)
{
	void *function = dlsym(driver, name);
	if (!function) {
		fprintf(stderr, "loads: the driver has no %s\n", name);
		give_up("a driver too old for this program", CUDA_SUCCESS);
	}
	return function;
}

static void load_driver(void)
{
	void *driver = dlopen("libcuda.so.1", RTLD_NOW);
	if (!driver)
		give_up(dlerror(), CUDA_SUCCESS);
#define FIND(name) driver_##name = (__typeof__(&name))symbol(driver, #name)
	FIND(cuInit);
	FIND(cuDevicePrimaryCtxRetain);
	FIND(cuDevicePrimaryCtxSetFlags_v2);
	FIND(cuDeviceGetAttribute);
	FIND(cuCtxSetCurrent);
	FIND(cuCtxSynchronize);
	FIND(cuModuleLoadData);
	FIND(cuModuleGetFunction);
	FIND(cuMemHostAlloc);
	FIND(cuMemHostGetDevicePointer_v2);
	FIND(cuStreamCreate);
	FIND(cuStreamSynchronize);
	FIND(cuEventCreate);
	FIND(cuEventRecord);
	FIND(cuEventSynchronize);
	FIND(cuLaunchKernel);
	FIND(cuGraphCreate);
	FIND(cuGraphAddKernelNode_v2);
	FIND(cuGraphInstantiateWithFlags);
	FIND(cuGraphLaunch);
	CALL(cuInit, 0);
}

static void open_device(struct side *at, int ordinal)
{
	CUmodule module;
	int sms = 1;
	void *host;
	CALL(cuDevicePrimaryCtxSetFlags_v2, ordinal, CU_CTX_SCHED_BLOCKING_SYNC);
	CALL(cuDevicePrimaryCtxRetain, &at->context, ordinal);
	CALL(cuCtxSetCurrent, at->context);
	CALL(cuModuleLoadData, &module, image);
	CALL(cuModuleGetFunction, &at->spin, module, "spin_ns");
	CALL(cuModuleGetFunction, &at->collective, module, "ncclDevKernel_AllReduce_bench");
	CALL(cuStreamCreate, &at->stream, CU_STREAM_NON_BLOCKING);
	CALL(cuMemHostAlloc, &host, 4096, CU_MEMHOSTALLOC_DEVICEMAP);
	memset(host, 0, 4096);
	at->counter = host;
	CALL(cuMemHostGetDevicePointer_v2, &at->count, host, 0);
	CALL(cuDeviceGetAttribute, &sms, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, ordinal);
	at->blocks = 2 * (unsigned)sms;
}

/* ---- steps --------------------------------------------------------------------------------------------------------- */

static bool working(void)
{
	return atomic_load_explicit(&order->phase, memory_order_relaxed) == PHASE_WORK;
}

static void note_step(uint64_t ns)
{
	unsigned power = ns ? 63u - (unsigned)__builtin_clzll(ns) : 0;
	unsigned k = power < 4 ? (unsigned)ns : power * STEP_PARTS + (unsigned)((ns >> (power - 4)) & (STEP_PARTS - 1));
	self->bucket[k]++;
	self->steps++;
	self->counted = side[0].counter[0];
}

static void launch(struct side *at)
{
	void *parameters[] = {(void *)&load->kernel_ns, (void *)&load->loops, &at->count};
	CALL(cuLaunchKernel, at->spin, at->blocks, 1, 1, BLOCK, 1, 1, 0, at->stream, parameters, NULL);
}

static void synchronise(struct side *at)
{
	CALL(cuStreamSynchronize, at->stream);
}

static void think(void)
{
	struct timespec gap = {.tv_sec = (time_t)(load->gap_ns / 1000000000u),
	                       .tv_nsec = (long)(load->gap_ns % 1000000000u)};
	nanosleep(&gap, NULL);
}

/* ---- kinds --------------------------------------------------------------------------------------------------------- */

/* Never synchronises: as much as the driver takes. */
static void stream(void)
{
	unsigned launches = load->kernel_ns < STEP_NS ? (unsigned)(STEP_NS / (load->kernel_ns + 1)) + 1 : 1;
	while (working()) {
		uint64_t begin = load_now();
		for (unsigned i = 0; i < launches; i++)
			launch(&side[0]);
		note_step(load_now() - begin);
	}
}

/* Launch, wait, think: with one launch and no gap the plain launch-and-wait. */
static void burst(void)
{
	while (working()) {
		uint64_t begin = load_now();
		for (unsigned i = 0; i < load->count; i++)
			launch(&side[0]);
		synchronise(&side[0]);
		note_step(load_now() - begin);
		if (load->gap_ns)
			think();
	}
}

static CUgraphExec make_graph(struct side *at)
{
	CUgraph graph;
	CUgraphNode node, before;
	CUgraphExec exec;
	void *parameters[] = {(void *)&load->kernel_ns, (void *)&load->loops, &at->count};
	CUDA_KERNEL_NODE_PARAMS kernel = {.func = at->spin,
	                                  .gridDimX = at->blocks,
	                                  .gridDimY = 1,
	                                  .gridDimZ = 1,
	                                  .blockDimX = BLOCK,
	                                  .blockDimY = 1,
	                                  .blockDimZ = 1,
	                                  .kernelParams = parameters};
	CALL(cuGraphCreate, &graph, 0);
	for (unsigned i = 0; i < load->count; i++) {
		CALL(cuGraphAddKernelNode_v2, &node, graph, i ? &before : NULL, i ? 1 : 0, &kernel);
		before = node;
	}
	CALL(cuGraphInstantiateWithFlags, &exec, graph, 0);
	return exec;
}

/* A decode loop: one graph a token; the next is launched while the one before is awaited, as engines do it. */
static void graph(void)
{
	static CUgraphExec exec;
	static CUevent done[2];
	if (!exec) {
		exec = make_graph(&side[0]);
		for (int i = 0; i < 2; i++)
			CALL(cuEventCreate, &done[i], CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING);
	}
	uint64_t last = load_now();
	for (unsigned i = 0; working(); i++) {
		CALL(cuGraphLaunch, exec, side[0].stream);
		CALL(cuEventRecord, done[i % 2], side[0].stream);
		if (i) {
			CALL(cuEventSynchronize, done[(i + 1) % 2]);
			uint64_t now = load_now();
			note_step(now - last);
			last = now;
		}
	}
}

/* Two devices, one thread: COUNT kernels on each, then a collective that ends on neither before it runs on both. */
static void collective(void)
{
	while (working()) {
		uint64_t begin = load_now();
		for (int i = 0; i < 2; i++) {
			CALL(cuCtxSetCurrent, side[i].context);
			for (unsigned k = 0; k < load->count; k++)
				launch(&side[i]);
			CALL(cuLaunchKernel, side[i].collective, 1, 1, 1, 32, 1, 1, 0, side[i].stream, NULL, NULL);
		}
		for (int i = 0; i < 2; i++) {
			CALL(cuCtxSetCurrent, side[i].context);
			synchronise(&side[i]);
		}
		note_step(load_now() - begin);
		if (load->gap_ns)
			think();
	}
}

static const struct {
	const char *name;
	void (*work)(void); /* until the phase changes */
	int devices;
} kinds[] = {{"stream", stream, 1}, {"burst", burst, 1}, {"graph", graph, 1}, {"collective", collective, 2}};

bool load_known(const char *name)
{
	for (unsigned i = 0; i < sizeof(kinds) / sizeof(*kinds); i++)
		if (strcmp(kinds[i].name, name) == 0)
			return true;
	return false;
}

const char *load_names(void)
{
	return "stream, burst, graph, collective";
}

_Noreturn void load_run(const struct load *wanted, struct order *shared, struct worker *worker)
{
	unsigned kind = 0;
	load = wanted;
	order = shared;
	self = worker;
	while (strcmp(kinds[kind].name, load->kind) != 0)
		kind++;
	load_driver();
	for (int i = 0; i < kinds[kind].devices; i++)
		open_device(&side[i], i);
	CALL(cuCtxSetCurrent, side[0].context);
	atomic_store(&self->ready, 1);
	load_settled(order);
	for (;;) {
		load_wait(order, PHASE_WAIT);
		if (!working())
			_exit(0);
		kinds[kind].work();
		if (atomic_load(&order->phase) == PHASE_END)
			_exit(0); /* what is queued goes with the process */
		for (int i = 0; i < kinds[kind].devices; i++) {
			CALL(cuCtxSetCurrent, side[i].context);
			synchronise(&side[i]);
		}
		CALL(cuCtxSetCurrent, side[0].context);
		load_settled(order);
	}
}

int load_calibrate(void)
{
	static struct load probe = {.kind = "burst", .kernel_ns = 0, .count = 1, .loops = PROBE_LOOPS};
	uint64_t best = UINT64_MAX;
	load = &probe;
	load_driver();
	open_device(&side[0], 0);
	for (int i = 0; i < 20; i++) {
		uint64_t begin = load_now();
		launch(&side[0]);
		synchronise(&side[0]);
		uint64_t took = load_now() - begin;
		best = took < best ? took : best;
	}
	printf("%llu\n", (unsigned long long)((double)PROBE_LOOPS * 1e6 / (double)best));
	return 0;
}
