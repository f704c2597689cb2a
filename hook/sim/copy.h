/* copy.h: what copies and fills share: which memory a call names, and how its work gets into the stream. */
#ifndef PARTAGE_SIM_COPY_H
#define PARTAGE_SIM_COPY_H

#include "sim.h"

struct sim_array; /* array.h */

/* What the entry point says of a pointer. */
enum sim_side { SIM_SIDE_HOST, SIM_SIDE_DEVICE, SIM_SIDE_ANY, SIM_SIDE_ARRAY };

/* What the pointer really is. */
struct sim_place {
	bool device;      /* memory of a device */
	bool pageable;    /* the program's own, not registered */
	bool sync_memops; /* the program asked that work on it be waited for */
	int owner;        /* index of that device */
};

/* Is [p, p+n) memory that the context may touch? CUDA_ERROR_INVALID_VALUE if not. n > 0. */
CUresult sim_place_of(struct sim_context *context, enum sim_side side, uint64_t p, uint64_t n, bool write,
                      struct sim_place *place);

/* Where in an array a copy begins: bytes of the row, row, layer. */
struct sim_spot {
	size_t x, y, z;
};

/* One row after another: rows of width bytes, `height` of them, `depth` times. */
struct sim_box {
	uint64_t dst, src;
	size_t dst_pitch, dst_slice, src_pitch, src_slice;
	size_t width, height, depth;
	void *staging; /* freed after the copy */
	struct sim_array *dst_array, *src_array; /* instead of an address, NULL: none */
	struct sim_spot dst_at, src_at;
};

/* Which unit of the context's device copies n bytes from here to there, and for how long. */
void sim_copy_cost(const struct sim_context *context, const struct sim_place *dst, const struct sim_place *src,
                   size_t n, struct sim_work *work);
/* Runs a copy (arg: a struct sim_box); it may be queued with whole boxes as arguments. */
void sim_copy_run(void *arg);
/* What cuMemcpy3D is asked for, checked against this context. */
CUresult sim_box_of(struct sim_context *context, const CUDA_MEMCPY3D *params, struct sim_box *box,
                    struct sim_place *dst, struct sim_place *src);

/* The other way round: what cuMemcpy3D would be asked for. */
void sim_box_params(const struct sim_box *box, const struct sim_place *dst, const struct sim_place *src,
                    CUDA_MEMCPY3D *params);

/* Rows of one value. */
struct sim_fill {
	uint64_t dst;
	size_t pitch, width, height; /* width in elements */
	unsigned value, element;     /* element: 1, 2 or 4 bytes */
	int drop;                    /* MADV_* that makes whole pages zero, 0: none */
};
/* Checks a fill and makes work of it. width, height > 0. */
CUresult sim_fill_work(struct sim_context *context, const struct sim_fill *fill, struct sim_place *place,
                       struct sim_work *work);

/* copy_array.c: runs a copy with an array at an end. */
void sim_copy_arrays(const struct sim_box *box);
/* Is there such a part of the array? In whole elements; CUDA_ERROR_INVALID_VALUE if not. */
CUresult sim_array_part(const struct sim_array *array, const struct sim_spot *at, size_t width, size_t height,
                        size_t depth);
/* Queues the copy. A synchronous one waits where the real driver does: not between devices. An asynchronous one from
 * pageable memory has read it when this returns, and one into pageable memory has written it. */
CUresult sim_copy(struct sim_context *context, CUstream stream, const struct sim_box *box, const struct sim_place *dst,
                  const struct sim_place *src, bool synchronous);

#endif
