/* The process's size: memory that nobody wrote costs nothing, freed memory goes back, clearing with zeroes costs
 * nothing. */
#include "memory_test.h"

static uint64_t resident(void)
{
	unsigned long pages = 0;
	FILE *file = fopen("/proc/self/statm", "r");

	CHECK(file && fscanf(file, "%*u %lu", &pages) == 1, "statm");
	fclose(file);
	return pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

int main(void)
{
	CUdeviceptr p, q[64];

#ifdef __SANITIZE_THREAD__
	SKIP("the thread sanitizer's record of every byte written is part of the process's size");
#endif
	start();
	OK(cuMemAlloc(&p, 64 * GIB));
	OK(cuMemAlloc(&q[0], 4096));
	OK(cuMemFree(q[0]));
	uint64_t before = resident();
	OK(cuMemsetD32(p, 0, 16 * GIB));
	OK(cuCtxSynchronize());
	CHECK(resident() < before + 32 * MIB, "64 GiB cleared: %lu MiB more", (resident() - before) / MIB);
	OK(cuMemsetD8(p, 1, 256 * MIB));
	OK(cuCtxSynchronize());
	CHECK(resident() > before + 200 * MIB, "256 MiB written: %lu MiB more", (resident() - before) / MIB);
	OK(cuMemFree(p));
	CHECK(resident() < before + 32 * MIB, "freed: %lu MiB more", (resident() - before) / MIB);
	for (int i = 0; i < 64; i++) {
		OK(cuMemAlloc(&q[i], MIB));
		OK(cuMemsetD8(q[i], 1, MIB));
	}
	OK(cuCtxSynchronize());
	CHECK(resident() > before + 50 * MIB, "small blocks written: %lu MiB more", (resident() - before) / MIB);
	for (int i = 0; i < 64; i++)
		OK(cuMemFree(q[i]));
	CHECK(resident() < before + 32 * MIB, "small blocks freed: %lu MiB more", (resident() - before) / MIB);
	return 0;
}
