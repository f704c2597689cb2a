/* memory_small.c: blocks of less than a granule, packed per context into granules that they share.
 *
 * Called by memory.c (take, give) and memory_blocks.c (which block is at this address), under the memory mutex. A
 * *shared granule* is divided into units of SIM_SMALL_ALIGN bytes, with a bit for each that is taken, a bit for each
 * where a block begins, and the block that begins there: what happens to one block touches its own granule only, so
 * that 100,000 live blocks, freed in any order, cost what ten do. A packing keeps its granules in lists by the size of
 * their longest free run. What can go wrong: the card is full, or no memory for a granule's own tables.
 */
#include <stdlib.h>

#include "blocks.h"

#define WORD 64
#define LOOK_AMONG                                                                                                     \
	8 /* granules whose longest run may just not suffice, before those whose run is long enough for sure */

struct sim_granule {
	struct sim_granule *next, *previous; /* in the packing's list of its class */
	struct sim_packing *packing;
	uint64_t start;
	uint32_t units, used;
	uint32_t first;   /* no unit below it is free */
	uint32_t longest; /* no free run is longer */
	uint64_t *taken, *begins;
	struct sim_block *block[]; /* by its first unit */
};

/* 0: full; else 1 + log2 of the longest run. */
static unsigned class_of(uint32_t longest)
{
	return longest ? 32 - (unsigned)__builtin_clz(longest) : 0;
}

static void link_granule(struct sim_granule *granule)
{
	struct sim_granule **list = &granule->packing->granules[class_of(granule->longest)];

	granule->previous = NULL;
	granule->next = *list;
	if (*list)
		(*list)->previous = granule;
	*list = granule;
}

static void unlink_granule(struct sim_granule *granule)
{
	if (granule->previous)
		granule->previous->next = granule->next;
	else
		granule->packing->granules[class_of(granule->longest)] = granule->next;
	if (granule->next)
		granule->next->previous = granule->previous;
}

static void set_longest(struct sim_granule *granule, uint32_t longest)
{
	if (class_of(longest) == class_of(granule->longest)) {
		granule->longest = longest;
		return;
	}
	unlink_granule(granule);
	granule->longest = longest;
	link_granule(granule);
}

/* ---- bits --------------------------------------------------------------------------------------------------------- */

/* The first unit at or after `from` that is taken, or free; `end` where there is none before it. */
static uint32_t next_unit(const uint64_t *bits, uint32_t from, uint32_t end, bool taken)
{
	while (from < end) {
		uint64_t word = (taken ? bits[from / WORD] : ~bits[from / WORD]) >> (from % WORD);
		if (word) {
			from += (uint32_t)__builtin_ctzll(word);
			return from < end ? from : end;
		}
		from = (from / WORD + 1) * WORD;
	}
	return end;
}

/* The last unit at or before `from` whose bit is set; -1: none. */
static int64_t last_unit(const uint64_t *bits, int64_t from)
{
	while (from >= 0) {
		uint64_t word = bits[from / WORD] << (WORD - 1 - from % WORD);
		if (word)
			return from - __builtin_clzll(word);
		from = from / WORD * WORD - 1;
	}
	return -1;
}

static void set_units(uint64_t *bits, uint32_t from, uint32_t n, bool taken)
{
	while (n) {
		uint32_t offset = from % WORD, here = n < WORD - offset ? n : WORD - offset;
		uint64_t mask = (here == WORD ? ~UINT64_C(0) : (UINT64_C(1) << here) - 1) << offset;
		if (taken)
			bits[from / WORD] |= mask;
		else
			bits[from / WORD] &= ~mask;
		from += here;
		n -= here;
	}
}

/* ---- taking and giving ---------------------------------------------------------------------------------------------- */

/* The first run of n free units; false: there is none, and `longest` says so from now on. */
static bool find_run(struct sim_granule *granule, uint32_t n, uint32_t *unit)
{
	uint32_t end, longest = 0;

	granule->first = next_unit(granule->taken, granule->first, granule->units, false);
	for (uint32_t at = granule->first; at < granule->units;) {
		uint32_t most = granule->units - at < n ? granule->units : at + n;
		end = next_unit(granule->taken, at, most, true);
		if (end - at == n) {
			*unit = at;
			return true;
		}
		longest = end - at > longest ? end - at : longest;
		at = next_unit(granule->taken, end, granule->units, false);
	}
	set_longest(granule, longest);
	return false;
}

static struct sim_granule *find_granule(struct sim_packing *packing, uint32_t n, uint32_t *unit)
{
	struct sim_granule *next;
	unsigned class = class_of(n), looks = 0;

	for (struct sim_granule *granule = packing->granules[class]; granule && looks < LOOK_AMONG; granule = next) {
		next = granule->next;
		looks++;
		if (granule->longest >= n && find_run(granule, n, unit))
			return granule;
	}
	for (class++; class < SIM_GRANULE_CLASSES; class++)
		while (packing->granules[class]) /* one that turns out to be too fragmented leaves this list */
			if (find_run(packing->granules[class], n, unit))
				return packing->granules[class];
	return NULL;
}

static struct sim_granule *new_granule(struct sim_packing *packing, int device)
{
	uint64_t size = sim_machine->model[device].granule;
	uint32_t units = (uint32_t)(size / SIM_SMALL_ALIGN), words = (units + WORD - 1) / WORD;
	struct sim_granule *granule = calloc(1, sizeof *granule + units * sizeof granule->block[0] + 2 * words * 8);

	if (!granule)
		return NULL;
	if (sim_granules_take(device, size, false, packing->overhead, &granule->start) != CUDA_SUCCESS) {
		free(granule);
		return NULL;
	}
	struct sim_granule **place = sim_shared_granule(granule->start);
	if (!place) {
		sim_granules_give(device, granule->start, size, packing->overhead);
		free(granule);
		return NULL;
	}
	*place = granule;
	granule->packing = packing;
	granule->units = granule->longest = units;
	granule->taken = (uint64_t *)&granule->block[units];
	granule->begins = granule->taken + words;
	link_granule(granule);
	return granule;
}

bool sim_small_take(struct sim_packing *packing, int device, uint64_t size, uint64_t *start)
{
	uint32_t n = (uint32_t)(size / SIM_SMALL_ALIGN), unit = 0;
	struct sim_granule *granule = find_granule(packing, n, &unit);

	if (!granule && !(granule = new_granule(packing, device)))
		return false;
	set_units(granule->taken, unit, n, true);
	granule->used += n;
	uint32_t rest = granule->units - granule->used;
	if (granule->longest > rest)
		set_longest(granule, rest);
	*start = granule->start + unit * SIM_SMALL_ALIGN;
	return true;
}

void sim_small_give(int device, uint64_t start, uint64_t size)
{
	struct sim_granule **place = sim_shared_granule(start), *granule = *place;
	uint32_t n = (uint32_t)(size / SIM_SMALL_ALIGN), unit = (uint32_t)((start - granule->start) / SIM_SMALL_ALIGN);

	set_units(granule->taken, unit, n, false);
	granule->used -= n;
	if (granule->used == 0) {
		unlink_granule(granule);
		*place = NULL;
		sim_granules_give(device, granule->start, sim_machine->model[device].granule,
		                  granule->packing->overhead);
		free(granule);
		return;
	}
	if (unit < granule->first)
		granule->first = unit;
	int64_t below = last_unit(granule->taken, (int64_t)unit - 1);
	uint32_t run = next_unit(granule->taken, unit + n, granule->units, true) - (uint32_t)(below + 1);
	if (run > granule->longest)
		set_longest(granule, run);
}

/* ---- which block ---------------------------------------------------------------------------------------------------- */

void sim_small_add(struct sim_granule *granule, struct sim_block *block)
{
	uint32_t unit = (uint32_t)((block->range.start - granule->start) / SIM_SMALL_ALIGN);

	granule->block[unit] = block;
	set_units(granule->begins, unit, 1, true);
}

void sim_small_remove(struct sim_granule *granule, const struct sim_block *block)
{
	uint32_t unit = (uint32_t)((block->range.start - granule->start) / SIM_SMALL_ALIGN);

	granule->block[unit] = NULL;
	set_units(granule->begins, unit, 1, false);
}

struct sim_block *sim_small_floor(const struct sim_granule *granule, uint64_t address)
{
	int64_t unit = last_unit(granule->begins, (int64_t)((address - granule->start) / SIM_SMALL_ALIGN));

	return unit < 0 ? NULL : granule->block[unit];
}

struct sim_block *sim_small_from(const struct sim_granule *granule, uint64_t address)
{
	uint64_t into = address > granule->start ? address - granule->start : 0;
	uint32_t unit = next_unit(granule->begins, (uint32_t)((into + SIM_SMALL_ALIGN - 1) / SIM_SMALL_ALIGN),
	                          granule->units, true);

	return unit < granule->units ? granule->block[unit] : NULL;
}

struct sim_block *sim_small_any(const struct sim_packing *packing)
{
	for (unsigned class = 0; class < SIM_GRANULE_CLASSES; class++) {
		for (const struct sim_granule *granule = packing->granules[class]; granule; granule = granule->next) {
			struct sim_block *block = sim_small_from(granule, granule->start);
			if (block)
				return block;
		}
	}
	return NULL;
}
