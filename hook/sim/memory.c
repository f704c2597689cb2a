/* memory.c: device memory by cuMemAlloc, cuMemAllocPitch and cuMemAllocManaged, and how much there is.
 *
 * Called by programs, and by module.c for variables. Blocks of a granule and more have granules of their own; smaller
 * ones are packed per context. A free waits for the context first, as the real driver does in effect, unless the block
 * is a pool's. Managed memory
 * counts in full from the start: the simulated card cannot be oversubscribed. What can go wrong: a full card
 * (CUDA_ERROR_OUT_OF_MEMORY); a pointer that is no start of a live block (CUDA_ERROR_INVALID_VALUE).
 */
#include <stdlib.h>

#include "blocks.h"
#include "context.h"
#include "graph.h"
#include "memory_share.h"
#include "sim_impl.h"
#include "vmm.h"

/* ---- placing ---------------------------------------------------------------------------------------------------- */

static struct sim_packing *packing_of(struct sim_context *context, enum sim_block_kind kind)
{
	return kind == SIM_BLOCK_DRIVER ? &context->memory->driver : &context->memory->small;
}

static void give_back(int device, enum sim_block_kind kind, bool small, uint64_t start, uint64_t padded)
{
	if (small)
		sim_small_give(device, start, padded);
	else
		sim_granules_give(device, start, padded, kind == SIM_BLOCK_DRIVER);
}

static CUresult allocate(struct sim_context *context, enum sim_block_kind kind, uint64_t size, bool low, unsigned flags,
                         CUdeviceptr *out)
{
	const struct sim_device_model *model = &sim_machine->model[context->device];
	bool small = size < model->granule && !low;
	uint64_t start;
	CUresult result;

	if (size == 0)
		return CUDA_ERROR_INVALID_VALUE;
	if (size > model->memory)
		return CUDA_ERROR_OUT_OF_MEMORY;
	uint64_t padded = sim_round_up(size, small ? SIM_SMALL_ALIGN : model->granule);
	pthread_mutex_lock(&sim_memory_mutex);
	if (small)
		result = sim_small_take(packing_of(context, kind), context->device, padded, &start)
		                 ? CUDA_SUCCESS
		                 : CUDA_ERROR_OUT_OF_MEMORY;
	else
		result = sim_granules_take(context->device, padded, low, kind == SIM_BLOCK_DRIVER, &start);
	if (result == CUDA_SUCCESS) {
		struct sim_block *block = sim_block_add(kind, context->device, context, start, size);
		if (block) {
			block->padded = padded;
			block->small = small;
			block->flags = flags;
			*out = start;
		} else {
			give_back(context->device, kind, small, start, padded);
			result = CUDA_ERROR_OUT_OF_MEMORY;
		}
	}
	pthread_mutex_unlock(&sim_memory_mutex);
	return result;
}

void sim_block_release(struct sim_block *block)
{
	switch (block->kind) {
	case SIM_BLOCK_HOST:
		sim_host_give(block->range.start, block->padded);
		break;
	case SIM_BLOCK_POOL:
		sim_pool_release(block);
		return;
	case SIM_BLOCK_PLAIN:
	case SIM_BLOCK_MANAGED:
	case SIM_BLOCK_DRIVER:
		give_back(block->device, block->kind, block->small, block->range.start, block->padded);
		break;
	case SIM_BLOCK_IPC:
		if (block->ipc)
			sim_ipc_release(block->ipc);
		else
			sim_import_close(block->import);
		break;
	default: /* a registration; mappings are vmm.c's own */
		break;
	}
	free(block);
}

/* ---- contexts --------------------------------------------------------------------------------------------------- */

struct sim_memory_space *sim_memory_space_new(void)
{
	struct sim_memory_space *space = calloc(1, sizeof *space);

	if (!space)
		return NULL;
	space->driver.overhead = true;
	return space;
}

/* The space itself stays, as its context does: a free that another thread has begun still needs it. */
void sim_memory_space_free(struct sim_context *context)
{
	struct sim_block *block;

	pthread_mutex_lock(&sim_memory_mutex);
	while ((block = sim_block_remove_first(context)))
		sim_block_release(block);
	pthread_mutex_unlock(&sim_memory_mutex);
}

CUresult sim_memory_take(struct sim_context *context, size_t n, CUdeviceptr *out)
{
	CUresult result = allocate(context, SIM_BLOCK_DRIVER, n, false, 0, out);

	if (result == CUDA_SUCCESS) /* a packed block may lie where another was */
		__builtin_memset((void *)(uintptr_t)*out, 0, n);
	return result;
}

void sim_memory_put(struct sim_context *context, CUdeviceptr p)
{
	pthread_mutex_lock(&sim_memory_mutex);
	struct sim_block *block = sim_block_from(p);
	if (block && block->kind == SIM_BLOCK_DRIVER && block->context == context) {
		sim_block_remove(block);
		sim_block_release(block);
	}
	pthread_mutex_unlock(&sim_memory_mutex);
}

/* ---- entry points ----------------------------------------------------------------------------------------------- */

CUresult sim_cuMemAlloc_v2(CUdeviceptr *out, size_t size)
{
	struct sim_context *context;
	CUresult result = sim_require(&context);

	if (result != CUDA_SUCCESS)
		return result;
	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	return allocate(context, SIM_BLOCK_PLAIN, size, false, 0, out);
}

CUresult sim_cuMemAlloc(CUdeviceptr_v1 *out, unsigned int size)
{
	struct sim_context *context;
	CUdeviceptr p;
	CUresult result = sim_require(&context);

	if (result != CUDA_SUCCESS)
		return result;
	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	result = allocate(context, SIM_BLOCK_PLAIN, size, true, 0, &p);
	if (result == CUDA_SUCCESS)
		*out = (CUdeviceptr_v1)p;
	return result;
}

static CUresult allocate_pitch(CUdeviceptr *out, size_t *pitch, size_t width, size_t height, unsigned element, bool low)
{
	struct sim_context *context;
	CUresult result = sim_require(&context);
	size_t row, size;

	if (result != CUDA_SUCCESS)
		return result;
	if (!width || !height || (element != 4 && element != 8 && element != 16))
		return CUDA_ERROR_INVALID_VALUE;
	uint64_t align = sim_machine->model[context->device].pitch;
	if (width > SIZE_MAX - align)
		return CUDA_ERROR_INVALID_VALUE;
	row = sim_round_up(width, align);
	if (__builtin_mul_overflow(row, height, &size))
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = allocate(context, SIM_BLOCK_PLAIN, size, low, 0, out);
	if (result == CUDA_SUCCESS)
		*pitch = row;
	return result;
}

CUresult sim_cuMemAllocPitch_v2(CUdeviceptr *out, size_t *pitch, size_t width, size_t height, unsigned int element)
{
	if (!out || !pitch)
		return CUDA_ERROR_INVALID_VALUE;
	return allocate_pitch(out, pitch, width, height, element, false);
}

CUresult sim_cuMemAllocPitch(CUdeviceptr_v1 *out, unsigned int *pitch, unsigned int width, unsigned int height,
                             unsigned int element)
{
	CUdeviceptr p;
	size_t row;

	if (!out || !pitch)
		return CUDA_ERROR_INVALID_VALUE;
	CUresult result = allocate_pitch(&p, &row, width, height, element, true);
	if (result == CUDA_SUCCESS) {
		*out = (CUdeviceptr_v1)p;
		*pitch = (unsigned)row;
	}
	return result;
}

CUresult sim_cuMemAllocManaged(CUdeviceptr *out, size_t size, unsigned int flags)
{
	struct sim_context *context;
	CUresult result = sim_require(&context);

	if (result != CUDA_SUCCESS)
		return result;
	if (!out || (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST))
		return CUDA_ERROR_INVALID_VALUE;
	return allocate(context, SIM_BLOCK_MANAGED, size, false, flags, out);
}

static bool program_may_free(const struct sim_block *block)
{
	return block->kind == SIM_BLOCK_PLAIN || block->kind == SIM_BLOCK_MANAGED || block->kind == SIM_BLOCK_POOL ||
	       (block->kind == SIM_BLOCK_IPC && block->import); /* a block of an imported pool */
}

CUresult sim_cuMemFree_v2(CUdeviceptr p)
{
	struct sim_context *context;
	CUresult result = sim_require(&context);

	if (result != CUDA_SUCCESS)
		return result;
	if (sim_graph_memory_free(p, NULL, &result) || sim_external_free(p, &result))
		return result;
	pthread_mutex_lock(&sim_memory_mutex);
	struct sim_block *block = sim_block_from(p);
	bool ours = block && program_may_free(block);
	if (ours)
		sim_block_remove(block);
	pthread_mutex_unlock(&sim_memory_mutex);
	if (!ours)
		return CUDA_ERROR_INVALID_VALUE;
	/* Removed first, so that nobody frees it twice meanwhile; an error of the context does not keep the memory. As
	 * documented, a block of a pool is not waited for: the program says that nobody uses it any more. */
	if (block->context)
		sim_context_wait(block->context);
	pthread_mutex_lock(&sim_memory_mutex);
	sim_block_release(block);
	pthread_mutex_unlock(&sim_memory_mutex);
	return CUDA_SUCCESS;
}

CUresult sim_cuMemFree(CUdeviceptr_v1 p)
{
	return sim_cuMemFree_v2(p);
}

CUresult sim_cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size, CUdeviceptr p)
{
	struct sim_context *context;
	CUresult result = sim_require(&context);

	if (result != CUDA_SUCCESS)
		return result;
	pthread_mutex_lock(&sim_memory_mutex);
	struct sim_block *block = sim_block_at(p);
	if (!block || block->kind == SIM_BLOCK_REGISTERED) {
		result = CUDA_ERROR_NOT_FOUND;
	} else {
		if (base)
			*base = block->range.start;
		if (size)
			*size = block->range.size;
	}
	pthread_mutex_unlock(&sim_memory_mutex);
	return result;
}

CUresult sim_cuMemGetAddressRange(CUdeviceptr_v1 *base, unsigned int *size, CUdeviceptr_v1 p)
{
	CUdeviceptr start;
	size_t bytes;
	CUresult result = sim_cuMemGetAddressRange_v2(&start, &bytes, p);

	if (result != CUDA_SUCCESS)
		return result;
	if (base)
		*base = (CUdeviceptr_v1)start;
	if (size)
		*size = (unsigned)bytes;
	return CUDA_SUCCESS;
}

CUresult sim_cuMemGetInfo_v2(size_t *free_bytes, size_t *total)
{
	struct sim_context *context;
	CUresult result = sim_require(&context);

	if (result != CUDA_SUCCESS)
		return result;
	if (!free_bytes || !total)
		return CUDA_ERROR_INVALID_VALUE;
	sim_shared_look();
	const struct sim_device_model *model = &sim_machine->model[context->device];
	uint64_t usable = model->memory - model->reserved, used = sim_device_used(context->device);
	*total = model->memory;
	*free_bytes = used < usable ? usable - used : 0;
	return CUDA_SUCCESS;
}

CUresult sim_cuMemGetInfo(unsigned int *free_bytes, unsigned int *total)
{
	size_t free_wide, total_wide;

	if (!free_bytes || !total)
		return CUDA_ERROR_INVALID_VALUE;
	CUresult result = sim_cuMemGetInfo_v2(&free_wide, &total_wide);
	if (result == CUDA_SUCCESS) {
		*free_bytes = free_wide > UINT32_MAX ? UINT32_MAX : (unsigned)free_wide;
		*total = total_wide > UINT32_MAX ? UINT32_MAX : (unsigned)total_wide;
	}
	return result;
}
