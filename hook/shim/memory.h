/* memory.h: what the files that charge device memory share (blocks.c, mem.c, pool.c, vmm.c, ctx.c, query.c).
 *
 * Every charge goes the same way: reserve -> driver -> record, or give back. No lock is held across a driver call, so
 * each table is changed twice: a record is *taken* out before the driver frees (the driver may hand the same address to
 * another thread before we come back) and *settled* or *restored* after it has answered.
 */
#ifndef PARTAGE_SHIM_MEMORY_H
#define PARTAGE_SHIM_MEMORY_H

#include "lock.h"
#include "shim.h"

#define VGPU_ORDINALS     64 /* devices of one process that tables of ours have room for */
#define VGPU_POOL_GRANULE (UINT64_C(32) << 20)

static inline uint64_t vgpu_round_up(uint64_t bytes, uint64_t granule)
{
	return bytes > UINT64_MAX - granule ? UINT64_MAX : (bytes + granule - 1) / granule * granule;
}

/* A device that was not granted does not exist; what is no ordinal at all is the driver's business. */
static inline bool vgpu_hidden(CUdevice device)
{
	return device >= 0 && !vgpu_visible(device);
}

/* ctx.c: the driver has no such device. A program that named it is not short of memory: the driver refuses it. */
bool vgpu_no_such_device(CUdevice device);

/* "GPU-01234567-89ab-..." from 16 bytes. */
static inline void vgpu_format_uuid(char out[PTG_UUID_SIZE], const unsigned char bytes[16])
{
	static const char digit[] = "0123456789abcdef";
	char *to = out;
	for (const char *c = "GPU-"; *c != '\0'; c++)
		*to++ = *c;
	for (int i = 0; i < 16; i++) {
		if (i == 4 || i == 6 || i == 8 || i == 10)
			*to++ = '-';
		*to++ = digit[bytes[i] >> 4];
		*to++ = digit[bytes[i] & 15];
	}
	*to = '\0';
}

/* ---- blocks.c ---------------------------------------------------------------------------------------------------- */

/* Drops and additions are ordered by an epoch: a drop that began with vgpu_blocks_epoch() takes what was recorded
 * before it, never what another thread allocates in a context that came back at the same address. */
uint64_t vgpu_blocks_epoch(void);
void vgpu_blocks_drop(CUcontext context, uint64_t epoch);

/* ---- mem.c ------------------------------------------------------------------------------------------------------- */

/* vgpu_reserve(), but before a refusal reads again what our own pools and deferred frees still hold. */
CUresult vgpu_reserve_or_settle(CUdevice device, uint64_t bytes);
/* The same, and what our pools and graphs keep unused gives way too: so does the driver on a full card, whatever the
 * threshold. */
CUresult vgpu_reserve_or_reclaim(CUdevice device, uint64_t bytes);
/* The same for a graph, which would rather use again what graphs keep: only pools give way. */
CUresult vgpu_reserve_for_graph(CUdevice device, uint64_t bytes);
/* The same for what a block of this kind and device costs: of managed memory on every device that may use it. */
CUresult vgpu_reserve_for(const struct vgpu_block *block, uint64_t bytes);
void vgpu_give_back_for(const struct vgpu_block *block, uint64_t bytes);
bool vgpu_reclaim(CUdevice device); /* settles and yields what can; true if that is worth another try */
CUresult vgpu_place(CUdevice *device, CUcontext *context); /* of the calling thread; the driver's own error */

/* The driver refuses a call for its stream alone: nothing else that the call names is to be looked at. */
bool vgpu_stream_refused(CUstream stream);

/* Our own queries must not break a stream capture that this thread has under way: run them between these two. */
CUstreamCaptureMode vgpu_relax(void);
void vgpu_unrelax(CUstreamCaptureMode before);

/* ---- pool.c ------------------------------------------------------------------------------------------------------ */

void vgpu_pool_unpin(CUdeviceptr p); /* pool_share.c: a block is about to be freed, which may have been exported */
/* The same for all of a device, around a call of the driver that may end its last context. */
void vgpu_pool_unpin_begin(void);
void vgpu_pool_unpin_end(CUdevice device);
bool vgpu_pool_reconcile(CUdevice device);              /* true if memory was given back */
bool vgpu_pool_yield(CUdevice device);                  /* trims the pools; true if that is worth another try */
void vgpu_pools_synchronised(void);                     /* the program has synchronised: pools may have shrunk */

/* ---- deferred.c: blocks freed in stream order behind work that has not run --------------------------------------- */

void vgpu_defer(const struct vgpu_block *block, CUstream stream); /* settles at once where the stream is idle */
/* The same for anything: done(what) when the stream has come so far, at the latest when a context is dropped. */
void vgpu_defer_done(CUdevice device, void (*done)(void *what), void *what, CUstream stream);
bool vgpu_deferred_poll(CUdevice device); /* settles what has run; true if memory was given back */
void vgpu_deferred_drop(CUcontext context);

/* ---- descriptor.c: memory that is kept by descriptors of it which were exported ------------------------------------ */

struct vgpu_descriptor; /* those of one allocation; NULL: none */
void vgpu_descriptor_watch(struct vgpu_descriptor **all, int fd); /* one more was just made by the driver */
void vgpu_descriptor_end(struct vgpu_descriptor *descriptors, void (*end)(void *argument),
                         void *argument); /* when all are closed: now, or at a poll */
bool vgpu_descriptors_poll(void); /* true if memory was given back */
void vgpu_descriptors_forked(void);

/* ---- managed.c: managed memory is charged on every device that may use it ----------------------------------------- */

CUresult vgpu_managed_join(CUdevice device); /* from now on this one may; refused where it does not fit there */
CUresult vgpu_managed_reserve(CUdevice device, uint64_t bytes); /* of the current context */
void vgpu_managed_give_back(uint64_t bytes);
void vgpu_managed_charge(uint64_t bytes); /* without a check: may pass the limit */

/* ---- ctx.c and green.c: green contexts keep the primary context alive --------------------------------------------- */

/* Around a call of the driver that retains the primary context: its estimate is charged, or it is refused; `retained`:
 * the driver has. */
CUresult vgpu_primary_begin(CUdevice device);
void vgpu_primary_end(CUdevice device, CUcontext handle, bool retained);
void vgpu_primary_less(CUdevice device, uint64_t epoch); /* the driver has released it once */
void vgpu_context_charged(CUdevice device, uint64_t charged); /* one more context is; for the next */
/* To the policy's present estimate of a context; cheap where it is the same. True if memory was given back. */
bool vgpu_contexts_settle(CUdevice device);
void vgpu_greens_settle(CUdevice device);
void vgpu_greens_drop(CUdevice device); /* the primary context is gone, and they with it */
CUcontext vgpu_plain_context(CUcontext context); /* the primary context for one that a green context was turned into */

/* ---- ctx.c and module.c: variables of libraries lie once in every context ----------------------------------------- */

unsigned vgpu_contexts_created(CUdevice device); /* created ones that live or are being made */
uint64_t vgpu_library_bytes(void); /* of one context */

/* ---- vmm.c: memory of an allocation handle, for others that keep it ------------------------------------------------ */

struct vgpu_allocation;
struct vgpu_allocation *vgpu_allocation_of(CUmemGenericAllocationHandle handle); /* one reference more; NULL: unknown */
void vgpu_allocation_refer(struct vgpu_allocation *allocation);
void vgpu_allocation_drop(struct vgpu_allocation *allocation);
void vgpu_allocation_drop_behind(struct vgpu_allocation *allocation, CUstream stream); /* when it has come so far */

/* ---- map_array.c: sparse and deferred arrays, which keep what is mapped into them -------------------------------- */

struct vgpu_mapped_array;
/* A new one; `whole`: deferred. False without host memory. */
bool vgpu_mapped_array_add(const void *handle, CUcontext context, bool whole);
/* Taken out before the driver destroys it (NULL: none of ours), then gone, or put back. */
struct vgpu_mapped_array *vgpu_mapped_array_take(const void *handle);
void vgpu_mapped_array_end(struct vgpu_mapped_array *array, bool destroyed);
void vgpu_mapped_arrays_drop(CUcontext context, uint64_t epoch);

/* ---- fork: the child starts with empty tables (its parent's blocks are not its own) ------------------------------ */

void vgpu_memory_watch_fork(void); /* idempotent */
void vgpu_blocks_forked(void);
void vgpu_pool_forked(void);
void vgpu_pool_pins_forked(void);
void vgpu_deferred_forked(void);
void vgpu_vmm_forked(void);
void vgpu_multicast_forked(void);
void vgpu_contexts_forked(void);
void vgpu_greens_forked(void);
void vgpu_libraries_forked(void);
void vgpu_managed_forked(void);
void vgpu_arrays_forked(void);
void vgpu_mapped_arrays_forked(void);

#endif
