/* array.c: CUDA arrays: cuArrayCreate, cuArray3DCreate, their descriptors, planes and ends.
 *
 * Called by programs; mipmap.c makes its texels here too. An array belongs to the context that was current when it
 * was made, and ends with it. Its memory is zeroed, and counted on the card in whole granules; a sparse or deferred one
 * costs nothing (array_map.c), nor does one that lies in external memory, which it keeps. Destroying waits for the context, as freeing memory does. What can go wrong: a descriptor
 * that the device does not allow (CUDA_ERROR_INVALID_VALUE), a full card (CUDA_ERROR_OUT_OF_MEMORY), a handle that is not
 * live (CUDA_ERROR_INVALID_HANDLE).
 */
#include <stdlib.h>
#include <sys/mman.h>

#include "array.h"
#include "sim_impl.h"
#include "visible.h"
#include "vmm.h"

/* ---- life --------------------------------------------------------------------------------------------------------- */

static uint64_t counted_bytes(const struct sim_texels *texels)
{
	return sim_round_up(texels->bytes, sim_machine->model[texels->device].granule);
}

/* Under the memory mutex. */
static CUresult take_external(struct sim_texels *texels, const struct sim_texels_place *place)
{
	struct sim_allocation *allocation = sim_allocation_from(place->allocation);

	if (!allocation || texels->sparse || texels->deferred || texels->bytes > place->size)
		return CUDA_ERROR_INVALID_VALUE;
	void *p = mmap(NULL, allocation->size, PROT_READ | PROT_WRITE, MAP_SHARED, allocation->fd,
	               (off_t)allocation->offset);
	if (p == MAP_FAILED)
		return CUDA_ERROR_OUT_OF_MEMORY;
	allocation->mappings++;
	texels->external = allocation;
	texels->external_offset = place->offset;
	texels->start = (uint64_t)(uintptr_t)p + place->offset;
	return CUDA_SUCCESS;
}

static void give_external(struct sim_texels *texels)
{
	munmap((void *)(uintptr_t)(texels->start - texels->external_offset), texels->external->size);
	sim_allocation_unmapped(texels->external);
}

/* Under the memory mutex. */
static CUresult take_memory(struct sim_texels *texels, const struct sim_texels_place *place)
{
	if (place)
		return take_external(texels, place);
	if (texels->sparse || texels->deferred)
		return sim_texels_reserve(texels) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
	return sim_granules_take(texels->device, counted_bytes(texels), false, false, &texels->start);
}

static void give_memory(struct sim_texels *texels)
{
	if (texels->external)
		give_external(texels);
	else if (texels->page)
		sim_texels_unreserve(texels);
	else
		sim_granules_give(texels->device, texels->start, counted_bytes(texels), false);
}

/* Under the memory mutex. */
static void link_texels(struct sim_texels *texels)
{
	texels->next = texels->context->arrays;
	if (texels->next)
		texels->next->previous = texels;
	texels->context->arrays = texels;
}

static void unlink_texels(struct sim_texels *texels)
{
	if (texels->previous)
		texels->previous->next = texels->next;
	else
		texels->context->arrays = texels->next;
	if (texels->next)
		texels->next->previous = texels->previous;
}

static void publish(struct sim_texels *texels)
{
	if (texels->levels) {
		texels->tag = SIM_TAG_MIPMAP;
		sim_handle_add(texels, SIM_TAG_MIPMAP);
	}
	for (unsigned i = 0; i < texels->parts; i++) {
		texels->array[i].tag = SIM_TAG_ARRAY;
		sim_handle_add(&texels->array[i], SIM_TAG_ARRAY);
	}
}

static void withdraw(struct sim_texels *texels)
{
	if (texels->levels)
		sim_handle_drop(texels);
	for (unsigned i = 0; i < texels->parts; i++)
		sim_handle_drop(&texels->array[i]);
}

CUresult sim_texels_new(const CUDA_ARRAY3D_DESCRIPTOR *desc, unsigned levels, const struct sim_texels_place *place,
                        struct sim_texels **out)
{
	struct sim_context *context;
	CUresult result = sim_require(&context);

	if (result != CUDA_SUCCESS)
		return result;
	if (!desc)
		return CUDA_ERROR_INVALID_VALUE;
	result = sim_array_check(context->device, desc, levels != 0);
	if (result != CUDA_SUCCESS)
		return result;
	struct sim_texels *texels = calloc(1, sizeof *texels);
	if (!texels)
		return CUDA_ERROR_OUT_OF_MEMORY;
	texels->context = context;
	texels->device = context->device;
	sim_texels_lay(texels, desc, levels);
	pthread_mutex_lock(&sim_memory_mutex);
	result = take_memory(texels, place);
	if (result == CUDA_SUCCESS)
		link_texels(texels);
	pthread_mutex_unlock(&sim_memory_mutex);
	if (result != CUDA_SUCCESS) {
		free(texels);
		return result;
	}
	publish(texels);
	*out = texels;
	return CUDA_SUCCESS;
}

void sim_texels_free(struct sim_texels *texels)
{
	pthread_mutex_lock(&sim_memory_mutex);
	unlink_texels(texels);
	give_memory(texels);
	pthread_mutex_unlock(&sim_memory_mutex);
	free(texels);
}

void sim_arrays_destroy(struct sim_context *context)
{
	struct sim_texels *next;

	pthread_mutex_lock(&sim_memory_mutex);
	struct sim_texels *all = context->arrays;
	context->arrays = NULL;
	for (struct sim_texels *texels = all; texels; texels = texels->next) {
		withdraw(texels);
		give_memory(texels);
	}
	pthread_mutex_unlock(&sim_memory_mutex);
	for (; all; all = next) {
		next = all->next;
		free(all);
	}
}

struct sim_array *sim_array_of(CUarray handle)
{
	return sim_initialized() && sim_handle_is(handle, SIM_TAG_ARRAY) ? (struct sim_array *)handle : NULL;
}

struct sim_texels *sim_mipmap_of(CUmipmappedArray handle)
{
	return sim_initialized() && sim_handle_is(handle, SIM_TAG_MIPMAP) ? (struct sim_texels *)handle : NULL;
}

/* Whoever destroys them first has them; all others find the handle dead. */
static CUresult destroy(struct sim_texels *texels)
{
	pthread_mutex_lock(&sim_memory_mutex);
	bool ours = sim_handle_is(texels->levels ? (void *)texels : (void *)&texels->array[0],
	                          texels->levels ? SIM_TAG_MIPMAP : SIM_TAG_ARRAY);
	if (ours)
		withdraw(texels);
	pthread_mutex_unlock(&sim_memory_mutex);
	if (!ours)
		return CUDA_ERROR_INVALID_HANDLE;
	sim_context_wait(texels->context); /* queued copies may still use it */
	sim_texels_free(texels);
	return CUDA_SUCCESS;
}

/* ---- where the bytes are ------------------------------------------------------------------------------------------ */

size_t sim_array_unit(const struct sim_array *array)
{
	return ptg_array_unit(array->format, array->desc.NumChannels);
}

static uint64_t place_in_tiles(const struct sim_array *array, size_t x, size_t y, size_t z, size_t *n)
{
	const struct sim_tiling *tile = &array->tile;
	size_t in_x = x % tile->width;

	if (*n > tile->width - in_x)
		*n = tile->width - in_x;
	return z / tile->depth * array->slice + y / tile->height * array->pitch + x / tile->width * SIM_ARRAY_PAGE +
	       (z % tile->depth * tile->height + y % tile->height) * tile->width + in_x;
}

char *sim_array_at(const struct sim_array *array, size_t x, size_t y, size_t z, size_t *n)
{
	const struct sim_texels *texels = array->texels;
	uint64_t at = array->offset;

	if (texels->sparse && !array->tail)
		at += place_in_tiles(array, x, y, z, n);
	else
		at += z * array->slice + y * array->pitch + x;
	if (texels->page) {
		uint64_t rest = SIM_ARRAY_PAGE - at % SIM_ARRAY_PAGE;
		if (*n > rest)
			*n = rest;
		if (!__atomic_load_n(&texels->page[at / SIM_ARRAY_PAGE], __ATOMIC_ACQUIRE))
			return NULL;
	}
	return (char *)(uintptr_t)(texels->start + at);
}

/* ---- entry points ------------------------------------------------------------------------------------------------- */

static CUresult create(CUarray *out, const CUDA_ARRAY3D_DESCRIPTOR *desc)
{
	struct sim_texels *texels;
	CUresult result = sim_texels_new(desc, 0, NULL, &texels);

	if (result == CUDA_SUCCESS)
		*out = (CUarray)&texels->array[0];
	return result;
}

CUresult sim_cuArray3DCreate_v2(CUarray *out, const CUDA_ARRAY3D_DESCRIPTOR *desc)
{
	return out ? create(out, desc) : CUDA_ERROR_INVALID_VALUE;
}

CUresult sim_cuArray3DCreate(CUarray *out, const CUDA_ARRAY3D_DESCRIPTOR_v1 *desc)
{
	if (!out || !desc)
		return CUDA_ERROR_INVALID_VALUE;
	return create(out, &(CUDA_ARRAY3D_DESCRIPTOR){.Width = desc->Width,
	                                              .Height = desc->Height,
	                                              .Depth = desc->Depth,
	                                              .Format = desc->Format,
	                                              .NumChannels = desc->NumChannels,
	                                              .Flags = desc->Flags});
}

CUresult sim_cuArrayCreate_v2(CUarray *out, const CUDA_ARRAY_DESCRIPTOR *desc)
{
	if (!out || !desc)
		return CUDA_ERROR_INVALID_VALUE;
	return create(out, &(CUDA_ARRAY3D_DESCRIPTOR){.Width = desc->Width,
	                                              .Height = desc->Height,
	                                              .Format = desc->Format,
	                                              .NumChannels = desc->NumChannels});
}

CUresult sim_cuArrayCreate(CUarray *out, const CUDA_ARRAY_DESCRIPTOR_v1 *desc)
{
	if (!desc)
		return CUDA_ERROR_INVALID_VALUE;
	return sim_cuArrayCreate_v2(out, &(CUDA_ARRAY_DESCRIPTOR){.Width = desc->Width,
	                                                          .Height = desc->Height,
	                                                          .Format = desc->Format,
	                                                          .NumChannels = desc->NumChannels});
}

CUresult sim_cuArrayDestroy(CUarray handle)
{
	if (!sim_initialized())
		return CUDA_ERROR_NOT_INITIALIZED;
	struct sim_array *array = sim_array_of(handle);
	if (!array || array->texels->levels || array != &array->texels->array[0]) /* levels and planes are not theirs */
		return CUDA_ERROR_INVALID_HANDLE;
	return destroy(array->texels);
}

CUresult sim_cuMipmappedArrayDestroy(CUmipmappedArray handle)
{
	if (!sim_initialized())
		return CUDA_ERROR_NOT_INITIALIZED;
	struct sim_texels *texels = sim_mipmap_of(handle);
	return texels ? destroy(texels) : CUDA_ERROR_INVALID_HANDLE;
}

static CUresult described(CUarray handle, const void *out, struct sim_array **array)
{
	struct sim_context *context;
	CUresult result = sim_require(&context);

	if (result != CUDA_SUCCESS)
		return result;
	*array = sim_array_of(handle);
	if (!*array)
		return CUDA_ERROR_INVALID_HANDLE;
	return out ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult sim_cuArray3DGetDescriptor_v2(CUDA_ARRAY3D_DESCRIPTOR *out, CUarray handle)
{
	struct sim_array *array;
	CUresult result = described(handle, out, &array);

	if (result == CUDA_SUCCESS)
		*out = array->desc;
	return result;
}

CUresult sim_cuArray3DGetDescriptor(CUDA_ARRAY3D_DESCRIPTOR_v1 *out, CUarray handle)
{
	struct sim_array *array;
	CUresult result = described(handle, out, &array);

	if (result == CUDA_SUCCESS)
		*out = (CUDA_ARRAY3D_DESCRIPTOR_v1){.Width = (unsigned)array->desc.Width,
		                                    .Height = (unsigned)array->desc.Height,
		                                    .Depth = (unsigned)array->desc.Depth,
		                                    .Format = array->desc.Format,
		                                    .NumChannels = array->desc.NumChannels,
		                                    .Flags = array->desc.Flags};
	return result;
}

CUresult sim_cuArrayGetDescriptor_v2(CUDA_ARRAY_DESCRIPTOR *out, CUarray handle)
{
	struct sim_array *array;
	CUresult result = described(handle, out, &array);

	if (result == CUDA_SUCCESS)
		*out = (CUDA_ARRAY_DESCRIPTOR){.Width = array->desc.Width,
		                               .Height = array->desc.Height,
		                               .Format = array->desc.Format,
		                               .NumChannels = array->desc.NumChannels};
	return result;
}

CUresult sim_cuArrayGetDescriptor(CUDA_ARRAY_DESCRIPTOR_v1 *out, CUarray handle)
{
	struct sim_array *array;
	CUresult result = described(handle, out, &array);

	if (result == CUDA_SUCCESS)
		*out = (CUDA_ARRAY_DESCRIPTOR_v1){.Width = (unsigned)array->desc.Width,
		                                  .Height = (unsigned)array->desc.Height,
		                                  .Format = array->desc.Format,
		                                  .NumChannels = array->desc.NumChannels};
	return result;
}

CUresult sim_cuArrayGetPlane(CUarray *out, CUarray handle, unsigned int index)
{
	struct sim_array *array;
	CUresult result = described(handle, out, &array);

	if (result != CUDA_SUCCESS)
		return result;
	if (index >= array->format->planes)
		return CUDA_ERROR_INVALID_VALUE;
	*out = (CUarray)&array->texels->array[1 + index];
	return CUDA_SUCCESS;
}
