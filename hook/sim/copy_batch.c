/* copy_batch.c: many copies, prefetches or discards in one call: cuMemcpyBatchAsync, cuMemcpy3DBatchAsync, the forms of one
 * copy with attributes, cuMemPrefetchBatchAsync and its like.
 *
 * Called by programs. The copies of a batch run in the stream one after another, which is one of the orders that a batch
 * may take. All is checked before the first is queued, as far as it can be seen from the lists; what a copy itself
 * finds wrong stops the batch there, and the old forms say at which. What can go wrong: attributes that do not cover
 * the batch, the NULL stream, extents that no copy has (CUDA_ERROR_INVALID_VALUE).
 */
#include "array.h"
#include "copy.h"
#include "sim_impl.h"

/* The legacy NULL stream may not be named. */
static CUresult batch_stream(CUstream handle, struct sim_stream **stream)
{
	CUresult result = CUDA_SUCCESS;

	if (!sim_initialized())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (handle == CU_STREAM_LEGACY || (!handle && !sim_thread.per_thread_stream))
		return CUDA_ERROR_INVALID_VALUE;
	*stream = sim_stream_of(handle, &result);
	return result;
}

/* Lists of starting points: the first is 0, each is greater, all lie in the batch. */
static bool starts_right(const size_t *starts, size_t n, size_t count)
{
	if (!starts || !n || n > count || starts[0] != 0)
		return false;
	for (size_t i = 1; i < n; i++)
		if (starts[i] <= starts[i - 1] || starts[i] >= count)
			return false;
	return true;
}

static bool order_right(CUmemcpySrcAccessOrder order, unsigned flags)
{
	return order >= CU_MEMCPY_SRC_ACCESS_ORDER_STREAM && order <= CU_MEMCPY_SRC_ACCESS_ORDER_ANY &&
	       !(flags & ~(unsigned)CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE);
}

/* A source that must have been read when the call returns. */
static CUresult settle(struct sim_stream *stream, bool during_call, CUresult result)
{
	if (result != CUDA_SUCCESS || !during_call || sim_stream_capturing(stream))
		return result;
	return sim_stream_wait(stream);
}

/* ---- pointers ----------------------------------------------------------------------------------------------------- */

struct batch {
	CUdeviceptr *dsts, *srcs;
	size_t *sizes, count;
	CUmemcpyAttributes *attributes;
	size_t *starts, number; /* of attributes */
};

static CUresult copy_batch(const struct batch *b, size_t *failed, CUstream handle)
{
	struct sim_stream *stream;
	bool during_call = false;
	CUresult result = batch_stream(handle, &stream);

	if (failed)
		*failed = SIZE_MAX;
	if (result != CUDA_SUCCESS)
		return result;
	if (!b->dsts || !b->srcs || !b->sizes || !b->count || !b->attributes ||
	    !starts_right(b->starts, b->number, b->count))
		return CUDA_ERROR_INVALID_VALUE;
	for (size_t i = 0; i < b->number; i++) {
		if (!order_right(b->attributes[i].srcAccessOrder, b->attributes[i].flags))
			return CUDA_ERROR_INVALID_VALUE;
		during_call |= b->attributes[i].srcAccessOrder == CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL;
	}
	for (size_t i = 0; i < b->count && result == CUDA_SUCCESS; i++) {
		result = sim_cuMemcpyAsync(b->dsts[i], b->srcs[i], b->sizes[i], handle);
		if (result != CUDA_SUCCESS && failed)
			*failed = i;
	}
	return settle(stream, during_call, result);
}

CUresult sim_cuMemcpyBatchAsync_v2(CUdeviceptr *dsts, CUdeviceptr *srcs, size_t *sizes, size_t count,
                                   CUmemcpyAttributes *attrs, size_t *attrsIdxs, size_t numAttrs, CUstream hStream)
{
	return copy_batch(&(struct batch){dsts, srcs, sizes, count, attrs, attrsIdxs, numAttrs}, NULL, hStream);
}

CUresult sim_cuMemcpyBatchAsync(CUdeviceptr *dsts, CUdeviceptr *srcs, size_t *sizes, size_t count,
                                CUmemcpyAttributes *attrs, size_t *attrsIdxs, size_t numAttrs, size_t *failIdx,
                                CUstream hStream)
{
	return copy_batch(&(struct batch){dsts, srcs, sizes, count, attrs, attrsIdxs, numAttrs}, failIdx, hStream);
}

CUresult sim_cuMemcpyWithAttributesAsync(CUdeviceptr dst, CUdeviceptr src, size_t size, CUmemcpyAttributes *attr,
                                         CUstream hStream)
{
	size_t start = 0;

	return copy_batch(&(struct batch){&dst, &src, &size, 1, attr, &start, 1}, NULL, hStream);
}

/* ---- boxes -------------------------------------------------------------------------------------------------------- */

/* Bytes of an element of the copy; 0: the operands do not go together. */
static size_t element_of(const CUDA_MEMCPY3D_BATCH_OP *op)
{
	size_t unit[2] = {0, 0};

	for (int i = 0; i < 2; i++) {
		const CUmemcpy3DOperand *operand = i ? &op->dst : &op->src;
		if (operand->type == CU_MEMCPY_OPERAND_TYPE_POINTER)
			continue;
		const struct sim_array *array =
		        operand->type == CU_MEMCPY_OPERAND_TYPE_ARRAY ? sim_array_of(operand->op.array.array) : NULL;
		if (!array || array->format->planes)
			return 0;
		unit[i] = sim_array_unit(array);
	}
	if (unit[0] && unit[1] && unit[0] != unit[1])
		return 0;
	return unit[0] ? unit[0] : unit[1] ? unit[1] : 1;
}

/* One operand, in the bytes and rows of cuMemcpy3D. */
struct end {
	CUmemorytype type;
	CUarray array;
	CUdeviceptr device;
	size_t x, y, z, pitch, height;
};

/* Rows and layers of a pointer's memory are given in elements; 0: as long as the copy's. */
static bool end_of(const CUmemcpy3DOperand *operand, const CUextent3D *extent, size_t unit, struct end *end)
{
	if (operand->type == CU_MEMCPY_OPERAND_TYPE_ARRAY) {
		*end = (struct end){.type = CU_MEMORYTYPE_ARRAY,
		                    .array = operand->op.array.array,
		                    .x = operand->op.array.offset.x * unit,
		                    .y = operand->op.array.offset.y,
		                    .z = operand->op.array.offset.z};
		return true;
	}
	size_t length = operand->op.ptr.rowLength ? operand->op.ptr.rowLength : extent->width,
	       height = operand->op.ptr.layerHeight ? operand->op.ptr.layerHeight : extent->height;
	*end = (struct end){
	        .type = CU_MEMORYTYPE_UNIFIED, .device = operand->op.ptr.ptr, .pitch = length * unit, .height = height};
	return length >= extent->width && height >= extent->height && length <= SIZE_MAX / unit;
}

static bool box_of(const CUDA_MEMCPY3D_BATCH_OP *op, CUDA_MEMCPY3D *copy)
{
	size_t unit = element_of(op);
	struct end src, dst;

	if (!unit || !op->extent.width || !op->extent.height || !op->extent.depth ||
	    op->extent.width > SIZE_MAX / unit || !order_right(op->srcAccessOrder, op->flags) ||
	    !end_of(&op->src, &op->extent, unit, &src) || !end_of(&op->dst, &op->extent, unit, &dst))
		return false;
	*copy = (CUDA_MEMCPY3D){.srcXInBytes = src.x,
	                        .srcY = src.y,
	                        .srcZ = src.z,
	                        .srcMemoryType = src.type,
	                        .srcDevice = src.device,
	                        .srcArray = src.array,
	                        .srcPitch = src.pitch,
	                        .srcHeight = src.height,
	                        .dstXInBytes = dst.x,
	                        .dstY = dst.y,
	                        .dstZ = dst.z,
	                        .dstMemoryType = dst.type,
	                        .dstDevice = dst.device,
	                        .dstArray = dst.array,
	                        .dstPitch = dst.pitch,
	                        .dstHeight = dst.height,
	                        .WidthInBytes = op->extent.width * unit,
	                        .Height = op->extent.height,
	                        .Depth = op->extent.depth};
	return true;
}

static CUresult copy_boxes(size_t count, const CUDA_MEMCPY3D_BATCH_OP *ops, size_t *failed, unsigned long long flags,
                           CUstream handle)
{
	struct sim_stream *stream;
	CUDA_MEMCPY3D copy;
	bool during_call = false;
	CUresult result = batch_stream(handle, &stream);

	if (failed)
		*failed = SIZE_MAX;
	if (result != CUDA_SUCCESS)
		return result;
	if (!count || !ops || flags)
		return CUDA_ERROR_INVALID_VALUE;
	for (size_t i = 0; i < count && result == CUDA_SUCCESS; i++) {
		if (!box_of(&ops[i], &copy))
			result = CUDA_ERROR_INVALID_VALUE;
		during_call |= ops[i].srcAccessOrder == CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL;
		if (result != CUDA_SUCCESS && failed)
			*failed = i;
	}
	for (size_t i = 0; i < count && result == CUDA_SUCCESS; i++) {
		box_of(&ops[i], &copy);
		result = sim_cuMemcpy3DAsync_v2(&copy, handle);
		if (result != CUDA_SUCCESS && failed)
			*failed = i;
	}
	return settle(stream, during_call, result);
}

CUresult sim_cuMemcpy3DBatchAsync_v2(size_t numOps, CUDA_MEMCPY3D_BATCH_OP *opList, unsigned long long flags,
                                     CUstream hStream)
{
	return copy_boxes(numOps, opList, NULL, flags, hStream);
}

CUresult sim_cuMemcpy3DBatchAsync(size_t numOps, CUDA_MEMCPY3D_BATCH_OP *opList, size_t *failIdx,
                                  unsigned long long flags, CUstream hStream)
{
	return copy_boxes(numOps, opList, failIdx, flags, hStream);
}

CUresult sim_cuMemcpy3DWithAttributesAsync(CUDA_MEMCPY3D_BATCH_OP *op, unsigned long long flags, CUstream hStream)
{
	return copy_boxes(1, op, NULL, flags, hStream);
}

/* ---- managed memory ----------------------------------------------------------------------------------------------- */

/* Discarded memory may read as anything; it keeps its pages here, and must only be managed. */
static CUresult check_managed(const CUdeviceptr *p, const size_t *sizes, size_t count)
{
	if (!p || !sizes || !count)
		return CUDA_ERROR_INVALID_VALUE;
	for (size_t i = 0; i < count; i++) {
		int any;
		CUresult result = sim_cuMemRangeGetAttribute(&any, sizeof any, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, p[i],
		                                             sizes[i]);
		if (result != CUDA_SUCCESS)
			return result;
	}
	return CUDA_SUCCESS;
}

CUresult sim_cuMemDiscardBatchAsync(CUdeviceptr *dptrs, size_t *sizes, size_t count, unsigned long long flags,
                                    CUstream hStream)
{
	struct sim_stream *stream;
	CUresult result = batch_stream(hStream, &stream);

	if (result != CUDA_SUCCESS)
		return result;
	return flags ? CUDA_ERROR_INVALID_VALUE : check_managed(dptrs, sizes, count);
}

CUresult sim_cuMemPrefetchBatchAsync(CUdeviceptr *dptrs, size_t *sizes, size_t count, CUmemLocation *prefetchLocs,
                                     size_t *prefetchLocIdxs, size_t numPrefetchLocs, unsigned long long flags,
                                     CUstream hStream)
{
	struct sim_stream *stream;
	CUresult result = batch_stream(hStream, &stream);

	if (result != CUDA_SUCCESS)
		return result;
	if (flags || !prefetchLocs || !starts_right(prefetchLocIdxs, numPrefetchLocs, count))
		return CUDA_ERROR_INVALID_VALUE;
	result = check_managed(dptrs, sizes, count);
	for (size_t i = 0, at = 0; i < count && result == CUDA_SUCCESS; i++) {
		at += at + 1 < numPrefetchLocs && prefetchLocIdxs[at + 1] == i;
		result = sim_cuMemPrefetchAsync_v2(dptrs[i], sizes[i], prefetchLocs[at], 0, hStream);
	}
	return result;
}

CUresult sim_cuMemDiscardAndPrefetchBatchAsync(CUdeviceptr *dptrs, size_t *sizes, size_t count,
                                               CUmemLocation *prefetchLocs, size_t *prefetchLocIdxs,
                                               size_t numPrefetchLocs, unsigned long long flags, CUstream hStream)
{
	return sim_cuMemPrefetchBatchAsync(dptrs, sizes, count, prefetchLocs, prefetchLocIdxs, numPrefetchLocs, flags,
	                                   hStream);
}
