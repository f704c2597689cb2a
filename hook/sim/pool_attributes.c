/* pool_attributes.c: what a program asks of a memory pool and sets on it.
 *
 * Called by programs. What can go wrong: a stale pool, an attribute that cannot be set, access for a device that has no
 * link to the pool's.
 */
#include "blocks.h"
#include "context.h"
#include "pool.h"
#include "sim_impl.h"
#include "visible.h"

CUresult sim_cuMemPoolTrimTo(CUmemoryPool handle, size_t keep)
{
	struct sim_pool *pool = sim_pool_of(handle);

	if (!pool)
		return CUDA_ERROR_INVALID_VALUE;
	sim_pool_trim(pool, keep);
	return CUDA_SUCCESS;
}

/* Under the memory mutex. */
static CUresult get_attribute(const struct sim_pool *pool, CUmemPool_attribute attribute, void *value)
{
	switch (attribute) {
	case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
	case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
	case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
		*(int *)value = pool->reuse[attribute - CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES];
		return CUDA_SUCCESS;
	case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
		*(cuuint64_t *)value = pool->threshold;
		return CUDA_SUCCESS;
	case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
		*(cuuint64_t *)value = pool->reserved;
		return CUDA_SUCCESS;
	case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
		*(cuuint64_t *)value = pool->reserved_high;
		return CUDA_SUCCESS;
	case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
		*(cuuint64_t *)value = pool->used;
		return CUDA_SUCCESS;
	case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
		*(cuuint64_t *)value = pool->used_high;
		return CUDA_SUCCESS;
	case CU_MEMPOOL_ATTR_ALLOCATION_TYPE:
		*(CUmemAllocationType *)value = pool->props.allocType;
		return CUDA_SUCCESS;
	case CU_MEMPOOL_ATTR_EXPORT_HANDLE_TYPES:
		*(CUmemAllocationHandleType *)value = pool->props.handleTypes;
		return CUDA_SUCCESS;
	case CU_MEMPOOL_ATTR_LOCATION_ID:
		*(int *)value = pool->props.location.id;
		return CUDA_SUCCESS;
	case CU_MEMPOOL_ATTR_LOCATION_TYPE:
		*(CUmemLocationType *)value = pool->props.location.type;
		return CUDA_SUCCESS;
	case CU_MEMPOOL_ATTR_MAX_POOL_SIZE:
	case CU_MEMPOOL_ATTR_HW_DECOMPRESS_ENABLED:
		*(int *)value = 0;
		if (attribute == CU_MEMPOOL_ATTR_MAX_POOL_SIZE)
			*(cuuint64_t *)value = pool->props.maxSize;
		return CUDA_SUCCESS;
	case CU_MEMPOOL_ATTR_LOCALITY_DOMAIN_ID:
		*(int *)value = -1;
		return CUDA_SUCCESS;
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
}

CUresult sim_cuMemPoolGetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute, void *value)
{
	struct sim_pool *pool = sim_pool_of(handle);

	if (!pool || !value)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&sim_memory_mutex);
	CUresult result = get_attribute(pool, attribute, value);
	pthread_mutex_unlock(&sim_memory_mutex);
	return result;
}

/* Under the memory mutex. High-water marks can only be set back, by 0. */
static CUresult set_attribute(struct sim_pool *pool, CUmemPool_attribute attribute, const void *value)
{
	switch (attribute) {
	case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
	case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
	case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
		pool->reuse[attribute - CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES] = *(const int *)value != 0;
		return CUDA_SUCCESS;
	case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
		__atomic_store_n(&pool->threshold, *(const cuuint64_t *)value, __ATOMIC_RELEASE);
		return CUDA_SUCCESS;
	case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
		if (*(const cuuint64_t *)value)
			return CUDA_ERROR_INVALID_VALUE;
		pool->reserved_high = pool->reserved;
		return CUDA_SUCCESS;
	case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
		if (*(const cuuint64_t *)value)
			return CUDA_ERROR_INVALID_VALUE;
		pool->used_high = pool->used;
		return CUDA_SUCCESS;
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
}

CUresult sim_cuMemPoolSetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute, void *value)
{
	struct sim_pool *pool = sim_pool_of(handle);

	if (!pool || !value)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&sim_memory_mutex);
	CUresult result = set_attribute(pool, attribute, value);
	pthread_mutex_unlock(&sim_memory_mutex);
	return result;
}

CUresult sim_cuMemPoolSetAccess(CUmemoryPool handle, const CUmemAccessDesc *map, size_t count)
{
	struct sim_pool *pool = sim_pool_of(handle);
	int device;

	if (!pool || !map || !count)
		return CUDA_ERROR_INVALID_VALUE;
	for (size_t i = 0; i < count; i++) {
		if (map[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE && pool->device >= 0 && !pool->managed)
			return CUDA_ERROR_INVALID_VALUE;
		if (map[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE)
			continue; /* the host, which may always */
		if (sim_device_of(map[i].location.id, &device) != CUDA_SUCCESS || device < 0)
			return CUDA_ERROR_INVALID_DEVICE;
		if (device == pool->device
		            ? map[i].flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE
			    : map[i].flags && pool->device >= 0 && !sim_devices_peer(device, pool->device))
			return CUDA_ERROR_INVALID_DEVICE; /* its own device always may, one without a link never */
		pool->access[device] = (uint8_t)map[i].flags;
	}
	return CUDA_SUCCESS;
}

CUresult sim_cuMemPoolGetAccess(CUmemAccess_flags *flags, CUmemoryPool handle, CUmemLocation *location)
{
	struct sim_pool *pool = sim_pool_of(handle);
	int device;

	if (!pool || !flags || !location || location->type != CU_MEM_LOCATION_TYPE_DEVICE)
		return CUDA_ERROR_INVALID_VALUE;
	if (sim_device_of(location->id, &device) != CUDA_SUCCESS)
		return CUDA_ERROR_INVALID_DEVICE;
	*flags = device == pool->device ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : (CUmemAccess_flags)pool->access[device];
	return CUDA_SUCCESS;
}
