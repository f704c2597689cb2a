/* array_map.c: memory for sparse and deferred arrays: cuMemMapArrayAsync.
 *
 * Called by programs. Such an array has address room in pages of 64 KiB; mapping lays pages of an allocation handle
 * there, in stream order, so that two arrays onto the same memory are the same memory. A page that is mapped keeps the
 * allocation alive, from the call on. What is not mapped reads as zero and swallows writes. What can go wrong: a
 * resource that is not sparse or deferred, regions that are not whole tiles, memory that is no tile pool, a mask that
 * is not the stream's device (CUDA_ERROR_INVALID_VALUE).
 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "array.h"
#include "engine.h"
#include "sim_impl.h"
#include "visible.h"
#include "vmm.h"

/* ---- room --------------------------------------------------------------------------------------------------------- */

bool sim_texels_reserve(struct sim_texels *texels)
{
	int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
	void *p = mmap(NULL, texels->bytes, PROT_NONE, flags, -1, 0);

	if (p == MAP_FAILED)
		return false;
	texels->page = calloc(texels->bytes / SIM_ARRAY_PAGE, sizeof(struct sim_allocation *));
	if (!texels->page) {
		munmap(p, texels->bytes);
		return false;
	}
	texels->start = (uint64_t)(uintptr_t)p;
	return true;
}

void sim_texels_unreserve(struct sim_texels *texels)
{
	munmap((void *)(uintptr_t)texels->start, texels->bytes);
	for (uint64_t i = 0; i < texels->bytes / SIM_ARRAY_PAGE; i++)
		if (texels->page[i])
			sim_allocation_unmapped(texels->page[i]);
	free(texels->page);
}

/* ---- one operation ------------------------------------------------------------------------------------------------ */

struct operation {
	struct sim_texels *texels;
	struct sim_allocation *allocation; /* NULL: unmap */
	uint64_t offset; /* in the allocation; page by page from there */
	size_t count, room;
	uint32_t *page;
};

static void drop_operation(struct operation *op)
{
	free(op->page);
	free(op);
}

/* Under the memory mutex. */
static void set_page(struct sim_texels *texels, uint32_t page, struct sim_allocation *allocation, uint64_t offset)
{
	void *at = (void *)(uintptr_t)(texels->start + page * SIM_ARRAY_PAGE), *p;
	struct sim_allocation *before = texels->page[page];

	if (allocation)
		p = mmap(at, SIM_ARRAY_PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, allocation->fd,
		         (off_t)(allocation->offset + offset));
	else
		p = mmap(at, SIM_ARRAY_PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
	if (p == MAP_FAILED && allocation) { /* the kernel has no mapping left: as if it had not been asked for */
		sim_log("cannot map a page of an array");
		sim_allocation_unmapped(allocation);
		allocation = NULL;
	}
	__atomic_store_n(&texels->page[page], allocation, __ATOMIC_RELEASE);
	if (before)
		sim_allocation_unmapped(before);
}

static bool alive(const struct sim_texels *texels)
{
	return texels->levels ? sim_handle_is(texels, SIM_TAG_MIPMAP) : sim_handle_is(&texels->array[0], SIM_TAG_ARRAY);
}

static void run_operation(void *arg)
{
	struct operation *op;

	memcpy(&op, arg, sizeof(struct operation *));
	pthread_mutex_lock(&sim_memory_mutex);
	bool there = alive(op->texels);
	for (size_t i = 0; i < op->count; i++) {
		if (there)
			set_page(op->texels, op->page[i], op->allocation, op->offset + i * SIM_ARRAY_PAGE);
		else if (op->allocation)
			sim_allocation_unmapped(op->allocation);
	}
	pthread_mutex_unlock(&sim_memory_mutex);
	drop_operation(op);
}

static bool add_page(struct operation *op, uint64_t page)
{
	if (op->count == op->room) {
		size_t room = op->room ? op->room * 2 : 16;
		uint32_t *larger = realloc(op->page, room * sizeof *larger);
		if (!larger)
			return false;
		op->page = larger;
		op->room = room;
	}
	op->page[op->count++] = (uint32_t)page;
	return true;
}

static CUresult add_pages(struct operation *op, uint64_t start, uint64_t bytes)
{
	for (uint64_t at = start; at < start + bytes; at += SIM_ARRAY_PAGE)
		if (!add_page(op, at / SIM_ARRAY_PAGE))
			return CUDA_ERROR_OUT_OF_MEMORY;
	return CUDA_SUCCESS;
}

/* ---- which pages -------------------------------------------------------------------------------------------------- */

/* Whole units from offset on, or up to the edge. */
static bool covers(size_t offset, size_t extent, size_t unit, size_t edge)
{
	return extent && offset % unit == 0 && offset < edge && extent <= sim_round_up(edge, unit) - offset &&
	       (extent % unit == 0 || offset + extent == edge);
}

static CUresult level_pages(struct operation *op, const CUarrayMapInfo *info)
{
	struct sim_texels *texels = op->texels;
	unsigned level = info->subresource.sparseLevel.level, layer = info->subresource.sparseLevel.layer;

	if (level >= (texels->levels ? texels->levels : 1) || texels->array[level].tail)
		return CUDA_ERROR_INVALID_VALUE;
	const struct sim_array *array = &texels->array[level];
	const struct sim_tiling *tile = &array->tile;
	bool layered = sim_array_layered(&array->desc);
	size_t edge = array->format->block, unit = sim_array_unit(array);
	size_t x = info->subresource.sparseLevel.offsetX / edge * unit,
	       y = info->subresource.sparseLevel.offsetY / edge, z = info->subresource.sparseLevel.offsetZ,
	       width = (info->subresource.sparseLevel.extentWidth + edge - 1) / edge * unit,
	       height = (info->subresource.sparseLevel.extentHeight + edge - 1) / edge,
	       depth = info->subresource.sparseLevel.extentDepth;
	if (layered && (z || depth != 1 || layer >= array->extent.depth))
		return CUDA_ERROR_INVALID_VALUE;
	if ((!layered && layer) || !covers(x, width, tile->width, array->extent.width) ||
	    !covers(y, height, tile->height, array->extent.height) ||
	    (!layered && !covers(z, depth, tile->depth, array->extent.depth)))
		return CUDA_ERROR_INVALID_VALUE;
	z = layered ? layer : z;
	for (size_t k = z; k < z + depth; k += tile->depth) {
		for (size_t j = y; j < y + height; j += tile->height) {
			uint64_t row = array->offset + k / tile->depth * array->slice + j / tile->height * array->pitch;
			CUresult result = add_pages(op, row + x / tile->width * SIM_ARRAY_PAGE,
			                            sim_round_up(width, tile->width) / tile->width * SIM_ARRAY_PAGE);
			if (result != CUDA_SUCCESS)
				return result;
		}
	}
	return CUDA_SUCCESS;
}

static CUresult tail_pages(struct operation *op, const CUarrayMapInfo *info)
{
	const struct sim_texels *texels = op->texels;
	const struct sim_array *array = &texels->array[0];
	bool single = !texels->levels; /* one tail of all layers */
	size_t layers = sim_array_layered(&array->desc) && !single ? array->extent.depth : 1;
	uint64_t bytes = single && texels->tail_bytes ? texels->bytes : texels->tail_bytes;
	uint64_t offset = info->subresource.miptail.offset, size = info->subresource.miptail.size;

	if (info->subresource.miptail.layer >= layers || !size || offset % SIM_ARRAY_PAGE || size % SIM_ARRAY_PAGE ||
	    offset > bytes || size > bytes - offset)
		return CUDA_ERROR_INVALID_VALUE;
	return add_pages(op, texels->tail_offset + info->subresource.miptail.layer * bytes + offset, size);
}

static CUresult pages_of(struct operation *op, const CUarrayMapInfo *info)
{
	if (op->texels->deferred)
		return add_pages(op, 0, op->texels->bytes);
	switch (info->subresourceType) {
	case CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_SPARSE_LEVEL:
		return level_pages(op, info);
	case CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_MIPTAIL:
		return tail_pages(op, info);
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
}

/* ---- the call ----------------------------------------------------------------------------------------------------- */

static struct sim_texels *resource_of(const CUarrayMapInfo *info)
{
	struct sim_texels *texels = NULL;
	struct sim_array *array;

	if (info->resourceType == CU_RESOURCE_TYPE_MIPMAPPED_ARRAY) {
		texels = sim_mipmap_of(info->resource.mipmap);
	} else if (info->resourceType == CU_RESOURCE_TYPE_ARRAY) {
		array = sim_array_of(info->resource.array);
		if (array && !array->texels->levels && array == &array->texels->array[0])
			texels = array->texels;
	}
	return texels && texels->page ? texels : NULL;
}

static bool plain(const CUarrayMapInfo *info, int device)
{
	int ordinal = sim_ordinal(device);

	return !info->flags && !info->reserved[0] && !info->reserved[1] && ordinal >= 0 && ordinal < 32 &&
	       info->deviceBitMask == UINT32_C(1) << ordinal;
}

/* Under the memory mutex: the memory to be mapped; a reference for each page. */
static CUresult refer(struct operation *op, const CUarrayMapInfo *info, int device)
{
	struct sim_allocation *allocation = sim_allocation_from(info->memHandle.memHandle);
	uint64_t bytes = op->count * SIM_ARRAY_PAGE;

	if (!allocation || info->memHandleType != CU_MEM_HANDLE_TYPE_GENERIC || allocation->device != device ||
	    !(allocation->prop.allocFlags.usage & CU_MEM_CREATE_USAGE_TILE_POOL) || info->offset % SIM_ARRAY_PAGE ||
	    info->offset > allocation->size || bytes > allocation->size - info->offset)
		return CUDA_ERROR_INVALID_VALUE;
	op->allocation = allocation;
	op->offset = info->offset;
	allocation->mappings += (unsigned)op->count;
	return CUDA_SUCCESS;
}

static CUresult make_operation(const CUarrayMapInfo *info, int device, struct operation **out)
{
	struct operation *op = calloc(1, sizeof *op);
	CUresult result = CUDA_ERROR_INVALID_VALUE;

	if (!op)
		return CUDA_ERROR_OUT_OF_MEMORY;
	op->texels = resource_of(info);
	if (op->texels && plain(info, device))
		result = pages_of(op, info);
	if (result == CUDA_SUCCESS && info->memOperationType == CU_MEM_OPERATION_TYPE_MAP) {
		pthread_mutex_lock(&sim_memory_mutex);
		result = refer(op, info, device);
		pthread_mutex_unlock(&sim_memory_mutex);
	} else if (result == CUDA_SUCCESS &&
	           (info->memOperationType != CU_MEM_OPERATION_TYPE_UNMAP || info->memHandle.memHandle)) {
		result = CUDA_ERROR_INVALID_VALUE;
	}
	if (result != CUDA_SUCCESS)
		drop_operation(op);
	else
		*out = op;
	return result;
}

static void cancel(struct operation *op)
{
	pthread_mutex_lock(&sim_memory_mutex);
	for (size_t i = 0; op->allocation && i < op->count; i++)
		sim_allocation_unmapped(op->allocation);
	pthread_mutex_unlock(&sim_memory_mutex);
	drop_operation(op);
}

/* All of them or, where one is wrong, none. */
CUresult sim_cuMemMapArrayAsync(CUarrayMapInfo *list, unsigned int count, CUstream handle)
{
	CUresult result = CUDA_SUCCESS;
	struct sim_stream *stream = sim_stream_of(handle, &result);
	unsigned made = 0, queued = 0;

	if (!stream)
		return result;
	if (!list || !count)
		return CUDA_ERROR_INVALID_VALUE;
	struct operation **op = calloc(count, sizeof(struct operation *));
	if (!op)
		return CUDA_ERROR_OUT_OF_MEMORY;
	while (made < count && result == CUDA_SUCCESS) {
		result = make_operation(&list[made], sim_stream_device(stream), &op[made]);
		made += result == CUDA_SUCCESS;
	}
	while (queued < count && result == CUDA_SUCCESS) {
		struct sim_work work = {.run = run_operation, .arg_size = sizeof(struct operation *)};
		memcpy(work.arg, &op[queued], sizeof(struct operation *));
		result = sim_enqueue(stream, &work);
		queued += result == CUDA_SUCCESS;
	}
	for (unsigned i = queued; i < made; i++)
		cancel(op[i]);
	free(op);
	return result;
}
