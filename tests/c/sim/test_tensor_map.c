/* Tensor maps of the simulated driver: the rules that cuda.h gives for each parameter, one broken at a time; the
 * address of an encoded map can be replaced, by one of the same alignment; what was never encoded is refused. */
#include "memory_test.h"

struct tiled {
	CUtensorMapDataType type;
	cuuint32_t rank;
	uintptr_t address;
	cuuint64_t dim[5], stride[4];
	cuuint32_t box[5], element[5];
	CUtensorMapInterleave interleave;
	CUtensorMapSwizzle swizzle;
	CUtensorMapL2promotion promotion;
	CUtensorMapFloatOOBfill fill;
};

static const struct tiled right = {.type = CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
                                   .rank = 3,
                                   .address = 0x7f0000000010,
                                   .dim = {1024, 512, 8},
                                   .stride = {2048, 1048576},
                                   .box = {32, 64, 1},
                                   .element = {1, 1, 1},
                                   .swizzle = CU_TENSOR_MAP_SWIZZLE_64B,
                                   .promotion = CU_TENSOR_MAP_L2_PROMOTION_L2_128B};

static CUtensorMap map;

static CUresult encode(const struct tiled *t)
{
	return cuTensorMapEncodeTiled(&map, t->type, t->rank, (void *)t->address, t->dim, t->stride, t->box, t->element,
	                              t->interleave, t->swizzle, t->promotion, t->fill);
}

#define BREAKS(member, value)                                                                                          \
	do {                                                                                                           \
		struct tiled t = right;                                                                                \
		t.member = (value);                                                                                    \
		GIVES(CUDA_ERROR_INVALID_VALUE, encode(&t));                                                           \
	} while (0)
#define HOLDS(member, value)                                                                                           \
	do {                                                                                                           \
		struct tiled t = right;                                                                                \
		t.member = (value);                                                                                    \
		OK(encode(&t));                                                                                        \
	} while (0)

static void tiled(void)
{
	OK(encode(&right));
	BREAKS(type, (CUtensorMapDataType)99);
	BREAKS(rank, 0);
	BREAKS(rank, 6);
	BREAKS(address, 0x7f0000000008);
	BREAKS(dim[1], 0);
	BREAKS(dim[1], (UINT64_C(1) << 31) + 1);
	HOLDS(dim[1], UINT64_C(1) << 31);
	BREAKS(stride[0], 2056);
	BREAKS(stride[1], UINT64_C(1) << 40);
	BREAKS(box[0], 4); /* 8 bytes */
	BREAKS(box[1], 0);
	BREAKS(box[1], 257);
	HOLDS(box[1], 256);
	BREAKS(box[0], 40); /* wider than the swizzle */
	BREAKS(element[1], 0);
	BREAKS(element[1], 9);
	BREAKS(swizzle, (CUtensorMapSwizzle)77);
	BREAKS(swizzle, CU_TENSOR_MAP_SWIZZLE_32B);
	HOLDS(swizzle, CU_TENSOR_MAP_SWIZZLE_128B);
	BREAKS(interleave, CU_TENSOR_MAP_INTERLEAVE_32B); /* its address and swizzle are others */
	BREAKS(promotion, (CUtensorMapL2promotion)9);
	HOLDS(fill, CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA);
	struct tiled t = right;
	t.type = CU_TENSOR_MAP_DATA_TYPE_INT32;
	t.fill = CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA;
	t.box[0] = 16;
	GIVES(CUDA_ERROR_INVALID_VALUE, encode(&t));
	t = right;
	t.interleave = CU_TENSOR_MAP_INTERLEAVE_16B;
	t.rank = 2;
	GIVES(CUDA_ERROR_INVALID_VALUE, encode(&t));
	GIVES(CUDA_ERROR_INVALID_VALUE,
	      cuTensorMapEncodeTiled((CUtensorMap *)((char *)&map + 16), right.type, 3, (void *)right.address,
	                             right.dim, right.stride, right.box, right.element, right.interleave, right.swizzle,
	                             right.promotion, right.fill));
}

static CUresult columns(cuuint32_t rank, int lower, int upper, cuuint32_t channels, cuuint32_t pixels)
{
	const cuuint64_t dim[5] = {64, 32, 32, 16, 8}, stride[4] = {128, 4096, 131072, 2097152};
	const cuuint32_t element[5] = {1, 1, 1, 1, 1};
	const int low[3] = {lower, lower, lower}, high[3] = {upper, upper, upper};

	return cuTensorMapEncodeIm2col(&map, CU_TENSOR_MAP_DATA_TYPE_FLOAT16, rank, (void *)0x7f0000000000, dim, stride,
	                               low, high, channels, pixels, element, CU_TENSOR_MAP_INTERLEAVE_NONE,
	                               CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_NONE,
	                               CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
}

static void im2col(void)
{
	OK(columns(3, -1, -1, 64, 128));
	OK(columns(4, -1, -1, 64, 1024));
	OK(columns(5, -1, 1, 64, 128));
	GIVES(CUDA_ERROR_INVALID_VALUE, columns(2, -1, -1, 64, 128));
	GIVES(CUDA_ERROR_INVALID_VALUE, columns(4, -129, 0, 64, 128));
	GIVES(CUDA_ERROR_INVALID_VALUE, columns(5, -17, 0, 64, 128));
	GIVES(CUDA_ERROR_INVALID_VALUE, columns(4, 20, -20, 64, 128)); /* nothing is left of the box */
	GIVES(CUDA_ERROR_INVALID_VALUE, columns(4, -1, -1, 257, 128));
	GIVES(CUDA_ERROR_INVALID_VALUE, columns(4, -1, -1, 64, 1025));
	GIVES(CUDA_ERROR_INVALID_VALUE, columns(4, -1, -1, 128, 128)); /* wider than the swizzle */
}

static void changes(void)
{
	CUtensorMap before;
	CUtensorMapAllocClass class = CU_TENSOR_MAP_ALLOC_CLASS_LARGE;

	OK(encode(&right));
	before = map;
	OK(cuTensorMapReplaceAddress(&map, (void *)(right.address + 4096)));
	CHECK(memcmp(&map, &before, sizeof map) != 0, "the address is part of it");
	GIVES(CUDA_ERROR_INVALID_VALUE, cuTensorMapReplaceAddress(&map, (void *)(right.address + 8)));
	OK(cuTensorMapReplaceAddress(&map, (void *)right.address));
	CHECK(!memcmp(&map, &before, sizeof map), "nothing else was changed");
	OK(cuTensorMapSetAllocationClass(&map, CU_TENSOR_MAP_ALLOC_CLASS_LARGE, &class));
	CHECK(class == CU_TENSOR_MAP_ALLOC_CLASS_SMALL, "class %d", class);
	GIVES(CUDA_ERROR_INVALID_VALUE, cuTensorMapSetAllocationClass(&map, (CUtensorMapAllocClass)7, &class));
	memset(&map, 0, sizeof map);
	GIVES(CUDA_ERROR_INVALID_VALUE, cuTensorMapReplaceAddress(&map, (void *)right.address));
}

int main(void)
{
	start();
	tiled();
	im2col();
	changes();
	return 0;
}
