/* array.h: CUDA arrays and mip-maps, as the array*.c, copy*.c and texture*.c files share them.
 *
 * *Texels* is the memory of one array or mip-map, with an *array* for each thing in it that a program may name: the
 * array itself, its planes, the levels. Texels have whole granules of their own, since nobody names them by address, so
 * that a neighbour in the same granule could not be told. Sparse and deferred ones have room only, in *pages* of 64 KiB
 * onto which allocation handles are mapped (array_map.c). Extents and offsets below are in bytes of a row, rows, and
 * layers or slices; rows of a compressed format are rows of blocks.
 */
#ifndef PARTAGE_SIM_ARRAY_H
#define PARTAGE_SIM_ARRAY_H

#include "blocks.h"
#include "context.h"
#include "partage/array_format.h"

#define SIM_ARRAY_PAGE  UINT64_C(65536)
#define SIM_ARRAY_PARTS 18 /* levels, or an array and its planes */

struct sim_extent {
	size_t width, height, depth;
};

/* Elements of a tile of a sparse array; width 0: rows lie one after another. */
struct sim_tiling {
	size_t width, height, depth; /* bytes, rows, slices */
};

struct sim_texels;

struct sim_array {
	uint32_t tag; /* SIM_TAG_ARRAY */
	struct sim_texels *texels;
	const struct ptg_array_format *format;
	CUDA_ARRAY3D_DESCRIPTOR desc; /* as a program reads it back */
	struct sim_extent extent;
	uint64_t offset;     /* of its first byte from the texels' start */
	size_t pitch, slice; /* bytes from row to row, from layer to layer */
	struct sim_tiling tile;
	bool tail;           /* sparse: in the mip tail */
};

struct sim_texels {
	uint32_t tag; /* SIM_TAG_MIPMAP where it is one */
	int device;
	struct sim_context *context;
	struct sim_texels *next, *previous; /* the context's */
	uint64_t start, bytes; /* bytes: of the layout, in whole SIM_ARRAY_PAGE */
	unsigned levels; /* 0: an array */
	unsigned parts;
	bool sparse, deferred;
	unsigned tail_first;   /* sparse: first level of the mip tail; levels: there is none */
	uint64_t tail_offset, tail_bytes; /* of the first layer's tail; of one layer */
	struct sim_allocation *
	        *page; /* what each page is mapped onto, NULL: nothing; itself NULL: not sparse or deferred */
	struct sim_allocation *external; /* whose memory it has, mapped for it alone; NULL: memory of its own */
	uint64_t external_offset; /* where the texels begin in it */
	struct sim_array array[SIM_ARRAY_PARTS];
};

/* ---- array_shape.c ------------------------------------------------------------------------------------------------ */

/* May a device have this array, or mip-map? CUDA_ERROR_INVALID_VALUE if not. */
CUresult sim_array_check(int device, const CUDA_ARRAY3D_DESCRIPTOR *desc, bool mipmap);
bool sim_array_layered(const CUDA_ARRAY3D_DESCRIPTOR *desc); /* its depth counts layers (or faces) */
/* Fills in arrays, extents, offsets and bytes. The descriptor was checked. */
void sim_texels_lay(struct sim_texels *texels, const CUDA_ARRAY3D_DESCRIPTOR *desc, unsigned levels);

/* ---- array.c ------------------------------------------------------------------------------------------------------ */

/* Memory that is there already: part of an allocation of external memory. */
struct sim_texels_place {
	CUmemGenericAllocationHandle allocation;
	uint64_t offset, size;
};

/* New texels in the current context; levels 0: an array. `place` NULL: in memory of their own. */
CUresult sim_texels_new(const CUDA_ARRAY3D_DESCRIPTOR *desc, unsigned levels, const struct sim_texels_place *place,
                        struct sim_texels **out);
/* Destroys what is no longer live; the context has been waited for. */
void sim_texels_free(struct sim_texels *texels);
struct sim_array *sim_array_of(CUarray handle); /* NULL: not live */
struct sim_texels *sim_mipmap_of(CUmipmappedArray handle);
/* Where a byte of an array lies, and how many follow it (at most *n); NULL: nothing is mapped there. */
char *sim_array_at(const struct sim_array *array, size_t x, size_t y, size_t z, size_t *n);
/* Bytes of what copies count as an element: a block for compressed formats. */
size_t sim_array_unit(const struct sim_array *array);

/* ---- mipmap.c ----------------------------------------------------------------------------------------------------- */

/* A mip-map over external memory. */
CUresult sim_mipmap_over(const struct sim_texels_place *place, const CUDA_ARRAY3D_DESCRIPTOR *desc, unsigned levels,
                         CUmipmappedArray *out);

/* ---- array_map.c -------------------------------------------------------------------------------------------------- */

bool sim_texels_reserve(struct sim_texels *texels); /* room without memory; false: none */
void sim_texels_unreserve(struct sim_texels *texels);

#endif
