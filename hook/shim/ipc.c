/* ipc.c: memory between processes by handles of plain bytes: cuIpcGetMemHandle, cuIpcOpenMemHandle, cuIpcCloseMemHandle.
 *
 * A block that is exported becomes the container's (share.c): who opens it in the same container pays nothing more, and
 * when its maker frees it or dies it stays charged as long as anybody has it open. A block of another container's, or
 * one so small that it shares its granule with others, is paid in full by whoever opens it.
 * What can go wrong: what is opened does not fit; it is closed again, and refused.
 */
#include <stdlib.h>

#include "hooks.h"
#include "share.h"

/* How often each is open: the driver gives the same address again. */
struct opened {
	struct opened *next;
	CUdeviceptr p;
	uint32_t count;
};

static uint32_t lock; /* process-private, never held across a driver call */
static struct opened *opened;

/* ---- export ------------------------------------------------------------------------------------------------------ */

static void share_block(CUdeviceptr p, const CUipcMemHandle *handle)
{
	CUdeviceptr base = 0;
	struct vgpu_block b;
	if (real_cuMemGetAddressRange_v2(&base, NULL, p) != CUDA_SUCCESS || !vgpu_block_take(base, &b))
		return;
	if ((b.kind == VGPU_PLAIN || b.kind == VGPU_PITCHED) && b.bytes >= VGPU_GRANULE) {
		struct vgpu_share_key key = vgpu_share_key_of_bytes(handle, sizeof(*handle));
		struct vgpu_share *share = vgpu_share_make(b.device, vgpu_round_up(b.bytes, VGPU_GRANULE), &key);
		if (share != NULL) {
			vgpu_shared_put(b.p, share);
			b.kind = VGPU_SHARED;
		}
	}
	vgpu_block_restore(&b);
}

CUresult hook_cuIpcGetMemHandle(CUipcMemHandle *pHandle, CUdeviceptr dptr)
{
	CUresult error = real_cuIpcGetMemHandle(pHandle, dptr);
	if (error == CUDA_SUCCESS && vgpu_mode() != VGPU_FREE)
		share_block(dptr, pHandle);
	return error;
}

/* ---- import ------------------------------------------------------------------------------------------------------ */

/* Counts one more opening of an address that is open already. */
static bool again(CUdeviceptr p)
{
	struct vgpu_block b;
	bool open = vgpu_block_take(p, &b); /* else it went with its context, and what was counted with it */
	if (open)
		vgpu_block_restore(&b);
	vgpu_lock(&lock);
	struct opened **link = &opened;
	while (*link != NULL && (*link)->p != p)
		link = &(*link)->next;
	struct opened *o = *link;
	if (o != NULL && open)
		o->count++;
	else if (o != NULL)
		*link = o->next;
	vgpu_unlock(&lock);
	if (!open)
		free(o);
	return open && o != NULL;
}

static bool first(CUdeviceptr p)
{
	struct opened *o = malloc(sizeof(*o));
	if (o == NULL)
		return false;
	vgpu_lock(&lock);
	*o = (struct opened){opened, p, 1};
	opened = o;
	vgpu_unlock(&lock);
	return true;
}

/* The last opening of an address goes, or one of several. */
static bool last(CUdeviceptr p)
{
	vgpu_lock(&lock);
	struct opened **link = &opened;
	while (*link != NULL && (*link)->p != p)
		link = &(*link)->next;
	struct opened *o = *link;
	bool gone = o != NULL && --o->count == 0;
	if (gone)
		*link = o->next;
	vgpu_unlock(&lock);
	if (gone)
		free(o);
	return gone;
}

CUdevice vgpu_device_of(CUdeviceptr p)
{
	int device = -1;
	if (real_cuPointerGetAttribute(&device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, p) == CUDA_SUCCESS && device >= 0)
		return device;
	return vgpu_current_device(NULL);
}

/* Nobody here pays for it: we do. The driver maps what the block lies in. */
static CUresult pay(struct vgpu_block *b)
{
	b->kind = VGPU_EXACT;
	b->bytes = vgpu_round_up(b->bytes, VGPU_GRANULE);
	CUresult error = vgpu_reserve_or_reclaim(b->device, b->bytes);
	return error == CUDA_SUCCESS && vgpu_block_add(b, b->bytes) < 0 ? CUDA_ERROR_OUT_OF_MEMORY : error;
}

static CUresult record(CUdeviceptr p, struct vgpu_share *share)
{
	struct vgpu_block b = {.p = p, .kind = VGPU_SHARED};
	CUdevice current;
	size_t size = 0;
	CUresult error = vgpu_place(&current, &b.context);
	if (error == CUDA_SUCCESS)
		error = real_cuMemGetAddressRange_v2(NULL, &size, p);
	if (error != CUDA_SUCCESS)
		return error;
	b.bytes = size;
	b.device = vgpu_device_of(p);
	if (share == NULL)
		return pay(&b);
	vgpu_shared_put(p, share);
	return vgpu_block_add(&b, 0) < 0 ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

typedef CUresult open_function(CUdeviceptr *, CUipcMemHandle, unsigned int);

static CUresult open_handle(open_function *driver, CUdeviceptr *pdptr, CUipcMemHandle handle, unsigned int flags)
{
	if (vgpu_mode() == VGPU_FREE || pdptr == NULL)
		return driver(pdptr, handle, flags);
	struct vgpu_share_key key = vgpu_share_key_of_bytes(&handle, sizeof(handle));
	struct vgpu_share *share = vgpu_share_join(&key);
	CUdeviceptr p = 0;
	CUresult error = driver(&p, handle, flags);
	if (error != CUDA_SUCCESS || again(p)) {
		vgpu_share_leave(share);
		if (error == CUDA_SUCCESS)
			*pdptr = p;
		return error;
	}
	error = first(p) ? record(p, share) : CUDA_ERROR_OUT_OF_MEMORY;
	if (error != CUDA_SUCCESS) {
		last(p);
		real_cuIpcCloseMemHandle(p);
		return error;
	}
	*pdptr = p;
	return CUDA_SUCCESS;
}

CUresult hook_cuIpcOpenMemHandle(CUdeviceptr *pdptr, CUipcMemHandle handle, unsigned int Flags)
{
	return open_handle(real_cuIpcOpenMemHandle, pdptr, handle, Flags);
}

CUresult hook_cuIpcOpenMemHandle_v2(CUdeviceptr *pdptr, CUipcMemHandle handle, unsigned int Flags)
{
	return open_handle(real_cuIpcOpenMemHandle_v2, pdptr, handle, Flags);
}

CUresult hook_cuIpcCloseMemHandle(CUdeviceptr dptr)
{
	struct vgpu_block b;
	if (vgpu_mode() == VGPU_FREE || !last(dptr))
		return real_cuIpcCloseMemHandle(dptr);
	bool known = vgpu_block_take(dptr, &b);
	CUresult error = real_cuIpcCloseMemHandle(dptr);
	if (error != CUDA_SUCCESS)
		first(dptr);
	if (known && error == CUDA_SUCCESS)
		vgpu_block_settle(&b);
	else if (known)
		vgpu_block_restore(&b);
	return error;
}

void vgpu_ipc_forked(void)
{
	lock = 0;
	opened = NULL;
}
