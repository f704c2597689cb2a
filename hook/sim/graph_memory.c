/* graph_memory.c: memory that graphs allocate and free.
 *
 * An allocation node stands for a *block*: an address that stays the same for the node's life. Physical memory is taken
 * when a graph is launched or uploaded, in steps of model.pool_granule, and stays with the device's graphs until it is
 * trimmed: a block that nobody uses lends what *backs* it to the next graph that needs some, at once where both run in
 * the same stream. A block is *live* from the launch that allocates it until something frees it, in the order in which
 * the program calls; it is *used* as long as a launch or free that was queued has not run.
 *
 * Called by the other graph files, by memory.c and pool.c for frees, and by programs. The memory mutex guards all of it.
 * What can go wrong: a full card (CUDA_ERROR_OUT_OF_MEMORY at the launch), memory freed that is not live
 * (CUDA_ERROR_INVALID_VALUE).
 */
#include <stdlib.h>

#include "blocks.h"
#include "graph.h"
#include "sim_impl.h"
#include "visible.h"

struct sim_graph_block {
	struct sim_graph_block *next, *prev; /* the device's */
	struct sim_block *block;
	int device;
	uint64_t start, size; /* whole granules */
	unsigned refs;        /* nodes, uses, and one while it is live */
	unsigned uses;
	bool live, backed;
	bool counted;         /* in `used` of its device */
	uint64_t stream;      /* id of the one stream that all its uses are queued in; 0: several */
	uint64_t launch;      /* number of the launch that allocated it last */
	unsigned owner;       /* id of the graph whose node allocates it */
	unsigned freed_by;    /* id of the graph that has a free node for it, 0 = none */
};

struct sim_graph_launch {
	unsigned count;
	struct sim_graph_block *block[];
};

static struct {
	struct sim_graph_block *blocks;
	uint64_t reserved, reserved_high; /* what the card has lost to graphs */
	uint64_t used, used_high;
	uint64_t spare;                   /* reserved and backing no block */
} devices[SIM_DEVICES];

static uint64_t launches;

/* ---- blocks, under the memory mutex ------------------------------------------------------------------------------ */

static void count(struct sim_graph_block *block)
{
	uint64_t *used = &devices[block->device].used, *high = &devices[block->device].used_high;
	bool counts = block->backed && (block->uses || block->live);
	if (counts == block->counted)
		return;
	block->counted = counts;
	*used = counts ? *used + block->size : *used - block->size;
	*high = *used > *high ? *used : *high;
}

/* What backs the block is spare. Its pages go, unless a launch that comes before the next user may still write them. */
static void strip(struct sim_graph_block *block)
{
	if (!block->backed)
		return;
	block->backed = false;
	devices[block->device].spare += block->size;
	count(block);
	if (!block->uses)
		sim_room_clear(block->device, block->start, block->size);
}

static void put(struct sim_graph_block *block)
{
	if (--block->refs)
		return;
	strip(block);
	*(block->prev ? &block->prev->next : &devices[block->device].blocks) = block->next;
	if (block->next)
		block->next->prev = block->prev;
	sim_block_remove(block->block);
	free(block->block);
	sim_room_give(block->device, block->start, block->size);
	free(block);
}

static void use(struct sim_graph_block *block, uint64_t stream)
{
	block->stream = !block->uses || block->stream == stream ? stream : 0;
	block->uses++;
	block->refs++;
	count(block);
}

static void unuse(struct sim_graph_block *block)
{
	block->uses--;
	count(block);
	put(block);
}

static void set_live(struct sim_graph_block *block, bool live)
{
	if (block->live == live)
		return;
	block->live = live;
	count(block);
	if (live)
		block->refs++;
	else
		put(block);
}

void sim_graph_block_keep(struct sim_graph_block *block)
{
	pthread_mutex_lock(&sim_memory_mutex);
	block->refs++;
	pthread_mutex_unlock(&sim_memory_mutex);
}

void sim_graph_block_put(struct sim_graph_block *block)
{
	pthread_mutex_lock(&sim_memory_mutex);
	put(block);
	pthread_mutex_unlock(&sim_memory_mutex);
}

/* ---- nodes ------------------------------------------------------------------------------------------------------- */

static CUresult check_props(const CUDA_MEM_ALLOC_NODE_PARAMS_v2 *params, int *device)
{
	const CUmemPoolProps *props = &params->poolProps;
	if (!params->bytesize || (params->accessDescCount && !params->accessDescs) ||
	    params->accessDescCount > (size_t)sim_visible_count())
		return CUDA_ERROR_INVALID_VALUE;
	if (props->allocType != CU_MEM_ALLOCATION_TYPE_PINNED || props->handleTypes != CU_MEM_HANDLE_TYPE_NONE)
		return CUDA_ERROR_INVALID_VALUE;
	if (props->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
		return CUDA_ERROR_NOT_SUPPORTED;
	CUresult error = sim_device_of(props->location.id, device);
	for (size_t i = 0; i < params->accessDescCount && error == CUDA_SUCCESS; i++) {
		int other;
		error = sim_device_of(params->accessDescs[i].location.id, &other);
	}
	return error;
}

/* Under the memory mutex. */
static struct sim_graph_block *block_new(int device, uint64_t bytes)
{
	struct sim_graph_block *block = calloc(1, sizeof(*block));
	if (!block)
		return NULL;
	block->device = device;
	block->size = sim_round_up(bytes, sim_machine->model[device].granule);
	block->refs = 1;
	if (!sim_room_take(device, block->size, &block->start)) {
		free(block);
		return NULL;
	}
	block->block = sim_block_add(SIM_BLOCK_GRAPH, device, NULL, block->start, bytes);
	if (!block->block) {
		sim_room_give(device, block->start, block->size);
		free(block);
		return NULL;
	}
	block->block->padded = block->size;
	block->block->graph = block;
	block->next = devices[device].blocks;
	if (block->next)
		block->next->prev = block;
	devices[device].blocks = block;
	return block;
}

CUresult sim_graph_block_new(struct sim_graph *graph, CUDA_MEM_ALLOC_NODE_PARAMS_v2 *params,
                             struct sim_graph_block **out)
{
	int device;
	CUresult error = check_props(params, &device);
	if (error != CUDA_SUCCESS)
		return error;
	if (params->bytesize > sim_machine->model[device].memory)
		return CUDA_ERROR_OUT_OF_MEMORY;
	pthread_mutex_lock(&sim_memory_mutex);
	struct sim_graph_block *block = block_new(device, params->bytesize);
	pthread_mutex_unlock(&sim_memory_mutex);
	if (!block)
		return CUDA_ERROR_OUT_OF_MEMORY;
	block->owner = graph->id;
	params->dptr = block->start;
	*out = block;
	return CUDA_SUCCESS;
}

static struct sim_graph_block *block_at(CUdeviceptr p)
{
	struct sim_block *block = sim_block_from(p);
	return block && block->kind == SIM_BLOCK_GRAPH ? block->graph : NULL;
}

/* Freed once in its own graph, or in others: not in both, and not twice in one. */
CUresult sim_graph_block_freed(struct sim_graph *graph, CUdeviceptr p, struct sim_graph_block **out)
{
	pthread_mutex_lock(&sim_memory_mutex);
	struct sim_graph_block *block = block_at(p);
	bool may = block && (!block->freed_by || (block->freed_by != block->owner && block->freed_by != graph->id &&
	                                          graph->id != block->owner));
	if (may) {
		block->freed_by = graph->id;
		block->refs++;
		*out = block;
	}
	pthread_mutex_unlock(&sim_memory_mutex);
	return may ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* ---- physical memory, under the memory mutex --------------------------------------------------------------------- */

static void reserve(int device, uint64_t bytes)
{
	devices[device].reserved += bytes;
	devices[device].spare += bytes;
	if (devices[device].reserved > devices[device].reserved_high)
		devices[device].reserved_high = devices[device].reserved;
}

/* What is reserved stays a multiple of the pools' granule, or, on a card that is nearly full, of the device's. */
static bool grow(int device, uint64_t need)
{
	const struct sim_device_model *model = &sim_machine->model[device];
	uint64_t reserved = devices[device].reserved, units[] = {model->pool_granule, model->granule};
	for (int i = 0; i < 2; i++) {
		uint64_t bytes = sim_round_up(reserved + need, units[i]) - reserved;
		if (sim_account_or_trim(device, (int64_t)bytes, false) == 0) {
			reserve(device, bytes);
			return true;
		}
	}
	return false;
}

/* Makes `need` bytes spare, at the cost of blocks that nobody needs before this launch. */
static bool obtain(int device, uint64_t need, uint64_t stream, uint64_t launch)
{
	struct sim_graph_block *block = devices[device].blocks;
	for (; block && devices[device].spare < need; block = block->next) {
		bool idle = !block->uses || (stream && block->stream == stream);
		if (block->backed && !block->live && idle && block->launch != launch)
			strip(block);
	}
	return devices[device].spare >= need || grow(device, need - devices[device].spare);
}

/* In whole granules of pools, as it was taken, unless nothing else is left. */
static void give_back_spare(int device)
{
	uint64_t bytes = devices[device].spare, granule = sim_machine->model[device].pool_granule;
	if (bytes != devices[device].reserved)
		bytes = bytes / granule * granule;
	devices[device].spare -= bytes;
	devices[device].reserved -= bytes;
	if (bytes)
		sim_account(device, -(int64_t)bytes, false);
}

void sim_graph_memory_close(int device)
{
	struct sim_graph_block *next;
	for (struct sim_graph_block *block = devices[device].blocks; block; block = next) {
		next = block->next;
		strip(block);
		set_live(block, false);
	}
	give_back_spare(device);
}

/* ---- launches ---------------------------------------------------------------------------------------------------- */

static struct sim_graph_block *block_of(const struct sim_graph_step *step, CUgraphNodeType type)
{
	return step->node && step->node->work.params.type == type ? step->node->work.block : NULL;
}

/* What the launch allocates: counted by device, and marked with its number. */
static CUresult look_at_allocations(const struct sim_graph_exec *exec, uint64_t launch, uint64_t need[SIM_DEVICES])
{
	bool frees = exec->flags & CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
	for (unsigned i = 0; i < exec->steps; i++) {
		struct sim_graph_block *block = block_of(&exec->step[i], CU_GRAPH_NODE_TYPE_MEM_ALLOC);
		if (!block)
			continue;
		if (block->live && !frees)
			return CUDA_ERROR_INVALID_VALUE; /* still there from the launch before */
		block->launch = launch;
		need[block->device] += block->backed ? 0 : block->size;
	}
	return CUDA_SUCCESS;
}

static CUresult look_at_frees(const struct sim_graph_exec *exec, uint64_t launch)
{
	for (unsigned i = 0; i < exec->steps; i++) {
		struct sim_graph_block *block = block_of(&exec->step[i], CU_GRAPH_NODE_TYPE_MEM_FREE);
		if (block && block->launch != launch && !block->live)
			return CUDA_ERROR_INVALID_VALUE; /* another graph's, and not allocated now */
	}
	return CUDA_SUCCESS;
}

static CUresult obtain_all(const struct sim_graph_exec *exec, uint64_t stream, bool upload)
{
	uint64_t need[SIM_DEVICES] = {0}, launch = ++launches;
	CUresult error = look_at_allocations(exec, launch, need);
	if (error == CUDA_SUCCESS && !upload)
		error = look_at_frees(exec, launch);
	for (int device = 0; device < SIM_DEVICES && error == CUDA_SUCCESS; device++)
		if (need[device] && !obtain(device, need[device], stream, launch))
			error = CUDA_ERROR_OUT_OF_MEMORY;
	for (unsigned i = 0; i < exec->steps && error == CUDA_SUCCESS; i++) {
		struct sim_graph_block *block = block_of(&exec->step[i], CU_GRAPH_NODE_TYPE_MEM_ALLOC);
		if (!block || block->backed)
			continue;
		block->backed = true;
		devices[block->device].spare -= block->size;
		count(block);
	}
	return error;
}

/* The launch is certain: what is live after it, in the program's order, and what its work uses. */
static void commit(const struct sim_graph_exec *exec, uint64_t stream, struct sim_graph_launch *launch)
{
	for (unsigned i = 0; i < exec->steps; i++) {
		struct sim_graph_block *alloc = block_of(&exec->step[i], CU_GRAPH_NODE_TYPE_MEM_ALLOC);
		struct sim_graph_block *freed = block_of(&exec->step[i], CU_GRAPH_NODE_TYPE_MEM_FREE);
		if (!alloc && !freed)
			continue;
		launch->block[launch->count++] = alloc ? alloc : freed;
		use(alloc ? alloc : freed, stream);
		if (alloc)
			set_live(alloc, true);
	}
	for (unsigned i = 0; i < exec->steps; i++) {
		struct sim_graph_block *freed = block_of(&exec->step[i], CU_GRAPH_NODE_TYPE_MEM_FREE);
		if (freed)
			set_live(freed, false);
	}
}

CUresult sim_graph_memory_launch(const struct sim_graph_exec *exec, uint64_t stream, bool upload,
                                 struct sim_graph_launch **launch)
{
	*launch = NULL;
	if (!exec->graph->has_memory)
		return CUDA_SUCCESS;
	if (!upload && !(*launch = malloc(sizeof(**launch) + exec->steps * sizeof(struct sim_graph_block *))))
		return CUDA_ERROR_OUT_OF_MEMORY;
	pthread_mutex_lock(&sim_memory_mutex);
	CUresult error = obtain_all(exec, stream, upload);
	if (error == CUDA_SUCCESS && !upload) {
		(*launch)->count = 0;
		commit(exec, stream, *launch);
	}
	pthread_mutex_unlock(&sim_memory_mutex);
	if (error != CUDA_SUCCESS) {
		free(*launch);
		*launch = NULL;
	}
	return error;
}

void sim_graph_memory_done(void *arg)
{
	struct sim_graph_launch *launch = *(struct sim_graph_launch **)arg;
	pthread_mutex_lock(&sim_memory_mutex);
	for (unsigned i = 0; i < launch->count; i++)
		unuse(launch->block[i]);
	pthread_mutex_unlock(&sim_memory_mutex);
	free(launch);
}

/* ---- frees from outside ------------------------------------------------------------------------------------------ */

static void run_free(void *arg)
{
	pthread_mutex_lock(&sim_memory_mutex);
	unuse(*(struct sim_graph_block **)arg);
	pthread_mutex_unlock(&sim_memory_mutex);
}

bool sim_graph_memory_free(CUdeviceptr p, struct sim_stream *stream, CUresult *result)
{
	struct sim_work work = {.run = run_free, .arg_size = sizeof(struct sim_graph_block *)};
	pthread_mutex_lock(&sim_memory_mutex);
	struct sim_graph_block *block = block_at(p);
	bool live = block && block->live;
	if (live && stream)
		use(block, stream->id);
	if (live)
		set_live(block, false);
	pthread_mutex_unlock(&sim_memory_mutex);
	*result = live ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
	if (!live || !stream)
		return block;
	__builtin_memcpy(work.arg, &block, work.arg_size);
	*result = sim_enqueue(stream, &work);
	if (*result != CUDA_SUCCESS)
		run_free(work.arg); /* the stream will never come to it */
	return true;
}

/* ---- what a device is asked --------------------------------------------------------------------------------------- */

CUresult sim_cuDeviceGraphMemTrim(CUdevice ordinal)
{
	int device;
	CUresult error = sim_device_of(ordinal, &device);
	if (error != CUDA_SUCCESS)
		return error;
	pthread_mutex_lock(&sim_memory_mutex);
	for (struct sim_graph_block *block = devices[device].blocks; block; block = block->next)
		if (!block->uses && !block->live)
			strip(block);
	give_back_spare(device);
	pthread_mutex_unlock(&sim_memory_mutex);
	return CUDA_SUCCESS;
}

CUresult sim_cuDeviceGetGraphMemAttribute(CUdevice ordinal, CUgraphMem_attribute attr, void *value)
{
	int device;
	CUresult error = sim_device_of(ordinal, &device);
	if (error != CUDA_SUCCESS)
		return error;
	if (!value || (unsigned)attr > CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&sim_memory_mutex);
	const uint64_t all[] = {devices[device].used, devices[device].used_high, devices[device].reserved,
	                        devices[device].reserved_high};
	pthread_mutex_unlock(&sim_memory_mutex);
	*(cuuint64_t *)value = all[attr];
	return CUDA_SUCCESS;
}

CUresult sim_cuDeviceSetGraphMemAttribute(CUdevice ordinal, CUgraphMem_attribute attr, void *value)
{
	int device;
	CUresult error = sim_device_of(ordinal, &device);
	if (error != CUDA_SUCCESS)
		return error;
	bool used = attr == CU_GRAPH_MEM_ATTR_USED_MEM_HIGH;
	if (!value || *(cuuint64_t *)value || (!used && attr != CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH))
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&sim_memory_mutex);
	if (used)
		devices[device].used_high = devices[device].used;
	else
		devices[device].reserved_high = devices[device].reserved;
	pthread_mutex_unlock(&sim_memory_mutex);
	return CUDA_SUCCESS;
}
