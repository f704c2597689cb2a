/* Small blocks against a plain list of what is live: random sizes come and go, no two overlap, every address finds its
 * own block and no other, and the card counts exactly the granules that have a block in them. */
#include "memory_test.h"

#define MOST  1500
#define STEPS 40000

static struct {
	CUdeviceptr p;
	uint64_t size;
} live[MOST];
static int count;

static uint64_t next(void)
{
	static uint64_t x = 88172645463325252u;

	x ^= x << 13, x ^= x >> 7, x ^= x << 17;
	return x >> 16;
}

static void take(void)
{
	const uint64_t most[] = {512, 4096, 100000, 2 * MIB - 1};
	uint64_t size = 1 + next() % most[next() % 4];
	CUdeviceptr p;

	OK(cuMemAlloc(&p, size));
	CHECK(p % 512 == 0 && p / GRANULE == (p + size - 1) / GRANULE, "%llx of %lu", p, size);
	for (int i = 0; i < count; i++)
		CHECK(p + size <= live[i].p || live[i].p + live[i].size <= p, "%llx of %lu overlaps %llx of %lu", p,
		      size, live[i].p, live[i].size);
	live[count].p = p;
	live[count++].size = size;
}

static void give(int i)
{
	OK(cuMemFree(live[i].p));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemFree(live[i].p));
	live[i] = live[--count];
}

static void look(int i)
{
	uint64_t inside = next() % live[i].size;
	CUdeviceptr base;
	size_t size;

	OK(cuMemGetAddressRange(&base, &size, live[i].p + inside));
	CHECK(base == live[i].p && size == live[i].size, "%llx + %lu is in %llx of %zu", live[i].p, inside, base, size);
	if (live[i].size % 512)
		GIVES(CUDA_ERROR_NOT_FOUND, cuMemGetAddressRange(&base, &size, live[i].p + live[i].size));
	if (inside)
		GIVES(CUDA_ERROR_INVALID_VALUE, cuMemFree(live[i].p + inside));
}

static uint64_t granules(void)
{
	uint64_t n = 0;

	for (int i = 0; i < count; i++) {
		int j = 0;
		while (live[j].p / GRANULE != live[i].p / GRANULE)
			j++;
		n += i == j;
	}
	return n;
}

int main(void)
{
	start();
	uint64_t before = held();
	for (int i = 0; i < STEPS; i++) {
		bool grow = next() % 100 < (i / 10000 % 2 ? 40 : 70); /* fills up, thins out */
		if (count == MOST || (count && !grow))
			give((int)(next() % (uint64_t)count));
		else
			take();
		if (count)
			look((int)(next() % (uint64_t)count));
		if (i % 400 == 0)
			CHECK(held() == before + granules() * GRANULE, "%lu held, %lu granules", held() - before,
			      granules());
	}
	OK(cuMemcpy(live[0].p, live[1].p, live[0].size < live[1].size ? live[0].size : live[1].size));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemsetD8(live[0].p, 1, live[0].size + 1));
	while (count)
		give(count - 1);
	CHECK(held() == before, "%lu left", held() - before);
	take(); /* and with the context */
	OK(cuDevicePrimaryCtxReset(0));
	CHECK(held() == 0, "%lu left by the context", held());
	return 0;
}
