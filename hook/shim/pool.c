/* pool.c: stream-ordered memory: cuMemAllocAsync, cuMemAllocFromPoolAsync, cuMemFreeAsync, cuMemPoolTrimTo.
 *
 * Charged is the device's default pool as a whole, by what it has reserved (RESERVED_MEM_CURRENT), since that is what the
 * card has lost. Other pools, and allocations inside a stream capture, are refused under a limit: their memory would be
 * taken where nobody can refuse it.
 *
 * The pool may grow by one step during any call, so a step is reserved before the call and afterwards folded into what
 * the pool really has. Several threads do this at once, without a lock across their driver calls, hence the rule of
 * fold(): what was read from the driver may lower the charge only if nobody else folded in between. Growth after the
 * reading then belongs to calls that still hold their own step, so charge + steps >= pool at every moment.
 *
 * A full pool may still have room inside. Rather than refuse, the call goes through without a step if the program has
 * freed a block of that size on the same stream (a *hole*, which the driver uses again) and no other call is under way;
 * else the unused part of the pool is returned to the card (trim) and the step is tried again.
 * What can go wrong: the driver grows by more than a step. Then the block is freed again and the step learned.
 */
#include <pthread.h>

#include "hooks.h"
#include "memory.h"

#define HOLES 16

struct hole {
	CUdeviceptr p; /* 0 = none */
	uint64_t bytes;
	uint64_t stream; /* id, never used again by another stream */
	bool ready;      /* the driver has taken the free */
};

struct pool {
	pthread_mutex_t lock; /* process-private, never held across a driver call */
	CUmemoryPool handle;
	uint64_t charged;     /* what the ledger holds for this pool, without the steps of calls under way */
	uint64_t step;        /* most by which the pool grows at once, beside the bytes asked for */
	uint64_t folds;       /* number of changes of `charged` */
	uint32_t calls;       /* under way */
	uint32_t holding;     /* of them: those that rely on a hole */
	uint32_t next_hole;
	struct hole hole[HOLES];
};

static struct pool pools[VGPU_ORDINALS] = {
	[0 ... VGPU_ORDINALS - 1] = { .lock = PTHREAD_MUTEX_INITIALIZER, .step = VGPU_POOL_GRANULE }
};

static CUmemoryPool handle_of(CUdevice device)
{
	struct pool *pool = &pools[device];
	CUmemoryPool handle = __atomic_load_n(&pool->handle, __ATOMIC_RELAXED);
	if (handle == NULL && real_cuDeviceGetDefaultMemPool(&handle, device) == CUDA_SUCCESS)
		__atomic_store_n(&pool->handle, handle, __ATOMIC_RELAXED);
	return handle;
}

static bool valid(CUdevice device)
{
	return device >= 0 && device < VGPU_ORDINALS;
}

/* The device whose default pool this is, -1 if it is another kind of pool. */
static CUdevice device_of(CUmemoryPool pool)
{
	int count = 0;
	if (real_cuDeviceGetCount(&count) != CUDA_SUCCESS)
		return -1;
	for (CUdevice d = 0; d < count && valid(d); d++)
		if (handle_of(d) == pool)
			return d;
	return -1;
}

/* ---- the charge of the pool ---------------------------------------------------------------------------------------------- */

static uint64_t folds_now(struct pool *pool)
{
	pthread_mutex_lock(&pool->lock);
	uint64_t folds = pool->folds;
	pthread_mutex_unlock(&pool->lock);
	return folds;
}

static bool read_reserved(CUdevice device, uint64_t *bytes)
{
	cuuint64_t value = 0;
	CUmemoryPool handle = handle_of(device);
	if (handle == NULL ||
	    real_cuMemPoolGetAttribute(handle, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &value) != CUDA_SUCCESS)
		return false;
	*bytes = value;
	return true;
}

/* Replaces the charge by what the pool has, using up `step` (reserved by the caller). Returns the bytes that were given
 * back (negative: that are missing and have been charged past any limit). */
static int64_t fold(CUdevice device, uint64_t step, bool call, bool held)
{
	struct pool *pool = &pools[device];
	uint64_t before = folds_now(pool), reserved = 0;
	bool known = read_reserved(device, &reserved);
	pthread_mutex_lock(&pool->lock);
	uint64_t old = pool->charged, target = reserved;
	if (!known)
		target = old + step; /* too much until the next reading */
	else if (pool->folds != before || pool->holding != (held ? 1u : 0u))
		target = reserved > old ? reserved : old;
	pool->charged = target;
	pool->folds++;
	pool->calls -= call;
	pool->holding -= held;
	if (target < old) /* memory left the pool: no hole can be relied on */
		for (unsigned i = 0; i < HOLES; i++)
			pool->hole[i].p = 0;
	pthread_mutex_unlock(&pool->lock);
	int64_t back = (int64_t)(old + step) - (int64_t)target;
	if (back > 0)
		vgpu_give_back(device, (uint64_t)back);
	else if (back < 0 && vgpu_reserve(device, (uint64_t)-back) == CUDA_SUCCESS)
		back = 0;
	else if (back < 0)
		vgpu_charge(device, (uint64_t)-back);
	return back;
}

bool vgpu_pool_reconcile(CUdevice device)
{
	if (!valid(device))
		return false;
	struct pool *pool = &pools[device];
	pthread_mutex_lock(&pool->lock);
	bool any = pool->charged != 0;
	pthread_mutex_unlock(&pool->lock);
	return any && fold(device, 0, false, false) > 0;
}

static void trim(CUdevice device, size_t keep)
{
	CUmemoryPool handle = handle_of(device);
	CUstreamCaptureMode before = vgpu_relax();
	if (handle != NULL)
		real_cuMemPoolTrimTo(handle, keep);
	vgpu_unrelax(before);
}

/* ---- holes: blocks that the program freed on a stream and the driver will use again there -------------------------------- */

/* Before the free is handed to the driver: the moment it is, another thread may get the address. */
static void announce_hole(const struct vgpu_block *b, uint64_t stream)
{
	struct pool *pool = &pools[b->device];
	pthread_mutex_lock(&pool->lock);
	pool->hole[pool->next_hole++ % HOLES] = (struct hole){ b->p, b->bytes, stream, false };
	pthread_mutex_unlock(&pool->lock);
}

/* The driver has answered: the hole is one, unless it was filled meanwhile; or the block is still there. */
static void settle_hole(const struct vgpu_block *b, bool freed)
{
	struct pool *pool = &pools[b->device];
	pthread_mutex_lock(&pool->lock);
	for (unsigned i = 0; i < HOLES; i++) {
		struct hole *h = &pool->hole[i];
		if (h->p == b->p && freed)
			h->ready = true;
		else if (h->p == b->p)
			h->p = 0;
	}
	pthread_mutex_unlock(&pool->lock);
}

/* A new block lies at [p, p + bytes): holes under it are used up. */
static void fill_holes(struct pool *pool, CUdeviceptr p, uint64_t bytes)
{
	pthread_mutex_lock(&pool->lock);
	for (unsigned i = 0; i < HOLES; i++) {
		struct hole *h = &pool->hole[i];
		if (h->p != 0 && h->p < p + bytes && p < h->p + h->bytes)
			h->p = 0;
	}
	pthread_mutex_unlock(&pool->lock);
}

/* Takes a hole for a call that goes on without a step. Only a lone call may: another's block could land in the hole. */
static bool hold_hole(struct pool *pool, uint64_t bytes, uint64_t stream)
{
	bool found = false;
	pthread_mutex_lock(&pool->lock);
	for (unsigned i = 0; i < HOLES && !found && stream != 0 && pool->calls == 1; i++) {
		struct hole *h = &pool->hole[i];
		found = h->p != 0 && h->ready && h->stream == stream && h->bytes >= bytes;
		if (found) {
			h->p = 0;
			pool->holding++;
		}
	}
	pthread_mutex_unlock(&pool->lock);
	return found;
}

/* ---- which stream, which device ------------------------------------------------------------------------------------------- */

struct order {
	CUstream stream; /* with the meaning of NULL made explicit */
	CUdevice device;
	uint64_t id;     /* 0 = not known */
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
	*o = (struct order){ .stream = stream == NULL && per_thread ? CU_STREAM_PER_THREAD : stream };
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
	o->capturing = real_cuStreamIsCapturing(o->stream, &status) == CUDA_SUCCESS &&
	               status != CU_STREAM_CAPTURE_STATUS_NONE;
	unsigned long long id = 0;
	if (real_cuStreamGetId(o->stream, &id) == CUDA_SUCCESS)
		o->id = id + 1;
	return CUDA_SUCCESS;
}

/* ---- allocation ------------------------------------------------------------------------------------------------------------- */

static CUresult begin(CUdevice device, uint64_t bytes, uint64_t stream, uint64_t *step, bool *held)
{
	struct pool *pool = &pools[device];
	pthread_mutex_lock(&pool->lock);
	pool->calls++;
	*step = vgpu_round_up(bytes, pool->step);
	pthread_mutex_unlock(&pool->lock);
	*held = false;
	if (vgpu_reserve_or_reclaim(device, *step) == CUDA_SUCCESS)
		return CUDA_SUCCESS;
	*held = hold_hole(pool, bytes, stream);
	if (*held) {
		*step = 0;
		return CUDA_SUCCESS;
	}
	trim(device, 0);
	if (vgpu_pool_reconcile(device) && vgpu_reserve(device, *step) == CUDA_SUCCESS)
		return CUDA_SUCCESS;
	pthread_mutex_lock(&pool->lock);
	pool->calls--;
	pthread_mutex_unlock(&pool->lock);
	return CUDA_ERROR_OUT_OF_MEMORY;
}

/* The pool grew past its step, and that does not fit: the block goes back. */
static CUresult undo(struct order *o, CUdeviceptr p, uint64_t grown)
{
	struct pool *pool = &pools[o->device];
	real_cuMemFreeAsync(p, o->stream);
	trim(o->device, 0);
	pthread_mutex_lock(&pool->lock);
	if (grown > pool->step)
		pool->step = vgpu_round_up(grown, VGPU_GRANULE);
	pthread_mutex_unlock(&pool->lock);
	fold(o->device, 0, false, false);
	return CUDA_ERROR_OUT_OF_MEMORY;
}

typedef CUresult alloc_function(CUdeviceptr *, size_t, CUmemoryPool, CUstream);

/* Device and pool that a call will take from. Only default pools are metered. */
static CUresult source_of(struct order *o, CUmemoryPool from)
{
	if (from != NULL) { /* the pool's device counts, not the stream's */
		o->device = device_of(from);
		return o->device < 0 ? CUDA_ERROR_NOT_SUPPORTED : CUDA_SUCCESS;
	}
	CUmemoryPool current;
	CUresult error = real_cuDeviceGetMemPool(&current, o->device);
	if (error == CUDA_SUCCESS && (!valid(o->device) || current != handle_of(o->device)))
		error = CUDA_ERROR_NOT_SUPPORTED;
	return error;
}

static CUresult allocate(alloc_function *driver, CUdeviceptr *out, size_t bytes, CUmemoryPool from, CUstream stream,
                         bool per_thread)
{
	struct order o;
	CUresult error = order_of(stream, per_thread, &o);
	if (error == CUDA_SUCCESS && o.capturing)
		error = CUDA_ERROR_NOT_SUPPORTED; /* a graph takes its memory when it is launched */
	if (error == CUDA_SUCCESS)
		error = source_of(&o, from);
	uint64_t step;
	bool held;
	if (error == CUDA_SUCCESS)
		error = begin(o.device, bytes, o.id, &step, &held);
	if (error != CUDA_SUCCESS)
		return error;
	CUdeviceptr p = 0;
	error = driver(&p, bytes, from, stream);
	if (error == CUDA_SUCCESS)
		fill_holes(&pools[o.device], p, bytes);
	int64_t back = fold(o.device, step, true, held);
	if (error != CUDA_SUCCESS)
		return error;
	struct vgpu_block b = { .p = p, .bytes = bytes, .device = o.device, .kind = VGPU_ASYNC };
	if (back < 0)
		return undo(&o, p, step + (uint64_t)-back);
	if (vgpu_block_add(&b, 0) < 0)
		return undo(&o, p, 0);
	*out = p;
	return CUDA_SUCCESS;
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

/* ---- free and trim ----------------------------------------------------------------------------------------------------------- */

typedef CUresult free_function(CUdeviceptr, CUstream);

static CUresult release(free_function *driver, CUdeviceptr p, CUstream stream, bool per_thread)
{
	struct order o;
	struct vgpu_block b;
	/* Inside a capture this adds a node and frees nothing yet; where there is no such stream the driver says so. */
	if (order_of(stream, per_thread, &o) != CUDA_SUCCESS || o.capturing || !vgpu_block_take(p, &b))
		return driver(p, stream);
	if (b.kind == VGPU_ASYNC)
		announce_hole(&b, o.id);
	CUresult error = driver(p, stream);
	if (b.kind == VGPU_ASYNC)
		settle_hole(&b, error == CUDA_SUCCESS);
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
	CUresult error = real_cuMemPoolTrimTo(pool, minBytesToKeep);
	if (vgpu_mode() == VGPU_FREE || error != CUDA_SUCCESS)
		return error;
	for (CUdevice d = 0; d < VGPU_ORDINALS; d++)
		if (__atomic_load_n(&pools[d].handle, __ATOMIC_RELAXED) == pool)
			vgpu_pool_reconcile(d);
	return error;
}

void vgpu_pool_forked(void)
{
	for (CUdevice d = 0; d < VGPU_ORDINALS; d++) {
		pools[d] = (struct pool){ .step = VGPU_POOL_GRANULE };
		pthread_mutex_init(&pools[d].lock, NULL);
	}
}
