/* Texture and surface objects and references of the simulated driver: descriptors read back as given, the rules of
 * cuda.h hold, references are the program's own or a module's, and all of it ends with what it belongs to. */
#include "memory_test.h"

#define U8  CU_AD_FORMAT_UNSIGNED_INT8
#define U32 CU_AD_FORMAT_UNSIGNED_INT32
#define F32 CU_AD_FORMAT_FLOAT

static CUarray array_of(size_t width, size_t height, size_t depth, CUarray_format format, unsigned channels,
                        unsigned flags)
{
	CUDA_ARRAY3D_DESCRIPTOR desc = {width, height, depth, format, channels, flags};
	CUarray array;

	OK(cuArray3DCreate(&array, &desc));
	return array;
}

static CUDA_RESOURCE_DESC of_array(CUarray array)
{
	return (CUDA_RESOURCE_DESC){.resType = CU_RESOURCE_TYPE_ARRAY, .res = {.array = {.hArray = array}}};
}

static void objects(void)
{
	CUarray array = array_of(64, 32, 0, F32, 4, 0);
	CUDA_RESOURCE_DESC resource = of_array(array), resource_back;
	CUDA_TEXTURE_DESC texture = {.addressMode = {CU_TR_ADDRESS_MODE_CLAMP, CU_TR_ADDRESS_MODE_MIRROR, 0},
	                             .filterMode = CU_TR_FILTER_MODE_LINEAR,
	                             .flags = CU_TRSF_NORMALIZED_COORDINATES,
	                             .maxAnisotropy = 8,
	                             .borderColor = {1, 2, 3, 4}},
	                  texture_back;
	CUDA_RESOURCE_VIEW_DESC view = {.format = CU_RES_VIEW_FORMAT_FLOAT_4X32, .width = 64, .height = 32}, view_back;
	CUtexObject object;

	OK(cuTexObjectCreate(&object, &resource, &texture, &view));
	OK(cuTexObjectGetResourceDesc(&resource_back, object));
	OK(cuTexObjectGetTextureDesc(&texture_back, object));
	OK(cuTexObjectGetResourceViewDesc(&view_back, object));
	CHECK(!memcmp(&resource, &resource_back, sizeof resource) && !memcmp(&texture, &texture_back, sizeof texture) &&
	              !memcmp(&view, &view_back, sizeof view),
	      "descriptors read back");
	OK(cuTexObjectDestroy(object));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuTexObjectDestroy(object));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuTexObjectGetTextureDesc(&texture_back, object));
	OK(cuTexObjectCreate(&object, &resource, &texture, NULL));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuTexObjectGetResourceViewDesc(&view_back, object));
	OK(cuTexObjectDestroy(object));
	view.width = 32;
	GIVES(CUDA_ERROR_INVALID_VALUE, cuTexObjectCreate(&object, &resource, &texture, &view));
	texture.filterMode = (CUfilter_mode)2;
	GIVES(CUDA_ERROR_INVALID_VALUE, cuTexObjectCreate(&object, &resource, &texture, NULL));
	texture.filterMode = CU_TR_FILTER_MODE_POINT;
	texture.flags |= CU_TRSF_SEAMLESS_CUBEMAP;
	GIVES(CUDA_ERROR_INVALID_VALUE, cuTexObjectCreate(&object, &resource, &texture, NULL));
	texture.flags = 0x80;
	GIVES(CUDA_ERROR_INVALID_VALUE, cuTexObjectCreate(&object, &resource, &texture, NULL));
	texture.flags = 0;
	resource.flags = 1;
	GIVES(CUDA_ERROR_INVALID_VALUE, cuTexObjectCreate(&object, &resource, &texture, NULL));
	OK(cuArrayDestroy(array));
	resource.flags = 0;
	GIVES(CUDA_ERROR_INVALID_VALUE, cuTexObjectCreate(&object, &resource, &texture, NULL));
}

static void block_views(void)
{
	CUarray array = array_of(64, 32, 0, U32, 2, 0);
	CUDA_RESOURCE_DESC resource = of_array(array);
	CUDA_TEXTURE_DESC texture = {0};
	CUDA_RESOURCE_VIEW_DESC view = {.format = CU_RES_VIEW_FORMAT_UNSIGNED_BC1, .width = 256, .height = 128};
	CUtexObject object;

	OK(cuTexObjectCreate(&object, &resource, &texture, &view));
	OK(cuTexObjectDestroy(object));
	view.format = CU_RES_VIEW_FORMAT_UNSIGNED_BC3; /* four words a block */
	GIVES(CUDA_ERROR_INVALID_VALUE, cuTexObjectCreate(&object, &resource, &texture, &view));
	OK(cuArrayDestroy(array));
}

static void memory(void)
{
	CUDA_TEXTURE_DESC texture = {0};
	CUdeviceptr p;
	CUtexObject object;

	OK(cuMemAlloc(&p, 1 << 20));
	CUDA_RESOURCE_DESC linear = {.resType = CU_RESOURCE_TYPE_LINEAR};
	linear.res.linear.devPtr = p;
	linear.res.linear.format = F32;
	linear.res.linear.numChannels = 4;
	linear.res.linear.sizeInBytes = 1 << 20;
	OK(cuTexObjectCreate(&object, &linear, &texture, NULL));
	OK(cuTexObjectDestroy(object));
	linear.res.linear.devPtr = p + 16;
	GIVES(CUDA_ERROR_INVALID_VALUE, cuTexObjectCreate(&object, &linear, &texture, NULL));
	linear.res.linear.devPtr = p;
	linear.res.linear.sizeInBytes = (1 << 20) + 1;
	GIVES(CUDA_ERROR_INVALID_VALUE, cuTexObjectCreate(&object, &linear, &texture, NULL));
	linear.res.linear.sizeInBytes = 1 << 20;
	linear.res.linear.numChannels = 3;
	GIVES(CUDA_ERROR_INVALID_VALUE, cuTexObjectCreate(&object, &linear, &texture, NULL));
	CUDA_RESOURCE_DESC rows = {.resType = CU_RESOURCE_TYPE_PITCH2D};
	rows.res.pitch2D.devPtr = p;
	rows.res.pitch2D.format = U8;
	rows.res.pitch2D.numChannels = 1;
	rows.res.pitch2D.width = 100;
	rows.res.pitch2D.height = 8;
	rows.res.pitch2D.pitchInBytes = 128;
	OK(cuTexObjectCreate(&object, &rows, &texture, NULL));
	OK(cuTexObjectDestroy(object));
	rows.res.pitch2D.pitchInBytes = 120;
	GIVES(CUDA_ERROR_INVALID_VALUE, cuTexObjectCreate(&object, &rows, &texture, NULL));
	rows.res.pitch2D.pitchInBytes = 96;
	GIVES(CUDA_ERROR_INVALID_VALUE, cuTexObjectCreate(&object, &rows, &texture, NULL));
	OK(cuMemFree(p));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuTexObjectCreate(&object, &linear, &texture, NULL));
}

static void mipmaps(void)
{
	CUDA_ARRAY3D_DESCRIPTOR desc = {64, 64, 0, F32, 1, 0};
	CUDA_TEXTURE_DESC texture = {.maxMipmapLevelClamp = 3};
	CUmipmappedArray mipmap;
	CUtexObject object;

	OK(cuMipmappedArrayCreate(&mipmap, &desc, 4));
	CUDA_RESOURCE_DESC resource = {.resType = CU_RESOURCE_TYPE_MIPMAPPED_ARRAY,
	                               .res = {.mipmap = {.hMipmappedArray = mipmap}}};
	CUDA_RESOURCE_VIEW_DESC view = {
	        .format = CU_RES_VIEW_FORMAT_FLOAT_1X32, .width = 64, .height = 64, .lastMipmapLevel = 3};
	GIVES(CUDA_ERROR_INVALID_VALUE, cuTexObjectCreate(&object, &resource, &texture, &view));
	texture.flags = CU_TRSF_NORMALIZED_COORDINATES;
	OK(cuTexObjectCreate(&object, &resource, &texture, &view));
	OK(cuTexObjectDestroy(object));
	view.lastMipmapLevel = 4;
	GIVES(CUDA_ERROR_INVALID_VALUE, cuTexObjectCreate(&object, &resource, &texture, &view));
	OK(cuMipmappedArrayDestroy(mipmap));
}

static void surfaces(CUcontext primary)
{
	CUarray plain = array_of(64, 64, 0, F32, 1, 0), stored = array_of(64, 64, 0, F32, 1, CUDA_ARRAY3D_SURFACE_LDST);
	CUDA_RESOURCE_DESC resource = of_array(stored), back;
	CUsurfObject object;
	CUtexObject texture;
	CUcontext context;

	OK(cuSurfObjectCreate(&object, &resource));
	OK(cuSurfObjectGetResourceDesc(&back, object));
	CHECK(back.res.array.hArray == stored, "reads back");
	GIVES(CUDA_ERROR_INVALID_VALUE, cuTexObjectDestroy(object)); /* no texture */
	OK(cuSurfObjectDestroy(object));
	resource = of_array(plain);
	GIVES(CUDA_ERROR_INVALID_VALUE, cuSurfObjectCreate(&object, &resource));
	OK(cuArrayDestroy(plain));
	OK(cuArrayDestroy(stored));
	OK(cuCtxCreate_v4(&context, NULL, 0, 0));
	resource = of_array(array_of(8, 8, 0, F32, 1, 0));
	OK(cuTexObjectCreate(&texture, &resource, &(CUDA_TEXTURE_DESC){0}, NULL));
	OK(cuCtxDestroy(context));
	OK(cuCtxSetCurrent(primary));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuTexObjectDestroy(texture));
}

static void references(void)
{
	CUarray array = array_of(64, 64, 0, CU_AD_FORMAT_HALF, 2, 0), bound;
	CUtexref ref;
	CUdeviceptr p, back;
	CUarray_format format;
	CUaddress_mode mode;
	unsigned flags;
	int channels, anisotropy;
	size_t offset;
	float least, most, color[4] = {0}, red[4] = {1, 0, 0, 1};

	OK(cuTexRefCreate(&ref));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuTexRefGetArray(&bound, ref));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuTexRefSetArray(ref, array, 0));
	OK(cuTexRefSetArray(ref, array, CU_TRSA_OVERRIDE_FORMAT));
	OK(cuTexRefGetArray(&bound, ref));
	OK(cuTexRefGetFormat(&format, &channels, ref));
	CHECK(bound == array && format == CU_AD_FORMAT_HALF && channels == 2, "bound to the array: %#x", format);
	GIVES(CUDA_ERROR_INVALID_VALUE, cuTexRefGetAddress(&back, ref));
	OK(cuMemAlloc(&p, 1 << 16));
	OK(cuTexRefSetFormat(ref, F32, 1));
	OK(cuTexRefSetAddress(&offset, ref, p + 4, 1024));
	CHECK(offset == 4, "offset %zu", offset);
	OK(cuTexRefGetAddress(&back, ref));
	CHECK(back == p, "bound to the aligned address");
	GIVES(CUDA_ERROR_INVALID_VALUE, cuTexRefSetAddress(NULL, ref, p + 4, 1024));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuTexRefSetAddress(&offset, ref, p, 1 << 17));
	CUDA_ARRAY_DESCRIPTOR desc = {64, 8, U8, 4};
	OK(cuTexRefSetAddress2D(ref, &desc, p, 256));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuTexRefSetAddress2D(ref, &desc, p, 250));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuTexRefSetFormat(ref, F32, 1));
	OK(cuTexRefSetAddressMode(ref, 1, CU_TR_ADDRESS_MODE_MIRROR));
	OK(cuTexRefGetAddressMode(&mode, ref, 1));
	OK(cuTexRefSetFlags(ref, CU_TRSF_READ_AS_INTEGER));
	OK(cuTexRefGetFlags(&flags, ref));
	OK(cuTexRefSetMaxAnisotropy(ref, 16));
	OK(cuTexRefGetMaxAnisotropy(&anisotropy, ref));
	OK(cuTexRefSetMipmapLevelClamp(ref, 1, 2));
	OK(cuTexRefGetMipmapLevelClamp(&least, &most, ref));
	OK(cuTexRefSetBorderColor(ref, red));
	OK(cuTexRefGetBorderColor(color, ref));
	CHECK(mode == CU_TR_ADDRESS_MODE_MIRROR && flags == CU_TRSF_READ_AS_INTEGER && anisotropy == 16 && least == 1 &&
	              most == 2 && !memcmp(color, red, sizeof red),
	      "modes read back");
	GIVES(CUDA_ERROR_INVALID_VALUE, cuTexRefSetAddressMode(ref, 3, CU_TR_ADDRESS_MODE_WRAP));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuTexRefSetFilterMode(ref, (CUfilter_mode)7));
	OK(cuTexRefDestroy(ref));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuTexRefDestroy(ref));
	OK(cuMemFree(p));
	OK(cuArrayDestroy(array));
}

static void of_modules(void)
{
	static const char code[] = ".version 7.0\n.target sm_70\n.address_size 64\n"
	                           ".global .texref tex;\n.global .surfref surf;\n.global .u32 word;\n"
	                           ".visible .entry kernel() { ret; }\n";
	CUarray array = array_of(64, 64, 0, F32, 1, CUDA_ARRAY3D_SURFACE_LDST), bound;
	CUmodule module;
	CUfunction kernel;
	CUtexref tex, own, again;
	CUsurfref surf;

	OK(cuModuleLoadData(&module, code));
	OK(cuModuleGetFunction(&kernel, module, "kernel"));
	OK(cuModuleGetTexRef(&tex, module, "tex"));
	OK(cuModuleGetTexRef(&again, module, "tex"));
	CHECK(tex == again, "one reference for each name");
	OK(cuModuleGetSurfRef(&surf, module, "surf"));
	GIVES(CUDA_ERROR_NOT_FOUND, cuModuleGetTexRef(&tex, module, "surf"));
	GIVES(CUDA_ERROR_NOT_FOUND, cuModuleGetTexRef(&tex, module, "word"));
	GIVES(CUDA_ERROR_NOT_FOUND, cuModuleGetSurfRef(&surf, module, "none"));
	OK(cuTexRefSetArray(tex, array, CU_TRSA_OVERRIDE_FORMAT));
	OK(cuParamSetTexRef(kernel, CU_PARAM_TR_DEFAULT, tex));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuParamSetTexRef(kernel, 0, tex));
	OK(cuTexRefCreate(&own));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuParamSetTexRef(kernel, CU_PARAM_TR_DEFAULT, own));
	OK(cuTexRefDestroy(own));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuTexRefDestroy(tex));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuSurfRefGetArray(&bound, surf));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuSurfRefSetArray(surf, array, 1));
	OK(cuSurfRefSetArray(surf, array, 0));
	OK(cuSurfRefGetArray(&bound, surf));
	CHECK(bound == array, "the surface is bound");
	OK(cuModuleUnload(module));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuSurfRefGetArray(&bound, surf));
	OK(cuArrayDestroy(array));
}

int main(void)
{
	CUcontext context = start();
	uint64_t before = held();

	objects();
	block_views();
	memory();
	mipmaps();
	surfaces(context);
	references();
	of_modules();
	CHECK(held() == before, "left %llu bytes", (unsigned long long)(held() - before));
	return 0;
}
