/* copy.c: copies of n bytes: cuMemcpy, its typed spellings, their asynchronous forms and those between contexts.
 *
 * Called by programs. Every copy runs in stream order on the device's worker, takes engine time by the profile, and
 * is a real memcpy: device memory is memory of this process. What can go wrong: a range that does not lie in one live
 * allocation (CUDA_ERROR_INVALID_VALUE); a bad host pointer is the program's own SIGSEGV, as with the real driver.
 */
#include <stdlib.h>
#include <string.h>

#include "blocks.h"
#include "capture.h"
#include "context.h"
#include "copy.h"
#include "multicast.h"
#include "sim_impl.h"

#define STAGED_BYTES 65536 /* an asynchronous copy from pageable memory up to this size is staged and returns at once */

CUresult sim_place_of(struct sim_context *context, enum sim_side side, uint64_t p, uint64_t n, bool write,
                      struct sim_place *place)
{
	CUresult result = CUDA_SUCCESS;

	*place = (struct sim_place){0};
	pthread_mutex_lock(&sim_memory_mutex);
	struct sim_block *block = sim_block_at(p);
	if (block) {
		place->device = sim_block_is_device(block);
		place->owner = block->device;
		place->sync_memops = block->sync_memops;
		if (!sim_blocks_cover(p, n, context->device, write))
			result = CUDA_ERROR_INVALID_VALUE;
	} else {
		place->pageable = true;
		if (!p || side == SIM_SIDE_DEVICE || sim_block_within(p, n))
			result = CUDA_ERROR_INVALID_VALUE;
	}
	pthread_mutex_unlock(&sim_memory_mutex);
	return result;
}

void sim_copy_cost(const struct sim_context *context, const struct sim_place *dst, const struct sim_place *src,
                   size_t n, struct sim_work *work)
{
	if (!dst->device && !src->device)
		return;
	work->device_ns = sim_copy_ns(context->device, n);
	if (!src->device)
		work->unit = SIM_UNIT_COPY_IN;
	else if (!dst->device || dst->owner != src->owner)
		work->unit = SIM_UNIT_COPY_OUT;
	else
		work->unit = SIM_UNIT_COMPUTE;
}

void sim_copy_run(void *arg)
{
	struct sim_box box;

	memcpy(&box, arg, sizeof box);
	if (box.dst_array || box.src_array)
		sim_copy_arrays(&box);
	for (size_t z = 0; z < box.depth && !box.dst_array && !box.src_array; z++) {
		for (size_t y = 0; y < box.height; y++) {
			uint64_t dst = box.dst + z * box.dst_slice + y * box.dst_pitch;
			memmove((char *)(uintptr_t)dst,
			        (char *)(uintptr_t)box.src + z * box.src_slice + y * box.src_pitch, box.width);
			sim_multicast_stored(dst, box.width);
		}
	}
	free(box.staging);
}

/* The rows of a pageable source, read now; false: no memory for them. */
static bool stage(struct sim_box *box)
{
	struct sim_box gather = *box;

	box->staging = malloc(box->width * box->height * box->depth);
	if (!box->staging)
		return false;
	gather.dst = (uint64_t)(uintptr_t)box->staging;
	gather.dst_pitch = box->width;
	gather.dst_slice = box->width * box->height;
	gather.dst_array = NULL;
	gather.staging = NULL;
	sim_copy_run(&gather);
	box->src = gather.dst;
	box->src_pitch = gather.dst_pitch;
	box->src_slice = gather.dst_slice;
	return true;
}

CUresult sim_copy(struct sim_context *context, CUstream handle, const struct sim_box *given,
                  const struct sim_place *dst, const struct sim_place *src, bool synchronous)
{
	struct sim_work work = {.run = sim_copy_run, .arg_size = sizeof(struct sim_box)};
	struct sim_box box = *given;
	size_t bytes = box.width * box.height * box.depth;
	CUresult result = CUDA_SUCCESS;
	bool wait;

	_Static_assert(sizeof box <= SIM_WORK_ARG, "a copy fits into an item of work");
	struct sim_stream *stream = sim_stream_of(handle, &result);
	if (!stream)
		return result;
	if (!synchronous && sim_stream_capturing(stream))
		return sim_capture_copy(stream, &box, dst, src);
	if (synchronous)
		wait = !dst->device || !src->device || dst->sync_memops || src->sync_memops;
	else
		wait = dst->pageable || (src->pageable && bytes > STAGED_BYTES);
	if (!wait && src->pageable && !stage(&box))
		wait = true;
	sim_copy_cost(context, dst, src, bytes, &work);
	memcpy(work.arg, &box, sizeof box);
	result = wait ? sim_enqueue_wait(stream, &work) : sim_enqueue(stream, &work);
	if (result != CUDA_SUCCESS && !wait)
		free(box.staging);
	return result;
}

/* ---- one row ---------------------------------------------------------------------------------------------------- */

struct row {
	enum sim_side dst_side, src_side;
	uint64_t dst, src;
	size_t bytes;
	struct sim_context *dst_context, *src_context; /* NULL: the current one */
};

static CUresult copy_row(const struct row *row, CUstream stream, bool synchronous)
{
	struct sim_place dst, src;
	struct sim_context *context;
	CUresult result = sim_require(&context);

	if (result != CUDA_SUCCESS || row->bytes == 0)
		return result;
	result = sim_place_of(row->dst_context ? row->dst_context : context, row->dst_side, row->dst, row->bytes, true,
	                      &dst);
	if (result == CUDA_SUCCESS)
		result = sim_place_of(row->src_context ? row->src_context : context, row->src_side, row->src,
		                      row->bytes, false, &src);
	if (result != CUDA_SUCCESS)
		return result;
	struct sim_box box = {.dst = row->dst, .src = row->src, .width = row->bytes, .height = 1, .depth = 1};
	return sim_copy(context, stream, &box, &dst, &src, synchronous);
}

static CUresult to_device(CUdeviceptr dst, const void *src, size_t n, CUstream stream, bool synchronous)
{
	struct row row = {SIM_SIDE_DEVICE, SIM_SIDE_HOST, dst, (uint64_t)(uintptr_t)src, n, NULL, NULL};

	return copy_row(&row, stream, synchronous);
}

static CUresult to_host(void *dst, CUdeviceptr src, size_t n, CUstream stream, bool synchronous)
{
	struct row row = {SIM_SIDE_HOST, SIM_SIDE_DEVICE, (uint64_t)(uintptr_t)dst, src, n, NULL, NULL};

	return copy_row(&row, stream, synchronous);
}

static CUresult between(CUdeviceptr dst, CUdeviceptr src, size_t n, CUstream stream, bool synchronous)
{
	struct row row = {SIM_SIDE_DEVICE, SIM_SIDE_DEVICE, dst, src, n, NULL, NULL};

	return copy_row(&row, stream, synchronous);
}

CUresult sim_cuMemcpyHtoD_v2(CUdeviceptr dst, const void *src, size_t n)
{
	return to_device(dst, src, n, NULL, true);
}

CUresult sim_cuMemcpyDtoH_v2(void *dst, CUdeviceptr src, size_t n)
{
	return to_host(dst, src, n, NULL, true);
}

CUresult sim_cuMemcpyDtoD_v2(CUdeviceptr dst, CUdeviceptr src, size_t n)
{
	return between(dst, src, n, NULL, true);
}

CUresult sim_cuMemcpyHtoDAsync_v2(CUdeviceptr dst, const void *src, size_t n, CUstream stream)
{
	return to_device(dst, src, n, stream, false);
}

CUresult sim_cuMemcpyDtoHAsync_v2(void *dst, CUdeviceptr src, size_t n, CUstream stream)
{
	return to_host(dst, src, n, stream, false);
}

CUresult sim_cuMemcpyDtoDAsync_v2(CUdeviceptr dst, CUdeviceptr src, size_t n, CUstream stream)
{
	return between(dst, src, n, stream, false);
}

CUresult sim_cuMemcpyHtoD(CUdeviceptr_v1 dst, const void *src, unsigned int n)
{
	return to_device(dst, src, n, NULL, true);
}

CUresult sim_cuMemcpyDtoH(void *dst, CUdeviceptr_v1 src, unsigned int n)
{
	return to_host(dst, src, n, NULL, true);
}

CUresult sim_cuMemcpyDtoD(CUdeviceptr_v1 dst, CUdeviceptr_v1 src, unsigned int n)
{
	return between(dst, src, n, NULL, true);
}

CUresult sim_cuMemcpyHtoDAsync(CUdeviceptr_v1 dst, const void *src, unsigned int n, CUstream stream)
{
	return to_device(dst, src, n, stream, false);
}

CUresult sim_cuMemcpyDtoHAsync(void *dst, CUdeviceptr_v1 src, unsigned int n, CUstream stream)
{
	return to_host(dst, src, n, stream, false);
}

CUresult sim_cuMemcpyDtoDAsync(CUdeviceptr_v1 dst, CUdeviceptr_v1 src, unsigned int n, CUstream stream)
{
	return between(dst, src, n, stream, false);
}

CUresult sim_cuMemcpy(CUdeviceptr dst, CUdeviceptr src, size_t n)
{
	struct row row = {SIM_SIDE_ANY, SIM_SIDE_ANY, dst, src, n, NULL, NULL};

	return copy_row(&row, NULL, true);
}

CUresult sim_cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t n, CUstream stream)
{
	struct row row = {SIM_SIDE_ANY, SIM_SIDE_ANY, dst, src, n, NULL, NULL};

	return copy_row(&row, stream, false);
}

static CUresult copy_peer(struct row *row, CUcontext dst_context, CUcontext src_context, CUstream stream,
                          bool synchronous)
{
	if (!sim_initialized())
		return CUDA_ERROR_NOT_INITIALIZED;
	row->dst_context = dst_context ? sim_context_of(dst_context) : NULL;
	row->src_context = src_context ? sim_context_of(src_context) : NULL;
	if (!row->dst_context || !row->src_context)
		return CUDA_ERROR_INVALID_CONTEXT;
	return copy_row(row, stream, synchronous);
}

CUresult sim_cuMemcpyPeer(CUdeviceptr dst, CUcontext dst_context, CUdeviceptr src, CUcontext src_context, size_t n)
{
	struct row row = {SIM_SIDE_DEVICE, SIM_SIDE_DEVICE, dst, src, n, NULL, NULL};

	return copy_peer(&row, dst_context, src_context, NULL, true);
}

CUresult sim_cuMemcpyPeerAsync(CUdeviceptr dst, CUcontext dst_context, CUdeviceptr src, CUcontext src_context, size_t n,
                               CUstream stream)
{
	struct row row = {SIM_SIDE_DEVICE, SIM_SIDE_DEVICE, dst, src, n, NULL, NULL};

	return copy_peer(&row, dst_context, src_context, stream, false);
}
