/* C011, C007, D3b: a driver call that fails leaves nothing charged and nothing held, whichever of the calls fails; a
 * pitched block is charged by the row the driver chose; a refusal reaches the driver with no allocation call.
 */
#include "fake_driver.h"

static void expect_empty(const char *what)
{
	fake_sync();
	vgpu_pool_reconcile(0);
	CHECK(fake_charged() == 0, "%s: %lu bytes stay charged", what, (unsigned long)fake_charged());
	CHECK(fake_physical() == 0, "%s: %lu bytes stay held", what, (unsigned long)fake_physical());
	CHECK(fake_over_refunds() == 0, "%s: %lu bytes given back too much", what, (unsigned long)fake_over_refunds());
}

static void failing_calls(void)
{
	CUdeviceptr p = 1;
	CUmemGenericAllocationHandle h;
	CUcontext context;
	CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED};
	prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	fake_fail_next("cuMemAlloc_v2", CUDA_ERROR_LAUNCH_FAILED);
	CHECK(hook_cuMemAlloc_v2(&p, 5 * MIB) == CUDA_ERROR_LAUNCH_FAILED, "the driver's own error");
	CHECK(p == 1, "the output was touched");
	expect_empty("cuMemAlloc fails");
	fake_fail_next("cuMemAllocAsync", CUDA_ERROR_LAUNCH_FAILED);
	CHECK(hook_cuMemAllocAsync(&p, 5 * MIB, (CUstream)16) == CUDA_ERROR_LAUNCH_FAILED, "the driver's own error");
	expect_empty("cuMemAllocAsync fails");
	fake_fail_next("cuMemCreate", CUDA_ERROR_LAUNCH_FAILED);
	CHECK(hook_cuMemCreate(&h, 4 * MIB, &prop, 0) == CUDA_ERROR_LAUNCH_FAILED, "the driver's own error");
	expect_empty("cuMemCreate fails");
	fake_fail_next("cuDevicePrimaryCtxRetain", CUDA_ERROR_LAUNCH_FAILED);
	CHECK(hook_cuDevicePrimaryCtxRetain(&context, 0) == CUDA_ERROR_LAUNCH_FAILED, "the driver's own error");
	expect_empty("cuDevicePrimaryCtxRetain fails");
	fake_fail_next("cuMemPoolGetAttribute", CUDA_ERROR_LAUNCH_FAILED);
	CHECK(hook_cuMemAllocAsync(&p, 5 * MIB, (CUstream)16) == CUDA_SUCCESS,
	      "a failing query is no failing allocation");
	CHECK(fake_charged() >= fake_physical(), "charged %lu, held %lu", (unsigned long)fake_charged(),
	      (unsigned long)fake_physical());
	CHECK(hook_cuMemFreeAsync(p, (CUstream)16) == CUDA_SUCCESS, "free");
	expect_empty("cuMemPoolGetAttribute fails");
}

/* Arrays: the question before, the creation and the end may each fail. */
static void arrays(void)
{
	CUDA_ARRAY3D_DESCRIPTOR d = {.Width = 1000, .Height = 1000, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 4};
	CUarray array = (CUarray)1;
	CUmipmappedArray mipmap;
	uint64_t bytes = vgpu_round_up(16000 * 1008, 2 * MIB);
	fake_fail_next("cuArray3DCreate_v2", CUDA_ERROR_LAUNCH_FAILED);
	CHECK(hook_cuArray3DCreate_v2(&array, &d) == CUDA_ERROR_LAUNCH_FAILED, "the driver's own error");
	CHECK(array == (CUarray)1, "the output was touched");
	expect_empty("cuArray3DCreate fails");
	fake_fail_next("cuMipmappedArrayCreate", CUDA_ERROR_LAUNCH_FAILED);
	CHECK(hook_cuMipmappedArrayCreate(&mipmap, &d, 3) == CUDA_ERROR_LAUNCH_FAILED, "the driver's own error");
	expect_empty("cuMipmappedArrayCreate fails");
	CHECK(hook_cuArray3DCreate_v2(&array, &d) == CUDA_SUCCESS, "create");
	CHECK(fake_charged() == bytes && fake_physical() == bytes, "charged %lu, held %lu, expected %lu",
	      (unsigned long)fake_charged(), (unsigned long)fake_physical(), (unsigned long)bytes);
	fake_fail_next("cuArrayDestroy", CUDA_ERROR_LAUNCH_FAILED);
	CHECK(hook_cuArrayDestroy(array) == CUDA_ERROR_LAUNCH_FAILED, "the driver's own error");
	CHECK(fake_charged() == bytes, "a failed destroy: charged %lu", (unsigned long)fake_charged());
	CHECK(hook_cuArrayDestroy(array) == CUDA_SUCCESS, "destroy");
	CHECK(hook_cuArrayDestroy(array) != CUDA_SUCCESS, "a second destroy");
	expect_empty("arrays");
	fake_old_arrays(true); /* asked about another descriptor: the first one's answer is remembered */
	d.Width = 1001;
	CHECK(hook_cuArray3DCreate_v2(&array, &d) == CUDA_SUCCESS, "create on an old driver");
	CHECK(fake_charged() >= fake_physical() && fake_physical() != 0, "charged %lu, held %lu",
	      (unsigned long)fake_charged(), (unsigned long)fake_physical());
	CHECK(hook_cuArrayDestroy(array) == CUDA_SUCCESS, "destroy");
	fake_old_arrays(false);
	expect_empty("arrays of an old driver");
}

/* A free that the driver refuses gives nothing back, and the block can be freed later. */
static void failing_frees(void)
{
	CUdeviceptr p;
	CUmemGenericAllocationHandle h;
	CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED};
	prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	CHECK(hook_cuMemAlloc_v2(&p, 4096) == CUDA_SUCCESS, "alloc");
	fake_fail_next("cuMemFree_v2", CUDA_ERROR_LAUNCH_FAILED);
	CHECK(hook_cuMemFree_v2(p) == CUDA_ERROR_LAUNCH_FAILED, "the driver's own error");
	CHECK(fake_charged() == 2 * MIB, "charged %lu", (unsigned long)fake_charged());
	CHECK(hook_cuMemFree_v2(p) == CUDA_SUCCESS, "free");
	CHECK(hook_cuMemFree_v2(p) != CUDA_SUCCESS, "a second free");
	CHECK(hook_cuMemFree_v2(0x1234) != CUDA_SUCCESS, "a free of nonsense");
	CHECK(hook_cuMemCreate(&h, 4 * MIB, &prop, 0) == CUDA_SUCCESS, "create");
	fake_fail_next("cuMemRelease", CUDA_ERROR_LAUNCH_FAILED);
	CHECK(hook_cuMemRelease(h) != CUDA_SUCCESS, "release");
	CHECK(fake_charged() == 4 * MIB, "charged %lu", (unsigned long)fake_charged());
	CHECK(hook_cuMemRelease(h) == CUDA_SUCCESS, "release");
	expect_empty("frees fail");
}

static void rows(void)
{
	CUdeviceptr p;
	size_t pitch;
	CHECK(hook_cuMemAllocPitch_v2(&p, &pitch, 1, 100000, 4) == CUDA_SUCCESS, "pitched");
	CHECK(fake_charged() == vgpu_round_up(pitch * 100000, 2 * MIB), "rows of %zu: charged %lu", pitch,
	      (unsigned long)fake_charged());
	CHECK(hook_cuMemFree_v2(p) == CUDA_SUCCESS, "free");
	expect_empty("pitched");
	fake_pitch(4096); /* a driver with longer rows than we guess */
	CHECK(hook_cuMemAllocPitch_v2(&p, &pitch, 1, 100000, 4) == CUDA_SUCCESS, "pitched");
	CHECK(fake_charged() == vgpu_round_up(4096 * 100000, 2 * MIB), "charged %lu", (unsigned long)fake_charged());
	CHECK(hook_cuMemFree_v2(p) == CUDA_SUCCESS, "free");
	fake_reset(100 * MIB);
	CHECK(hook_cuMemAllocPitch_v2(&p, &pitch, 1, 100000, 4) == CUDA_ERROR_OUT_OF_MEMORY, "rows that do not fit");
	expect_empty("long rows");
	fake_pitch(512);
}

/* Same stream, again and again, more than half of the limit: the driver uses the freed block again, so must we. */
static void reuse_at_the_limit(void)
{
	CUdeviceptr p;
	fake_reset(200 * MIB);
	for (int i = 0; i < 100; i++) {
		CHECK(hook_cuMemAllocAsync(&p, 150 * MIB, (CUstream)17) == CUDA_SUCCESS, "round %d", i);
		CHECK(hook_cuMemFreeAsync(p, (CUstream)17) == CUDA_SUCCESS, "free in round %d", i);
	}
	CHECK(fake_worst() == 0 && fake_peak() <= 200 * MIB, "held %lu", (unsigned long)fake_peak());
	CHECK(hook_cuMemAllocAsync(&p, 150 * MIB, (CUstream)18) == CUDA_ERROR_OUT_OF_MEMORY, "another stream may not");
	expect_empty("reuse");
}

/* Ordinary memory freed in stream order stays charged until the stream has come that far. */
static void deferred(void)
{
	CUdeviceptr p, q;
	fake_reset(100 * MIB);
	CHECK(hook_cuMemAlloc_v2(&p, 60 * MIB) == CUDA_SUCCESS, "alloc");
	fake_busy(true);
	CHECK(hook_cuMemFreeAsync(p, (CUstream)16) == CUDA_SUCCESS, "free in stream order");
	CHECK(fake_charged() == 60 * MIB, "the stream has not run: charged %lu", (unsigned long)fake_charged());
	CHECK(hook_cuMemAlloc_v2(&q, 60 * MIB) == CUDA_ERROR_OUT_OF_MEMORY, "it is still held");
	fake_busy(false);
	CHECK(hook_cuMemAlloc_v2(&q, 60 * MIB) == CUDA_SUCCESS, "the stream has run");
	CHECK(hook_cuMemFree_v2(q) == CUDA_SUCCESS, "free");
	expect_empty("deferred");
}

/* A heap that is changed is charged at every moment at least what the driver holds. */
static void limits(void)
{
	const size_t usual = 8 * MIB;
	fake_reset(1024 * MIB);
	CHECK(hook_cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, usual + 600 * MIB) == CUDA_SUCCESS, "a heap of 600 MiB");
	CHECK(fake_charged() == 600 * MIB, "charged %lu", (unsigned long)fake_charged());
	CHECK(hook_cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, usual + 700 * MIB) == CUDA_SUCCESS, "a heap of 700 MiB");
	CHECK(hook_cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, usual + 1025 * MIB) == CUDA_ERROR_OUT_OF_MEMORY,
	      "a heap beyond the limit");
	fake_fail_next("cuCtxSetLimit", CUDA_ERROR_LAUNCH_FAILED);
	CHECK(hook_cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, usual + 800 * MIB) == CUDA_ERROR_LAUNCH_FAILED,
	      "the driver's own error");
	CHECK(fake_charged() == 700 * MIB, "charged %lu", (unsigned long)fake_charged());
	CHECK(hook_cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, usual + 100 * MIB) == CUDA_SUCCESS, "a heap of 100 MiB");
	CHECK(fake_charged() == 100 * MIB, "charged %lu", (unsigned long)fake_charged());
	CHECK(hook_cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, usual) == CUDA_SUCCESS, "the usual heap");
	expect_empty("limits");
	CHECK(fake_worst() == 0, "%lu bytes of the heap were held and not charged", (unsigned long)fake_worst());
}

/* A block is freed twice by two threads: while the second free is refused, the address is somebody else's already. What
 * comes back late must not take the place, and the charge, of the block that lives there now. */
static void freed_twice(void)
{
	struct vgpu_block first = {.p = UINT64_C(0x700000000000), .bytes = 2 * MIB, .kind = VGPU_PLAIN}, taken;
	struct vgpu_block second = first;
	second.bytes = 10 * MIB;
	CHECK(vgpu_reserve(0, 2 * MIB) == CUDA_SUCCESS && vgpu_block_add(&first, 2 * MIB) == 0, "the first block");
	CHECK(vgpu_block_take(first.p, &taken), "the first block is known");
	CHECK(vgpu_reserve(0, 10 * MIB) == CUDA_SUCCESS && vgpu_block_add(&second, 10 * MIB) == 0, "the second block");
	vgpu_block_restore(&taken);
	CHECK(fake_charged() == 10 * MIB, "charged %lu, the living block has 10 MiB", (unsigned long)fake_charged());
	CHECK(vgpu_block_take(second.p, &taken) && taken.bytes == 10 * MIB, "the living block is known");
	vgpu_block_settle(&taken);
	expect_empty("freed twice");
}

int main(void)
{
	fake_reset(1024 * MIB);
	failing_calls();
	failing_frees();
	arrays();
	rows();
	reuse_at_the_limit();
	deferred();
	limits();
	freed_twice();
	return 0;
}
