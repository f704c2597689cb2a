/* vmm.h: what vmm.c does for those who hand allocation handles to other processes (vmm_share.c, multicast.c). */
#ifndef PARTAGE_SHIM_VMM_H
#define PARTAGE_SHIM_VMM_H

#include "share.h"

/* What other processes may hold of it, made with this key where it has none; NULL: it stays this process's. */
const struct vgpu_share *vgpu_vmm_share(struct vgpu_allocation *a, const struct vgpu_share_key *key);
/* A handle that the driver has just made of what is charged already, or held by `share`. False: no host memory. */
bool vgpu_vmm_add(CUmemGenericAllocationHandle handle, CUdevice device, uint64_t bytes, struct vgpu_share *share);

#endif
