/* profiling.c: cuProfilerStart and cuProfilerStop of the simulated driver.
 *
 * Called by programs that mark what a profiler is to look at. No profiler looks at a simulated device, so there is
 * nothing to switch; the calls need a current context, as on hardware.
 */
#include "sim.h"
#include "sim_impl.h"

CUresult sim_cuProfilerStart(void)
{
	return sim_current() ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult sim_cuProfilerStop(void)
{
	return sim_current() ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}
