/* copy_array.c: copies with a CUDA array at an end: what runs them, and cuMemcpyAtoA, AtoD, DtoA, AtoH and HtoA.
 *
 * Called by programs and, for cuMemcpy2D and 3D, by copy_box.c and copy_batch.c. The old linear forms name bytes of the
 * array's first row. A region must lie in the array and be made of whole elements, and a handle
 * must be live (CUDA_ERROR_INVALID_VALUE). A graph that runs when the array is gone copies nothing.
 */
#include <string.h>

#include "array.h"
#include "context.h"
#include "copy.h"
#include "multicast.h"
#include "sim_impl.h"

/* ---- running ------------------------------------------------------------------------------------------------------ */

static char *memory_at(uint64_t start, size_t pitch, size_t slice, size_t x, size_t y, size_t z)
{
	return (char *)(uintptr_t)(start + z * slice + y * pitch + x);
}

static void copy_row(const struct sim_box *box, size_t y, size_t z)
{
	for (size_t x = 0, n; x < box->width; x += n) {
		const struct sim_spot *to = &box->dst_at, *from = &box->src_at;
		n = box->width - x;
		char *dst = box->dst_array ? sim_array_at(box->dst_array, to->x + x, to->y + y, to->z + z, &n)
		                           : memory_at(box->dst, box->dst_pitch, box->dst_slice, x, y, z);
		char *src = box->src_array ? sim_array_at(box->src_array, from->x + x, from->y + y, from->z + z, &n)
		                           : memory_at(box->src, box->src_pitch, box->src_slice, x, y, z);
		if (dst && src)
			memmove(dst, src, n);
		else if (dst)
			memset(dst, 0, n);
		if (dst && !box->dst_array)
			sim_multicast_stored((uint64_t)(uintptr_t)dst, n);
	}
}

void sim_copy_arrays(const struct sim_box *box)
{
	if ((box->dst_array && !sim_array_of((CUarray)box->dst_array)) ||
	    (box->src_array && !sim_array_of((CUarray)box->src_array)))
		return;
	for (size_t z = 0; z < box->depth; z++)
		for (size_t y = 0; y < box->height; y++)
			copy_row(box, y, z);
}

static bool within(size_t from, size_t n, size_t edge)
{
	return from <= edge && n <= edge - from;
}

CUresult sim_array_part(const struct sim_array *array, const struct sim_spot *at, size_t width, size_t height,
                        size_t depth)
{
	if (array->format->planes) /* only its planes hold anything */
		return CUDA_ERROR_INVALID_VALUE;
	size_t unit = sim_array_unit(array);
	return at->x % unit == 0 && width % unit == 0 && within(at->x, width, array->extent.width) &&
	                       within(at->y, height, array->extent.height) && within(at->z, depth, array->extent.depth)
	               ? CUDA_SUCCESS
		       : CUDA_ERROR_INVALID_VALUE;
}

/* ---- one row ------------------------------------------------------------------------------------------------------ */

struct end {
	enum sim_side side;
	CUarray array; /* NULL: an address */
	uint64_t at;   /* offset in the array, or the address */
};

static CUresult resolve(struct sim_context *context, const struct end *end, size_t n, bool write, uint64_t *start,
                        struct sim_array **array, struct sim_spot *spot, struct sim_place *place)
{
	*place = (struct sim_place){.device = true};
	if (end->side != SIM_SIDE_ARRAY) {
		*start = end->at;
		return sim_place_of(context, end->side, end->at, n, write, place);
	}
	*array = sim_array_of(end->array);
	*spot = (struct sim_spot){.x = end->at};
	if (*array)
		place->owner = (*array)->texels->device;
	return *array ? sim_array_part(*array, spot, n, 1, 1) : CUDA_ERROR_INVALID_VALUE;
}

static CUresult copy(struct end dst, struct end src, size_t n, CUstream stream, bool synchronous)
{
	struct sim_place dst_place, src_place;
	struct sim_box box = {.width = n, .height = 1, .depth = 1};
	struct sim_context *context;
	CUresult result = sim_require(&context);

	if (result != CUDA_SUCCESS || n == 0)
		return result;
	result = resolve(context, &dst, n, true, &box.dst, &box.dst_array, &box.dst_at, &dst_place);
	if (result == CUDA_SUCCESS)
		result = resolve(context, &src, n, false, &box.src, &box.src_array, &box.src_at, &src_place);
	return result == CUDA_SUCCESS ? sim_copy(context, stream, &box, &dst_place, &src_place, synchronous) : result;
}

static struct end array_end(CUarray array, size_t offset)
{
	return (struct end){SIM_SIDE_ARRAY, array, offset};
}

static struct end device_end(CUdeviceptr p)
{
	return (struct end){SIM_SIDE_DEVICE, NULL, p};
}

static struct end host_end(const void *p)
{
	return (struct end){SIM_SIDE_HOST, NULL, (uint64_t)(uintptr_t)p};
}

CUresult sim_cuMemcpyDtoA_v2(CUarray dst, size_t offset, CUdeviceptr src, size_t n)
{
	return copy(array_end(dst, offset), device_end(src), n, NULL, true);
}

CUresult sim_cuMemcpyAtoD_v2(CUdeviceptr dst, CUarray src, size_t offset, size_t n)
{
	return copy(device_end(dst), array_end(src, offset), n, NULL, true);
}

CUresult sim_cuMemcpyHtoA_v2(CUarray dst, size_t offset, const void *src, size_t n)
{
	return copy(array_end(dst, offset), host_end(src), n, NULL, true);
}

CUresult sim_cuMemcpyAtoH_v2(void *dst, CUarray src, size_t offset, size_t n)
{
	return copy(host_end(dst), array_end(src, offset), n, NULL, true);
}

CUresult sim_cuMemcpyAtoA_v2(CUarray dst, size_t dst_offset, CUarray src, size_t src_offset, size_t n)
{
	return copy(array_end(dst, dst_offset), array_end(src, src_offset), n, NULL, true);
}

CUresult sim_cuMemcpyHtoAAsync_v2(CUarray dst, size_t offset, const void *src, size_t n, CUstream stream)
{
	return copy(array_end(dst, offset), host_end(src), n, stream, false);
}

CUresult sim_cuMemcpyAtoHAsync_v2(void *dst, CUarray src, size_t offset, size_t n, CUstream stream)
{
	return copy(host_end(dst), array_end(src, offset), n, stream, false);
}

CUresult sim_cuMemcpyDtoA(CUarray dst, unsigned int offset, CUdeviceptr_v1 src, unsigned int n)
{
	return sim_cuMemcpyDtoA_v2(dst, offset, src, n);
}

CUresult sim_cuMemcpyAtoD(CUdeviceptr_v1 dst, CUarray src, unsigned int offset, unsigned int n)
{
	return sim_cuMemcpyAtoD_v2(dst, src, offset, n);
}

CUresult sim_cuMemcpyHtoA(CUarray dst, unsigned int offset, const void *src, unsigned int n)
{
	return sim_cuMemcpyHtoA_v2(dst, offset, src, n);
}

CUresult sim_cuMemcpyAtoH(void *dst, CUarray src, unsigned int offset, unsigned int n)
{
	return sim_cuMemcpyAtoH_v2(dst, src, offset, n);
}

CUresult sim_cuMemcpyAtoA(CUarray dst, unsigned int dst_offset, CUarray src, unsigned int src_offset, unsigned int n)
{
	return sim_cuMemcpyAtoA_v2(dst, dst_offset, src, src_offset, n);
}

CUresult sim_cuMemcpyHtoAAsync(CUarray dst, unsigned int offset, const void *src, unsigned int n, CUstream stream)
{
	return sim_cuMemcpyHtoAAsync_v2(dst, offset, src, n, stream);
}

CUresult sim_cuMemcpyAtoHAsync(void *dst, CUarray src, unsigned int offset, unsigned int n, CUstream stream)
{
	return sim_cuMemcpyAtoHAsync_v2(dst, src, offset, n, stream);
}
