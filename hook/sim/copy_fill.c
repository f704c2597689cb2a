/* copy_fill.c: cuMemsetD8, D16 and D32, for a run of elements and for rows of them, at once and in a stream.
 *
 * Called by programs. Fills run in stream order like copies. A large fill with zero drops the pages instead of writing
 * them: programs clear gigabytes, and zeroes need no memory. What can go wrong: a range outside its allocation, a
 * pointer that is not aligned to the element (CUDA_ERROR_INVALID_VALUE).
 */
#include <string.h>
#include <sys/mman.h>

#include "blocks.h"
#include "capture.h"
#include "copy.h"
#include "multicast.h"
#include "sim_impl.h"

#define PAGE      UINT64_C(4096)
#define DROP_FROM UINT64_C(65536)

static void fill_row(char *p, unsigned value, unsigned element, size_t n)
{
	if (element == 1) {
		memset(p, (int)value, n);
		return;
	}
	for (size_t i = 0; i < n; i++)
		memcpy(p + i * element, &value, element);
}

static void clear(uint64_t start, uint64_t n, int drop)
{
	uint64_t first = sim_round_up(start, PAGE), end = (start + n) / PAGE * PAGE;

	if (n < DROP_FROM || madvise((void *)(uintptr_t)first, end - first, drop) < 0) {
		memset((void *)(uintptr_t)start, 0, n);
		return;
	}
	memset((void *)(uintptr_t)start, 0, first - start);
	memset((void *)(uintptr_t)end, 0, start + n - end);
}

static void run_fill(void *arg)
{
	struct sim_fill fill;

	memcpy(&fill, arg, sizeof fill);
	for (size_t y = 0; y < fill.height; y++) {
		uint64_t row = fill.dst + y * fill.pitch;
		if (fill.value == 0 && fill.drop)
			clear(row, (uint64_t)fill.width * fill.element, fill.drop);
		else
			fill_row((char *)(uintptr_t)row, fill.value, fill.element, fill.width);
		sim_multicast_stored(row, (uint64_t)fill.width * fill.element);
	}
}

/* How pages of this memory become zero without being written. */
static int drop_advice(uint64_t p)
{
	int advice = 0;

	pthread_mutex_lock(&sim_memory_mutex);
	struct sim_block *block = sim_block_at(p);
	if (block && block->kind != SIM_BLOCK_REGISTERED)
		advice = sim_lies_in_file(block) ? MADV_REMOVE : MADV_DONTNEED;
	pthread_mutex_unlock(&sim_memory_mutex);
	return advice;
}

static CUresult check(struct sim_context *context, const struct sim_fill *fill, size_t *bytes, struct sim_place *place)
{
	size_t row, rest;

	if (fill->dst % fill->element || (fill->height > 1 && fill->pitch % fill->element))
		return CUDA_ERROR_INVALID_VALUE;
	if (__builtin_mul_overflow(fill->width, (size_t)fill->element, &row) ||
	    (fill->height > 1 && fill->pitch < row) || __builtin_mul_overflow(fill->height - 1, fill->pitch, &rest) ||
	    __builtin_add_overflow(rest, row, bytes))
		return CUDA_ERROR_INVALID_VALUE;
	return sim_place_of(context, SIM_SIDE_DEVICE, fill->dst, *bytes, true, place);
}

CUresult sim_fill_work(struct sim_context *context, const struct sim_fill *given, struct sim_place *place,
                       struct sim_work *work)
{
	struct sim_fill fill = *given;
	size_t bytes;
	CUresult result = check(context, &fill, &bytes, place);

	if (result != CUDA_SUCCESS)
		return result;
	fill.drop = fill.value ? 0 : drop_advice(fill.dst);
	work->device_ns = sim_copy_ns(context->device, fill.width * fill.element * fill.height);
	work->unit = SIM_UNIT_COMPUTE;
	work->run = run_fill;
	work->arg_size = sizeof fill;
	memcpy(work->arg, &fill, sizeof fill);
	return CUDA_SUCCESS;
}

static CUresult fill(struct sim_fill what, CUstream handle, bool synchronous)
{
	struct sim_context *context;
	struct sim_place place;
	struct sim_work work;
	CUresult result = sim_require(&context);

	if (result != CUDA_SUCCESS || !what.width || !what.height)
		return result;
	result = sim_fill_work(context, &what, &place, &work);
	if (result != CUDA_SUCCESS)
		return result;
	struct sim_stream *stream = sim_stream_of(handle, &result);
	if (!stream)
		return result;
	if (!synchronous && sim_stream_capturing(stream))
		return sim_capture_fill(stream, &what);
	/* As documented: waits for host memory only. */
	if (synchronous && (!place.device || place.sync_memops))
		return sim_enqueue_wait(stream, &work);
	return sim_enqueue(stream, &work);
}

static CUresult fill_one_row(CUdeviceptr dst, unsigned value, size_t n, unsigned element, CUstream stream,
                             bool synchronous)
{
	struct sim_fill what = {.dst = dst, .width = n, .height = 1, .value = value, .element = element};
	return fill(what, stream, synchronous);
}

/* The six calls for elements of one size: one row, then rows that lie `pitch` bytes apart. */
#define FILLS(bits, type)                                                                                              \
	CUresult sim_cuMemsetD##bits##_v2(CUdeviceptr dst, type value, size_t n)                                       \
	{                                                                                                              \
		return fill_one_row(dst, value, n, bits / 8, NULL, true);                                              \
	}                                                                                                              \
	CUresult sim_cuMemsetD##bits(CUdeviceptr_v1 dst, type value, unsigned int n)                                   \
	{                                                                                                              \
		return fill_one_row(dst, value, n, bits / 8, NULL, true);                                              \
	}                                                                                                              \
	CUresult sim_cuMemsetD##bits##Async(CUdeviceptr dst, type value, size_t n, CUstream stream)                    \
	{                                                                                                              \
		return fill_one_row(dst, value, n, bits / 8, stream, false);                                           \
	}                                                                                                              \
	CUresult sim_cuMemsetD2D##bits##_v2(CUdeviceptr dst, size_t pitch, type value, size_t width, size_t height)    \
	{                                                                                                              \
		return fill((struct sim_fill){dst, pitch, width, height, value, bits / 8, 0}, NULL, true);             \
	}                                                                                                              \
	CUresult sim_cuMemsetD2D##bits(CUdeviceptr_v1 dst, unsigned int pitch, type value, unsigned int width,         \
	                               unsigned int height)                                                            \
	{                                                                                                              \
		return fill((struct sim_fill){dst, pitch, width, height, value, bits / 8, 0}, NULL, true);             \
	}                                                                                                              \
	CUresult sim_cuMemsetD2D##bits##Async(CUdeviceptr dst, size_t pitch, type value, size_t width, size_t height,  \
	                                      CUstream stream)                                                         \
	{                                                                                                              \
		return fill((struct sim_fill){dst, pitch, width, height, value, bits / 8, 0}, stream, false);          \
	}

FILLS(8, unsigned char)
FILLS(16, unsigned short)
FILLS(32, unsigned int)
