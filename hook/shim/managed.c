/* managed.c: managed memory on several devices: what it is charged on, and the calls that send it to a device:
 * cuMemPrefetch*, cuMemDiscardAndPrefetchBatchAsync, cuMemAdvise.
 *
 * The driver moves managed memory to whichever device touches it, and nobody can refuse then. So all managed memory of
 * this process is charged in full on every device that the process may use it from: those on which it has made a context
 * or to which it has sent some. Such a device stays *joined* until the process ends.
 * Called by blocks.c and mem.c with every managed block, by ctx.c before a context is made.
 * What can go wrong: what there is already does not fit on a device that joins: CUDA_ERROR_OUT_OF_MEMORY for the call.
 */
#include "hooks.h"
#include "memory.h"

#define MOST_LOCATIONS ((size_t)1 << 20) /* of a batch; more is a wrong count, and is not read through */

static uint32_t lock; /* process-private, never held across a driver call */
static uint64_t joined; /* a bit for each device */
static uint64_t total; /* bytes charged on each of them */

static bool has_joined(CUdevice device)
{
	return __atomic_load_n(&joined, __ATOMIC_ACQUIRE) >> device & 1;
}

/* With the lock held: on all of `devices`, or on none. `full` is the device that had no room. */
static CUresult reserve_on(uint64_t devices, uint64_t bytes, CUdevice *full)
{
	for (CUdevice d = 0; d < VGPU_ORDINALS; d++) {
		CUresult error = devices >> d & 1 ? vgpu_reserve(d, bytes) : CUDA_SUCCESS;
		if (error == CUDA_SUCCESS)
			continue;
		*full = d;
		while (d-- > 0)
			if (devices >> d & 1)
				vgpu_give_back(d, bytes);
		return error;
	}
	return CUDA_SUCCESS;
}

static CUresult try_join(CUdevice device)
{
	CUdevice full;
	vgpu_lock(&lock);
	CUresult error = has_joined(device) ? CUDA_SUCCESS : reserve_on(UINT64_C(1) << device, total, &full);
	if (error == CUDA_SUCCESS)
		__atomic_fetch_or(&joined, UINT64_C(1) << device, __ATOMIC_RELEASE);
	vgpu_unlock(&lock);
	return error;
}

CUresult vgpu_managed_join(CUdevice device)
{
	/* One that does not exist is the driver's to refuse; joined, it would have no room for any block that follows. */
	if (device < 0 || device >= VGPU_ORDINALS || has_joined(device) || vgpu_no_such_device(device))
		return CUDA_SUCCESS;
	CUresult error = try_join(device);
	return error == CUDA_ERROR_OUT_OF_MEMORY && vgpu_reclaim(device) ? try_join(device) : error;
}

static CUresult try_reserve(uint64_t bytes, CUdevice *full)
{
	vgpu_lock(&lock);
	CUresult error = reserve_on(joined, bytes, full);
	if (error == CUDA_SUCCESS)
		total += bytes;
	vgpu_unlock(&lock);
	return error;
}

CUresult vgpu_managed_reserve(CUdevice device, uint64_t bytes)
{
	CUdevice full = -1, before;
	CUresult error = vgpu_managed_join(device);
	if (error != CUDA_SUCCESS)
		return error;
	/* Each device may have something to give way, one after the other. */
	do {
		before = full;
		error = try_reserve(bytes, &full);
	} while (error == CUDA_ERROR_OUT_OF_MEMORY && full > before && vgpu_reclaim(full));
	return error;
}

void vgpu_managed_charge(uint64_t bytes)
{
	vgpu_lock(&lock);
	for (CUdevice d = 0; d < VGPU_ORDINALS; d++)
		if (joined >> d & 1)
			vgpu_charge(d, bytes);
	total += bytes;
	vgpu_unlock(&lock);
}

void vgpu_managed_give_back(uint64_t bytes)
{
	vgpu_lock(&lock);
	total -= bytes;
	for (CUdevice d = 0; d < VGPU_ORDINALS; d++)
		if (joined >> d & 1)
			vgpu_give_back(d, bytes);
	vgpu_unlock(&lock);
}

void vgpu_managed_forked(void)
{
	lock = 0;
	joined = total = 0;
}

/* ---- calls that send memory to a device -------------------------------------------------------------------------- */

static CUresult send_to(CUdevice device)
{
	if (device < 0 || vgpu_mode() == VGPU_FREE)
		return CUDA_SUCCESS;
	if (vgpu_hidden(device))
		return CUDA_ERROR_INVALID_DEVICE;
	return vgpu_managed_join(device);
}

static CUresult send_to_location(const CUmemLocation *location)
{
	if (location->type == CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN) /* a part of its memory */
		return send_to(location->localized.deviceId);
	return location->type == CU_MEM_LOCATION_TYPE_DEVICE ? send_to(location->id) : CUDA_SUCCESS;
}

static CUresult send_to_locations(const CUmemLocation *location, size_t count)
{
	int devices;
	if (location == NULL || vgpu_mode() == VGPU_FREE || real_cuDeviceGetCount(&devices) != CUDA_SUCCESS)
		return CUDA_SUCCESS;
	if (count > MOST_LOCATIONS)
		return CUDA_ERROR_NOT_SUPPORTED;
	for (size_t i = 0; i < count; i++) {
		CUresult error = send_to_location(&location[i]);
		if (error != CUDA_SUCCESS)
			return error;
	}
	return CUDA_SUCCESS;
}

CUresult hook_cuMemAdvise(CUdeviceptr devPtr, size_t count, CUmem_advise advice, CUdevice device)
{
	CUresult error = send_to(device);
	return error == CUDA_SUCCESS ? real_cuMemAdvise(devPtr, count, advice, device) : error;
}

CUresult hook_cuMemAdvise_v2(CUdeviceptr devPtr, size_t count, CUmem_advise advice, CUmemLocation location)
{
	CUresult error = send_to_location(&location);
	return error == CUDA_SUCCESS ? real_cuMemAdvise_v2(devPtr, count, advice, location) : error;
}

CUresult hook_cuMemPrefetchAsync(CUdeviceptr devPtr, size_t count, CUdevice dstDevice, CUstream hStream)
{
	CUresult error = send_to(dstDevice);
	return error == CUDA_SUCCESS ? real_cuMemPrefetchAsync(devPtr, count, dstDevice, hStream) : error;
}

CUresult hook_cuMemPrefetchAsync_ptsz(CUdeviceptr devPtr, size_t count, CUdevice dstDevice, CUstream hStream)
{
	CUresult error = send_to(dstDevice);
	return error == CUDA_SUCCESS ? real_cuMemPrefetchAsync_ptsz(devPtr, count, dstDevice, hStream) : error;
}

CUresult hook_cuMemPrefetchAsync_v2(CUdeviceptr devPtr, size_t count, CUmemLocation location, unsigned int flags,
                                    CUstream hStream)
{
	CUresult error = send_to_location(&location);
	return error == CUDA_SUCCESS ? real_cuMemPrefetchAsync_v2(devPtr, count, location, flags, hStream) : error;
}

CUresult hook_cuMemPrefetchAsync_v2_ptsz(CUdeviceptr devPtr, size_t count, CUmemLocation location, unsigned int flags,
                                         CUstream hStream)
{
	CUresult error = send_to_location(&location);
	return error == CUDA_SUCCESS ? real_cuMemPrefetchAsync_v2_ptsz(devPtr, count, location, flags, hStream) : error;
}

#define BATCH(name)                                                                                                    \
	CUresult hook_##name(CUdeviceptr *dptrs, size_t *sizes, size_t count, CUmemLocation *prefetchLocs,             \
	                     size_t *prefetchLocIdxs, size_t numPrefetchLocs, unsigned long long flags,                \
	                     CUstream hStream)                                                                         \
	{                                                                                                              \
		CUresult error = send_to_locations(prefetchLocs, numPrefetchLocs);                                     \
		if (error == CUDA_ERROR_NOT_SUPPORTED && vgpu_stream_refused(hStream))                                 \
			error = CUDA_SUCCESS; /* the driver's own refusal is due */                                    \
		return error == CUDA_SUCCESS ? real_##name(dptrs, sizes, count, prefetchLocs, prefetchLocIdxs,         \
		                                           numPrefetchLocs, flags, hStream)                            \
		                             : error;                                                                  \
	}

BATCH(cuMemPrefetchBatchAsync)
BATCH(cuMemPrefetchBatchAsync_ptsz)
BATCH(cuMemDiscardAndPrefetchBatchAsync)
BATCH(cuMemDiscardAndPrefetchBatchAsync_ptsz)
