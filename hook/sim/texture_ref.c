/* texture_ref.c: texture and surface references, the way of binding before there were objects.
 *
 * Called by programs. A reference is what it is bound to and how it is to be read; it is the program's own
 * (cuTexRefCreate) or a module's, for each texture or surface that its code declares. Kernels do not compute, so nothing
 * is ever fetched. What can go wrong: a reference or array that is not live, flags and extents that cuda.h does not
 * allow, asking for what is not bound (CUDA_ERROR_INVALID_VALUE).
 */
#include <stdlib.h>
#include <string.h>

#include "module.h"
#include "sim_impl.h"
#include "texture.h"

struct texture_ref {
	uint32_t tag; /* SIM_TAG_TEXREF */
	bool of_module;
	CUDA_RESOURCE_DESC resource;
	bool bound;
	CUarray_format format;
	int channels;
	CUDA_TEXTURE_DESC texture;
};

struct surface_ref {
	uint32_t tag; /* SIM_TAG_SURFREF */
	CUarray array;
};

/* May a call use this reference? */
static CUresult check(const void *handle, enum sim_tag tag)
{
	struct sim_context *context;
	CUresult result = sim_require(&context);

	if (result == CUDA_SUCCESS && !sim_handle_is(handle, tag))
		result = CUDA_ERROR_INVALID_VALUE;
	return result;
}

static CUresult ref_of(CUtexref handle, struct texture_ref **ref)
{
	*ref = (struct texture_ref *)handle;
	return check(handle, SIM_TAG_TEXREF);
}

/* ---- life --------------------------------------------------------------------------------------------------------- */

static struct texture_ref *new_texture(bool of_module)
{
	struct texture_ref *ref = calloc(1, sizeof *ref);

	if (!ref)
		return NULL;
	ref->tag = SIM_TAG_TEXREF;
	ref->of_module = of_module;
	ref->format = CU_AD_FORMAT_FLOAT;
	ref->channels = 1;
	for (int i = 0; i < 3; i++)
		ref->texture.addressMode[i] = CU_TR_ADDRESS_MODE_CLAMP;
	ref->texture.maxAnisotropy = 1;
	sim_handle_add(ref, SIM_TAG_TEXREF);
	return ref;
}

CUresult sim_cuTexRefCreate(CUtexref *out)
{
	struct sim_context *context;
	CUresult result = sim_require(&context);

	if (result != CUDA_SUCCESS)
		return result;
	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	struct texture_ref *ref = new_texture(false);
	*out = (CUtexref)ref;
	return ref ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult sim_cuTexRefDestroy(CUtexref handle)
{
	struct texture_ref *ref = NULL;
	CUresult result = ref_of(handle, &ref);

	if (result == CUDA_SUCCESS && ref->of_module)
		result = CUDA_ERROR_INVALID_VALUE;
	if (result != CUDA_SUCCESS)
		return result;
	sim_handle_drop(ref);
	free(ref);
	return CUDA_SUCCESS;
}

/* ---- binding ------------------------------------------------------------------------------------------------------ */

static CUresult bind(struct texture_ref *ref, const CUDA_RESOURCE_DESC *resource)
{
	struct sim_context *context;
	struct sim_array *array;
	CUresult result = sim_require(&context);

	if (result == CUDA_SUCCESS)
		result = sim_resource_check(context, resource, &array);
	if (result != CUDA_SUCCESS)
		return result;
	ref->resource = *resource;
	ref->bound = true;
	if (array) {
		ref->format = array->desc.Format;
		ref->channels = (int)array->desc.NumChannels;
	}
	return CUDA_SUCCESS;
}

CUresult sim_cuTexRefSetArray(CUtexref handle, CUarray array, unsigned int flags)
{
	CUDA_RESOURCE_DESC resource = {.resType = CU_RESOURCE_TYPE_ARRAY, .res = {.array = {.hArray = array}}};
	struct texture_ref *ref = NULL;
	CUresult result = ref_of(handle, &ref);

	if (result != CUDA_SUCCESS)
		return result;
	return flags == CU_TRSA_OVERRIDE_FORMAT ? bind(ref, &resource) : CUDA_ERROR_INVALID_VALUE;
}

CUresult sim_cuTexRefSetMipmappedArray(CUtexref handle, CUmipmappedArray mipmap, unsigned int flags)
{
	CUDA_RESOURCE_DESC resource = {.resType = CU_RESOURCE_TYPE_MIPMAPPED_ARRAY,
	                               .res = {.mipmap = {.hMipmappedArray = mipmap}}};
	struct texture_ref *ref = NULL;
	CUresult result = ref_of(handle, &ref);

	if (result != CUDA_SUCCESS)
		return result;
	return flags == CU_TRSA_OVERRIDE_FORMAT ? bind(ref, &resource) : CUDA_ERROR_INVALID_VALUE;
}

/* Bound is from the next lower aligned address on; by how much it is lower is the program's to add. */
CUresult sim_cuTexRefSetAddress_v2(size_t *offset, CUtexref handle, CUdeviceptr p, size_t bytes)
{
	CUDA_RESOURCE_DESC resource = {.resType = CU_RESOURCE_TYPE_LINEAR};
	struct sim_context *context;
	struct texture_ref *ref = NULL;
	CUresult result = ref_of(handle, &ref);

	if (result == CUDA_SUCCESS)
		result = sim_require(&context);
	if (result != CUDA_SUCCESS)
		return result;
	size_t unaligned = p % (size_t)sim_shared_limit(context->device, CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT);
	if (unaligned && !offset)
		return CUDA_ERROR_INVALID_VALUE;
	resource.res.linear.devPtr = p - unaligned;
	resource.res.linear.sizeInBytes = bytes + unaligned;
	resource.res.linear.format = ref->format;
	resource.res.linear.numChannels = (unsigned)ref->channels;
	result = bind(ref, &resource);
	if (result == CUDA_SUCCESS && offset)
		*offset = unaligned;
	return result;
}

CUresult sim_cuTexRefSetAddress(unsigned int *offset, CUtexref handle, CUdeviceptr_v1 p, unsigned int bytes)
{
	size_t wide = 0;
	CUresult result = sim_cuTexRefSetAddress_v2(offset ? &wide : NULL, handle, p, bytes);

	if (result == CUDA_SUCCESS && offset)
		*offset = (unsigned)wide;
	return result;
}

CUresult sim_cuTexRefSetAddress2D_v3(CUtexref handle, const CUDA_ARRAY_DESCRIPTOR *desc, CUdeviceptr p, size_t pitch)
{
	CUDA_RESOURCE_DESC resource = {.resType = CU_RESOURCE_TYPE_PITCH2D};
	struct texture_ref *ref = NULL;
	CUresult result = ref_of(handle, &ref);

	if (result != CUDA_SUCCESS)
		return result;
	if (!desc)
		return CUDA_ERROR_INVALID_VALUE;
	resource.res.pitch2D.devPtr = p;
	resource.res.pitch2D.format = desc->Format;
	resource.res.pitch2D.numChannels = desc->NumChannels;
	resource.res.pitch2D.width = desc->Width;
	resource.res.pitch2D.height = desc->Height;
	resource.res.pitch2D.pitchInBytes = pitch;
	result = bind(ref, &resource);
	if (result == CUDA_SUCCESS) {
		ref->format = desc->Format;
		ref->channels = (int)desc->NumChannels;
	}
	return result;
}

CUresult sim_cuTexRefSetAddress2D_v2(CUtexref handle, const CUDA_ARRAY_DESCRIPTOR *desc, CUdeviceptr p, size_t pitch)
{
	return sim_cuTexRefSetAddress2D_v3(handle, desc, p, pitch);
}

CUresult sim_cuTexRefSetAddress2D(CUtexref handle, const CUDA_ARRAY_DESCRIPTOR_v1 *desc, CUdeviceptr_v1 p,
                                  unsigned int pitch)
{
	if (!desc)
		return CUDA_ERROR_INVALID_VALUE;
	CUDA_ARRAY_DESCRIPTOR wide = {desc->Width, desc->Height, desc->Format, desc->NumChannels};
	return sim_cuTexRefSetAddress2D_v3(handle, &wide, p, pitch);
}

/* ---- what it is bound to ------------------------------------------------------------------------------------------ */

static CUresult bound_to(const void *out, CUtexref handle, struct texture_ref **ref)
{
	CUresult result = ref_of(handle, ref);

	if (result != CUDA_SUCCESS)
		return result;
	return out && (*ref)->bound ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult sim_cuTexRefGetAddress_v2(CUdeviceptr *out, CUtexref handle)
{
	struct texture_ref *ref = NULL;
	CUresult result = bound_to(out, handle, &ref);

	if (result != CUDA_SUCCESS)
		return result;
	if (ref->resource.resType == CU_RESOURCE_TYPE_LINEAR)
		*out = ref->resource.res.linear.devPtr;
	else if (ref->resource.resType == CU_RESOURCE_TYPE_PITCH2D)
		*out = ref->resource.res.pitch2D.devPtr;
	else
		result = CUDA_ERROR_INVALID_VALUE;
	return result;
}

CUresult sim_cuTexRefGetAddress(CUdeviceptr_v1 *out, CUtexref handle)
{
	CUdeviceptr p;
	CUresult result = sim_cuTexRefGetAddress_v2(out ? &p : NULL, handle);

	if (result == CUDA_SUCCESS)
		*out = (CUdeviceptr_v1)p;
	return result;
}

CUresult sim_cuTexRefGetArray(CUarray *out, CUtexref handle)
{
	struct texture_ref *ref = NULL;
	CUresult result = bound_to(out, handle, &ref);

	if (result != CUDA_SUCCESS || ref->resource.resType != CU_RESOURCE_TYPE_ARRAY)
		return result == CUDA_SUCCESS ? CUDA_ERROR_INVALID_VALUE : result;
	*out = ref->resource.res.array.hArray;
	return CUDA_SUCCESS;
}

CUresult sim_cuTexRefGetMipmappedArray(CUmipmappedArray *out, CUtexref handle)
{
	struct texture_ref *ref = NULL;
	CUresult result = bound_to(out, handle, &ref);

	if (result != CUDA_SUCCESS || ref->resource.resType != CU_RESOURCE_TYPE_MIPMAPPED_ARRAY)
		return result == CUDA_SUCCESS ? CUDA_ERROR_INVALID_VALUE : result;
	*out = ref->resource.res.mipmap.hMipmappedArray;
	return CUDA_SUCCESS;
}

CUresult sim_cuTexRefSetFormat(CUtexref handle, CUarray_format format, int channels)
{
	struct texture_ref *ref = NULL;
	CUresult result = ref_of(handle, &ref);
	const struct ptg_array_format *known = ptg_array_format((int)format);

	if (result != CUDA_SUCCESS)
		return result;
	if (!known ||
	    (known->channels ? channels != known->channels : channels != 1 && channels != 2 && channels != 4) ||
	    (ref->bound && ref->resource.resType == CU_RESOURCE_TYPE_PITCH2D))
		return CUDA_ERROR_INVALID_VALUE;
	ref->format = format;
	ref->channels = channels;
	return CUDA_SUCCESS;
}

CUresult sim_cuTexRefGetFormat(CUarray_format *format, int *channels, CUtexref handle)
{
	struct texture_ref *ref = NULL;
	CUresult result = ref_of(handle, &ref);

	if (result == CUDA_SUCCESS && format)
		*format = ref->format;
	if (result == CUDA_SUCCESS && channels)
		*channels = ref->channels;
	return result;
}

/* ---- how it is read ----------------------------------------------------------------------------------------------- */

/* Sets and reads back one member; `valid` may speak of `value`. */
#define MEMBER(Set, Get, set_type, get_type, member, valid)                                                            \
	CUresult sim_cuTexRefSet##Set(CUtexref handle, set_type value)                                                 \
	{                                                                                                              \
		struct texture_ref *ref = NULL;                                                                        \
		CUresult result = ref_of(handle, &ref);                                                                \
		if (result == CUDA_SUCCESS && !(valid))                                                                \
			result = CUDA_ERROR_INVALID_VALUE;                                                             \
		if (result == CUDA_SUCCESS)                                                                            \
			ref->texture.member = value;                                                                   \
		return result;                                                                                         \
	}                                                                                                              \
	CUresult sim_cuTexRefGet##Get(get_type *out, CUtexref handle)                                                  \
	{                                                                                                              \
		struct texture_ref *ref = NULL;                                                                        \
		CUresult result = ref_of(handle, &ref);                                                                \
		if (result == CUDA_SUCCESS && !out)                                                                    \
			result = CUDA_ERROR_INVALID_VALUE;                                                             \
		if (result == CUDA_SUCCESS)                                                                            \
			*out = (get_type)ref->texture.member;                                                          \
		return result;                                                                                         \
	}

#define REF_FLAGS                                                                                                      \
	(CU_TRSF_READ_AS_INTEGER | CU_TRSF_NORMALIZED_COORDINATES | CU_TRSF_SRGB |                                     \
	 CU_TRSF_DISABLE_TRILINEAR_OPTIMIZATION)

MEMBER(FilterMode, FilterMode, CUfilter_mode, CUfilter_mode, filterMode, (unsigned)value <= CU_TR_FILTER_MODE_LINEAR)
MEMBER(MipmapFilterMode, MipmapFilterMode, CUfilter_mode, CUfilter_mode, mipmapFilterMode,
       (unsigned)value <= CU_TR_FILTER_MODE_LINEAR)
MEMBER(MipmapLevelBias, MipmapLevelBias, float, float, mipmapLevelBias, true)
MEMBER(MaxAnisotropy, MaxAnisotropy, unsigned int, int, maxAnisotropy, value >= 1 && value <= 16)
MEMBER(Flags, Flags, unsigned int, unsigned int, flags, !(value & ~(unsigned)REF_FLAGS))

CUresult sim_cuTexRefSetAddressMode(CUtexref handle, int dim, CUaddress_mode mode)
{
	struct texture_ref *ref = NULL;
	CUresult result = ref_of(handle, &ref);

	if (result != CUDA_SUCCESS)
		return result;
	if (dim < 0 || dim > 2 || (unsigned)mode > CU_TR_ADDRESS_MODE_BORDER)
		return CUDA_ERROR_INVALID_VALUE;
	ref->texture.addressMode[dim] = mode;
	return CUDA_SUCCESS;
}

CUresult sim_cuTexRefGetAddressMode(CUaddress_mode *out, CUtexref handle, int dim)
{
	struct texture_ref *ref = NULL;
	CUresult result = ref_of(handle, &ref);

	if (result != CUDA_SUCCESS)
		return result;
	if (!out || dim < 0 || dim > 2)
		return CUDA_ERROR_INVALID_VALUE;
	*out = ref->texture.addressMode[dim];
	return CUDA_SUCCESS;
}

CUresult sim_cuTexRefSetMipmapLevelClamp(CUtexref handle, float least, float most)
{
	struct texture_ref *ref = NULL;
	CUresult result = ref_of(handle, &ref);

	if (result == CUDA_SUCCESS) {
		ref->texture.minMipmapLevelClamp = least;
		ref->texture.maxMipmapLevelClamp = most;
	}
	return result;
}

CUresult sim_cuTexRefGetMipmapLevelClamp(float *least, float *most, CUtexref handle)
{
	struct texture_ref *ref = NULL;
	CUresult result = ref_of(handle, &ref);

	if (result != CUDA_SUCCESS)
		return result;
	if (!least || !most)
		return CUDA_ERROR_INVALID_VALUE;
	*least = ref->texture.minMipmapLevelClamp;
	*most = ref->texture.maxMipmapLevelClamp;
	return CUDA_SUCCESS;
}

CUresult sim_cuTexRefSetBorderColor(CUtexref handle, float *color)
{
	struct texture_ref *ref = NULL;
	CUresult result = ref_of(handle, &ref);

	if (result != CUDA_SUCCESS)
		return result;
	if (!color)
		return CUDA_ERROR_INVALID_VALUE;
	memcpy(ref->texture.borderColor, color, sizeof ref->texture.borderColor);
	return CUDA_SUCCESS;
}

CUresult sim_cuTexRefGetBorderColor(float *color, CUtexref handle)
{
	struct texture_ref *ref = NULL;
	CUresult result = ref_of(handle, &ref);

	if (result != CUDA_SUCCESS)
		return result;
	if (!color)
		return CUDA_ERROR_INVALID_VALUE;
	memcpy(color, ref->texture.borderColor, sizeof ref->texture.borderColor);
	return CUDA_SUCCESS;
}

/* ---- surfaces ----------------------------------------------------------------------------------------------------- */

static CUresult surface_of(CUsurfref handle, struct surface_ref **ref)
{
	*ref = (struct surface_ref *)handle;
	return check(handle, SIM_TAG_SURFREF);
}

CUresult sim_cuSurfRefSetArray(CUsurfref handle, CUarray array, unsigned int flags)
{
	struct surface_ref *ref;
	CUresult result = surface_of(handle, &ref);

	if (result == CUDA_SUCCESS)
		result = flags ? CUDA_ERROR_INVALID_VALUE : sim_surface_check(array);
	if (result == CUDA_SUCCESS)
		ref->array = array;
	return result;
}

CUresult sim_cuSurfRefGetArray(CUarray *out, CUsurfref handle)
{
	struct surface_ref *ref;
	CUresult result = surface_of(handle, &ref);

	if (result != CUDA_SUCCESS)
		return result;
	if (!out || !ref->array)
		return CUDA_ERROR_INVALID_VALUE;
	*out = ref->array;
	return CUDA_SUCCESS;
}

/* ---- those of modules --------------------------------------------------------------------------------------------- */

void *sim_module_ref_new(bool surface)
{
	if (!surface)
		return new_texture(true);
	struct surface_ref *ref = calloc(1, sizeof *ref);
	if (!ref)
		return NULL;
	ref->tag = SIM_TAG_SURFREF;
	sim_handle_add(ref, SIM_TAG_SURFREF);
	return ref;
}

void sim_module_ref_free(void *ref)
{
	if (ref)
		sim_handle_drop(ref);
	free(ref);
}

CUresult sim_cuParamSetTexRef(CUfunction function, int unit, CUtexref handle)
{
	struct texture_ref *ref = NULL;
	CUresult result = ref_of(handle, &ref);

	if (result != CUDA_SUCCESS)
		return result;
	if (!sim_handle_is(function, SIM_TAG_FUNCTION))
		return CUDA_ERROR_INVALID_HANDLE;
	return unit == CU_PARAM_TR_DEFAULT && ref->of_module ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
