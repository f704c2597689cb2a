/* memory_advise.c: hints about managed memory, and reading them back.
 *
 * Called by programs. Managed memory never moves here: a hint is kept so that it can be asked for, and a prefetch takes
 * the time of a copy in its stream. What can go wrong: memory that is not managed (CUDA_ERROR_INVALID_VALUE).
 */
#include <string.h>

#include "blocks.h"
#include "sim_impl.h"
#include "visible.h"

#define HOST_BIT 31

/* The managed block around the range; NULL: there is none. Under the memory mutex. */
static struct sim_block *managed_around(CUdeviceptr p, size_t n)
{
	struct sim_block *block = sim_block_at(p);

	if (!block || block->kind != SIM_BLOCK_MANAGED || !n || n > block->range.size - (p - block->range.start))
		return NULL;
	return block;
}

/* The ordinal of a location, CU_DEVICE_CPU for a host one; false: no such place. */
static bool place_of(const CUmemLocation *location, int *place)
{
	switch (location->type) {
	case CU_MEM_LOCATION_TYPE_DEVICE:
		*place = location->id;
		return sim_physical(location->id) >= 0;
	case CU_MEM_LOCATION_TYPE_HOST:
	case CU_MEM_LOCATION_TYPE_HOST_NUMA:
	case CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT:
		*place = CU_DEVICE_CPU;
		return true;
	default:
		return false;
	}
}

static CUmemLocation location_of(CUdevice device)
{
	CUmemLocation location = {.type = CU_MEM_LOCATION_TYPE_DEVICE};

	if (device == CU_DEVICE_CPU)
		location.type = CU_MEM_LOCATION_TYPE_HOST;
	else
		location.id = device;
	return location;
}

static CUresult advise(struct sim_block *block, CUmem_advise advice, int place)
{
	uint32_t bit = UINT32_C(1) << (place == CU_DEVICE_CPU ? HOST_BIT : place);

	switch (advice) {
	case CU_MEM_ADVISE_SET_READ_MOSTLY:
	case CU_MEM_ADVISE_UNSET_READ_MOSTLY:
		block->read_mostly = advice == CU_MEM_ADVISE_SET_READ_MOSTLY;
		return CUDA_SUCCESS;
	case CU_MEM_ADVISE_SET_PREFERRED_LOCATION:
		block->preferred = place;
		return CUDA_SUCCESS;
	case CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION:
		block->preferred = CU_DEVICE_INVALID;
		return CUDA_SUCCESS;
	case CU_MEM_ADVISE_SET_ACCESSED_BY:
		block->accessed_by |= bit;
		return CUDA_SUCCESS;
	case CU_MEM_ADVISE_UNSET_ACCESSED_BY:
		block->accessed_by &= ~bit;
		return CUDA_SUCCESS;
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
}

CUresult sim_cuMemAdvise_v2(CUdeviceptr p, size_t n, CUmem_advise advice, CUmemLocation location)
{
	bool ignored = advice == CU_MEM_ADVISE_SET_READ_MOSTLY || advice == CU_MEM_ADVISE_UNSET_READ_MOSTLY ||
	               advice == CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION;
	int place = CU_DEVICE_CPU;

	if (!sim_initialized())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!ignored && !place_of(&location, &place))
		return CUDA_ERROR_INVALID_DEVICE;
	pthread_mutex_lock(&sim_memory_mutex);
	struct sim_block *block = managed_around(p, n);
	CUresult result = block ? advise(block, advice, place) : CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_unlock(&sim_memory_mutex);
	return result;
}

CUresult sim_cuMemAdvise(CUdeviceptr p, size_t n, CUmem_advise advice, CUdevice device)
{
	return sim_cuMemAdvise_v2(p, n, advice, location_of(device));
}

static void run_nothing(void *arg)
{
	(void)arg;
}

CUresult sim_cuMemPrefetchAsync_v2(CUdeviceptr p, size_t n, CUmemLocation location, unsigned int flags, CUstream handle)
{
	struct sim_work work = {.run = run_nothing};
	CUresult result = CUDA_SUCCESS;
	int place;

	struct sim_stream *stream = sim_stream_of(handle, &result);
	if (!stream)
		return result;
	if (flags)
		return CUDA_ERROR_INVALID_VALUE;
	if (!place_of(&location, &place))
		return CUDA_ERROR_INVALID_DEVICE;
	pthread_mutex_lock(&sim_memory_mutex);
	struct sim_block *block = managed_around(p, n);
	if (block) {
		if (block->prefetched != place)
			work.device_ns = sim_copy_ns(sim_stream_device(stream), n);
		work.unit = place < 0 ? SIM_UNIT_COPY_OUT : SIM_UNIT_COPY_IN;
		block->prefetched = place;
	}
	pthread_mutex_unlock(&sim_memory_mutex);
	return block ? sim_enqueue(stream, &work) : CUDA_ERROR_INVALID_VALUE;
}

CUresult sim_cuMemPrefetchAsync(CUdeviceptr p, size_t n, CUdevice device, CUstream stream)
{
	return sim_cuMemPrefetchAsync_v2(p, n, location_of(device), 0, stream);
}

/* ---- reading back ----------------------------------------------------------------------------------------------- */

static int location_type(int place)
{
	if (place == CU_DEVICE_INVALID)
		return CU_MEM_LOCATION_TYPE_INVALID;
	return place == CU_DEVICE_CPU ? CU_MEM_LOCATION_TYPE_HOST : CU_MEM_LOCATION_TYPE_DEVICE;
}

static CUresult list_accessed_by(const struct sim_block *block, int *list, size_t count)
{
	size_t n = 0;

	if (!count)
		return CUDA_ERROR_INVALID_VALUE;
	for (int bit = 0; bit <= HOST_BIT && n < count; bit++) {
		if (block->accessed_by & UINT32_C(1) << bit)
			list[n++] = bit == HOST_BIT ? CU_DEVICE_CPU : bit;
	}
	while (n < count)
		list[n++] = CU_DEVICE_INVALID;
	return CUDA_SUCCESS;
}

static CUresult range_attribute(const struct sim_block *block, CUmem_range_attribute attribute, int *value, size_t size)
{
	if (attribute == CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY)
		return size % 4 ? CUDA_ERROR_INVALID_VALUE : list_accessed_by(block, value, size / 4);
	if (size != 4)
		return CUDA_ERROR_INVALID_VALUE;
	switch (attribute) {
	case CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY:
		*value = block->read_mostly;
		return CUDA_SUCCESS;
	case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION:
	case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_ID:
		*value = block->preferred;
		return CUDA_SUCCESS;
	case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION:
	case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_ID:
		*value = block->prefetched;
		return CUDA_SUCCESS;
	case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE:
		*value = location_type(block->preferred);
		return CUDA_SUCCESS;
	case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE:
		*value = location_type(block->prefetched);
		return CUDA_SUCCESS;
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
}

CUresult sim_cuMemRangeGetAttribute(void *data, size_t size, CUmem_range_attribute attribute, CUdeviceptr p, size_t n)
{
	if (!sim_initialized())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!data)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&sim_memory_mutex);
	struct sim_block *block = managed_around(p, n);
	CUresult result = block ? range_attribute(block, attribute, data, size) : CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_unlock(&sim_memory_mutex);
	return result;
}

CUresult sim_cuMemRangeGetAttributes(void **data, size_t *sizes, CUmem_range_attribute *attributes, size_t count,
                                     CUdeviceptr p, size_t n)
{
	if (!sim_initialized())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!data || !sizes || !attributes || !count)
		return CUDA_ERROR_INVALID_VALUE;
	for (size_t i = 0; i < count; i++) {
		CUresult result = sim_cuMemRangeGetAttribute(data[i], sizes[i], attributes[i], p, n);
		if (result != CUDA_SUCCESS)
			return result;
	}
	return CUDA_SUCCESS;
}
