/* pool_table.c: which memory pools there are: the default ones of devices and host, pools of the program's own, and
 * which of them is current.
 *
 * Called by programs, and by pool.c for the pool that a call takes from. A pool that is destroyed while blocks of it
 * live is no longer a handle; its memory goes with the last block. What can go wrong: properties that no pool can have,
 * a stale handle, a default pool that is to be destroyed.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "blocks.h"
#include "context.h"
#include "pool.h"
#include "sim_impl.h"
#include "visible.h"

struct sim_pool *sim_pools;

/* Default pools: pinned and managed, of each device, and of the host (last). Current: what a program set, or NULL. */
static struct sim_pool defaults[2][SIM_DEVICES + 1];
static struct sim_pool *current[2][SIM_DEVICES + 1];

static int place_of(const struct sim_pool *pool)
{
	return pool->device >= 0 ? pool->device : SIM_DEVICES;
}

static void enter(struct sim_pool *pool)
{
	pool->reuse[0] = pool->reuse[1] = pool->reuse[2] = 1;
	sim_handle_add(pool, SIM_TAG_POOL);
	pool->tag = SIM_TAG_POOL;
	pool->next = sim_pools;
	__atomic_store_n(&sim_pools, pool, __ATOMIC_RELEASE);
}

void sim_pool_add(struct sim_pool *pool)
{
	pthread_mutex_lock(&sim_memory_mutex);
	enter(pool);
	pthread_mutex_unlock(&sim_memory_mutex);
}

struct sim_pool *sim_pool_of(CUmemoryPool handle)
{
	return sim_initialized() && sim_handle_is(handle, SIM_TAG_POOL) ? (struct sim_pool *)handle : NULL;
}

/* `device` -1: the host's. */
static struct sim_pool *default_pool(bool managed, int device)
{
	struct sim_pool *pool = &defaults[managed][device >= 0 ? device : SIM_DEVICES];

	pthread_mutex_lock(&sim_memory_mutex);
	if (!pool->tag) {
		pool->device = device;
		pool->managed = managed;
		pool->props.allocType = managed ? CU_MEM_ALLOCATION_TYPE_MANAGED : CU_MEM_ALLOCATION_TYPE_PINNED;
		pool->props.location.type = device >= 0 ? CU_MEM_LOCATION_TYPE_DEVICE : CU_MEM_LOCATION_TYPE_HOST;
		pool->props.location.id = device >= 0 ? sim_ordinal(device) : 0;
		enter(pool);
	}
	pthread_mutex_unlock(&sim_memory_mutex);
	return pool;
}

struct sim_pool *sim_default_pool(int device)
{
	return default_pool(false, device);
}

static struct sim_pool *current_pool(bool managed, int device)
{
	struct sim_pool *set = __atomic_load_n(&current[managed][device >= 0 ? device : SIM_DEVICES], __ATOMIC_ACQUIRE);

	return set ? set : default_pool(managed, device);
}

struct sim_pool *sim_current_pool(int device)
{
	return current_pool(false, device);
}

/* ---- a program's own --------------------------------------------------------------------------------------------- */

static CUresult check_location(const CUmemPoolProps *props, int *device)
{
	*device = -1;
	switch (props->location.type) {
	case CU_MEM_LOCATION_TYPE_DEVICE:
		return sim_device_of(props->location.id, device) == CUDA_SUCCESS ? CUDA_SUCCESS
		                                                                 : CUDA_ERROR_INVALID_VALUE;
	case CU_MEM_LOCATION_TYPE_HOST:
		return props->handleTypes ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
	case CU_MEM_LOCATION_TYPE_HOST_NUMA:
		return props->location.id == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE; /* one node */
	case CU_MEM_LOCATION_TYPE_NONE:
		return props->allocType == CU_MEM_ALLOCATION_TYPE_MANAGED ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
}

static CUresult check_props(const CUmemPoolProps *props, int *device)
{
	static const unsigned char zero[sizeof props->reserved];
	bool managed = props->allocType == CU_MEM_ALLOCATION_TYPE_MANAGED;

	if ((!managed && props->allocType != CU_MEM_ALLOCATION_TYPE_PINNED) || props->win32SecurityAttributes ||
	    memcmp(props->reserved, zero, sizeof zero) != 0)
		return CUDA_ERROR_INVALID_VALUE;
	if (managed && (props->handleTypes || props->maxSize))
		return CUDA_ERROR_INVALID_VALUE;
	if (props->handleTypes & ~(unsigned)CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
		return CUDA_ERROR_NOT_SUPPORTED;
	return check_location(props, device);
}

CUresult sim_cuMemPoolCreate(CUmemoryPool *out, const CUmemPoolProps *props)
{
	int device;

	if (!sim_initialized())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!out || !props)
		return CUDA_ERROR_INVALID_VALUE;
	CUresult result = check_props(props, &device);
	if (result != CUDA_SUCCESS)
		return result;
	struct sim_pool *pool = calloc(1, sizeof *pool);
	if (!pool)
		return CUDA_ERROR_OUT_OF_MEMORY;
	pool->managed = props->allocType == CU_MEM_ALLOCATION_TYPE_MANAGED;
	/* Managed memory that prefers no device lies on the first one here. */
	pool->device = pool->managed && device < 0 ? sim_physical(0) : device;
	pool->own = true;
	pool->props = *props;
	sim_pool_add(pool);
	*out = (CUmemoryPool)pool;
	return CUDA_SUCCESS;
}

void sim_pool_gone(struct sim_pool *pool)
{
	struct sim_pool **link = &sim_pools;

	while (*link != pool)
		link = &(*link)->next;
	*link = pool->next;
	if (pool->imported)
		close(pool->import_fd);
	free(pool);
}

CUresult sim_cuMemPoolDestroy(CUmemoryPool handle)
{
	if (!sim_initialized())
		return CUDA_ERROR_NOT_INITIALIZED;
	pthread_mutex_lock(&sim_memory_mutex);
	struct sim_pool *pool = sim_pool_of(handle);
	if (!pool || !pool->own) {
		pthread_mutex_unlock(&sim_memory_mutex);
		return CUDA_ERROR_INVALID_VALUE;
	}
	sim_handle_drop(pool);
	struct sim_pool **set = &current[pool->managed][place_of(pool)];
	if (*set == pool)
		__atomic_store_n(set, NULL, __ATOMIC_RELEASE);
	sim_pool_destroy(pool);
	pthread_mutex_unlock(&sim_memory_mutex);
	return CUDA_SUCCESS;
}

/* ---- default and current ------------------------------------------------------------------------------------------ */

static CUresult give_pool(CUmemoryPool *out, CUdevice ordinal, struct sim_pool *(*pool)(int device))
{
	int device;
	CUresult result = sim_device_of(ordinal, &device);

	if (result != CUDA_SUCCESS)
		return result;
	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	*out = (CUmemoryPool)pool(device);
	return CUDA_SUCCESS;
}

CUresult sim_cuDeviceGetDefaultMemPool(CUmemoryPool *out, CUdevice ordinal)
{
	return give_pool(out, ordinal, sim_default_pool);
}

CUresult sim_cuDeviceGetMemPool(CUmemoryPool *out, CUdevice ordinal)
{
	return give_pool(out, ordinal, sim_current_pool);
}

static CUresult set_current(struct sim_pool *pool, bool managed, int device)
{
	if (!pool || pool->managed != managed || pool->device != device || pool->imported)
		return CUDA_ERROR_INVALID_VALUE;
	__atomic_store_n(&current[managed][place_of(pool)], pool, __ATOMIC_RELEASE);
	return CUDA_SUCCESS;
}

CUresult sim_cuDeviceSetMemPool(CUdevice ordinal, CUmemoryPool handle)
{
	int device;
	CUresult result = sim_device_of(ordinal, &device);

	return result == CUDA_SUCCESS ? set_current(sim_pool_of(handle), false, device) : result;
}

/* Device (-1: the host) and kind that these mean. */
static CUresult place(const CUmemLocation *location, CUmemAllocationType type, int *device, bool *managed)
{
	*device = -1;
	if (!sim_initialized())
		return CUDA_ERROR_NOT_INITIALIZED;
	*managed = type == CU_MEM_ALLOCATION_TYPE_MANAGED;
	if (!location || (type != CU_MEM_ALLOCATION_TYPE_PINNED && !*managed))
		return CUDA_ERROR_INVALID_VALUE;
	switch (location->type) {
	case CU_MEM_LOCATION_TYPE_DEVICE:
		return sim_device_of(location->id, device);
	case CU_MEM_LOCATION_TYPE_HOST:
	case CU_MEM_LOCATION_TYPE_HOST_NUMA:
		if (*managed)
			*device = sim_physical(0);
		return CUDA_SUCCESS;
	case CU_MEM_LOCATION_TYPE_NONE:
		*device = sim_physical(0);
		return *managed ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
}

CUresult sim_cuMemGetDefaultMemPool(CUmemoryPool *out, CUmemLocation *location, CUmemAllocationType type)
{
	int device;
	bool managed;
	CUresult result = place(location, type, &device, &managed);

	if (result == CUDA_SUCCESS && !out)
		result = CUDA_ERROR_INVALID_VALUE;
	if (result == CUDA_SUCCESS)
		*out = (CUmemoryPool)default_pool(managed, device);
	return result;
}

CUresult sim_cuMemGetMemPool(CUmemoryPool *out, CUmemLocation *location, CUmemAllocationType type)
{
	int device;
	bool managed;
	CUresult result = place(location, type, &device, &managed);

	if (result == CUDA_SUCCESS && !out)
		result = CUDA_ERROR_INVALID_VALUE;
	if (result == CUDA_SUCCESS)
		*out = (CUmemoryPool)current_pool(managed, device);
	return result;
}

CUresult sim_cuMemSetMemPool(CUmemLocation *location, CUmemAllocationType type, CUmemoryPool handle)
{
	int device;
	bool managed;
	CUresult result = place(location, type, &device, &managed);

	return result == CUDA_SUCCESS ? set_current(sim_pool_of(handle), managed, device) : result;
}
