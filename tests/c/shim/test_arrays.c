/* D3, D3b, C007: what arrays and mip-maps cost: what the driver itself takes for them, in whole 2 MiB, before it is
 * asked to make them; the same is given back when they or their context end; a refusal makes no array; sparse and
 * deferred ones cost nothing; every door and both widths of descriptors lead here; what the program sees agrees.
 */
#include <nvml.h>

#include "shim_test.h"

#define U8  CU_AD_FORMAT_UNSIGNED_INT8
#define F32 CU_AD_FORMAT_FLOAT

/* What is charged is what the simulated driver says that it holds. */
static void expect_exact(const char *what)
{
	CHECK(used() == held(0), "%s: charged %lu, held %lu", what, (unsigned long)used(), (unsigned long)held(0));
	nvmlDevice_t device;
	nvmlMemory_t memory;
	CHECK(nvmlDeviceGetHandleByIndex_v2(0, &device) == NVML_SUCCESS, "a device");
	CHECK(nvmlDeviceGetMemoryInfo(device, &memory) == NVML_SUCCESS && memory.used == used(),
	      "%s: NVML says %llu, the driver %lu", what, memory.used, (unsigned long)used());
}

static CUDA_ARRAY3D_DESCRIPTOR shape(size_t width, size_t height, size_t depth, CUarray_format format,
                                     unsigned channels, unsigned flags)
{
	return (CUDA_ARRAY3D_DESCRIPTOR){width, height, depth, format, channels, flags};
}

static void each_costs_what_the_driver_takes(void)
{
	const CUDA_ARRAY3D_DESCRIPTOR all[] = {
	        shape(1, 0, 0, U8, 1, 0),
	        shape(100000, 0, 0, F32, 4, 0),
	        shape(30000, 0, 100, F32, 4, CUDA_ARRAY3D_LAYERED),
	        shape(1000, 1000, 0, F32, 1, 0),
	        shape(4097, 129, 0, F32, 4, CUDA_ARRAY3D_SURFACE_LDST),
	        shape(300, 300, 300, F32, 2, 0),
	        shape(512, 512, 6, U8, 4, CUDA_ARRAY3D_CUBEMAP),
	        shape(512, 512, 12, U8, 4, CUDA_ARRAY3D_CUBEMAP | CUDA_ARRAY3D_LAYERED),
	        shape(2000, 2000, 30, U8, 1, CUDA_ARRAY3D_LAYERED),
	        shape(4096, 4096, 0, CU_AD_FORMAT_BC1_UNORM, 4, 0),
	        shape(4096, 4096, 0, CU_AD_FORMAT_BC7_UNORM_SRGB, 4, 0),
	        shape(3840, 2160, 0, CU_AD_FORMAT_NV12, 3, 0),
	        shape(3840, 2160, 0, CU_AD_FORMAT_UINT16_PLANAR_422, 3, 0),
	        shape(1920, 1080, 0, CU_AD_FORMAT_AYUV, 4, 0),
	};
	CUarray array[14], again;
	CUmipmappedArray mipmap;
	for (unsigned i = 0; i < 14; i++) {
		OK(cuArray3DCreate_v2(&array[i], &all[i]));
		expect_exact("an array");
		OK(cuArray3DCreate_v2(&again, &all[i])); /* as remembered */
		expect_exact("another one like it");
		OK(cuArrayDestroy(again));
		if (all[i].Format == CU_AD_FORMAT_NV12 || all[i].Format == CU_AD_FORMAT_UINT16_PLANAR_422)
			continue;
		for (unsigned levels = 0; levels < 16; levels += 5) {
			if (cuMipmappedArrayCreate(&mipmap, &all[i], levels) != CUDA_SUCCESS)
				continue; /* wider than mip-maps may be */
			expect_exact("a mip-map");
			OK(cuMipmappedArrayDestroy(mipmap));
			expect_exact("a mip-map destroyed");
		}
	}
	for (unsigned i = 0; i < 14; i++) {
		OK(cuArrayDestroy(array[i]));
		IS(cuArrayDestroy(array[i]), CUDA_ERROR_INVALID_HANDLE);
		expect_exact("an array destroyed");
	}
	CHECK(used() == 0, "%lu left", (unsigned long)used());
}

static void both_widths(void)
{
	CUDA_ARRAY_DESCRIPTOR wide = {2048, 1024, F32, 2};
	CUDA_ARRAY_DESCRIPTOR_v1 narrow = {2048, 1024, F32, 2};
	CUDA_ARRAY3D_DESCRIPTOR_v1 narrow_3d = {512, 512, 16, F32, 1, 0};
	CUarray array[3];
	OK(cuArrayCreate_v2(&array[0], &wide));
	expect_exact("cuArrayCreate_v2");
	OK(cuArrayCreate(&array[1], &narrow));
	expect_exact("cuArrayCreate");
	OK(cuArray3DCreate(&array[2], &narrow_3d));
	expect_exact("cuArray3DCreate");
	CHECK(used() == 48 * MIB, "three of 16 MiB: %lu", (unsigned long)used());
	for (int i = 0; i < 3; i++)
		OK(cuArrayDestroy(array[i]));
	CHECK(used() == 0, "%lu left", (unsigned long)used());
}

static void refused_without_the_driver(void)
{
	CUDA_ARRAY3D_DESCRIPTOR gib = shape(8192, 8192, 0, F32, 4, 0), more = shape(8192, 8193, 0, F32, 4, 0);
	CUarray array[4], none = (CUarray)0x77;
	CUmipmappedArray mipmap = (CUmipmappedArray)0x77;
	for (int i = 0; i < 4; i++)
		OK(cuArray3DCreate_v2(&array[i], &gib));
	expect_exact("filled to the limit");
	CHECK(used() == 4 * GIB, "charged %lu", (unsigned long)used());
	uint64_t calls = partage_sim_calls("cuArray3DCreate_v2"), mips = partage_sim_calls("cuMipmappedArrayCreate");
	IS(cuArray3DCreate_v2(&none, &gib), CUDA_ERROR_OUT_OF_MEMORY);
	IS(cuArray3DCreate_v2(&none, &more), CUDA_ERROR_OUT_OF_MEMORY);
	IS(cuMipmappedArrayCreate(&mipmap, &gib, 3), CUDA_ERROR_OUT_OF_MEMORY);
	CHECK(none == (CUarray)0x77 && mipmap == (CUmipmappedArray)0x77, "outputs were touched");
	CHECK(partage_sim_calls("cuArray3DCreate_v2") == calls && partage_sim_calls("cuMipmappedArrayCreate") == mips,
	      "the driver was asked to make what was refused");
	expect_exact("refused");
	OK(cuArrayDestroy(array[3]));
	OK(cuArray3DCreate_v2(&array[3], &gib));
	for (int i = 0; i < 4; i++)
		OK(cuArrayDestroy(array[i]));
	OK(cuMipmappedArrayCreate(&mipmap, &gib, 3));
	expect_exact("a mip-map after them");
	OK(cuMipmappedArrayDestroy(mipmap));
	CHECK(used() == 0, "%lu left", (unsigned long)used());
}

static void the_drivers_own_errors(void)
{
	CUDA_ARRAY3D_DESCRIPTOR right = shape(1024, 1024, 0, F32, 4, 0),
	                        wrong[] = {
	                                shape(0, 4, 0, F32, 1, 0),
	                                shape(4, 4, 0, F32, 3, 0),
	                                shape(1 << 20, 4, 0, F32, 1, 0),
	                                shape(SIZE_MAX, SIZE_MAX, SIZE_MAX, F32, 4, 0),
	                                shape(4, 4, 0, (CUarray_format)0x7f, 1, 0),
	                                shape(16, 8, 6, F32, 1, CUDA_ARRAY3D_CUBEMAP),
	                        };
	CUarray array = (CUarray)0x77, level;
	CUmipmappedArray mipmap;
	for (unsigned i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		IS(cuArray3DCreate_v2(&array, &wrong[i]), CUDA_ERROR_INVALID_VALUE);
		IS(cuMipmappedArrayCreate(&mipmap, &wrong[i], 2), CUDA_ERROR_INVALID_VALUE);
		expect_exact("a wrong descriptor");
	}
	IS(cuArray3DCreate_v2(NULL, &right), CUDA_ERROR_INVALID_VALUE);
	IS(cuArray3DCreate_v2(&array, NULL), CUDA_ERROR_INVALID_VALUE);
	arm("cuArrayCreate_v2", CUDA_ERROR_ECC_UNCORRECTABLE, 0, 1);
	IS(cuArrayCreate_v2(&array, &(CUDA_ARRAY_DESCRIPTOR){512, 512, F32, 1}), CUDA_ERROR_ECC_UNCORRECTABLE);
	disarm();
	CHECK(array == (CUarray)0x77, "the output was touched");
	expect_exact("a failed creation");
	OK(cuArray3DCreate_v2(&array, &right));
	arm("cuArrayDestroy", CUDA_ERROR_LAUNCH_FAILED, 0, 1);
	IS(cuArrayDestroy(array), CUDA_ERROR_LAUNCH_FAILED);
	disarm();
	expect_exact("a failed destroy");
	IS(cuMemFree_v2((CUdeviceptr)(uintptr_t)array), CUDA_ERROR_INVALID_VALUE); /* a handle is no address */
	expect_exact("a handle freed as memory");
	OK(cuArrayDestroy(array));
	OK(cuMipmappedArrayCreate(&mipmap, &right, 4));
	OK(cuMipmappedArrayGetLevel(&level, mipmap, 1));
	IS(cuArrayDestroy(level), CUDA_ERROR_INVALID_HANDLE);
	expect_exact("a level is not its own");
	OK(cuMipmappedArrayDestroy(mipmap));
	CHECK(used() == 0, "%lu left", (unsigned long)used());
}

/* A driver that cannot be asked: a bound is charged, and all of it given back. */
static void not_asked(void)
{
	static const char *const calls[] = {"cuArrayGetMemoryRequirements", "cuMipmappedArrayGetMemoryRequirements"};
	const CUDA_ARRAY3D_DESCRIPTOR all[] = {shape(999, 77, 0, F32, 4, 0),
	                                       shape(1234, 1234, 0, F32, 2, 0),
	                                       shape(2056, 520, 0, CU_AD_FORMAT_BC3_UNORM, 4, 0),
	                                       shape(200, 201, 202, F32, 1, 0),
	                                       shape(1, 1, 16384, F32, 4, 0),
	                                       shape(1922, 1082, 0, CU_AD_FORMAT_P010, 3, 0)};
	CUarray array;
	CUmipmappedArray mipmap;
	arm(calls[0], CUDA_ERROR_NOT_SUPPORTED, 0, UINT64_MAX);
	arm(calls[1], CUDA_ERROR_NOT_SUPPORTED, 0, UINT64_MAX);
	for (unsigned i = 0; i < 6; i++) {
		OK(cuArray3DCreate_v2(&array, &all[i]));
		CHECK(used() >= held(0) && used() <= 3 * held(0), "shape %u: charged %lu, held %lu", i,
		      (unsigned long)used(), (unsigned long)held(0));
		OK(cuArrayDestroy(array));
		if (all[i].Format != CU_AD_FORMAT_P010) {
			OK(cuMipmappedArrayCreate(&mipmap, &all[i], 20));
			CHECK(used() >= held(0) && used() <= 3 * held(0), "levels of shape %u: charged %lu, held %lu",
			      i, (unsigned long)used(), (unsigned long)held(0));
			OK(cuMipmappedArrayDestroy(mipmap));
		}
		CHECK(used() == 0, "shape %u leaves %lu", i, (unsigned long)used());
	}
	disarm();
}

static void ends_with_its_context(CUcontext primary)
{
	CUDA_ARRAY3D_DESCRIPTOR desc = shape(1024, 1024, 0, F32, 4, 0);
	CUcontext context;
	CUarray array, kept;
	CUmipmappedArray mipmap;
	OK(cuArray3DCreate_v2(&kept, &desc));
	for (int round = 0; round < 3; round++) {
		OK(cuCtxCreate_v2(&context, 0, 0));
		for (int i = 0; i < 20; i++)
			OK(cuArray3DCreate_v2(&array, &desc));
		OK(cuMipmappedArrayCreate(&mipmap, &desc, 11));
		expect_exact("in a context");
		OK(cuCtxDestroy_v2(context));
		OK(cuCtxSetCurrent(primary));
		expect_exact("its context destroyed");
		IS(cuArrayDestroy(array), CUDA_ERROR_INVALID_HANDLE);
	}
	CHECK(used() == 16 * MIB, "%lu left", (unsigned long)used());
	OK(cuArrayDestroy(kept));
}

int main(void)
{
	CUcontext primary = start(0);
	CHECK(nvmlInit_v2() == NVML_SUCCESS, "nvmlInit");
	each_costs_what_the_driver_takes();
	both_widths();
	refused_without_the_driver();
	the_drivers_own_errors();
	ends_with_its_context(primary);
	not_asked();
	return 0;
}
