/* share.h: memory that several processes of the container hold: share.c, and the hooks of what is exported and imported
 * (ipc.c, vmm.c, external.c). */
#ifndef PARTAGE_SHIM_SHARE_H
#define PARTAGE_SHIM_SHARE_H

#include "memory.h"

/* By what an importer finds the share again: the bytes that it was handed, or what its descriptor says. */
struct vgpu_share_key {
	uint64_t kind; /* PTG_SHARE_* */
	uint64_t word[2];
};
struct vgpu_share; /* this process's holds on one or several; NULL: none */

struct vgpu_share_key vgpu_share_key_of_bytes(const void *bytes, size_t count);
/* A descriptor that was just made by the driver is marked with the share's key; false: it cannot be. */
bool vgpu_share_mark(int fd, const struct vgpu_share_key *key);
struct vgpu_share_key vgpu_share_new_key(void);
struct vgpu_share_key vgpu_share_key_of(int fd); /* kind 0: not marked, or by a process that is gone or elsewhere */

/* Bytes that this process has charged become the container's, as long as any process holds them. NULL: they stay the
 * process's own. */
struct vgpu_share *vgpu_share_make(CUdevice device, uint64_t bytes, const struct vgpu_share_key *key);
struct vgpu_share *vgpu_share_join(const struct vgpu_share_key *key); /* all with this key; NULL: there is none here */
void vgpu_share_leave(struct vgpu_share *share); /* given back where nobody else holds it */
struct vgpu_share_key vgpu_share_key(const struct vgpu_share *share);
struct vgpu_share *vgpu_share_both(struct vgpu_share *one, struct vgpu_share *other); /* held and left together */

/* Only the maker of a share, while it holds it, changes what is charged to it. */
void vgpu_share_move(const struct vgpu_share *share, CUdevice device, uint64_t bytes); /* from what is ours */
void vgpu_share_lower(const struct vgpu_share *share, CUdevice device, uint64_t bytes);
/* The maker gives up what others may go on holding: then, but only then, these bytes are charged to it, past the limit,
 * as long as they do. */
void vgpu_share_abandon(struct vgpu_share *share, CUdevice device, uint64_t bytes);

/* Blocks of kind VGPU_SHARED, by address. */
void vgpu_shared_put(CUdeviceptr p, struct vgpu_share *share);
void vgpu_shared_put_other(CUdeviceptr p, void (*end)(void *), void *argument);
void vgpu_shared_end(CUdeviceptr p);
void vgpu_shares_forked(void);

/* ---- ipc.c ------------------------------------------------------------------------------------------------------- */

CUdevice vgpu_device_of(CUdeviceptr p); /* where it lies */
void vgpu_ipc_forked(void);
void vgpu_external_forked(void);

#endif
