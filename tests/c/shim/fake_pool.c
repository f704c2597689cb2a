/* fake_pool.c: the one memory pool of fake_driver.h: chunks of 32 MiB in units of 1 MiB, first fit from a random place;
 * what is freed waits for its stream, which fake_sync lets run.
 */
#include "fake_parts.h"

#define POOL_BASE UINT64_C(0x7e0000000000)
#define CHUNKS    256
#define UNITS     32 /* of 1 MiB in a chunk */

static uint64_t keep;

enum { UNIT_FREE, UNIT_USED, UNIT_PENDING };
static struct {
	uint8_t state, stream;
	uint16_t length; /* of the block that begins here */
} unit[CHUNKS * UNITS];
static bool reserved[CHUNKS];

static uint64_t pool_reserved(void)
{
	uint64_t n = 0;
	for (unsigned c = 0; c < CHUNKS; c++)
		n += reserved[c] ? UNITS * MIB : 0;
	return n;
}

static int run_of(unsigned n, unsigned stream, bool fresh)
{
	unsigned begin = (unsigned)rand() % (CHUNKS * UNITS), run = 0;
	for (unsigned k = 0; k < 2 * CHUNKS * UNITS; k++) {
		unsigned i = (begin + k) % (CHUNKS * UNITS);
		bool usable =
		        fresh ? !reserved[i / UNITS]
			      : reserved[i / UNITS] && (unit[i].state == UNIT_FREE ||
			                                (unit[i].state == UNIT_PENDING && unit[i].stream == stream));
		run = i == 0 || !usable || (fresh && run == 0 && i % UNITS != 0)
		              ? (usable && (!fresh || i % UNITS == 0))
		              : run + 1;
		if (run == n)
			return (int)(i + 1 - n);
	}
	return -1;
}

static CUdeviceptr place_async(uint64_t bytes, unsigned stream)
{
	unsigned n = (unsigned)((bytes + MIB - 1) / MIB);
	int at = run_of(n, stream, false);
	if (at < 0 && (at = run_of((n + UNITS - 1) / UNITS * UNITS, stream, true)) >= 0)
		for (unsigned c = (unsigned)at / UNITS; c <= ((unsigned)at + n - 1) / UNITS; c++) {
			reserved[c] = true;
			fake_take(UNITS * MIB);
		}
	if (at < 0)
		return 0;
	for (unsigned i = 0; i < n; i++)
		unit[(unsigned)at + i].state = UNIT_USED;
	unit[at].length = (uint16_t)n;
	return POOL_BASE + (unsigned)at * MIB;
}

CUresult fake_free_pooled(CUdeviceptr p, unsigned stream, bool now)
{
	uint64_t at = (p - POOL_BASE) / MIB;
	if (p < POOL_BASE || at >= CHUNKS * UNITS || unit[at].state != UNIT_USED || unit[at].length == 0)
		return CUDA_ERROR_INVALID_VALUE;
	for (unsigned i = 0; i < unit[at].length; i++) {
		unit[at + i].state = now ? UNIT_FREE : UNIT_PENDING;
		unit[at + i].stream = (uint8_t)stream;
	}
	unit[at].length = 0;
	return CUDA_SUCCESS;
}

static void release_unused(uint64_t least)
{
	for (unsigned c = 0; c < CHUNKS && pool_reserved() > least; c++) {
		bool unused = reserved[c];
		for (unsigned i = 0; i < UNITS && unused; i++)
			unused = unit[c * UNITS + i].state == UNIT_FREE;
		if (unused) {
			reserved[c] = false;
			fake_drop(UNITS * MIB);
		}
	}
}

void fake_sync(void)
{
	fake_enter();
	for (unsigned i = 0; i < CHUNKS * UNITS; i++)
		if (unit[i].state == UNIT_PENDING)
			unit[i].state = UNIT_FREE;
	release_unused(keep);
	fake_leave();
}

CUresult fake_cuMemAllocAsync(CUdeviceptr *p, size_t n, CUstream stream)
{
	CUresult error = CUDA_SUCCESS;
	fake_enter();
	if (!fake_fails_locked("cuMemAllocAsync", &error)) {
		*p = place_async(n, (unsigned)(uintptr_t)stream);
		error = *p ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
	}
	fake_leave();
	return error;
}

CUresult fake_cuMemFreeAsync(CUdeviceptr p, CUstream stream)
{
	fake_enter();
	CUresult error = p < FAKE_BASE ? fake_free_pooled(p, (unsigned)(uintptr_t)stream, false) : fake_free_plain(p);
	fake_leave();
	return error;
}

CUresult fake_cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value)
{
	(void)pool;
	CUresult error = CUDA_SUCCESS;
	fake_enter();
	if (!fake_fails_locked("cuMemPoolGetAttribute", &error))
		*(cuuint64_t *)value = attribute == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD ? keep : pool_reserved();
	fake_leave();
	return error;
}

CUresult fake_cuMemPoolTrimTo(CUmemoryPool pool, size_t least)
{
	(void)pool;
	fake_enter();
	release_unused(least);
	fake_leave();
	return CUDA_SUCCESS;
}

CUresult fake_get_pool(CUmemoryPool *pool, CUdevice device)
{
	(void)device;
	*pool = (CUmemoryPool)(uintptr_t)0x1000;
	return CUDA_SUCCESS;
}

void fake_keep(uint64_t bytes)
{
	keep = bytes;
}
