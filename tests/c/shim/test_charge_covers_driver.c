/* K02, D18, C012, C007: threads race every kind of allocation through the shim's own files over a driver that hands
 * addresses out again at once. At every change of either side what is charged is at least what the driver holds;
 * nothing passes the limit; and when all is freed nothing is charged. Arguments: threads, rounds per thread.
 */
#include "fake_driver.h"

#include <pthread.h>
#include <stdatomic.h>

#define LIVE  24
#define LIMIT (700 * MIB)

#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
static unsigned rounds = 2000; /* a sanitizer sees a race that did not go wrong, and is ten times slower */
#else
static unsigned rounds = 20000;
#endif

struct live {
	CUdeviceptr p;
	CUmemGenericAllocationHandle handle;
	uint64_t bytes;
	CUdeviceptr mapped;
	CUarray array;
	CUmipmappedArray mipmap;
};

static uint64_t random_size(unsigned *seed)
{
	unsigned r = (unsigned)rand_r(seed);
	switch (r % 4) {
	case 0:
		return 1 + (r >> 4) % 8192;
	case 1:
		return 4096 * (1 + (r >> 4) % 400);
	case 2:
		return MIB * (1 + (r >> 4) % 8) + 1;
	default:
		return MIB * (1 + (r >> 4) % 96);
	}
}

static void create_and_map(struct live *l, uint64_t bytes, CUdeviceptr at)
{
	CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED};
	prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	bytes = vgpu_round_up(bytes, VGPU_GRANULE);
	if (hook_cuMemCreate(&l->handle, bytes, &prop, 0) != CUDA_SUCCESS)
		return;
	if (hook_cuMemMap(at, bytes, 0, l->handle, 0) == CUDA_SUCCESS) {
		l->mapped = at;
		l->bytes = bytes;
		CHECK(hook_cuMemRelease(l->handle) == CUDA_SUCCESS, "release of a mapped handle");
		CUmemGenericAllocationHandle again;
		CHECK(hook_cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)(at + bytes / 2)) == CUDA_SUCCESS,
		      "retain");
		l->handle = again;
	}
}

static void make_array(struct live *l, unsigned *seed)
{
	unsigned r = (unsigned)rand_r(seed);
	CUDA_ARRAY3D_DESCRIPTOR d = {.Width = 1 + r % 3000,
	                             .Height = (r >> 8) % 5 ? 1 + (r >> 12) % 2000 : 0,
	                             .Format = CU_AD_FORMAT_FLOAT,
	                             .NumChannels = 1u << r % 3};
	CUDA_ARRAY_DESCRIPTOR flat = {d.Width, d.Height, d.Format, d.NumChannels};
	if (r % 3 == 0)
		hook_cuMipmappedArrayCreate(&l->mipmap, &d, 1 + (r >> 5) % 4);
	else if (r % 3 == 1)
		hook_cuArray3DCreate_v2(&l->array, &d);
	else
		hook_cuArrayCreate_v2(&l->array, &flat);
}

/* A handle in a deferred array, which may keep it alone; sometimes another is mapped over it, or it is unmapped. */
static void map_into_array(struct live *l, unsigned *seed, uint64_t bytes)
{
	CUDA_ARRAY3D_DESCRIPTOR d = {.Width = 64,
	                             .Height = 64,
	                             .Format = CU_AD_FORMAT_FLOAT,
	                             .NumChannels = 1,
	                             .Flags = CUDA_ARRAY3D_DEFERRED_MAPPING};
	CUarrayMapInfo info = {.resourceType = CU_RESOURCE_TYPE_ARRAY,
	                       .memHandleType = CU_MEM_HANDLE_TYPE_GENERIC,
	                       .deviceBitMask = 1};
	CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED};
	prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	if (hook_cuArray3DCreate_v2(&l->array, &d) != CUDA_SUCCESS)
		return; /* an old driver */
	info.resource.array = l->array;
	for (unsigned i = 0; i < 1 + (unsigned)rand_r(seed) % 3; i++) {
		CUmemGenericAllocationHandle handle;
		info.memOperationType = CU_MEM_OPERATION_TYPE_UNMAP;
		info.memHandle.memHandle = 0;
		if (rand_r(seed) % 4 == 0)
			CHECK(hook_cuMemMapArrayAsync(&info, 1, NULL) == CUDA_SUCCESS, "unmap from an array");
		if (hook_cuMemCreate(&handle, vgpu_round_up(bytes, VGPU_GRANULE), &prop, 0) != CUDA_SUCCESS)
			return;
		info.memOperationType = CU_MEM_OPERATION_TYPE_MAP;
		info.memHandle.memHandle = handle;
		CHECK(hook_cuMemMapArrayAsync(&info, 1, NULL) == CUDA_SUCCESS, "map into an array");
		CHECK(hook_cuMemRelease(handle) == CUDA_SUCCESS, "release of a mapped handle");
	}
}

/* A handle that the object it is bound to keeps alone; sometimes it is bound there once more. */
static void bind_to_object(struct live *l, unsigned *seed, uint64_t bytes)
{
	CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED};
	CUmulticastObjectProp team = {.numDevices = 1};
	CUmemGenericAllocationHandle memory;
	prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	bytes = team.size = vgpu_round_up(bytes, VGPU_GRANULE);
	if (hook_cuMulticastCreate(&l->handle, &team) != CUDA_SUCCESS)
		return;
	for (unsigned i = 0; i < 1 + (unsigned)rand_r(seed) % 2; i++) {
		if (hook_cuMemCreate(&memory, bytes, &prop, 0) != CUDA_SUCCESS)
			return;
		if (i != 0)
			CHECK(hook_cuMulticastUnbind(l->handle, 0, 0, bytes) == CUDA_SUCCESS, "unbind");
		CHECK(hook_cuMulticastBindMem_v2(l->handle, 0, 0, memory, 0, bytes, 0) == CUDA_SUCCESS, "bind");
		CHECK(hook_cuMemRelease(memory) == CUDA_SUCCESS, "release of bound memory");
	}
}

static bool is_live(const struct live *l)
{
	return l->p != 0 || l->handle != 0 || l->array != NULL || l->mipmap != NULL;
}

static void allocate(struct live *l, unsigned *seed, CUstream stream, CUdeviceptr map_at)
{
	uint64_t bytes = random_size(seed);
	size_t pitch;
	*l = (struct live){0};
	switch (rand_r(seed) % 10) {
	case 0:
		hook_cuMemAllocManaged(&l->p, bytes, CU_MEM_ATTACH_GLOBAL);
		break;
	case 1:
		hook_cuMemAllocPitch_v2(&l->p, &pitch, 1 + bytes % 5000, 1 + bytes % 4000, 4);
		break;
	case 2:
	case 3:
		hook_cuMemAllocAsync(&l->p, bytes, stream);
		break;
	case 4:
		create_and_map(l, bytes, map_at);
		break;
	case 5:
	case 6:
		make_array(l, seed);
		break;
	case 7:
		map_into_array(l, seed, 1 + bytes / 4);
		break;
	case 8:
		bind_to_object(l, seed, 1 + bytes / 4);
		break;
	default:
		hook_cuMemAlloc_v2(&l->p, bytes);
	}
}

static void release(struct live *l, unsigned *seed, CUstream stream)
{
	if (l->mapped != 0)
		CHECK(hook_cuMemUnmap(l->mapped, l->bytes) == CUDA_SUCCESS, "unmap");
	if (l->handle != 0)
		CHECK(hook_cuMemRelease(l->handle) == CUDA_SUCCESS, "release");
	if (l->array != NULL)
		CHECK(hook_cuArrayDestroy(l->array) == CUDA_SUCCESS, "destroy of an array");
	if (l->mipmap != NULL)
		CHECK(hook_cuMipmappedArrayDestroy(l->mipmap) == CUDA_SUCCESS, "destroy of a mip-map");
	if (l->p != 0 && rand_r(seed) % 2)
		CHECK(hook_cuMemFree_v2(l->p) == CUDA_SUCCESS, "free");
	else if (l->p != 0)
		CHECK(hook_cuMemFreeAsync(l->p, stream) == CUDA_SUCCESS, "free in stream order");
	*l = (struct live){0};
}

static void *worker(void *argument)
{
	uintptr_t id = (uintptr_t)argument;
	unsigned seed = (unsigned)id * 7919;
	CUstream stream = (CUstream)(id % 3 + 16);
	struct live live[LIVE] = {0};
	for (unsigned i = 0; i < rounds; i++) {
		struct live *l = &live[(unsigned)rand_r(&seed) % LIVE];
		CUcontext context;
		if (is_live(l))
			release(l, &seed, stream);
		else
			allocate(l, &seed, stream, (id * LIVE + (uintptr_t)(l - live)) << 40);
		if (rand_r(&seed) % 64 == 0)
			fake_sync();
		if (rand_r(&seed) % 16 == 0 && hook_cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS)
			hook_cuDevicePrimaryCtxRelease_v2(0);
		if (rand_r(&seed) % 128 == 0)
			hook_cuMemPoolTrimTo((CUmemoryPool)(uintptr_t)0x1000, 64 * MIB);
	}
	for (unsigned i = 0; i < LIVE; i++)
		release(&live[i], &seed, stream);
	return NULL;
}

static void race(unsigned threads)
{
	pthread_t thread[64];
	for (uintptr_t i = 0; i < threads; i++)
		CHECK(pthread_create(&thread[i], NULL, worker, (void *)(i + 1)) == 0, "thread %lu", (unsigned long)i);
	for (unsigned i = 0; i < threads; i++)
		pthread_join(thread[i], NULL);
	fake_keep(0);
	fake_sync();
	vgpu_pool_reconcile(0);
	CHECK(fake_worst() == 0, "%u threads: the driver held %lu bytes more than were charged", threads,
	      (unsigned long)fake_worst());
	CHECK(fake_peak() <= LIMIT, "%u threads: %lu bytes held of %lu", threads, (unsigned long)fake_peak(),
	      (unsigned long)LIMIT);
	CHECK(fake_peak() > LIMIT / 2, "%u threads: only %lu bytes were ever held", threads,
	      (unsigned long)fake_peak());
	CHECK(fake_over_refunds() == 0, "%lu bytes given back too much", (unsigned long)fake_over_refunds());
	CHECK(fake_physical() == 0, "%lu bytes left in the driver", (unsigned long)fake_physical());
	CHECK(fake_charged() == 0, "%u threads: %lu bytes left charged", threads, (unsigned long)fake_charged());
}

int main(int argc, char **argv)
{
	unsigned threads = argc > 1 ? (unsigned)atoi(argv[1]) : 8;
	if (argc > 2)
		rounds = (unsigned)atoi(argv[2]);
	for (unsigned kept = 0; kept < 3; kept++) { /* release threshold of the pool: nothing, some, everything */
		fake_reset(LIMIT);
		fake_keep(kept == 2 ? UINT64_MAX : kept * 200 * MIB);
		fake_old_arrays(kept == 1);
		race(1);
		fake_reset(LIMIT);
		fake_keep(kept == 2 ? UINT64_MAX : kept * 200 * MIB);
		race(threads);
	}
	NOTE("%u threads x %u rounds: charged >= held at every change", threads, rounds);
	return 0;
}
