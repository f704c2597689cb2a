/* 16 processes fill the bare card at once, with every kind of memory: never a byte more than it has, at any step (the machine's exact peak), and
 * one that goes on alone afterwards leaves less than a granule. */
#include "memory_test.h"

#define RACERS 16

static int gate[2];

struct piece {
	int kind; /* 0 plain, 1 of the pool, 2 an allocation handle, 3 packed */
	CUdeviceptr p;
	CUmemGenericAllocationHandle handle;
};

static CUresult take(struct piece *piece, uint64_t size)
{
	const CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
	                                  .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};

	switch (piece->kind) {
	case 1:
		return cuMemAllocAsync(&piece->p, size, NULL);
	case 2:
		return cuMemCreate(&piece->handle, (size + GRANULE - 1) / GRANULE * GRANULE, &prop, 0);
	default:
		return cuMemAlloc(&piece->p, piece->kind == 3 ? size % MIB + 1 : size);
	}
}

static void give(struct piece *piece)
{
	switch (piece->kind) {
	case 1:
		OK(cuMemFreeAsync(piece->p, NULL));
		OK(cuStreamSynchronize(NULL));
		break;
	case 2:
		OK(cuMemRelease(piece->handle));
		break;
	default:
		OK(cuMemFree(piece->p));
	}
}

static void race(int seed)
{
	uint64_t x = 0x9e3779b97f4a7c15u * (uint64_t)(seed + 1);
	static struct piece piece[4096];
	int n = 0, refused = 0;

	start();
	gate_wait(gate);
	while (refused < 2000) {
		x ^= x << 13, x ^= x >> 7, x ^= x << 17;
		if (n && ((x >> 20) % 4 == 0 || n == 4096)) {
			give(&piece[--n]);
			continue;
		}
		piece[n].kind = (int)(x >> 50) % 4;
		CUresult result = take(&piece[n], (x >> 30) % (256 * MIB) + 1);
		CHECK(result == CUDA_SUCCESS || result == CUDA_ERROR_OUT_OF_MEMORY, "%d", (int)result);
		if (result == CUDA_SUCCESS)
			n++;
		else
			refused++;
	}
	while (n)
		give(&piece[--n]);
	CHECK(held() == 0, "contexts of no bytes, and all given back: %lu", held());
}

static void alone(int unused)
{
	CUdeviceptr p;
	uint64_t taken = 0;

	(void)unused;
	start();
	uint64_t room = usable() - the_machine()->model[0].context;
	CHECK(free_bytes() == room, "%lu free, must be %lu", free_bytes(), room);
	for (uint64_t size = 32 * GIB; size >= GRANULE; size /= 2) {
		while (cuMemAlloc(&p, size) == CUDA_SUCCESS)
			taken += size;
	}
	CHECK(room - taken < GRANULE, "%lu of %lu taken", taken, room);
}

int main(void)
{
	setenv("PARTAGE_SIM", "zero", 1); /* contexts cost nothing: all the time goes into the race */
	pid_t child[RACERS];

	CHECK(pipe2(gate, O_CLOEXEC) == 0, "pipe");
	for (int i = 0; i < RACERS; i++)
		child[i] = start_child(race, i);
	close(gate[0]);
	close(gate[1]);
	for (int i = 0; i < RACERS; i++)
		end_child(child[i]);
	uint64_t peak = the_machine()->device[0].peak;
	CHECK(peak <= usable(), "peak %lu is over %lu", peak, usable());
	CHECK(peak > usable() - 256 * MIB - GRANULE, "the card never was full: peak %lu of %lu", peak, usable());
	NOTE("peak %lu of %lu", peak, usable());
	in_child(alone, 0);
	return 0;
}
