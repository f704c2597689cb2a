/* rdma.c: cuFlushGPUDirectRDMAWrites. No network card writes into a simulated device: there is never anything to wait for. */
#include "sim.h"
#include "sim_impl.h"

CUresult sim_cuFlushGPUDirectRDMAWrites(CUflushGPUDirectRDMAWritesTarget target, CUflushGPUDirectRDMAWritesScope scope)
{
	struct sim_context *context;
	CUresult result = sim_require(&context);
	if (result != CUDA_SUCCESS)
		return result;
	if (target != CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX ||
	    (scope != CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER &&
	     scope != CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_ALL_DEVICES))
		return CUDA_ERROR_INVALID_VALUE;
	return CUDA_SUCCESS;
}
