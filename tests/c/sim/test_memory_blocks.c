/* 100,000 live blocks: they need no mapping each (the kernel allows 65,530), they count exactly, they are freed in
 * random order, and looking one up does not walk the others. */
#include <time.h>

#include "memory_test.h"

#define BLOCKS 100000

static unsigned mappings(void)
{
	unsigned lines = 0;
	FILE *maps = fopen("/proc/self/maps", "r");

	for (int c; (c = fgetc(maps)) != EOF;)
		lines += c == '\n';
	fclose(maps);
	return lines;
}

static uint64_t now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void shuffle(CUdeviceptr *p, size_t n)
{
	uint64_t x = 88172645463325252u;

	for (size_t i = n - 1; i > 0; i--) {
		x ^= x << 13, x ^= x >> 7, x ^= x << 17;
		CUdeviceptr other = p[x % (i + 1)];
		p[x % (i + 1)] = p[i];
		p[i] = other;
	}
}

int main(void)
{
	static CUdeviceptr p[BLOCKS];
	CUdeviceptr base;
	size_t size;

	start();
	uint64_t before = held();
	OK(cuMemAlloc(&p[0], 4096));
	unsigned maps_before = mappings();
	uint64_t t0 = now();
	for (int i = 1; i < BLOCKS; i++)
		OK(cuMemAlloc(&p[i], 4096));
	uint64_t t1 = now();
	CHECK(mappings() <= maps_before + 16, "%u mappings, before %u", mappings(), maps_before);
	uint64_t granules = (BLOCKS * UINT64_C(4096) + GRANULE - 1) / GRANULE;
	CHECK(held() == before + granules * GRANULE, "%lu held, must be %lu", held() - before, granules * GRANULE);
	shuffle(p, BLOCKS);
	for (int i = 0; i < BLOCKS; i++) {
		OK(cuMemGetAddressRange(&base, &size, p[i] + 4095));
		CHECK(base == p[i] && size == 4096, "block %d: %llx + %zu", i, base, size);
	}
	uint64_t t2 = now();
	for (int i = 0; i < BLOCKS; i++)
		OK(cuMemFree(p[i]));
	NOTE("alloc %lu ns, free %lu ns each", (t1 - t0) / BLOCKS, (now() - t2) / BLOCKS);
	CHECK(held() == before, "%lu left", held() - before);
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemFree(p[BLOCKS / 2]));
	return 0;
}
