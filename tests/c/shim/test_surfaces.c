/* Every surface tells the same numbers, at every step of a random life of a share: several processes allocate and free
 * every kind of memory, contexts come and go, one is killed, the share is resized up and below its use, the watcher's
 * correction changes, the policy closes and opens again, a neighbour without a limit takes the card. After each step every process looks at every surface
 * (surfaces.h), also one that has not called cuInit, and a fork's child.
 * Arguments: contexts (one card, contexts take memory), devices (two, in the other order and named by UUID), mig, above (a
 * limit that no card has) or beyond (the same, oversubscribed); and possibly another seed.
 */
#include <stdlib.h>

#include "surfaces.h"

#define PLAYERS 3
#define LIVE    32
#define STEPS   240

struct block {
	int kind;
	CUdeviceptr p;
	CUmemGenericAllocationHandle handle;
	CUcontext context;
	CUgreenCtx green;
	CUgraph graph;
	CUgraphExec exec;
	CUmemoryPool pool;
	CUarray array;
	size_t size;
	unsigned device;
};

enum { PLAIN, SMALL, MANAGED, PITCHED, ASYNC, POOL, VMM, GRAPH, ARRAY, CONTEXT, GREEN, MULTICAST, KINDS };

static const char *const kind_name[KINDS] = {"plain", "small", "managed", "pitched", "async", "pool",
                                             "vmm",   "graph", "array",   "context", "green", "multicast"};

/* Written by the parent before it gives a command, read by the player. */
static struct board {
	unsigned step, kind, pick, devices;
	uint64_t bytes;
	unsigned seen[SURFACES];
	unsigned done[KINDS], refused[KINDS];
} *board;

static struct place places[2];
static struct block live[LIVE];
static unsigned count;

/* ---- one player ----------------------------------------------------------------------------------------------------- */

static CUresult get_vmm(struct block *b)
{
	CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED};
	prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	prop.location.id = places[b->device].ordinal;
	b->size = (b->size + GRANULE - 1) / GRANULE * GRANULE;
	return cuMemCreate(&b->handle, b->size, &prop, 0);
}

/* A handle that a multicast object keeps; the handle itself where the card has no NVSwitch. */
static CUresult get_multicast(struct block *b)
{
	CUmulticastObjectProp team = {.numDevices = 1};
	CUmemGenericAllocationHandle memory;
	CUresult error = get_vmm(b);
	if (error != CUDA_SUCCESS)
		return error;
	memory = b->handle;
	team.size = b->size;
	error = cuMulticastCreate(&b->handle, &team);
	if (error == CUDA_ERROR_NOT_SUPPORTED) {
		b->handle = memory;
		return CUDA_SUCCESS;
	}
	OK(error);
	OK(cuMulticastAddDevice(b->handle, places[b->device].ordinal));
	OK(cuMulticastBindMem(b->handle, 0, memory, 0, b->size, 0));
	OK(cuMemRelease(memory));
	return CUDA_SUCCESS;
}

static CUresult get_graph(struct block *b)
{
	CUgraphNode node;
	CUDA_MEM_ALLOC_NODE_PARAMS params = {.bytesize = b->size};
	params.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
	params.poolProps.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	params.poolProps.location.id = places[b->device].ordinal;
	OK(cuGraphCreate(&b->graph, 0));
	OK(cuGraphAddMemAllocNode(&node, b->graph, NULL, 0, &params));
	OK(cuGraphInstantiateWithFlags(&b->exec, b->graph, 0));
	CUresult error = cuGraphLaunch(b->exec, NULL);
	b->p = params.dptr;
	if (error == CUDA_SUCCESS)
		return error;
	OK(cuGraphExecDestroy(b->exec));
	OK(cuGraphDestroy(b->graph));
	return error;
}

static CUresult get_pooled(struct block *b)
{
	CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED};
	props.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	props.location.id = places[b->device].ordinal;
	OK(cuMemPoolCreate(&b->pool, &props));
	CUresult error = cuMemAllocFromPoolAsync(&b->p, b->size, b->pool, NULL);
	if (error != CUDA_SUCCESS)
		OK(cuMemPoolDestroy(b->pool));
	return error;
}

static CUresult get_array(struct block *b)
{
	CUDA_ARRAY_DESCRIPTOR rows = {.Width = 4096, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 1};
	rows.Height = 1 + b->size / (4096 * sizeof(float));
	return cuArrayCreate_v2(&b->array, &rows);
}

static CUresult get_green(struct block *b)
{
	CUdevResource all;
	CUdevResourceDesc desc;
	OK(cuDeviceGetDevResource(places[b->device].ordinal, &all, CU_DEV_RESOURCE_TYPE_SM));
	OK(cuDevResourceGenerateDesc(&desc, &all, 1));
	return cuGreenCtxCreate(&b->green, desc, places[b->device].ordinal, 0);
}

static CUresult get_context(struct block *b)
{
	CUcontext old;
	CUresult error = cuCtxCreate_v2(&b->context, 0, places[b->device].ordinal);
	if (error == CUDA_SUCCESS)
		OK(cuCtxPopCurrent_v2(&old));
	return error;
}

static CUresult get(struct block *b)
{
	size_t pitch;
	OK(cuCtxSetCurrent(places[b->device].context));
	switch (b->kind) {
	case SMALL:
		return cuMemAlloc_v2(&b->p, 1 + b->size % MIB);
	case MANAGED:
		return cuMemAllocManaged(&b->p, b->size, CU_MEM_ATTACH_GLOBAL);
	case PITCHED:
		return cuMemAllocPitch_v2(&b->p, &pitch, 1000, (b->size + 1023) / 1024, 4);
	case ASYNC:
		return cuMemAllocAsync(&b->p, b->size, NULL);
	case POOL:
		return get_pooled(b);
	case ARRAY:
		return get_array(b);
	case VMM:
		return get_vmm(b);
	case MULTICAST:
		return get_multicast(b);
	case GRAPH:
		return get_graph(b);
	case CONTEXT:
		return get_context(b);
	case GREEN:
		return get_green(b);
	default:
		return cuMemAlloc_v2(&b->p, b->size);
	}
}

static void put(struct block *b)
{
	OK(cuCtxSetCurrent(places[b->device].context));
	switch (b->kind) {
	case ASYNC:
		OK(cuMemFreeAsync(b->p, NULL));
		break;
	case POOL:
		OK(cuMemFreeAsync(b->p, NULL));
		OK(cuMemPoolDestroy(b->pool));
		break;
	case ARRAY:
		OK(cuArrayDestroy(b->array));
		break;
	case VMM:
	case MULTICAST:
		OK(cuMemRelease(b->handle));
		break;
	case GRAPH:
		OK(cuMemFree_v2(b->p));
		OK(cuGraphExecDestroy(b->exec));
		OK(cuGraphDestroy(b->graph));
		if (b->size % 2)
			OK(cuDeviceGraphMemTrim(places[b->device].ordinal));
		break;
	case CONTEXT:
		OK(cuCtxDestroy_v2(b->context));
		break;
	case GREEN:
		OK(cuGreenCtxDestroy(b->green));
		break;
	default:
		OK(cuMemFree_v2(b->p));
	}
	OK(cuCtxSynchronize());
}

static void find_places(void)
{
	CHECK(nvmlInit_v2() == NVML_SUCCESS, "NVML");
	for (unsigned i = 0; i < board->devices; i++) {
		struct place *p = &places[i];
		p->policy = share_map(grant_path("share", "policy"), sizeof(*p->policy));
		p->index = i;
		p->ordinal = -1;
		for (p->device = 0; strcmp(machine()->model[p->device].uuid, p->policy->device[i].uuid) != 0;)
			p->device++;
		CHECK(nvmlDeviceGetHandleByUUID(p->policy->device[i].uuid, &p->handle) == NVML_SUCCESS, "device %u", i);
		struct numbers n;
		nvml_info(p, &n); /* whoever comes first makes the ledger */
		p->ledger = share_map(grant_path("share", "ledger"), sizeof(*p->ledger));
	}
}

/* A part of a card leads to the card, whose memory is others' business. */
static void card_is_hidden(void)
{
	nvmlDevice_t card;
	nvmlMemory_t memory;
	nvmlBAR1Memory_t window;
	unsigned processes = 0;
	if (machine()->model[places[0].device].mig != SIM_MIG_INSTANCE)
		return;
	nvmlReturn_t error = nvmlDeviceGetDeviceHandleFromMigDeviceHandle(places[0].handle, &card);
	CHECK(error == NVML_SUCCESS, "the instance's card: %d", (int)error);
	error = nvmlDeviceGetMemoryInfo(card, &memory);
	CHECK(error == NVML_ERROR_NO_PERMISSION && memory.used == 0, "memory of the whole card: %d, %llu bytes used",
	      (int)error, memory.used);
	error = nvmlDeviceGetBAR1MemoryInfo(card, &window);
	CHECK(error == NVML_ERROR_NO_PERMISSION && window.bar1Used == 0, "the card's window: %d", (int)error);
	error = nvmlDeviceGetComputeRunningProcesses_v3(card, &processes, NULL);
	CHECK(error == NVML_SUCCESS && processes == 0, "processes of the whole card: %d, %u", (int)error, processes);
}

/* Where the share has no room for one more context, the process goes on without and tries again. */
static bool enter(struct place *p)
{
	CUresult error = p->context ? CUDA_SUCCESS : cuDevicePrimaryCtxRetain(&p->context, p->ordinal);
	CHECK(error == CUDA_SUCCESS || error == CUDA_ERROR_OUT_OF_MEMORY, "cuDevicePrimaryCtxRetain: %d", (int)error);
	if (error != CUDA_SUCCESS)
		board->refused[CONTEXT]++;
	return error == CUDA_SUCCESS;
}

/* The driver counts devices as it likes: each is found by its UUID. */
static void begin(void)
{
	OK(cuInit(0));
	for (unsigned i = 0; i < board->devices; i++) {
		struct place *p = &places[i];
		for (CUdevice d = 0; d < (CUdevice)board->devices; d++) {
			CUuuid uuid;
			char text[64];
			OK(cuDeviceGetUuid_v2(&uuid, d));
			snprintf(text, sizeof(text), "-%02x%02x%02x%02x-%02x%02x", (unsigned char)uuid.bytes[0],
			         (unsigned char)uuid.bytes[1], (unsigned char)uuid.bytes[2],
			         (unsigned char)uuid.bytes[3], (unsigned char)uuid.bytes[4],
			         (unsigned char)uuid.bytes[5]);
			if (strstr(p->policy->device[i].uuid, text) != NULL)
				p->ordinal = d;
		}
		CHECK(p->ordinal >= 0, "%s is not to be seen", p->policy->device[i].uuid);
		enter(p);
	}
}

static void walk_all(const char *when)
{
	for (unsigned i = 0; i < board->devices; i++)
		walk(&places[i], when, board->seen);
}

/* A child has nothing of its parent's but looks at the same share. */
static void forked(void)
{
	int status;
	pid_t child = fork();
	CHECK(child >= 0, "fork");
	if (child == 0) {
		for (unsigned i = 0; i < board->devices; i++) {
			places[i].context = NULL;
			places[i].ordinal = -1;
		}
		find_places();
		walk_all("in a fork's child");
		_exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child && status == 0, "a fork's child ended with status 0x%x", status);
}

static void act(void)
{
	unsigned at = count ? board->pick % count : 0;
	if (count == LIVE || (count && board->pick % 5 < 2)) {
		put(&live[at]);
		live[at] = live[--count];
		return;
	}
	struct block b = {.kind = (int)board->kind, .size = board->bytes, .device = board->pick % board->devices};
	if (!enter(&places[b.device]))
		return;
	CUresult error = get(&b);
	OK(cuCtxSynchronize());
	if (error == CUDA_SUCCESS) {
		live[count++] = b;
		board->done[b.kind]++;
		return;
	}
	CHECK(error == CUDA_ERROR_OUT_OF_MEMORY, "%s of %lu bytes: %d", kind_name[b.kind], (unsigned long)b.size,
	      (int)error);
	board->refused[b.kind]++;
}

static void player(int in, int out)
{
	char when[64];
	for (unsigned char command; (command = player_next(in)) != 0;) {
		if (command == 'n') {
			find_places();
			card_is_hidden();
		}
		if (command == 'b')
			begin();
		if (command == 'a')
			act();
		if (command == 'f')
			forked();
		snprintf(when, sizeof(when), "step %u, after '%c'", board->step, command);
		walk_all(when);
		player_answer(out, 0);
	}
}

/* Somebody else's program on the same card, without a limit. */
static void neighbour(int in, int out)
{
	CUdeviceptr p = 0;
	size_t free_bytes, total;
	unsetenv("PARTAGE_DIR");
	setenv("CUDA_DEVICE_MEMORY_LIMIT", "0m", 1);
	start(0);
	while (player_next(in) != 0) {
		OK(cuMemGetInfo_v2(&free_bytes, &total));
		if (p != 0) {
			OK(cuMemFree_v2(p));
			p = 0;
		} else if (free_bytes > GIB) {
			OK(cuMemAlloc_v2(&p, (free_bytes - GIB / 2) / GRANULE * GRANULE));
		}
		player_answer(out, 0);
	}
}

/* ---- the share's life ------------------------------------------------------------------------------------------------ */

static uint32_t state = 20; /* the seed; the same life every time */

static unsigned draw(unsigned most)
{
	state = state * 1664525 + 1013904223;
	return (state >> 8) % most;
}

static struct player new_player(void)
{
	struct player p = player_start(player);
	player_ask(&p, 'n');
	player_ask(&p, 'b');
	return p;
}

static void change(struct ptg_policy *policy, uint64_t usual, unsigned what)
{
	struct ptg_policy_device *device = &policy->device[draw(policy->ndev)];
	if (what == 0)
		device->memory = draw(2) ? usual : MIB * (32 + draw(2000));
	else if (draw(5) != 0)
		device->overhead = (int64_t)(draw(3) ? MIB * draw(300) : 0);
	policy->state = policy->state == PTG_STATE_OPEN && draw(6) == 0 ? PTG_STATE_CLOSED : PTG_STATE_OPEN;
	grant_change("share", *policy);
}

static void live_on(struct ptg_policy *policy, uint64_t usual)
{
	struct player p[PLAYERS], other = player_start(neighbour);
	for (int i = 0; i < PLAYERS; i++)
		p[i] = new_player();
	struct player quiet = player_start(player); /* never calls cuInit */
	player_ask(&quiet, 'n');
	for (board->step = 1; board->step <= STEPS; board->step++) {
		unsigned what = draw(16), who = draw(PLAYERS);
		board->kind = draw(KINDS);
		board->pick = draw(1000);
		board->bytes = draw(4) ? 1 + draw(64 * MIB) : MIB * (64 + draw(1000));
		if (what < 2) {
			change(policy, usual, what);
		} else if (what == 2 && draw(3) == 0) {
			player_ask(&other, 'x');
		} else if (what == 3 && draw(4) == 0) {
			player_end(&p[who], true);
			p[who] = new_player();
		} else {
			player_ask(&p[who], what == 4 ? 'f' : 'a');
		}
		for (int i = 0; i < PLAYERS; i++)
			player_ask(&p[i], 'w');
		player_ask(&quiet, 'w');
	}
	for (int i = 0; i < PLAYERS; i++)
		player_end(&p[i], false);
	player_end(&quiet, false);
	player_end(&other, true);
}

static void report(void)
{
	for (unsigned i = 0; i < KINDS; i++)
		CHECK(board->done[i] != 0, "no %s was ever had", kind_name[i]);
	unsigned refused = 0, looked = 0;
	for (unsigned i = 0; i < KINDS; i++)
		refused += board->refused[i];
	for (unsigned i = 0; i < SURFACES; i++) {
		looked += board->seen[i];
		CHECK(board->seen[i] != 0 || surfaces[i].look == nvml_attributes, "%s was never asked",
		      surfaces[i].name);
	}
	CHECK(refused != 0, "nothing was ever refused");
	NOTE("%d steps, %u looks at %zu surfaces, %u refusals", STEPS, looked, SURFACES, refused);
}

int main(int argc, char **argv)
{
	const char *name = argc > 1 ? argv[1] : "contexts";
	struct granted granted[2] = {{0, 5 * GIB}, {0, 3 * GIB}};
	if (argc > 2)
		state = (uint32_t)strtoul(argv[2], NULL, 10);
	board = mmap(NULL, sizeof(*board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(board != MAP_FAILED, "mmap");
	scene("make the machine", touch);
	board->devices = 1;
	if (strcmp(name, "devices") == 0) {
		char list[160];
		board->devices = 2;
		granted[0] = (struct granted){1, 2 * GIB};
		snprintf(list, sizeof(list), "%s,%s", machine()->model[0].uuid, machine()->model[1].uuid);
		setenv("CUDA_VISIBLE_DEVICES", list, 1);
	} else if (strcmp(name, "mig") ==
	           0) { /* the program is given the smallest part of the card, and of it a share */
		for (int i = 0; i < (int)machine()->ndev; i++)
			if (machine()->model[i].mig == SIM_MIG_INSTANCE)
				granted[0].device = i;
		setenv("CUDA_VISIBLE_DEVICES", machine()->model[granted[0].device].uuid, 1);
	}
	if (strcmp(name, "above") == 0 || strcmp(name, "beyond") == 0)
		granted[0].memory = 200 * GIB;
	struct ptg_policy policy = grant_policy(granted, board->devices);
	if (strcmp(name, "beyond") == 0)
		policy.flags |= PTG_FLAG_OVERSUBSCRIBED;
	grant_seal(&policy);
	grant_hand_over("share", &policy);
	live_on(&policy, granted[0].memory);
	report();
	return 0;
}
