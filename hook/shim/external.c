/* external.c: memory that another API or process allocated: cuImportExternalMemory, cuExternalMemoryGetMappedBuffer,
 * cuExternalMemoryGetMappedMipmappedArray, cuDestroyExternalMemory.
 *
 * What a process of this container exported is charged already, and the object holds it (share.c). Anything else is
 * charged by the size that the program names. The object and each of its buffers and mip-maps keep the memory; they are
 * freed as any others are (mem.c, array.c), also after the object is gone, or end with their context.
 * What can go wrong: what is imported does not fit: refused before the driver is called.
 */
#include <stdlib.h>

#include "hooks.h"
#include "share.h"

struct external {
	struct external *next;
	CUexternalMemory handle;
	CUdevice device;
	uint64_t bytes; /* charged to this process; 0 where it is held by `share` */
	struct vgpu_share *share;
	uint32_t references; /* the object, what is mapped of it and calls under way */
};

static uint32_t lock; /* process-private, never held across a driver call */
static struct external *objects;

static void drop(void *argument)
{
	struct external *e = argument;
	vgpu_lock(&lock);
	bool last = --e->references == 0;
	vgpu_unlock(&lock);
	if (!last)
		return;
	if (e->bytes != 0)
		vgpu_give_back(e->device, e->bytes);
	vgpu_share_leave(e->share);
	free(e);
}

/* One reference more; NULL: not known. */
static struct external *enter(CUexternalMemory handle)
{
	vgpu_lock(&lock);
	struct external *e = objects;
	while (e != NULL && e->handle != handle)
		e = e->next;
	if (e != NULL)
		e->references++;
	vgpu_unlock(&lock);
	return e;
}

static void enlist(struct external *e)
{
	vgpu_lock(&lock);
	e->next = objects;
	objects = e;
	vgpu_unlock(&lock);
}

/* Takes the object out of those that are known by their handle. */
static struct external *take(CUexternalMemory handle)
{
	vgpu_lock(&lock);
	struct external **link = &objects;
	while (*link != NULL && (*link)->handle != handle)
		link = &(*link)->next;
	struct external *e = *link;
	if (e != NULL)
		*link = e->next;
	vgpu_unlock(&lock);
	return e;
}

static bool by_descriptor(const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *desc)
{
	return desc->type == CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD ||
	       desc->type == CU_EXTERNAL_MEMORY_HANDLE_TYPE_DMABUF_FD;
}

/* Somebody here has it charged already, or we pay. */
static CUresult charge(struct external *e, const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *desc)
{
	CUresult error = CUDA_SUCCESS;
	if (by_descriptor(desc)) {
		struct vgpu_share_key key = vgpu_share_key_of(desc->handle.fd);
		e->share = vgpu_share_join(&key);
	}
	if (e->share != NULL)
		return CUDA_SUCCESS;
	e->device = vgpu_current_device(&error);
	if (error != CUDA_SUCCESS)
		return error;
	e->bytes = vgpu_round_up(desc->size, VGPU_GRANULE);
	error = vgpu_reserve_or_reclaim(e->device, e->bytes);
	if (error != CUDA_SUCCESS)
		e->bytes = 0;
	return error;
}

CUresult hook_cuImportExternalMemory(CUexternalMemory *extMem_out,
                                     const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *memHandleDesc)
{
	if (vgpu_mode() == VGPU_FREE || extMem_out == NULL || memHandleDesc == NULL)
		return real_cuImportExternalMemory(extMem_out, memHandleDesc);
	struct external *e = calloc(1, sizeof(*e));
	if (e == NULL)
		return CUDA_ERROR_OUT_OF_MEMORY;
	e->references = 1;
	vgpu_memory_watch_fork();
	CUresult error = charge(e, memHandleDesc);
	bool nowhere = error != CUDA_SUCCESS && error != CUDA_ERROR_OUT_OF_MEMORY;
	if (error == CUDA_SUCCESS || nowhere) { /* without a device to charge, the answer is the driver's own refusal */
		CUresult answer = real_cuImportExternalMemory(&e->handle, memHandleDesc);
		if (nowhere && answer == CUDA_SUCCESS)
			real_cuDestroyExternalMemory(e->handle);
		else
			error = answer;
	}
	if (error != CUDA_SUCCESS) {
		drop(e);
		return error;
	}
	CUexternalMemory handle = e->handle;
	enlist(e);
	*extMem_out = handle;
	return CUDA_SUCCESS;
}

/* ---- what is mapped of it ---------------------------------------------------------------------------------------- */

static CUresult destroy_mipmap(CUdeviceptr handle)
{
	return real_cuMipmappedArrayDestroy((CUmipmappedArray)(uintptr_t)handle);
}

/* The driver has answered with `error` and, where it is none, the block. The reference becomes the block's, or goes. */
static CUresult keep(struct external *e, const struct vgpu_block *b, CUresult error, CUresult (*undo)(CUdeviceptr))
{
	if (error != CUDA_SUCCESS) {
		drop(e);
		return error;
	}
	vgpu_shared_put_other(b->p, drop, e);
	if (vgpu_block_add(b, 0) >= 0)
		return CUDA_SUCCESS;
	undo(b->p);
	vgpu_shared_end(b->p);
	return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult hook_cuExternalMemoryGetMappedBuffer(CUdeviceptr *devPtr, CUexternalMemory extMem,
                                              const CUDA_EXTERNAL_MEMORY_BUFFER_DESC *bufferDesc)
{
	struct external *e = vgpu_mode() == VGPU_FREE || devPtr == NULL ? NULL : enter(extMem);
	if (e == NULL)
		return real_cuExternalMemoryGetMappedBuffer(devPtr, extMem, bufferDesc);
	struct vgpu_block b = {.kind = VGPU_SHARED};
	CUresult error = vgpu_place(&b.device, &b.context);
	if (error == CUDA_SUCCESS)
		error = real_cuExternalMemoryGetMappedBuffer(&b.p, extMem, bufferDesc);
	if (error == CUDA_SUCCESS)
		b.bytes = bufferDesc->size;
	error = keep(e, &b, error, real_cuMemFree_v2);
	if (error == CUDA_SUCCESS)
		*devPtr = b.p;
	return error;
}

CUresult hook_cuExternalMemoryGetMappedMipmappedArray(CUmipmappedArray *mipmap, CUexternalMemory extMem,
                                                      const CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC *mipmapDesc)
{
	struct external *e = vgpu_mode() == VGPU_FREE || mipmap == NULL ? NULL : enter(extMem);
	if (e == NULL)
		return real_cuExternalMemoryGetMappedMipmappedArray(mipmap, extMem, mipmapDesc);
	struct vgpu_block b = {.kind = VGPU_SHARED, .bytes = 1}; /* known by its handle, as arrays are */
	CUmipmappedArray handle = NULL;
	CUresult error = vgpu_place(&b.device, &b.context);
	if (error == CUDA_SUCCESS)
		error = real_cuExternalMemoryGetMappedMipmappedArray(&handle, extMem, mipmapDesc);
	b.p = (CUdeviceptr)(uintptr_t)handle;
	error = keep(e, &b, error, destroy_mipmap);
	if (error == CUDA_SUCCESS)
		*mipmap = handle;
	return error;
}

/* ---- the end ----------------------------------------------------------------------------------------------------- */

CUresult hook_cuDestroyExternalMemory(CUexternalMemory extMem)
{
	struct external *e = vgpu_mode() == VGPU_FREE ? NULL : take(extMem);
	CUresult error = real_cuDestroyExternalMemory(extMem);
	if (e != NULL && error == CUDA_SUCCESS)
		drop(e);
	else if (e != NULL)
		enlist(e);
	return error;
}

void vgpu_external_forked(void)
{
	lock = 0;
	objects = NULL;
}
