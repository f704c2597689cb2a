/* multicast.c: multicast objects: cuMulticastCreate, cuMulticastBindMem, cuMulticastBindAddr, cuMulticastUnbind.
 *
 * An object takes no device memory that the driver tells of, so it is charged nothing; what a driver does take for one
 * appears as overhead. Memory that is bound to it stays charged, also when it is released and unmapped, until it is
 * unbound or the object is gone, which like any allocation is when it is released and unmapped (vmm.c).
 * Refused under a limit: objects for other processes (one that holds such an object keeps memory that others bind to
 * it, and could not be told of them), and binding what is no mapped allocation: a pool does not say whether it still
 * counts what was freed while bound. What can go wrong: no host memory for a record; then nothing is bound.
 */
#include <stdlib.h>

#include "hooks.h"
#include "vmm.h"

struct binding {
	CUdevice device; /* of the team */
	uint64_t offset, size; /* in the object */
	struct vgpu_allocation *memory;
	struct binding *next;
};

struct vgpu_multicast {
	struct binding *bindings;
};

static uint32_t lock; /* process-private, never held across a driver call */

static void drop_all(struct binding *list)
{
	for (struct binding *next; list != NULL; list = next) {
		next = list->next;
		vgpu_allocation_drop(list->memory);
		free(list);
	}
}

void vgpu_multicast_end(struct vgpu_multicast *team)
{
	drop_all(team->bindings);
	free(team);
}

static void add(struct vgpu_multicast *team, struct binding *b)
{
	vgpu_lock(&lock);
	b->next = team->bindings;
	team->bindings = b;
	vgpu_unlock(&lock);
}

CUresult hook_cuMulticastCreate(CUmemGenericAllocationHandle *mcHandle, const CUmulticastObjectProp *prop)
{
	CUmemGenericAllocationHandle h = 0;
	if (vgpu_mode() == VGPU_FREE || mcHandle == NULL || prop == NULL)
		return real_cuMulticastCreate(mcHandle, prop);
	struct vgpu_multicast *team = calloc(1, sizeof(*team));
	if (team == NULL)
		return CUDA_ERROR_OUT_OF_MEMORY;
	CUresult error = real_cuMulticastCreate(&h, prop);
	if (error == CUDA_SUCCESS && prop->handleTypes != 0) { /* else the driver's reason is the better one */
		real_cuMemRelease(h);
		error = CUDA_ERROR_NOT_SUPPORTED;
	}
	if (error == CUDA_SUCCESS && !vgpu_vmm_add_multicast(h, team)) {
		real_cuMemRelease(h);
		error = CUDA_ERROR_OUT_OF_MEMORY;
	}
	if (error != CUDA_SUCCESS)
		free(team);
	else
		*mcHandle = h;
	return error;
}

/* ---- binding ----------------------------------------------------------------------------------------------------- */

/* One call. */
struct bind {
	CUmemGenericAllocationHandle handle; /* of the object */
	CUdevice device;
	uint64_t offset, size;
	struct vgpu_allocation *memory; /* a reference; NULL: not one that is charged here */
	bool uncharged; /* memory that costs nothing: of the host */
	struct vgpu_allocation *object;
	struct binding *record;
};

static CUresult begin(struct bind *b)
{
	b->object = vgpu_allocation_of(b->handle);
	b->record = malloc(sizeof(*b->record));
	return b->record != NULL ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* What the driver has bound and we cannot keep account of is unbound again. */
static CUresult end(struct bind *b, CUresult error)
{
	struct vgpu_multicast *team = b->object != NULL ? vgpu_vmm_multicast(b->object) : NULL;
	if (error == CUDA_SUCCESS && !b->uncharged && (team == NULL || b->memory == NULL)) {
		real_cuMulticastUnbind(b->handle, b->device, b->offset, b->size);
		error = CUDA_ERROR_NOT_SUPPORTED;
	}
	if (error == CUDA_SUCCESS && b->memory != NULL) {
		*b->record = (struct binding){
		        .device = b->device, .offset = b->offset, .size = b->size, .memory = b->memory};
		add(team, b->record);
	} else {
		free(b->record);
		if (b->memory != NULL)
			vgpu_allocation_drop(b->memory);
	}
	if (b->object != NULL)
		vgpu_allocation_drop(b->object);
	return error;
}

/* Allocation handles that are not known are of the host: all others are charged when they are made or imported. */
static struct bind of_memory(CUmemGenericAllocationHandle object, size_t offset, CUmemGenericAllocationHandle memory,
                             size_t size)
{
	struct bind b = {.handle = object, .offset = offset, .size = size, .memory = vgpu_allocation_of(memory)};
	b.uncharged = b.memory == NULL;
	return b;
}

static struct bind of_address(CUmemGenericAllocationHandle object, size_t offset, CUdeviceptr p, size_t size)
{
	struct bind b = {.handle = object, .offset = offset, .size = size, .memory = vgpu_vmm_mapped(p, size)};
	CUmemGenericAllocationHandle h;
	if (b.memory == NULL && !vgpu_vmm_touches(p, size) &&
	    real_cuMemRetainAllocationHandle(&h, (void *)(uintptr_t)p) == CUDA_SUCCESS) {
		real_cuMemRelease(h);
		b.uncharged = true;
	}
	return b;
}

CUresult hook_cuMulticastBindMem(CUmemGenericAllocationHandle mcHandle, size_t mcOffset,
                                 CUmemGenericAllocationHandle memHandle, size_t memOffset, size_t size,
                                 unsigned long long flags)
{
	if (vgpu_mode() == VGPU_FREE)
		return real_cuMulticastBindMem(mcHandle, mcOffset, memHandle, memOffset, size, flags);
	CUmemAllocationProp prop = {.location.id = CU_DEVICE_INVALID};
	struct bind b = of_memory(mcHandle, mcOffset, memHandle, size);
	if (b.memory != NULL) /* else the driver says what is wrong with it */
		real_cuMemGetAllocationPropertiesFromHandle(&prop, memHandle);
	b.device = prop.location.id;
	CUresult error = begin(&b);
	if (error == CUDA_SUCCESS)
		error = real_cuMulticastBindMem(mcHandle, mcOffset, memHandle, memOffset, size, flags);
	return end(&b, error);
}

CUresult hook_cuMulticastBindMem_v2(CUmemGenericAllocationHandle mcHandle, CUdevice dev, size_t mcOffset,
                                    CUmemGenericAllocationHandle memHandle, size_t memOffset, size_t size,
                                    unsigned long long flags)
{
	if (vgpu_mode() == VGPU_FREE)
		return real_cuMulticastBindMem_v2(mcHandle, dev, mcOffset, memHandle, memOffset, size, flags);
	if (vgpu_hidden(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	struct bind b = of_memory(mcHandle, mcOffset, memHandle, size);
	b.device = dev;
	CUresult error = begin(&b);
	if (error == CUDA_SUCCESS)
		error = real_cuMulticastBindMem_v2(mcHandle, dev, mcOffset, memHandle, memOffset, size, flags);
	return end(&b, error);
}

CUresult hook_cuMulticastBindAddr(CUmemGenericAllocationHandle mcHandle, size_t mcOffset, CUdeviceptr memptr,
                                  size_t size, unsigned long long flags)
{
	if (vgpu_mode() == VGPU_FREE)
		return real_cuMulticastBindAddr(mcHandle, mcOffset, memptr, size, flags);
	struct bind b = of_address(mcHandle, mcOffset, memptr, size);
	b.device = vgpu_device_of(memptr);
	CUresult error = begin(&b);
	if (error == CUDA_SUCCESS)
		error = real_cuMulticastBindAddr(mcHandle, mcOffset, memptr, size, flags);
	return end(&b, error);
}

CUresult hook_cuMulticastBindAddr_v2(CUmemGenericAllocationHandle mcHandle, CUdevice dev, size_t mcOffset,
                                     CUdeviceptr memptr, size_t size, unsigned long long flags)
{
	if (vgpu_mode() == VGPU_FREE)
		return real_cuMulticastBindAddr_v2(mcHandle, dev, mcOffset, memptr, size, flags);
	if (vgpu_hidden(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	struct bind b = of_address(mcHandle, mcOffset, memptr, size);
	b.device = dev;
	CUresult error = begin(&b);
	if (error == CUDA_SUCCESS)
		error = real_cuMulticastBindAddr_v2(mcHandle, dev, mcOffset, memptr, size, flags);
	return end(&b, error);
}

/* ---- unbinding --------------------------------------------------------------------------------------------------- */

/* Only what lies in the range as a whole: the rest of a binding would keep all of its memory. */
static struct binding *take(struct vgpu_multicast *team, CUdevice device, uint64_t offset, uint64_t size)
{
	struct binding *taken = NULL;
	vgpu_lock(&lock);
	for (struct binding **at = &team->bindings; *at != NULL;) {
		struct binding *b = *at;
		if (b->device != device || b->offset < offset || b->size > size ||
		    b->offset - offset > size - b->size) {
			at = &b->next;
			continue;
		}
		*at = b->next;
		b->next = taken;
		taken = b;
	}
	vgpu_unlock(&lock);
	return taken;
}

CUresult hook_cuMulticastUnbind(CUmemGenericAllocationHandle mcHandle, CUdevice dev, size_t mcOffset, size_t size)
{
	if (vgpu_mode() == VGPU_FREE)
		return real_cuMulticastUnbind(mcHandle, dev, mcOffset, size);
	if (vgpu_hidden(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	struct vgpu_allocation *object = vgpu_allocation_of(mcHandle);
	struct vgpu_multicast *team = object != NULL ? vgpu_vmm_multicast(object) : NULL;
	struct binding *taken = team != NULL ? take(team, dev, mcOffset, size) : NULL;
	CUresult error = real_cuMulticastUnbind(mcHandle, dev, mcOffset, size);
	if (error == CUDA_SUCCESS)
		drop_all(taken);
	else
		for (struct binding *b = taken, *next; b != NULL; b = next) {
			next = b->next;
			add(team, b);
		}
	if (object != NULL)
		vgpu_allocation_drop(object);
	return error;
}

void vgpu_multicast_forked(void)
{
	lock = 0;
}
