/* tensor_map.c: descriptors for the tensor memory accelerator: cuTensorMapEncode*, and changes to them.
 *
 * Called by programs (Triton, CUTLASS). Encoding is done on the host alone; what programs get is 128 opaque bytes of
 * our own, which begin with a mark, since kernels here read none of it. The rules are those that cuda.h gives for each
 * parameter; what breaks one is CUDA_ERROR_INVALID_VALUE.
 */
#include <string.h>

#include "sim.h"
#include "sim_impl.h"

#define MARK     UINT32_C(0x544d5031)
#define MOST_DIM (UINT64_C(1) << 31)
#define RANK     5

enum layout { TILED, IM2COL, IM2COL_WIDE };

/* What stands in the 128 bytes. */
struct map {
	uint32_t mark;
	uint8_t layout, type, rank, interleave;
	uint8_t swizzle, promotion, fill, mode;
	uint8_t strides[RANK]; /* of elements */
	uint8_t unused[3];
	uint64_t address;
	uint32_t dim[RANK];
	uint16_t box[RANK]; /* less one; im2col: channels, pixels */
	uint16_t unused_too;
	uint64_t stride[RANK - 1];
	int16_t lower[3], upper[3];
};
_Static_assert(sizeof(struct map) <= sizeof(CUtensorMap), "a map fits into 128 bytes");

/* All of a call. */
struct wish {
	struct map map;
	const cuuint64_t *dim, *stride;
	const cuuint32_t *element;
	void *address;
	CUtensorMapDataType type;
	cuuint32_t rank;
	CUtensorMapInterleave interleave;
	CUtensorMapSwizzle swizzle;
	CUtensorMapL2promotion promotion;
	CUtensorMapFloatOOBfill fill;
	uint64_t inner; /* elements along the box's first dimension */
};

/* ---- rules -------------------------------------------------------------------------------------------------------- */

/* Bits of an element; 0: no such type. */
static unsigned bits_of(CUtensorMapDataType type)
{
	switch (type) {
	case CU_TENSOR_MAP_DATA_TYPE_UINT8:
		return 8;
	case CU_TENSOR_MAP_DATA_TYPE_UINT16:
	case CU_TENSOR_MAP_DATA_TYPE_FLOAT16:
	case CU_TENSOR_MAP_DATA_TYPE_BFLOAT16:
		return 16;
	case CU_TENSOR_MAP_DATA_TYPE_UINT32:
	case CU_TENSOR_MAP_DATA_TYPE_INT32:
	case CU_TENSOR_MAP_DATA_TYPE_FLOAT32:
	case CU_TENSOR_MAP_DATA_TYPE_FLOAT32_FTZ:
	case CU_TENSOR_MAP_DATA_TYPE_TFLOAT32:
	case CU_TENSOR_MAP_DATA_TYPE_TFLOAT32_FTZ:
		return 32;
	case CU_TENSOR_MAP_DATA_TYPE_UINT64:
	case CU_TENSOR_MAP_DATA_TYPE_INT64:
	case CU_TENSOR_MAP_DATA_TYPE_FLOAT64:
		return 64;
	case CU_TENSOR_MAP_DATA_TYPE_16U4_ALIGN8B:
	case CU_TENSOR_MAP_DATA_TYPE_16U4_ALIGN16B:
		return 4;
	case CU_TENSOR_MAP_DATA_TYPE_16U6_ALIGN16B:
		return 6;
	default:
		return 0;
	}
}

/* Sixteen values in 16 bytes, with gaps. */
static bool spread(CUtensorMapDataType type)
{
	return type == CU_TENSOR_MAP_DATA_TYPE_16U4_ALIGN16B || type == CU_TENSOR_MAP_DATA_TYPE_16U6_ALIGN16B;
}

static bool is_float(CUtensorMapDataType type)
{
	return type >= CU_TENSOR_MAP_DATA_TYPE_FLOAT16 && type <= CU_TENSOR_MAP_DATA_TYPE_TFLOAT32_FTZ;
}

static uint64_t alignment(const struct wish *w)
{
	return w->interleave == CU_TENSOR_MAP_INTERLEAVE_32B || spread(w->type) ? 32 : 16;
}

static bool dims_right(const struct wish *w)
{
	for (unsigned i = 0; i < w->rank; i++)
		if (!w->dim[i] || w->dim[i] > MOST_DIM || !w->element[i] || w->element[i] > 8)
			return false;
	for (unsigned i = 0; i + 1 < w->rank; i++)
		if (!w->stride || w->stride[i] % alignment(w) || w->stride[i] >= UINT64_C(1) << 40)
			return false;
	if (spread(w->type))
		return w->dim[0] % 128 == 0;
	return w->type != CU_TENSOR_MAP_DATA_TYPE_16U4_ALIGN8B || w->dim[0] % 2 == 0;
}

/* Bytes of a swizzled row; 0: no swizzle; UINT64_MAX: no such one. */
static uint64_t swizzle_bytes(CUtensorMapSwizzle swizzle)
{
	switch (swizzle) {
	case CU_TENSOR_MAP_SWIZZLE_NONE:
		return 0;
	case CU_TENSOR_MAP_SWIZZLE_32B:
		return 32;
	case CU_TENSOR_MAP_SWIZZLE_64B:
		return 64;
	case CU_TENSOR_MAP_SWIZZLE_128B:
	case CU_TENSOR_MAP_SWIZZLE_128B_ATOM_32B:
	case CU_TENSOR_MAP_SWIZZLE_128B_ATOM_32B_FLIP_8B:
	case CU_TENSOR_MAP_SWIZZLE_128B_ATOM_64B:
		return 128;
	default:
		return UINT64_MAX;
	}
}

static bool swizzle_right(const struct wish *w)
{
	uint64_t most = swizzle_bytes(w->swizzle), inner = w->inner * (spread(w->type) ? 8 : bits_of(w->type)) / 8;

	if (most == UINT64_MAX)
		return false;
	if (w->interleave == CU_TENSOR_MAP_INTERLEAVE_32B && w->swizzle != CU_TENSOR_MAP_SWIZZLE_32B)
		return false;
	if (spread(w->type) && w->swizzle != CU_TENSOR_MAP_SWIZZLE_NONE && w->swizzle != CU_TENSOR_MAP_SWIZZLE_128B &&
	    w->swizzle != CU_TENSOR_MAP_SWIZZLE_128B_ATOM_32B &&
	    !(w->type == CU_TENSOR_MAP_DATA_TYPE_16U6_ALIGN16B && w->swizzle == CU_TENSOR_MAP_SWIZZLE_128B_ATOM_64B))
		return false;
	return w->interleave != CU_TENSOR_MAP_INTERLEAVE_NONE || !most || inner <= most;
}

static bool shared_rules_hold(const struct wish *w, unsigned least_rank)
{
	if (!bits_of(w->type) || w->rank < least_rank || w->rank > RANK || !w->dim || !w->element)
		return false;
	if ((unsigned)w->interleave > CU_TENSOR_MAP_INTERLEAVE_32B ||
	    (unsigned)w->promotion > CU_TENSOR_MAP_L2_PROMOTION_L2_256B ||
	    (unsigned)w->fill > CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA)
		return false;
	if (w->interleave != CU_TENSOR_MAP_INTERLEAVE_NONE &&
	    (w->rank < 3 || w->type == CU_TENSOR_MAP_DATA_TYPE_16U6_ALIGN16B))
		return false;
	if (w->fill != CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE && !is_float(w->type))
		return false;
	return !((uintptr_t)w->address % alignment(w)) && dims_right(w) && swizzle_right(w);
}

/* ---- encoding ----------------------------------------------------------------------------------------------------- */

static CUresult encode(CUtensorMap *out, struct wish *w, unsigned least_rank)
{
	if (!sim_initialized())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!out || (uintptr_t)out % 64 || !shared_rules_hold(w, least_rank))
		return CUDA_ERROR_INVALID_VALUE;
	struct map *map = &w->map;
	map->mark = MARK;
	map->type = (uint8_t)w->type;
	map->rank = (uint8_t)w->rank;
	map->interleave = (uint8_t)w->interleave;
	map->swizzle = (uint8_t)w->swizzle;
	map->promotion = (uint8_t)w->promotion;
	map->fill = (uint8_t)w->fill;
	map->address = (uint64_t)(uintptr_t)w->address;
	for (unsigned i = 0; i < w->rank; i++) {
		map->dim[i] = (uint32_t)(w->dim[i] - 1);
		map->strides[i] = (uint8_t)w->element[i];
		if (i + 1 < w->rank)
			map->stride[i] = w->stride[i];
	}
	memset(out, 0, sizeof *out);
	memcpy(out, map, sizeof *map);
	return CUDA_SUCCESS;
}

CUresult sim_cuTensorMapEncodeTiled(CUtensorMap *tensorMap, CUtensorMapDataType tensorDataType, cuuint32_t tensorRank,
                                    void *globalAddress, const cuuint64_t *globalDim, const cuuint64_t *globalStrides,
                                    const cuuint32_t *boxDim, const cuuint32_t *elementStrides,
                                    CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                    CUtensorMapL2promotion l2Promotion, CUtensorMapFloatOOBfill oobFill)
{
	struct wish w = {{.layout = TILED}, globalDim,  globalStrides, elementStrides, globalAddress, tensorDataType,
	                 tensorRank,        interleave, swizzle,       l2Promotion,    oobFill,       0};

	if (!boxDim || !tensorRank || tensorRank > RANK)
		return sim_initialized() ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_NOT_INITIALIZED;
	for (unsigned i = 0; i < tensorRank; i++) {
		if (!boxDim[i] || boxDim[i] > 256)
			return CUDA_ERROR_INVALID_VALUE;
		w.map.box[i] = (uint16_t)(boxDim[i] - 1);
	}
	w.inner = boxDim[0];
	if (spread(tensorDataType)
	            ? boxDim[0] != 128
		    : interleave == CU_TENSOR_MAP_INTERLEAVE_NONE && boxDim[0] * bits_of(tensorDataType) % 128)
		return CUDA_ERROR_INVALID_VALUE;
	return encode(tensorMap, &w, 1);
}

/* Channels and pixels of an im2col box. */
static bool column_right(struct wish *w, cuuint32_t channels, cuuint32_t pixels, bool counted)
{
	if (!channels || channels > 256 || (counted && (!pixels || pixels > 1024)) ||
	    (spread(w->type) && channels != 128))
		return false;
	w->inner = channels;
	w->map.box[0] = (uint16_t)channels;
	w->map.box[1] = (uint16_t)(counted ? pixels : 128);
	return true;
}

/* Offsets of a box from both ends of a dimension, which must leave something of it. */
static bool corner_right(struct wish *w, unsigned i, uint64_t dim, int lower, int upper, int least)
{
	if (lower < least || lower > -least - 1 || upper < least || upper > -least - 1 ||
	    (int64_t)dim + upper - lower <= 0)
		return false;
	w->map.lower[i] = (int16_t)lower;
	w->map.upper[i] = (int16_t)upper;
	return true;
}

CUresult sim_cuTensorMapEncodeIm2col(CUtensorMap *tensorMap, CUtensorMapDataType tensorDataType, cuuint32_t tensorRank,
                                     void *globalAddress, const cuuint64_t *globalDim, const cuuint64_t *globalStrides,
                                     const int *pixelBoxLowerCorner, const int *pixelBoxUpperCorner,
                                     cuuint32_t channelsPerPixel, cuuint32_t pixelsPerColumn,
                                     const cuuint32_t *elementStrides, CUtensorMapInterleave interleave,
                                     CUtensorMapSwizzle swizzle, CUtensorMapL2promotion l2Promotion,
                                     CUtensorMapFloatOOBfill oobFill)
{
	static const int least[] = {-32768, -128, -16}; /* by rank */
	struct wish w = {{.layout = IM2COL}, globalDim,  globalStrides, elementStrides, globalAddress, tensorDataType,
	                 tensorRank,         interleave, swizzle,       l2Promotion,    oobFill,       0};

	if (!sim_initialized())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (tensorRank < 3 || tensorRank > RANK || !globalDim || !pixelBoxLowerCorner || !pixelBoxUpperCorner ||
	    !column_right(&w, channelsPerPixel, pixelsPerColumn, true))
		return CUDA_ERROR_INVALID_VALUE;
	for (unsigned i = 0; i < tensorRank - 2; i++) /* given as D, H, W; dimensions go C, W, H, D, N */
		if (!corner_right(&w, i, globalDim[tensorRank - 2 - i], pixelBoxLowerCorner[i], pixelBoxUpperCorner[i],
		                  least[tensorRank - 3]))
			return CUDA_ERROR_INVALID_VALUE;
	return encode(tensorMap, &w, 3);
}

CUresult sim_cuTensorMapEncodeIm2colWide(CUtensorMap *tensorMap, CUtensorMapDataType tensorDataType,
                                         cuuint32_t tensorRank, void *globalAddress, const cuuint64_t *globalDim,
                                         const cuuint64_t *globalStrides, int pixelBoxLowerCornerWidth,
                                         int pixelBoxUpperCornerWidth, cuuint32_t channelsPerPixel,
                                         cuuint32_t pixelsPerColumn, const cuuint32_t *elementStrides,
                                         CUtensorMapInterleave interleave, CUtensorMapIm2ColWideMode mode,
                                         CUtensorMapSwizzle swizzle, CUtensorMapL2promotion l2Promotion,
                                         CUtensorMapFloatOOBfill oobFill)
{
	struct wish w = {{.layout = IM2COL_WIDE, .mode = (uint8_t)mode},
	                 globalDim,
	                 globalStrides,
	                 elementStrides,
	                 globalAddress,
	                 tensorDataType,
	                 tensorRank,
	                 interleave,
	                 swizzle,
	                 l2Promotion,
	                 oobFill,
	                 0};
	bool counted = mode == CU_TENSOR_MAP_IM2COL_WIDE_MODE_W;

	if (!sim_initialized())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (tensorRank < 3 || tensorRank > RANK || !globalDim || (unsigned)mode > CU_TENSOR_MAP_IM2COL_WIDE_MODE_W128 ||
	    (swizzle != CU_TENSOR_MAP_SWIZZLE_64B && swizzle != CU_TENSOR_MAP_SWIZZLE_128B &&
	     swizzle != CU_TENSOR_MAP_SWIZZLE_128B_ATOM_32B) ||
	    !column_right(&w, channelsPerPixel, pixelsPerColumn, counted) ||
	    !corner_right(&w, 0, globalDim[1], pixelBoxLowerCornerWidth, pixelBoxUpperCornerWidth, -32768))
		return CUDA_ERROR_INVALID_VALUE;
	return encode(tensorMap, &w, 3);
}

/* ---- changes ------------------------------------------------------------------------------------------------------ */

static bool read_map(const CUtensorMap *from, struct map *map)
{
	if (!from || (uintptr_t)from % 64)
		return false;
	memcpy(map, from, sizeof *map);
	return map->mark == MARK;
}

CUresult sim_cuTensorMapReplaceAddress(CUtensorMap *tensorMap, void *globalAddress)
{
	struct map map;

	if (!sim_initialized())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!read_map(tensorMap, &map))
		return CUDA_ERROR_INVALID_VALUE;
	struct wish w = {.type = (CUtensorMapDataType)map.type, .interleave = (CUtensorMapInterleave)map.interleave};
	if ((uintptr_t)globalAddress % alignment(&w))
		return CUDA_ERROR_INVALID_VALUE;
	map.address = (uint64_t)(uintptr_t)globalAddress;
	memcpy(tensorMap, &map, sizeof map);
	return CUDA_SUCCESS;
}

/* No device here generates addresses by class: each request succeeds and the small one stays in effect. */
CUresult sim_cuTensorMapSetAllocationClass(CUtensorMap *tensorMap, CUtensorMapAllocClass allocClass,
                                           CUtensorMapAllocClass *outAllocClass)
{
	struct map map;

	if (!sim_initialized())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (outAllocClass)
		*outAllocClass = CU_TENSOR_MAP_ALLOC_CLASS_SMALL;
	if (!read_map(tensorMap, &map) || (unsigned)allocClass > CU_TENSOR_MAP_ALLOC_CLASS_LARGE)
		return CUDA_ERROR_INVALID_VALUE;
	return CUDA_SUCCESS;
}
