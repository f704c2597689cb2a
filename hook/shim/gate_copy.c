/* gate_copy.c: which copies and fills wait for a turn.
 *
 * Called by the generated entries of the copies and fills that run on the device's processors or load its memory as kernels
 * do: from device memory to device memory of the same device, and fills. One of LARGE_BYTES and more waits like a launch;
 * 8 MiB is about 50 us of a small card's memory (2 x 8 MiB at 320 GB/s) and 5 us of a large one's. Smaller ones go at once,
 * but add up: the one that makes LARGE_BYTES together waits. Copies between host and device run on copy engines beside
 * kernels, at a hundredth of the memory's speed: they never wait, nor do those between devices.
 * What can go wrong: a copy whose sides the driver cannot name is taken for one on the device. */
#include "gate.h"
#include "hooks.h"
#include "memory.h"

#define LARGE_BYTES (UINT64_C(8) << 20)
#define BATCH       4096

static uint64_t small; /* bytes of those that went at once since the last that waited */

bool vgpu_gate_large(uint64_t bytes)
{
	if (bytes < LARGE_BYTES && __atomic_add_fetch(&small, bytes, __ATOMIC_RELAXED) < LARGE_BYTES)
		return false;
	__atomic_store_n(&small, 0, __ATOMIC_RELAXED);
	return true;
}

static bool on_device(CUdeviceptr p, int *device)
{
	CUmemorytype type = CU_MEMORYTYPE_HOST;
	if (real_cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, p) != CUDA_SUCCESS ||
	    type == CU_MEMORYTYPE_HOST)
		return false;
	return real_cuPointerGetAttribute(device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, p) == CUDA_SUCCESS;
}

bool vgpu_gate_between(CUdeviceptr dst, CUdeviceptr src, uint64_t bytes)
{
	int to = -1, from = -1;
	if (bytes < LARGE_BYTES / 64) /* not worth two questions */
		return vgpu_gate_large(bytes);
	CUstreamCaptureMode before = vgpu_relax();
	bool device = on_device(dst, &to) && on_device(src, &from) && to == from;
	vgpu_unrelax(before);
	return device && vgpu_gate_large(bytes);
}

bool vgpu_gate_box(CUmemorytype to, CUdeviceptr dst, CUmemorytype from, CUdeviceptr src, uint64_t bytes)
{
	if (to == CU_MEMORYTYPE_HOST || from == CU_MEMORYTYPE_HOST)
		return false;
	/* An array is the device's own; the other side may still be anybody's. */
	if (to == CU_MEMORYTYPE_UNIFIED || from == CU_MEMORYTYPE_UNIFIED)
		return vgpu_gate_between(to == CU_MEMORYTYPE_ARRAY ? src : dst, from == CU_MEMORYTYPE_ARRAY ? dst : src,
		                         bytes);
	return vgpu_gate_large(bytes);
}

/* A long batch is judged by its beginning. */
bool vgpu_gate_batch(const CUdeviceptr *dst, const CUdeviceptr *src, const size_t *bytes, size_t count)
{
	uint64_t all = 0;
	if (!dst || !src || !bytes || count == 0)
		return false;
	for (size_t i = 0; i < count && i < BATCH; i++)
		all += bytes[i];
	return vgpu_gate_between(dst[0], src[0], all);
}

bool vgpu_gate_boxes(const CUDA_MEMCPY3D_BATCH_OP *op, size_t count)
{
	uint64_t all = 0;
	if (!op || count == 0)
		return false;
	for (size_t i = 0; i < count && i < BATCH; i++)
		all += (uint64_t)op[i].extent.width * op[i].extent.height * op[i].extent.depth;
	bool array = op->src.type == CU_MEMCPY_OPERAND_TYPE_ARRAY || op->dst.type == CU_MEMCPY_OPERAND_TYPE_ARRAY;
	return array ? vgpu_gate_large(all) : vgpu_gate_between(op->dst.op.ptr.ptr, op->src.op.ptr.ptr, all);
}
