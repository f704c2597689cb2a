/* vmm.c: physical memory of the virtual-memory calls: cuMemCreate, cuMemRelease, cuMemRetainAllocationHandle, cuMemMap,
 * cuMemUnmap; what of it is exported to other processes and imported from them is vmm_share.c's.
 *
 * The driver frees an allocation when its last handle has been released *and* its last mapping is gone, so an
 * *allocation* here counts both, and its charge goes back when the sum is zero. A call adds its reference before the
 * driver is asked and takes one away after it has answered, so that no thread can end an allocation under another's
 * call. Descriptors that were exported of it keep it, too (descriptor.c). Memory located on the host costs nothing here. Handles this table does not know go to the driver as they are.
 */
#include <pthread.h>
#include <stdlib.h>

#include "hooks.h"
#include "memory.h"
#include "vmm.h"

#define CHAINS 1024

struct vgpu_allocation {
	CUdevice device;
	uint64_t bytes;
	uint32_t references; /* handles, mappings and calls under way */
	struct vgpu_share *share; /* what is exported or imported is charged to the container */
	struct vgpu_descriptor *descriptors; /* by which it was exported */
	struct vgpu_multicast *team; /* a multicast object, which keeps what is bound to it; NULL: memory */
};

/* One handle value (may be handed out several times) or one mapping. */
struct node {
	uint64_t key; /* handle, or address */
	uint64_t size; /* of a mapping */
	uint32_t count; /* of a handle: how often it is to be released */
	struct vgpu_allocation *allocation;
	struct node *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* process-private, never held across a driver call */
static struct node *handles[CHAINS], *mappings[CHAINS];

static struct node **chain(struct node **table, uint64_t key)
{
	return &table[(key * UINT64_C(0x9e3779b97f4a7c15)) >> 54];
}

static struct node **find(struct node **table, uint64_t key)
{
	struct node **n = chain(table, key);
	while (*n != NULL && (*n)->key != key)
		n = &(*n)->next;
	return n;
}

static void insert(struct node **table, struct node *n)
{
	struct node **head = chain(table, n->key);
	n->next = *head;
	*head = n;
}

/* With the lock held. */
static struct vgpu_allocation *refer(struct vgpu_allocation *a)
{
	if (a != NULL)
		a->references++;
	return a;
}

static void end(void *argument)
{
	struct vgpu_allocation *a = argument;
	if (a->team != NULL)
		vgpu_multicast_end(a->team);
	else if (a->share != NULL)
		vgpu_share_leave(a->share);
	else if (a->bytes != 0)
		vgpu_give_back(a->device, a->bytes);
	free(a);
}

static void drop(struct vgpu_allocation *a)
{
	if (a == NULL)
		return;
	pthread_mutex_lock(&lock);
	bool last = --a->references == 0;
	pthread_mutex_unlock(&lock);
	if (last)
		vgpu_descriptor_end(a->descriptors, end, a);
}

void vgpu_allocation_refer(struct vgpu_allocation *a)
{
	pthread_mutex_lock(&lock);
	refer(a);
	pthread_mutex_unlock(&lock);
}

void vgpu_allocation_drop(struct vgpu_allocation *a)
{
	drop(a);
}

static void drop_later(void *a)
{
	drop(a);
}

void vgpu_allocation_drop_behind(struct vgpu_allocation *a, CUstream stream)
{
	vgpu_defer_done(a->device, drop_later, a, stream);
}

/* A handle that is still to be released. */
static struct node *live_handle(CUmemGenericAllocationHandle handle)
{
	struct node *n = *find(handles, handle);
	while (n != NULL && (n->key != handle || n->count == 0))
		n = n->next;
	return n;
}

/* One more release is due for this handle. `spare` becomes its node where it has none; returned if not needed. */
static struct node *add_handle(CUmemGenericAllocationHandle handle, struct vgpu_allocation *a, struct node *spare)
{
	pthread_mutex_lock(&lock);
	struct node *n = live_handle(handle);
	if (n == NULL) {
		n = spare;
		spare = NULL;
		*n = (struct node){.key = handle, .allocation = a};
		insert(handles, n);
	}
	n->count++;
	pthread_mutex_unlock(&lock);
	return spare;
}

/* A handle that the driver has just made. One that is still known under this number was released behind our back. */
static void add_new_handle(CUmemGenericAllocationHandle handle, struct vgpu_allocation *a, struct node *n)
{
	*n = (struct node){.key = handle, .allocation = a, .count = 1};
	pthread_mutex_lock(&lock);
	insert(handles, n);
	pthread_mutex_unlock(&lock);
}

static void remove_handle(struct node *gone)
{
	pthread_mutex_lock(&lock);
	struct node **n = chain(handles, gone->key);
	while (*n != gone)
		n = &(*n)->next;
	*n = gone->next;
	pthread_mutex_unlock(&lock);
	free(gone);
}

/* ---- creation ---------------------------------------------------------------------------------------------------- */

static bool on_host(const CUmemAllocationProp *prop)
{
	return prop->location.type == CU_MEM_LOCATION_TYPE_HOST ||
	       prop->location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA ||
	       prop->location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT;
}

/* Wherever it is said to lie, it may be moved to a device. */
static bool is_managed(const CUmemAllocationProp *prop)
{
	return prop->type == CU_MEM_ALLOCATION_TYPE_MANAGED;
}

static CUresult create(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop,
                       unsigned long long flags)
{
	struct vgpu_allocation *a = malloc(sizeof(*a));
	struct node *n = malloc(sizeof(*n));
	if (a == NULL || n == NULL) {
		free(a);
		free(n);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*a = (struct vgpu_allocation){
	        .device = prop->location.id, .bytes = vgpu_round_up(size, VGPU_GRANULE), .references = 1};
	CUmemGenericAllocationHandle h = 0;
	CUresult error = vgpu_reserve_or_reclaim(a->device, a->bytes);
	if (error != CUDA_SUCCESS) {
		if (vgpu_no_such_device(a->device))
			error = real_cuMemCreate(&h, size, prop, flags);
	} else {
		error = real_cuMemCreate(&h, size, prop, flags);
		if (error != CUDA_SUCCESS)
			vgpu_give_back(a->device, a->bytes);
	}
	if (error != CUDA_SUCCESS) {
		free(a);
		free(n);
		return error;
	}
	vgpu_memory_watch_fork();
	add_new_handle(h, a, n);
	*handle = h;
	return CUDA_SUCCESS;
}

CUresult hook_cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop,
                          unsigned long long flags)
{
	if (vgpu_mode() == VGPU_FREE || handle == NULL || prop == NULL || size == 0 ||
	    prop->location.type == CU_MEM_LOCATION_TYPE_INVALID || (on_host(prop) && !is_managed(prop)))
		return real_cuMemCreate(handle, size, prop, flags);
	if (prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE || is_managed(prop))
		return CUDA_ERROR_NOT_SUPPORTED; /* a place this version does not know cannot be metered */
	if (vgpu_hidden(prop->location.id))
		return CUDA_ERROR_INVALID_DEVICE;
	return create(handle, size, prop, flags);
}

/* ---- handles ----------------------------------------------------------------------------------------------------- */

/* The last release leaves its node in place until the driver has answered, with a count of 0: a mapping made at the
 * same time finds the allocation by it, and a new allocation that is given the same handle gets a node of its own. */
CUresult hook_cuMemRelease(CUmemGenericAllocationHandle handle)
{
	if (vgpu_mode() == VGPU_FREE)
		return real_cuMemRelease(handle);
	pthread_mutex_lock(&lock);
	struct node *n = live_handle(handle);
	struct vgpu_allocation *a = n != NULL ? n->allocation : NULL;
	bool last = n != NULL && --n->count == 0;
	pthread_mutex_unlock(&lock);
	CUresult error = real_cuMemRelease(handle);
	if (error == CUDA_SUCCESS) {
		if (last)
			remove_handle(n);
		drop(a);
	} else if (last) {
		pthread_mutex_lock(&lock);
		n->count++;
		pthread_mutex_unlock(&lock);
	} else if (a != NULL) {
		struct node *spare = malloc(sizeof(*spare));
		if (spare != NULL)
			free(add_handle(handle, a, spare));
	}
	return error;
}

/* With the lock held: the mapping at an address; usually asked for its first byte. */
static struct node *mapping_around(uint64_t address)
{
	struct node *n = *find(mappings, address);
	for (unsigned i = 0; i < CHAINS && n == NULL; i++)
		for (n = mappings[i]; n != NULL && (address < n->key || address - n->key >= n->size); n = n->next)
			;
	return n;
}

CUresult hook_cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *addr)
{
	if (vgpu_mode() == VGPU_FREE || handle == NULL)
		return real_cuMemRetainAllocationHandle(handle, addr);
	struct vgpu_allocation *a = vgpu_vmm_mapped((uint64_t)(uintptr_t)addr, 1);
	struct node *spare = a != NULL ? malloc(sizeof(*spare)) : NULL;
	if (a != NULL && spare == NULL) {
		drop(a);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	CUresult error = real_cuMemRetainAllocationHandle(handle, addr);
	if (error != CUDA_SUCCESS) {
		free(spare);
		drop(a);
	} else if (a != NULL) {
		free(add_handle(*handle, a, spare)); /* the reference of vgpu_vmm_mapped() is now the handle's */
	}
	return error;
}

struct vgpu_allocation *vgpu_allocation_of(CUmemGenericAllocationHandle handle)
{
	pthread_mutex_lock(&lock);
	struct node *n = *find(handles, handle);
	struct vgpu_allocation *a = refer(n != NULL ? n->allocation : NULL);
	pthread_mutex_unlock(&lock);
	return a;
}

/* ---- mappings ---------------------------------------------------------------------------------------------------- */

CUresult hook_cuMemMap(CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                       unsigned long long flags)
{
	if (vgpu_mode() == VGPU_FREE)
		return real_cuMemMap(ptr, size, offset, handle, flags);
	struct vgpu_allocation *a = vgpu_allocation_of(handle);
	struct node *mapping = a != NULL ? malloc(sizeof(*mapping)) : NULL;
	if (a != NULL && mapping == NULL) {
		drop(a);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	CUresult error = real_cuMemMap(ptr, size, offset, handle, flags);
	if (error != CUDA_SUCCESS) {
		free(mapping);
		drop(a);
	} else if (a != NULL) {
		*mapping = (struct node){.key = ptr, .size = size, .allocation = a};
		pthread_mutex_lock(&lock);
		insert(mappings, mapping);
		pthread_mutex_unlock(&lock);
	}
	return error;
}

/* With the lock held. */
static void take_from(struct node **n, struct node **taken)
{
	struct node *one = *n;
	*n = one->next;
	one->next = *taken;
	*taken = one;
}

/* With the lock held: those that begin in a range, which may hold several, one behind the other. A range is whatever the
 * program says, so never more steps than there are chains: then they are looked through. */
static void take_mappings(uint64_t start, uint64_t size, struct node **taken)
{
	if (size / VGPU_GRANULE >= CHAINS) {
		for (unsigned i = 0; i < CHAINS; i++)
			for (struct node **n = &mappings[i]; *n != NULL;)
				if ((*n)->key - start < size)
					take_from(n, taken);
				else
					n = &(*n)->next;
		return;
	}
	for (uint64_t at = start; at - start < size;) {
		struct node **n = find(mappings, at);
		at += *n != NULL ? (*n)->size : VGPU_GRANULE;
		if (*n != NULL)
			take_from(n, taken);
	}
}

CUresult hook_cuMemUnmap(CUdeviceptr ptr, size_t size)
{
	if (vgpu_mode() == VGPU_FREE)
		return real_cuMemUnmap(ptr, size);
	struct node *taken = NULL, *next;
	pthread_mutex_lock(&lock);
	take_mappings(ptr, size, &taken);
	pthread_mutex_unlock(&lock);
	CUresult error = real_cuMemUnmap(ptr, size);
	for (struct node *n = taken; n != NULL; n = next) {
		next = n->next;
		if (error == CUDA_SUCCESS) {
			drop(n->allocation);
			free(n);
			continue;
		}
		pthread_mutex_lock(&lock);
		insert(mappings, n);
		pthread_mutex_unlock(&lock);
	}
	return error;
}

/* ---- between processes ------------------------------------------------------------------------------------------- */

const struct vgpu_share *vgpu_vmm_share(struct vgpu_allocation *a, const struct vgpu_share_key *key)
{
	pthread_mutex_lock(&lock);
	if (a->share == NULL)
		a->share = vgpu_share_make(a->device, a->bytes, key);
	const struct vgpu_share *share = a->share;
	pthread_mutex_unlock(&lock);
	return share;
}

void vgpu_vmm_exported(struct vgpu_allocation *a, int fd)
{
	vgpu_descriptor_watch(&a->descriptors, fd);
}

static bool add_made(CUmemGenericAllocationHandle handle, const struct vgpu_allocation *like)
{
	struct vgpu_allocation *a = malloc(sizeof(*a));
	struct node *n = malloc(sizeof(*n));
	if (a == NULL || n == NULL) {
		free(a);
		free(n);
		return false;
	}
	*a = *like;
	vgpu_memory_watch_fork();
	add_new_handle(handle, a, n);
	return true;
}

bool vgpu_vmm_add(CUmemGenericAllocationHandle handle, CUdevice device, uint64_t bytes, struct vgpu_share *share)
{
	return add_made(handle,
	                &(struct vgpu_allocation){.device = device, .bytes = bytes, .references = 1, .share = share});
}

/* ---- multicast objects ------------------------------------------------------------------------------------------- */

bool vgpu_vmm_add_multicast(CUmemGenericAllocationHandle handle, struct vgpu_multicast *team)
{
	return add_made(handle, &(struct vgpu_allocation){.device = CU_DEVICE_INVALID, .references = 1, .team = team});
}

struct vgpu_multicast *vgpu_vmm_multicast(const struct vgpu_allocation *a)
{
	return a->team;
}

struct vgpu_allocation *vgpu_vmm_mapped(uint64_t address, uint64_t size)
{
	struct vgpu_allocation *a = NULL;
	pthread_mutex_lock(&lock);
	struct node *n = mapping_around(address);
	if (n != NULL && size <= n->size - (address - n->key))
		a = refer(n->allocation);
	pthread_mutex_unlock(&lock);
	return a;
}

bool vgpu_vmm_touches(uint64_t address, uint64_t size)
{
	bool touches = false;
	pthread_mutex_lock(&lock);
	for (unsigned i = 0; i < CHAINS && !touches; i++)
		for (struct node *n = mappings[i]; n != NULL && !touches; n = n->next)
			touches = n->key < address ? address - n->key < n->size : n->key - address < size;
	pthread_mutex_unlock(&lock);
	return touches;
}

void vgpu_vmm_forked(void)
{
	pthread_mutex_init(&lock, NULL);
	for (unsigned i = 0; i < CHAINS; i++)
		handles[i] = mappings[i] = NULL;
}
