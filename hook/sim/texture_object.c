/* texture_object.c: texture and surface objects: made from descriptors, read back, destroyed.
 *
 * Called by programs. An object holds its descriptors and no memory; what it is bound to stays the program's. It belongs
 * to the context that was current, and is no longer known when that has ended. What can go wrong: descriptors outside
 * what cuda.h allows, a resource that is not live (CUDA_ERROR_INVALID_VALUE).
 */
#include <stdlib.h>

#include "module.h"
#include "sim_impl.h"
#include "texture.h"

struct object {
	uint32_t tag; /* SIM_TAG_TEXTURE or SIM_TAG_SURFACE */
	const struct sim_context *context;
	uint64_t context_id;
	CUDA_RESOURCE_DESC resource;
	CUDA_TEXTURE_DESC texture;
	CUDA_RESOURCE_VIEW_DESC view;
	bool viewed;
};

/* ---- resources ---------------------------------------------------------------------------------------------------- */

/* Bytes of an element of memory that is read as a texture; 0: there is no such. */
static size_t element_of(CUarray_format name, unsigned channels)
{
	const struct ptg_array_format *format = ptg_array_format((int)name);

	if (!format || !format->channel || (channels != 1 && channels != 2 && channels != 4))
		return 0;
	return (size_t)format->channel * channels;
}

static size_t limit_of(const struct sim_context *context, CUdevice_attribute attribute)
{
	return (size_t)sim_shared_limit(context->device, attribute);
}

static CUresult check_linear(const struct sim_context *context, const CUDA_RESOURCE_DESC *desc)
{
	size_t element = element_of(desc->res.linear.format, desc->res.linear.numChannels);
	size_t bytes = desc->res.linear.sizeInBytes;

	if (!element || !bytes || desc->res.linear.devPtr % limit_of(context, CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT) ||
	    bytes / element > limit_of(context, CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_LINEAR_WIDTH) ||
	    !sim_is_mapped(desc->res.linear.devPtr, bytes))
		return CUDA_ERROR_INVALID_VALUE;
	return CUDA_SUCCESS;
}

static CUresult check_pitched(const struct sim_context *context, const CUDA_RESOURCE_DESC *desc)
{
	size_t element = element_of(desc->res.pitch2D.format, desc->res.pitch2D.numChannels);
	size_t width = desc->res.pitch2D.width, height = desc->res.pitch2D.height,
	       pitch = desc->res.pitch2D.pitchInBytes;

	if (!element || !width || !height ||
	    width > limit_of(context, CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LINEAR_WIDTH) ||
	    height > limit_of(context, CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LINEAR_HEIGHT) ||
	    pitch > limit_of(context, CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LINEAR_PITCH) || pitch < width * element ||
	    pitch % limit_of(context, CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT) ||
	    desc->res.pitch2D.devPtr % limit_of(context, CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT) ||
	    !sim_is_mapped(desc->res.pitch2D.devPtr, pitch * (height - 1) + width * element))
		return CUDA_ERROR_INVALID_VALUE;
	return CUDA_SUCCESS;
}

CUresult sim_resource_check(struct sim_context *context, const CUDA_RESOURCE_DESC *desc, struct sim_array **array)
{
	struct sim_texels *mipmap;

	*array = NULL;
	if (desc->flags)
		return CUDA_ERROR_INVALID_VALUE;
	switch (desc->resType) {
	case CU_RESOURCE_TYPE_ARRAY:
		*array = sim_array_of(desc->res.array.hArray);
		return *array ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
	case CU_RESOURCE_TYPE_MIPMAPPED_ARRAY:
		mipmap = sim_mipmap_of(desc->res.mipmap.hMipmappedArray);
		*array = mipmap ? &mipmap->array[0] : NULL;
		return *array ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
	case CU_RESOURCE_TYPE_LINEAR:
		return check_linear(context, desc);
	case CU_RESOURCE_TYPE_PITCH2D:
		return check_pitched(context, desc);
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
}

CUresult sim_surface_check(CUarray handle)
{
	const struct sim_array *array = sim_array_of(handle);

	return array && (array->desc.Flags & CUDA_ARRAY3D_SURFACE_LDST) && array->format->block == 1 &&
	                       !array->format->planes
	               ? CUDA_SUCCESS
		       : CUDA_ERROR_INVALID_VALUE;
}

/* ---- how it is read ----------------------------------------------------------------------------------------------- */

#define TEXTURE_FLAGS                                                                                                  \
	(CU_TRSF_READ_AS_INTEGER | CU_TRSF_NORMALIZED_COORDINATES | CU_TRSF_SRGB |                                     \
	 CU_TRSF_DISABLE_TRILINEAR_OPTIMIZATION | CU_TRSF_SEAMLESS_CUBEMAP)

static CUresult check_texture(const CUDA_TEXTURE_DESC *desc, const CUDA_RESOURCE_DESC *resource,
                              const struct sim_array *array)
{
	bool cube = array && (array->desc.Flags & CUDA_ARRAY3D_CUBEMAP);

	for (int i = 0; i < 3; i++)
		if ((unsigned)desc->addressMode[i] > CU_TR_ADDRESS_MODE_BORDER)
			return CUDA_ERROR_INVALID_VALUE;
	if ((unsigned)desc->filterMode > CU_TR_FILTER_MODE_LINEAR ||
	    (unsigned)desc->mipmapFilterMode > CU_TR_FILTER_MODE_LINEAR || (desc->flags & ~(unsigned)TEXTURE_FLAGS))
		return CUDA_ERROR_INVALID_VALUE;
	if ((desc->flags & CU_TRSF_SEAMLESS_CUBEMAP) && !cube)
		return CUDA_ERROR_INVALID_VALUE;
	if (resource->resType == CU_RESOURCE_TYPE_MIPMAPPED_ARRAY && !(desc->flags & CU_TRSF_NORMALIZED_COORDINATES))
		return CUDA_ERROR_INVALID_VALUE;
	return CUDA_SUCCESS;
}

/* A view as blocks is of an array of 32-bit words, as many as make a block. */
static bool view_fits_format(const CUDA_RESOURCE_VIEW_DESC *view, const struct sim_array *array, size_t *scale)
{
	bool small = view->format == CU_RES_VIEW_FORMAT_UNSIGNED_BC1 ||
	             view->format == CU_RES_VIEW_FORMAT_UNSIGNED_BC4 || view->format == CU_RES_VIEW_FORMAT_SIGNED_BC4;

	*scale = 1;
	if ((unsigned)view->format > CU_RES_VIEW_FORMAT_UNSIGNED_BC7)
		return false;
	if (view->format < CU_RES_VIEW_FORMAT_UNSIGNED_BC1)
		return true;
	*scale = 4;
	return array->desc.Format == CU_AD_FORMAT_UNSIGNED_INT32 && array->desc.NumChannels == (small ? 2 : 4);
}

static CUresult check_view(const CUDA_RESOURCE_VIEW_DESC *view, const CUDA_RESOURCE_DESC *resource,
                           const struct sim_array *array)
{
	size_t scale;

	if (!array || array->format->block > 1 || !view_fits_format(view, array, &scale))
		return CUDA_ERROR_INVALID_VALUE;
	unsigned last = resource->resType == CU_RESOURCE_TYPE_MIPMAPPED_ARRAY ? array->texels->levels - 1 : 0;
	unsigned layers = sim_array_layered(&array->desc) ? (unsigned)array->desc.Depth - 1 : 0;
	if (view->width != array->desc.Width * scale || view->height != array->desc.Height * scale ||
	    view->depth != array->desc.Depth || view->lastMipmapLevel > last ||
	    view->firstMipmapLevel > view->lastMipmapLevel || view->lastLayer > layers ||
	    view->firstLayer > view->lastLayer)
		return CUDA_ERROR_INVALID_VALUE;
	return CUDA_SUCCESS;
}

/* ---- objects ------------------------------------------------------------------------------------------------------ */

static struct object *object_of(unsigned long long handle, enum sim_tag tag)
{
	struct object *object = (struct object *)(uintptr_t)handle;

	if (!sim_handle_is(object, tag))
		return NULL;
	bool alive = __atomic_load_n(&object->context->alive, __ATOMIC_ACQUIRE);
	return alive && object->context->id == object->context_id ? object : NULL;
}

static CUresult publish(struct sim_context *context, const struct object *like, enum sim_tag tag,
                        unsigned long long *out)
{
	struct object *object = malloc(sizeof *object);

	if (!object)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*object = *like;
	object->tag = tag;
	object->context = context;
	object->context_id = context->id;
	sim_handle_add(object, tag);
	*out = (unsigned long long)(uintptr_t)object;
	return CUDA_SUCCESS;
}

static CUresult destroy(unsigned long long handle, enum sim_tag tag)
{
	struct sim_context *context;
	CUresult result = sim_require(&context);

	if (result != CUDA_SUCCESS)
		return result;
	struct object *object = object_of(handle, tag);
	if (!object)
		return CUDA_ERROR_INVALID_VALUE;
	sim_handle_drop(object);
	free(object);
	return CUDA_SUCCESS;
}

CUresult sim_cuTexObjectCreate(CUtexObject *out, const CUDA_RESOURCE_DESC *resource, const CUDA_TEXTURE_DESC *texture,
                               const CUDA_RESOURCE_VIEW_DESC *view)
{
	struct sim_context *context;
	struct sim_array *array;
	CUresult result = sim_require(&context);

	if (result != CUDA_SUCCESS)
		return result;
	if (!out || !resource || !texture)
		return CUDA_ERROR_INVALID_VALUE;
	result = sim_resource_check(context, resource, &array);
	if (result == CUDA_SUCCESS)
		result = check_texture(texture, resource, array);
	if (result == CUDA_SUCCESS && view)
		result = check_view(view, resource, array);
	if (result != CUDA_SUCCESS)
		return result;
	struct object like = {.resource = *resource, .texture = *texture, .viewed = view};
	if (view)
		like.view = *view;
	return publish(context, &like, SIM_TAG_TEXTURE, out);
}

CUresult sim_cuTexObjectDestroy(CUtexObject handle)
{
	return destroy(handle, SIM_TAG_TEXTURE);
}

/* The object that a program asks about. */
static CUresult asked(const void *out, unsigned long long handle, enum sim_tag tag, struct object **object)
{
	struct sim_context *context;
	CUresult result = sim_require(&context);

	if (result != CUDA_SUCCESS)
		return result;
	*object = object_of(handle, tag);
	return out && *object ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult sim_cuTexObjectGetResourceDesc(CUDA_RESOURCE_DESC *out, CUtexObject handle)
{
	struct object *object;
	CUresult result = asked(out, handle, SIM_TAG_TEXTURE, &object);

	if (result == CUDA_SUCCESS)
		*out = object->resource;
	return result;
}

CUresult sim_cuTexObjectGetTextureDesc(CUDA_TEXTURE_DESC *out, CUtexObject handle)
{
	struct object *object;
	CUresult result = asked(out, handle, SIM_TAG_TEXTURE, &object);

	if (result == CUDA_SUCCESS)
		*out = object->texture;
	return result;
}

CUresult sim_cuTexObjectGetResourceViewDesc(CUDA_RESOURCE_VIEW_DESC *out, CUtexObject handle)
{
	struct object *object;
	CUresult result = asked(out, handle, SIM_TAG_TEXTURE, &object);

	if (result == CUDA_SUCCESS && !object->viewed)
		result = CUDA_ERROR_INVALID_VALUE;
	if (result == CUDA_SUCCESS)
		*out = object->view;
	return result;
}

CUresult sim_cuSurfObjectCreate(CUsurfObject *out, const CUDA_RESOURCE_DESC *resource)
{
	struct sim_context *context;
	CUresult result = sim_require(&context);

	if (result != CUDA_SUCCESS)
		return result;
	if (!out || !resource || resource->flags || resource->resType != CU_RESOURCE_TYPE_ARRAY)
		return CUDA_ERROR_INVALID_VALUE;
	result = sim_surface_check(resource->res.array.hArray);
	if (result != CUDA_SUCCESS)
		return result;
	return publish(context, &(struct object){.resource = *resource}, SIM_TAG_SURFACE, out);
}

CUresult sim_cuSurfObjectDestroy(CUsurfObject handle)
{
	return destroy(handle, SIM_TAG_SURFACE);
}

CUresult sim_cuSurfObjectGetResourceDesc(CUDA_RESOURCE_DESC *out, CUsurfObject handle)
{
	struct object *object;
	CUresult result = asked(out, handle, SIM_TAG_SURFACE, &object);

	if (result == CUDA_SUCCESS)
		*out = object->resource;
	return result;
}
