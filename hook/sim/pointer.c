/* pointer.c: what a program asks about a pointer.
 *
 * Called by programs, and by libraries (MPI, UCX, NCCL) about pointers that are not CUDA's at all, which must be
 * cheap and harmless. cuPointerGetAttribute refuses such a pointer, cuPointerGetAttributes answers it with zeroes, as
 * the real driver does. Truth values are stored as 4 bytes.
 */
#include <string.h>

#include "blocks.h"
#include "sim_impl.h"
#include "visible.h"

/* Bytes that an attribute's value has; 0: not an attribute. */
static size_t size_of(CUpointer_attribute attribute)
{
	switch (attribute) {
	case CU_POINTER_ATTRIBUTE_CONTEXT:
	case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
	case CU_POINTER_ATTRIBUTE_HOST_POINTER:
	case CU_POINTER_ATTRIBUTE_BUFFER_ID:
	case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
	case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
	case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
	case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
	case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
	case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
	case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
		return 8;
	case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
	case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
	case CU_POINTER_ATTRIBUTE_IS_MANAGED:
	case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
	case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
	case CU_POINTER_ATTRIBUTE_MAPPED:
	case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
	case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
	case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE:
	case CU_POINTER_ATTRIBUTE_LOCALITY_DOMAIN_ORDINAL:
		return 4;
	default:
		return 0;
	}
}

static bool lies_on_host(const struct sim_block *block)
{
	return sim_block_is_host(block) ||
	       (block->kind == SIM_BLOCK_MAPPED && sim_allocation_location(block) != CU_MEM_LOCATION_TYPE_DEVICE);
}

static uint64_t access_flags(const struct sim_block *block)
{
	struct sim_context *context = sim_current();
	int device = context ? context->device : block->device;

	if (sim_blocks_cover(block->range.start, 1, device, true))
		return CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE;
	return sim_blocks_cover(block->range.start, 1, device, false) ? CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READ
	                                                              : CU_POINTER_ATTRIBUTE_ACCESS_FLAG_NONE;
}

static uint64_t host_pointer(const struct sim_block *block, uint64_t p)
{
	return sim_block_is_host(block) || block->kind == SIM_BLOCK_MANAGED || sim_pool_is_managed(block) ? p : 0;
}

/* Where the block's storage begins and how much it is: what a small block, a pool's or a mapping stands in. */
static void storage_of(const struct sim_block *block, uint64_t *start, uint64_t *size)
{
	uint64_t granule = sim_machine->model[block->device].granule;

	*start = block->small ? block->range.start / granule * granule : block->range.start;
	*size = block->small ? granule : block->padded;
}

static uint64_t value_of(const struct sim_block *block, CUpointer_attribute attribute, uint64_t p)
{
	uint64_t start, size;

	storage_of(block, &start, &size);
	switch (attribute) {
	case CU_POINTER_ATTRIBUTE_CONTEXT:
		return (uint64_t)(uintptr_t)block->context;
	case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
		return lies_on_host(block) ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
	case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
		return p;
	case CU_POINTER_ATTRIBUTE_HOST_POINTER:
		return host_pointer(block, p);
	case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
		return block->sync_memops;
	case CU_POINTER_ATTRIBUTE_BUFFER_ID:
	case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
		return block->id;
	case CU_POINTER_ATTRIBUTE_IS_MANAGED:
		return block->kind == SIM_BLOCK_MANAGED || sim_pool_is_managed(block);
	case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
		return (uint32_t)sim_ordinal(block->device);
	case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
		return block->range.start;
	case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
		return block->range.size;
	case CU_POINTER_ATTRIBUTE_MAPPED:
		return 1;
	case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
		return block->kind == SIM_BLOCK_PLAIN;
	case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
		return block->kind == SIM_BLOCK_MAPPED ? sim_allocation_handle_types(block)
		       : block->kind == SIM_BLOCK_POOL ? sim_pool_handle_types(block)
		                                       : 0;
	case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
		return access_flags(block);
	case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
		return block->kind == SIM_BLOCK_POOL ? (uint64_t)(uintptr_t)sim_pool_handle(block) : 0;
	case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
		return size;
	case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
		return start;
	case CU_POINTER_ATTRIBUTE_LOCALITY_DOMAIN_ORDINAL:
		return (uint32_t)-1;
	default: /* IPC, RDMA and decompression: no */
		return 0;
	}
}

/* What cuPointerGetAttributes says of a pointer that is not CUDA's. */
static uint64_t value_of_foreign(CUpointer_attribute attribute)
{
	if (attribute == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL)
		return (uint32_t)CU_DEVICE_INVALID;
	return attribute == CU_POINTER_ATTRIBUTE_LOCALITY_DOMAIN_ORDINAL ? (uint32_t)-1 : 0;
}

CUresult sim_cuPointerGetAttribute(void *data, CUpointer_attribute attribute, CUdeviceptr p)
{
	CUresult result = CUDA_SUCCESS;
	size_t size = size_of(attribute);

	if (!sim_initialized())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!data)
		return CUDA_ERROR_INVALID_VALUE;
	if (!size)
		return attribute == CU_POINTER_ATTRIBUTE_P2P_TOKENS ? CUDA_ERROR_NOT_SUPPORTED
		                                                    : CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&sim_memory_mutex);
	struct sim_block *block = sim_block_at(p);
	if (!block || (attribute == CU_POINTER_ATTRIBUTE_HOST_POINTER && !host_pointer(block, p))) {
		result = CUDA_ERROR_INVALID_VALUE;
	} else {
		uint64_t value = value_of(block, attribute, p);
		memcpy(data, &value, size); /* little-endian: the low bytes */
	}
	pthread_mutex_unlock(&sim_memory_mutex);
	return result;
}

CUresult sim_cuPointerGetAttributes(unsigned int count, CUpointer_attribute *attributes, void **data, CUdeviceptr p)
{
	if (!sim_initialized())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!count || !attributes || !data)
		return CUDA_ERROR_INVALID_VALUE;
	for (unsigned i = 0; i < count; i++) {
		if (!size_of(attributes[i]) || !data[i])
			return CUDA_ERROR_INVALID_VALUE;
	}
	pthread_mutex_lock(&sim_memory_mutex);
	struct sim_block *block = sim_block_at(p);
	for (unsigned i = 0; i < count; i++) {
		uint64_t value = block ? value_of(block, attributes[i], p) : value_of_foreign(attributes[i]);
		memcpy(data[i], &value, size_of(attributes[i]));
	}
	pthread_mutex_unlock(&sim_memory_mutex);
	return CUDA_SUCCESS;
}

CUresult sim_cuPointerSetAttribute(const void *value, CUpointer_attribute attribute, CUdeviceptr p)
{
	CUresult result = CUDA_SUCCESS;
	unsigned flag;

	if (!sim_initialized())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!value || attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS)
		return CUDA_ERROR_INVALID_VALUE;
	memcpy(&flag, value, sizeof flag);
	pthread_mutex_lock(&sim_memory_mutex);
	struct sim_block *block = sim_block_at(p);
	if (block && sim_block_is_device(block))
		block->sync_memops = flag != 0;
	else
		result = CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_unlock(&sim_memory_mutex);
	return result;
}
