/* memory_host.c: pinned host memory: allocated by the driver, or the program's own registered with it.
 *
 * Called by programs. Host memory counts nowhere on the card. Its device address is its host address (unified
 * addressing). What can go wrong: wrong flags, a range that overlaps one that is registered already, freeing what was
 * not allocated here.
 */
#include <stdlib.h>

#include "blocks.h"
#include "sim_impl.h"

#define PAGE       UINT64_C(4096)
#define HOST_FLAGS (CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_WRITECOMBINED)
#define REGISTER_FLAGS                                                                                                 \
	(CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP | CU_MEMHOSTREGISTER_IOMEMORY |                    \
	 CU_MEMHOSTREGISTER_READ_ONLY)

CUresult sim_cuMemHostAlloc(void **out, size_t size, unsigned int flags)
{
	struct sim_context *context;
	CUresult result = sim_require(&context);
	uint64_t start;

	if (result != CUDA_SUCCESS)
		return result;
	if (!out || !size || (flags & ~(unsigned)HOST_FLAGS))
		return CUDA_ERROR_INVALID_VALUE;
	if (size > SIZE_MAX - PAGE)
		return CUDA_ERROR_OUT_OF_MEMORY;
	uint64_t padded = sim_round_up(size, PAGE);
	pthread_mutex_lock(&sim_memory_mutex);
	struct sim_block *block = NULL;
	if (sim_host_take(padded, &start)) {
		block = sim_block_add(SIM_BLOCK_HOST, context->device, context, start, size);
		if (!block)
			sim_host_give(start, padded);
	}
	if (block) {
		block->padded = padded;
		block->flags = flags;
		*out = (void *)(uintptr_t)start;
	}
	pthread_mutex_unlock(&sim_memory_mutex);
	return block ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult sim_cuMemAllocHost_v2(void **out, size_t size)
{
	return sim_cuMemHostAlloc(out, size, 0);
}

CUresult sim_cuMemAllocHost(void **out, unsigned int size)
{
	return sim_cuMemHostAlloc(out, size, 0);
}

/* Takes a host block of this kind out of the tree; NULL: there is none that starts at p. */
static struct sim_block *remove_host(void *p, enum sim_block_kind kind)
{
	pthread_mutex_lock(&sim_memory_mutex);
	struct sim_block *block = sim_block_from((uint64_t)(uintptr_t)p);
	if (block && block->kind != kind)
		block = NULL;
	if (block)
		sim_block_remove(block);
	pthread_mutex_unlock(&sim_memory_mutex);
	return block;
}

static void wait_and_release(struct sim_block *block)
{
	sim_context_wait(block->context); /* queued copies may still use it */
	pthread_mutex_lock(&sim_memory_mutex);
	sim_block_release(block);
	pthread_mutex_unlock(&sim_memory_mutex);
}

CUresult sim_cuMemFreeHost(void *p)
{
	struct sim_context *context;
	CUresult result = sim_require(&context);

	if (result != CUDA_SUCCESS)
		return result;
	struct sim_block *block = remove_host(p, SIM_BLOCK_HOST);
	if (!block)
		return CUDA_ERROR_INVALID_VALUE;
	wait_and_release(block);
	return CUDA_SUCCESS;
}

CUresult sim_cuMemHostRegister_v2(void *p, size_t size, unsigned int flags)
{
	struct sim_context *context;
	CUresult result = sim_require(&context);
	uint64_t start = (uint64_t)(uintptr_t)p;

	if (result != CUDA_SUCCESS)
		return result;
	if (!p || !size || size > UINT64_MAX - start || (flags & ~(unsigned)REGISTER_FLAGS))
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&sim_memory_mutex);
	if (sim_block_overlaps(start, size)) {
		result = CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
	} else {
		struct sim_block *block = sim_block_add(SIM_BLOCK_REGISTERED, context->device, context, start, size);
		if (block)
			block->flags = flags;
		else
			result = CUDA_ERROR_OUT_OF_MEMORY;
	}
	pthread_mutex_unlock(&sim_memory_mutex);
	return result;
}

CUresult sim_cuMemHostRegister(void *p, size_t size, unsigned int flags)
{
	return sim_cuMemHostRegister_v2(p, size, flags);
}

CUresult sim_cuMemHostUnregister(void *p)
{
	struct sim_context *context;
	CUresult result = sim_require(&context);

	if (result != CUDA_SUCCESS)
		return result;
	if (!p)
		return CUDA_ERROR_INVALID_VALUE;
	struct sim_block *block = remove_host(p, SIM_BLOCK_REGISTERED);
	if (!block)
		return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
	wait_and_release(block);
	return CUDA_SUCCESS;
}

CUresult sim_cuMemHostGetDevicePointer_v2(CUdeviceptr *out, void *p, unsigned int flags)
{
	struct sim_context *context;
	CUresult result = sim_require(&context);

	if (result != CUDA_SUCCESS)
		return result;
	if (!out || !p || flags)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&sim_memory_mutex);
	struct sim_block *block = sim_block_at((uint64_t)(uintptr_t)p);
	if (block && (sim_block_is_host(block) || block->kind == SIM_BLOCK_MANAGED))
		*out = (CUdeviceptr)(uintptr_t)p;
	else
		result = CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_unlock(&sim_memory_mutex);
	return result;
}

/* Host memory lies above 4 GiB, where the 32-bit entry point cannot name it. */
CUresult sim_cuMemHostGetDevicePointer(CUdeviceptr_v1 *out, void *p, unsigned int flags)
{
	CUdeviceptr wide;

	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	CUresult result = sim_cuMemHostGetDevicePointer_v2(&wide, p, flags);
	if (result != CUDA_SUCCESS)
		return result;
	if (wide > UINT32_MAX)
		return CUDA_ERROR_NOT_SUPPORTED;
	*out = (CUdeviceptr_v1)wide;
	return CUDA_SUCCESS;
}

CUresult sim_cuMemHostGetFlags(unsigned int *flags, void *p)
{
	struct sim_context *context;
	CUresult result = sim_require(&context);

	if (result != CUDA_SUCCESS)
		return result;
	if (!flags || !p)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&sim_memory_mutex);
	struct sim_block *block = sim_block_at((uint64_t)(uintptr_t)p);
	if (!block || !sim_block_is_host(block))
		result = CUDA_ERROR_INVALID_VALUE;
	else
		*flags = block->kind == SIM_BLOCK_HOST ? block->flags | CU_MEMHOSTALLOC_DEVICEMAP : block->flags;
	pthread_mutex_unlock(&sim_memory_mutex);
	return result;
}
