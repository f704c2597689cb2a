/* occupancy.c: how many blocks of a function fit on a multiprocessor, and what follows from it.
 *
 * The least of four bounds: blocks, threads, shared memory and registers of a multiprocessor. Called through the entry
 * layer and by launch.c for cooperative launches.
 */
#include "module.h"
#include "sim_impl.h"

#define REGISTERS_PER_SM 65536

static const struct sim_device_model *model_of(const struct sim_function *function)
{
	return &sim_machine->model[function->module->context->device];
}

/* Shared memory that one block takes, with what the system reserves per block. */
static size_t shared_of(const struct sim_function *function, size_t dynamic)
{
	int device = function->module->context->device;
	int reserved = sim_shared_limit(device, CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK);
	return function->image->shared + dynamic + (size_t)reserved;
}

static int attribute(const struct sim_function *function, CUfunction_attribute which)
{
	CUresult error;
	return sim_kernel_attribute(&function->module->image, function->image, function->settings,
	                            function->module->context->device, which, &error);
}

unsigned sim_blocks_per_sm(const struct sim_function *function, unsigned threads, size_t dynamic_shared)
{
	const struct sim_device_model *model = model_of(function);
	if (!threads || threads > (unsigned)attribute(function, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK))
		return 0;
	unsigned warps = (threads + 31) / 32;
	size_t blocks = model->blocks_per_sm;
	size_t other = model->threads_per_sm / (warps * 32);
	blocks = other < blocks ? other : blocks;
	unsigned registers = function->image->registers ? function->image->registers : 1;
	other = REGISTERS_PER_SM / ((size_t)(registers + 7) / 8 * 8 * 32 * warps);
	blocks = other < blocks ? other : blocks;
	size_t shared = shared_of(function, dynamic_shared);
	int device = function->module->context->device;
	size_t room = (size_t)sim_shared_limit(device, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR);
	if (shared && room / shared < blocks)
		blocks = room / shared;
	return (unsigned)blocks;
}

static struct sim_function *function_of(CUfunction handle, CUresult *error)
{
	struct sim_context *context;
	*error = sim_require(&context);
	return *error == CUDA_SUCCESS ? sim_function_of(handle, context, error) : NULL;
}

CUresult sim_cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *numBlocks, CUfunction func, int blockSize,
                                                                  size_t dynamicSMemSize, unsigned int flags)
{
	CUresult error;
	struct sim_function *function = function_of(func, &error);
	if (!function)
		return error;
	if (!numBlocks || blockSize <= 0 || (flags & ~(unsigned)CU_OCCUPANCY_DISABLE_CACHING_OVERRIDE))
		return CUDA_ERROR_INVALID_VALUE;
	*numBlocks = (int)sim_blocks_per_sm(function, (unsigned)blockSize, dynamicSMemSize);
	return CUDA_SUCCESS;
}

CUresult sim_cuOccupancyMaxActiveBlocksPerMultiprocessor(int *numBlocks, CUfunction func, int blockSize,
                                                         size_t dynamicSMemSize)
{
	return sim_cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(numBlocks, func, blockSize, dynamicSMemSize, 0);
}

/* The block size with most resident threads, the largest of equals; then the grid that fills the device. */
CUresult sim_cuOccupancyMaxPotentialBlockSizeWithFlags(int *minGridSize, int *blockSize, CUfunction func,
                                                       CUoccupancyB2DSize blockSizeToDynamicSMemSize,
                                                       size_t dynamicSMemSize, int blockSizeLimit, unsigned int flags)
{
	CUresult error;
	struct sim_function *function = function_of(func, &error);
	if (!function)
		return error;
	if (!minGridSize || !blockSize || blockSizeLimit < 0 ||
	    (flags & ~(unsigned)CU_OCCUPANCY_DISABLE_CACHING_OVERRIDE))
		return CUDA_ERROR_INVALID_VALUE;
	int limit = attribute(function, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
	if (blockSizeLimit && blockSizeLimit < limit)
		limit = blockSizeLimit;
	unsigned best = 0, best_blocks = 0;
	for (int threads = limit; threads > 0; threads = (threads - 1) / 32 * 32) {
		size_t shared = blockSizeToDynamicSMemSize ? blockSizeToDynamicSMemSize(threads) : dynamicSMemSize;
		unsigned blocks = sim_blocks_per_sm(function, (unsigned)threads, shared);
		if (blocks * (unsigned)threads > best_blocks * best) {
			best = (unsigned)threads;
			best_blocks = blocks;
		}
	}
	*blockSize = (int)best;
	*minGridSize = (int)(best_blocks * model_of(function)->sms);
	return CUDA_SUCCESS;
}

CUresult sim_cuOccupancyMaxPotentialBlockSize(int *minGridSize, int *blockSize, CUfunction func,
                                              CUoccupancyB2DSize blockSizeToDynamicSMemSize, size_t dynamicSMemSize,
                                              int blockSizeLimit)
{
	return sim_cuOccupancyMaxPotentialBlockSizeWithFlags(minGridSize, blockSize, func, blockSizeToDynamicSMemSize,
	                                                     dynamicSMemSize, blockSizeLimit, 0);
}

CUresult sim_cuOccupancyAvailableDynamicSMemPerBlock(size_t *dynamicSmemSize, CUfunction func, int numBlocks,
                                                     int blockSize)
{
	CUresult error;
	struct sim_function *function = function_of(func, &error);
	if (!function)
		return error;
	if (!dynamicSmemSize || numBlocks <= 0 || blockSize <= 0 ||
	    sim_blocks_per_sm(function, (unsigned)blockSize, 0) < (unsigned)numBlocks)
		return CUDA_ERROR_INVALID_VALUE;
	int device = function->module->context->device;
	size_t room = (size_t)sim_shared_limit(device, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR);
	size_t most = (size_t)sim_shared_limit(device, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
	size_t each = room / (size_t)numBlocks, own = shared_of(function, 0);
	each = each > own ? each - own : 0;
	most = most > function->image->shared ? most - function->image->shared : 0;
	*dynamicSmemSize = each < most ? each : most;
	return CUDA_SUCCESS;
}

static CUresult check_clusters(const struct sim_function *function, const CUlaunchConfig *config)
{
	if (!config)
		return CUDA_ERROR_INVALID_VALUE;
	return model_of(function)->cc_major >= 9 ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
}

CUresult sim_cuOccupancyMaxPotentialClusterSize(int *clusterSize, CUfunction func, const CUlaunchConfig *config)
{
	CUresult error;
	struct sim_function *function = function_of(func, &error);
	if (!function)
		return error;
	if (!clusterSize || (error = check_clusters(function, config)) != CUDA_SUCCESS)
		return clusterSize ? error : CUDA_ERROR_INVALID_VALUE;
	*clusterSize = attribute(function, CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED) ? 16 : 8;
	return CUDA_SUCCESS;
}

CUresult sim_cuOccupancyMaxActiveClusters(int *numClusters, CUfunction func, const CUlaunchConfig *config)
{
	CUresult error;
	struct sim_function *function = function_of(func, &error);
	if (!function)
		return error;
	if (!numClusters || (error = check_clusters(function, config)) != CUDA_SUCCESS)
		return numClusters ? error : CUDA_ERROR_INVALID_VALUE;
	unsigned size = 1;
	for (unsigned i = 0; i < config->numAttrs; i++)
		if (config->attrs[i].id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION)
			size = config->attrs[i].value.clusterDim.x * config->attrs[i].value.clusterDim.y *
			       config->attrs[i].value.clusterDim.z;
	if (!size || size > 16)
		return CUDA_ERROR_INVALID_CLUSTER_SIZE;
	unsigned threads = config->blockDimX * config->blockDimY * config->blockDimZ;
	*numClusters =
	        (int)(sim_blocks_per_sm(function, threads, config->sharedMemBytes) * model_of(function)->sms / size);
	return CUDA_SUCCESS;
}
