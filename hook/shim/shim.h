/* shim.h: what the files of libvgpu.so share.
 *
 * Each hooked entry point `cuX` has a function `CUresult hook_cuX(...)` (or `nvmlReturn_t hook_nvmlX(...)`) with the
 * prototype of the header, written in hook/shim/.c files (metered, virtualised) or generated (refused, device-checked).
 * The generated "hooks.h" declares them, gives each a `real_cuX(...)` that calls the driver (answers
 * CUDA_ERROR_NOT_FOUND / NVML_ERROR_FUNCTION_NOT_FOUND where the driver lacks it), and the exported symbols.
 * How calls get in: dlsym.c, resolve.c, procaddr.c. What is charged: ledger.c, policy.c, charge.c, blocks.c.
 */
#ifndef PARTAGE_SHIM_SHIM_H
#define PARTAGE_SHIM_SHIM_H

#include <cuda.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "partage/ledger.h"
#include "partage/policy.h"

#define VGPU_GRANULE (UINT64_C(2) << 20)

/* ---- resolve.c: the driver's own functions ------------------------------------------------------------------------------ */

void *vgpu_libc(const char *symbol); /* a function of libc (dlsym, dlopen ...) found without importing it */
void *vgpu_real_cuda(const char *symbol); /* dlsym on libcuda.so.1 (loaded on the first cu* call); NULL if lacking */
void *vgpu_real_nvml(const char *symbol);
void *vgpu_swap(void *pointer); /* the hook for a driver function, else the pointer itself */

/* ---- charge.c: what this container may use and uses. `device` is a CUdevice ordinal of this process. ------------------- */

enum vgpu_mode {
	VGPU_FREE, /* no policy, no limit in the environment: everything is forwarded */
	VGPU_LIMITED, /* a share is in force */
	VGPU_CLOSED, /* a policy was named but cannot be used: allocations are refused */
};
enum vgpu_mode vgpu_mode(void); /* first call sets everything up; then one load */
const char *vgpu_reason(void); /* why closed, or the last complaint; "" without one */
/* Reserve bytes (rounded up to PTG_UNIT). CUDA_SUCCESS, or CUDA_ERROR_OUT_OF_MEMORY and nothing changed; where the driver
 * is not ready to name its devices (before cuInit), its own error: pass it on. In VGPU_FREE always succeeds and changes
 * nothing. Before a refusal dead slots are reclaimed and it is tried again. */
CUresult vgpu_reserve(CUdevice device, uint64_t bytes);
void vgpu_charge(CUdevice device, uint64_t bytes); /* without a check: may pass the limit */
void vgpu_give_back(CUdevice device, uint64_t bytes); /* saturates at what this process has charged */
/* Context estimate: the container's first on a device is charged and never refused, each further one is reserved.
 * `charged` is what to give back when the context is destroyed or could not be made. The estimate is the policy's, else
 * PARTAGE_CONTEXT_MEMORY, else a guess of 256 MiB, to be settled once the context exists: the guess is then cut to what
 * the whole card has in use (`card_used`, bytes). Returns what stays charged; changes nothing where it was no guess. */
CUresult vgpu_reserve_context(CUdevice device, uint64_t *charged);
uint64_t vgpu_settle_context(CUdevice device, uint64_t charged, uint64_t card_used);
/* The policy's present estimate of one context, UINT64_MAX where it has none. It comes later than the first contexts, and
 * only falls: what was charged for a context beyond it is given back. Returns what stays charged. */
uint32_t vgpu_policy_number(void); /* another one: the policy has changed */
uint64_t vgpu_context_estimate(CUdevice device);
uint64_t vgpu_lower_context(CUdevice device, uint64_t charged);
void vgpu_ring(void); /* the card's use has changed by what we cannot measure: whoever watches should look now */
void vgpu_give_back_context(CUdevice device, uint64_t charged);
uint64_t vgpu_limit(CUdevice device); /* bytes; UINT64_MAX without one */
uint64_t vgpu_used(CUdevice device); /* ledger + overhead, never negative, not clamped to the limit */
/* What a program is shown: total = min(limit, physical), used <= total, free = min(limit - used, free of the card).
 * Oversubscribed: total = limit, free = limit - used. Closed: free = 0. */
void vgpu_view(CUdevice device, uint64_t physical_total, uint64_t physical_free, uint64_t *total, uint64_t *free);
bool vgpu_visible(CUdevice device); /* granted to this container */
int vgpu_device_by_uuid(const char *uuid); /* index in policy/ledger, -1 if not granted */
int vgpu_granted_count(void); /* -1: everything (no policy file) */
const char *vgpu_granted_uuid(int index); /* NULL where there is none; stays valid */
CUdevice vgpu_granted_device(int index); /* the driver's ordinal of it, -1: not visible here or not known yet */
/* The ordinals of this process whose memory is charged to the share; how many, 0 where they are not known. */
unsigned vgpu_charged_devices(CUdevice device[64]);
CUdevice vgpu_current_device(CUresult *error); /* device of the current context; error is the driver's own */
int vgpu_index_of(CUdevice device); /* index in policy and ledger; below 0: none, or there is no limit */
/* Same as above by UUID, for NVML. */
uint64_t vgpu_limit_index(int index);
uint64_t vgpu_used_index(int index);
void vgpu_view_index(int index, uint64_t physical_total, uint64_t physical_free, uint64_t *total, uint64_t *free);

/* ---- blocks.c: what this process has allocated ----------------------------------------------------------------------------- */

/* VGPU_MANAGED is charged on every device that may use it (managed.c); VGPU_EXACT (variables of a module,
 * limits of a context; the address is a key of ours) costs exactly its bytes; VGPU_SHARED is charged to the container
 * (share.c). */
enum vgpu_kind { VGPU_PLAIN, VGPU_MANAGED, VGPU_PITCHED, VGPU_ASYNC, VGPU_EXACT, VGPU_SHARED };
struct vgpu_block {
	CUdeviceptr p;
	uint64_t bytes;
	CUdevice device;
	enum vgpu_kind kind;
	CUcontext context;
	uint64_t carried; /* of a block that was taken out: bytes that only it costs; 0 = not known */
};
/* What to reserve before asking the driver for `bytes`. */
uint64_t vgpu_first_reservation(uint64_t bytes);
/* Record a live allocation, turning `reserved` into what it costs by the granularity rule (nothing for VGPU_ASYNC: its
 * pool is charged). -1: it does not fit after all, or no host memory; the reservation is given back and the caller frees
 * the block and refuses. */
int vgpu_block_add(const struct vgpu_block *block, uint64_t reserved);
/* Take an entry out (before the driver's free); false if unknown. Put it back if the driver refused, else settle it. One
 * whose address the driver has given to somebody else meanwhile is gone: putting it back settles it. */
bool vgpu_block_take(CUdeviceptr p, struct vgpu_block *out);
void vgpu_block_restore(const struct vgpu_block *b);
void vgpu_block_settle(const struct vgpu_block *b); /* give its charge back */

#endif
