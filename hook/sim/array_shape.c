/* array_shape.c: which arrays there can be, and how their bytes lie.
 *
 * Called by array.c and mipmap.c. The rules and limits are those that cuda.h gives for cuArray3DCreate and
 * cuMipmappedArrayCreate; the layout is what block-linear layouts take: rows in whole 64 bytes, 8 of them together, also
 * where there is one dimension only. Sparse levels are laid out in tiles of 64 KiB, those that are smaller than a
 * tile in a mip tail per layer.
 */
#include "array.h"
#include "module.h"

#define GOB_BYTES   64
#define GOB_ROWS    8
#define LEVEL_ALIGN 512

#define FLAGS                                                                                                          \
	(CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_SURFACE_LDST | CUDA_ARRAY3D_CUBEMAP | CUDA_ARRAY3D_TEXTURE_GATHER |       \
	 CUDA_ARRAY3D_DEPTH_TEXTURE | CUDA_ARRAY3D_COLOR_ATTACHMENT | CUDA_ARRAY3D_SPARSE |                            \
	 CUDA_ARRAY3D_DEFERRED_MAPPING | CUDA_ARRAY3D_VIDEO_ENCODE_DECODE)

enum shape { LINE, PLANE, VOLUME, LINES, PLANES, CUBE, CUBES };

/* Attributes that limit width, height and depth; 0: none does. */
struct limits {
	CUdevice_attribute width, height, depth;
};

#define TEXTURE(name) CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE##name
#define SURFACE(name) CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE##name

static const struct limits texture_limits[] = {
        [LINE] = {TEXTURE(1D_WIDTH), 0, 0},
        [PLANE] = {TEXTURE(2D_WIDTH), TEXTURE(2D_HEIGHT), 0},
        [VOLUME] = {TEXTURE(3D_WIDTH), TEXTURE(3D_HEIGHT), TEXTURE(3D_DEPTH)},
        [LINES] = {TEXTURE(1D_LAYERED_WIDTH), 0, TEXTURE(1D_LAYERED_LAYERS)},
        [PLANES] = {TEXTURE(2D_LAYERED_WIDTH), TEXTURE(2D_LAYERED_HEIGHT), TEXTURE(2D_LAYERED_LAYERS)},
        [CUBE] = {TEXTURE(CUBEMAP_WIDTH), TEXTURE(CUBEMAP_WIDTH), 0},
        [CUBES] = {TEXTURE(CUBEMAP_LAYERED_WIDTH), TEXTURE(CUBEMAP_LAYERED_WIDTH), TEXTURE(CUBEMAP_LAYERED_LAYERS)},
};
static const struct limits surface_limits[] = {
        [LINE] = {SURFACE(1D_WIDTH), 0, 0},
        [PLANE] = {SURFACE(2D_WIDTH), SURFACE(2D_HEIGHT), 0},
        [VOLUME] = {SURFACE(3D_WIDTH), SURFACE(3D_HEIGHT), SURFACE(3D_DEPTH)},
        [LINES] = {SURFACE(1D_LAYERED_WIDTH), 0, SURFACE(1D_LAYERED_LAYERS)},
        [PLANES] = {SURFACE(2D_LAYERED_WIDTH), SURFACE(2D_LAYERED_HEIGHT), SURFACE(2D_LAYERED_LAYERS)},
        [CUBE] = {SURFACE(CUBEMAP_WIDTH), SURFACE(CUBEMAP_WIDTH), 0},
        [CUBES] = {SURFACE(CUBEMAP_LAYERED_WIDTH), SURFACE(CUBEMAP_LAYERED_WIDTH), SURFACE(CUBEMAP_LAYERED_LAYERS)},
};
static const struct limits other_volume = {TEXTURE(3D_WIDTH_ALTERNATE), TEXTURE(3D_HEIGHT_ALTERNATE),
                                           TEXTURE(3D_DEPTH_ALTERNATE)};
static const struct limits gather_limits = {TEXTURE(2D_GATHER_WIDTH), TEXTURE(2D_GATHER_HEIGHT), 0};
static const struct limits mipmap_limits[] = {
        [LINE] = {TEXTURE(1D_MIPMAPPED_WIDTH), 0, 0},
        [PLANE] = {TEXTURE(2D_MIPMAPPED_WIDTH), TEXTURE(2D_MIPMAPPED_HEIGHT), 0},
};

/* ---- what is allowed ---------------------------------------------------------------------------------------------- */

bool sim_array_layered(const CUDA_ARRAY3D_DESCRIPTOR *desc)
{
	return desc->Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP);
}

static CUresult shape_of(const CUDA_ARRAY3D_DESCRIPTOR *desc, enum shape *shape)
{
	bool layered = desc->Flags & CUDA_ARRAY3D_LAYERED;

	if (!desc->Width || (desc->Flags & ~(unsigned)FLAGS))
		return CUDA_ERROR_INVALID_VALUE;
	if (desc->Flags & CUDA_ARRAY3D_CUBEMAP) {
		*shape = layered ? CUBES : CUBE;
		bool faces = layered ? desc->Depth && desc->Depth % 6 == 0 : desc->Depth == 6;
		return faces && desc->Width == desc->Height ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
	}
	if (layered) {
		*shape = desc->Height ? PLANES : LINES;
		return desc->Depth ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
	}
	*shape = desc->Depth ? VOLUME : desc->Height ? PLANE : LINE;
	return desc->Depth && !desc->Height ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

static bool within(int device, const struct limits *limits, const CUDA_ARRAY3D_DESCRIPTOR *desc)
{
	return desc->Width <= (size_t)sim_shared_limit(device, limits->width) &&
	       (!limits->height || desc->Height <= (size_t)sim_shared_limit(device, limits->height)) &&
	       (!limits->depth || desc->Depth <= (size_t)sim_shared_limit(device, limits->depth));
}

static bool fits(int device, enum shape shape, const CUDA_ARRAY3D_DESCRIPTOR *desc, bool mipmap)
{
	const struct limits *limits = &texture_limits[shape];

	if (mipmap && (shape == LINE || shape == PLANE))
		limits = &mipmap_limits[shape];
	if ((desc->Flags & CUDA_ARRAY3D_SURFACE_LDST) && !within(device, &surface_limits[shape], desc))
		return false;
	if (desc->Flags & CUDA_ARRAY3D_TEXTURE_GATHER)
		return shape == PLANE && within(device, &gather_limits, desc);
	return within(device, limits, desc) || (shape == VOLUME && within(device, &other_volume, desc));
}

static bool channels_right(const struct ptg_array_format *format, unsigned channels)
{
	if (format->channels)
		return channels == format->channels;
	return channels == 1 || channels == 2 || channels == 4;
}

CUresult sim_array_check(int device, const CUDA_ARRAY3D_DESCRIPTOR *desc, bool mipmap)
{
	const struct ptg_array_format *format = ptg_array_format((int)desc->Format);
	unsigned later = desc->Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING);
	enum shape shape;
	CUresult result = shape_of(desc, &shape);

	if (result != CUDA_SUCCESS)
		return result;
	if (!format || !channels_right(format, desc->NumChannels) || !fits(device, shape, desc, mipmap))
		return CUDA_ERROR_INVALID_VALUE;
	if (format->block > 1 && (!desc->Height || desc->Width % format->block || desc->Height % format->block))
		return CUDA_ERROR_INVALID_VALUE;
	for (unsigned i = 0; i < format->planes; i++) {
		size_t across = (size_t)1 << format->plane[i].narrower, down = (size_t)1 << format->plane[i].lower;
		if (shape != PLANE || mipmap || desc->Width % across || desc->Height % down)
			return CUDA_ERROR_INVALID_VALUE;
	}
	if (later && (later == (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING) ||
	              (shape != PLANE && shape != VOLUME && shape != PLANES) ||
	              (format->planes && (later & CUDA_ARRAY3D_SPARSE))))
		return CUDA_ERROR_INVALID_VALUE;
	return CUDA_SUCCESS;
}

/* ---- layout ------------------------------------------------------------------------------------------------------- */

static size_t half(size_t n, unsigned times)
{
	return n == 0 ? 0 : n >> times ? n >> times : 1;
}

static void measure(struct sim_array *array)
{
	const CUDA_ARRAY3D_DESCRIPTOR *desc = &array->desc;
	size_t edge = array->format->block, unit = ptg_array_unit(array->format, desc->NumChannels);

	array->extent.width = (desc->Width + edge - 1) / edge * unit;
	array->extent.height = desc->Height ? (desc->Height + edge - 1) / edge : 1;
	array->extent.depth = desc->Depth ? desc->Depth : 1;
}

/* Rows one after another, from `at` on; returns where they end. */
static uint64_t lay_rows(struct sim_array *array, uint64_t at)
{
	array->pitch = sim_round_up(array->extent.width, GOB_BYTES);
	array->slice = array->pitch * sim_round_up(array->extent.height, GOB_ROWS);
	array->offset = at;
	return sim_round_up(at + array->slice * array->extent.depth, LEVEL_ALIGN);
}

/* The shape of 64 KiB for elements of a size: as square, or cubic, as powers of two can be. */
static struct sim_tiling tile_of(const struct sim_array *array)
{
	size_t unit = ptg_array_unit(array->format, array->desc.NumChannels);
	struct sim_tiling tile = {1, 1, 1};
	bool volume = array->desc.Depth && !sim_array_layered(&array->desc);

	for (size_t left = SIM_ARRAY_PAGE / unit; left > 1; left /= 2) {
		if (tile.width <= tile.height && tile.width <= tile.depth * (volume ? 1 : SIM_ARRAY_PAGE))
			tile.width *= 2;
		else if (!volume || tile.height <= tile.depth)
			tile.height *= 2;
		else
			tile.depth *= 2;
	}
	tile.width *= unit;
	return tile;
}

static bool spans(const struct sim_array *array, const struct sim_tiling *tile)
{
	return array->extent.width >= tile->width && array->extent.height >= tile->height &&
	       array->extent.depth >= tile->depth;
}

static uint64_t lay_tiles(struct sim_array *array, const struct sim_tiling *tile, uint64_t at)
{
	array->tile = *tile;
	array->offset = at;
	array->pitch = (array->extent.width + tile->width - 1) / tile->width * SIM_ARRAY_PAGE; /* a row of tiles */
	array->slice = (array->extent.height + tile->height - 1) / tile->height * array->pitch;
	return at + (array->extent.depth + tile->depth - 1) / tile->depth * array->slice;
}

/* Levels of at least a tile first, then for each layer the tail of all others. */
static uint64_t lay_sparse(struct sim_texels *texels)
{
	struct sim_array *array = texels->array;
	struct sim_tiling tile = tile_of(array);
	size_t layers = sim_array_layered(&array->desc) ? array->extent.depth : 1;
	unsigned i = 0;
	uint64_t at = 0, in_tail = 0;

	for (; i < texels->parts && spans(&array[i], &tile); i++)
		at = lay_tiles(&array[i], &tile, at);
	array[0].tile = tile; /* also where the whole array is a tail */
	texels->tail_first = i;
	texels->tail_offset = at;
	for (; i < texels->parts; i++) {
		array[i].tail = true;
		array[i].pitch = sim_round_up(array[i].extent.width, GOB_BYTES);
		array[i].offset = at + in_tail;
		array[i].slice = array[i].pitch * sim_round_up(array[i].extent.height, GOB_ROWS);
		in_tail += sim_round_up(array[i].slice * (layers > 1 ? 1 : array[i].extent.depth), LEVEL_ALIGN);
	}
	texels->tail_bytes = sim_round_up(in_tail, SIM_ARRAY_PAGE);
	for (i = texels->tail_first; i < texels->parts; i++)
		if (layers > 1)
			array[i].slice = texels->tail_bytes; /* layers follow one another as whole tails */
	return at + texels->tail_bytes * layers;
}

static void add_planes(struct sim_texels *texels)
{
	const struct sim_array *whole = &texels->array[0];
	const struct ptg_array_format *format = whole->format;

	for (unsigned i = 0; i < format->planes; i++) {
		struct sim_array *plane = &texels->array[texels->parts++];
		plane->desc = whole->desc;
		plane->desc.Width >>= format->plane[i].narrower;
		plane->desc.Height >>= format->plane[i].lower;
		plane->desc.NumChannels = format->plane[i].channels;
		plane->desc.Format = (CUarray_format)format->plane_format;
	}
}

void sim_texels_lay(struct sim_texels *texels, const CUDA_ARRAY3D_DESCRIPTOR *desc, unsigned levels)
{
	uint64_t at = 0;

	texels->levels = levels;
	texels->parts = levels ? levels : 1;
	texels->sparse = desc->Flags & CUDA_ARRAY3D_SPARSE;
	texels->deferred = desc->Flags & CUDA_ARRAY3D_DEFERRED_MAPPING;
	for (unsigned i = 0; i < texels->parts; i++) {
		texels->array[i].desc = *desc;
		texels->array[i].desc.Width = half(desc->Width, i);
		texels->array[i].desc.Height = half(desc->Height, i);
		if (!sim_array_layered(desc))
			texels->array[i].desc.Depth = half(desc->Depth, i);
		texels->array[i].format = ptg_array_format((int)desc->Format);
	}
	if (texels->array[0].format->planes)
		add_planes(texels);
	for (unsigned i = 0; i < texels->parts; i++) {
		struct sim_array *array = &texels->array[i];
		array->texels = texels;
		array->format = ptg_array_format((int)array->desc.Format);
		if (!array->format->planes)
			measure(array);
	}
	if (texels->sparse)
		at = lay_sparse(texels);
	for (unsigned i = 0; i < texels->parts && !texels->sparse; i++)
		if (!texels->array[i].format->planes)
			at = lay_rows(&texels->array[i], at);
	texels->bytes = sim_round_up(at, SIM_ARRAY_PAGE);
}
