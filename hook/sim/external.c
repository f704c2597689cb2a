/* external.c: external memory: cuImportExternalMemory, cuExternalMemoryGetMappedBuffer,
 * cuExternalMemoryGetMappedMipmappedArray, cuDestroyExternalMemory.
 *
 * Called by programs. The simulated machine has no other API that allocates, so what can be imported is what
 * cuMemExportToShareableHandle exported, as an opaque descriptor (vmm_share.c). A buffer is a mapping of the whole
 * allocation; cuMemFree unmaps it, also after the object is destroyed. A mip-map has its levels in the memory, one after
 * another as in one of its own (array_shape.c). Both end with the context in which they were made. What can go wrong: a descriptor of anything else,
 * a range outside of the memory.
 */
#include <stdlib.h>
#include <unistd.h>

#include "array.h"
#include "context.h"
#include "sim_impl.h"
#include "vmm.h"

struct sim_external {
	uint32_t tag;
	CUmemGenericAllocationHandle handle;
	uint64_t size; /* as the program said */
	uint64_t whole; /* of the allocation */
};

/* A buffer that the program may free; under the memory mutex. */
struct buffer {
	struct buffer *next;
	const struct sim_context *context; /* it ends with it */
	CUdeviceptr p;
	CUdeviceptr base; /* of the mapping */
	uint64_t bytes;
};

static struct buffer *buffers;

CUresult sim_cuImportExternalMemory(CUexternalMemory *out, const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *desc)
{
	CUmemGenericAllocationHandle handle;

	if (!sim_initialized())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!out || !desc || !desc->size || (desc->flags & ~(unsigned)CUDA_EXTERNAL_MEMORY_DEDICATED))
		return CUDA_ERROR_INVALID_VALUE;
	if (desc->type != CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD)
		return CUDA_ERROR_NOT_SUPPORTED;
	struct sim_external *external = calloc(1, sizeof *external);
	if (!external)
		return CUDA_ERROR_OUT_OF_MEMORY;
	CUresult result = sim_cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)desc->handle.fd,
	                                                     CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
	if (result == CUDA_SUCCESS && desc->size > sim_allocation_from(handle)->size) {
		sim_cuMemRelease(handle);
		result = CUDA_ERROR_INVALID_VALUE;
	}
	if (result != CUDA_SUCCESS) {
		free(external);
		return result;
	}
	close(desc->handle.fd); /* it is the driver's from now on */
	external->handle = handle;
	external->size = desc->size;
	external->whole = sim_allocation_from(handle)->size;
	external->tag = SIM_TAG_EXTERNAL;
	sim_handle_add(external, SIM_TAG_EXTERNAL);
	*out = (CUexternalMemory)external;
	return CUDA_SUCCESS;
}

CUresult sim_cuDestroyExternalMemory(CUexternalMemory handle)
{
	struct sim_external *external = (struct sim_external *)handle;

	if (!sim_initialized())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!sim_handle_is(external, SIM_TAG_EXTERNAL))
		return CUDA_ERROR_INVALID_HANDLE;
	sim_handle_drop(external);
	sim_cuMemRelease(external->handle); /* buffers keep it */
	free(external);
	return CUDA_SUCCESS;
}

/* What a call that maps needs: a live object, and a context. */
static CUresult look(CUexternalMemory handle, struct sim_external **external, struct sim_context **context)
{
	CUresult result = sim_require(context);

	*external = (struct sim_external *)handle;
	if (result == CUDA_SUCCESS && !sim_handle_is(*external, SIM_TAG_EXTERNAL))
		result = CUDA_ERROR_INVALID_HANDLE;
	return result;
}

/* The allocation at an address of its own, for the current context's device. */
static CUresult map(const struct sim_external *external, const struct sim_context *context, CUdeviceptr *base)
{
	CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = context->ordinal},
	                          .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	CUresult result = sim_cuMemAddressReserve(base, external->whole, 0, 0, 0);

	if (result != CUDA_SUCCESS)
		return result;
	result = sim_cuMemMap(*base, external->whole, 0, external->handle, 0);
	if (result == CUDA_SUCCESS)
		return sim_cuMemSetAccess(*base, external->whole, &access, 1);
	sim_cuMemAddressFree(*base, external->whole);
	return result;
}

CUresult sim_cuExternalMemoryGetMappedBuffer(CUdeviceptr *out, CUexternalMemory handle,
                                             const CUDA_EXTERNAL_MEMORY_BUFFER_DESC *desc)
{
	struct sim_context *context;
	struct sim_external *external;
	CUresult result = look(handle, &external, &context);

	if (result != CUDA_SUCCESS)
		return result;
	if (!out || !desc || desc->flags || !desc->size || desc->offset > external->size ||
	    desc->size > external->size - desc->offset)
		return CUDA_ERROR_INVALID_VALUE;
	struct buffer *buffer = calloc(1, sizeof *buffer);
	result = buffer ? map(external, context, &buffer->base) : CUDA_ERROR_OUT_OF_MEMORY;
	if (result != CUDA_SUCCESS) {
		free(buffer);
		return result;
	}
	buffer->p = buffer->base + desc->offset;
	buffer->bytes = external->whole;
	buffer->context = context;
	*out = buffer->p;
	pthread_mutex_lock(&sim_memory_mutex);
	buffer->next = buffers;
	buffers = buffer;
	pthread_mutex_unlock(&sim_memory_mutex);
	return CUDA_SUCCESS;
}

CUresult sim_cuExternalMemoryGetMappedMipmappedArray(CUmipmappedArray *out, CUexternalMemory handle,
                                                     const CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC *desc)
{
	struct sim_context *context;
	struct sim_external *external;
	CUresult result = look(handle, &external, &context);

	if (result != CUDA_SUCCESS)
		return result;
	if (!out || !desc || !desc->numLevels || desc->offset > external->size)
		return CUDA_ERROR_INVALID_VALUE;
	struct sim_texels_place place = {external->handle, desc->offset, external->size - desc->offset};
	return sim_mipmap_over(&place, &desc->arrayDesc, desc->numLevels, out);
}

/* ---- ends ---------------------------------------------------------------------------------------------------------- */

void sim_externals_destroy(struct sim_context *context)
{
	struct buffer *gone = NULL;

	pthread_mutex_lock(&sim_memory_mutex);
	for (struct buffer **link = &buffers; *link;) {
		struct buffer *buffer = *link;
		if (buffer->context != context) {
			link = &buffer->next;
			continue;
		}
		__atomic_store_n(link, buffer->next, __ATOMIC_RELAXED);
		sim_unmap(buffer->base, buffer->bytes);
		buffer->next = gone;
		gone = buffer;
	}
	pthread_mutex_unlock(&sim_memory_mutex);
	for (struct buffer *next; gone; gone = next) {
		next = gone->next;
		sim_cuMemAddressFree(gone->base, gone->bytes);
		free(gone);
	}
}

bool sim_external_free(CUdeviceptr p, CUresult *result)
{
	if (!__atomic_load_n(&buffers, __ATOMIC_RELAXED))
		return false;
	pthread_mutex_lock(&sim_memory_mutex);
	struct buffer **link = &buffers;
	while (*link && (*link)->p != p)
		link = &(*link)->next;
	struct buffer *buffer = *link;
	if (buffer)
		__atomic_store_n(link, buffer->next, __ATOMIC_RELAXED);
	pthread_mutex_unlock(&sim_memory_mutex);
	if (!buffer)
		return false;
	*result = sim_cuMemUnmap(buffer->base, buffer->bytes);
	sim_cuMemAddressFree(buffer->base, buffer->bytes);
	free(buffer);
	return true;
}
