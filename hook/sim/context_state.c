/* context_state.c: what a context tells about itself, its limits and preferences, its peers, and waiting for it.
 *
 * Called by programs; context.c calls sim_limits_init() for each new context. No limit changes anything in the
 * simulator: kernels do not run. A value that the real driver would clamp is kept as it was given.
 */
#include <pthread.h>
#include <string.h>

#include "capture.h"
#include "context.h"
#include "sim_impl.h"
#include "visible.h"

#define LIMIT_PRINTF_FIFO UINT64_C(1048576)
#define LIMIT_HEAP        UINT64_C(8388608)
#define PRIORITY_GREATEST (-5)

static pthread_mutex_t peer_mutex = PTHREAD_MUTEX_INITIALIZER;

void sim_limits_init(struct sim_context *context)
{
	memset(context->limit, 0, sizeof context->limit);
	context->limit[CU_LIMIT_STACK_SIZE] = 1024;
	context->limit[CU_LIMIT_PRINTF_FIFO_SIZE] = LIMIT_PRINTF_FIFO;
	context->limit[CU_LIMIT_MALLOC_HEAP_SIZE] = LIMIT_HEAP;
	context->limit[CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH] = 2;
	context->limit[CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT] = 2048;
	context->limit[CU_LIMIT_MAX_L2_FETCH_GRANULARITY] = 64;
	context->cache_config = CU_FUNC_CACHE_PREFER_NONE;
	context->shared_config = CU_SHARED_MEM_CONFIG_FOUR_BYTE_BANK_SIZE;
	context->peers = 0;
}

/* The current context, for a call that has a place to answer to. */
static CUresult require_for(const void *out, struct sim_context **context)
{
	CUresult result = sim_require(context);

	return result == CUDA_SUCCESS && !out ? CUDA_ERROR_INVALID_VALUE : result;
}

/* A live context by its handle, or the current one, for a call that has a place to answer to. */
static CUresult find_for(const void *out, CUcontext handle, struct sim_context **context)
{
	if (!sim_initialized())
		return CUDA_ERROR_NOT_INITIALIZED;
	*context = sim_context_of(handle);
	if (!*context)
		return CUDA_ERROR_INVALID_CONTEXT;
	return out ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static size_t limit_count(void)
{
	return sizeof((struct sim_context){0}.limit) / sizeof(uint64_t);
}

CUresult sim_cuCtxSetLimit(CUlimit limit, size_t value)
{
	struct sim_context *context;
	CUresult result = sim_require(&context);

	if (result != CUDA_SUCCESS)
		return result;
	if ((size_t)limit >= limit_count())
		return (unsigned)limit < CU_LIMIT_MAX ? CUDA_ERROR_UNSUPPORTED_LIMIT : CUDA_ERROR_INVALID_VALUE;
	context->limit[limit] = value;
	return CUDA_SUCCESS;
}

CUresult sim_cuCtxGetLimit(size_t *value, CUlimit limit)
{
	struct sim_context *context;
	CUresult result = sim_require(&context);

	if (result != CUDA_SUCCESS)
		return result;
	if (!value)
		return CUDA_ERROR_INVALID_VALUE;
	if ((size_t)limit >= limit_count())
		return (unsigned)limit < CU_LIMIT_MAX ? CUDA_ERROR_UNSUPPORTED_LIMIT : CUDA_ERROR_INVALID_VALUE;
	*value = context->limit[limit];
	return CUDA_SUCCESS;
}

CUresult sim_cuCtxGetDevice(CUdevice *device)
{
	struct sim_context *context;
	CUresult result = require_for(device, &context);

	if (result != CUDA_SUCCESS)
		return result;
	*device = context->ordinal;
	return CUDA_SUCCESS;
}

CUresult sim_cuCtxGetDevice_v2(CUdevice *device, CUcontext handle)
{
	if (!handle)
		return sim_cuCtxGetDevice(device);
	struct sim_context *context = sim_context_of(handle);
	if (!context)
		return CUDA_ERROR_INVALID_CONTEXT;
	if (!device)
		return CUDA_ERROR_INVALID_VALUE;
	*device = context->ordinal;
	return CUDA_SUCCESS;
}

CUresult sim_cuCtxGetFlags(unsigned int *flags)
{
	struct sim_context *context;
	CUresult result = require_for(flags, &context);

	if (result != CUDA_SUCCESS)
		return result;
	*flags = context->flags | CU_CTX_MAP_HOST;
	return CUDA_SUCCESS;
}

CUresult sim_cuCtxSetFlags(unsigned int flags)
{
	struct sim_context *context;
	CUresult result = sim_require(&context);

	if (result != CUDA_SUCCESS)
		return result;
	if (!sim_context_flags_valid(flags))
		return CUDA_ERROR_INVALID_VALUE;
	context->flags = flags;
	return CUDA_SUCCESS;
}

CUresult sim_cuCtxGetId(CUcontext handle, unsigned long long *id)
{
	struct sim_context *context;
	CUresult result = find_for(id, handle, &context);

	if (result != CUDA_SUCCESS)
		return result;
	*id = context->id;
	return CUDA_SUCCESS;
}

CUresult sim_cuCtxGetApiVersion(CUcontext handle, unsigned int *version)
{
	struct sim_context *context;
	CUresult result = find_for(version, handle, &context);

	if (result != CUDA_SUCCESS)
		return result;
	*version = context->api_version;
	return CUDA_SUCCESS;
}

CUresult sim_cuCtxGetCacheConfig(CUfunc_cache *config)
{
	struct sim_context *context;
	CUresult result = require_for(config, &context);

	if (result != CUDA_SUCCESS)
		return result;
	*config = context->cache_config;
	return CUDA_SUCCESS;
}

CUresult sim_cuCtxSetCacheConfig(CUfunc_cache config)
{
	struct sim_context *context;
	CUresult result = sim_require(&context);

	if (result != CUDA_SUCCESS)
		return result;
	if ((unsigned)config > CU_FUNC_CACHE_PREFER_EQUAL)
		return CUDA_ERROR_INVALID_VALUE;
	context->cache_config = config;
	return CUDA_SUCCESS;
}

CUresult sim_cuCtxGetSharedMemConfig(CUsharedconfig *config)
{
	struct sim_context *context;
	CUresult result = require_for(config, &context);

	if (result != CUDA_SUCCESS)
		return result;
	*config = context->shared_config;
	return CUDA_SUCCESS;
}

CUresult sim_cuCtxSetSharedMemConfig(CUsharedconfig config)
{
	struct sim_context *context;
	CUresult result = sim_require(&context);

	if (result != CUDA_SUCCESS)
		return result;
	if ((unsigned)config > CU_SHARED_MEM_CONFIG_EIGHT_BYTE_BANK_SIZE)
		return CUDA_ERROR_INVALID_VALUE;
	return CUDA_SUCCESS; /* banks have been four bytes wide, whatever is asked, since Maxwell */
}

CUresult sim_cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
	struct sim_context *context;
	CUresult result = sim_require(&context);

	if (result != CUDA_SUCCESS)
		return result;
	if (least)
		*least = 0;
	if (greatest)
		*greatest = PRIORITY_GREATEST;
	return CUDA_SUCCESS;
}

CUresult sim_cuCtxResetPersistingL2Cache(void)
{
	struct sim_context *context;

	return sim_require(&context);
}

CUresult sim_cuCtxGetExecAffinity(CUexecAffinityParam *param, CUexecAffinityType type)
{
	struct sim_context *context;
	CUresult result = sim_require(&context);

	if (result != CUDA_SUCCESS)
		return result;
	return param && type == CU_EXEC_AFFINITY_TYPE_SM_COUNT ? CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY
	                                                       : CUDA_ERROR_INVALID_VALUE;
}

CUresult sim_cuCtxSynchronize(void)
{
	struct sim_context *context;
	CUresult result = sim_require(&context);

	if (result == CUDA_SUCCESS)
		result = sim_capture_forbids_context(context);
	return result == CUDA_SUCCESS ? sim_context_wait(context) : result;
}

CUresult sim_cuCtxSynchronize_v2(CUcontext handle)
{
	if (!handle)
		return sim_cuCtxSynchronize();
	if (!sim_initialized())
		return CUDA_ERROR_NOT_INITIALIZED;
	struct sim_context *context = sim_context_of(handle);
	CUresult result = context ? sim_capture_forbids_context(context) : CUDA_ERROR_INVALID_CONTEXT;
	return result == CUDA_SUCCESS ? sim_context_wait(context) : result;
}

/* ---- peers ------------------------------------------------------------------------------------------------------ */

static CUresult peer_of(CUcontext handle, struct sim_context **own, struct sim_context **peer)
{
	CUresult result = sim_require(own);

	if (result != CUDA_SUCCESS)
		return result;
	*peer = handle ? sim_context_of(handle) : NULL;
	return *peer ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult sim_cuCtxEnablePeerAccess(CUcontext handle, unsigned int flags)
{
	struct sim_context *own, *peer;
	CUresult result = peer_of(handle, &own, &peer);

	if (result != CUDA_SUCCESS)
		return result;
	if (flags)
		return CUDA_ERROR_INVALID_VALUE;
	if (own->device == peer->device)
		return CUDA_ERROR_INVALID_DEVICE;
	if (!sim_devices_peer(own->device, peer->device))
		return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
	pthread_mutex_lock(&peer_mutex);
	if (own->peers & 1u << peer->device)
		result = CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
	own->peers |= 1u << peer->device;
	pthread_mutex_unlock(&peer_mutex);
	return result;
}

CUresult sim_cuCtxDisablePeerAccess(CUcontext handle)
{
	struct sim_context *own, *peer;
	CUresult result = peer_of(handle, &own, &peer);

	if (result != CUDA_SUCCESS)
		return result;
	pthread_mutex_lock(&peer_mutex);
	if (!(own->peers & 1u << peer->device))
		result = CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
	own->peers &= ~(1u << peer->device);
	pthread_mutex_unlock(&peer_mutex);
	return result;
}
