/* Batches of the simulated driver: every copy of a batch is made, also into and out of arrays; a source that is to be
 * read during the call has been; lists that do not fit are refused before anything is copied; managed memory is
 * prefetched where its part of the list says. */
#include <semaphore.h>

#include "memory_test.h"

static unsigned char host[1 << 16], back[1 << 16];

static void pattern(unsigned seed)
{
	for (size_t i = 0; i < sizeof host; i++)
		host[i] = (unsigned char)(i * 5 + i / 254 + seed);
	memset(back, 0, sizeof back);
}

static sem_t gate;

static void CUDA_CB hold(void *unused)
{
	(void)unused;
	sem_wait(&gate);
}

static void pointers(CUstream stream)
{
	CUdeviceptr p, dsts[4], srcs[4];
	size_t sizes[4], starts[2] = {0, 3};
	CUmemcpyAttributes attributes[2] = {{.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM},
	                                    {.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_ANY}};

	pattern(1);
	OK(cuMemAlloc(&p, sizeof host));
	for (size_t i = 0; i < 4; i++) {
		dsts[i] = p + i * 16384;
		srcs[i] = (CUdeviceptr)(uintptr_t)host + i * 16384;
		sizes[i] = 16384 - i;
	}
	OK(cuMemsetD8(p, 0, sizeof host));
	OK(cuMemcpyBatchAsync(dsts, srcs, sizes, 4, attributes, starts, 2, stream));
	OK(cuStreamSynchronize(stream));
	OK(cuMemcpyDtoH(back, p, sizeof back));
	for (size_t i = 0; i < sizeof host; i++)
		CHECK(back[i] == (i % 16384 < sizes[i / 16384] ? host[i] : 0), "byte %zu", i);
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpyBatchAsync(dsts, srcs, sizes, 4, attributes, starts, 2, NULL));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpyBatchAsync(dsts, srcs, sizes, 4, attributes, starts, 0, stream));
	starts[1] = 4;
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpyBatchAsync(dsts, srcs, sizes, 4, attributes, starts, 2, stream));
	starts[1] = 3;
	attributes[1].srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_INVALID;
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpyBatchAsync(dsts, srcs, sizes, 4, attributes, starts, 2, stream));
	OK(cuMemFree(p));
}

/* Pinned memory would be read later; the attribute asks that it is not. */
static void during_the_call(CUstream stream)
{
	CUmemcpyAttributes attributes = {.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL};
	CUdeviceptr p;
	void *pinned;

	OK(cuMemAlloc(&p, 4096));
	OK(cuMemHostAlloc(&pinned, 4096, 0));
	memset(pinned, 7, 4096);
	OK(cuMemcpyWithAttributesAsync(p, (CUdeviceptr)(uintptr_t)pinned, 4096, &attributes, stream));
	memset(pinned, 8, 4096);
	OK(cuStreamSynchronize(stream));
	OK(cuMemcpyDtoH(back, p, 4096));
	CHECK(back[0] == 7 && back[4095] == 7, "read during the call: %u", back[0]);
	OK(cuMemFreeHost(pinned));
	OK(cuMemFree(p));
}

static void boxes(CUstream stream)
{
	CUDA_ARRAY3D_DESCRIPTOR desc = {32, 16, 4, CU_AD_FORMAT_FLOAT, 2, 0},
	                        other = {32, 16, 4, CU_AD_FORMAT_FLOAT, 1, 0};
	CUarray a, b, c;
	CUDA_MEMCPY3D_BATCH_OP op[2] = {0};

	OK(cuArray3DCreate(&a, &desc));
	OK(cuArray3DCreate(&b, &desc));
	OK(cuArray3DCreate(&c, &other));
	pattern(2);
	op[0].src.type = CU_MEMCPY_OPERAND_TYPE_POINTER;
	op[0].src.op.ptr.ptr = (CUdeviceptr)(uintptr_t)host;
	op[0].dst.type = CU_MEMCPY_OPERAND_TYPE_ARRAY;
	op[0].dst.op.array.array = a;
	op[0].extent = (CUextent3D){32, 16, 4};
	op[0].srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
	OK(cuMemcpy3DBatchAsync(1, op, 0, stream));
	op[0].src = op[0].dst;
	op[0].src.op.array.offset = (CUoffset3D){1, 2, 1};
	op[0].dst.op.array.array = b;
	op[0].extent = (CUextent3D){8, 4, 2};
	OK(cuMemcpy3DBatchAsync(1, op, 0, stream));
	op[1].src = op[0].dst;
	op[1].dst.type = CU_MEMCPY_OPERAND_TYPE_POINTER;
	op[1].dst.op.ptr.ptr = (CUdeviceptr)(uintptr_t)back;
	op[1].dst.op.ptr.rowLength = 10;
	op[1].dst.op.ptr.layerHeight = 5;
	op[1].extent = (CUextent3D){8, 4, 2};
	op[1].srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
	OK(cuMemcpy3DWithAttributesAsync(&op[1], 0, stream));
	OK(cuStreamSynchronize(stream));
	for (size_t z = 0; z < 2; z++)
		for (size_t y = 0; y < 4; y++)
			CHECK(!memcmp(back + (z * 5 + y) * 80, host + (((z + 1) * 16 + y + 2) * 32 + 1) * 8, 64),
			      "row %zu of layer %zu", y, z);
	op[1].dst.op.ptr.rowLength = 7;
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpy3DWithAttributesAsync(&op[1], 0, stream));
	op[0].dst.op.array.array = c; /* of other elements */
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpy3DBatchAsync(1, op, 0, stream));
	op[0].dst.op.array.array = b;
	op[0].extent.depth = 0;
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpy3DBatchAsync(1, op, 0, stream));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpy3DBatchAsync(1, op, 1, stream));
	OK(cuArrayDestroy(a));
	OK(cuArrayDestroy(b));
	OK(cuArrayDestroy(c));
}

static int prefetched(CUdeviceptr p)
{
	int where = -3;

	OK(cuMemRangeGetAttribute(&where, sizeof where, CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION, p, 4096));
	return where;
}

static void managed(CUstream stream)
{
	CUdeviceptr p[3], plain;
	size_t sizes[3] = {4096, 4096, 4096}, starts[2] = {0, 2};
	CUmemLocation to[2] = {{.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}, {.type = CU_MEM_LOCATION_TYPE_HOST}};

	for (int i = 0; i < 3; i++)
		OK(cuMemAllocManaged(&p[i], 4096, CU_MEM_ATTACH_GLOBAL));
	OK(cuMemPrefetchBatchAsync(p, sizes, 3, to, starts, 2, 0, stream));
	CHECK(prefetched(p[0]) == 0 && prefetched(p[1]) == 0 && prefetched(p[2]) == CU_DEVICE_CPU, "%d %d %d",
	      prefetched(p[0]), prefetched(p[1]), prefetched(p[2]));
	OK(cuMemDiscardBatchAsync(p, sizes, 3, 0, stream));
	OK(cuMemDiscardAndPrefetchBatchAsync(p, sizes, 3, &to[1], starts, 1, 0, stream));
	CHECK(prefetched(p[0]) == CU_DEVICE_CPU, "%d", prefetched(p[0]));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemPrefetchBatchAsync(p, sizes, 3, to, starts, 2, 1, stream));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemPrefetchBatchAsync(p, sizes, 3, to, starts, 2, 0, NULL));
	OK(cuMemAlloc(&plain, 4096));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemDiscardBatchAsync(&plain, sizes, 1, 0, stream));
	OK(cuMemFree(plain));
	for (int i = 0; i < 3; i++)
		OK(cuMemFree(p[i]));
}

/* In the order of the stream, not at once. */
static void in_stream_order(CUstream stream)
{
	CUmemcpyAttributes attributes = {.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM};
	CUdeviceptr p;
	void *pinned;

	OK(cuMemAlloc(&p, 4096));
	OK(cuMemHostAlloc(&pinned, 4096, 0));
	memset(pinned, 1, 4096);
	OK(cuLaunchHostFunc(stream, hold, NULL));
	OK(cuMemcpyWithAttributesAsync(p, (CUdeviceptr)(uintptr_t)pinned, 4096, &attributes, stream));
	memset(pinned, 2, 4096);
	CHECK(sem_post(&gate) == 0, "sem_post");
	OK(cuStreamSynchronize(stream));
	OK(cuMemcpyDtoH(back, p, 4096));
	CHECK(back[0] == 2, "read in stream order: %u", back[0]);
	OK(cuMemFreeHost(pinned));
	OK(cuMemFree(p));
}

int main(void)
{
	CUstream stream;

	start();
	CHECK(sem_init(&gate, 0, 0) == 0, "sem_init");
	OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	pointers(stream);
	during_the_call(stream);
	boxes(stream);
	managed(stream);
	in_stream_order(stream);
	return 0;
}
