/* launch_old.c: launches in the manner of CUDA 3 (block shape and parameters set on the function one by one), and
 * cooperative launches over several devices. Deprecated or removed in the headers, still in the driver.
 *
 * Like the real thing not safe for two threads on one function: the arguments live on the function.
 */
#include <stdlib.h>
#include <string.h>

#include "launch.h"
#include "sim_impl.h"

#define OLD_PARAM_BYTES 4096

struct sim_old_call {
	unsigned block[3];
	unsigned shared;
	size_t param_size;
	unsigned char params[OLD_PARAM_BYTES];
};

static struct sim_old_call *call_of(CUfunction handle, CUresult *error)
{
	struct sim_context *context;
	*error = sim_require(&context);
	struct sim_function *function = *error == CUDA_SUCCESS ? sim_function_of(handle, context, error) : NULL;
	if (!function)
		return NULL;
	if (!function->old)
		function->old = calloc(1, sizeof(*function->old));
	if (!function->old)
		*error = CUDA_ERROR_OUT_OF_MEMORY;
	return function->old;
}

CUresult sim_cuFuncSetBlockShape(CUfunction hfunc, int x, int y, int z)
{
	CUresult error;
	struct sim_old_call *call = call_of(hfunc, &error);
	if (!call)
		return error;
	if (x <= 0 || y <= 0 || z <= 0)
		return CUDA_ERROR_INVALID_VALUE;
	call->block[0] = (unsigned)x;
	call->block[1] = (unsigned)y;
	call->block[2] = (unsigned)z;
	return CUDA_SUCCESS;
}

CUresult sim_cuFuncSetSharedSize(CUfunction hfunc, unsigned int bytes)
{
	CUresult error;
	struct sim_old_call *call = call_of(hfunc, &error);
	if (call)
		call->shared = bytes;
	return error;
}

CUresult sim_cuParamSetSize(CUfunction hfunc, unsigned int numbytes)
{
	CUresult error;
	struct sim_old_call *call = call_of(hfunc, &error);
	if (!call)
		return error;
	if (numbytes > OLD_PARAM_BYTES)
		return CUDA_ERROR_INVALID_VALUE;
	call->param_size = numbytes;
	return CUDA_SUCCESS;
}

CUresult sim_cuParamSetv(CUfunction hfunc, int offset, void *ptr, unsigned int numbytes)
{
	CUresult error;
	struct sim_old_call *call = call_of(hfunc, &error);
	if (!call)
		return error;
	if (!ptr || offset < 0 || numbytes > OLD_PARAM_BYTES || (unsigned)offset > OLD_PARAM_BYTES - numbytes)
		return CUDA_ERROR_INVALID_VALUE;
	memcpy(call->params + offset, ptr, numbytes);
	return CUDA_SUCCESS;
}

CUresult sim_cuParamSeti(CUfunction hfunc, int offset, unsigned int value)
{
	return sim_cuParamSetv(hfunc, offset, &value, sizeof(value));
}

CUresult sim_cuParamSetf(CUfunction hfunc, int offset, float value)
{
	return sim_cuParamSetv(hfunc, offset, &value, sizeof(value));
}

CUresult sim_cuLaunchGridAsync(CUfunction f, int grid_width, int grid_height, CUstream hStream)
{
	CUresult error;
	struct sim_stream *stream;
	struct sim_function *function = sim_launch_target(f, hStream, &stream, &error);
	if (!function)
		return error;
	struct sim_old_call *call = function->old;
	if (!call || grid_width <= 0 || grid_height <= 0)
		return CUDA_ERROR_INVALID_VALUE; /* no block shape yet */
	void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, call->params, CU_LAUNCH_PARAM_BUFFER_SIZE, &call->param_size,
	                 CU_LAUNCH_PARAM_END};
	struct sim_launch launch = {
	        .grid = {(unsigned)grid_width, (unsigned)grid_height, 1}, .shared = call->shared, .extra = extra};
	memcpy(launch.block, call->block, sizeof(launch.block));
	return sim_launch(function, stream, &launch);
}

CUresult sim_cuLaunchGrid(CUfunction f, int grid_width, int grid_height)
{
	return sim_cuLaunchGridAsync(f, grid_width, grid_height, NULL);
}

CUresult sim_cuLaunch(CUfunction f)
{
	return sim_cuLaunchGridAsync(f, 1, 1, NULL);
}

/* ---- several devices --------------------------------------------------------------------------------------------- */

/* The stream named explicitly; the NULL stream is not allowed here. Its context need not be current. */
static struct sim_function *device_part(const CUDA_LAUNCH_PARAMS *part, struct sim_stream **stream, CUresult *error)
{
	*error = CUDA_ERROR_INVALID_VALUE;
	if (!part->hStream || part->hStream == CU_STREAM_LEGACY || part->hStream == CU_STREAM_PER_THREAD)
		return NULL;
	*stream = sim_stream_of(part->hStream, error);
	return *stream ? sim_function_of(part->function, (*stream)->context, error) : NULL;
}

static CUresult same_device_twice(struct sim_stream *const *streams, unsigned n)
{
	for (unsigned i = 0; i < n; i++)
		for (unsigned j = 0; j < i; j++)
			if (sim_stream_device(streams[i]) == sim_stream_device(streams[j]))
				return CUDA_ERROR_INVALID_VALUE;
	return CUDA_SUCCESS;
}

CUresult sim_cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *launchParamsList, unsigned int numDevices,
                                                  unsigned int flags)
{
	if (!launchParamsList || !numDevices || numDevices > SIM_DEVICES || (flags & ~3u))
		return CUDA_ERROR_INVALID_VALUE;
	struct sim_stream *streams[SIM_DEVICES];
	struct sim_function *functions[SIM_DEVICES];
	CUresult error = CUDA_SUCCESS;
	for (unsigned i = 0; i < numDevices; i++)
		if (!(functions[i] = device_part(&launchParamsList[i], &streams[i], &error)))
			return error;
	error = same_device_twice(streams, numDevices);
	for (unsigned i = 0; i < numDevices && error == CUDA_SUCCESS; i++) {
		const CUDA_LAUNCH_PARAMS *part = &launchParamsList[i];
		struct sim_launch launch = {.grid = {part->gridDimX, part->gridDimY, part->gridDimZ},
		                            .block = {part->blockDimX, part->blockDimY, part->blockDimZ},
		                            .shared = part->sharedMemBytes,
		                            .params = part->kernelParams,
		                            .cooperative = true};
		error = sim_launch(functions[i], streams[i], &launch);
	}
	return error;
}
