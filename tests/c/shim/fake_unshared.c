/* fake_unshared.c: in place of the shim's shares: nothing is shared with other processes, so what is exported stays
 * charged to its maker, and no pool is exported.
 */
#include "fake_driver.h"
#include "gate.h"
#include "pool.h"
#include "share.h"

struct vgpu_share_key vgpu_share_key_of_bytes(const void *bytes, size_t count)
{
	(void)bytes;
	return (struct vgpu_share_key){1, {count, 0}};
}

struct vgpu_share_key vgpu_share_new_key(void)
{
	return (struct vgpu_share_key){0};
}

bool vgpu_share_mark(int fd, const struct vgpu_share_key *key)
{
	return fd < 0 && key->kind;
}

struct vgpu_share_key vgpu_share_key_of(int fd)
{
	return (struct vgpu_share_key){0, {(uint64_t)fd, 0}};
}

struct vgpu_share *vgpu_share_make(CUdevice device, uint64_t bytes, const struct vgpu_share_key *key)
{
	(void)device, (void)bytes, (void)key;
	return NULL;
}

struct vgpu_share *vgpu_share_join(const struct vgpu_share_key *key)
{
	(void)key;
	return NULL;
}

void vgpu_share_leave(struct vgpu_share *share)
{
	(void)share;
}

struct vgpu_share_key vgpu_share_key(const struct vgpu_share *share)
{
	(void)share;
	return (struct vgpu_share_key){0};
}

void vgpu_shared_put(CUdeviceptr p, struct vgpu_share *share)
{
	(void)p, (void)share;
}

void vgpu_shared_put_other(CUdeviceptr p, void (*end)(void *), void *argument)
{
	(void)p, (void)end, (void)argument;
}

void vgpu_shared_end(CUdeviceptr p)
{
	(void)p;
}

void vgpu_share_move(const struct vgpu_share *share, CUdevice device, uint64_t bytes)
{
	(void)share, (void)device, (void)bytes;
}

void vgpu_share_lower(const struct vgpu_share *share, CUdevice device, uint64_t bytes)
{
	(void)share, (void)device, (void)bytes;
}

void vgpu_pool_unpin(CUdeviceptr p)
{
	(void)p;
}

void vgpu_pool_unpin_all(struct pool *pool)
{
	(void)pool;
}

void vgpu_pool_unpin_begin(void)
{
}

void vgpu_pool_unpin_end(CUdevice device)
{
	(void)device;
}

bool vgpu_pool_contexts_end(void)
{
	return false;
}

void vgpu_pool_pins_forked(void)
{
}

void vgpu_shares_forked(void)
{
}

/* ---- the gate: nobody is under one here ------------------------------------------------------------------------------- */

void vgpu_gate_context_begin(void)
{
}

void vgpu_gate_context_end(CUcontext gone)
{
	(void)gone;
}
