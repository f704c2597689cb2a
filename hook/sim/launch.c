/* launch.c: kernel launches. A kernel does not compute; it keeps the engine busy for as long as its cost rule says.
 *
 * Rule (machine.h, struct sim_cost; the first whose pattern matches the name): fixed time, time per wave of blocks,
 * and possibly an argument that holds nanoseconds. Without a rule it takes none. Called through the entry layer; this
 * is the hottest path of the driver. What can go wrong is what goes wrong on hardware: dimensions beyond the device's
 * or the kernel's limits, missing parameters, too large a cooperative grid.
 */
#include "launch.h"

#include <string.h>

#include "capture.h"
#include "green.h"
#include "sim_impl.h"

#define MAX_GRID_X        0x7fffffffu
#define MAX_GRID_YZ       65535u
#define MAX_BLOCK_THREADS 1024u
#define MAX_BLOCK_Z       64u

/* The parameter buffer of `extra`; NULL where there is none. A malformed list is CUDA_ERROR_INVALID_VALUE. */
static CUresult extra_buffer(void **extra, const unsigned char **buffer, size_t *size)
{
	*buffer = NULL;
	*size = 0;
	for (int i = 0; extra && extra[i] != CU_LAUNCH_PARAM_END; i += 2) {
		if (i >= 8 || !extra[i + 1])
			return CUDA_ERROR_INVALID_VALUE;
		if (extra[i] == CU_LAUNCH_PARAM_BUFFER_POINTER)
			*buffer = extra[i + 1];
		else if (extra[i] == CU_LAUNCH_PARAM_BUFFER_SIZE)
			*size = *(size_t *)extra[i + 1];
		else
			return CUDA_ERROR_INVALID_VALUE;
	}
	return *buffer || !*size ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* Where parameter k stands, or NULL. */
static const void *param_at(const struct sim_kernel_image *kernel, const struct sim_launch *launch,
                            const unsigned char *buffer, size_t size, unsigned k)
{
	if (k >= kernel->nparams)
		return NULL;
	if (launch->params)
		return launch->params[k];
	const struct sim_param *param = &kernel->params[k];
	return buffer && param->offset + (size_t)param->size <= size ? buffer + param->offset : NULL;
}

static uint64_t duration_ns(const struct sim_function *function, const struct sim_launch *launch, unsigned sms,
                            const unsigned char *buffer, size_t size)
{
	const struct sim_cost *cost = function->cost;
	if (!cost)
		return 0;
	const struct sim_device_model *model = &sim_machine->model[function->module->context->device];
	uint64_t blocks = (uint64_t)launch->grid[0] * launch->grid[1] * launch->grid[2];
	uint64_t wave = (uint64_t)(sms ? sms : model->sms) * model->blocks_per_sm;
	uint64_t ns = cost->fixed_ns + (wave ? (blocks + wave - 1) / wave : 1) * cost->wave_ns;
	const void *argument = cost->duration_arg < 0
	                               ? NULL
	                               : param_at(function->image, launch, buffer, size, (unsigned)cost->duration_arg);
	if (argument && function->image->params[cost->duration_arg].size >= sizeof(uint64_t)) {
		uint64_t wide;
		memcpy(&wide, argument, sizeof(wide));
		ns += wide;
	} else if (argument && function->image->params[cost->duration_arg].size == sizeof(uint32_t)) {
		uint32_t narrow;
		memcpy(&narrow, argument, sizeof(narrow));
		ns += narrow;
	}
	return ns;
}

static CUresult check_block(const struct sim_function *function, const struct sim_launch *launch)
{
	uint64_t threads = (uint64_t)launch->block[0] * launch->block[1] * launch->block[2];
	if (!threads || launch->block[0] > MAX_BLOCK_THREADS || launch->block[1] > MAX_BLOCK_THREADS ||
	    launch->block[2] > MAX_BLOCK_Z || threads > MAX_BLOCK_THREADS)
		return CUDA_ERROR_INVALID_VALUE;
	CUresult error;
	int device = function->module->context->device;
	int most = sim_kernel_attribute(&function->module->image, function->image, function->settings, device,
	                                CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, &error);
	if (threads > (unsigned)most) /* launch bounds are promises, registers are limits */
		return function->image->max_threads && threads > function->image->max_threads
		               ? CUDA_ERROR_INVALID_VALUE
			       : CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
	if (!launch->shared)
		return CUDA_SUCCESS;
	int dynamic = sim_kernel_attribute(&function->module->image, function->image, function->settings, device,
	                                   CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, &error);
	return launch->shared > (unsigned)dynamic ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

static CUresult check_cluster(const struct sim_function *function, const struct sim_launch *launch)
{
	const unsigned *cluster = launch->cluster[0] ? launch->cluster : function->image->cluster;
	if (!cluster[0])
		return CUDA_SUCCESS;
	if (sim_machine->model[function->module->context->device].cc_major < 9)
		return CUDA_ERROR_NOT_SUPPORTED;
	CUresult error;
	int big = sim_kernel_attribute(&function->module->image, function->image, function->settings,
	                               function->module->context->device,
	                               CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, &error);
	uint64_t size = (uint64_t)cluster[0] * cluster[1] * cluster[2];
	if (!size || size > (big ? 16u : 8u))
		return CUDA_ERROR_INVALID_CLUSTER_SIZE;
	for (int i = 0; i < 3; i++)
		if (launch->grid[i] % cluster[i])
			return CUDA_ERROR_INVALID_VALUE;
	return CUDA_SUCCESS;
}

static CUresult check(const struct sim_function *function, const struct sim_launch *launch, unsigned sms,
                      const unsigned char *buffer)
{
	const unsigned *grid = launch->grid;
	if (!grid[0] || !grid[1] || !grid[2] || grid[0] > MAX_GRID_X || grid[1] > MAX_GRID_YZ || grid[2] > MAX_GRID_YZ)
		return CUDA_ERROR_INVALID_VALUE;
	if ((launch->params && buffer) || (function->image->nparams && !launch->params && !buffer))
		return CUDA_ERROR_INVALID_VALUE;
	CUresult error = check_block(function, launch);
	if (error == CUDA_SUCCESS)
		error = check_cluster(function, launch);
	if (error != CUDA_SUCCESS || !launch->cooperative)
		return error;
	unsigned threads = launch->block[0] * launch->block[1] * launch->block[2];
	uint64_t room = (uint64_t)sim_blocks_per_sm(function, threads, launch->shared) *
	                (sms ? sms : sim_machine->model[function->module->context->device].sms);
	return (uint64_t)grid[0] * grid[1] * grid[2] > room ? CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE : CUDA_SUCCESS;
}

CUresult sim_launch_cost(const struct sim_function *function, const struct sim_launch *launch, unsigned sms,
                         uint64_t *device_ns)
{
	const unsigned char *buffer;
	size_t size;
	CUresult error = extra_buffer(launch->extra, &buffer, &size);
	if (error == CUDA_SUCCESS)
		error = check(function, launch, sms, buffer);
	if (error == CUDA_SUCCESS)
		*device_ns = duration_ns(function, launch, sms, buffer, size);
	return error;
}

CUresult sim_launch(struct sim_function *function, struct sim_stream *stream, const struct sim_launch *launch)
{
	struct sim_item item;
	if (sim_stream_capturing(stream))
		return sim_capture_launch(stream, function, launch);
	memset(&item, 0, offsetof(struct sim_item, work.arg)); /* there is no argument, and it is large */
	item.kind = SIM_ITEM_WORK;
	item.meeting = function->meeting;
	unsigned sms = stream->green ? sim_green_sms(stream->green) : 0;
	CUresult error = sim_launch_cost(function, launch, sms, &item.work.device_ns);
	return error == CUDA_SUCCESS ? sim_engine_submit(stream, &item, false) : error;
}

struct sim_function *sim_launch_target(CUfunction f, CUstream handle, struct sim_stream **stream, CUresult *error)
{
	struct sim_context *context;
	*error = sim_require(&context);
	if (*error != CUDA_SUCCESS)
		return NULL;
	*stream = sim_stream_of(handle, error);
	return *stream ? sim_function_of(f, (*stream)->context, error) : NULL;
}

/* ---- entry points ------------------------------------------------------------------------------------------------ */

CUresult sim_cuLaunchKernel(CUfunction f, unsigned int gridDimX, unsigned int gridDimY, unsigned int gridDimZ,
                            unsigned int blockDimX, unsigned int blockDimY, unsigned int blockDimZ,
                            unsigned int sharedMemBytes, CUstream hStream, void **kernelParams, void **extra)
{
	CUresult error;
	struct sim_stream *stream;
	struct sim_function *function = sim_launch_target(f, hStream, &stream, &error);
	if (!function)
		return error;
	struct sim_launch launch = {.grid = {gridDimX, gridDimY, gridDimZ},
	                            .block = {blockDimX, blockDimY, blockDimZ},
	                            .shared = sharedMemBytes,
	                            .params = kernelParams,
	                            .extra = extra};
	return sim_launch(function, stream, &launch);
}

CUresult sim_cuLaunchCooperativeKernel(CUfunction f, unsigned int gridDimX, unsigned int gridDimY,
                                       unsigned int gridDimZ, unsigned int blockDimX, unsigned int blockDimY,
                                       unsigned int blockDimZ, unsigned int sharedMemBytes, CUstream hStream,
                                       void **kernelParams)
{
	CUresult error;
	struct sim_stream *stream;
	struct sim_function *function = sim_launch_target(f, hStream, &stream, &error);
	if (!function)
		return error;
	struct sim_launch launch = {.grid = {gridDimX, gridDimY, gridDimZ},
	                            .block = {blockDimX, blockDimY, blockDimZ},
	                            .shared = sharedMemBytes,
	                            .params = kernelParams,
	                            .cooperative = true};
	return sim_launch(function, stream, &launch);
}

static CUresult read_attributes(const CUlaunchConfig *config, struct sim_launch *launch)
{
	if (config->numAttrs && !config->attrs)
		return CUDA_ERROR_INVALID_VALUE;
	for (unsigned i = 0; i < config->numAttrs; i++) {
		const CUlaunchAttribute *attribute = &config->attrs[i];
		if ((unsigned)attribute->id >= CU_LAUNCH_ATTRIBUTE_MAX)
			return CUDA_ERROR_INVALID_VALUE;
		if (attribute->id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE) {
			launch->cooperative = attribute->value.cooperative != 0;
		} else if (attribute->id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION) {
			launch->cluster[0] = attribute->value.clusterDim.x;
			launch->cluster[1] = attribute->value.clusterDim.y;
			launch->cluster[2] = attribute->value.clusterDim.z;
			if (!launch->cluster[0])
				return CUDA_ERROR_INVALID_CLUSTER_SIZE;
		}
	}
	return CUDA_SUCCESS;
}

/* Events that a kernel triggers by itself are recorded after it. */
static CUresult record_events(const CUlaunchConfig *config)
{
	CUresult error = CUDA_SUCCESS;
	for (unsigned i = 0; i < config->numAttrs && error == CUDA_SUCCESS; i++) {
		const CUlaunchAttribute *attribute = &config->attrs[i];
		if (attribute->id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT)
			error = sim_cuEventRecord(attribute->value.programmaticEvent.event, config->hStream);
		else if (attribute->id == CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT)
			error = sim_cuEventRecord(attribute->value.launchCompletionEvent.event, config->hStream);
	}
	return error;
}

CUresult sim_cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction f, void **kernelParams, void **extra)
{
	CUresult error;
	struct sim_stream *stream;
	if (!config)
		return CUDA_ERROR_INVALID_VALUE;
	struct sim_function *function = sim_launch_target(f, config->hStream, &stream, &error);
	if (!function)
		return error;
	struct sim_launch launch = {.grid = {config->gridDimX, config->gridDimY, config->gridDimZ},
	                            .block = {config->blockDimX, config->blockDimY, config->blockDimZ},
	                            .shared = config->sharedMemBytes,
	                            .params = kernelParams,
	                            .extra = extra};
	error = read_attributes(config, &launch);
	if (error == CUDA_SUCCESS)
		error = sim_launch(function, stream, &launch);
	return error == CUDA_SUCCESS ? record_events(config) : error;
}
