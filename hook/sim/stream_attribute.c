/* stream_attribute.c: what programs set on a stream and read back.
 *
 * Attributes have no effect but the priority. Called through the entry layer.
 */
#include "engine.h"
#include "sim_impl.h"

static bool is_stream_attribute(CUstreamAttrID attr)
{
	return attr == CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW || attr == CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY ||
	       attr == CU_LAUNCH_ATTRIBUTE_PRIORITY || attr == CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP ||
	       attr == CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN;
}

CUresult sim_cuStreamGetAttribute(CUstream hStream, CUstreamAttrID attr, CUstreamAttrValue *value)
{
	CUresult error;
	struct sim_stream *stream = sim_stream_of(hStream, &error);
	if (!stream)
		return error;
	if (!value || !is_stream_attribute(attr))
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&sim_engine_mutex);
	*value = stream->attribute[attr];
	if (attr == CU_LAUNCH_ATTRIBUTE_PRIORITY)
		value->priority = stream->priority;
	else if (attr == CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY && !value->syncPolicy)
		value->syncPolicy = CU_SYNC_POLICY_AUTO;
	pthread_mutex_unlock(&sim_engine_mutex);
	return CUDA_SUCCESS;
}

CUresult sim_cuStreamSetAttribute(CUstream hStream, CUstreamAttrID attr, const CUstreamAttrValue *param)
{
	CUresult error;
	struct sim_stream *stream = sim_stream_of(hStream, &error);
	if (!stream)
		return error;
	if (!param || !is_stream_attribute(attr))
		return CUDA_ERROR_INVALID_VALUE;
	if (attr == CU_LAUNCH_ATTRIBUTE_PRIORITY && (param->priority > 0 || param->priority < SIM_PRIORITY_GREATEST))
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&sim_engine_mutex);
	stream->attribute[attr] = *param;
	if (attr == CU_LAUNCH_ATTRIBUTE_PRIORITY)
		stream->priority = param->priority;
	pthread_mutex_unlock(&sim_engine_mutex);
	return CUDA_SUCCESS;
}

CUresult sim_cuStreamCopyAttributes(CUstream dstStream, CUstream srcStream)
{
	CUresult error;
	struct sim_stream *to = sim_stream_of(dstStream, &error);
	struct sim_stream *from = to ? sim_stream_of(srcStream, &error) : NULL;
	if (!from)
		return error;
	if (from->context != to->context)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&sim_engine_mutex);
	for (int i = 0; i < SIM_STREAM_ATTRIBUTES; i++)
		if (i != CU_LAUNCH_ATTRIBUTE_PRIORITY) /* a stream keeps the priority it was made with */
			to->attribute[i] = from->attribute[i];
	pthread_mutex_unlock(&sim_engine_mutex);
	return CUDA_SUCCESS;
}

CUresult sim_cuStreamAttachMemAsync(CUstream hStream, CUdeviceptr dptr, size_t length, unsigned int flags)
{
	CUresult error;
	struct sim_stream *stream = sim_stream_of(hStream, &error);
	if (!stream)
		return error;
	if (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST && flags != CU_MEM_ATTACH_SINGLE)
		return CUDA_ERROR_INVALID_VALUE;
	if (!sim_is_device(dptr, length ? length : 1))
		return CUDA_ERROR_INVALID_VALUE;
	struct sim_work nothing = {.device_ns = 0};
	return sim_enqueue(stream, &nothing);
}
