/* graph_kernel.c: kernel nodes: their arguments, their attributes, and what a launch of them costs.
 *
 * Called by graph_work.c, graph_node.c and capture.c with the graph mutex held. Arguments are copied when the node is
 * made, as the real driver does; what a program reads back points to the copy. Attributes stay with the node when its
 * parameters change. What can go wrong is what goes wrong with a launch (launch.c), at the same moment: when the node is
 * made or changed.
 */
#include <stdlib.h>
#include <string.h>

#include "context.h"
#include "graph.h"
#include "green.h"
#include "launch.h"
#include "sim_impl.h"

/* The attributes that a kernel node may have; others belong to streams or single launches. */
static bool belongs_to_nodes(CUlaunchAttributeID id)
{
	switch (id) {
	case CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW:
	case CU_LAUNCH_ATTRIBUTE_COOPERATIVE:
	case CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION:
	case CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
	case CU_LAUNCH_ATTRIBUTE_PRIORITY:
	case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP:
	case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN:
	case CU_LAUNCH_ATTRIBUTE_PREFERRED_CLUSTER_DIMENSION:
	case CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
		return true;
	default:
		return false;
	}
}

static const CUlaunchAttributeValue *attribute_of(const struct sim_graph_work *work, CUlaunchAttributeID id)
{
	return work && work->attribute && work->attributes >> id & 1 ? &work->attribute[id] : NULL;
}

/* ---- arguments --------------------------------------------------------------------------------------------------- */

/* One pointer for each parameter, then the bytes they point to. */
static bool keep_params(struct sim_graph_work *work, const struct sim_kernel_image *kernel, void *const *params)
{
	size_t words = kernel->nparams, head = words * sizeof(void *);
	work->memory_size = head + kernel->param_bytes;
	work->memory = calloc(1, work->memory_size);
	if (!work->memory)
		return false;
	char **pointer = work->memory, *bytes = (char *)work->memory + head;
	for (unsigned i = 0; i < kernel->nparams; i++) {
		pointer[i] = bytes + kernel->params[i].offset;
		if (params[i])
			memcpy(pointer[i], params[i], kernel->params[i].size);
	}
	work->pointers = words;
	work->params.kernel.kernelParams = work->memory;
	return true;
}

/* The list of `extra`, the size of its buffer, and the buffer. */
static bool keep_extra(struct sim_graph_work *work, void *const *extra)
{
	enum { WORDS = 5 };
	const void *buffer = NULL;
	size_t size = 0, head = WORDS * sizeof(void *) + sizeof(size_t);
	for (int i = 0; extra[i] != CU_LAUNCH_PARAM_END; i += 2) {
		if (extra[i] == CU_LAUNCH_PARAM_BUFFER_POINTER)
			buffer = extra[i + 1];
		else
			size = *(const size_t *)extra[i + 1];
	}
	work->memory_size = head + size;
	work->memory = calloc(1, work->memory_size);
	if (!work->memory)
		return false;
	void **word = work->memory;
	char *bytes = (char *)work->memory + head;
	word[0] = CU_LAUNCH_PARAM_BUFFER_POINTER;
	word[1] = bytes;
	word[2] = CU_LAUNCH_PARAM_BUFFER_SIZE;
	word[3] = &word[WORDS];
	word[4] = CU_LAUNCH_PARAM_END;
	memcpy(&word[WORDS], &size, sizeof(size));
	if (buffer && size)
		memcpy(bytes, buffer, size);
	work->pointers = WORDS;
	work->params.kernel.extra = work->memory;
	return true;
}

/* ---- making ------------------------------------------------------------------------------------------------------ */

/* The function and the context it runs in: those of the function, else those named. */
static struct sim_function *function_of(const CUDA_KERNEL_NODE_PARAMS_v3 *params, CUresult *error)
{
	CUfunction handle = params->func ? params->func : (CUfunction)params->kern;
	struct sim_context *context = sim_context_of(params->ctx);
	*error = CUDA_ERROR_INVALID_VALUE;
	if (!handle)
		return NULL;
	if (sim_handle_is(handle, SIM_TAG_FUNCTION)) {
		struct sim_function *function = (struct sim_function *)handle;
		*error = CUDA_ERROR_INVALID_CONTEXT;
		if (params->ctx && context != function->module->context)
			return NULL;
		*error = CUDA_SUCCESS;
		return function;
	}
	*error = CUDA_ERROR_INVALID_CONTEXT;
	return context ? sim_function_of(handle, context, error) : NULL;
}

static CUresult cost_of(struct sim_graph_work *work)
{
	const CUDA_KERNEL_NODE_PARAMS_v3 *params = &work->params.kernel;
	const CUlaunchAttributeValue *cooperative = attribute_of(work, CU_LAUNCH_ATTRIBUTE_COOPERATIVE);
	const CUlaunchAttributeValue *cluster = attribute_of(work, CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION);
	struct sim_launch launch = {.grid = {params->gridDimX, params->gridDimY, params->gridDimZ},
	                            .block = {params->blockDimX, params->blockDimY, params->blockDimZ},
	                            .shared = params->sharedMemBytes,
	                            .params = params->kernelParams,
	                            .extra = params->extra,
	                            .cooperative = cooperative && cooperative->cooperative};
	if (cluster) {
		launch.cluster[0] = cluster->clusterDim.x;
		launch.cluster[1] = cluster->clusterDim.y;
		launch.cluster[2] = cluster->clusterDim.z;
	}
	const struct sim_green *green = sim_green_of(params->ctx);
	return sim_launch_cost(work->function, &launch, green ? sim_green_sms(green) : 0,
	                       &work->items[0].work.device_ns);
}

static CUresult fill(struct sim_graph_work *work, const CUDA_KERNEL_NODE_PARAMS_v3 *params)
{
	const struct sim_kernel_image *kernel = work->function->image;
	bool kept = true;
	work->items = calloc(1, sizeof(*work->items));
	if (!work->items)
		return CUDA_ERROR_OUT_OF_MEMORY;
	work->count = 1;
	work->items[0].kind = SIM_ITEM_WORK;
	work->items[0].meeting = work->function->meeting;
	CUresult error = cost_of(work); /* also looks at what is about to be copied */
	if (error != CUDA_SUCCESS)
		return error;
	work->params.kernel.kernelParams = work->params.kernel.extra = NULL;
	if (params->kernelParams && kernel->nparams)
		kept = keep_params(work, kernel, params->kernelParams);
	else if (params->extra)
		kept = keep_extra(work, params->extra);
	return kept ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult sim_graph_work_kernel(const CUDA_KERNEL_NODE_PARAMS_v3 *params, const struct sim_graph_work *like,
                               struct sim_graph_work *work)
{
	CUresult error;
	memset(work, 0, sizeof(*work));
	work->function = function_of(params, &error);
	if (!work->function)
		return error;
	work->context = work->function->module->context;
	work->params.type = CU_GRAPH_NODE_TYPE_KERNEL;
	work->params.kernel = *params;
	if (!sim_green_of(params->ctx)) /* a green one says on which SMs it runs */
		work->params.kernel.ctx = (CUcontext)work->context;
	if (like && like->attribute) {
		work->attribute = malloc(CU_LAUNCH_ATTRIBUTE_MAX * sizeof(*work->attribute));
		if (!work->attribute)
			return CUDA_ERROR_OUT_OF_MEMORY;
		memcpy(work->attribute, like->attribute, CU_LAUNCH_ATTRIBUTE_MAX * sizeof(*work->attribute));
		work->attributes = like->attributes;
	}
	error = fill(work, params);
	if (error != CUDA_SUCCESS)
		sim_graph_work_drop(work);
	return error;
}

/* ---- attributes -------------------------------------------------------------------------------------------------- */

static struct sim_graph_work *kernel_work(CUgraphNode handle)
{
	struct sim_graph_node *node = sim_graph_node_of(handle);
	return node && node->work.params.type == CU_GRAPH_NODE_TYPE_KERNEL ? &node->work : NULL;
}

/* Attributes that a node has without their having been set. */
static void default_of(CUlaunchAttributeID id, CUlaunchAttributeValue *value)
{
	memset(value, 0, sizeof(*value));
	if (id == CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP)
		value->memSyncDomainMap.remote = 1;
}

CUresult sim_cuGraphKernelNodeGetAttribute(CUgraphNode hNode, CUkernelNodeAttrID attr, CUkernelNodeAttrValue *value_out)
{
	if (!value_out || !belongs_to_nodes(attr))
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&sim_graph_mutex);
	const struct sim_graph_work *work = kernel_work(hNode);
	const CUlaunchAttributeValue *value = attribute_of(work, attr);
	if (value)
		*value_out = *value;
	else if (work)
		default_of(attr, value_out);
	pthread_mutex_unlock(&sim_graph_mutex);
	return work ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* Sets one and looks whether the kernel can still be launched. */
static CUresult set_attribute(struct sim_graph_work *work, CUlaunchAttributeID id, const CUlaunchAttributeValue *value)
{
	if (!sim_handle_is(work->function, SIM_TAG_FUNCTION))
		return CUDA_ERROR_INVALID_VALUE; /* its module was unloaded */
	if (!work->attribute && !(work->attribute = calloc(CU_LAUNCH_ATTRIBUTE_MAX, sizeof(*work->attribute))))
		return CUDA_ERROR_OUT_OF_MEMORY;
	uint32_t before = work->attributes;
	CUlaunchAttributeValue old = work->attribute[id];
	work->attribute[id] = *value;
	work->attributes |= UINT32_C(1) << id;
	CUresult error = cost_of(work);
	if (error != CUDA_SUCCESS) {
		work->attribute[id] = old;
		work->attributes = before;
	}
	return error;
}

CUresult sim_cuGraphKernelNodeSetAttribute(CUgraphNode hNode, CUkernelNodeAttrID attr,
                                           const CUkernelNodeAttrValue *value)
{
	if (!value || !belongs_to_nodes(attr))
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&sim_graph_mutex);
	struct sim_graph_work *work = kernel_work(hNode);
	CUresult error = work ? set_attribute(work, attr, value) : CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_unlock(&sim_graph_mutex);
	return error;
}

CUresult sim_cuGraphKernelNodeCopyAttributes(CUgraphNode dst, CUgraphNode src)
{
	CUresult error = CUDA_SUCCESS;
	pthread_mutex_lock(&sim_graph_mutex);
	struct sim_graph_work *to = kernel_work(dst), *from = kernel_work(src);
	if (!to || !from)
		error = CUDA_ERROR_INVALID_VALUE;
	else if (to->context != from->context)
		error = CUDA_ERROR_INVALID_CONTEXT;
	for (unsigned id = 0; id < CU_LAUNCH_ATTRIBUTE_MAX && error == CUDA_SUCCESS; id++)
		if (attribute_of(from, id))
			error = set_attribute(to, id, &from->attribute[id]);
	pthread_mutex_unlock(&sim_graph_mutex);
	return error;
}
