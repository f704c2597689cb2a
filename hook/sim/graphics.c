/* graphics.c: graphics interoperability. A simulated machine has no graphics API that could register a resource, so no
 * handle is ever one: CUDA_ERROR_INVALID_HANDLE, as on a machine whose resource was unregistered.
 */
#include "sim.h"
#include "sim_impl.h"

static CUresult no_resource(void)
{
	struct sim_context *context;
	CUresult result = sim_require(&context);
	return result == CUDA_SUCCESS ? CUDA_ERROR_INVALID_HANDLE : result;
}

CUresult sim_cuGraphicsUnregisterResource(CUgraphicsResource resource)
{
	(void)resource;
	return no_resource();
}

CUresult sim_cuGraphicsSubResourceGetMappedArray(CUarray *pArray, CUgraphicsResource resource, unsigned int arrayIndex,
                                                 unsigned int mipLevel)
{
	(void)pArray;
	(void)resource;
	(void)arrayIndex;
	(void)mipLevel;
	return no_resource();
}

CUresult sim_cuGraphicsResourceGetMappedMipmappedArray(CUmipmappedArray *pMipmappedArray, CUgraphicsResource resource)
{
	(void)pMipmappedArray;
	(void)resource;
	return no_resource();
}

CUresult sim_cuGraphicsResourceGetMappedPointer(CUdeviceptr_v1 *pDevPtr, unsigned int *pSize,
                                                CUgraphicsResource resource)
{
	(void)pDevPtr;
	(void)pSize;
	(void)resource;
	return no_resource();
}

CUresult sim_cuGraphicsResourceGetMappedPointer_v2(CUdeviceptr *pDevPtr, size_t *pSize, CUgraphicsResource resource)
{
	(void)pDevPtr;
	(void)pSize;
	(void)resource;
	return no_resource();
}

CUresult sim_cuGraphicsResourceSetMapFlags(CUgraphicsResource resource, unsigned int flags)
{
	(void)resource;
	(void)flags;
	return no_resource();
}

CUresult sim_cuGraphicsResourceSetMapFlags_v2(CUgraphicsResource resource, unsigned int flags)
{
	(void)resource;
	(void)flags;
	return no_resource();
}

static CUresult no_resources(unsigned count, const CUgraphicsResource *resources, CUstream stream)
{
	CUresult error;
	if (!sim_stream_of(stream, &error))
		return error;
	return count && resources ? no_resource() : CUDA_ERROR_INVALID_VALUE;
}

CUresult sim_cuGraphicsMapResources(unsigned int count, CUgraphicsResource *resources, CUstream hStream)
{
	return no_resources(count, resources, hStream);
}

CUresult sim_cuGraphicsUnmapResources(unsigned int count, CUgraphicsResource *resources, CUstream hStream)
{
	return no_resources(count, resources, hStream);
}
