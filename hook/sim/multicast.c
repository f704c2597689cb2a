/* multicast.c: multicast objects: cuMulticastCreate, AddDevice, BindMem, BindAddr, Unbind, GetGranularity.
 *
 * Called by programs on machines with NVSwitches. An object is an allocation handle (vmm.c) without memory of the card:
 * its pages are a window of the host, and what a copy or fill stores through a mapping of it is copied on to every memory
 * that is bound there (loads through such a mapping mean nothing on real devices; here they find the window). Bound
 * memory lives until it is unbound or the object is gone: released and unmapped. As documented, binding and mapping wait
 * until all devices of the team are there. What can go wrong: a device without NVSwitch, ranges outside of object or
 * memory, or taken already. Not simulated: objects between processes, and stream-ordered memory, which a pool may give
 * away while it is bound (CUDA_ERROR_NOT_SUPPORTED).
 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "multicast.h"
#include "sim_impl.h"
#include "visible.h"

struct binding {
	struct binding *next;
	int device; /* physical */
	uint64_t offset, size; /* in the object */
	struct sim_allocation *memory;
	char *bytes; /* its part of the memory, mapped for the driver */
};

struct sim_multicast {
	unsigned wanted, added;
	bool member[SIM_DEVICES];
	struct binding *bindings;
};

static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static unsigned live; /* objects */

/* ---- teams ------------------------------------------------------------------------------------------------------ */

bool sim_multicast_supported(int device)
{
	const struct sim_device_model *model = &sim_machine->model[device];

	if (model->cc_major < 9 || model->mig != SIM_MIG_NONE)
		return false;
	for (uint32_t i = 0; i < sim_machine->ndev; i++)
		if ((int)i != device && sim_machine->link[device][i].kind == SIM_LINK_NVSWITCH)
			return true;
	return false;
}

static CUresult check_prop(const CUmulticastObjectProp *prop)
{
	if (!sim_initialized())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!sim_multicast_supported(sim_physical(0)))
		return CUDA_ERROR_NOT_SUPPORTED;
	if (!prop || prop->flags || !prop->numDevices || prop->numDevices > sim_machine->ndev)
		return CUDA_ERROR_INVALID_VALUE;
	return prop->handleTypes ? CUDA_ERROR_NOT_SUPPORTED : CUDA_SUCCESS;
}

CUresult sim_cuMulticastGetGranularity(size_t *granularity, const CUmulticastObjectProp *prop,
                                       CUmulticastGranularity_flags option)
{
	CUresult result = check_prop(prop);

	if (result != CUDA_SUCCESS)
		return result;
	if (!granularity || (unsigned)option > CU_MULTICAST_GRANULARITY_RECOMMENDED)
		return CUDA_ERROR_INVALID_VALUE;
	*granularity = sim_machine->model[sim_physical(0)].granule;
	return CUDA_SUCCESS;
}

CUresult sim_cuMulticastCreate(CUmemGenericAllocationHandle *out, const CUmulticastObjectProp *prop)
{
	CUresult result = check_prop(prop);

	if (result != CUDA_SUCCESS)
		return result;
	uint64_t granule = sim_machine->model[sim_physical(0)].granule;
	if (!out || !prop->size || prop->size % granule)
		return CUDA_ERROR_INVALID_VALUE;
	struct sim_allocation *object = prop->size < SIM_STORE_BYTES / 2 ? calloc(1, sizeof *object) : NULL;
	struct sim_multicast *team = object ? calloc(1, sizeof *team) : NULL;
	if (!team) {
		free(object);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	team->wanted = prop->numDevices;
	*object = (struct sim_allocation){.device = -1, .granule = granule, .size = prop->size, .team = team};
	object->prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	__atomic_add_fetch(&live, 1, __ATOMIC_RELAXED);
	result = sim_allocation_create(object, out);
	if (result != CUDA_SUCCESS) {
		__atomic_sub_fetch(&live, 1, __ATOMIC_RELAXED);
		free(team);
		free(object);
	}
	return result;
}

/* Under the memory mutex; NULL: no such object. */
static struct sim_allocation *object_from(CUmemGenericAllocationHandle handle)
{
	struct sim_allocation *object = sim_allocation_from(handle);

	return object && object->team ? object : NULL;
}

/* Under the memory mutex. */
static CUresult add_device(struct sim_multicast *team, int device)
{
	if (!sim_multicast_supported(device))
		return CUDA_ERROR_INVALID_DEVICE;
	if (team->member[device] || team->added == team->wanted)
		return CUDA_ERROR_INVALID_VALUE;
	team->member[device] = true;
	team->added++;
	sim_multicast_changed();
	return CUDA_SUCCESS;
}

/* The object and the device that a call names; CUDA_SUCCESS: the memory mutex is held. */
static CUresult enter(CUmemGenericAllocationHandle handle, CUdevice ordinal, struct sim_allocation **object,
                      int *device)
{
	if (!sim_initialized())
		return CUDA_ERROR_NOT_INITIALIZED;
	CUresult result = sim_device_of(ordinal, device);
	if (result != CUDA_SUCCESS)
		return result;
	pthread_mutex_lock(&sim_memory_mutex);
	*object = object_from(handle);
	if (*object)
		return CUDA_SUCCESS;
	pthread_mutex_unlock(&sim_memory_mutex);
	return CUDA_ERROR_INVALID_VALUE;
}

CUresult sim_cuMulticastAddDevice(CUmemGenericAllocationHandle handle, CUdevice ordinal)
{
	int device;
	struct sim_allocation *object;
	CUresult result = enter(handle, ordinal, &object, &device);

	if (result != CUDA_SUCCESS)
		return result;
	result = add_device(object->team, device);
	pthread_mutex_unlock(&sim_memory_mutex);
	return result;
}

void sim_multicast_changed(void)
{
	pthread_cond_broadcast(&changed);
}

bool sim_multicast_wait(struct sim_allocation *object)
{
	object->mappings++; /* stays while we wait */
	while (object->team->added < object->team->wanted && object->handles)
		pthread_cond_wait(&changed, &sim_memory_mutex);
	bool there = object->handles;
	sim_allocation_unmapped(object);
	return there;
}

/* ---- what is bound ---------------------------------------------------------------------------------------------- */

static void drop_binding(struct binding *binding)
{
	munmap(binding->bytes, binding->size);
	sim_allocation_unmapped(binding->memory);
	free(binding);
}

void sim_multicast_end(struct sim_multicast *team)
{
	for (struct binding *binding = team->bindings, *next; binding; binding = next) {
		next = binding->next;
		drop_binding(binding);
	}
	free(team);
	__atomic_sub_fetch(&live, 1, __ATOMIC_RELAXED);
}

static bool is_part(uint64_t offset, uint64_t size, uint64_t whole)
{
	return offset <= whole && size <= whole - offset;
}

static bool bound_already(const struct sim_multicast *team, int device, uint64_t offset, uint64_t size)
{
	const struct binding *binding = team->bindings;

	while (binding && (binding->device != device || offset >= binding->offset + binding->size ||
	                   binding->offset >= offset + size))
		binding = binding->next;
	return binding;
}

/* What a bind names. */
struct request {
	CUmemGenericAllocationHandle object;
	CUdevice ordinal; /* CU_DEVICE_INVALID: the memory's own */
	uint64_t offset, memory_offset, size;
	unsigned long long flags;
};

/* Of which device the memory is in the team. Memory of the host is a device's where its NUMA node is. */
static CUresult device_for(const struct sim_allocation *memory, const struct request *request, int *device)
{
	const CUmemLocation *location = &memory->prop.location;

	*device = memory->device;
	if (request->ordinal == CU_DEVICE_INVALID)
		return *device >= 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
	CUresult result = sim_device_of(request->ordinal, device);
	if (result != CUDA_SUCCESS)
		return result;
	if (memory->device >= 0)
		return memory->device == *device ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
	return location->type == CU_MEM_LOCATION_TYPE_HOST_NUMA && location->id == (int)sim_machine->model[*device].numa
	               ? CUDA_SUCCESS
		       : CUDA_ERROR_INVALID_VALUE;
}

/* Under the memory mutex. */
static CUresult add_binding(struct sim_multicast *team, struct sim_allocation *memory, const struct request *request,
                            int device)
{
	struct binding *binding = calloc(1, sizeof *binding);

	if (!binding)
		return CUDA_ERROR_OUT_OF_MEMORY;
	binding->bytes = mmap(NULL, request->size, PROT_READ | PROT_WRITE, MAP_SHARED, memory->fd,
	                      (off_t)(memory->offset + request->memory_offset));
	if (binding->bytes == MAP_FAILED) {
		free(binding);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	binding->device = device;
	binding->offset = request->offset;
	binding->size = request->size;
	binding->memory = memory;
	memory->mappings++;
	binding->next = team->bindings;
	team->bindings = binding;
	return CUDA_SUCCESS;
}

/* Under the memory mutex; the memory stays. */
static CUresult bind(struct sim_allocation *memory, const struct request *request)
{
	struct sim_allocation *object = object_from(request->object);
	int device;

	if (!object || memory->team || request->flags || !request->size || request->offset % object->granule ||
	    request->memory_offset % object->granule || request->size % object->granule ||
	    !is_part(request->offset, request->size, object->size) ||
	    !is_part(request->memory_offset, request->size, memory->size))
		return CUDA_ERROR_INVALID_VALUE;
	CUresult result = device_for(memory, request, &device);
	if (result != CUDA_SUCCESS)
		return result;
	if (!sim_multicast_wait(object))
		return CUDA_ERROR_INVALID_VALUE;
	if (!object->team->member[device])
		return CUDA_ERROR_INVALID_DEVICE;
	if (bound_already(object->team, device, request->offset, request->size))
		return CUDA_ERROR_INVALID_VALUE;
	return add_binding(object->team, memory, request, device);
}

/* Under the memory mutex, which may be let go while devices are missing. */
static CUresult bind_pinned(struct sim_allocation *memory, const struct request *request)
{
	memory->mappings++;
	CUresult result = bind(memory, request);
	sim_allocation_unmapped(memory);
	return result;
}

static CUresult bind_memory(CUmemGenericAllocationHandle handle, const struct request *request)
{
	if (!sim_initialized())
		return CUDA_ERROR_NOT_INITIALIZED;
	pthread_mutex_lock(&sim_memory_mutex);
	struct sim_allocation *memory = sim_allocation_from(handle);
	CUresult result = memory ? bind_pinned(memory, request) : CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_unlock(&sim_memory_mutex);
	return result;
}

static CUresult bind_address(CUdeviceptr p, struct request *request)
{
	CUresult result = CUDA_ERROR_INVALID_VALUE;

	if (!sim_initialized())
		return CUDA_ERROR_NOT_INITIALIZED;
	pthread_mutex_lock(&sim_memory_mutex);
	struct sim_block *block = sim_block_at(p);
	if (block && block->kind == SIM_BLOCK_POOL)
		result = CUDA_ERROR_NOT_SUPPORTED;
	else if (block && block->kind == SIM_BLOCK_MAPPED && object_from(request->object) &&
	         is_part(p - block->range.start, request->size, block->range.size)) {
		request->memory_offset = block->offset + (p - block->range.start);
		result = bind_pinned(block->allocation, request);
	}
	pthread_mutex_unlock(&sim_memory_mutex);
	return result;
}

CUresult sim_cuMulticastBindMem(CUmemGenericAllocationHandle object, size_t offset, CUmemGenericAllocationHandle memory,
                                size_t memory_offset, size_t size, unsigned long long flags)
{
	struct request request = {object, CU_DEVICE_INVALID, offset, memory_offset, size, flags};

	return bind_memory(memory, &request);
}

CUresult sim_cuMulticastBindMem_v2(CUmemGenericAllocationHandle object, CUdevice ordinal, size_t offset,
                                   CUmemGenericAllocationHandle memory, size_t memory_offset, size_t size,
                                   unsigned long long flags)
{
	struct request request = {object, ordinal, offset, memory_offset, size, flags};

	return ordinal < 0 ? CUDA_ERROR_INVALID_DEVICE : bind_memory(memory, &request);
}

CUresult sim_cuMulticastBindAddr(CUmemGenericAllocationHandle object, size_t offset, CUdeviceptr p, size_t size,
                                 unsigned long long flags)
{
	struct request request = {object, CU_DEVICE_INVALID, offset, 0, size, flags};

	return bind_address(p, &request);
}

CUresult sim_cuMulticastBindAddr_v2(CUmemGenericAllocationHandle object, CUdevice ordinal, size_t offset, CUdeviceptr p,
                                    size_t size, unsigned long long flags)
{
	struct request request = {object, ordinal, offset, 0, size, flags};

	return ordinal < 0 ? CUDA_ERROR_INVALID_DEVICE : bind_address(p, &request);
}

/* Under the memory mutex. */
static CUresult unbind(struct sim_multicast *team, int device, uint64_t offset, uint64_t size)
{
	struct binding **link = &team->bindings;

	while (*link && ((*link)->device != device || (*link)->offset != offset || (*link)->size != size))
		link = &(*link)->next;
	struct binding *binding = *link;
	if (!binding)
		return CUDA_ERROR_INVALID_VALUE;
	*link = binding->next;
	drop_binding(binding);
	return CUDA_SUCCESS;
}

CUresult sim_cuMulticastUnbind(CUmemGenericAllocationHandle handle, CUdevice ordinal, size_t offset, size_t size)
{
	int device;
	struct sim_allocation *object;
	CUresult result = enter(handle, ordinal, &object, &device);

	if (result != CUDA_SUCCESS)
		return result;
	result = unbind(object->team, device, offset, size);
	pthread_mutex_unlock(&sim_memory_mutex);
	return result;
}

/* ---- stores ----------------------------------------------------------------------------------------------------- */

/* Under the memory mutex: n bytes at this offset of the object were stored at p. */
static void spread(const struct sim_multicast *team, uint64_t offset, uint64_t n, const char *p)
{
	for (const struct binding *binding = team->bindings; binding; binding = binding->next) {
		uint64_t from = offset > binding->offset ? offset : binding->offset;
		uint64_t end = offset + n, bound = binding->offset + binding->size;
		uint64_t to = end < bound ? end : bound;
		if (from < to)
			memcpy(binding->bytes + (from - binding->offset), p + (from - offset), to - from);
	}
}

void sim_multicast_stored(uint64_t p, uint64_t n)
{
	if (!__atomic_load_n(&live, __ATOMIC_RELAXED))
		return;
	pthread_mutex_lock(&sim_memory_mutex);
	for (struct sim_block *block = sim_block_at(p); n && block; block = sim_block_at(p)) {
		uint64_t inside = p - block->range.start, rest = block->range.size - inside;
		uint64_t part = n < rest ? n : rest;
		if (block->kind == SIM_BLOCK_MAPPED && block->allocation->team)
			spread(block->allocation->team, block->offset + inside, part, (const char *)(uintptr_t)p);
		p += part;
		n -= part;
	}
	pthread_mutex_unlock(&sim_memory_mutex);
}
