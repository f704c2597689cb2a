/* blocks.h: how the memory files of the simulated driver share what is allocated.
 *
 * A *block* is what a program may name by a pointer: device memory, pinned or registered host memory, a mapped part
 * of an allocation handle. All live blocks of the process stand in one tree by address, but for the small ones. A *range* is a node of such
 * trees; a *space* is address room with its free ranges. A *granule* is what the device's memory is counted by
 * (model.granule): blocks of that size or more have granules of their own, smaller ones are packed, per context, into
 * shared granules.
 *
 * One mutex guards all of it. It is never held while work is queued or waited for; the machine's locks are taken
 * inside.
 */
#ifndef PARTAGE_SIM_BLOCKS_H
#define PARTAGE_SIM_BLOCKS_H

#include <pthread.h>

#include "sim.h"

#define SIM_SMALL_ALIGN UINT64_C(512)

extern pthread_mutex_t sim_memory_mutex;

/* ---- memory_ranges.c: trees of ranges, ordered by address, each step O(log n) ----------------------------------- */

struct sim_range {
	struct sim_range *left, *right;
	uint64_t start, size;
	uint64_t largest; /* of the sizes in this subtree */
	uint32_t priority;
};

void sim_range_insert(struct sim_range **root, struct sim_range *range);
void sim_range_remove(struct sim_range **root, struct sim_range *range);
struct sim_range *sim_range_floor(struct sim_range *root, uint64_t address); /* last that starts at or before it */
struct sim_range *sim_range_above(struct sim_range *root, uint64_t address); /* first that starts after it */
struct sim_range *sim_range_fit(struct sim_range *root, uint64_t size);      /* first that is large enough */

struct sim_space {
	struct sim_range *free;
};

bool sim_space_take(struct sim_space *space, uint64_t size, uint64_t *start); /* false: no room */
bool sim_space_give(struct sim_space *space, uint64_t start, uint64_t size);  /* false: no memory for the node */
void sim_space_cut(struct sim_space *space, uint64_t start, uint64_t size);   /* takes away a part that is all free */

/* ---- memory_arena.c: address room of device and host, granules -------------------------------------------------- */

/* Device memory in whole granules, zeroed, counted; low: below 4 GiB; overhead: counted as contexts and modules are. */
CUresult sim_granules_take(int device, uint64_t bytes, bool low, bool overhead, uint64_t *start);
void sim_granules_give(int device, uint64_t start, uint64_t bytes, bool overhead);
struct sim_granule;
struct sim_block;
/* Where the granule at this address says what small blocks it holds (NULL: none); NULL: not in a device's arena. */
struct sim_granule **sim_shared_granule(uint64_t address);
uint64_t sim_next_granule(uint64_t address); /* the first that begins after this address, in the same arena; 0: none */
/* Room for device memory that is not there yet, so not counted either; what comes back loses its pages. */
bool sim_room_take(int device, uint64_t bytes, uint64_t *start);
void sim_room_give(int device, uint64_t start, uint64_t bytes);
void sim_room_clear(int device, uint64_t start, uint64_t bytes); /* its pages go, and it stays taken */
bool sim_lies_in_file(const struct sim_block *block); /* its pages go with MADV_REMOVE, not MADV_DONTNEED */
bool sim_host_take(uint64_t bytes, uint64_t *start); /* pages for pinned host memory */
void sim_host_give(uint64_t start, uint64_t bytes);

static inline uint64_t sim_round_up(uint64_t n, uint64_t unit)
{
	return (n + unit - 1) / unit * unit;
}

/* ---- memory_blocks.c: the live blocks --------------------------------------------------------------------------- */

enum sim_block_kind {
	SIM_BLOCK_PLAIN, /* cuMemAlloc, cuMemAllocPitch */
	SIM_BLOCK_MANAGED, /* cuMemAllocManaged */
	SIM_BLOCK_POOL, /* cuMemAllocAsync */
	SIM_BLOCK_GRAPH, /* an allocation node of a graph */
	SIM_BLOCK_DRIVER, /* sim_memory_take() */
	SIM_BLOCK_MAPPED, /* cuMemMap */
	SIM_BLOCK_IPC, /* another process's: cuIpcOpenMemHandle, cuMemPoolImportPointer, external memory */
	SIM_BLOCK_HOST, /* cuMemHostAlloc, cuMemAllocHost */
	SIM_BLOCK_REGISTERED /* cuMemHostRegister */
};

struct sim_block {
	struct sim_range range; /* first; size as the program asked for */
	enum sim_block_kind kind;
	int device; /* physical; of the context, for host memory */
	struct sim_context *context; /* NULL for pools and mappings */
	struct sim_block *next, *previous; /* the context's blocks */
	uint64_t padded; /* bytes really taken */
	uint64_t id; /* CU_POINTER_ATTRIBUTE_BUFFER_ID */
	unsigned flags; /* host flags or attach flags */
	bool small; /* packed in a shared granule */
	bool sync_memops;
	/* managed memory: what cuMemAdvise and cuMemPrefetchAsync said */
	int preferred, prefetched; /* ordinal, CU_DEVICE_CPU or CU_DEVICE_INVALID */
	uint32_t accessed_by; /* bit per ordinal, bit 31: the host */
	bool read_mostly;
	/* pools */
	struct sim_pool *pool;
	/* graphs */
	struct sim_graph_block *graph;
	/* of other processes: one of these */
	struct sim_ipc *ipc;
	struct sim_import *import;
	/* mappings */
	struct sim_allocation *allocation;
	uint64_t offset; /* into the allocation */
	uint8_t access[SIM_DEVICES]; /* CUmemAccess_flags by physical device */
	uint8_t host_access;
};

struct sim_block *sim_block_at(uint64_t address); /* the block around it, NULL: none */
struct sim_block *sim_block_from(uint64_t start); /* the block that starts there */
struct sim_block *sim_block_within(uint64_t start, uint64_t size); /* the first that starts in there */
bool sim_block_overlaps(uint64_t start, uint64_t size);
/* A new live block of a context's list (context may be NULL); NULL: no memory. */
struct sim_block *sim_block_add(enum sim_block_kind kind, int device, struct sim_context *context, uint64_t start,
                                uint64_t size);
void sim_block_remove(struct sim_block *block); /* no longer live; the caller gives its memory back and frees it */
struct sim_block *sim_block_remove_first(struct sim_context *context); /* any of a context's; NULL: there is none */
bool sim_block_is_device(const struct sim_block *block);
bool sim_block_is_host(const struct sim_block *block);
/* Is [p, p+n) inside one live block, or inside adjacent mappings? For these accesses (CUmemAccess_flags) of the
 * device. */
bool sim_blocks_cover(uint64_t p, uint64_t n, int device, bool write);

/* ---- memory.c --------------------------------------------------------------------------------------------------- */

#define SIM_GRANULE_CLASSES 22 /* a granule of 1 GiB has 2^21 units */

struct sim_packing {
	struct sim_granule *granules[SIM_GRANULE_CLASSES]; /* by their longest free run; see memory_small.c */
	bool overhead;
};

struct sim_memory_space {
	struct sim_packing small; /* the program's small blocks */
	struct sim_packing driver; /* sim_memory_take() */
	struct sim_block *blocks; /* all others */
};

void sim_ipc_release(struct sim_ipc *ipc); /* ipc.c; under the mutex */
void sim_block_release(struct sim_block *block); /* under the mutex: removed already; memory back, block freed */

/* ---- memory_small.c ---------------------------------------------------------------------------------------------- */

bool sim_small_take(struct sim_packing *packing, int device, uint64_t size, uint64_t *start); /* false: no room */
void sim_small_give(int device, uint64_t start, uint64_t size);
void sim_small_add(struct sim_granule *granule, struct sim_block *block);
void sim_small_remove(struct sim_granule *granule, const struct sim_block *block);
struct sim_block *sim_small_floor(const struct sim_granule *granule, uint64_t address); /* last at or before it */
struct sim_block *sim_small_from(const struct sim_granule *granule, uint64_t address); /* first at or after it */
struct sim_block *sim_small_any(const struct sim_packing *packing); /* NULL: none is left */

/* ---- pool.c, vmm.c ---------------------------------------------------------------------------------------------- */

/* Frees a block that was removed already; the device has been waited for. Under the mutex. */
void sim_pool_release(struct sim_block *block);
CUmemoryPool sim_pool_handle(const struct sim_block *block);
unsigned sim_pool_handle_types(const struct sim_block *block);
bool sim_pool_is_managed(const struct sim_block *block);
bool sim_pool_on_host(const struct sim_block *block);
/* sim_account(), but before a refusal what the device's pool holds unused goes back to the card. Under the mutex. */
int sim_account_or_trim(int device, int64_t bytes, bool overhead);

unsigned sim_allocation_handle_types(const struct sim_block *block);
CUmemLocationType sim_allocation_location(const struct sim_block *block);

#endif
