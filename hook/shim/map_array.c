/* map_array.c: memory of sparse and deferred arrays: cuMemMapArrayAsync.
 *
 * Such an array costs nothing itself; an allocation handle is mapped into it, region by region, and the driver keeps that
 * memory while a region of it is mapped, even when the handle has been released. So each mapped region refers to the
 * allocation (vmm.c). What an operation may unmap is taken out before the driver is asked and let go after the stream
 * has come that far. Called by programs, and by array.c and ctx.c when an array or its context ends. What can go wrong:
 * no host memory for a record; then nothing is mapped, or a region keeps its charge until the array ends.
 */
#include <pthread.h>
#include <stdlib.h>

#include "hooks.h"
#include "memory.h"

#define CHAINS 256
#define TAIL   UINT32_MAX /* as a level: the mip tail, measured in bytes along x */

struct box {
	uint32_t level, layer;
	uint64_t from[3], to[3];
};

struct region {
	struct box box;
	uint64_t call; /* that mapped it */
	struct vgpu_allocation *memory;
	struct region *next;
};

struct vgpu_mapped_array {
	uint64_t handle;
	CUcontext context;
	uint64_t epoch;
	bool whole; /* deferred: mapped as one */
	struct region *regions;
	struct vgpu_mapped_array *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* process-private, never held across a driver call */
static struct vgpu_mapped_array *resources[CHAINS];
static uint64_t calls;

static struct vgpu_mapped_array **find(uint64_t handle)
{
	struct vgpu_mapped_array **r = &resources[(handle * UINT64_C(0x9e3779b97f4a7c15)) >> 56];
	while (*r != NULL && (*r)->handle != handle)
		r = &(*r)->next;
	return r;
}

/* ---- boxes ---------------------------------------------------------------------------------------------------------- */

static bool overlap(const struct box *a, const struct box *b)
{
	for (int i = 0; i < 3; i++)
		if (a->from[i] >= b->to[i] || b->from[i] >= a->to[i])
			return false;
	return a->level == b->level && a->layer == b->layer;
}

/* With the lock held: the part of a region beyond the box on one side becomes a region of its own. */
static bool split(struct region *r, int axis, uint64_t at, bool above, struct region **rest)
{
	struct region *part = malloc(sizeof(*part));
	if (part == NULL)
		return false;
	*part = *r;
	vgpu_allocation_refer(part->memory);
	if (above)
		part->box.from[axis] = r->box.to[axis] = at;
	else
		part->box.to[axis] = r->box.from[axis] = at;
	part->next = *rest;
	*rest = part;
	return true;
}

/* With the lock held: takes out what lies in the box; call 0: of any call. What cannot be split for want of host memory
 * stays. */
static void cut(struct vgpu_mapped_array *resource, const struct box *box, uint64_t call, struct region **taken)
{
	struct region *rest = NULL;
	for (struct region **at = &resource->regions; *at != NULL;) {
		struct region *r = *at;
		bool whole = true;
		if ((call != 0 && r->call != call) || !overlap(&r->box, box)) {
			at = &r->next;
			continue;
		}
		for (int i = 0; i < 3 && whole; i++) {
			if (r->box.from[i] < box->from[i])
				whole = split(r, i, box->from[i], false, &rest);
			if (whole && r->box.to[i] > box->to[i])
				whole = split(r, i, box->to[i], true, &rest);
		}
		if (!whole) {
			at = &r->next;
			continue;
		}
		*at = r->next;
		r->next = *taken;
		*taken = r;
	}
	while (rest != NULL) {
		struct region *r = rest;
		rest = r->next;
		r->next = resource->regions;
		resource->regions = r;
	}
}

/* ---- one call ------------------------------------------------------------------------------------------------------- */

static uint64_t handle_of(const CUarrayMapInfo *info)
{
	return (uint64_t)(uintptr_t)(info->resourceType == CU_RESOURCE_TYPE_MIPMAPPED_ARRAY
	                                     ? (void *)info->resource.mipmap
					     : (void *)info->resource.array);
}

static struct box box_of(const CUarrayMapInfo *info, bool whole)
{
	struct box box = {.to = {UINT64_MAX, 1, 1}};
	if (whole)
		return box;
	if (info->subresourceType == CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_MIPTAIL) {
		box.level = TAIL;
		box.layer = info->subresource.miptail.layer;
		box.from[0] = info->subresource.miptail.offset;
		box.to[0] = box.from[0] + info->subresource.miptail.size;
		return box;
	}
	box.level = info->subresource.sparseLevel.level;
	box.layer = info->subresource.sparseLevel.layer;
	box.from[0] = info->subresource.sparseLevel.offsetX;
	box.from[1] = info->subresource.sparseLevel.offsetY;
	box.from[2] = info->subresource.sparseLevel.offsetZ;
	box.to[0] = box.from[0] + info->subresource.sparseLevel.extentWidth;
	box.to[1] = box.from[1] + info->subresource.sparseLevel.extentHeight;
	box.to[2] = box.from[2] + info->subresource.sparseLevel.extentDepth;
	return box;
}

static void let_go(struct region *taken, CUstream stream)
{
	for (struct region *r = taken, *next; r != NULL; r = next) {
		next = r->next;
		vgpu_allocation_drop_behind(r->memory, stream);
		free(r);
	}
}

/* What an entry adds, made before the driver is asked. */
static struct region *to_add(const CUarrayMapInfo *info, uint64_t call)
{
	if (info->memOperationType != CU_MEM_OPERATION_TYPE_MAP)
		return NULL;
	struct vgpu_allocation *memory = vgpu_allocation_of(info->memHandle.memHandle);
	struct region *r = memory != NULL ? malloc(sizeof(*r)) : NULL;
	if (r != NULL)
		*r = (struct region){.memory = memory, .call = call};
	else if (memory != NULL)
		vgpu_allocation_drop(memory);
	return r;
}

/* With the lock held: what the entries may unmap. */
static void take_out(const CUarrayMapInfo *list, unsigned count, struct region **taken)
{
	for (unsigned i = 0; i < count; i++) {
		struct vgpu_mapped_array *resource = *find(handle_of(&list[i]));
		struct box box;
		if (resource == NULL)
			continue;
		box = box_of(&list[i], resource->whole);
		cut(resource, &box, 0, &taken[i]);
	}
}

/* With the lock held: the call was refused. */
static void put_back(const CUarrayMapInfo *list, unsigned count, struct region **taken)
{
	for (unsigned i = 0; i < count; i++) {
		struct vgpu_mapped_array *resource = *find(handle_of(&list[i]));
		for (struct region *r = taken[i], *next; r != NULL && resource != NULL; r = next) {
			next = r->next;
			r->next = resource->regions;
			resource->regions = r;
			taken[i] = next;
		}
	}
}

/* With the lock held: the entries in their order; a later one may take away what an earlier one has mapped. */
static void put_in(const CUarrayMapInfo *list, unsigned count, struct region **added, struct region **taken,
                   uint64_t call)
{
	for (unsigned i = 0; i < count; i++) {
		struct vgpu_mapped_array *resource = *find(handle_of(&list[i]));
		if (resource == NULL)
			continue;
		struct box box = box_of(&list[i], resource->whole);
		cut(resource, &box, call, &taken[i]);
		if (added[i] != NULL) {
			added[i]->box = box;
			added[i]->next = resource->regions;
			resource->regions = added[i];
			added[i] = NULL;
		}
	}
}

typedef CUresult map_function(CUarrayMapInfo *list, unsigned count, CUstream stream);

static CUresult map(map_function *driver, CUarrayMapInfo *list, unsigned count, CUstream stream, CUstream order)
{
	struct region **added = calloc(2 * (size_t)count, sizeof(struct region *)), **taken = added + count;
	uint64_t call = __atomic_add_fetch(&calls, 1, __ATOMIC_RELAXED);
	if (added == NULL)
		return CUDA_ERROR_OUT_OF_MEMORY;
	for (unsigned i = 0; i < count; i++)
		added[i] = to_add(&list[i], call);
	pthread_mutex_lock(&lock);
	take_out(list, count, taken);
	pthread_mutex_unlock(&lock);
	CUresult error = driver(list, count, stream);
	pthread_mutex_lock(&lock);
	if (error == CUDA_SUCCESS)
		put_in(list, count, added, taken, call);
	else
		put_back(list, count, taken);
	pthread_mutex_unlock(&lock);
	for (unsigned i = 0; i < count; i++) {
		let_go(added[i], order);
		let_go(taken[i], order);
	}
	free(added);
	return error;
}

CUresult hook_cuMemMapArrayAsync(CUarrayMapInfo *mapInfoList, unsigned int count, CUstream hStream)
{
	if (vgpu_mode() == VGPU_FREE || mapInfoList == NULL || count == 0 || vgpu_stream_refused(hStream))
		return real_cuMemMapArrayAsync(mapInfoList, count, hStream);
	return map(real_cuMemMapArrayAsync, mapInfoList, count, hStream, hStream);
}

CUresult hook_cuMemMapArrayAsync_ptsz(CUarrayMapInfo *mapInfoList, unsigned int count, CUstream hStream)
{
	if (vgpu_mode() == VGPU_FREE || mapInfoList == NULL || count == 0 || vgpu_stream_refused(hStream))
		return real_cuMemMapArrayAsync_ptsz(mapInfoList, count, hStream);
	return map(real_cuMemMapArrayAsync_ptsz, mapInfoList, count, hStream,
	           hStream != NULL ? hStream : CU_STREAM_PER_THREAD);
}

/* ---- arrays that memory is mapped into ------------------------------------------------------------------------------ */

static void drop_resource(struct vgpu_mapped_array *r)
{
	for (struct region *region = r->regions, *next; region != NULL; region = next) {
		next = region->next;
		vgpu_allocation_drop(region->memory);
		free(region);
	}
	free(r);
}

struct vgpu_mapped_array *vgpu_mapped_array_take(const void *handle)
{
	pthread_mutex_lock(&lock);
	struct vgpu_mapped_array **at = find((uint64_t)(uintptr_t)handle), *r = *at;
	if (r != NULL)
		*at = r->next;
	pthread_mutex_unlock(&lock);
	return r;
}

void vgpu_mapped_array_end(struct vgpu_mapped_array *r, bool destroyed)
{
	if (r == NULL)
		return;
	if (destroyed) {
		drop_resource(r);
		return;
	}
	pthread_mutex_lock(&lock);
	struct vgpu_mapped_array **head = find(r->handle);
	r->next = *head;
	*head = r;
	pthread_mutex_unlock(&lock);
}

bool vgpu_mapped_array_add(const void *handle, CUcontext context, bool whole)
{
	struct vgpu_mapped_array *r = calloc(1, sizeof(*r));
	if (r == NULL)
		return false;
	*r = (struct vgpu_mapped_array){.handle = (uint64_t)(uintptr_t)handle,
	                                .context = context,
	                                .epoch = vgpu_blocks_epoch(),
	                                .whole = whole};
	vgpu_memory_watch_fork();
	struct vgpu_mapped_array *before = vgpu_mapped_array_take(handle); /* one that went without our knowing */
	vgpu_mapped_array_end(r, false);
	vgpu_mapped_array_end(before, true);
	return true;
}

void vgpu_mapped_arrays_drop(CUcontext context, uint64_t epoch)
{
	struct vgpu_mapped_array *gone = NULL, *next;
	pthread_mutex_lock(&lock);
	for (unsigned i = 0; i < CHAINS; i++) {
		for (struct vgpu_mapped_array **at = &resources[i]; *at != NULL;) {
			struct vgpu_mapped_array *r = *at;
			if (r->context != context || r->epoch > epoch) {
				at = &r->next;
				continue;
			}
			*at = r->next;
			r->next = gone;
			gone = r;
		}
	}
	pthread_mutex_unlock(&lock);
	for (; gone != NULL; gone = next) {
		next = gone->next;
		drop_resource(gone);
	}
}

void vgpu_mapped_arrays_forked(void)
{
	pthread_mutex_init(&lock, NULL);
	for (unsigned i = 0; i < CHAINS; i++)
		resources[i] = NULL;
}
