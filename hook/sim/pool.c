/* pool.c: stream-ordered memory: what pools hold, cuMemAllocAsync, cuMemAllocFromPoolAsync and cuMemFreeAsync.
 *
 * Called by programs; context.c and stream.c tell it when a program has waited (sim_pools_synchronized) and when a
 * device's last context is gone. Which pools there are is pool_table.c's. A pool grows by *chunks* of model.pool_granule and more, which are what the card
 * counts. A free is *pending* until the stream comes to it; a later allocation in the same stream may have that room
 * at once, others only afterwards. Chunks that are all free go back at the next synchronisation, beyond the release
 * threshold, and where the card is full, whatever it is that needs room. In a capturing stream both become nodes of the
 * graph. What can go wrong: a full card, also after waiting for pending frees.
 */
#include <stdlib.h>

#include "blocks.h"
#include "capture.h"
#include "context.h"
#include "graph.h"
#include "pool.h"
#include "sim_impl.h"
#include "visible.h"
#include "vmm.h"

struct chunk {
	struct chunk *next;
	struct sim_space space;
	uint64_t start, size;
	uint64_t used; /* by live blocks and pending frees */
};

/* Room that is free as soon as the stream has come that far. */
struct pending {
	struct pending *next, *previous;
	struct sim_pool *pool; /* NULL: the pool is gone */
	struct sim_stream *stream;
	uint64_t start, size;  /* 0 bytes: reused meanwhile */
};

/* ---- chunks, under the memory mutex ----------------------------------------------------------------------------- */

static struct chunk *chunk_at(struct sim_pool *pool, uint64_t address)
{
	struct chunk *chunk = pool->chunks;

	while (chunk && address - chunk->start >= chunk->size)
		chunk = chunk->next;
	return chunk;
}

static CUresult chunk_take(const struct sim_pool *pool, uint64_t size, uint64_t *start)
{
	if (pool->device >= 0)
		return sim_granules_take(pool->device, size, false, false, start);
	return sim_host_take(size, start) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static void chunk_give(const struct sim_pool *pool, uint64_t start, uint64_t size)
{
	if (pool->device >= 0)
		sim_granules_give(pool->device, start, size, false);
	else
		sim_host_give(start, size);
}

static void return_chunk(struct sim_pool *pool, struct chunk **link)
{
	struct chunk *chunk = *link;

	*link = chunk->next;
	sim_space_cut(&chunk->space, chunk->start, chunk->size);
	__atomic_store_n(&pool->reserved, pool->reserved - chunk->size, __ATOMIC_RELEASE);
	chunk_give(pool, chunk->start, chunk->size);
	free(chunk);
}

/* Returns free chunks while more than `above` bytes are reserved and at least `keep` remain. */
static void trim(struct sim_pool *pool, uint64_t above, uint64_t keep)
{
	for (struct chunk **link = &pool->chunks; *link && pool->reserved > above;) {
		if ((*link)->used == 0 && pool->reserved - (*link)->size >= keep)
			return_chunk(pool, link);
		else
			link = &(*link)->next;
	}
}

static CUresult grow(struct sim_pool *pool, uint64_t size)
{
	int device = pool->device >= 0 ? pool->device : sim_physical(0);
	uint64_t most = pool->props.maxSize, bytes = sim_round_up(size, sim_machine->model[device].pool_granule);

	if (most && bytes > sim_round_up(most, sim_machine->model[device].pool_granule) - pool->reserved)
		return CUDA_ERROR_OUT_OF_MEMORY;
	struct chunk *chunk = calloc(1, sizeof *chunk);
	if (!chunk)
		return CUDA_ERROR_OUT_OF_MEMORY;
	chunk->size = bytes;
	CUresult result = chunk_take(pool, chunk->size, &chunk->start);
	if (result != CUDA_SUCCESS) {
		free(chunk);
		return result;
	}
	if (!sim_space_give(&chunk->space, chunk->start, chunk->size)) {
		chunk_give(pool, chunk->start, chunk->size);
		free(chunk);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	chunk->next = pool->chunks;
	pool->chunks = chunk;
	__atomic_store_n(&pool->reserved, pool->reserved + chunk->size, __ATOMIC_RELEASE);
	if (pool->reserved > pool->reserved_high)
		pool->reserved_high = pool->reserved;
	return CUDA_SUCCESS;
}

static bool take_from_chunks(struct sim_pool *pool, uint64_t size, uint64_t *start)
{
	for (struct chunk *chunk = pool->chunks; chunk; chunk = chunk->next) {
		if (sim_space_take(&chunk->space, size, start)) {
			chunk->used += size;
			pool->used += size;
			if (pool->used > pool->used_high)
				pool->used_high = pool->used;
			return true;
		}
	}
	return false;
}

static void give_to_chunk(struct sim_pool *pool, uint64_t start, uint64_t size)
{
	struct chunk *chunk = chunk_at(pool, start);

	if (!chunk)
		return;
	sim_space_give(&chunk->space, start, size);
	chunk->used -= size;
	pool->used -= size;
	if (pool->destroyed && !pool->used) {
		trim(pool, 0, 0);
		sim_pool_gone(pool);
	}
}

static bool take_from_pending(struct sim_pool *pool, struct sim_stream *stream, uint64_t size, uint64_t *start)
{
	for (struct pending *pending = pool->pending; pending; pending = pending->next) {
		if (pending->stream == stream && pending->size >= size) {
			*start = pending->start;
			pending->start += size;
			pending->size -= size;
			return true;
		}
	}
	return false;
}

static CUresult take(struct sim_pool *pool, struct sim_stream *stream, uint64_t size, uint64_t *start)
{
	if (take_from_pending(pool, stream, size, start) || take_from_chunks(pool, size, start))
		return CUDA_SUCCESS;
	CUresult result = grow(pool, size);
	if (result == CUDA_SUCCESS && !take_from_chunks(pool, size, start))
		result = CUDA_ERROR_OUT_OF_MEMORY;
	return result;
}

void sim_pool_release(struct sim_block *block)
{
	if (block->pool)
		give_to_chunk(block->pool, block->range.start, block->padded);
	free(block);
}

CUmemoryPool sim_pool_handle(const struct sim_block *block)
{
	return (CUmemoryPool)block->pool;
}

bool sim_pool_chunk(struct sim_pool *pool, uint64_t address, uint64_t *start, uint64_t *bytes)
{
	struct chunk *chunk = chunk_at(pool, address);

	if (chunk) {
		*start = chunk->start;
		*bytes = chunk->size;
	}
	return chunk;
}

unsigned sim_pool_handle_types(const struct sim_block *block)
{
	return block->pool ? block->pool->props.handleTypes : 0;
}

bool sim_pool_is_managed(const struct sim_block *block)
{
	return block->kind == SIM_BLOCK_POOL && block->pool && block->pool->managed;
}

bool sim_pool_on_host(const struct sim_block *block)
{
	return block->kind == SIM_BLOCK_POOL && block->pool && block->pool->device < 0;
}

/* ---- what gives way ---------------------------------------------------------------------------------------------- */

void sim_pool_trim(struct sim_pool *pool, uint64_t keep)
{
	pthread_mutex_lock(&sim_memory_mutex);
	trim(pool, keep, keep); /* as documented, at least so much remains */
	pthread_mutex_unlock(&sim_memory_mutex);
}

int sim_account_or_trim(int device, int64_t bytes, bool overhead)
{
	int result = sim_account(device, bytes, overhead);

	if (result == 0)
		return 0;
	bool any = sim_shared_poll();
	/* The threshold is a hint: a full card takes what is unused, of every pool (also for grow()). */
	for (struct sim_pool *pool = sim_pools; pool; pool = pool->next) {
		if (pool->device == device && pool->reserved) {
			trim(pool, 0, 0);
			any = true;
		}
	}
	return any ? sim_account(device, bytes, overhead) : result;
}

void sim_pools_synchronized(int device)
{
	if (!__atomic_load_n(&sim_pools, __ATOMIC_ACQUIRE))
		return;
	pthread_mutex_lock(&sim_memory_mutex);
	for (struct sim_pool *pool = sim_pools; pool; pool = pool->next) {
		if ((pool->device == device || pool->device < 0) && pool->reserved > pool->threshold)
			trim(pool, pool->threshold, pool->threshold);
	}
	pthread_mutex_unlock(&sim_memory_mutex);
}

/* The room of frees that are pending is free now; whoever runs them later finds no pool. */
static void drop_pending(struct sim_pool *pool)
{
	for (struct pending *pending = pool->pending; pending; pending = pending->next) {
		uint64_t size = pending->size;
		pending->pool = NULL;
		pending->size = 0;
		if (size)
			give_to_chunk(pool, pending->start, size);
	}
	pool->pending = NULL;
}

void sim_pool_destroy(struct sim_pool *pool)
{
	pool->destroyed = true;
	if (pool->used)
		return;
	trim(pool, 0, 0);
	drop_pending(pool); /* of rooms that were used again and freed since */
	sim_pool_gone(pool);
}

static void close_pool(struct sim_pool *pool)
{
	bool destroyed = pool->destroyed;
	struct sim_block *block;

	pool->destroyed = false; /* it must outlive this loop */
	drop_pending(pool);
	for (struct chunk *chunk = pool->chunks; chunk; chunk = chunk->next) {
		while ((block = sim_block_within(chunk->start, chunk->size))) {
			sim_block_remove(block);
			sim_pool_release(block);
		}
	}
	trim(pool, 0, 0);
	if (destroyed)
		sim_pool_gone(pool);
}

void sim_pools_close(int device)
{
	struct sim_pool *next;

	pthread_mutex_lock(&sim_memory_mutex);
	for (struct sim_pool *pool = sim_pools; pool; pool = next) {
		next = pool->next;
		if (pool->device == device)
			close_pool(pool);
	}
	sim_graph_memory_close(device);
	pthread_mutex_unlock(&sim_memory_mutex);
}

/* ---- allocation ------------------------------------------------------------------------------------------------- */

static CUresult allocate(struct sim_pool *pool, struct sim_stream *stream, size_t size, CUdeviceptr *out,
                         bool *waitable)
{
	uint64_t start, padded = sim_round_up(size, SIM_SMALL_ALIGN);

	pthread_mutex_lock(&sim_memory_mutex);
	CUresult result = take(pool, stream, padded, &start);
	if (result == CUDA_SUCCESS) {
		int device = pool->device >= 0 ? pool->device : sim_physical(0);
		struct sim_block *block = sim_block_add(SIM_BLOCK_POOL, device, NULL, start, size);
		if (block) {
			block->padded = padded;
			block->pool = pool;
			*out = start;
		} else {
			give_to_chunk(pool, start, padded);
			result = CUDA_ERROR_OUT_OF_MEMORY;
		}
	}
	*waitable = pool->pending != NULL;
	pthread_mutex_unlock(&sim_memory_mutex);
	return result;
}

static CUresult allocate_async(struct sim_pool *pool, CUstream handle, size_t size, CUdeviceptr *out)
{
	CUresult result = CUDA_SUCCESS;
	bool waitable;

	struct sim_stream *stream = sim_stream_of(handle, &result);
	if (!stream)
		return result;
	if (!out || !size)
		return CUDA_ERROR_INVALID_VALUE;
	if (sim_stream_capturing(stream))
		return sim_capture_alloc(
		        stream, sim_ordinal(pool && pool->device >= 0 ? pool->device : sim_stream_device(stream)), size,
		        out);
	result = sim_capture_forbids(stream);
	if (result != CUDA_SUCCESS)
		return result;
	if (!pool)
		pool = sim_current_pool(sim_stream_device(stream));
	if (pool->device >= 0 && size > sim_machine->model[pool->device].memory)
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = allocate(pool, stream, size, out, &waitable);
	if (result == CUDA_ERROR_OUT_OF_MEMORY && waitable) {
		sim_context_wait(sim_stream_context(stream)); /* what is being freed may suffice */
		result = allocate(pool, stream, size, out, &waitable);
	}
	return result;
}

CUresult sim_cuMemAllocAsync(CUdeviceptr *out, size_t size, CUstream stream)
{
	return allocate_async(NULL, stream, size, out);
}

CUresult sim_cuMemAllocFromPoolAsync(CUdeviceptr *out, size_t size, CUmemoryPool pool, CUstream stream)
{
	if (!sim_initialized())
		return CUDA_ERROR_NOT_INITIALIZED;
	struct sim_pool *from = sim_pool_of(pool);
	return from && !from->imported ? allocate_async(from, stream, size, out) : CUDA_ERROR_INVALID_VALUE;
}

/* ---- freeing ---------------------------------------------------------------------------------------------------- */

static void run_pending(void *arg)
{
	struct pending *pending = *(struct pending **)arg;

	pthread_mutex_lock(&sim_memory_mutex);
	if (pending->pool) {
		if (pending->previous)
			pending->previous->next = pending->next;
		else
			pending->pool->pending = pending->next;
		if (pending->next)
			pending->next->previous = pending->previous;
		if (pending->size) /* last: a pool that was destroyed may go with it */
			give_to_chunk(pending->pool, pending->start, pending->size);
	}
	pthread_mutex_unlock(&sim_memory_mutex);
	free(pending);
}

static void run_release(void *arg)
{
	pthread_mutex_lock(&sim_memory_mutex);
	sim_block_release(*(struct sim_block **)arg);
	pthread_mutex_unlock(&sim_memory_mutex);
}

/* Under the memory mutex: the block becomes a pending free; NULL: no memory. */
static struct pending *make_pending(struct sim_block *block, struct sim_stream *stream)
{
	struct pending *pending = calloc(1, sizeof *pending);

	if (!pending)
		return NULL;
	pending->pool = block->pool;
	pending->stream = stream;
	pending->start = block->range.start;
	pending->size = block->padded;
	pending->next = block->pool->pending;
	if (pending->next)
		pending->next->previous = pending;
	block->pool->pending = pending;
	free(block);
	return pending;
}

static void set_argument(struct sim_work *work, void (*run)(void *), void *pointer)
{
	work->run = run;
	work->arg_size = sizeof pointer;
	__builtin_memcpy(work->arg, &pointer, sizeof pointer);
}

/* Takes the block out of the live ones and says what the stream has to do; false: not a block that may be freed. */
static bool begin_free(CUdeviceptr p, struct sim_stream *stream, struct sim_work *work)
{
	struct sim_block *block = sim_block_from(p);
	struct pending *pending = NULL;

	if (!block || (block->kind != SIM_BLOCK_POOL && block->kind != SIM_BLOCK_PLAIN && !block->import))
		return false;
	sim_block_remove(block);
	if (block->kind == SIM_BLOCK_POOL)
		pending = make_pending(block, stream);
	if (pending)
		set_argument(work, run_pending, pending);
	else
		set_argument(work, run_release, block);
	return true;
}

CUresult sim_cuMemFreeAsync(CUdeviceptr p, CUstream handle)
{
	struct sim_work work = {0};
	CUresult result = CUDA_SUCCESS;

	struct sim_stream *stream = sim_stream_of(handle, &result);
	if (!stream)
		return result;
	if (sim_stream_capturing(stream))
		return sim_capture_free(stream, p);
	result = sim_capture_forbids(stream);
	if (result != CUDA_SUCCESS || sim_graph_memory_free(p, stream, &result))
		return result;
	pthread_mutex_lock(&sim_memory_mutex);
	bool found = begin_free(p, stream, &work);
	pthread_mutex_unlock(&sim_memory_mutex);
	if (!found)
		return CUDA_ERROR_INVALID_VALUE;
	result = sim_enqueue(stream, &work);
	if (result != CUDA_SUCCESS)
		work.run(work.arg); /* the stream will never come to it */
	return result;
}
