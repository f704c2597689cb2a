/* copy_box.c: copies of rows and of layers of rows: cuMemcpy2D, cuMemcpy3D, their asynchronous and peer forms.
 *
 * Called by programs. Each form is read into two *ends* and an extent and becomes one copy (copy.h). What can go wrong:
 * a pitch that is less than a row, a region outside its allocation or array (CUDA_ERROR_INVALID_VALUE).
 */
#include "array.h"
#include "context.h"
#include "copy.h"
#include "sim_impl.h"

struct end {
	CUmemorytype type;
	const void *host;
	CUdeviceptr device;
	CUarray array;
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

/* One end of a box. */
struct side {
	uint64_t *start;
	size_t *pitch, *slice;
	struct sim_array **array;
	struct sim_spot *at;
	struct sim_place *place;
};

static CUresult resolve_array(const struct end *end, const struct extent *extent, struct side *side)
{
	struct sim_array *array = sim_array_of(end->array);

	if (!array)
		return CUDA_ERROR_INVALID_VALUE;
	*side->array = array;
	*side->at = (struct sim_spot){end->x, end->y, end->z};
	*side->place = (struct sim_place){.device = true, .owner = array->texels->device};
	return sim_array_part(array, side->at, extent->width, extent->height, extent->depth);
}

static CUresult resolve(struct sim_context *context, const struct end *end, const struct extent *extent, bool write,
                        struct side *to)
{
	enum sim_side side;
	uint64_t base, first, bytes;

	if (end->type == CU_MEMORYTYPE_ARRAY)
		return resolve_array(end, extent, to);
	CUresult result = side_of(end, &side, &base);
	if (result == CUDA_SUCCESS)
		result = measure(end, extent, to->pitch, to->slice, &first, &bytes);
	if (result != CUDA_SUCCESS)
		return result;
	if (!base || first > UINT64_MAX - base)
		return CUDA_ERROR_INVALID_VALUE;
	*to->start = base + first;
	return sim_place_of(end->context ? end->context : context, side, *to->start, bytes, write, to->place);
}

static CUresult resolve_both(struct sim_context *context, const struct end *dst, const struct end *src,
                             const struct extent *extent, struct sim_box *box, struct sim_place *dst_place,
                             struct sim_place *src_place)
{
	struct side to = {&box->dst, &box->dst_pitch, &box->dst_slice, &box->dst_array, &box->dst_at, dst_place},
	            from = {&box->src, &box->src_pitch, &box->src_slice, &box->src_array, &box->src_at, src_place};

	*box = (struct sim_box){.width = extent->width, .height = extent->height, .depth = extent->depth};
	CUresult result = resolve(context, dst, extent, true, &to);
	return result == CUDA_SUCCESS ? resolve(context, src, extent, false, &from) : result;
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
	 .array = (p)->end##Array,                                                                                     \
	 .x = (p)->end##XInBytes,                                                                                      \
	 .y = (p)->end##Y,                                                                                             \
	 .pitch = (p)->end##Pitch}
#define END_3D(p, end)                                                                                                 \
	{.type = (p)->end##MemoryType,                                                                                 \
	 .host = (p)->end##Host,                                                                                       \
	 .device = (p)->end##Device,                                                                                   \
	 .array = (p)->end##Array,                                                                                     \
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

static CUmemorytype type_of(const struct sim_array *array, const struct sim_place *place)
{
	return array ? CU_MEMORYTYPE_ARRAY : place->device ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
}

void sim_box_params(const struct sim_box *box, const struct sim_place *dst, const struct sim_place *src,
                    CUDA_MEMCPY3D *params)
{
	*params = (CUDA_MEMCPY3D){.srcMemoryType = type_of(box->src_array, src),
	                          .dstMemoryType = type_of(box->dst_array, dst),
	                          .WidthInBytes = box->width,
	                          .Height = box->height,
	                          .Depth = box->depth};
	if (params->dstMemoryType == CU_MEMORYTYPE_DEVICE)
		params->dstDevice = box->dst;
	else if (params->dstMemoryType == CU_MEMORYTYPE_HOST)
		params->dstHost = (void *)(uintptr_t)box->dst;
	params->dstArray = (CUarray)box->dst_array;
	params->dstXInBytes = box->dst_at.x;
	params->dstY = box->dst_at.y;
	params->dstZ = box->dst_at.z;
	params->dstPitch = box->dst_pitch ? box->dst_pitch : box->width;
	params->dstHeight = box->dst_slice ? box->dst_slice / params->dstPitch : box->height;
	if (params->srcMemoryType == CU_MEMORYTYPE_DEVICE)
		params->srcDevice = box->src;
	else if (params->srcMemoryType == CU_MEMORYTYPE_HOST)
		params->srcHost = (const void *)(uintptr_t)box->src;
	params->srcArray = (CUarray)box->src_array;
	params->srcXInBytes = box->src_at.x;
	params->srcY = box->src_at.y;
	params->srcZ = box->src_at.z;
	params->srcPitch = box->src_pitch ? box->src_pitch : box->width;
	params->srcHeight = box->src_slice ? box->src_slice / params->srcPitch : box->height;
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
