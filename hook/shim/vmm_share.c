/* vmm_share.c: allocation handles between processes: cuMemExportToShareableHandle, cuMemImportFromShareableHandle.
 *
 * What is exported becomes the container's (share.c), so an import in the same container costs nothing, and who holds the
 * memory longest keeps it charged. What comes from elsewhere, or from a process that is gone, is charged to the importer
 * in full; its size is found by trying how much of it can be mapped, since the driver does not say.
 * Refused under a limit: fabric handles.
 * What can go wrong: what is imported does not fit, or a driver that maps no part of it: it is released and refused.
 */
#include "hooks.h"
#include "vmm.h"

/* Fabric handles are for other machines, too: who imports one there keeps the memory, and nobody here sees it. The
 * driver may have a better reason. */
static bool refused(CUmemAllocationHandleType type)
{
	return type == CU_MEM_HANDLE_TYPE_FABRIC && vgpu_mode() != VGPU_FREE;
}

/* ---- export ------------------------------------------------------------------------------------------------------ */

static void share_descriptor(struct vgpu_allocation *a, int fd)
{
	struct vgpu_share_key key = vgpu_share_new_key();
	const struct vgpu_share *share = vgpu_vmm_share(a, &key);
	vgpu_vmm_exported(a, fd);
	if (share == NULL)
		return;
	key = vgpu_share_key(share); /* it may have had one */
	vgpu_share_mark(fd, &key);   /* else an importer pays once more */
}

CUresult hook_cuMemExportToShareableHandle(void *shareableHandle, CUmemGenericAllocationHandle handle,
                                           CUmemAllocationHandleType handleType, unsigned long long flags)
{
	CUmemFabricHandle fabric;
	if (refused(handleType) && shareableHandle != NULL) {
		CUresult error = real_cuMemExportToShareableHandle(&fabric, handle, handleType, flags);
		return error == CUDA_SUCCESS ? CUDA_ERROR_NOT_SUPPORTED : error;
	}
	struct vgpu_allocation *a = vgpu_mode() == VGPU_FREE ? NULL : vgpu_allocation_of(handle);
	if (a != NULL && vgpu_vmm_multicast(a) != NULL) { /* none was made that may be: multicast.c */
		vgpu_allocation_drop(a);
		return CUDA_ERROR_INVALID_VALUE;
	}
	CUresult error = real_cuMemExportToShareableHandle(shareableHandle, handle, handleType, flags);
	if (a != NULL && error == CUDA_SUCCESS && handleType == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
		share_descriptor(a, *(int *)shareableHandle);
	if (a != NULL)
		vgpu_allocation_drop(a);
	return error;
}

/* ---- import ------------------------------------------------------------------------------------------------------ */

static bool maps(CUmemGenericAllocationHandle handle, uint64_t bytes)
{
	CUdeviceptr p = 0;
	if (real_cuMemAddressReserve(&p, bytes, 0, 0, 0) != CUDA_SUCCESS)
		return false;
	bool mapped = real_cuMemMap(p, bytes, 0, handle, 0) == CUDA_SUCCESS;
	if (mapped)
		real_cuMemUnmap(p, bytes);
	real_cuMemAddressFree(p, bytes);
	return mapped;
}

/* Bytes of an allocation, to the granule; 0: cannot be told. */
static uint64_t size_of(CUmemGenericAllocationHandle handle)
{
	uint64_t least = 0, step = VGPU_GRANULE;
	while (step < UINT64_C(1) << 44 && maps(handle, least + step)) {
		least += step;
		step *= 2;
	}
	for (; step >= VGPU_GRANULE; step /= 2)
		if (least != 0 && maps(handle, least + step))
			least += step;
	return least;
}

/* Nobody here pays for it: we do, where it lies on a device. */
static CUresult pay(CUmemGenericAllocationHandle handle, CUdevice *device, uint64_t *bytes)
{
	CUmemAllocationProp prop = {0};
	CUresult error = real_cuMemGetAllocationPropertiesFromHandle(&prop, handle);
	*device = prop.location.id;
	if (error != CUDA_SUCCESS || prop.location.type != CU_MEM_LOCATION_TYPE_DEVICE)
		return error;
	if (vgpu_hidden(*device))
		return CUDA_ERROR_INVALID_DEVICE;
	*bytes = size_of(handle);
	return *bytes != 0 ? vgpu_reserve_or_reclaim(*device, *bytes) : CUDA_ERROR_NOT_SUPPORTED;
}

static CUresult record(CUmemGenericAllocationHandle handle, struct vgpu_share *share)
{
	CUdevice device = -1;
	uint64_t bytes = 0;
	CUresult error = share != NULL ? CUDA_SUCCESS : pay(handle, &device, &bytes);
	if (error == CUDA_SUCCESS && !vgpu_vmm_add(handle, device, bytes, share)) {
		vgpu_give_back(device, bytes);
		error = CUDA_ERROR_OUT_OF_MEMORY;
	}
	return error;
}

CUresult hook_cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *osHandle,
                                             CUmemAllocationHandleType shHandleType)
{
	struct vgpu_share_key key = {0};
	if (vgpu_mode() == VGPU_FREE || handle == NULL)
		return real_cuMemImportFromShareableHandle(handle, osHandle, shHandleType);
	if (shHandleType == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
		key = vgpu_share_key_of((int)(intptr_t)osHandle);
	struct vgpu_share *share = vgpu_share_join(&key);
	CUmemGenericAllocationHandle h = 0;
	CUresult error = real_cuMemImportFromShareableHandle(&h, osHandle, shHandleType);
	if (error == CUDA_SUCCESS) {
		error = refused(shHandleType) ? CUDA_ERROR_NOT_SUPPORTED : record(h, share);
		if (error != CUDA_SUCCESS)
			real_cuMemRelease(h);
	}
	if (error != CUDA_SUCCESS)
		vgpu_share_leave(share);
	else
		*handle = h;
	return error;
}
