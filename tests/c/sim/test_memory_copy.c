/* Copies and fills move real bytes, in stream order, and never outside an allocation. We test: every direction,
 * unified cuMemcpy, asynchronous copies from memory that is overwritten right after, rows and layers, pitch and
 * fills, pinned and registered host memory, ranges that leave their allocation. */
#include "memory_test.h"

static CUdeviceptr a, b;
static unsigned char host[64 * 1024], back[64 * 1024];

static void pattern(unsigned seed)
{
	for (size_t i = 0; i < sizeof host; i++)
		host[i] = (unsigned char)(i * 13 + i / 256 + seed);
	memset(back, 0, sizeof back);
}

static void check_back(size_t n, const char *what)
{
	CHECK(!memcmp(host, back, n), "%s: bytes differ", what);
}

static void rows_of_bytes(void)
{
	size_t n = sizeof host;

	pattern(1);
	OK(cuMemcpyHtoD(a, host, n));
	OK(cuMemcpyDtoD(b, a, n));
	OK(cuMemcpyDtoH(back, b, n));
	check_back(n, "host, device, device, host");
	pattern(2);
	OK(cuMemcpy(a, (CUdeviceptr)(uintptr_t)host, n));
	OK(cuMemcpyAsync(b, a, n, NULL));
	OK(cuMemcpy((CUdeviceptr)(uintptr_t)back, b, n));
	check_back(n, "unified");
	pattern(3);
	OK(cuMemcpyHtoD(a, NULL, 0));
	OK(cuMemcpyHtoD(a + 1, host, 1000)); /* no alignment is needed */
	OK(cuMemcpyDtoH(back, a + 1, 1000));
	check_back(1000, "unaligned");
}

static int gate[2];

static void CUDA_CB hold(void *unused)
{
	char byte;

	(void)unused;
	CHECK(read(gate[0], &byte, 1) == 1, "gate");
}

/* The source of an asynchronous copy from pageable memory may be reused at once, also where the stream stands still. */
static void staged(CUstream stream)
{
	pattern(4);
	OK(cuMemsetD8Async(a, 0, sizeof host, stream));
	OK(cuStreamSynchronize(stream));
	OK(cuLaunchHostFunc(stream, hold, NULL));
	OK(cuMemcpyHtoDAsync(a, host, sizeof host, stream));
	memset(host, 0xff, sizeof host);
	CHECK(*(volatile char *)(uintptr_t)(a + 1) == 0, "the copy has not run yet");
	CHECK(write(gate[1], "x", 1) == 1, "open");
	OK(cuMemcpyDtoHAsync(back, a, sizeof back, stream));
	pattern(4);
	OK(cuStreamSynchronize(stream));
	OK(cuMemcpyDtoH(back, a, sizeof back));
	check_back(sizeof host, "staged");
}

static void outside(void)
{
	CUdeviceptr tail = a + 4 * MIB - 100;

	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpyHtoD(tail, host, 101));
	OK(cuMemcpyHtoD(tail, host, 100));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpyDtoH(back, tail, 101));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpyHtoD((CUdeviceptr)(uintptr_t)back, host, 16));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpyHtoD(a, NULL, 16));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemsetD8(tail, 0, 101));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemsetD32(a + 2, 0, 1));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemsetD16(a + 1, 0, 1));
}

static void in_two_dimensions(void)
{
	CUDA_MEMCPY2D copy = {.srcMemoryType = CU_MEMORYTYPE_HOST,
	                      .srcHost = host,
	                      .srcPitch = 100,
	                      .srcXInBytes = 10,
	                      .srcY = 1,
	                      .dstMemoryType = CU_MEMORYTYPE_DEVICE,
	                      .dstDevice = a,
	                      .dstPitch = 512,
	                      .dstXInBytes = 4,
	                      .dstY = 2,
	                      .WidthInBytes = 50,
	                      .Height = 20};
	unsigned char row[50];

	pattern(5);
	OK(cuMemcpy2D(&copy));
	for (unsigned y = 0; y < 20; y++) {
		OK(cuMemcpyDtoH(row, a + (y + 2) * 512 + 4, 50));
		CHECK(!memcmp(row, host + (y + 1) * 100 + 10, 50), "row %u", y);
	}
	copy.srcPitch = 59;
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpy2D(&copy));
	copy.srcPitch = 100;
	copy.dstPitch = 4 * MIB;
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpy2D(&copy));
	copy.dstMemoryType = CU_MEMORYTYPE_ARRAY;
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpy2D(&copy));
}

static void in_three_dimensions(CUstream stream)
{
	CUDA_MEMCPY3D copy = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
	                      .srcDevice = a,
	                      .srcPitch = 64,
	                      .srcHeight = 8,
	                      .srcZ = 1,
	                      .dstMemoryType = CU_MEMORYTYPE_HOST,
	                      .dstHost = back,
	                      .dstPitch = 32,
	                      .dstHeight = 4,
	                      .WidthInBytes = 32,
	                      .Height = 4,
	                      .Depth = 3};

	pattern(6);
	OK(cuMemcpyHtoD(a, host, 64 * 8 * 4));
	OK(cuMemcpy3DAsync(&copy, stream));
	OK(cuStreamSynchronize(stream));
	for (unsigned z = 0; z < 3; z++) {
		for (unsigned y = 0; y < 4; y++)
			CHECK(!memcmp(back + (z * 4 + y) * 32, host + ((z + 1) * 8 + y) * 64, 32), "layer %u row %u", z,
			      y);
	}
	copy.srcHeight = 3;
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpy3D(&copy));
}

static void fills(CUstream stream)
{
	unsigned *word = (unsigned *)back;

	OK(cuMemsetD32(a, 0xdeadbeef, 1000));
	OK(cuCtxSynchronize()); /* the other stream does not wait for this one */
	OK(cuMemsetD16Async(a + 400, 0x1234, 2, stream));
	OK(cuMemsetD2D8(b, 100, 7, 10, 20));
	OK(cuCtxSynchronize());
	OK(cuMemcpyDtoH(back, a, 4000));
	CHECK(word[99] == 0xdeadbeef && word[100] == 0x12341234 && word[101] == 0xdeadbeef, "%x %x %x", word[99],
	      word[100], word[101]);
	OK(cuMemcpyDtoH(back, b, 2000));
	CHECK(back[9] == 7 && back[10] != 7 && back[1909] == 7, "%d %d %d", back[9], back[10], back[1909]);
	/* a large fill with zero drops pages: everything in it is zero, nothing beside it */
	OK(cuMemsetD8(a, 9, 4 * MIB));
	OK(cuMemsetD8(a + 1000, 0, 3 * MIB));
	OK(cuCtxSynchronize());
	const unsigned char *p = (const unsigned char *)(uintptr_t)a;
	for (size_t i = 0; i < 4 * MIB; i++)
		CHECK(p[i] == (i < 1000 || i >= 1000 + 3 * MIB ? 9 : 0), "byte %zu is %d", i, p[i]);
}

static void pinned(CUstream stream)
{
	static char own[8192];
	unsigned flags;
	CUdeviceptr p;
	void *buffer;
	uint64_t before = held();

	OK(cuMemHostAlloc(&buffer, 100000, CU_MEMHOSTALLOC_PORTABLE));
	CHECK(held() == before, "pinned memory takes nothing of the card: %lu", held() - before);
	OK(cuMemHostGetFlags(&flags, buffer));
	CHECK(flags & CU_MEMHOSTALLOC_PORTABLE, "flags %#x", flags);
	OK(cuMemHostGetDevicePointer(&p, (char *)buffer + 10, 0));
	OK(cuMemcpyDtoD(p, a, 100));
	OK(cuMemcpyDtoHAsync((char *)buffer + 200, a, 100, stream));
	OK(cuStreamSynchronize(stream));
	CHECK(!memcmp((char *)buffer + 10, (char *)buffer + 200, 100), "both ways");
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpyDtoHAsync((char *)buffer + 99999, a, 2, stream));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemFree(p - 10));
	OK(cuMemFreeHost(buffer));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemFreeHost(buffer));
	OK(cuMemHostRegister(own, sizeof own, 0));
	GIVES(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, cuMemHostRegister(own + 100, 10, 0));
	OK(cuMemHostUnregister(own));
	GIVES(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, cuMemHostUnregister(own));
}

static void pointers(void)
{
	CUpointer_attribute which[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
	                               CU_POINTER_ATTRIBUTE_RANGE_SIZE};
	unsigned type = 99;
	int ordinal = 99;
	size_t size = 99;
	void *data[] = {&type, &ordinal, &size};

	OK(cuPointerGetAttributes(3, which, data, a + 5));
	CHECK(type == CU_MEMORYTYPE_DEVICE && ordinal == 0 && size == 4 * MIB, "%u %d %zu", type, ordinal, size);
	OK(cuPointerGetAttributes(3, which, data, (CUdeviceptr)(uintptr_t)host));
	CHECK(type == 0 && ordinal == CU_DEVICE_INVALID && size == 0, "foreign: %u %d %zu", type, ordinal, size);
	GIVES(CUDA_ERROR_INVALID_VALUE, cuPointerGetAttribute(&type, which[0], (CUdeviceptr)(uintptr_t)host));
}

int main(void)
{
	CUstream stream;

	CHECK(pipe2(gate, O_CLOEXEC) == 0, "pipe");
	CUcontext context = start();
	OK(cuMemAlloc(&a, 4 * MIB));
	OK(cuMemAlloc(&b, 4 * MIB));
	OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	rows_of_bytes();
	staged(stream);
	outside();
	in_two_dimensions();
	in_three_dimensions(stream);
	fills(stream);
	pinned(stream);
	pointers();
	pattern(7);
	OK(cuMemcpyHtoD(a, host, 1000));
	OK(cuMemcpyPeer(b, context, a, context, 1000));
	OK(cuMemcpyDtoH(back, b, 1000));
	check_back(1000, "between contexts");
	return 0;
}
