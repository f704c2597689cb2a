/* pool.h: what pool.c (what a pool costs, and the calls that change it) and pool_table.c (which pools there are) share. */
#ifndef PARTAGE_SHIM_POOL_H
#define PARTAGE_SHIM_POOL_H

#include "memory.h"
#include "share.h"

#define VGPU_HOLES 16

struct hole {
	CUdeviceptr p; /* 0 = none */
	uint64_t bytes;
	uint64_t stream; /* id, never used again by another stream */
	bool ready; /* the driver has taken the free */
};

struct pool {
	uint32_t lock; /* process-private, never held across a driver call */
	CUmemoryPool handle;
	CUdevice device;
	bool managed;
	bool free_of_charge; /* on the host, or another process's */
	bool imported; /* another process's */
	struct vgpu_share_key key; /* of the share of an imported one */
	/* pool_table.c's, under its lock */
	bool own; /* not a device's default pool */
	bool dead; /* the program has destroyed it */
	uint32_t users;
	struct pool *next;
	/* pool.c's */
	uint64_t charged; /* what the ledger holds for this pool, without the steps of calls under way */
	uint64_t step; /* most by which the pool grows at once, beside the bytes asked for */
	uint64_t steps; /* the sum of those: the ledger holds charged + steps */
	struct vgpu_share *share; /* of an exported pool, once it is */
	uint64_t moved; /* of charged + steps: what the share has, not this process */
	uint64_t kept; /* what it has beside them, of memory that left the pool while contexts were ending */
	uint64_t folds; /* number of changes of `charged`; also read without the lock */
	uint64_t fills; /* number of blocks that the driver has given; also read without the lock */
	uint32_t calls; /* under way */
	uint32_t holding; /* of them: relies on a hole (0 or 1) */
	uint64_t hold_step; /* what that one takes if another's block lands in its hole */
	uint32_t trimming; /* calls that return memory to the card */
	const void *user; /* the thread that uses the pool */
	bool shared; /* there is more than one; also read without the lock */
	bool noted; /* there may be holes; also read without the lock */
	uint32_t next_hole;
	struct hole hole[VGPU_HOLES];
};

/* ---- pool_table.c ------------------------------------------------------------------------------------------------ */

CUmemoryPool vgpu_pool_handle(struct pool *pool); /* NULL: the driver does not say */
/* All of these but the last give a pool that vgpu_pool_leave() must be called with; until then it is not destroyed. */
struct pool *vgpu_pool_first(CUdevice device); /* the pools that cost something on this device; NULL at the end */
struct pool *vgpu_pool_next(struct pool *pool, CUdevice device); /* leaves the one before */
struct pool *vgpu_pool_find(CUmemoryPool handle); /* NULL: not known */
/* What a call takes from: this pool, or with NULL the device's current one. */
CUresult vgpu_pool_source(CUdevice device, CUmemoryPool handle, struct pool **pool);
struct pool *vgpu_pool_enter(const struct vgpu_block *block);
void vgpu_pool_leave(struct pool *pool); /* NULL is nothing */
CUcontext vgpu_pool_mark(struct pool *pool); /* what a block's `context` says of its pool */
bool vgpu_pool_adopt(CUmemoryPool handle,
                     const struct vgpu_share_key *key); /* another process's; false: no host memory */

/* ---- pool_share.c ------------------------------------------------------------------------------------------------ */

bool vgpu_pool_contexts_end(void); /* right now, in some thread */
void vgpu_pool_unpin_all(struct pool *pool); /* its blocks are gone */

/* ---- pool.c ------------------------------------------------------------------------------------------------------ */

void vgpu_pool_end(struct pool *pool); /* the driver has destroyed it: gives its charge back */
struct vgpu_share *vgpu_pool_shared(struct pool *pool); /* its share, made where there is none; NULL: cannot be */
void vgpu_pool_lift(struct pool *pool); /* all that it has is the share's, whoever dies */
uint64_t vgpu_pool_most(struct pool *pool); /* the most that it may have reserved */

#endif
