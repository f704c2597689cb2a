/* copy_box.c: copies of rows and of layers of rows: cuMemcpy2D, cuMemcpy3D, their asynchronous and peer forms.
 *
 * Called by programs. Each form is read into two *ends* and an extent and becomes one copy (copy.h). What can go wrong:
 * a pitch that is less than a row, a region outside its allocation (CUDA_ERROR_INVALID_VALUE); an end that is a CUDA
 * array (CUDA_ERROR_NOT_SUPPORTED).
 */
#include "context.h"
#include "copy.h"
#include "sim_impl.h"

struct end {
	CUmemorytype type;
	const void *host;
	CUdeviceptr device;
	size_t x, y, z;
	size_t pitch, height;
	struct sim_context *context;
};

struct extent {
	size_t width, height, depth;
};

static CUresult side_of(const struct end *end, enum sim_side *side, uint64_t *base)
{
	switch (end->type) {
	case CU_MEMORYTYPE_HOST:
		*side = SIM_SIDE_HOST;
		*base = (uint64_t)(uintptr_t)end->host;
		return CUDA_SUCCESS;
	case CU_MEMORYTYPE_DEVICE:
	case CU_MEMORYTYPE_UNIFIED:
		*side = end->type == CU_MEMORYTYPE_DEVICE ? SIM_SIDE_DEVICE : SIM_SIDE_ANY;
		*base = end->device;
		return CUDA_SUCCESS;
	case CU_MEMORYTYPE_ARRAY:
		return CUDA_ERROR_NOT_SUPPORTED;
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
}

/* From the first byte to behind the last, and the steps between rows and layers. */
static CUresult measure(const struct end *end, const struct extent *extent, size_t *pitch, size_t *slice,
                        uint64_t *first, uint64_t *bytes)
{
	size_t row = end->x + extent->width, rows = end->y + extent->height;
	unsigned __int128 from, to;

	*pitch = end->pitch || extent->height > 1 || extent->depth > 1 ? end->pitch : row;
	if (row < end->x || rows < end->y || *pitch < row || (extent->depth > 1 && end->height < rows))
		return CUDA_ERROR_INVALID_VALUE;
	unsigned __int128 layer = (unsigned __int128)*pitch * (end->height ? end->height : rows);
	from = layer * end->z + (unsigned __int128)*pitch * end->y + end->x;
	to = layer * (extent->depth - 1) + (unsigned __int128)*pitch * (extent->height - 1) + extent->width;
	if (from + to > UINT64_MAX || layer > SIZE_MAX)
		return CUDA_ERROR_INVALID_VALUE;
	*slice = (size_t)layer;
	*first = (uint64_t)from;
	*bytes = (uint64_t)to;
	return CUDA_SUCCESS;
}

static CUresult resolve(struct sim_context *context, const struct end *end, const struct extent *extent, bool write,
                        uint64_t *start, size_t *pitch, size_t *slice, struct sim_place *place)
{
	enum sim_side side;
	uint64_t base, first, bytes;
	CUresult result = side_of(end, &side, &base);

	if (result == CUDA_SUCCESS)
		result = measure(end, extent, pitch, slice, &first, &bytes);
	if (result != CUDA_SUCCESS)
		return result;
	if (!base || first > UINT64_MAX - base)
		return CUDA_ERROR_INVALID_VALUE;
	*start = base + first;
	return sim_place_of(end->context ? end->context : context, side, *start, bytes, write, place);
}

static CUresult resolve_both(struct sim_context *context, const struct end *dst, const struct end *src,
                             const struct extent *extent, struct sim_box *box, struct sim_place *dst_place,
                             struct sim_place *src_place)
{
	*box = (struct sim_box){.width = extent->width, .height = extent->height, .depth = extent->depth};
	CUresult result = resolve(context, dst, extent, true, &box->dst, &box->dst_pitch, &box->dst_slice, dst_place);
	if (result == CUDA_SUCCESS)
		result = resolve(context, src, extent, false, &box->src, &box->src_pitch, &box->src_slice, src_place);
	return result;
}

static CUresult copy(const struct end *dst, const struct end *src, const struct extent *extent, CUstream stream,
                     bool synchronous)
{
	struct sim_place dst_place, src_place;
	struct sim_box box;
	struct sim_context *context;
	CUresult result = sim_require(&context);

	if (result != CUDA_SUCCESS || !extent->width || !extent->height || !extent->depth)
		return result;
	result = resolve_both(context, dst, src, extent, &box, &dst_place, &src_place);
	return result == CUDA_SUCCESS ? sim_copy(context, stream, &box, &dst_place, &src_place, synchronous) : result;
}

/* The four public structures name their members alike. */
#define END_2D(p, end)                                                                                                 \
	{.type = (p)->end##MemoryType,                                                                                 \
	 .host = (p)->end##Host,                                                                                       \
	 .device = (p)->end##Device,                                                                                   \
	 .x = (p)->end##XInBytes,                                                                                      \
	 .y = (p)->end##Y,                                                                                             \
	 .pitch = (p)->end##Pitch}
#define END_3D(p, end)                                                                                                 \
	{.type = (p)->end##MemoryType,                                                                                 \
	 .host = (p)->end##Host,                                                                                       \
	 .device = (p)->end##Device,                                                                                   \
	 .x = (p)->end##XInBytes,                                                                                      \
	 .y = (p)->end##Y,                                                                                             \
	 .z = (p)->end##Z,                                                                                             \
	 .pitch = (p)->end##Pitch,                                                                                     \
	 .height = (p)->end##Height}

CUresult sim_box_of(struct sim_context *context, const CUDA_MEMCPY3D *p, struct sim_box *box,
                    struct sim_place *dst_place, struct sim_place *src_place)
{
	struct end dst = END_3D(p, dst), src = END_3D(p, src);
	struct extent extent = {p->WidthInBytes, p->Height, p->Depth};

	if (!extent.width || !extent.height || !extent.depth)
		return CUDA_ERROR_INVALID_VALUE;
	return resolve_both(context, &dst, &src, &extent, box, dst_place, src_place);
}

static CUresult copy_2d(const CUDA_MEMCPY2D *p, CUstream stream, bool synchronous)
{
	if (!p)
		return CUDA_ERROR_INVALID_VALUE;
	struct end dst = END_2D(p, dst), src = END_2D(p, src);
	struct extent extent = {p->WidthInBytes, p->Height, 1};
	return copy(&dst, &src, &extent, stream, synchronous);
}

static CUresult copy_2d_v1(const CUDA_MEMCPY2D_v1 *p, CUstream stream, bool synchronous)
{
	if (!p)
		return CUDA_ERROR_INVALID_VALUE;
	struct end dst = END_2D(p, dst), src = END_2D(p, src);
	struct extent extent = {p->WidthInBytes, p->Height, 1};
	return copy(&dst, &src, &extent, stream, synchronous);
}

static CUresult copy_3d(const CUDA_MEMCPY3D *p, CUstream stream, bool synchronous)
{
	if (!p)
		return CUDA_ERROR_INVALID_VALUE;
	struct end dst = END_3D(p, dst), src = END_3D(p, src);
	struct extent extent = {p->WidthInBytes, p->Height, p->Depth};
	return copy(&dst, &src, &extent, stream, synchronous);
}

static CUresult copy_3d_v1(const CUDA_MEMCPY3D_v1 *p, CUstream stream, bool synchronous)
{
	if (!p)
		return CUDA_ERROR_INVALID_VALUE;
	struct end dst = END_3D(p, dst), src = END_3D(p, src);
	struct extent extent = {p->WidthInBytes, p->Height, p->Depth};
	return copy(&dst, &src, &extent, stream, synchronous);
}

static CUresult copy_3d_peer(const CUDA_MEMCPY3D_PEER *p, CUstream stream, bool synchronous)
{
	if (!p)
		return CUDA_ERROR_INVALID_VALUE;
	struct end dst = END_3D(p, dst), src = END_3D(p, src);
	struct extent extent = {p->WidthInBytes, p->Height, p->Depth};
	dst.context = p->dstContext ? sim_context_of(p->dstContext) : NULL;
	src.context = p->srcContext ? sim_context_of(p->srcContext) : NULL;
	if ((p->dstContext && !dst.context) || (p->srcContext && !src.context))
		return CUDA_ERROR_INVALID_CONTEXT;
	return copy(&dst, &src, &extent, stream, synchronous);
}

CUresult sim_cuMemcpy2D_v2(const CUDA_MEMCPY2D *p)
{
	return copy_2d(p, NULL, true);
}

CUresult sim_cuMemcpy2DUnaligned_v2(const CUDA_MEMCPY2D *p)
{
	return copy_2d(p, NULL, true);
}

CUresult sim_cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D *p, CUstream stream)
{
	return copy_2d(p, stream, false);
}

CUresult sim_cuMemcpy2D(const CUDA_MEMCPY2D_v1 *p)
{
	return copy_2d_v1(p, NULL, true);
}

CUresult sim_cuMemcpy2DUnaligned(const CUDA_MEMCPY2D_v1 *p)
{
	return copy_2d_v1(p, NULL, true);
}

CUresult sim_cuMemcpy2DAsync(const CUDA_MEMCPY2D_v1 *p, CUstream stream)
{
	return copy_2d_v1(p, stream, false);
}

CUresult sim_cuMemcpy3D_v2(const CUDA_MEMCPY3D *p)
{
	return copy_3d(p, NULL, true);
}

CUresult sim_cuMemcpy3DAsync_v2(const CUDA_MEMCPY3D *p, CUstream stream)
{
	return copy_3d(p, stream, false);
}

CUresult sim_cuMemcpy3D(const CUDA_MEMCPY3D_v1 *p)
{
	return copy_3d_v1(p, NULL, true);
}

CUresult sim_cuMemcpy3DAsync(const CUDA_MEMCPY3D_v1 *p, CUstream stream)
{
	return copy_3d_v1(p, stream, false);
}

CUresult sim_cuMemcpy3DPeer(const CUDA_MEMCPY3D_PEER *p)
{
	return copy_3d_peer(p, NULL, true);
}

CUresult sim_cuMemcpy3DPeerAsync(const CUDA_MEMCPY3D_PEER *p, CUstream stream)
{
	return copy_3d_peer(p, stream, false);
}
