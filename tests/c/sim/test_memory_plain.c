/* Device memory by cuMemAlloc and its like: bytes are really there, the card's count is exact, wrong pointers are
 * refused. We test: large blocks rounded to granules, small ones packed, zeroed fresh memory, double and foreign frees,
 * address ranges, cuMemGetInfo, pitch, managed memory, the 32-bit entry points, a full card. */
#include <dlfcn.h>

#include "memory_test.h"

static uint64_t before;

static void large_blocks(void)
{
	const struct {
		uint64_t asked, taken;
	} cases[] = {{2 * MIB, 2 * MIB}, {2 * MIB + 1, 4 * MIB}, {3 * MIB, 4 * MIB}, {5 * GIB, 5 * GIB}};
	CUdeviceptr p;

	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		OK(cuMemAlloc(&p, cases[i].asked));
		CHECK(p % GRANULE == 0, "%llx", p);
		CHECK(held() == before + cases[i].taken, "%lu asked, %lu taken", cases[i].asked, held() - before);
		CHECK(free_bytes() == usable() - held(), "free %lu", free_bytes());
		OK(cuMemFree(p));
		CHECK(held() == before, "%lu still held", held() - before);
	}
}

static void small_blocks(void)
{
	CUdeviceptr p[4097];

	for (int i = 0; i < 4096; i++) {
		OK(cuMemAlloc(&p[i], 1 + i % 512));
		CHECK(p[i] % 512 == 0 && p[i] / GRANULE == p[0] / GRANULE, "block %d at %llx, the first at %llx", i,
		      p[i], p[0]);
	}
	CHECK(held() == before + GRANULE, "4096 blocks of 512 bytes take %lu", held() - before);
	OK(cuMemAlloc(&p[4096], 1));
	CHECK(held() == before + 2 * GRANULE, "one more takes %lu", held() - before);
	for (int i = 1; i < 4097; i++)
		OK(cuMemFree(p[i]));
	CHECK(held() == before + GRANULE, "one left of 4097: %lu", held() - before);
	OK(cuMemFree(p[0]));
	CHECK(held() == before, "none left: %lu", held() - before);
}

static void bytes_are_there(void)
{
	unsigned char out[4096], in[4096];
	CUdeviceptr p, q;

	for (size_t i = 0; i < sizeof out; i++)
		out[i] = (unsigned char)(i * 7 + 1);
	OK(cuMemAlloc(&p, 4 * MIB));
	OK(cuMemcpyDtoH(in, p + 4 * MIB - sizeof in, sizeof in));
	for (size_t i = 0; i < sizeof in; i++)
		CHECK(in[i] == 0, "fresh byte %zu is %d", i, in[i]);
	OK(cuMemcpyHtoD(p + 4 * MIB - sizeof out, out, sizeof out));
	OK(cuMemcpyDtoH(in, p + 4 * MIB - sizeof in, sizeof in));
	CHECK(!memcmp(in, out, sizeof in), "bytes come back");
	OK(cuMemFree(p));
	OK(cuMemAlloc(&q, 4 * MIB));
	CHECK(q == p, "the same room again, at %llx", q);
	OK(cuMemcpyDtoH(in, q + 4 * MIB - sizeof in, sizeof in));
	for (size_t i = 0; i < sizeof in; i++)
		CHECK(in[i] == 0, "reused byte %zu is %d", i, in[i]);
	OK(cuMemFree(q));
}

static void wrong_pointers(void)
{
	char host[16];
	CUdeviceptr p, base;
	size_t size;

	OK(cuMemAlloc(&p, 3000));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemFree(p + 512));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemFree((CUdeviceptr)(uintptr_t)host));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemFree(0));
	OK(cuMemGetAddressRange(&base, &size, p + 2999));
	CHECK(base == p && size == 3000, "range %llx + %zu", base, size);
	GIVES(CUDA_ERROR_NOT_FOUND, cuMemGetAddressRange(&base, &size, p + 3000));
	OK(cuMemFree(p));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemFree(p));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemAlloc(&p, 0));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemAlloc(NULL, 16));
	GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc(&p, SIZE_MAX));
	CHECK(held() == before, "nothing left: %lu", held() - before);
}

static void full_card(void)
{
	CUdeviceptr p, q;
	uint64_t rest = free_bytes();

	OK(cuMemAlloc(&p, rest / GRANULE * GRANULE));
	CHECK(free_bytes() < GRANULE, "%lu left", free_bytes());
	GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc(&q, GRANULE));
	GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc(&q, 1));
	CHECK(the_machine()->device[0].peak <= usable(), "peak %lu of %lu", the_machine()->device[0].peak, usable());
	OK(cuMemFree(p));
	OK(cuMemAlloc(&q, GRANULE));
	OK(cuMemFree(q));
}

static void pitched(void)
{
	CUdeviceptr p;
	size_t pitch;

	OK(cuMemAllocPitch(&p, &pitch, 1000, 5000, 4));
	CHECK(pitch == 1024, "pitch %zu", pitch);
	CHECK(held() == before + 6 * MIB, "1024 x 5000 takes %lu", held() - before);
	OK(cuMemFree(p));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemAllocPitch(&p, &pitch, 1000, 5000, 3));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemAllocPitch(&p, &pitch, 0, 1, 4));
	GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuMemAllocPitch(&p, &pitch, SIZE_MAX / 2, 4, 4));
}

static void managed(void)
{
	CUdeviceptr p;
	int is = 0;

	OK(cuMemAllocManaged(&p, 8 * MIB, CU_MEM_ATTACH_GLOBAL));
	CHECK(held() == before + 8 * MIB, "managed memory counts %lu", held() - before);
	((volatile char *)(uintptr_t)p)[8 * MIB - 1] = 42; /* the host may touch it */
	OK(cuPointerGetAttribute(&is, CU_POINTER_ATTRIBUTE_IS_MANAGED, p + 100));
	CHECK(is == 1, "managed: %d", is);
	OK(cuMemAdvise(p, MIB, CU_MEM_ADVISE_SET_READ_MOSTLY, (CUmemLocation){CU_MEM_LOCATION_TYPE_DEVICE, {0}}));
	OK(cuMemRangeGetAttribute(&is, sizeof is, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, p, MIB));
	CHECK(is == 1, "read mostly: %d", is);
	OK(cuMemFree(p));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemAllocManaged(&p, MIB, 0));
	CHECK(held() == before, "nothing left: %lu", held() - before);
}

static void in_32_bits(void)
{
	void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
	CUresult (*alloc)(unsigned *, unsigned) = (CUresult (*)(unsigned *, unsigned))dlsym(driver, "cuMemAlloc");
	CUresult (*release)(unsigned) = (CUresult (*)(unsigned))dlsym(driver, "cuMemFree");
	unsigned words[2] = {0, 0xabcdabcd};

	CHECK(alloc && release, "the old entry points exist");
	OK(alloc(words, MIB));
	CHECK(words[0] && words[1] == 0xabcdabcd, "4 bytes are written: %x %x", words[0], words[1]);
	OK(cuMemsetD8(words[0], 5, MIB));
	OK(cuCtxSynchronize());
	CHECK(*(char *)(uintptr_t)(words[0] + MIB - 1) == 5, "the pointer means memory");
	OK(release(words[0]));
	GIVES(CUDA_ERROR_INVALID_VALUE, release(words[0]));
	CHECK(held() == before, "nothing left: %lu", held() - before);
}

int main(void)
{
	CUdeviceptr p;

	OK(cuInit(0));
	GIVES(CUDA_ERROR_INVALID_CONTEXT, cuMemAlloc(&p, 16));
	start();
	before = held();
	large_blocks();
	small_blocks();
	bytes_are_there();
	wrong_pointers();
	full_card();
	pitched();
	managed();
	in_32_bits();
	return 0;
}
