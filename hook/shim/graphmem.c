/* graphmem.c: graph nodes of any type: cuGraphAddNode and its later versions.
 *
 * A node that allocates takes its memory when the graph is launched, where no error could be returned, so under a limit
 * it is refused when it is added. Every other type is passed on.
 */
#include "hooks.h"
#include "shim.h"

static bool refused(const CUgraphNodeParams *params)
{
	return vgpu_mode() != VGPU_FREE && params != NULL && params->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC;
}

CUresult hook_cuGraphAddNode(CUgraphNode *phGraphNode, CUgraph hGraph, const CUgraphNode *dependencies,
                             size_t numDependencies, CUgraphNodeParams *nodeParams)
{
	if (refused(nodeParams))
		return CUDA_ERROR_NOT_SUPPORTED;
	return real_cuGraphAddNode(phGraphNode, hGraph, dependencies, numDependencies, nodeParams);
}

CUresult hook_cuGraphAddNode_v2(CUgraphNode *phGraphNode, CUgraph hGraph, const CUgraphNode *dependencies,
                                const CUgraphEdgeData *dependencyData, size_t numDependencies,
                                CUgraphNodeParams *nodeParams)
{
	if (refused(nodeParams))
		return CUDA_ERROR_NOT_SUPPORTED;
	return real_cuGraphAddNode_v2(phGraphNode, hGraph, dependencies, dependencyData, numDependencies, nodeParams);
}

CUresult hook_cuGraphAddNode_v3(CUgraphNode *phGraphNode, CUgraph hGraph, const CUgraphNode *dependencies,
                                const CUgraphEdgeData *dependencyData, size_t numDependencies,
                                CUgraphNodeParams *nodeParams)
{
	if (refused(nodeParams))
		return CUDA_ERROR_NOT_SUPPORTED;
	return real_cuGraphAddNode_v3(phGraphNode, hGraph, dependencies, dependencyData, numDependencies, nodeParams);
}
