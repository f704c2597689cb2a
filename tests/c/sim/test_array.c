/* CUDA arrays and mip-maps of the simulated driver: what descriptors are allowed and read back, what memory they take
 * on the card, that copies move real bytes through every kind of array, and that they end with their context. */
#include "memory_test.h"

static unsigned char host[1 << 20], back[1 << 20];

static void pattern(unsigned seed, size_t n)
{
	for (size_t i = 0; i < n; i++)
		host[i] = (unsigned char)(i * 31 + i / 251 + seed);
	memset(back, 0xee, sizeof back);
}

static CUDA_ARRAY3D_DESCRIPTOR shape(size_t width, size_t height, size_t depth, CUarray_format format,
                                     unsigned channels, unsigned flags)
{
	return (CUDA_ARRAY3D_DESCRIPTOR){width, height, depth, format, channels, flags};
}

static CUresult try_array(CUDA_ARRAY3D_DESCRIPTOR desc)
{
	CUarray array;
	uint64_t before = held();
	CUresult result = cuArray3DCreate(&array, &desc);

	if (result == CUDA_SUCCESS) {
		CUDA_ARRAY3D_DESCRIPTOR read;
		OK(cuArray3DGetDescriptor(&read, array));
		CHECK(read.Width == desc.Width && read.Height == desc.Height && read.Depth == desc.Depth &&
		              read.Format == desc.Format && read.NumChannels == desc.NumChannels &&
		              read.Flags == desc.Flags,
		      "reads back %zu x %zu x %zu", read.Width, read.Height, read.Depth);
		OK(cuArrayDestroy(array));
		GIVES(CUDA_ERROR_INVALID_HANDLE, cuArrayDestroy(array));
	}
	CHECK(held() == before, "left %llu bytes", (unsigned long long)(held() - before));
	return result;
}

#define U8  CU_AD_FORMAT_UNSIGNED_INT8
#define F32 CU_AD_FORMAT_FLOAT

static void rules(void)
{
	OK(try_array(shape(131072, 0, 0, F32, 4, 0)));
	GIVES(CUDA_ERROR_INVALID_VALUE, try_array(shape(131073, 0, 0, F32, 4, 0)));
	GIVES(CUDA_ERROR_INVALID_VALUE, try_array(shape(32769, 0, 0, F32, 4, CUDA_ARRAY3D_SURFACE_LDST)));
	GIVES(CUDA_ERROR_INVALID_VALUE, try_array(shape(0, 8, 0, F32, 1, 0)));
	GIVES(CUDA_ERROR_INVALID_VALUE, try_array(shape(8, 8, 0, F32, 3, 0)));
	GIVES(CUDA_ERROR_INVALID_VALUE, try_array(shape(8, 8, 0, (CUarray_format)0x77, 1, 0)));
	GIVES(CUDA_ERROR_INVALID_VALUE, try_array(shape(8, 8, 0, F32, 1, 0x400)));
	GIVES(CUDA_ERROR_INVALID_VALUE, try_array(shape(8, 0, 8, F32, 1, 0))); /* depth without height or layers */
	OK(try_array(shape(8, 0, 8, F32, 1, CUDA_ARRAY3D_LAYERED)));
	OK(try_array(shape(8, 9, 2048, U8, 1, CUDA_ARRAY3D_LAYERED)));
	GIVES(CUDA_ERROR_INVALID_VALUE, try_array(shape(8, 9, 2049, U8, 1, CUDA_ARRAY3D_LAYERED)));
	GIVES(CUDA_ERROR_INVALID_VALUE, try_array(shape(8, 9, 0, U8, 1, CUDA_ARRAY3D_LAYERED)));
	OK(try_array(shape(8, 8, 32768, U8, 1, 0))); /* by the alternate limits */
	OK(try_array(shape(64, 64, 6, U8, 4, CUDA_ARRAY3D_CUBEMAP)));
	GIVES(CUDA_ERROR_INVALID_VALUE, try_array(shape(64, 32, 6, U8, 4, CUDA_ARRAY3D_CUBEMAP)));
	GIVES(CUDA_ERROR_INVALID_VALUE, try_array(shape(64, 64, 12, U8, 4, CUDA_ARRAY3D_CUBEMAP)));
	OK(try_array(shape(64, 64, 12, U8, 4, CUDA_ARRAY3D_CUBEMAP | CUDA_ARRAY3D_LAYERED)));
	GIVES(CUDA_ERROR_INVALID_VALUE,
	      try_array(shape(64, 64, 13, U8, 4, CUDA_ARRAY3D_CUBEMAP | CUDA_ARRAY3D_LAYERED)));
	OK(try_array(shape(32768, 8, 0, U8, 1, CUDA_ARRAY3D_TEXTURE_GATHER)));
	GIVES(CUDA_ERROR_INVALID_VALUE, try_array(shape(32769, 8, 0, U8, 1, CUDA_ARRAY3D_TEXTURE_GATHER)));
	GIVES(CUDA_ERROR_INVALID_VALUE, try_array(shape(64, 8, 8, U8, 1, CUDA_ARRAY3D_TEXTURE_GATHER)));
	OK(try_array(shape(64, 64, 0, CU_AD_FORMAT_BC1_UNORM, 4, 0)));
	GIVES(CUDA_ERROR_INVALID_VALUE, try_array(shape(66, 64, 0, CU_AD_FORMAT_BC1_UNORM, 4, 0)));
	GIVES(CUDA_ERROR_INVALID_VALUE, try_array(shape(64, 64, 0, CU_AD_FORMAT_BC4_UNORM, 4, 0)));
	OK(try_array(shape(64, 64, 0, CU_AD_FORMAT_NV12, 3, 0)));
	GIVES(CUDA_ERROR_INVALID_VALUE, try_array(shape(63, 64, 0, CU_AD_FORMAT_NV12, 3, 0)));
	GIVES(CUDA_ERROR_INVALID_VALUE, try_array(shape(64, 64, 8, CU_AD_FORMAT_NV12, 3, 0)));
	GIVES(CUDA_ERROR_INVALID_VALUE, try_array(shape(64, 0, 0, U8, 1, CUDA_ARRAY3D_SPARSE)));
	GIVES(CUDA_ERROR_INVALID_VALUE,
	      try_array(shape(64, 64, 0, U8, 1, CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING)));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuArray3DCreate(NULL, &(CUDA_ARRAY3D_DESCRIPTOR){0}));
	GIVES(CUDA_ERROR_INVALID_HANDLE, cuArrayDestroy((CUarray)host));
}

/* Whole granules, of rows in 64 bytes and 8 together. */
static void cost(CUDA_ARRAY3D_DESCRIPTOR desc, uint64_t bytes)
{
	CUarray array;
	uint64_t before = held(), want = (bytes + GRANULE - 1) / GRANULE * GRANULE;

	OK(cuArray3DCreate(&array, &desc));
	CHECK(held() - before == want, "%zu x %zu x %zu, format %#x takes %llu, not %llu", desc.Width, desc.Height,
	      desc.Depth, desc.Format, (unsigned long long)(held() - before), (unsigned long long)want);
	CHECK(free_bytes() == usable() - held(), "cuMemGetInfo says %llu", (unsigned long long)free_bytes());
	OK(cuArrayDestroy(array));
	CHECK(held() == before, "and gives it back");
}

static void costs(void)
{
	cost(shape(1, 0, 0, U8, 1, 0), 1);
	cost(shape(4096, 4096, 0, F32, 4, 0), UINT64_C(4096) * 4096 * 16);
	cost(shape(4096, 4097, 0, F32, 4, 0), UINT64_C(4096) * 4104 * 16);
	cost(shape(1025, 1024, 0, F32, 1, 0), UINT64_C(4160) * 1024);
	cost(shape(100, 100, 100, F32, 1, 0), UINT64_C(448) * 104 * 100);
	cost(shape(1000, 0, 2000, U8, 1, CUDA_ARRAY3D_LAYERED), UINT64_C(1024) * 8 * 2000);
	cost(shape(8192, 8192, 0, CU_AD_FORMAT_BC1_UNORM, 4, 0), UINT64_C(2048) * 8 * 2048);
	cost(shape(8192, 8192, 0, CU_AD_FORMAT_BC7_UNORM, 4, 0), UINT64_C(2048) * 16 * 2048);
	cost(shape(4096, 4096, 0, CU_AD_FORMAT_NV12, 3, 0), UINT64_C(4096) * 4096 * 3 / 2);
	cost(shape(4096, 4096, 0, CU_AD_FORMAT_P210, 3, 0), UINT64_C(4096) * 4096 * 4);
	cost(shape(4096, 4096, 0, CU_AD_FORMAT_UINT16_PLANAR_444, 3, 0), UINT64_C(4096) * 4096 * 6);
}

static void full_card(void)
{
	CUarray array[600];
	CUDA_ARRAY3D_DESCRIPTOR desc = shape(16384, 16384, 0, F32, 4, 0); /* 4 GiB */
	unsigned n = 0;
	CUresult result;

	while ((result = cuArray3DCreate(&array[n], &desc)) == CUDA_SUCCESS)
		n++;
	CHECK(result == CUDA_ERROR_OUT_OF_MEMORY, "a full card answers %d", result);
	CHECK(n == free_bytes() / (4 * GIB) + n && n > 0, "%u of 4 GiB fitted", n);
	while (n)
		OK(cuArrayDestroy(array[--n]));
}

/* ---- copies --------------------------------------------------------------------------------------------------------- */

static void one_row(void)
{
	CUarray a, b;
	CUdeviceptr p;
	CUDA_ARRAY_DESCRIPTOR desc = {1000, 0, F32, 2};
	size_t n = 8000;

	pattern(1, n);
	OK(cuArrayCreate(&a, &desc));
	OK(cuArrayCreate(&b, &desc));
	OK(cuMemAlloc(&p, n));
	OK(cuMemcpyHtoA(a, 0, host, n));
	OK(cuMemcpyAtoA(b, 16, a, 8, n - 16));
	OK(cuMemcpyAtoD(p, b, 16, n - 16));
	OK(cuMemcpyDtoA(a, 0, p, n - 16));
	OK(cuMemcpyAtoH(back, a, 0, n - 16));
	CHECK(!memcmp(back, host + 8, n - 16), "host, array, array, device, array, host");
	memset(back, 0, n);
	OK(cuMemcpyHtoAAsync(a, 0, host, n, NULL));
	OK(cuMemcpyAtoHAsync(back, a, 0, n, NULL));
	OK(cuStreamSynchronize(NULL));
	CHECK(!memcmp(back, host, n), "in a stream");
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpyHtoA(a, 8, host, n));     /* past its end */
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpyHtoA(a, 4, host, 8));     /* half an element */
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpyHtoA(a, 0, host, 12));
	OK(cuArrayDestroy(b));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpyAtoH(back, b, 0, 8));
	OK(cuArrayDestroy(a));
	OK(cuMemFree(p));
}

static void whole_3d(CUarray array, size_t width, size_t height, size_t depth, unsigned seed)
{
	CUDA_MEMCPY3D in = {.srcMemoryType = CU_MEMORYTYPE_HOST,
	                    .srcHost = host,
	                    .srcPitch = width,
	                    .srcHeight = height,
	                    .dstMemoryType = CU_MEMORYTYPE_ARRAY,
	                    .dstArray = array,
	                    .WidthInBytes = width,
	                    .Height = height,
	                    .Depth = depth};
	CUDA_MEMCPY3D out = {.srcMemoryType = CU_MEMORYTYPE_ARRAY,
	                     .srcArray = array,
	                     .dstMemoryType = CU_MEMORYTYPE_HOST,
	                     .dstHost = back,
	                     .dstPitch = width,
	                     .dstHeight = height,
	                     .WidthInBytes = width,
	                     .Height = height,
	                     .Depth = depth};

	pattern(seed, width * height * depth);
	OK(cuMemcpy3D(&in));
	OK(cuMemcpy3D(&out));
	CHECK(!memcmp(host, back, width * height * depth), "%zu x %zu x %zu through an array", width, height, depth);
}

static void boxes(void)
{
	CUarray array;
	CUDA_ARRAY3D_DESCRIPTOR desc = shape(33, 17, 9, F32, 1, 0);

	OK(cuArray3DCreate(&array, &desc));
	whole_3d(array, 33 * 4, 17, 9, 2);
	CUDA_MEMCPY3D part = {.srcMemoryType = CU_MEMORYTYPE_ARRAY,
	                      .srcArray = array,
	                      .srcXInBytes = 8,
	                      .srcY = 3,
	                      .srcZ = 7,
	                      .dstMemoryType = CU_MEMORYTYPE_HOST,
	                      .dstHost = back,
	                      .dstPitch = 12,
	                      .dstHeight = 2,
	                      .WidthInBytes = 12,
	                      .Height = 2,
	                      .Depth = 2};
	OK(cuMemcpy3D(&part));
	for (size_t z = 0; z < 2; z++)
		for (size_t y = 0; y < 2; y++)
			CHECK(!memcmp(back + (z * 2 + y) * 12, host + ((7 + z) * 17 + 3 + y) * 132 + 8, 12),
			      "row %zu of layer %zu", y, z);
	part.srcZ = 8;
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpy3D(&part));
	OK(cuArrayDestroy(array));
	desc = shape(16, 16, 12, U8, 4, CUDA_ARRAY3D_CUBEMAP | CUDA_ARRAY3D_LAYERED);
	OK(cuArray3DCreate(&array, &desc));
	whole_3d(array, 64, 16, 12, 3);
	OK(cuArrayDestroy(array));
	desc = shape(64, 32, 0, CU_AD_FORMAT_BC3_UNORM, 4, 0); /* 16 x 8 blocks of 16 bytes */
	OK(cuArray3DCreate(&array, &desc));
	whole_3d(array, 256, 8, 1, 4);
	OK(cuArrayDestroy(array));
}

static void planes(void)
{
	CUarray array, luminance, colour, none;
	CUDA_ARRAY3D_DESCRIPTOR desc = shape(64, 32, 0, CU_AD_FORMAT_NV12, 3, 0), read;

	OK(cuArray3DCreate(&array, &desc));
	OK(cuArrayGetPlane(&luminance, array, 0));
	OK(cuArrayGetPlane(&colour, array, 1));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuArrayGetPlane(&none, array, 2));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuArrayGetPlane(&none, luminance, 0));
	OK(cuArray3DGetDescriptor(&read, colour));
	CHECK(read.Width == 32 && read.Height == 16 && read.NumChannels == 2 && read.Format == U8, "%zu x %zu",
	      read.Width, read.Height);
	whole_3d(luminance, 64, 32, 1, 5);
	whole_3d(colour, 64, 16, 1, 6);
	GIVES(CUDA_ERROR_INVALID_HANDLE, cuArrayDestroy(colour));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpyAtoH(back, array, 0, 64));
	OK(cuArrayDestroy(array));
	GIVES(CUDA_ERROR_INVALID_HANDLE, cuArray3DGetDescriptor(&read, colour));
}

static void levels(void)
{
	CUmipmappedArray mipmap;
	CUarray level, first;
	CUDA_ARRAY3D_DESCRIPTOR desc = shape(1024, 512, 0, F32, 1, 0), read;
	uint64_t before = held();

	OK(cuMipmappedArrayCreate(&mipmap, &desc, 100));
	CHECK(held() - before == 2 * GRANULE, "1024 x 512 floats and their levels take %llu",
	      (unsigned long long)(held() - before));
	OK(cuMipmappedArrayGetLevel(&first, mipmap, 0));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMipmappedArrayGetLevel(&level, mipmap, 11));
	for (unsigned i = 0; i < 11; i++) {
		size_t width = 1024 >> i, height = 512 >> i ? 512 >> i : 1;
		OK(cuMipmappedArrayGetLevel(&level, mipmap, i));
		OK(cuArray3DGetDescriptor(&read, level));
		CHECK(read.Width == width && read.Height == height, "level %u: %zu x %zu", i, read.Width, read.Height);
		if (i >= 2)
			whole_3d(level, width * 4, height, 1, i);
	}
	OK(cuMipmappedArrayGetLevel(&level, mipmap, 5)); /* the later levels have not written over it */
	OK(cuMemcpyAtoH(back, level, 0, 128));
	pattern(5, 128);
	unsigned char kept[128];
	memcpy(kept, host, sizeof kept);
	OK(cuMemcpyAtoH(back, level, 0, 128));
	CHECK(!memcmp(kept, back, 128), "level 5 keeps its own");
	GIVES(CUDA_ERROR_INVALID_HANDLE, cuArrayDestroy(first));
	OK(cuMipmappedArrayDestroy(mipmap));
	GIVES(CUDA_ERROR_INVALID_HANDLE, cuMipmappedArrayDestroy(mipmap));
	GIVES(CUDA_ERROR_INVALID_HANDLE, cuArray3DGetDescriptor(&read, level));
	CHECK(held() == before, "and gives it back");
	desc = shape(64, 64, 0, CU_AD_FORMAT_NV12, 3, 0);
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMipmappedArrayCreate(&mipmap, &desc, 2));
}

/* ---- life ----------------------------------------------------------------------------------------------------------- */

static void ends_with_its_context(CUcontext primary)
{
	CUcontext context;
	CUarray array;
	CUmipmappedArray mipmap;
	CUDA_ARRAY3D_DESCRIPTOR desc = shape(1024, 1024, 0, F32, 4, 0);
	uint64_t before = held();

	OK(cuCtxCreate_v4(&context, NULL, 0, 0));
	for (int i = 0; i < 8; i++)
		OK(cuArray3DCreate(&array, &desc));
	OK(cuMipmappedArrayCreate(&mipmap, &desc, 4));
	CHECK(held() - before > 9 * 16 * MIB, "held %llu", (unsigned long long)(held() - before));
	OK(cuCtxDestroy(context));
	OK(cuCtxSetCurrent(primary));
	CHECK(held() == before, "left %llu", (unsigned long long)(held() - before));
	GIVES(CUDA_ERROR_INVALID_HANDLE, cuArrayDestroy(array));
	GIVES(CUDA_ERROR_INVALID_HANDLE, cuMipmappedArrayDestroy(mipmap));
}

static void in_graphs(CUcontext context)
{
	CUarray array;
	CUgraph graph;
	CUgraphExec exec;
	CUgraphNode node;
	CUstream stream;
	CUDA_ARRAY3D_DESCRIPTOR desc = shape(64, 64, 0, F32, 1, 0);
	CUDA_MEMCPY3D in = {.srcMemoryType = CU_MEMORYTYPE_HOST,
	                    .srcHost = host,
	                    .srcPitch = 256,
	                    .dstMemoryType = CU_MEMORYTYPE_ARRAY,
	                    .WidthInBytes = 256,
	                    .Height = 64,
	                    .Depth = 1},
	              read;

	OK(cuArray3DCreate(&array, &desc));
	in.dstArray = array;
	OK(cuGraphCreate(&graph, 0));
	OK(cuGraphAddMemcpyNode(&node, graph, NULL, 0, &in, context));
	OK(cuGraphMemcpyNodeGetParams(node, &read));
	CHECK(read.dstArray == array && read.dstMemoryType == CU_MEMORYTYPE_ARRAY, "reads back");
	OK(cuGraphInstantiate(&exec, graph, 0));
	pattern(7, 64 * 256);
	OK(cuGraphLaunch(exec, NULL));
	OK(cuStreamSynchronize(NULL));
	CUDA_MEMCPY2D out = {.srcMemoryType = CU_MEMORYTYPE_ARRAY,
	                     .srcArray = array,
	                     .dstMemoryType = CU_MEMORYTYPE_HOST,
	                     .dstHost = back,
	                     .dstPitch = 256,
	                     .WidthInBytes = 256,
	                     .Height = 64};
	OK(cuMemcpy2D(&out));
	CHECK(!memcmp(host, back, 64 * 256), "a node copied it");
	OK(cuGraphExecDestroy(exec));
	OK(cuGraphDestroy(graph));
	OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
	memset(back, 0, sizeof back);
	OK(cuMemcpy2DAsync(&out, stream));
	OK(cuStreamEndCapture(stream, &graph));
	CHECK(back[1] == 0, "captured, not run");
	OK(cuGraphInstantiate(&exec, graph, 0));
	OK(cuGraphLaunch(exec, stream));
	OK(cuStreamSynchronize(stream));
	CHECK(!memcmp(host, back, 64 * 256), "and run");
	OK(cuArrayDestroy(array));
	OK(cuGraphLaunch(exec, stream)); /* of what is gone, nothing is touched */
	OK(cuStreamSynchronize(stream));
	OK(cuGraphExecDestroy(exec));
	OK(cuGraphDestroy(graph));
	OK(cuStreamDestroy(stream));
}

int main(void)
{
	CUcontext context = start();

	rules();
	costs();
	full_card();
	one_row();
	boxes();
	planes();
	levels();
	ends_with_its_context(context);
	in_graphs(context);
	return 0;
}
