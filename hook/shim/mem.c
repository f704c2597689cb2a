/* mem.c: plain, managed and pitched device memory: cuMemAlloc*, cuMemAllocManaged, cuMemAllocPitch*, cuMemFree*.
 *
 * Called by the program through the generated entry points. An allocation that the driver would refuse anyway (no place
 * to store the address, no bytes) goes to the driver so that its own error comes back. A free takes the record out
 * before the driver is called and settles it afterwards; addresses that are not in the table go to the driver as they
 * are.
 */
#include <pthread.h>
#include <stdatomic.h>

#include "graphs.h"
#include "hooks.h"
#include "memory.h"
#include "share.h"

/* ---- the way of every allocation --------------------------------------------------------------------------------- */

struct request {
	struct vgpu_block block;
	uint64_t reserved;
};

CUresult vgpu_place(CUdevice *device, CUcontext *context)
{
	CUresult error = CUDA_SUCCESS;
	*device = vgpu_current_device(&error);
	if (error == CUDA_SUCCESS)
		error = real_cuCtxGetCurrent(context);
	if (error == CUDA_SUCCESS)
		*context = vgpu_plain_context(*context);
	return error;
}

static bool settle(CUdevice device)
{
	bool contexts = vgpu_contexts_settle(device);
	bool pool = vgpu_pool_reconcile(device), deferred = vgpu_deferred_poll(device);
	return contexts || pool || deferred;
}

CUresult vgpu_reserve_or_settle(CUdevice device, uint64_t bytes)
{
	CUresult error = vgpu_reserve(device, bytes);
	return error != CUDA_SUCCESS && settle(device) ? vgpu_reserve(device, bytes) : error;
}

bool vgpu_reclaim(CUdevice device)
{
	bool settled = settle(device), pools = vgpu_pool_yield(device);
	return vgpu_graph_yield(device) || pools || settled;
}

CUresult vgpu_reserve_for_graph(CUdevice device, uint64_t bytes)
{
	CUresult error = vgpu_reserve_or_settle(device, bytes);
	return error != CUDA_SUCCESS && vgpu_pool_yield(device) ? vgpu_reserve(device, bytes) : error;
}

CUresult vgpu_reserve_or_reclaim(CUdevice device, uint64_t bytes)
{
	CUresult error = vgpu_reserve_for_graph(device, bytes);
	return error != CUDA_SUCCESS && vgpu_graph_yield(device) ? vgpu_reserve(device, bytes) : error;
}

CUresult vgpu_reserve_for(const struct vgpu_block *b, uint64_t bytes)
{
	return b->kind == VGPU_MANAGED ? vgpu_managed_reserve(b->device, bytes)
	                               : vgpu_reserve_or_reclaim(b->device, bytes);
}

void vgpu_give_back_for(const struct vgpu_block *b, uint64_t bytes)
{
	if (b->kind == VGPU_MANAGED)
		vgpu_managed_give_back(bytes);
	else
		vgpu_give_back(b->device, bytes);
}

bool vgpu_stream_refused(CUstream stream)
{
	CUcontext context;
	return real_cuStreamGetCtx(stream, &context) != CUDA_SUCCESS;
}

CUstreamCaptureMode vgpu_relax(void)
{
	CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	if (real_cuThreadExchangeStreamCaptureMode(&mode) != CUDA_SUCCESS)
		mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	return mode;
}

void vgpu_unrelax(CUstreamCaptureMode before)
{
	if (before != CU_STREAM_CAPTURE_MODE_RELAXED)
		real_cuThreadExchangeStreamCaptureMode(&before);
}

static CUresult request_open(struct request *r, enum vgpu_kind kind, uint64_t bytes)
{
	*r = (struct request){.block = {.bytes = bytes, .kind = kind}};
	CUresult error = vgpu_place(&r->block.device, &r->block.context);
	if (error != CUDA_SUCCESS)
		return error;
	r->reserved = vgpu_first_reservation(bytes);
	return vgpu_reserve_for(&r->block, r->reserved);
}

/* The driver has answered: keep the charge for what lies at `p`, or give it back. */
static CUresult request_close(struct request *r, CUresult result, CUdeviceptr p)
{
	if (result != CUDA_SUCCESS) {
		vgpu_give_back_for(&r->block, r->reserved);
		return result;
	}
	r->block.p = p;
	if (vgpu_block_add(&r->block, r->reserved) == 0)
		return CUDA_SUCCESS;
	real_cuMemFree_v2(p);
	return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult hook_cuMemAlloc_v2(CUdeviceptr *dptr, size_t bytesize)
{
	if (vgpu_mode() == VGPU_FREE || dptr == NULL || bytesize == 0)
		return real_cuMemAlloc_v2(dptr, bytesize);
	struct request r;
	CUresult error = request_open(&r, VGPU_PLAIN, bytesize);
	if (error != CUDA_SUCCESS)
		return error;
	CUdeviceptr p = 0;
	error = real_cuMemAlloc_v2(&p, bytesize);
	error = request_close(&r, error, p);
	if (error == CUDA_SUCCESS)
		*dptr = p;
	return error;
}

CUresult hook_cuMemAlloc(CUdeviceptr_v1 *dptr, unsigned int bytesize)
{
	if (vgpu_mode() == VGPU_FREE || dptr == NULL || bytesize == 0)
		return real_cuMemAlloc(dptr, bytesize);
	struct request r;
	CUresult error = request_open(&r, VGPU_PLAIN, bytesize);
	if (error != CUDA_SUCCESS)
		return error;
	CUdeviceptr_v1 p = 0;
	error = real_cuMemAlloc(&p, bytesize);
	error = request_close(&r, error, p);
	if (error == CUDA_SUCCESS)
		*dptr = p;
	return error;
}

/* Managed memory is charged in full: the driver may move all of it to the device at any time (managed.c). */
CUresult hook_cuMemAllocManaged(CUdeviceptr *dptr, size_t bytesize, unsigned int flags)
{
	if (vgpu_mode() == VGPU_FREE || dptr == NULL || bytesize == 0)
		return real_cuMemAllocManaged(dptr, bytesize, flags);
	struct request r;
	CUresult error = request_open(&r, VGPU_MANAGED, bytesize);
	if (error != CUDA_SUCCESS)
		return error;
	CUdeviceptr p = 0;
	error = real_cuMemAllocManaged(&p, bytesize, flags);
	error = request_close(&r, error, p);
	if (error == CUDA_SUCCESS)
		*dptr = p;
	return error;
}

/* ---- pitched: the driver chooses the length of a row ------------------------------------------------------------- */

static _Atomic uint64_t pitch_unit = 512; /* rows were a multiple of this so far: the largest seen */

static uint64_t row_guess(uint64_t width)
{
	return vgpu_round_up(width, atomic_load(&pitch_unit));
}

/* Learn from a row that is longer than we guessed. */
static void row_seen(uint64_t width, uint64_t pitch)
{
	uint64_t unit = atomic_load(&pitch_unit);
	while (vgpu_round_up(width, unit) < pitch && unit < VGPU_GRANULE)
		unit *= 2;
	if (unit > atomic_load(&pitch_unit))
		atomic_store(&pitch_unit, unit);
}

static CUresult pitched_open(struct request *r, uint64_t width, uint64_t height)
{
	uint64_t bytes;
	if (__builtin_mul_overflow(row_guess(width), height, &bytes))
		bytes = UINT64_MAX; /* never fits; reserving it says so */
	return request_open(r, VGPU_PITCHED, bytes);
}

static CUresult pitched_close(struct request *r, CUresult result, CUdeviceptr p, uint64_t width, uint64_t height,
                              uint64_t pitch)
{
	if (result == CUDA_SUCCESS) {
		row_seen(width, pitch);
		r->block.bytes = pitch * height; /* the real size; vgpu_block_add() corrects the reservation to it */
	}
	return request_close(r, result, p);
}

CUresult hook_cuMemAllocPitch_v2(CUdeviceptr *dptr, size_t *pPitch, size_t WidthInBytes, size_t Height,
                                 unsigned int ElementSizeBytes)
{
	if (vgpu_mode() == VGPU_FREE || dptr == NULL || pPitch == NULL || WidthInBytes == 0 || Height == 0)
		return real_cuMemAllocPitch_v2(dptr, pPitch, WidthInBytes, Height, ElementSizeBytes);
	struct request r;
	CUresult error = pitched_open(&r, WidthInBytes, Height);
	if (error != CUDA_SUCCESS)
		return error;
	CUdeviceptr p = 0;
	size_t pitch = 0;
	error = real_cuMemAllocPitch_v2(&p, &pitch, WidthInBytes, Height, ElementSizeBytes);
	error = pitched_close(&r, error, p, WidthInBytes, Height, pitch);
	if (error == CUDA_SUCCESS) {
		*dptr = p;
		*pPitch = pitch;
	}
	return error;
}

CUresult hook_cuMemAllocPitch(CUdeviceptr_v1 *dptr, unsigned int *pPitch, unsigned int WidthInBytes,
                              unsigned int Height, unsigned int ElementSizeBytes)
{
	if (vgpu_mode() == VGPU_FREE || dptr == NULL || pPitch == NULL || WidthInBytes == 0 || Height == 0)
		return real_cuMemAllocPitch(dptr, pPitch, WidthInBytes, Height, ElementSizeBytes);
	struct request r;
	CUresult error = pitched_open(&r, WidthInBytes, Height);
	if (error != CUDA_SUCCESS)
		return error;
	CUdeviceptr_v1 p = 0;
	unsigned int pitch = 0;
	error = real_cuMemAllocPitch(&p, &pitch, WidthInBytes, Height, ElementSizeBytes);
	error = pitched_close(&r, error, p, WidthInBytes, Height, pitch);
	if (error == CUDA_SUCCESS) {
		*dptr = p;
		*pPitch = pitch;
	}
	return error;
}

/* ---- frees ------------------------------------------------------------------------------------------------------- */

static CUresult freed(const struct vgpu_block *b, bool known, CUresult result)
{
	if (!known)
		return result;
	if (result != CUDA_SUCCESS)
		vgpu_block_restore(b);
	else
		vgpu_block_settle(b);
	return result;
}

CUresult hook_cuMemFree_v2(CUdeviceptr dptr)
{
	if (vgpu_mode() == VGPU_FREE)
		return real_cuMemFree_v2(dptr);
	struct vgpu_block b;
	bool known = vgpu_block_take(dptr, &b);
	vgpu_pool_unpin(dptr);
	return freed(&b, known, real_cuMemFree_v2(dptr));
}

CUresult hook_cuMemFree(CUdeviceptr_v1 dptr)
{
	if (vgpu_mode() == VGPU_FREE)
		return real_cuMemFree(dptr);
	struct vgpu_block b;
	bool known = vgpu_block_take(dptr, &b);
	vgpu_pool_unpin(dptr);
	return freed(&b, known, real_cuMemFree(dptr));
}

/* ---- fork -------------------------------------------------------------------------------------------------------- */

static void forked(void)
{
	vgpu_blocks_forked();
	vgpu_pool_forked();
	vgpu_pool_pins_forked();
	vgpu_deferred_forked();
	vgpu_descriptors_forked();
	vgpu_vmm_forked();
	vgpu_multicast_forked();
	vgpu_contexts_forked();
	vgpu_libraries_forked();
	vgpu_managed_forked();
	vgpu_shares_forked();
	vgpu_ipc_forked();
	vgpu_external_forked();
	vgpu_arrays_forked();
	vgpu_mapped_arrays_forked();
}

void vgpu_memory_watch_fork(void)
{
	static _Atomic bool watching;
	if (!atomic_load_explicit(&watching, memory_order_relaxed) && !atomic_exchange(&watching, true))
		pthread_atfork(NULL, NULL, forked);
}
