/* array.c: arrays and mip-maps: cuArrayCreate*, cuArray3DCreate*, cuMipmappedArrayCreate and their ends.
 *
 * The driver chooses how an array lies in memory and names it by a handle, not an address. What it takes is asked before
 * it is made: the same array with deferred mapping takes no memory, and the driver says what it would need. Where it does
 * not say (older drivers, shapes that cannot be deferred), a bound is charged that no block-linear layout exceeds.
 * Either way in whole 2 MiB, since neighbours in one granule cannot be told apart. Answers are remembered, so that a
 * program that makes many alike pays once.
 * Sparse and deferred arrays cost nothing: their memory is an allocation handle's (vmm.c, map_array.c). Arrays that are
 * somebody else's (levels, planes, of graphics) are not in the table, and go to the driver as they are; of external memory
 * (external.c) they end here, too.
 * What can go wrong: no host memory for the record; the array is destroyed again and refused.
 */
#include <pthread.h>

#include "hooks.h"
#include "memory.h"
#include "partage/array_format.h"

#define IMPOSSIBLE (UINT64_C(1) << 46) /* bytes that no device has: the driver's own error is due */
#define ROW_BYTES  64                  /* a tile of a block-linear layout ... */
#define ROWS       8
#define MOST_ROWS  256 /* ... of which a block stacks at most this many rows, and slices */
#define MOST_DEPTH 32

/* What a program asks for; `levels` 0: an array. */
struct wish {
	CUDA_ARRAY3D_DESCRIPTOR desc;
	unsigned levels;
	CUdevice device;
};

/* ---- what the descriptor tells -------------------------------------------------------------------------------------- */

static uint64_t product(uint64_t a, uint64_t b)
{
	return __builtin_mul_overflow(a, b, &a) ? UINT64_MAX : a;
}

static uint64_t sum(uint64_t a, uint64_t b)
{
	return __builtin_add_overflow(a, b, &a) ? UINT64_MAX : a;
}

/* Up to a multiple of what blocks stack, but a small level has smaller blocks. */
static uint64_t stacked(uint64_t n, uint64_t least, uint64_t most)
{
	uint64_t power = least;
	while (power < n && power < most)
		power *= 2;
	return vgpu_round_up(n, power);
}

static uint64_t level_bytes(const CUDA_ARRAY3D_DESCRIPTOR *desc, const struct ptg_array_format *format, bool bound)
{
	uint64_t edge = format->block, unit = ptg_array_unit(format, desc->NumChannels);
	uint64_t row = product((desc->Width + edge - 1) / edge, unit),
	         rows = desc->Height ? (desc->Height + edge - 1) / edge : 1, depth = desc->Depth ? desc->Depth : 1;
	if (bound) {
		row = vgpu_round_up(row, ROW_BYTES);
		rows = stacked(rows, ROWS, MOST_ROWS);
		if (!(desc->Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP)))
			depth = stacked(depth, 1, MOST_DEPTH);
	}
	return product(product(row, rows), depth);
}

static CUDA_ARRAY3D_DESCRIPTOR smaller(const CUDA_ARRAY3D_DESCRIPTOR *desc, unsigned across, unsigned down)
{
	CUDA_ARRAY3D_DESCRIPTOR part = *desc;
	part.Width = part.Width >> across ? part.Width >> across : 1;
	if (part.Height)
		part.Height = part.Height >> down ? part.Height >> down : 1;
	return part;
}

/* Bytes of the elements as such (never more than the driver takes) or, as a bound, with all that a layout may add. */
static uint64_t described(const struct wish *w, bool bound)
{
	static const struct ptg_array_format unknown = {.unit = 64, .block = 1};
	const struct ptg_array_format *format = ptg_array_format((int)w->desc.Format);
	uint64_t bytes = 0;
	if (format == NULL && !bound)
		return 0;
	if (format == NULL)
		format = &unknown;
	for (unsigned i = 0; i < format->planes; i++) {
		CUDA_ARRAY3D_DESCRIPTOR part = smaller(&w->desc, format->plane[i].narrower, format->plane[i].lower);
		part.NumChannels = format->plane[i].channels;
		const struct ptg_array_format *of_plane = ptg_array_format(format->plane_format);
		bytes = sum(bytes, of_plane != NULL ? level_bytes(&part, of_plane, bound) : UINT64_MAX);
	}
	if (format->planes)
		return bytes;
	bool layered = w->desc.Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP);
	for (unsigned i = 0; i < (w->levels ? w->levels : 1) && i < 64; i++) {
		CUDA_ARRAY3D_DESCRIPTOR part = smaller(&w->desc, i, i);
		if (w->desc.Depth && !layered)
			part.Depth = w->desc.Depth >> i ? w->desc.Depth >> i : 1;
		bytes = sum(bytes, level_bytes(&part, format, bound));
		if (part.Width == 1 && part.Height <= 1 && (layered || part.Depth <= 1))
			break; /* no level below a single element; drivers clamp what is asked for */
	}
	return bytes;
}

/* ---- what the driver tells ------------------------------------------------------------------------------------------ */

static bool asked(const struct wish *w, uint64_t *bytes)
{
	CUDA_ARRAY3D_DESCRIPTOR desc = w->desc;
	CUDA_ARRAY_MEMORY_REQUIREMENTS need = {0};
	CUmipmappedArray mipmap;
	CUarray array;
	CUresult error;
	desc.Flags |= CUDA_ARRAY3D_DEFERRED_MAPPING;
	if (w->levels != 0) {
		if (real_cuMipmappedArrayCreate(&mipmap, &desc, w->levels) != CUDA_SUCCESS)
			return false;
		error = real_cuMipmappedArrayGetMemoryRequirements(&need, mipmap, w->device);
		real_cuMipmappedArrayDestroy(mipmap);
	} else {
		if (real_cuArray3DCreate_v2(&array, &desc) != CUDA_SUCCESS)
			return false;
		error = real_cuArrayGetMemoryRequirements(&need, array, w->device);
		real_cuArrayDestroy(array);
	}
	*bytes = need.size;
	return error == CUDA_SUCCESS && need.size != 0;
}

/* Answers by descriptor. A slot holds the latest that falls into it. */
#define ANSWERS 256
static struct answer {
	struct wish wish;
	uint64_t bytes; /* 0: empty */
} answers[ANSWERS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* process-private, never held across a driver call */

static bool alike(const struct wish *a, const struct wish *b)
{
	return a->desc.Width == b->desc.Width && a->desc.Height == b->desc.Height && a->desc.Depth == b->desc.Depth &&
	       a->desc.Format == b->desc.Format && a->desc.NumChannels == b->desc.NumChannels &&
	       a->desc.Flags == b->desc.Flags && a->levels == b->levels && a->device == b->device;
}

static struct answer *slot_of(const struct wish *w)
{
	uint64_t h = w->desc.Width * UINT64_C(0x9e3779b97f4a7c15) + w->desc.Height;
	h = h * UINT64_C(0x9e3779b97f4a7c15) + w->desc.Depth;
	h = h * UINT64_C(0x9e3779b97f4a7c15) + ((uint64_t)w->desc.Format << 16 | w->desc.NumChannels);
	h = h * UINT64_C(0x9e3779b97f4a7c15) + ((uint64_t)w->desc.Flags << 16 | w->levels << 8 | (uint64_t)w->device);
	return &answers[(h * UINT64_C(0x9e3779b97f4a7c15)) >> 56];
}

static uint64_t remembered(const struct wish *w)
{
	const struct answer *slot = slot_of(w);
	pthread_mutex_lock(&lock);
	uint64_t bytes = alike(&slot->wish, w) ? slot->bytes : 0;
	pthread_mutex_unlock(&lock);
	return bytes;
}

static uint64_t needed(const struct wish *w)
{
	uint64_t bytes = remembered(w);
	if (bytes != 0)
		return bytes;
	CUstreamCaptureMode before = vgpu_relax();
	bool known = asked(w, &bytes);
	vgpu_unrelax(before);
	if (!known)
		bytes = described(w, true);
	pthread_mutex_lock(&lock);
	*slot_of(w) = (struct answer){*w, bytes};
	pthread_mutex_unlock(&lock);
	return bytes;
}

/* ---- making --------------------------------------------------------------------------------------------------------- */

struct creation {
	struct wish wish;
	const void *desc; /* as the program gave it */
	CUresult (*driver)(void **out, const struct creation *how);
	CUresult (*destroy)(void *handle);
};

/* The least it can take first: what does not fit so goes to no driver. Then what the driver says it will take. */
static CUresult reserve(const struct wish *w, uint64_t *charged)
{
	uint64_t least = vgpu_first_reservation(described(w, false));
	CUresult error = vgpu_reserve_or_reclaim(w->device, least);
	if (error != CUDA_SUCCESS)
		return error;
	uint64_t bytes = vgpu_round_up(needed(w), VGPU_GRANULE);
	if (bytes > least)
		error = vgpu_reserve_or_reclaim(w->device, bytes - least);
	else
		vgpu_give_back(w->device, least - bytes);
	if (error != CUDA_SUCCESS)
		vgpu_give_back(w->device, least);
	*charged = bytes;
	return error;
}

static bool costs_nothing(const struct wish *w)
{
	return w->desc.Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING);
}

/* Sparse or deferred: known, so that what is mapped into it ends with it. */
static CUresult create_unbacked(void **out, const struct creation *how)
{
	CUdevice device;
	CUcontext context;
	void *handle = NULL;
	CUresult error = vgpu_place(&device, &context);
	if (error == CUDA_SUCCESS)
		error = how->driver(&handle, how);
	if (error != CUDA_SUCCESS)
		return error;
	if (!vgpu_mapped_array_add(handle, context, how->wish.desc.Flags & CUDA_ARRAY3D_DEFERRED_MAPPING)) {
		how->destroy(handle);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*out = handle;
	return CUDA_SUCCESS;
}

static CUresult create(void **out, struct creation *how)
{
	struct wish *w = &how->wish;
	struct vgpu_block block = {.kind = VGPU_EXACT};
	void *handle = NULL;
	if (costs_nothing(w))
		return create_unbacked(out, how);
	if (w->desc.Width == 0 || described(w, false) > IMPOSSIBLE)
		return how->driver(out, how);
	/* Without a context of this thread nothing can be made, and the driver says why. */
	if (vgpu_place(&block.device, &block.context) != CUDA_SUCCESS)
		return how->driver(out, how);
	w->device = block.device;
	CUresult error = reserve(w, &block.bytes);
	if (error != CUDA_SUCCESS)
		return error;
	error = how->driver(&handle, how);
	if (error != CUDA_SUCCESS) {
		vgpu_give_back(block.device, block.bytes);
		return error;
	}
	block.p = (CUdeviceptr)(uintptr_t)handle;
	if (vgpu_block_add(&block, block.bytes) != 0) {
		how->destroy(handle);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*out = handle;
	return CUDA_SUCCESS;
}

static CUresult destroy_array(void *handle)
{
	return real_cuArrayDestroy(handle);
}

static CUresult destroy_mipmap(void *handle)
{
	return real_cuMipmappedArrayDestroy(handle);
}

static CUresult driver_v1(void **out, const struct creation *how)
{
	return real_cuArrayCreate((CUarray *)out, how->desc);
}

static CUresult driver_v2(void **out, const struct creation *how)
{
	return real_cuArrayCreate_v2((CUarray *)out, how->desc);
}

static CUresult driver_3d_v1(void **out, const struct creation *how)
{
	return real_cuArray3DCreate((CUarray *)out, how->desc);
}

static CUresult driver_3d_v2(void **out, const struct creation *how)
{
	return real_cuArray3DCreate_v2((CUarray *)out, how->desc);
}

static CUresult driver_mipmap(void **out, const struct creation *how)
{
	return real_cuMipmappedArrayCreate((CUmipmappedArray *)out, how->desc, how->wish.levels);
}

/* Both descriptors of each width name their members alike. */
#define DESC_2D(d) {.Width = (d)->Width, .Height = (d)->Height, .Format = (d)->Format, .NumChannels = (d)->NumChannels}
#define DESC_3D(d)                                                                                                     \
	{.Width = (d)->Width,                                                                                          \
	 .Height = (d)->Height,                                                                                        \
	 .Depth = (d)->Depth,                                                                                          \
	 .Format = (d)->Format,                                                                                        \
	 .NumChannels = (d)->NumChannels,                                                                              \
	 .Flags = (d)->Flags}

CUresult hook_cuArrayCreate(CUarray *pHandle, const CUDA_ARRAY_DESCRIPTOR_v1 *pAllocateArray)
{
	if (vgpu_mode() == VGPU_FREE || pHandle == NULL || pAllocateArray == NULL)
		return real_cuArrayCreate(pHandle, pAllocateArray);
	return create((void **)pHandle,
	              &(struct creation){{DESC_2D(pAllocateArray), 0, 0}, pAllocateArray, driver_v1, destroy_array});
}

CUresult hook_cuArrayCreate_v2(CUarray *pHandle, const CUDA_ARRAY_DESCRIPTOR *pAllocateArray)
{
	if (vgpu_mode() == VGPU_FREE || pHandle == NULL || pAllocateArray == NULL)
		return real_cuArrayCreate_v2(pHandle, pAllocateArray);
	return create((void **)pHandle,
	              &(struct creation){{DESC_2D(pAllocateArray), 0, 0}, pAllocateArray, driver_v2, destroy_array});
}

CUresult hook_cuArray3DCreate(CUarray *pHandle, const CUDA_ARRAY3D_DESCRIPTOR_v1 *pAllocateArray)
{
	if (vgpu_mode() == VGPU_FREE || pHandle == NULL || pAllocateArray == NULL)
		return real_cuArray3DCreate(pHandle, pAllocateArray);
	return create((void **)pHandle,
	              &(struct creation){{DESC_3D(pAllocateArray), 0, 0}, pAllocateArray, driver_3d_v1, destroy_array});
}

CUresult hook_cuArray3DCreate_v2(CUarray *pHandle, const CUDA_ARRAY3D_DESCRIPTOR *pAllocateArray)
{
	if (vgpu_mode() == VGPU_FREE || pHandle == NULL || pAllocateArray == NULL)
		return real_cuArray3DCreate_v2(pHandle, pAllocateArray);
	return create((void **)pHandle,
	              &(struct creation){{DESC_3D(pAllocateArray), 0, 0}, pAllocateArray, driver_3d_v2, destroy_array});
}

CUresult hook_cuMipmappedArrayCreate(CUmipmappedArray *pHandle, const CUDA_ARRAY3D_DESCRIPTOR *pMipmappedArrayDesc,
                                     unsigned int numMipmapLevels)
{
	if (vgpu_mode() == VGPU_FREE || pHandle == NULL || pMipmappedArrayDesc == NULL)
		return real_cuMipmappedArrayCreate(pHandle, pMipmappedArrayDesc, numMipmapLevels);
	return create((void **)pHandle,
	              &(struct creation){{*pMipmappedArrayDesc, numMipmapLevels ? numMipmapLevels : 1, 0},
	                                 pMipmappedArrayDesc,
	                                 driver_mipmap,
	                                 destroy_mipmap});
}

/* ---- ends ----------------------------------------------------------------------------------------------------------- */

static CUresult destroy(void *handle, CUresult (*driver)(void *handle))
{
	struct vgpu_block block;
	bool known = vgpu_block_take((CUdeviceptr)(uintptr_t)handle, &block);
	struct vgpu_mapped_array *mapped = known ? NULL : vgpu_mapped_array_take(handle);
	CUresult error = driver(handle);
	vgpu_mapped_array_end(mapped, error == CUDA_SUCCESS);
	if (known && error != CUDA_SUCCESS)
		vgpu_block_restore(&block);
	else if (known)
		vgpu_block_settle(&block);
	return error;
}

CUresult hook_cuArrayDestroy(CUarray hArray)
{
	return vgpu_mode() == VGPU_FREE ? real_cuArrayDestroy(hArray) : destroy(hArray, destroy_array);
}

CUresult hook_cuMipmappedArrayDestroy(CUmipmappedArray hMipmappedArray)
{
	return vgpu_mode() == VGPU_FREE ? real_cuMipmappedArrayDestroy(hMipmappedArray)
	                                : destroy(hMipmappedArray, destroy_mipmap);
}

void vgpu_arrays_forked(void)
{
	pthread_mutex_init(&lock, NULL);
}
