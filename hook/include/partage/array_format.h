/* array_format.h: how large the elements of a CUDA array are: facts of cuda.h that the simulated driver lays arrays out
 * by, and the shim bounds their size by where a driver cannot be asked.
 *
 * Include after cuda.h. A format is one of: *channels* of a given width, 1, 2 or 4 of them as the descriptor says; an
 * *element* of fixed size; *blocks* of 4 x 4 elements; *planes*, arrays of their own that may be smaller than the whole.
 */
#ifndef PARTAGE_ARRAY_FORMAT_H
#define PARTAGE_ARRAY_FORMAT_H

#include <stddef.h>
#include <stdint.h>

struct ptg_array_plane {
	uint8_t channels;
	uint8_t narrower, lower; /* log2 of by how much */
};

struct ptg_array_format {
	int format; /* CUarray_format */
	uint8_t channel; /* bytes of a channel, where the descriptor counts them; else 0 */
	uint8_t channels; /* as the descriptor must say; 0: 1, 2 or 4 */
	uint8_t unit; /* bytes of an element or block; 0: channel x channels */
	uint8_t block; /* edge of a block in elements; 1: no blocks */
	uint8_t planes; /* 0: one array */
	int plane_format;
	struct ptg_array_plane plane[3];
};

#define PTG_CHANNELS(name, bytes)                                                                                      \
	{                                                                                                              \
		CU_AD_FORMAT_##name, bytes, 0, 0, 1, 0, 0,                                                             \
		{{0}}                                                                                                  \
	}
#define PTG_ELEMENT(name, channels, bytes)                                                                             \
	{                                                                                                              \
		CU_AD_FORMAT_##name, 0, channels, bytes, 1, 0, 0,                                                      \
		{{0}}                                                                                                  \
	}
#define PTG_BLOCKS(name, channels, bytes)                                                                              \
	{                                                                                                              \
		CU_AD_FORMAT_##name, 0, channels, bytes, 4, 0, 0,                                                      \
		{{0}}                                                                                                  \
	}
/* One plane of luminance, and colour in one of two channels (semi) or two of one. */
#define PTG_SEMI(name, part, narrower, lower)                                                                          \
	{                                                                                                              \
		CU_AD_FORMAT_##name, 0, 3, 0, 1, 2, CU_AD_FORMAT_##part,                                               \
		{                                                                                                      \
			{1, 0, 0},                                                                                     \
			{                                                                                              \
				2, narrower, lower                                                                     \
			}                                                                                              \
		}                                                                                                      \
	}
#define PTG_PLANAR(name, part, narrower, lower)                                                                        \
	{                                                                                                              \
		CU_AD_FORMAT_##name, 0, 3, 0, 1, 3, CU_AD_FORMAT_##part,                                               \
		{                                                                                                      \
			{1, 0, 0}, {1, narrower, lower},                                                               \
			{                                                                                              \
				1, narrower, lower                                                                     \
			}                                                                                              \
		}                                                                                                      \
	}

static const struct ptg_array_format ptg_array_formats[] = {
        PTG_CHANNELS(UNSIGNED_INT8, 1),
        PTG_CHANNELS(UNSIGNED_INT16, 2),
        PTG_CHANNELS(UNSIGNED_INT32, 4),
        PTG_CHANNELS(SIGNED_INT8, 1),
        PTG_CHANNELS(SIGNED_INT16, 2),
        PTG_CHANNELS(SIGNED_INT32, 4),
        PTG_CHANNELS(HALF, 2),
        PTG_CHANNELS(FLOAT, 4),
        PTG_ELEMENT(UNORM_INT8X1, 1, 1),
        PTG_ELEMENT(UNORM_INT8X2, 2, 2),
        PTG_ELEMENT(UNORM_INT8X4, 4, 4),
        PTG_ELEMENT(UNORM_INT16X1, 1, 2),
        PTG_ELEMENT(UNORM_INT16X2, 2, 4),
        PTG_ELEMENT(UNORM_INT16X4, 4, 8),
        PTG_ELEMENT(SNORM_INT8X1, 1, 1),
        PTG_ELEMENT(SNORM_INT8X2, 2, 2),
        PTG_ELEMENT(SNORM_INT8X4, 4, 4),
        PTG_ELEMENT(SNORM_INT16X1, 1, 2),
        PTG_ELEMENT(SNORM_INT16X2, 2, 4),
        PTG_ELEMENT(SNORM_INT16X4, 4, 8),
        PTG_ELEMENT(UNORM_INT_101010_2, 4, 4),
        PTG_ELEMENT(YUY2, 2, 2),
        PTG_ELEMENT(Y210, 2, 4),
        PTG_ELEMENT(Y216, 2, 4),
        PTG_ELEMENT(AYUV, 4, 4),
        PTG_ELEMENT(Y410, 4, 4),
        PTG_ELEMENT(Y416, 4, 8),
        PTG_ELEMENT(UINT8_PACKED_422, 4, 4),
        PTG_ELEMENT(UINT8_PACKED_444, 4, 4),
        PTG_BLOCKS(BC1_UNORM, 4, 8),
        PTG_BLOCKS(BC1_UNORM_SRGB, 4, 8),
        PTG_BLOCKS(BC2_UNORM, 4, 16),
        PTG_BLOCKS(BC2_UNORM_SRGB, 4, 16),
        PTG_BLOCKS(BC3_UNORM, 4, 16),
        PTG_BLOCKS(BC3_UNORM_SRGB, 4, 16),
        PTG_BLOCKS(BC4_UNORM, 1, 8),
        PTG_BLOCKS(BC4_SNORM, 1, 8),
        PTG_BLOCKS(BC5_UNORM, 2, 16),
        PTG_BLOCKS(BC5_SNORM, 2, 16),
        PTG_BLOCKS(BC6H_UF16, 3, 16),
        PTG_BLOCKS(BC6H_SF16, 3, 16),
        PTG_BLOCKS(BC7_UNORM, 4, 16),
        PTG_BLOCKS(BC7_UNORM_SRGB, 4, 16),
        PTG_SEMI(NV12, UNSIGNED_INT8, 1, 1),
        PTG_SEMI(P010, UNSIGNED_INT16, 1, 1),
        PTG_SEMI(P016, UNSIGNED_INT16, 1, 1),
        PTG_SEMI(NV16, UNSIGNED_INT8, 1, 0),
        PTG_SEMI(P210, UNSIGNED_INT16, 1, 0),
        PTG_SEMI(P216, UNSIGNED_INT16, 1, 0),
        PTG_SEMI(YUV444_8bit_SemiPlanar, UNSIGNED_INT8, 0, 0),
        PTG_SEMI(YUV444_16bit_SemiPlanar, UNSIGNED_INT16, 0, 0),
        PTG_SEMI(UINT8_SEMIPLANAR_420, UNSIGNED_INT8, 1, 1),
        PTG_SEMI(UINT16_SEMIPLANAR_420, UNSIGNED_INT16, 1, 1),
        PTG_SEMI(UINT8_SEMIPLANAR_422, UNSIGNED_INT8, 1, 0),
        PTG_SEMI(UINT16_SEMIPLANAR_422, UNSIGNED_INT16, 1, 0),
        PTG_SEMI(UINT8_SEMIPLANAR_444, UNSIGNED_INT8, 0, 0),
        PTG_SEMI(UINT16_SEMIPLANAR_444, UNSIGNED_INT16, 0, 0),
        PTG_PLANAR(Y444_PLANAR8, UNSIGNED_INT8, 0, 0),
        PTG_PLANAR(Y444_PLANAR10, UNSIGNED_INT16, 0, 0),
        PTG_PLANAR(UINT8_PLANAR_420, UNSIGNED_INT8, 1, 1),
        PTG_PLANAR(UINT16_PLANAR_420, UNSIGNED_INT16, 1, 1),
        PTG_PLANAR(UINT8_PLANAR_422, UNSIGNED_INT8, 1, 0),
        PTG_PLANAR(UINT16_PLANAR_422, UNSIGNED_INT16, 1, 0),
        PTG_PLANAR(UINT8_PLANAR_444, UNSIGNED_INT8, 0, 0),
        PTG_PLANAR(UINT16_PLANAR_444, UNSIGNED_INT16, 0, 0),
};

/* NULL: cuda.h has no such format. */
static inline const struct ptg_array_format *ptg_array_format(int format)
{
	for (size_t i = 0; i < sizeof(ptg_array_formats) / sizeof(ptg_array_formats[0]); i++)
		if (ptg_array_formats[i].format == format)
			return &ptg_array_formats[i];
	return NULL;
}

/* Bytes of an element, or block, of an array that is not made of planes. */
static inline uint64_t ptg_array_unit(const struct ptg_array_format *format, unsigned channels)
{
	return format->unit ? format->unit : (uint64_t)format->channel * channels;
}

#endif
