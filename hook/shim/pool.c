/* pool.c: stream-ordered memory: cuMemAllocAsync, cuMemAllocFromPoolAsync, cuMemFreeAsync, cuMemPoolTrimTo.
 *
 * Charged is each pool as a whole, by what it has reserved (RESERVED_MEM_CURRENT), since that is what the card has
 * lost. Which pools there are is pool_table.c's. Pools on the host cost nothing; managed ones cost on every device that
 * may use managed memory (managed.c). Inside a stream capture an allocation is a node of a graph, which is graph_hooks.c's.
 *
 * The pool may grow by one step during any call, so a step is reserved before the call and afterwards folded into what
 * the pool really has. Several threads do this at once, without a lock across their driver calls, hence the rule of
 * fold(): what was read from the driver counts only if nobody else folded between reading and use. Whatever the pool
 * grew since then belongs to calls that still hold their own step, so charge + steps >= pool at every moment.
 *
 * A call needs no step if the program has freed a block of that size on the same stream (a *hole*, which the driver
 * uses again), no other call is under way and the hole cannot leave the pool unseen: one thread alone uses the pool, or
 * its release threshold keeps everything. That is the quick way where one thread works, which then changes no shared
 * word, and for others the way on when the pool is full. Where there is no hole either, the unused part of the pool is
 * returned to the card (trim) and the step is tried again.
 * What can go wrong: the driver grows by more than a step, or a thread that never allocates synchronises at the wrong
 * moment. Then the block is freed again, what it took is charged meanwhile, and the step is learned.
 */
#include "pool.h"
#include "graphs.h"
#include "hooks.h"
#include "memory.h"

static _Thread_local char this_thread; /* its address tells threads apart */

/* ---- the charge of the pool -------------------------------------------------------------------------------------- */

static bool read_reserved(struct pool *pool, uint64_t *bytes)
{
	cuuint64_t value = 0;
	CUmemoryPool handle = vgpu_pool_handle(pool);
	if (handle == NULL ||
	    real_cuMemPoolGetAttribute(handle, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &value) != CUDA_SUCCESS)
		return false;
	*bytes = value;
	return true;
}

/* What a pool costs is what managed memory costs, or one device's. */
static struct vgpu_block cost_of(const struct pool *pool)
{
	return (struct vgpu_block){.device = pool->device, .kind = pool->managed ? VGPU_MANAGED : VGPU_ASYNC};
}

static void give_back(const struct pool *pool, uint64_t bytes)
{
	struct vgpu_block b = cost_of(pool);
	vgpu_give_back_for(&b, bytes);
}

/* Bytes that were taken without having been reserved; false: they do not fit, and are charged past the limit. */
static bool charge_excess(const struct pool *pool, uint64_t bytes)
{
	if (pool->managed) {
		vgpu_managed_charge(bytes);
		return false;
	}
	if (vgpu_reserve(pool->device, bytes) == CUDA_SUCCESS)
		return true;
	vgpu_charge(pool->device, bytes);
	return false;
}

/* With the lock held. */
static void forget_holes(struct pool *pool)
{
	__atomic_store_n(&pool->noted, false, __ATOMIC_RELAXED);
	for (unsigned i = 0; i < VGPU_HOLES; i++)
		pool->hole[i].p = 0;
}

/* Bytes of which the pool has more than all calls under way could have taken; with the lock held. */
static uint64_t excess_of(const struct pool *pool, uint64_t reserved)
{
	uint64_t most = pool->charged + pool->steps;
	return reserved > most ? reserved - most : 0;
}

struct folded {
	uint64_t back; /* bytes to give back */
	uint64_t excess; /* bytes that were taken without having been reserved */
};

/* With the lock held: replaces charge + step by what was read, if that still counts (`quiet`). */
static struct folded fold_locked(struct pool *pool, uint64_t step, bool held, bool quiet, uint64_t reserved)
{
	struct folded f = {0};
	uint64_t all = pool->charged + step, target = all;
	if (quiet) {
		f.excess = excess_of(pool, reserved);
		if (pool->holding == 0 || held) /* else the one that holds may have to live on our step */
			target = reserved < all ? reserved : all;
	}
	if (target < pool->charged) /* memory left the pool: no hole can be relied on */
		forget_holes(pool);
	f.back = all - target;
	__atomic_store_n(&pool->charged, target + f.excess, __ATOMIC_RELAXED);
	pool->steps -= step;
	__atomic_store_n(&pool->folds, pool->folds + 1, __ATOMIC_RELEASE);
	return f;
}

/* With the lock held: what has left the pool leaves its share, too. Nobody holds it: a block that others hold is either not
 * free, and so counts, or was charged when it was freed (pool_share.c); but where contexts end right now, blocks may have
 * gone with them. Bytes that were the share's. */
static uint64_t lower_share(struct pool *pool)
{
	uint64_t all = pool->charged + pool->steps, less = pool->moved > all ? pool->moved - all : 0;
	uint64_t kept = pool->kept + less;
	pool->moved -= less;
	if (kept != 0 && !vgpu_pool_contexts_end()) {
		vgpu_share_lower(pool->share, pool->device, kept);
		kept = 0;
	}
	__atomic_store_n(&pool->kept, kept, __ATOMIC_RELAXED); /* also read without the lock */
	return less;
}

/* A call of an allocation. */
struct call {
	uint64_t step; /* reserved for it */
	bool held; /* it relies on a hole */
};

/* With the lock held: the driver has given [p, p + bytes), holes under it are used up. */
static void fill_holes(struct pool *pool, CUdeviceptr p, uint64_t bytes)
{
	__atomic_store_n(&pool->fills, pool->fills + 1, __ATOMIC_RELEASE);
	for (unsigned i = 0; i < VGPU_HOLES; i++) {
		struct hole *h = &pool->hole[i];
		if (h->p != 0 && h->p < p + bytes && p < h->p + h->bytes)
			h->p = 0;
	}
}

/* After a call that gave [p, p + bytes) (p = 0: nothing), or for its own sake (no call): folds the step and what has
 * happened since into the charge. */
static struct folded fold(struct pool *pool, const struct call *call, CUdeviceptr p, uint64_t bytes)
{
	struct folded f;
	for (int attempt = 0;; attempt++) {
		uint64_t before = __atomic_load_n(&pool->folds, __ATOMIC_ACQUIRE), reserved = 0;
		bool known = read_reserved(pool, &reserved);
		vgpu_lock(&pool->lock);
		if (p != 0)
			fill_holes(pool, p, bytes);
		p = 0;
		bool quiet = known && pool->folds == before;
		if (quiet || !known || attempt == 8) { /* else too much stays charged until a later reading */
			f = fold_locked(pool, call ? call->step : 0, call && call->held, quiet, reserved);
			pool->calls -= call != NULL;
			pool->holding -= call && call->held;
			f.back -= lower_share(pool);
			vgpu_unlock(&pool->lock);
			break;
		}
		vgpu_unlock(&pool->lock);
	}
	if (f.back != 0)
		give_back(pool, f.back);
	if (f.excess != 0 && charge_excess(pool, f.excess))
		f.excess = 0;
	return f;
}

static bool charges(const struct pool *pool)
{
	return __atomic_load_n(&pool->charged, __ATOMIC_RELAXED) != 0 ||
	       __atomic_load_n(&pool->kept, __ATOMIC_RELAXED) != 0;
}

bool vgpu_pool_reconcile(CUdevice device)
{
	bool any = vgpu_graph_reconcile(device); /* the driver's other pool */
	for (struct pool *pool = vgpu_pool_first(device); pool != NULL; pool = vgpu_pool_next(pool, device))
		if (charges(pool) && fold(pool, NULL, 0, 0).back != 0)
			any = true;
	return any;
}

void vgpu_pool_end(struct pool *pool)
{
	vgpu_pool_unpin_all(pool);
	vgpu_lock(&pool->lock);
	uint64_t charged = pool->charged;
	struct vgpu_share *share = pool->share;
	__atomic_store_n(&pool->charged, 0, __ATOMIC_RELAXED);
	charged -= lower_share(pool);
	pool->share = NULL;
	vgpu_unlock(&pool->lock);
	if (charged != 0)
		give_back(pool, charged);
	vgpu_share_leave(share);
}

struct vgpu_share *vgpu_pool_shared(struct pool *pool)
{
	vgpu_lock(&pool->lock);
	struct vgpu_share *share = pool->share, *other = NULL;
	vgpu_unlock(&pool->lock);
	if (share != NULL)
		return share;
	struct vgpu_share_key key = vgpu_share_new_key();
	share = vgpu_share_make(pool->device, 0, &key);
	vgpu_lock(&pool->lock);
	if (pool->share != NULL) { /* another thread was first */
		other = share;
		share = pool->share;
	}
	pool->share = share;
	vgpu_unlock(&pool->lock);
	vgpu_share_leave(other);
	return share;
}

void vgpu_pool_lift(struct pool *pool)
{
	fold(pool, NULL, 0, 0);
	vgpu_lock(&pool->lock);
	uint64_t all = pool->charged + pool->steps;
	if (all > pool->moved)
		vgpu_share_move(pool->share, pool->device, all - pool->moved);
	pool->moved = all;
	vgpu_unlock(&pool->lock);
}

uint64_t vgpu_pool_most(struct pool *pool)
{
	vgpu_lock(&pool->lock);
	uint64_t all = pool->charged + pool->steps;
	vgpu_unlock(&pool->lock);
	return all;
}

/* Returns unused memory to the card, but not under a call that lives on a hole. */
static CUresult trim(struct pool *pool, size_t keep)
{
	vgpu_lock(&pool->lock);
	bool may = pool->holding == 0;
	pool->trimming += may;
	forget_holes(pool);
	vgpu_unlock(&pool->lock);
	if (!may)
		return CUDA_SUCCESS;
	CUstreamCaptureMode before = vgpu_relax();
	CUresult error = real_cuMemPoolTrimTo(vgpu_pool_handle(pool), keep);
	vgpu_unrelax(before);
	vgpu_lock(&pool->lock);
	pool->trimming--;
	forget_holes(pool);
	vgpu_unlock(&pool->lock);
	return error;
}

bool vgpu_pool_yield(CUdevice device)
{
	bool any = false;
	for (struct pool *pool = vgpu_pool_first(device); pool != NULL; pool = vgpu_pool_next(pool, device)) {
		if (!charges(pool) || trim(pool, 0) != CUDA_SUCCESS)
			continue;
		fold(pool, NULL, 0, 0);
		any = true; /* another thread may have seen the loss first */
	}
	return any;
}

/* ---- holes: blocks that the program freed on a stream and the driver will use again there ------------------------ */

static void note_hole(struct pool *pool, const struct vgpu_block *b, uint64_t stream, bool ready)
{
	pool->hole[pool->next_hole++ % VGPU_HOLES] = (struct hole){b->p, b->bytes, stream, ready};
	__atomic_store_n(&pool->noted, true, __ATOMIC_RELAXED);
}

/* A free that is about to be handed to the driver. */
struct leaving {
	bool announced; /* the hole is noted already, not ready */
	uint64_t fills; /* else: how many blocks the driver had given */
};

/* The moment that the driver has the free, another thread may get the address. */
static struct leaving announce_hole(struct pool *pool, const struct vgpu_block *b, uint64_t stream)
{
	struct leaving l = {.announced = __atomic_load_n(&pool->shared, __ATOMIC_RELAXED),
	                    .fills = __atomic_load_n(&pool->fills, __ATOMIC_ACQUIRE)};
	if (!l.announced)
		return l;
	vgpu_lock(&pool->lock);
	note_hole(pool, b, stream, false);
	vgpu_unlock(&pool->lock);
	return l;
}

/* The driver has answered: the hole is one, unless it was filled meanwhile; or the block is still there. */
static void settle_hole(struct pool *pool, const struct vgpu_block *b, uint64_t stream, const struct leaving *l,
                        bool freed)
{
	vgpu_lock(&pool->lock);
	if (!l->announced && freed && pool->fills == l->fills)
		note_hole(pool, b, stream, true);
	for (unsigned i = 0; i < VGPU_HOLES && l->announced; i++) {
		struct hole *h = &pool->hole[i];
		if (h->p == b->p && freed)
			h->ready = true;
		else if (h->p == b->p)
			h->p = 0;
	}
	vgpu_unlock(&pool->lock);
}

/* No synchronisation returns memory to the card. */
static bool keeps_all(struct pool *pool)
{
	cuuint64_t threshold = 0, reserved = 0;
	return read_reserved(pool, &reserved) &&
	       real_cuMemPoolGetAttribute(vgpu_pool_handle(pool), CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold) ==
	               CUDA_SUCCESS &&
	       threshold >= reserved;
}

/* With the lock held: takes a hole for a call that goes on without a step. Only a lone call may: a block of one that is
 * under way could land in the hole. Those that begin later reserve for both. */
static bool take_hole(struct pool *pool, uint64_t bytes, uint64_t stream, uint64_t step, bool keeps)
{
	if (stream == 0 || pool->calls != 1 || pool->trimming != 0 || (pool->shared && !keeps))
		return false;
	for (unsigned i = 0; i < VGPU_HOLES; i++) {
		struct hole *h = &pool->hole[i];
		if (h->p == 0 || !h->ready || h->stream != stream || h->bytes < bytes)
			continue;
		h->p = 0;
		pool->holding++;
		pool->hold_step = step;
		return true;
	}
	return false;
}

/* The pool is full: go on by a hole. */
static bool hold_hole(struct pool *pool, uint64_t bytes, uint64_t stream, uint64_t step)
{
	bool keeps = keeps_all(pool);
	vgpu_lock(&pool->lock);
	bool held = take_hole(pool, bytes, stream, step, keeps);
	vgpu_unlock(&pool->lock);
	return held;
}

/* ---- which stream, which device ---------------------------------------------------------------------------------- */

struct order {
	CUstream stream; /* with the meaning of NULL made explicit */
	CUdevice device;
	uint64_t id; /* 0 = not known */
	bool capturing;
};

static bool is_handle(CUstream stream)
{
	return stream != NULL && stream != CU_STREAM_LEGACY && stream != CU_STREAM_PER_THREAD;
}

/* Drivers before 12.8 cannot tell a stream's device: ask its context. */
static CUresult device_by_context(CUstream stream, CUdevice *device)
{
	CUcontext context, old;
	CUresult error = real_cuStreamGetCtx(stream, &context);
	if (error == CUDA_SUCCESS)
		error = real_cuCtxPushCurrent_v2(context);
	if (error != CUDA_SUCCESS)
		return error;
	error = real_cuCtxGetDevice(device);
	real_cuCtxPopCurrent_v2(&old);
	return error;
}

static CUresult order_of(CUstream stream, bool per_thread, struct order *o)
{
	*o = (struct order){.stream = stream == NULL && per_thread ? CU_STREAM_PER_THREAD : stream};
	CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
	CUresult error = CUDA_SUCCESS;
	if (is_handle(stream)) {
		error = real_cuStreamGetDevice(stream, &o->device);
		if (error == CUDA_ERROR_NOT_FOUND || error == CUDA_ERROR_NOT_SUPPORTED)
			error = device_by_context(stream, &o->device);
	} else {
		o->device = vgpu_current_device(&error);
	}
	if (error != CUDA_SUCCESS)
		return error;
	o->capturing =
	        real_cuStreamIsCapturing(o->stream, &status) == CUDA_SUCCESS && status != CU_STREAM_CAPTURE_STATUS_NONE;
	unsigned long long id = 0;
	if (real_cuStreamGetId(o->stream, &id) == CUDA_SUCCESS)
		o->id = id + 1;
	return CUDA_SUCCESS;
}

/* ---- allocation -------------------------------------------------------------------------------------------------- */

/* What the pool has reserved, and when that was asked. */
struct reading {
	uint64_t folds, reserved;
	bool known;
};

/* Memory that left the pool would go unseen behind a call that makes up for it: look before, where holes are noted. */
static struct reading look(struct pool *pool)
{
	struct reading r = {.folds = __atomic_load_n(&pool->folds, __ATOMIC_ACQUIRE)};
	if (__atomic_load_n(&pool->noted, __ATOMIC_RELAXED))
		r.known = read_reserved(pool, &r.reserved);
	return r;
}

/* Notes a call and its thread and lets it have a hole; false if memory may have left the pool since one was noted.
 * `own`: what the call needs for its block alone. */
static bool begin_call(struct pool *pool, const struct reading *r, uint64_t bytes, uint64_t stream, uint64_t *own,
                       struct call *call)
{
	vgpu_lock(&pool->lock);
	pool->calls++;
	if (pool->user != NULL && pool->user != &this_thread)
		__atomic_store_n(&pool->shared, true, __ATOMIC_RELAXED);
	pool->user = &this_thread;
	*own = vgpu_round_up(bytes, pool->step);
	call->step = *own + (pool->holding != 0 ? pool->hold_step : 0); /* our block may take the other's hole */
	bool holes = pool->noted, still = r->known && r->folds == pool->folds && r->reserved >= pool->charged;
	call->held = holes && still && take_hole(pool, bytes, stream, *own, false);
	if (call->held)
		call->step = 0;
	vgpu_unlock(&pool->lock);
	return !holes || still;
}

/* A full pool first lives on what it has, then everything that is unused gives way. */
static CUresult reserve_step(struct pool *pool, uint64_t bytes, uint64_t stream, uint64_t own, struct call *call)
{
	struct vgpu_block b = cost_of(pool);
	CUresult error =
	        pool->managed ? vgpu_reserve_for(&b, call->step) : vgpu_reserve_or_settle(pool->device, call->step);
	if (error == CUDA_SUCCESS)
		return CUDA_SUCCESS;
	call->held = hold_hole(pool, bytes, stream, own);
	if (call->held) {
		call->step = 0;
		return CUDA_SUCCESS;
	}
	return vgpu_reserve_for(&b, call->step);
}

static CUresult begin(struct pool *pool, uint64_t bytes, uint64_t stream, struct call *call)
{
	struct reading r = look(pool);
	uint64_t own;
	if (!begin_call(pool, &r, bytes, stream, &own, call))
		fold(pool, NULL, 0, 0);
	if (call->held)
		return CUDA_SUCCESS;
	CUresult error = reserve_step(pool, bytes, stream, own, call);
	vgpu_lock(&pool->lock);
	if (error == CUDA_SUCCESS)
		pool->steps += call->step;
	else
		pool->calls--;
	vgpu_unlock(&pool->lock);
	return error;
}

/* The pool grew past its step, and that does not fit: the block goes back. */
static CUresult undo(struct pool *pool, struct order *o, CUdeviceptr p, uint64_t grown)
{
	real_cuMemFreeAsync(p, o->stream);
	trim(pool, 0);
	vgpu_lock(&pool->lock);
	if (grown > pool->step)
		pool->step = vgpu_round_up(grown, VGPU_GRANULE);
	vgpu_unlock(&pool->lock);
	fold(pool, NULL, 0, 0);
	return CUDA_ERROR_OUT_OF_MEMORY;
}

typedef CUresult alloc_function(CUdeviceptr *, size_t, CUmemoryPool, CUstream);

static CUresult take_from(struct pool *pool, alloc_function *driver, CUdeviceptr *out, size_t bytes, CUmemoryPool from,
                          struct order *o, CUstream stream)
{
	struct call call;
	CUresult error = begin(pool, bytes, o->id, &call);
	if (error != CUDA_SUCCESS)
		return error;
	CUdeviceptr p = 0;
	error = driver(&p, bytes, from, stream);
	struct folded f = fold(pool, &call, error == CUDA_SUCCESS ? p : 0, bytes);
	if (error != CUDA_SUCCESS)
		return error;
	struct vgpu_block b = {.p = p,
	                       .bytes = bytes,
	                       .device = pool->managed ? o->device : pool->device,
	                       .kind = VGPU_ASYNC,
	                       .context = vgpu_pool_mark(pool)};
	if (f.excess != 0)
		return undo(pool, o, p, call.step + f.excess);
	if (vgpu_block_add(&b, 0) < 0)
		return undo(pool, o, p, 0);
	*out = p;
	return CUDA_SUCCESS;
}

static CUresult allocate(alloc_function *driver, CUdeviceptr *out, size_t bytes, CUmemoryPool from, CUstream stream,
                         bool per_thread)
{
	struct order o;
	struct pool *pool = NULL;
	CUresult error = order_of(stream, per_thread, &o);
	if (error == CUDA_SUCCESS)
		error = vgpu_pool_source(o.device, from, &pool); /* the pool's device counts, not the stream's */
	if (error != CUDA_SUCCESS)
		return error;
	if (o.capturing) { /* a node: it takes its memory when the graph is launched */
		vgpu_graph_allocates();
		error = driver(out, bytes, from, stream);
	} else if (pool->free_of_charge) {
		error = driver(out, bytes, from, stream);
	} else {
		if (pool->managed)
			error = vgpu_managed_join(o.device);
		if (error == CUDA_SUCCESS)
			error = take_from(pool, driver, out, bytes, from, &o, stream);
	}
	vgpu_pool_leave(pool);
	return error;
}

static CUresult from_current(CUdeviceptr *p, size_t bytes, CUmemoryPool pool, CUstream stream)
{
	(void)pool;
	return real_cuMemAllocAsync(p, bytes, stream);
}

static CUresult from_current_ptsz(CUdeviceptr *p, size_t bytes, CUmemoryPool pool, CUstream stream)
{
	(void)pool;
	return real_cuMemAllocAsync_ptsz(p, bytes, stream);
}

CUresult hook_cuMemAllocAsync(CUdeviceptr *dptr, size_t bytesize, CUstream hStream)
{
	if (vgpu_mode() == VGPU_FREE || dptr == NULL || bytesize == 0)
		return real_cuMemAllocAsync(dptr, bytesize, hStream);
	return allocate(from_current, dptr, bytesize, NULL, hStream, false);
}

CUresult hook_cuMemAllocAsync_ptsz(CUdeviceptr *dptr, size_t bytesize, CUstream hStream)
{
	if (vgpu_mode() == VGPU_FREE || dptr == NULL || bytesize == 0)
		return real_cuMemAllocAsync_ptsz(dptr, bytesize, hStream);
	return allocate(from_current_ptsz, dptr, bytesize, NULL, hStream, true);
}

CUresult hook_cuMemAllocFromPoolAsync(CUdeviceptr *dptr, size_t bytesize, CUmemoryPool pool, CUstream hStream)
{
	if (vgpu_mode() == VGPU_FREE || dptr == NULL || bytesize == 0 || pool == NULL)
		return real_cuMemAllocFromPoolAsync(dptr, bytesize, pool, hStream);
	return allocate(real_cuMemAllocFromPoolAsync, dptr, bytesize, pool, hStream, false);
}

CUresult hook_cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *dptr, size_t bytesize, CUmemoryPool pool, CUstream hStream)
{
	if (vgpu_mode() == VGPU_FREE || dptr == NULL || bytesize == 0 || pool == NULL)
		return real_cuMemAllocFromPoolAsync_ptsz(dptr, bytesize, pool, hStream);
	return allocate(real_cuMemAllocFromPoolAsync_ptsz, dptr, bytesize, pool, hStream, true);
}

/* ---- free and trim ----------------------------------------------------------------------------------------------- */

typedef CUresult free_function(CUdeviceptr, CUstream);

static CUresult release(free_function *driver, CUdeviceptr p, CUstream stream, bool per_thread)
{
	struct order o;
	struct vgpu_block b;
	/* Inside a capture this adds a node and frees nothing yet; where there is no such stream the driver says so. */
	if (order_of(stream, per_thread, &o) != CUDA_SUCCESS)
		return driver(p, stream);
	bool known = !o.capturing && vgpu_block_take(p, &b);
	vgpu_pool_unpin(p);
	if (!known)
		return driver(p, stream);
	struct leaving l = {0};
	struct pool *pool = b.kind == VGPU_ASYNC ? vgpu_pool_enter(&b) : NULL;
	if (pool != NULL)
		l = announce_hole(pool, &b, o.id);
	CUresult error = driver(p, stream);
	if (pool != NULL)
		settle_hole(pool, &b, o.id, &l, error == CUDA_SUCCESS);
	vgpu_pool_leave(pool);
	if (error != CUDA_SUCCESS)
		vgpu_block_restore(&b);
	else if (b.kind != VGPU_ASYNC)
		vgpu_defer(&b, o.stream);
	return error;
}

CUresult hook_cuMemFreeAsync(CUdeviceptr dptr, CUstream hStream)
{
	if (vgpu_mode() == VGPU_FREE)
		return real_cuMemFreeAsync(dptr, hStream);
	return release(real_cuMemFreeAsync, dptr, hStream, false);
}

CUresult hook_cuMemFreeAsync_ptsz(CUdeviceptr dptr, CUstream hStream)
{
	if (vgpu_mode() == VGPU_FREE)
		return real_cuMemFreeAsync_ptsz(dptr, hStream);
	return release(real_cuMemFreeAsync_ptsz, dptr, hStream, true);
}

CUresult hook_cuMemPoolTrimTo(CUmemoryPool pool, size_t minBytesToKeep)
{
	struct pool *p = vgpu_mode() == VGPU_FREE ? NULL : vgpu_pool_find(pool);
	if (p == NULL)
		return real_cuMemPoolTrimTo(pool, minBytesToKeep);
	CUresult error = trim(p, minBytesToKeep);
	fold(p, NULL, 0, 0);
	vgpu_pool_leave(p);
	return error;
}
