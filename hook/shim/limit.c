/* limit.c: the device memory that a context's limits take: cuCtxSetLimit.
 *
 * Called by programs that want a larger heap for malloc() in kernels, a larger printf buffer, a deeper stack, or kernels
 * that launch kernels. The driver takes that memory from the device (the stack once for every thread that can be
 * resident), so raising a limit is an allocation: what it takes beyond the driver's default, which the estimate of a
 * context contains, is reserved before the driver is called. The charge is recorded like a block of the context, under an
 * address that the driver never gives, so that it goes away with the context and can be lowered again.
 * What can go wrong: it does not fit, then CUDA_ERROR_OUT_OF_MEMORY and the limit is as it was. Two threads change one
 * limit at once: no lock is held across the driver's call, so whoever records last looks at what the driver has then.
 */
#include "hooks.h"
#include "memory.h"

/* Device blocks are aligned; one byte behind the context's own handle is none of them. */
static CUdeviceptr key_of(CUcontext context, CUlimit limit)
{
	return (CUdeviceptr)(uintptr_t)context + 1 + (CUdeviceptr)limit;
}

static uint64_t resident_threads(CUdevice device)
{
	int processors = 0, threads = 0;
	if (real_cuDeviceGetAttribute(&processors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device) != CUDA_SUCCESS ||
	    real_cuDeviceGetAttribute(&threads, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, device) !=
	            CUDA_SUCCESS)
		return 0;
	return (uint64_t)processors * (uint64_t)threads;
}

/* Bytes of device memory that a limit of this value takes beyond the driver's default. What kernels that launch kernels
 * take is not documented to the byte: up to 150 MiB for a level that waits, and at most 8 KiB for a pending launch. */
static uint64_t cost_of(CUlimit limit, uint64_t value, CUdevice device)
{
	uint64_t usual, unit = 1, bytes;
	switch (limit) {
	case CU_LIMIT_MALLOC_HEAP_SIZE:
		usual = UINT64_C(8) << 20;
		break;
	case CU_LIMIT_PRINTF_FIFO_SIZE:
		usual = UINT64_C(1) << 20;
		break;
	case CU_LIMIT_STACK_SIZE:
		usual = 1024;
		unit = resident_threads(device);
		break;
	case CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH:
		usual = 2;
		unit = UINT64_C(150) << 20;
		break;
	case CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT:
		usual = 2048;
		unit = UINT64_C(8) << 10;
		break;
	default:
		return 0;
	}
	if (value <= usual)
		return 0;
	return __builtin_mul_overflow(value - usual, unit, &bytes) ? UINT64_MAX : vgpu_round_up(bytes, VGPU_GRANULE);
}

/* Record a charge that has been made; it replaces the one that is recorded. Without host memory the charge goes. */
static int record(const struct vgpu_block *block)
{
	return block->bytes ? vgpu_block_add(block, block->bytes) : 0;
}

static void restore(const struct vgpu_block *before)
{
	if (before->bytes)
		vgpu_block_restore(before);
}

/* The driver may have rounded up, or another thread may have come between: never less than what it has now. */
static void record_at_least(struct vgpu_block block, CUlimit limit)
{
	size_t now = 0;
	if (real_cuCtxGetLimit(&now, limit) != CUDA_SUCCESS || cost_of(limit, now, block.device) <= block.bytes)
		return;
	block.bytes = cost_of(limit, now, block.device);
	vgpu_charge(block.device, block.bytes);
	record(&block);
}

/* What the limit takes already stays charged while more is reserved: given back first, it could be had by another thread
 * and would then be missing for the memory that the driver still holds. */
static CUresult change(CUlimit limit, size_t value, size_t from, struct vgpu_block *block)
{
	struct vgpu_block before = {.bytes = 0};
	uint64_t wanted = cost_of(limit, value, block->device);
	vgpu_block_take(block->p, &before);
	uint64_t more = wanted > before.bytes ? wanted - before.bytes : 0;
	CUresult result = more ? vgpu_reserve_or_reclaim(block->device, more) : CUDA_SUCCESS;
	if (result != CUDA_SUCCESS) {
		restore(&before);
		return result;
	}
	result = real_cuCtxSetLimit(limit, value);
	if (result != CUDA_SUCCESS) {
		vgpu_give_back(block->device, more);
		restore(&before);
		return result;
	}
	block->bytes = wanted;
	if (wanted < before.bytes)
		vgpu_give_back(block->device, before.bytes - wanted);
	if (record(block) == 0)
		return CUDA_SUCCESS;
	real_cuCtxSetLimit(limit, from);
	return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult hook_cuCtxSetLimit(CUlimit limit, size_t value)
{
	struct vgpu_block block = {.kind = VGPU_EXACT};
	size_t from = 0;
	if (vgpu_mode() == VGPU_FREE || vgpu_place(&block.device, &block.context) != CUDA_SUCCESS ||
	    real_cuCtxGetLimit(&from, limit) != CUDA_SUCCESS || cost_of(limit, UINT64_MAX, block.device) == 0)
		return real_cuCtxSetLimit(limit, value);
	block.p = key_of(block.context, limit);
	CUresult result = change(limit, value, from, &block);
	if (result == CUDA_SUCCESS)
		record_at_least(block, limit);
	return result;
}
