/* pool_table.c: which memory pools there are: cuMemPoolCreate, cuMemPoolDestroy, cuDeviceSetMemPool, cuMemSetMemPool.
 *
 * Called by pool.c for the pool of a call and before refusals. Devices' default pools have a place by ordinal; pools of
 * the program's own stand in a list. A pool that is destroyed while blocks of it live keeps its memory until the last
 * one is free, and a driver says nothing of a handle that was destroyed. So the driver's destroy waits: the pool is
 * *dead* to the program, empties, and goes when nothing in it is used any more: after a free, a synchronisation, or
 * before a query or a refusal. Who looks at a pool holds it (`users`); the last to leave a dead one looks whether it can
 * go.
 * What can go wrong: no host memory; a pool of a device that was not granted, or of a kind that this version does not
 * know: refused.
 */
#include <stdlib.h>

#include "graphs.h"
#include "hooks.h"
#include "pool.h"

static struct pool defaults[VGPU_ORDINALS];
static CUdevice defaults_end; /* devices at and above this ordinal have seen no stream-ordered call */

static uint32_t table_lock; /* process-private, never held across a driver call */
static struct pool *own_pools; /* those that are not default ones; also read without the lock */
static struct pool *spare_pools; /* never freed: a block that was forgotten may still name one */

static bool valid(CUdevice device)
{
	return device >= 0 && device < VGPU_ORDINALS;
}

/* ---- default pools ----------------------------------------------------------------------------------------------- */

static struct pool *default_of(CUdevice device)
{
	struct pool *pool = &defaults[device];
	if (__atomic_load_n(&pool->step, __ATOMIC_ACQUIRE) == 0) {
		vgpu_lock(&table_lock);
		if (pool->step == 0) {
			pool->device = device;
			__atomic_store_n(&pool->step, VGPU_POOL_GRANULE, __ATOMIC_RELEASE);
		}
		vgpu_unlock(&table_lock);
	}
	return pool;
}

static void note_use(CUdevice device)
{
	CUdevice seen = __atomic_load_n(&defaults_end, __ATOMIC_RELAXED);
	while (seen <= device && !__atomic_compare_exchange_n(&defaults_end, &seen, device + 1, false, __ATOMIC_RELAXED,
	                                                      __ATOMIC_RELAXED))
		;
}

CUmemoryPool vgpu_pool_handle(struct pool *pool)
{
	CUmemoryPool handle = __atomic_load_n(&pool->handle, __ATOMIC_RELAXED);
	if (handle == NULL && !pool->own && real_cuDeviceGetDefaultMemPool(&handle, pool->device) == CUDA_SUCCESS)
		__atomic_store_n(&pool->handle, handle, __ATOMIC_RELAXED);
	return handle;
}

/* The default pool with this handle, or NULL. */
static struct pool *find_default(CUmemoryPool handle)
{
	int count = 0;
	if (handle == NULL || real_cuDeviceGetCount(&count) != CUDA_SUCCESS)
		return NULL;
	for (CUdevice d = 0; d < count && valid(d); d++)
		if (vgpu_pool_handle(default_of(d)) == handle)
			return default_of(d);
	return NULL;
}

/* ---- a program's own --------------------------------------------------------------------------------------------- */

static struct pool *new_pool(void)
{
	vgpu_lock(&table_lock);
	struct pool *pool = spare_pools;
	if (pool != NULL)
		spare_pools = pool->next;
	vgpu_unlock(&table_lock);
	if (pool == NULL)
		pool = malloc(sizeof(*pool));
	if (pool != NULL)
		*pool = (struct pool){.own = true, .step = VGPU_POOL_GRANULE};
	return pool;
}

static void enlist(struct pool *pool)
{
	vgpu_lock(&table_lock);
	pool->next = own_pools;
	__atomic_store_n(&own_pools, pool, __ATOMIC_RELEASE);
	vgpu_unlock(&table_lock);
}

static void spare(struct pool *pool)
{
	vgpu_lock(&table_lock);
	pool->next = spare_pools;
	spare_pools = pool;
	vgpu_unlock(&table_lock);
}

/* With the lock held. */
static void delist(struct pool *pool)
{
	struct pool **link = &own_pools;
	while (*link != pool)
		link = &(*link)->next;
	__atomic_store_n(link, pool->next, __ATOMIC_RELEASE);
}

/* A dead pool that nobody else looks at goes if nothing in it is used; true if it went. */
static bool finish(struct pool *pool)
{
	cuuint64_t used = 0;
	CUstreamCaptureMode before = vgpu_relax();
	CUresult error = real_cuMemPoolGetAttribute(pool->handle, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used);
	bool gone = error != CUDA_SUCCESS || used == 0;
	if (gone) {
		vgpu_lock(&table_lock);
		delist(pool); /* before the driver gives its handle again */
		vgpu_unlock(&table_lock);
		real_cuMemPoolDestroy(pool->handle);
		vgpu_pool_end(pool);
		spare(pool);
	}
	vgpu_unrelax(before);
	return gone;
}

void vgpu_pool_leave(struct pool *pool)
{
	if (pool == NULL || !pool->own)
		return;
	vgpu_lock(&table_lock);
	bool alone = pool->dead && pool->users == 1;
	pool->users -= !alone;
	vgpu_unlock(&table_lock);
	if (!alone || finish(pool))
		return;
	vgpu_lock(&table_lock);
	pool->users--;
	vgpu_unlock(&table_lock);
}

/* With the lock held: from `pool` on, the first that costs something on the device. */
static struct pool *held_from(struct pool *pool, CUdevice device)
{
	while (pool != NULL && (pool->free_of_charge || (pool->device != device && !pool->managed)))
		pool = pool->next;
	if (pool != NULL)
		pool->users++;
	return pool;
}

struct pool *vgpu_pool_first(CUdevice device)
{
	return valid(device) ? default_of(device) : NULL;
}

struct pool *vgpu_pool_next(struct pool *pool, CUdevice device)
{
	if (!pool->own && __atomic_load_n(&own_pools, __ATOMIC_ACQUIRE) == NULL)
		return NULL;
	vgpu_lock(&table_lock);
	struct pool *next = held_from(pool->own ? pool->next : own_pools, device);
	vgpu_unlock(&table_lock);
	vgpu_pool_leave(pool);
	return next;
}

/* Also a dead one. */
static struct pool *find_own(CUmemoryPool handle)
{
	if (__atomic_load_n(&own_pools, __ATOMIC_ACQUIRE) == NULL)
		return NULL;
	vgpu_lock(&table_lock);
	struct pool *pool = own_pools;
	while (pool != NULL && pool->handle != handle)
		pool = pool->next;
	if (pool != NULL)
		pool->users++;
	vgpu_unlock(&table_lock);
	return pool;
}

struct pool *vgpu_pool_find(CUmemoryPool handle)
{
	struct pool *pool = find_own(handle);
	return pool != NULL ? pool : find_default(handle);
}

struct pool *vgpu_pool_enter(const struct vgpu_block *block)
{
	struct pool *pool = (struct pool *)block->context;
	if (pool == NULL)
		return valid(block->device) ? default_of(block->device) : NULL;
	vgpu_lock(&table_lock);
	pool->users++;
	vgpu_unlock(&table_lock);
	return pool;
}

CUcontext vgpu_pool_mark(struct pool *pool)
{
	return pool->own ? (CUcontext)pool : NULL;
}

CUresult vgpu_pool_source(CUdevice device, CUmemoryPool handle, struct pool **pool)
{
	CUmemoryPool from = handle;
	CUresult error = handle == NULL ? real_cuDeviceGetMemPool(&from, device) : CUDA_SUCCESS;
	if (error != CUDA_SUCCESS)
		return error;
	struct pool *found = NULL;
	if (handle == NULL && valid(device) && vgpu_pool_handle(default_of(device)) == from)
		found = default_of(device);
	if (found == NULL)
		found = vgpu_pool_find(from);
	if (found == NULL || found->dead) {
		vgpu_pool_leave(found);
		return CUDA_ERROR_INVALID_VALUE; /* what is no pool, or not any more */
	}
	if (valid(found->device))
		note_use(found->device);
	*pool = found;
	return CUDA_SUCCESS;
}

void vgpu_pools_synchronised(void)
{
	CUdevice end = __atomic_load_n(&defaults_end, __ATOMIC_RELAXED);
	vgpu_descriptors_poll();
	for (CUdevice d = 0; d < end; d++) {
		vgpu_pool_reconcile(d);
		vgpu_deferred_poll(d);
	}
}

/* ---- creation and destruction ------------------------------------------------------------------------------------ */

/* Where memory of such a pool lies; false: a place or kind that this version does not know. */
static bool describe(const CUmemLocation *location, CUmemAllocationType type, struct pool *pool)
{
	bool on_device = location->type == CU_MEM_LOCATION_TYPE_DEVICE ||
	                 location->type == CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN;
	bool on_host = location->type == CU_MEM_LOCATION_TYPE_HOST ||
	               location->type == CU_MEM_LOCATION_TYPE_HOST_NUMA ||
	               location->type == CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT;
	pool->managed = type == CU_MEM_ALLOCATION_TYPE_MANAGED;
	pool->free_of_charge = on_host && !pool->managed;
	pool->device = !on_device                                      ? -1
	               : location->type == CU_MEM_LOCATION_TYPE_DEVICE ? location->id
	                                                               : location->localized.deviceId;
	if (type != CU_MEM_ALLOCATION_TYPE_PINNED && !pool->managed)
		return false;
	return on_device || on_host || (pool->managed && location->type == CU_MEM_LOCATION_TYPE_NONE);
}

CUresult hook_cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *poolProps)
{
	if (vgpu_mode() == VGPU_FREE || pool == NULL || poolProps == NULL ||
	    poolProps->allocType == CU_MEM_ALLOCATION_TYPE_INVALID)
		return real_cuMemPoolCreate(pool, poolProps);
	struct pool *p = new_pool();
	if (p == NULL)
		return CUDA_ERROR_OUT_OF_MEMORY;
	CUmemoryPool handle = NULL;
	CUresult error = CUDA_ERROR_INVALID_DEVICE;
	if (!describe(&poolProps->location, poolProps->allocType, p))
		error = CUDA_ERROR_NOT_SUPPORTED; /* cannot be metered */
	else if (!vgpu_hidden(p->device))
		error = real_cuMemPoolCreate(&handle, poolProps);
	if (error != CUDA_SUCCESS) {
		spare(p);
		return error;
	}
	vgpu_memory_watch_fork();
	p->handle = handle;
	enlist(p);
	*pool = handle;
	return CUDA_SUCCESS;
}

/* The driver would make the default pool current again where this one is. */
static void not_current(struct pool *pool)
{
	CUmemoryPool current = NULL, other = NULL;
	CUmemLocation location = {.type = CU_MEM_LOCATION_TYPE_NONE};
	if (valid(pool->device)) {
		location = (CUmemLocation){.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = pool->device};
		if (!pool->managed && real_cuDeviceGetMemPool(&current, pool->device) == CUDA_SUCCESS &&
		    current == pool->handle)
			real_cuDeviceSetMemPool(pool->device, vgpu_pool_handle(default_of(pool->device)));
	}
	if (!pool->managed)
		return;
	if (real_cuMemGetMemPool(&current, &location, CU_MEM_ALLOCATION_TYPE_MANAGED) == CUDA_SUCCESS &&
	    current == pool->handle &&
	    real_cuMemGetDefaultMemPool(&other, &location, CU_MEM_ALLOCATION_TYPE_MANAGED) == CUDA_SUCCESS)
		real_cuMemSetMemPool(&location, CU_MEM_ALLOCATION_TYPE_MANAGED, other);
}

CUresult hook_cuMemPoolDestroy(CUmemoryPool pool)
{
	struct pool *p = vgpu_mode() == VGPU_FREE ? NULL : find_own(pool);
	if (p == NULL)
		return real_cuMemPoolDestroy(pool);
	cuuint64_t keep = 0;
	vgpu_lock(&table_lock);
	bool dead = p->dead;
	p->dead = true;
	vgpu_unlock(&table_lock);
	if (!dead) {
		not_current(p);
		real_cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep);
	}
	vgpu_pool_leave(p);
	return dead ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

/* ---- default and current ----------------------------------------------------------------------------------------- */

static bool is_dead(CUmemoryPool handle)
{
	struct pool *pool = vgpu_mode() == VGPU_FREE ? NULL : find_own(handle);
	bool dead = pool != NULL && pool->dead;
	vgpu_pool_leave(pool);
	return dead;
}

CUresult hook_cuDeviceSetMemPool(CUdevice dev, CUmemoryPool pool)
{
	if (vgpu_hidden(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	return is_dead(pool) ? CUDA_ERROR_INVALID_VALUE : real_cuDeviceSetMemPool(dev, pool);
}

static bool hides(const CUmemLocation *location)
{
	struct pool place;
	return location != NULL && describe(location, CU_MEM_ALLOCATION_TYPE_PINNED, &place) &&
	       vgpu_hidden(place.device);
}

CUresult hook_cuMemSetMemPool(CUmemLocation *location, CUmemAllocationType type, CUmemoryPool pool)
{
	if (hides(location))
		return CUDA_ERROR_INVALID_DEVICE;
	return is_dead(pool) ? CUDA_ERROR_INVALID_VALUE : real_cuMemSetMemPool(location, type, pool);
}

/* A pool that the driver made, other than a device's default one, is met here first. */
static CUresult adopt(CUresult error, CUmemoryPool *handle, const CUmemLocation *location, CUmemAllocationType type)
{
	struct pool *known = error == CUDA_SUCCESS && vgpu_mode() != VGPU_FREE ? vgpu_pool_find(*handle) : NULL;
	if (error != CUDA_SUCCESS || vgpu_mode() == VGPU_FREE || known != NULL) {
		vgpu_pool_leave(known);
		return error;
	}
	struct pool *pool = new_pool();
	if (pool == NULL || !describe(location, type, pool)) {
		if (pool != NULL)
			spare(pool);
		return pool != NULL ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_OUT_OF_MEMORY;
	}
	vgpu_memory_watch_fork();
	pool->handle = *handle;
	enlist(pool);
	return CUDA_SUCCESS;
}

bool vgpu_pool_adopt(CUmemoryPool handle, const struct vgpu_share_key *key)
{
	struct pool *pool = new_pool();
	if (pool == NULL)
		return false;
	vgpu_memory_watch_fork();
	pool->handle = handle;
	pool->device = -1;
	pool->free_of_charge = pool->imported = true;
	pool->key = *key;
	enlist(pool);
	return true;
}

CUresult hook_cuMemGetDefaultMemPool(CUmemoryPool *pool_out, CUmemLocation *location, CUmemAllocationType type)
{
	if (hides(location))
		return CUDA_ERROR_INVALID_DEVICE;
	return adopt(real_cuMemGetDefaultMemPool(pool_out, location, type), pool_out, location, type);
}

CUresult hook_cuMemGetMemPool(CUmemoryPool *pool, CUmemLocation *location, CUmemAllocationType type)
{
	if (hides(location))
		return CUDA_ERROR_INVALID_DEVICE;
	return adopt(real_cuMemGetMemPool(pool, location, type), pool, location, type);
}

void vgpu_pool_forked(void)
{
	for (CUdevice d = 0; d < VGPU_ORDINALS; d++)
		defaults[d] = (struct pool){0};
	table_lock = 0;
	own_pools = spare_pools = NULL;
	vgpu_graph_forked();
}
