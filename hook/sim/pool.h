/* pool.h: what pool.c and pool_attributes.c share. */
#ifndef PARTAGE_SIM_POOL_H
#define PARTAGE_SIM_POOL_H

#include "sim.h"

struct chunk;
struct pending;

struct sim_pool {
	uint32_t tag;
	int device;
	struct chunk *chunks;
	struct pending *pending;
	uint64_t reserved, reserved_high; /* bytes of chunks */
	uint64_t used, used_high;         /* bytes of blocks, also of those whose free is pending */
	uint64_t threshold;               /* bytes that it keeps at a synchronisation */
	int reuse[3]; /* CU_MEMPOOL_ATTR_REUSE_*, kept as set: the simulator reuses within a stream only */
	uint8_t access[SIM_DEVICES]; /* CUmemAccess_flags of other devices */
};

struct sim_pool *sim_default_pool(int device);
void sim_pool_trim(struct sim_pool *pool, uint64_t keep);

#endif
