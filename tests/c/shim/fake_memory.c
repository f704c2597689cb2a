/* fake_memory.c: plain memory of fake_driver.h: small blocks are packed into 2 MiB granules, large ones take whole ones.
 * What is managed or pitched is a plain block here.
 */
#include <string.h>

#include "fake_parts.h"

#define GRANULES 4096
#define PAGE     UINT64_C(4096)
#define PAGES    512

static uint64_t pitch_unit = 512;

static struct {
	uint16_t used; /* pages, of a granule with small blocks */
	uint16_t large; /* granules of the large block that begins here */
	bool taken;
	uint16_t page[PAGES]; /* pages of the block that begins here; UINT16_MAX inside one */
} granule[GRANULES];

static CUdeviceptr place_large(uint64_t bytes)
{
	uint64_t n = (bytes + VGPU_GRANULE - 1) / VGPU_GRANULE, run = 0;
	for (uint64_t i = 0; i < GRANULES; i++) {
		run = granule[i].taken ? 0 : run + 1;
		if (run < n)
			continue;
		for (uint64_t k = i + 1 - n; k <= i; k++)
			granule[k].taken = true;
		granule[i + 1 - n].large = (uint16_t)n;
		fake_take(n * VGPU_GRANULE);
		return FAKE_BASE + (i + 1 - n) * VGPU_GRANULE;
	}
	return 0;
}

static bool place_in(uint64_t g, unsigned n, unsigned *at)
{
	for (unsigned i = 0, run = 0; i < PAGES; i++) {
		run = granule[g].page[i] ? 0 : run + 1;
		if (run == n) {
			*at = i + 1 - n;
			return true;
		}
	}
	return false;
}

static CUdeviceptr place_small(uint64_t bytes)
{
	unsigned n = (unsigned)((bytes + PAGE - 1) / PAGE), at = 0;
	uint64_t found = GRANULES;
	for (uint64_t g = 0; g < GRANULES && found == GRANULES; g++)
		if (granule[g].taken && granule[g].large == 0 && granule[g].used != 0 && place_in(g, n, &at))
			found = g;
	for (uint64_t g = 0; g < GRANULES && found == GRANULES; g++)
		if (!granule[g].taken) {
			found = g;
			at = 0;
			granule[g].taken = true;
			fake_take(VGPU_GRANULE);
		}
	granule[found].used += n;
	for (unsigned i = 0; i < n; i++)
		granule[found].page[at + i] = i ? UINT16_MAX : (uint16_t)n;
	return FAKE_BASE + found * VGPU_GRANULE + at * PAGE;
}

CUresult fake_free_plain(CUdeviceptr p)
{
	uint64_t g = (p - FAKE_BASE) / VGPU_GRANULE;
	unsigned at = (unsigned)((p - FAKE_BASE) % VGPU_GRANULE / PAGE);
	if (p < FAKE_BASE || g >= GRANULES || !granule[g].taken)
		return CUDA_ERROR_INVALID_VALUE;
	if (granule[g].large != 0) {
		unsigned n = granule[g].large;
		granule[g].large = 0;
		for (unsigned k = 0; k < n; k++)
			granule[g + k].taken = false;
		fake_drop(n * VGPU_GRANULE);
		return CUDA_SUCCESS;
	}
	unsigned n = granule[g].page[at];
	if (n == 0 || n == UINT16_MAX)
		return CUDA_ERROR_INVALID_VALUE;
	memset(&granule[g].page[at], 0, n * sizeof(uint16_t));
	granule[g].used -= n;
	if (granule[g].used == 0) {
		granule[g].taken = false;
		fake_drop(VGPU_GRANULE);
	}
	return CUDA_SUCCESS;
}

CUresult fake_cuMemAlloc_v2(CUdeviceptr *p, size_t n)
{
	CUresult error = CUDA_SUCCESS;
	fake_enter();
	if (!fake_fails_locked("cuMemAlloc_v2", &error)) {
		*p = n < VGPU_GRANULE ? place_small(n) : place_large(n);
		error = *p ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
	}
	fake_leave();
	return error;
}

CUresult fake_cuMemAllocManaged(CUdeviceptr *p, size_t n, unsigned int flags)
{
	(void)flags;
	return fake_cuMemAlloc_v2(p, n);
}

CUresult fake_cuMemAllocPitch_v2(CUdeviceptr *p, size_t *pitch, size_t w, size_t h, unsigned int element)
{
	(void)element;
	*pitch = vgpu_round_up(w, pitch_unit);
	return fake_cuMemAlloc_v2(p, *pitch * h);
}

CUresult fake_cuMemFree_v2(CUdeviceptr p)
{
	CUresult error;
	fake_enter();
	if (!fake_fails_locked("cuMemFree_v2", &error))
		error = p < FAKE_BASE ? fake_free_pooled(p, 0, true) : fake_free_plain(p);
	fake_leave();
	return error;
}

void fake_pitch(uint64_t unit)
{
	pitch_unit = unit;
}
