/* stream_attribute.c: what programs set on a stream and read back, and the answers about capture.
 *
 * Attributes have no effect but the priority. A stream never captures (see stream.c), so every question about it is
 * answered with "none". Called through the entry layer.
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

/* ---- capture ----------------------------------------------------------------------------------------------------- */

CUresult sim_cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode)
{
	static _Thread_local CUstreamCaptureMode current = CU_STREAM_CAPTURE_MODE_GLOBAL;
	if (!mode || *mode > CU_STREAM_CAPTURE_MODE_RELAXED)
		return CUDA_ERROR_INVALID_VALUE;
	CUstreamCaptureMode old = current;
	current = *mode;
	*mode = old;
	return CUDA_SUCCESS;
}

CUresult sim_cuStreamIsCapturing(CUstream hStream, CUstreamCaptureStatus *captureStatus)
{
	CUresult error;
	if (!sim_stream_of(hStream, &error))
		return error;
	if (!captureStatus)
		return CUDA_ERROR_INVALID_VALUE;
	*captureStatus = CU_STREAM_CAPTURE_STATUS_NONE;
	return CUDA_SUCCESS;
}

CUresult sim_cuStreamGetCaptureInfo(CUstream hStream, CUstreamCaptureStatus *captureStatus_out, cuuint64_t *id_out)
{
	(void)id_out; /* only written while capturing */
	return sim_cuStreamIsCapturing(hStream, captureStatus_out);
}

CUresult sim_cuStreamGetCaptureInfo_v2(CUstream hStream, CUstreamCaptureStatus *captureStatus_out, cuuint64_t *id_out,
                                       CUgraph *graph_out, const CUgraphNode **dependencies_out,
                                       size_t *numDependencies_out)
{
	(void)graph_out, (void)dependencies_out, (void)numDependencies_out;
	return sim_cuStreamGetCaptureInfo(hStream, captureStatus_out, id_out);
}

CUresult sim_cuStreamGetCaptureInfo_v3(CUstream hStream, CUstreamCaptureStatus *captureStatus_out, cuuint64_t *id_out,
                                       CUgraph *graph_out, const CUgraphNode **dependencies_out,
                                       const CUgraphEdgeData **edgeData_out, size_t *numDependencies_out)
{
	(void)edgeData_out;
	return sim_cuStreamGetCaptureInfo_v2(hStream, captureStatus_out, id_out, graph_out, dependencies_out,
	                                     numDependencies_out);
}
