/* pool.h: what pool.c, pool_table.c and pool_attributes.c share. Under the memory mutex where not said otherwise. */
#ifndef PARTAGE_SIM_POOL_H
#define PARTAGE_SIM_POOL_H

#include "sim.h"

struct chunk;
struct pending;

struct sim_pool {
	uint32_t tag;
	int device; /* physical; -1: the memory is the host's, and no card counts it */
	bool own; /* cuMemPoolCreate */
	bool destroyed; /* by the program; lives on until its last block is free */
	bool managed;
	bool imported; /* another process's: nothing is allocated from it */
	struct sim_pool *next; /* of all pools of the process */
	/* pool_share.c's */
	uint64_t share_id; /* 0: never exported */
	uint64_t share_page; /* in the arena's file */
	int import_fd;
	CUmemPoolProps props;
	struct chunk *chunks;
	struct pending *pending;
	uint64_t reserved, reserved_high; /* bytes of chunks */
	uint64_t used, used_high;         /* bytes of blocks, also of those whose free is pending */
	uint64_t threshold;               /* bytes that it keeps at a synchronisation */
	int reuse[3]; /* CU_MEMPOOL_ATTR_REUSE_*, kept as set: the simulator reuses within a stream only */
	uint8_t access[SIM_DEVICES]; /* CUmemAccess_flags of other devices */
};

/* ---- pool_table.c: which pools there are ------------------------------------------------------------------------- */

extern struct sim_pool *sim_pools;
struct sim_pool *sim_pool_of(CUmemoryPool handle); /* a live one, or NULL; without the mutex */
struct sim_pool *sim_default_pool(int device); /* without the mutex */
struct sim_pool *sim_current_pool(int device); /* what cuMemAllocAsync takes from; without the mutex */
void sim_pool_add(struct sim_pool *pool); /* a new one becomes a handle; without the mutex */
void sim_pool_gone(struct sim_pool *pool); /* destroyed, and its last block is free */

/* ---- pool.c ------------------------------------------------------------------------------------------------------ */

void sim_pool_trim(struct sim_pool *pool, uint64_t keep); /* without the mutex */
bool sim_pool_chunk(struct sim_pool *pool, uint64_t address, uint64_t *start, uint64_t *bytes); /* around it */
void sim_pool_destroy(struct sim_pool *pool); /* no longer a handle; gone at once where nothing of it lives */

#endif
