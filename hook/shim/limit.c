/* limit.c: the device memory that a context's limits take: cuCtxSetLimit.
 *
 * Called by programs that want a larger heap for malloc() in kernels, a larger printf buffer, or a deeper stack. The
 * driver takes that memory from the device (the stack once for every thread that can be resident), so raising a limit is
 * an allocation: what it takes beyond the value that the context started with is reserved before the driver is called.
 * The charge is recorded like a block of the context, under an address that the driver never gives, so that it goes
 * away with the context and can be lowered again. What can go wrong: it does not fit, then CUDA_ERROR_OUT_OF_MEMORY and
 * the limit is as it was.
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
	    real_cuDeviceGetAttribute(&threads, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, device) != CUDA_SUCCESS)
		return 0;
	return (uint64_t)processors * (uint64_t)threads;
}

/* Bytes of device memory per unit of a limit; 0: it takes none. */
static uint64_t unit_of(CUlimit limit, CUdevice device)
{
	switch (limit) {
	case CU_LIMIT_MALLOC_HEAP_SIZE:
	case CU_LIMIT_PRINTF_FIFO_SIZE:
		return 1;
	case CU_LIMIT_STACK_SIZE:
		return resident_threads(device);
	default:
		return 0;
	}
}

/* What is charged after the limit has gone from `from` to `to`, of which `charged` was charged before. */
static uint64_t charge_after(uint64_t charged, uint64_t from, uint64_t to, uint64_t unit)
{
	uint64_t step = to > from ? to - from : from - to, bytes;
	if (__builtin_mul_overflow(step, unit, &bytes))
		bytes = UINT64_MAX;
	if (to <= from)
		return charged > bytes ? charged - bytes : 0;
	return charged > UINT64_MAX - bytes ? UINT64_MAX : charged + bytes;
}

/* Put back the charge that was there before. */
static void restore(const struct vgpu_block *before, bool had)
{
	if (!had)
		return;
	uint64_t reserved = vgpu_first_reservation(before->bytes);
	vgpu_charge(before->device, reserved);
	vgpu_block_add(before, reserved);
}

static CUresult set_charged(struct vgpu_block block, CUlimit limit, size_t value, size_t from)
{
	uint64_t unit = unit_of(limit, block.device);
	struct vgpu_block before = { .bytes = 0 };
	bool had = vgpu_block_take(block.p, &before);
	block.bytes = charge_after(before.bytes, from, value, unit);
	if (had)
		vgpu_block_settle(&before);
	uint64_t reserved = block.bytes ? vgpu_first_reservation(block.bytes) : 0;
	if (reserved && vgpu_reserve_or_reclaim(block.device, reserved) != CUDA_SUCCESS) {
		restore(&before, had);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	CUresult result = real_cuCtxSetLimit(limit, value);
	if (result != CUDA_SUCCESS) {
		vgpu_give_back(block.device, reserved);
		restore(&before, had);
	} else if (reserved && vgpu_block_add(&block, reserved) != 0) {
		real_cuCtxSetLimit(limit, from);
		restore(&before, had);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	return result;
}

CUresult hook_cuCtxSetLimit(CUlimit limit, size_t value)
{
	struct vgpu_block block = { .kind = VGPU_PLAIN };
	size_t from = 0;
	if (vgpu_mode() == VGPU_FREE || vgpu_place(&block.device, &block.context) != CUDA_SUCCESS ||
	    unit_of(limit, block.device) == 0 || real_cuCtxGetLimit(&from, limit) != CUDA_SUCCESS)
		return real_cuCtxSetLimit(limit, value);
	block.p = key_of(block.context, limit);
	return set_charged(block, limit, value, from);
}
