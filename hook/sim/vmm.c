/* vmm.c: the virtual memory management functions: reserved addresses, allocation handles, mappings of one into the
 * other.
 *
 * Called by programs (PyTorch's expandable segments make thousands of handles). All handles of the process are parts
 * of one memfd, so that a handle costs no descriptor, and two mappings of it are the same memory. A handle's memory
 * counts on the card until it is released as often as it was retained and nothing maps it, in any process that it was
 * handed to; one that lies on the host counts nowhere. Export and import are in vmm_share.c. What can go wrong: a full card, sizes that are no multiple of
 * the granule, ranges that are not reserved, already mapped or only part of a mapping; a mapping without
 * cuMemSetAccess cannot be touched (the program gets SIGSEGV, as from the real one).
 */
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "blocks.h"
#include "context.h"
#include "multicast.h"
#include "sim_impl.h"
#include "visible.h"
#include "vmm.h"

#define PAGE 4096 /* of the host */

static struct sim_range *reservations;

/* ---- reserved addresses ----------------------------------------------------------------------------------------- */

static struct sim_range *reservation_around(uint64_t start, uint64_t size)
{
	struct sim_range *range = sim_range_floor(reservations, start);

	return range && start - range->start < range->size && size <= range->size - (start - range->start) ? range
	                                                                                                   : NULL;
}

/* Address room of this size and alignment, at the hint if that is free; MAP_FAILED: none. */
static void *map_reserved(uint64_t size, uint64_t alignment, uint64_t hint)
{
	int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;

	if (hint && hint % alignment == 0) {
		void *p = mmap((void *)(uintptr_t)hint, size, PROT_NONE, flags, -1, 0); /* a hint: never over others */
		if (p == (void *)(uintptr_t)hint)
			return p;
		if (p != MAP_FAILED)
			munmap(p, size);
	}
	if (size > UINT64_MAX / 2 - alignment)
		return MAP_FAILED;
	char *p = mmap(NULL, size + alignment, PROT_NONE, flags, -1, 0);
	if (p == MAP_FAILED)
		return p;
	uint64_t head = sim_round_up((uint64_t)(uintptr_t)p, alignment) - (uint64_t)(uintptr_t)p;
	if (head)
		munmap(p, head);
	if (head < alignment)
		munmap(p + head + size, alignment - head);
	return p + head;
}

CUresult sim_cuMemAddressReserve(CUdeviceptr *out, size_t size, size_t alignment, CUdeviceptr hint,
                                 unsigned long long flags)
{
	if (!sim_initialized())
		return CUDA_ERROR_NOT_INITIALIZED;
	uint64_t granule = sim_machine->model[sim_physical(0)].granule;
	if (!out || flags || !size || size % PAGE || hint % PAGE || (alignment & (alignment - 1)))
		return CUDA_ERROR_INVALID_VALUE;
	struct sim_range *range = calloc(1, sizeof *range);
	void *p = range ? map_reserved(size, alignment > granule ? alignment : granule, hint) : MAP_FAILED;
	if (p == MAP_FAILED) {
		free(range);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	range->start = (uint64_t)(uintptr_t)p;
	range->size = size;
	pthread_mutex_lock(&sim_memory_mutex);
	sim_range_insert(&reservations, range);
	pthread_mutex_unlock(&sim_memory_mutex);
	*out = range->start;
	return CUDA_SUCCESS;
}

CUresult sim_cuMemAddressFree(CUdeviceptr p, size_t size)
{
	if (!sim_initialized())
		return CUDA_ERROR_NOT_INITIALIZED;
	pthread_mutex_lock(&sim_memory_mutex);
	struct sim_range *range = sim_range_floor(reservations, p);
	bool right = range && range->start == p && range->size == size && !sim_block_within(p, size);
	if (right)
		sim_range_remove(&reservations, range);
	pthread_mutex_unlock(&sim_memory_mutex);
	if (!right)
		return CUDA_ERROR_INVALID_VALUE;
	munmap((void *)(uintptr_t)p, size);
	free(range);
	return CUDA_SUCCESS;
}

/* ---- allocation handles ----------------------------------------------------------------------------------------- */

static struct sim_store own_store = {.fd = -1};

/* Under the memory mutex: the memfd of all handles made here. */
static struct sim_store *open_own_store(void)
{
	if (own_store.fd >= 0)
		return &own_store;
	int fd = memfd_create("partage-sim-vmm", MFD_CLOEXEC);
	if (fd < 0)
		return NULL;
	if (ftruncate(fd, (off_t)SIM_STORE_BYTES) < 0 || !sim_space_give(&own_store.space, 0, SIM_STORE_BYTES)) {
		close(fd);
		return NULL;
	}
	own_store.fd = fd;
	return &own_store;
}

/* Under the memory mutex. */
static bool place_allocation(struct sim_allocation *allocation)
{
	struct sim_store *store = open_own_store();

	/* One page in front tells an importer what this is, see vmm_share.c; a whole granule keeps offsets aligned. */
	if (!store || !sim_space_take(&store->space, allocation->size + allocation->granule, &allocation->offset))
		return false;
	allocation->offset += allocation->granule;
	allocation->fd = store->fd;
	return true;
}

/* `last`: no other process holds it. */
static void unplace_allocation(struct sim_allocation *allocation, bool last)
{
	uint64_t start = allocation->offset - allocation->granule, size = allocation->size + allocation->granule;

	if (last)
		fallocate(allocation->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)start, (off_t)size);
	if (allocation->imported)
		close(allocation->fd);
	else if (!allocation->exported) /* a descriptor that is under way may still name that part of the file */
		sim_space_give(&own_store.space, start, size);
}

/* Under the memory mutex: gone when released as often as retained, unmapped, and no descriptor of it is open. */
void sim_allocation_put(struct sim_allocation *allocation)
{
	bool last = !allocation->imported && !allocation->exported;

	if (allocation->handles || allocation->mappings || sim_shared_keep(allocation))
		return;
	if (allocation->share)
		last = sim_shared_put(allocation);
	else if (allocation->device >= 0 && !allocation->imported)
		sim_account(allocation->device, -(int64_t)allocation->size, false);
	unplace_allocation(allocation, last);
	if (allocation->team)
		sim_multicast_end(allocation->team);
	free(allocation);
}

void sim_allocation_unmapped(struct sim_allocation *allocation)
{
	allocation->mappings--;
	sim_allocation_put(allocation);
}

static CUresult check_location(const CUmemLocation *location, int *device)
{
	*device = -1;
	switch (location->type) {
	case CU_MEM_LOCATION_TYPE_DEVICE:
		return sim_device_of(location->id, device) == CUDA_SUCCESS ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
	case CU_MEM_LOCATION_TYPE_HOST:
	case CU_MEM_LOCATION_TYPE_HOST_NUMA:
	case CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT:
		return CUDA_SUCCESS;
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
}

static CUresult check_prop(const CUmemAllocationProp *prop, int *device)
{
	if (!prop || prop->type != CU_MEM_ALLOCATION_TYPE_PINNED || prop->win32HandleMetaData ||
	    prop->location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT ||
	    (prop->location.type == CU_MEM_LOCATION_TYPE_HOST && prop->requestedHandleTypes))
		return CUDA_ERROR_INVALID_VALUE;
	if (prop->requestedHandleTypes & ~(unsigned)CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
		return CUDA_ERROR_NOT_SUPPORTED;
	return check_location(&prop->location, device);
}

static uint64_t granule_of(int device)
{
	return sim_machine->model[device >= 0 ? device : sim_physical(0)].granule;
}

CUresult sim_allocation_publish(struct sim_allocation *allocation, CUmemGenericAllocationHandle *out)
{
	allocation->handles = 1;
	sim_handle_add(allocation, SIM_TAG_ALLOCATION);
	*out = (CUmemGenericAllocationHandle)(uintptr_t)allocation;
	return CUDA_SUCCESS;
}

CUresult sim_allocation_create(struct sim_allocation *allocation, CUmemGenericAllocationHandle *out)
{
	pthread_mutex_lock(&sim_memory_mutex);
	bool counted = allocation->device < 0 ||
	               sim_account_or_trim(allocation->device, (int64_t)allocation->size, false) == 0;
	bool placed = counted && place_allocation(allocation);
	pthread_mutex_unlock(&sim_memory_mutex);
	if (placed)
		return sim_allocation_publish(allocation, out);
	if (counted && allocation->device >= 0)
		sim_account(allocation->device, -(int64_t)allocation->size, false);
	return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult sim_cuMemCreate(CUmemGenericAllocationHandle *out, size_t size, const CUmemAllocationProp *prop,
                         unsigned long long flags)
{
	int device;

	if (!sim_initialized())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!out || flags || !size)
		return CUDA_ERROR_INVALID_VALUE;
	CUresult result = check_prop(prop, &device);
	if (result != CUDA_SUCCESS)
		return result;
	if (size % granule_of(device))
		return CUDA_ERROR_INVALID_VALUE;
	struct sim_allocation *allocation = size < SIM_STORE_BYTES / 2 ? calloc(1, sizeof *allocation) : NULL;
	if (!allocation)
		return CUDA_ERROR_OUT_OF_MEMORY;
	allocation->device = device;
	allocation->granule = granule_of(device);
	allocation->size = size;
	allocation->prop = *prop;
	result = sim_allocation_create(allocation, out);
	if (result != CUDA_SUCCESS)
		free(allocation);
	return result;
}

struct sim_allocation *sim_allocation_from(CUmemGenericAllocationHandle handle)
{
	void *pointer = (void *)(uintptr_t)handle;

	return sim_initialized() && sim_handle_is(pointer, SIM_TAG_ALLOCATION) ? pointer : NULL;
}

CUresult sim_cuMemRelease(CUmemGenericAllocationHandle handle)
{
	struct sim_allocation *allocation;

	pthread_mutex_lock(&sim_memory_mutex);
	allocation = sim_allocation_from(handle);
	if (allocation && --allocation->handles == 0)
		sim_handle_drop(allocation);
	if (allocation && allocation->team)
		sim_multicast_changed();
	if (allocation)
		sim_allocation_put(allocation);
	pthread_mutex_unlock(&sim_memory_mutex);
	return allocation ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult sim_cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *out, void *address)
{
	if (!sim_initialized())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&sim_memory_mutex);
	struct sim_block *block = sim_block_at((uint64_t)(uintptr_t)address);
	struct sim_allocation *allocation = block && block->kind == SIM_BLOCK_MAPPED ? block->allocation : NULL;
	if (allocation && allocation->handles++ == 0)
		sim_handle_add(allocation, SIM_TAG_ALLOCATION);
	pthread_mutex_unlock(&sim_memory_mutex);
	if (!allocation)
		return CUDA_ERROR_INVALID_VALUE;
	*out = (CUmemGenericAllocationHandle)(uintptr_t)allocation;
	return CUDA_SUCCESS;
}

CUresult sim_cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *prop,
                                           CUmemAllocationGranularity_flags option)
{
	int device;

	if (!sim_initialized())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!granularity || (unsigned)option > CU_MEM_ALLOC_GRANULARITY_RECOMMENDED)
		return CUDA_ERROR_INVALID_VALUE;
	CUresult result = check_prop(prop, &device);
	if (result == CUDA_SUCCESS)
		*granularity = granule_of(device);
	return result;
}

CUresult sim_cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *prop, CUmemGenericAllocationHandle handle)
{
	if (!sim_initialized())
		return CUDA_ERROR_NOT_INITIALIZED;
	pthread_mutex_lock(&sim_memory_mutex);
	struct sim_allocation *allocation = sim_allocation_from(handle);
	bool known = allocation && prop && !allocation->team;
	if (known)
		*prop = allocation->prop;
	pthread_mutex_unlock(&sim_memory_mutex);
	return known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUmemLocationType sim_allocation_location(const struct sim_block *block)
{
	return block->allocation->prop.location.type;
}

unsigned sim_allocation_handle_types(const struct sim_block *block)
{
	return block->allocation->prop.requestedHandleTypes;
}

/* ---- mappings --------------------------------------------------------------------------------------------------- */

/* Under the memory mutex. */
static CUresult map(uint64_t start, uint64_t size, uint64_t offset, struct sim_allocation *allocation)
{
	if (offset > allocation->size || size > allocation->size - offset || start % allocation->granule ||
	    size % allocation->granule || offset % allocation->granule)
		return CUDA_ERROR_INVALID_VALUE;
	if (!reservation_around(start, size) || sim_block_overlaps(start, size))
		return CUDA_ERROR_INVALID_VALUE;
	int device = allocation->device >= 0 ? allocation->device : sim_physical(0);
	struct sim_block *block = sim_block_add(SIM_BLOCK_MAPPED, device, NULL, start, size);
	if (!block)
		return CUDA_ERROR_OUT_OF_MEMORY;
	void *p = mmap((void *)(uintptr_t)start, size, PROT_NONE, MAP_SHARED | MAP_FIXED, allocation->fd,
	               (off_t)(allocation->offset + offset));
	if (p == MAP_FAILED) {
		sim_block_remove(block);
		free(block);
		return CUDA_ERROR_MAP_FAILED;
	}
	block->allocation = allocation;
	block->offset = offset;
	allocation->mappings++;
	return CUDA_SUCCESS;
}

CUresult sim_cuMemMap(CUdeviceptr p, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                      unsigned long long flags)
{
	if (!sim_initialized())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (flags || !size)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&sim_memory_mutex);
	struct sim_allocation *allocation = sim_allocation_from(handle);
	if (allocation && allocation->team && !sim_multicast_wait(allocation))
		allocation = NULL;
	CUresult result = allocation ? map(p, size, offset, allocation) : CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_unlock(&sim_memory_mutex);
	return result;
}

/* Under the memory mutex: is the range made of whole mappings, without holes? */
static bool whole_mappings(uint64_t start, uint64_t size)
{
	while (size) {
		struct sim_block *block = sim_block_from(start);
		if (!block || block->kind != SIM_BLOCK_MAPPED || block->range.size > size)
			return false;
		start += block->range.size;
		size -= block->range.size;
	}
	return true;
}

CUresult sim_unmap(uint64_t start, uint64_t size)
{
	int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
	struct sim_block *block;

	if (!whole_mappings(start, size))
		return CUDA_ERROR_INVALID_VALUE;
	if (mmap((void *)(uintptr_t)start, size, PROT_NONE, flags, -1, 0) == MAP_FAILED)
		return CUDA_ERROR_UNMAP_FAILED;
	while ((block = sim_block_within(start, size))) {
		struct sim_allocation *allocation = block->allocation;
		sim_block_remove(block);
		free(block);
		sim_allocation_unmapped(allocation);
	}
	return CUDA_SUCCESS;
}

CUresult sim_cuMemUnmap(CUdeviceptr p, size_t size)
{
	struct sim_context *context = sim_current();

	if (!sim_initialized())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!size)
		return CUDA_ERROR_INVALID_VALUE;
	if (context)
		sim_context_wait(context); /* queued copies may still use it */
	pthread_mutex_lock(&sim_memory_mutex);
	CUresult result = sim_unmap(p, size);
	pthread_mutex_unlock(&sim_memory_mutex);
	return result;
}

/* Who may touch it is one protection in this process: the most that any device has. */
static int protection(const struct sim_block *block)
{
	unsigned access = block->host_access;

	for (int i = 0; i < SIM_DEVICES; i++)
		access |= block->access[i];
	if (!access)
		return PROT_NONE;
	return (access & CU_MEM_ACCESS_FLAGS_PROT_READWRITE) == CU_MEM_ACCESS_FLAGS_PROT_READWRITE
	               ? PROT_READ | PROT_WRITE
		       : PROT_READ;
}

static CUresult set_access(struct sim_block *block, const CUmemAccessDesc *desc, size_t count)
{
	int device;

	for (size_t i = 0; i < count; i++) {
		if (desc[i].location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
		    sim_device_of(desc[i].location.id, &device) == CUDA_SUCCESS)
			block->access[device] = (uint8_t)desc[i].flags;
		else
			block->host_access = (uint8_t)desc[i].flags;
	}
	if (mprotect((void *)(uintptr_t)block->range.start, block->range.size, protection(block)) < 0)
		return CUDA_ERROR_OUT_OF_MEMORY;
	return CUDA_SUCCESS;
}

static CUresult check_access(const CUmemAccessDesc *desc, size_t count)
{
	int device;

	for (size_t i = 0; i < count; i++) {
		CUresult result = check_location(&desc[i].location, &device);
		if (result != CUDA_SUCCESS)
			return result;
		if (desc[i].flags != CU_MEM_ACCESS_FLAGS_PROT_NONE && desc[i].flags != CU_MEM_ACCESS_FLAGS_PROT_READ &&
		    desc[i].flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
			return CUDA_ERROR_INVALID_VALUE;
	}
	return CUDA_SUCCESS;
}

CUresult sim_cuMemSetAccess(CUdeviceptr p, size_t size, const CUmemAccessDesc *desc, size_t count)
{
	if (!sim_initialized())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!size || !desc || !count)
		return CUDA_ERROR_INVALID_VALUE;
	CUresult result = check_access(desc, count);
	if (result != CUDA_SUCCESS)
		return result;
	pthread_mutex_lock(&sim_memory_mutex);
	if (!whole_mappings(p, size))
		result = CUDA_ERROR_INVALID_VALUE;
	for (uint64_t at = p; result == CUDA_SUCCESS && at < p + size;) {
		struct sim_block *block = sim_block_from(at);
		result = set_access(block, desc, count);
		at += block->range.size;
	}
	pthread_mutex_unlock(&sim_memory_mutex);
	return result;
}

CUresult sim_cuMemGetAccess(unsigned long long *flags, const CUmemLocation *location, CUdeviceptr p)
{
	int device;

	if (!sim_initialized())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!flags || !location)
		return CUDA_ERROR_INVALID_VALUE;
	CUresult result = check_location(location, &device);
	if (result != CUDA_SUCCESS)
		return result;
	pthread_mutex_lock(&sim_memory_mutex);
	struct sim_block *block = sim_block_at(p);
	if (!block || block->kind != SIM_BLOCK_MAPPED)
		result = CUDA_ERROR_INVALID_VALUE;
	else
		*flags = device >= 0 ? block->access[device] : block->host_access;
	pthread_mutex_unlock(&sim_memory_mutex);
	return result;
}
