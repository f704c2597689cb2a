/* memory_blocks.c: the live blocks, in a tree and, where small, in the granules they share: which block is at this
 * address, and may it be touched.
 *
 * Called by every entry point that takes a device or pinned pointer, under the memory mutex (sim_is_device and
 * sim_is_mapped take it themselves). Blocks never overlap. What can go wrong: no memory for a block's own structure;
 * the caller is told.
 */
#include <stdlib.h>

#include "blocks.h"

static struct sim_range *live;
static uint64_t last_id;

/* The granule that small blocks share at this address, NULL: none do. */
static struct sim_granule *shared_at(uint64_t address)
{
	struct sim_granule **place = sim_shared_granule(address);

	return place ? *place : NULL;
}

/* The last block that starts at or before the address; of a shared granule, in that granule. */
static struct sim_block *floor_of(uint64_t address)
{
	struct sim_granule *shared = shared_at(address);

	return shared ? sim_small_floor(shared, address) : (struct sim_block *)sim_range_floor(live, address);
}

struct sim_block *sim_block_at(uint64_t address)
{
	struct sim_block *block = floor_of(address);

	return block && address - block->range.start < block->range.size ? block : NULL;
}

struct sim_block *sim_block_from(uint64_t start)
{
	struct sim_block *block = floor_of(start);

	return block && block->range.start == start ? block : NULL;
}

/* The first small block that starts in there, looking from granule to granule. */
static struct sim_block *small_within(uint64_t start, uint64_t size)
{
	for (uint64_t at = start; at && at - start < size; at = sim_next_granule(at)) {
		struct sim_granule *shared = shared_at(at);
		struct sim_block *block = shared ? sim_small_from(shared, at) : NULL;
		if (block)
			return block->range.start - start < size ? block : NULL;
	}
	return NULL;
}

struct sim_block *sim_block_within(uint64_t start, uint64_t size)
{
	struct sim_block *block = sim_block_from(start), *small;

	if (block)
		return block;
	small = small_within(start, size);
	block = (struct sim_block *)sim_range_above(live, start);
	if (block && block->range.start - start >= size)
		block = NULL;
	return !block || (small && small->range.start < block->range.start) ? small : block;
}

bool sim_block_overlaps(uint64_t start, uint64_t size)
{
	return sim_block_at(start) || sim_block_within(start, size);
}

struct sim_block *sim_block_add(enum sim_block_kind kind, int device, struct sim_context *context, uint64_t start,
                                uint64_t size)
{
	struct sim_block *block = calloc(1, sizeof *block);

	if (!block)
		return NULL;
	block->range.start = start;
	block->range.size = size;
	block->padded = size;
	block->kind = kind;
	block->device = device;
	block->context = context;
	block->id = ++last_id;
	block->preferred = block->prefetched = CU_DEVICE_INVALID;
	struct sim_granule *shared = shared_at(start);
	if (shared) {
		sim_small_add(shared, block);
		return block;
	}
	sim_range_insert(&live, &block->range);
	if (context) {
		block->next = context->memory->blocks;
		if (block->next)
			block->next->previous = block;
		context->memory->blocks = block;
	}
	return block;
}

void sim_block_remove(struct sim_block *block)
{
	struct sim_granule *shared = shared_at(block->range.start);

	if (shared) {
		sim_small_remove(shared, block);
		return;
	}
	sim_range_remove(&live, &block->range);
	if (!block->context)
		return;
	if (block->previous)
		block->previous->next = block->next;
	else
		block->context->memory->blocks = block->next;
	if (block->next)
		block->next->previous = block->previous;
}

struct sim_block *sim_block_remove_first(struct sim_context *context)
{
	struct sim_block *block = context->memory->blocks;

	if (!block)
		block = sim_small_any(&context->memory->small);
	if (!block)
		block = sim_small_any(&context->memory->driver);
	if (block)
		sim_block_remove(block);
	return block;
}

bool sim_block_is_host(const struct sim_block *block)
{
	return block->kind == SIM_BLOCK_HOST || block->kind == SIM_BLOCK_REGISTERED || sim_pool_on_host(block);
}

bool sim_block_is_device(const struct sim_block *block)
{
	return !sim_block_is_host(block);
}

static bool may_touch(const struct sim_block *block, int device, bool write)
{
	unsigned need = write ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_READ;

	return block->kind != SIM_BLOCK_MAPPED || (block->access[device] & need) == need;
}

bool sim_blocks_cover(uint64_t p, uint64_t n, int device, bool write)
{
	struct sim_block *block = sim_block_at(p);

	while (block && may_touch(block, device, write)) {
		uint64_t rest = block->range.size - (p - block->range.start);
		if (n <= rest)
			return true;
		if (block->kind != SIM_BLOCK_MAPPED)
			return false;
		p += rest;
		n -= rest;
		block = sim_block_from(p);
		if (block && block->kind != SIM_BLOCK_MAPPED)
			return false;
	}
	return false;
}

bool sim_is_device(CUdeviceptr p, size_t n)
{
	pthread_mutex_lock(&sim_memory_mutex);
	struct sim_block *block = sim_block_at(p);
	bool is = block && sim_block_is_device(block) && sim_blocks_cover(p, n, block->device, false);
	pthread_mutex_unlock(&sim_memory_mutex);
	return is;
}

bool sim_is_mapped(CUdeviceptr p, size_t n)
{
	pthread_mutex_lock(&sim_memory_mutex);
	struct sim_block *block = sim_block_at(p);
	bool is = block && sim_blocks_cover(p, n, block->device, true);
	pthread_mutex_unlock(&sim_memory_mutex);
	return is;
}
