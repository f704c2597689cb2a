/* vmm.h: what vmm.c does for those who hand allocation handles to other processes (vmm_share.c, multicast.c). */
#ifndef PARTAGE_SHIM_VMM_H
#define PARTAGE_SHIM_VMM_H

#include "share.h"

/* What other processes may hold of it, made with this key where it has none; NULL: it stays this process's. */
const struct vgpu_share *vgpu_vmm_share(struct vgpu_allocation *a, const struct vgpu_share_key *key);
void vgpu_vmm_exported(struct vgpu_allocation *a, int fd); /* this descriptor keeps it, too */
/* A handle that the driver has just made of what is charged already, or held by `share`. False: no host memory. */
bool vgpu_vmm_add(CUmemGenericAllocationHandle handle, CUdevice device, uint64_t bytes, struct vgpu_share *share);

/* multicast.c: a multicast object is an allocation that costs nothing, and keeps what is bound to it. */
struct vgpu_multicast;
bool vgpu_vmm_add_multicast(CUmemGenericAllocationHandle handle, struct vgpu_multicast *team); /* a new one */
struct vgpu_multicast *vgpu_vmm_multicast(const struct vgpu_allocation *a); /* NULL: it is memory */
/* What one mapping of ours shows in all of the range, with a reference; NULL: none does. */
struct vgpu_allocation *vgpu_vmm_mapped(uint64_t address, uint64_t size);
bool vgpu_vmm_touches(uint64_t address, uint64_t size); /* is any of the range mapped memory of ours? */
void vgpu_multicast_end(struct vgpu_multicast *team); /* it is gone */

#endif
