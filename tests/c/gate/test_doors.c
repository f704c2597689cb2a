/* Every door to the device's time waits for a turn, once: while it is nobody's turn the call does not reach the driver, and
 * nothing runs; then it does, is counted, and the process says when it is idle. Large copies and fills of the device are
 * doors too; small ones, and copies between host and device, go at once. One process per door. */
#include "table.h"

#define ROOM (64 * MIB)

static CUfunction spin;
static CUgraphExec exec;
static CUdeviceptr a, b;
static void *host;
static uint64_t ns = 1 * MS;

static void *const *params(void)
{
	static void *list[] = {&ns};
	return list;
}

static CUlaunchConfig *config(void)
{
	static CUlaunchConfig c = {1, 1, 1, 1, 1, 1, 0, NULL, NULL, 0};
	return &c;
}

#define P ((void **)params())

static CUresult kernel(void)
{
	return cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, NULL, P, NULL);
}
static CUresult kernel_ptsz(void)
{
	return cuLaunchKernel_ptsz(spin, 1, 1, 1, 1, 1, 1, 0, NULL, P, NULL);
}
static CUresult kernel_ex(void)
{
	return cuLaunchKernelEx(config(), spin, P, NULL);
}
static CUresult kernel_ex_ptsz(void)
{
	return cuLaunchKernelEx_ptsz(config(), spin, P, NULL);
}
static CUresult cooperative(void)
{
	return cuLaunchCooperativeKernel(spin, 1, 1, 1, 1, 1, 1, 0, NULL, P);
}
static CUresult cooperative_ptsz(void)
{
	return cuLaunchCooperativeKernel_ptsz(spin, 1, 1, 1, 1, 1, 1, 0, NULL, P);
}
static CUresult grid(void)
{
	return cuLaunchGrid(spin, 1, 1);
}
static CUresult grid_async(void)
{
	return cuLaunchGridAsync(spin, 1, 1, NULL);
}
static CUresult old(void)
{
	return cuLaunch(spin);
}
static CUresult graph(void)
{
	return cuGraphLaunch(exec, NULL);
}
static CUresult graph_ptsz(void)
{
	return cuGraphLaunch_ptsz(exec, NULL);
}
static CUresult fill(void)
{
	return cuMemsetD8_v2(a, 1, ROOM);
}
static CUresult fill_async(void)
{
	return cuMemsetD32Async(a, 1, ROOM / 4, NULL);
}
static CUresult fill_rows(void)
{
	return cuMemsetD2D8_v2(a, 4096, 1, 4096, ROOM / 4096);
}
static CUresult between(void)
{
	return cuMemcpyDtoD_v2(a, b, ROOM);
}
static CUresult between_async(void)
{
	return cuMemcpyDtoDAsync_v2(a, b, ROOM, NULL);
}
static CUresult unified(void)
{
	return cuMemcpyAsync(a, b, ROOM, NULL);
}
static CUresult small_fill(void)
{
	return cuMemsetD8_v2(a, 1, 4096);
}
static CUresult to_device(void)
{
	return cuMemcpyHtoD_v2(a, host, ROOM);
}
static CUresult to_host(void)
{
	return cuMemcpyDtoH_v2(host, a, ROOM);
}
static CUresult unified_host(void)
{
	return cuMemcpyAsync(a, (CUdeviceptr)(uintptr_t)host, ROOM, NULL);
}

static const CUDA_MEMCPY2D *copy_of_rows(CUmemorytype to)
{
	static CUDA_MEMCPY2D copy = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
	                             .srcPitch = 4096,
	                             .dstPitch = 4096,
	                             .WidthInBytes = 4096,
	                             .Height = ROOM / 4096};
	copy.dstMemoryType = to;
	copy.srcDevice = b;
	copy.dstDevice = a;
	copy.dstHost = host;
	return &copy;
}

static CUresult rows(void)
{
	return cuMemcpy2DAsync_v2(copy_of_rows(CU_MEMORYTYPE_DEVICE), NULL);
}

static CUresult rows_to_host(void)
{
	return cuMemcpy2D_v2(copy_of_rows(CU_MEMORYTYPE_HOST));
}

static const struct door {
	const char *name;
	CUresult (*call)(void);
	bool waits;
} doors[] = {
        {"cuLaunchKernel", kernel, true},
        {"cuLaunchKernel_ptsz", kernel_ptsz, true},
        {"cuLaunchKernelEx", kernel_ex, true},
        {"cuLaunchKernelEx_ptsz", kernel_ex_ptsz, true},
        {"cuLaunchCooperativeKernel", cooperative, true},
        {"cuLaunchCooperativeKernel_ptsz", cooperative_ptsz, true},
        {"cuLaunchGrid", grid, true},
        {"cuLaunchGridAsync", grid_async, true},
        {"cuLaunch", old, true},
        {"cuGraphLaunch", graph, true},
        {"cuGraphLaunch_ptsz", graph_ptsz, true},
        {"cuMemsetD8_v2", fill, true},
        {"cuMemsetD32Async", fill_async, true},
        {"cuMemsetD2D8_v2", fill_rows, true},
        {"cuMemcpyDtoD_v2", between, true},
        {"cuMemcpyDtoDAsync_v2", between_async, true},
        {"cuMemcpyAsync", unified, true},
        {"cuMemcpy2DAsync_v2", rows, true},
        {"cuMemsetD8_v2", small_fill, false},
        {"cuMemcpyHtoD_v2", to_device, false},
        {"cuMemcpyDtoH_v2", to_host, false},
        {"cuMemcpyAsync", unified_host, false},
        {"cuMemcpy2D_v2", rows_to_host, false},
};
#define DOORS (sizeof(doors) / sizeof(doors[0]))

static const struct door *door;
static CUcontext context;

static void prepare(void)
{
	context = start(0);
	spin = table_kernel("spin_ns");
	OK(cuMemAlloc_v2(&a, ROOM));
	OK(cuMemAlloc_v2(&b, ROOM));
	host = malloc(ROOM);
	CHECK(host != NULL, "no memory");
	OK(cuFuncSetBlockShape(spin, 1, 1, 1));
	OK(cuParamSetSize(spin, sizeof(ns)));
	OK(cuParamSetv(spin, 0, &ns, sizeof(ns)));
	exec = table_graph(spin, P);
}

static void *call_it(void *result)
{
	CUresult *to = result;
	OK(cuCtxSetCurrent(context));
	*to = door->call();
	return NULL;
}

/* Commands: l: call the door in a thread; c: how often the driver was called by it; j: the door's result; s: synchronise;
 * n: some other thread's launch fails, which counts for nothing. */
static void player(int in, int out)
{
	pthread_t thread;
	CUresult result = CUDA_ERROR_UNKNOWN;
	prepare();
	for (unsigned char command; (command = player_next(in)) != 0;) {
		uint64_t answer = 0;
		if (command == 'l')
			CHECK(pthread_create(&thread, NULL, call_it, &result) == 0, "thread");
		else if (command == 'c')
			answer = partage_sim_calls(door->name);
		else if (command == 'j')
			answer = pthread_join(thread, NULL) == 0 ? (uint64_t)result : UINT64_MAX;
		else if (command == 's')
			answer = (uint64_t)cuCtxSynchronize();
		else if (command == 'n')
			answer = (uint64_t)cuLaunchKernel(spin, 0, 1, 1, 1, 1, 1, 0, NULL, P, NULL);
		player_answer(out, answer);
	}
}

static void waits(struct table *t, const struct player *p)
{
	uint64_t engine = table_engine(0);
	struct ptg_slot_turn *line = table_line(t, p->pid, 0);
	player_ask(p, 'l');
	TABLE_UNTIL(LOOK(line->want) == 1 && LOOK(line->busy_ns) == 0);
	CHECK(LOOK(line->want_ns) != 0, "%s: it does not say since when it waits", door->name);
	CHECK(player_ask(p, 'c') == 0, "%s reached the driver while it was nobody's turn", door->name);
	CHECK(table_engine(0) == engine, "%s: something ran", door->name);
	table_open(t);
	CHECK(player_ask(p, 'j') == CUDA_SUCCESS, "%s failed", door->name);
	CHECK(player_ask(p, 'c') == 1, "%s did not reach the driver", door->name);
	TABLE_UNTIL(LOOK(line->busy_ns) == 0);
	CHECK(LOOK(line->want) == 0 && LOOK(line->waits) == 1 && LOOK(line->waited_ns) > 0, "%s: want %u, waits %llu",
	      door->name, LOOK(line->want), (unsigned long long)LOOK(line->waits));
	CHECK(LOOK(line->launches) == 1, "%s: counted %llu times", door->name,
	      (unsigned long long)LOOK(line->launches));
	CHECK(LOOK(line->flight_ns) > 0 && LOOK(line->idle_ns) > 0, "%s: nothing was in flight", door->name);
	table_close(t);
}

static void goes(struct table *t, const struct player *p)
{
	struct ptg_slot_turn *line = table_line(t, p->pid, 0);
	player_ask(p, 'l');
	CHECK(player_ask(p, 'j') == CUDA_SUCCESS, "%s failed", door->name);
	CHECK(player_ask(p, 'c') == 1, "%s did not reach the driver", door->name);
	CHECK(LOOK(line->waits) == 0 && LOOK(line->launches) == 0, "%s waited or was counted", door->name);
}

/* A launch that the driver refuses is none. */
static void refused(struct table *t, const struct player *p)
{
	struct ptg_slot_turn *line = table_line(t, p->pid, 0);
	uint64_t launches = LOOK(line->launches);
	table_open(t);
	CHECK(player_ask(p, 'n') == CUDA_ERROR_INVALID_VALUE, "a grid of nothing");
	TABLE_UNTIL(LOOK(line->busy_ns) == 0);
	CHECK(LOOK(line->launches) == launches, "a refused launch was counted");
	table_close(t);
}

int main(void)
{
	struct table t;
	table_set(&t, "table", 1);
	for (size_t i = 0; i < DOORS; i++) {
		door = &doors[i];
		NOTE("%s", door->name);
		struct player p = player_start(player);
		CHECK(player_ask(&p, 's') == CUDA_SUCCESS, "a context");
		(door->waits ? waits : goes)(&t, &p);
		refused(&t, &p);
		player_end(&p, false);
	}
	table_end(&t);
	return 0;
}
