/* mipmap.c: mip-maps: cuMipmappedArrayCreate, their levels, and what memory sparse and deferred arrays need.
 *
 * Called by programs. A mip-map is texels with an array for each level, which lives as long as it does. What can go
 * wrong: as for arrays (array.c); a level that there is not, a question that only sparse or deferred arrays answer
 * (CUDA_ERROR_INVALID_VALUE).
 */
#include "array.h"
#include "sim_impl.h"
#include "visible.h"

/* As many as asked for, at least one, at most down to a single element. */
static unsigned clamp_levels(const CUDA_ARRAY3D_DESCRIPTOR *desc, unsigned levels)
{
	size_t largest = desc->Width > desc->Height ? desc->Width : desc->Height;
	unsigned most = 1;

	if (!sim_array_layered(desc) && desc->Depth > largest)
		largest = desc->Depth;
	while (most < SIM_ARRAY_PARTS && largest >> most)
		most++;
	return levels < 1 ? 1 : levels > most ? most : levels;
}

CUresult sim_mipmap_over(const struct sim_texels_place *place, const CUDA_ARRAY3D_DESCRIPTOR *desc, unsigned levels,
                         CUmipmappedArray *out)
{
	struct sim_texels *texels;
	CUresult result = sim_texels_new(desc, clamp_levels(desc, levels), place, &texels);

	if (result == CUDA_SUCCESS)
		*out = (CUmipmappedArray)texels;
	return result;
}

CUresult sim_cuMipmappedArrayCreate(CUmipmappedArray *out, const CUDA_ARRAY3D_DESCRIPTOR *desc, unsigned int levels)
{
	if (!sim_initialized())
		return CUDA_ERROR_NOT_INITIALIZED;
	return out && desc ? sim_mipmap_over(NULL, desc, levels, out) : CUDA_ERROR_INVALID_VALUE;
}

CUresult sim_cuMipmappedArrayGetLevel(CUarray *out, CUmipmappedArray handle, unsigned int level)
{
	struct sim_context *context;
	CUresult result = sim_require(&context);

	if (result != CUDA_SUCCESS)
		return result;
	struct sim_texels *texels = sim_mipmap_of(handle);
	if (!texels)
		return CUDA_ERROR_INVALID_HANDLE;
	if (!out || level >= texels->levels)
		return CUDA_ERROR_INVALID_VALUE;
	*out = (CUarray)&texels->array[level];
	return CUDA_SUCCESS;
}

/* ---- what sparse and deferred ones need --------------------------------------------------------------------------- */

/* The texels of an array that is neither a level nor a plane; NULL: none. */
static struct sim_texels *texels_of(CUarray handle)
{
	struct sim_array *array = sim_array_of(handle);

	return array && !array->texels->levels && array == &array->texels->array[0] ? array->texels : NULL;
}

static CUresult requirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *out, const struct sim_texels *texels, CUdevice ordinal)
{
	int device;

	if (!sim_initialized())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!out || !texels || !texels->deferred || sim_device_of(ordinal, &device) != CUDA_SUCCESS)
		return CUDA_ERROR_INVALID_VALUE;
	*out = (CUDA_ARRAY_MEMORY_REQUIREMENTS){.size = texels->bytes, .alignment = SIM_ARRAY_PAGE};
	return CUDA_SUCCESS;
}

CUresult sim_cuArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *out, CUarray handle, CUdevice device)
{
	return requirements(out, texels_of(handle), device);
}

CUresult sim_cuMipmappedArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *out, CUmipmappedArray handle,
                                                   CUdevice device)
{
	return requirements(out, sim_mipmap_of(handle), device);
}

static CUresult sparse_properties(CUDA_ARRAY_SPARSE_PROPERTIES *out, const struct sim_texels *texels)
{
	if (!sim_initialized())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!out || !texels || !texels->sparse)
		return CUDA_ERROR_INVALID_VALUE;
	const struct sim_array *array = &texels->array[0];
	unsigned edge = array->format->block;
	*out = (CUDA_ARRAY_SPARSE_PROPERTIES){.miptailFirstLevel = texels->levels ? texels->tail_first : 0,
	                                      .miptailSize = texels->tail_bytes};
	out->tileExtent.width = (unsigned)(array->tile.width / sim_array_unit(array)) * edge;
	out->tileExtent.height = (unsigned)array->tile.height * edge;
	out->tileExtent.depth = (unsigned)array->tile.depth;
	/* An array that is all tail has one of all its layers; those of mip-maps are one per layer. */
	if (!texels->levels && texels->tail_bytes) {
		out->flags = CU_ARRAY_SPARSE_PROPERTIES_SINGLE_MIPTAIL;
		out->miptailSize = texels->bytes;
	}
	return CUDA_SUCCESS;
}

CUresult sim_cuArrayGetSparseProperties(CUDA_ARRAY_SPARSE_PROPERTIES *out, CUarray handle)
{
	return sparse_properties(out, texels_of(handle));
}

CUresult sim_cuMipmappedArrayGetSparseProperties(CUDA_ARRAY_SPARSE_PROPERTIES *out, CUmipmappedArray handle)
{
	return sparse_properties(out, sim_mipmap_of(handle));
}
