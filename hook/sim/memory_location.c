/* memory_location.c: where managed memory lies: cuMemGetLocationInfo.
 *
 * Called by programs. A managed block lies where it was last prefetched to, else on the device that it was made for, all
 * of it: pages do not move by being touched here. Other memory has no such answer (CUDA_ERROR_INVALID_VALUE): pageable
 * host memory could be reached only by a device that says so, and none does.
 */
#include "sim.h"
#include "sim_impl.h"

/* The whole block lies in one place, so any byte of a region stands for it. */
static CUresult location_of(CUdeviceptr p, size_t n, CUmemLocation *location)
{
	int prefetched = CU_DEVICE_INVALID, managed = 0, device = -1;
	CUresult result = sim_cuPointerGetAttribute(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, p);
	if (result != CUDA_SUCCESS || !(managed & 0xff))
		return CUDA_ERROR_INVALID_VALUE;
	result = sim_cuMemRangeGetAttribute(&prefetched, sizeof(prefetched),
	                                    CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION, p, n);
	if (result == CUDA_SUCCESS && prefetched == CU_DEVICE_INVALID)
		result = sim_cuPointerGetAttribute(&device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, p);
	else
		device = prefetched;
	if (result != CUDA_SUCCESS)
		return CUDA_ERROR_INVALID_VALUE;
	*location = (CUmemLocation){.type = CU_MEM_LOCATION_TYPE_HOST};
	if (device >= 0)
		*location = (CUmemLocation){.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device};
	return CUDA_SUCCESS;
}

CUresult sim_cuMemGetLocationInfo(CUdeviceptr ptr, size_t size, size_t summaryGranularity, size_t samplingGranularity,
                                  CUmemLocation *location_out)
{
	CUmemLocation location;
	if (!sim_initialized())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!location_out || !summaryGranularity || summaryGranularity > size ||
	    samplingGranularity > summaryGranularity)
		return CUDA_ERROR_INVALID_VALUE;
	for (size_t at = 0; at < size; at += summaryGranularity) {
		size_t n = size - at < summaryGranularity ? size - at : summaryGranularity;
		CUresult result = location_of(ptr + at, n, &location);
		if (result != CUDA_SUCCESS)
			return result;
	}
	for (size_t i = 0; i * summaryGranularity < size; i++)
		location_of(ptr + i * summaryGranularity, 1, &location_out[i]);
	return CUDA_SUCCESS;
}
