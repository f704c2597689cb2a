/* hostfn.c: functions of the program that run in stream order, on the device's host-function thread (engine.c).
 *
 * They may not call the driver; they may block, which holds up their stream and the host functions of the same device.
 */
#include <string.h>

#include "capture.h"
#include "sim_impl.h"

struct host_call {
	CUhostFn function;
	CUstreamCallback callback;
	CUstream stream; /* as the program named it */
	const struct sim_context *context;
	void *data;
};

static void run_host_call(void *arg)
{
	struct host_call *call = arg;
	if (call->function)
		call->function(call->data);
	else
		call->callback(call->stream, sim_context_error(call->context), call->data);
}

static void make_item(struct sim_item *item, const struct host_call *call)
{
	memset(item, 0, sizeof(*item));
	item->kind = SIM_ITEM_HOST;
	item->work.run = run_host_call;
	item->work.arg_size = sizeof(*call);
	memcpy(item->work.arg, call, sizeof(*call));
}

void sim_host_item(struct sim_item *item, CUhostFn function, void *data)
{
	struct host_call call = {.function = function, .data = data};
	make_item(item, &call);
}

static CUresult queue_host_call(CUstream handle, struct host_call *call)
{
	CUresult error;
	struct sim_stream *stream = sim_stream_of(handle, &error);
	if (!stream)
		return error;
	if (sim_stream_capturing(stream) && call->function) {
		CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_HOST};
		params.host.fn = call->function;
		params.host.userData = call->data;
		return sim_capture_node(stream, &params);
	}
	call->stream = handle;
	call->context = sim_stream_context(stream);
	struct sim_item item;
	make_item(&item, call);
	return sim_engine_submit(stream, &item, false);
}

CUresult sim_cuLaunchHostFunc(CUstream hStream, CUhostFn fn, void *userData)
{
	if (!fn)
		return CUDA_ERROR_INVALID_VALUE;
	struct host_call call = {.function = fn, .data = userData};
	return queue_host_call(hStream, &call);
}

CUresult sim_cuLaunchHostFunc_v2(CUstream hStream, CUhostFn fn, void *userData, unsigned int syncMode)
{
	(void)syncMode; /* how the device waits for the host: no difference here */
	return sim_cuLaunchHostFunc(hStream, fn, userData);
}

CUresult sim_cuStreamAddCallback(CUstream hStream, CUstreamCallback callback, void *userData, unsigned int flags)
{
	if (!callback || flags)
		return CUDA_ERROR_INVALID_VALUE;
	struct host_call call = {.callback = callback, .data = userData};
	return queue_host_call(hStream, &call);
}
