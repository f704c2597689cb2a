/* copy.h: what copies and fills share: which memory a call names, and how its work gets into the stream. */
#ifndef PARTAGE_SIM_COPY_H
#define PARTAGE_SIM_COPY_H

#include "sim.h"

/* What the entry point says of a pointer. */
enum sim_side { SIM_SIDE_HOST, SIM_SIDE_DEVICE, SIM_SIDE_ANY };

/* What the pointer really is. */
struct sim_place {
	bool device;      /* memory of a device */
	bool pageable;    /* the program's own, not registered */
	bool sync_memops; /* the program asked that work on it be waited for */
};

/* Is [p, p+n) memory that the context may touch? CUDA_ERROR_INVALID_VALUE if not. n > 0. */
CUresult sim_place_of(struct sim_context *context, enum sim_side side, uint64_t p, uint64_t n, bool write,
                      struct sim_place *place);

/* One row after another: rows of width bytes, `height` of them, `depth` times. */
struct sim_box {
	uint64_t dst, src;
	size_t dst_pitch, dst_slice, src_pitch, src_slice;
	size_t width, height, depth;
	void *staging; /* freed after the copy */
};

/* Queues the copy. A synchronous one waits where the real driver does: not between devices. An asynchronous one from
 * pageable memory has read it when this returns, and one into pageable memory has written it. */
CUresult sim_copy(struct sim_context *context, CUstream stream, const struct sim_box *box, const struct sim_place *dst,
                  const struct sim_place *src, bool synchronous);

#endif
