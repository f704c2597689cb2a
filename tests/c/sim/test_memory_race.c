/* 16 processes fill the bare card at once: never a byte more than it has, at any step (the machine's exact peak), and
 * one that goes on alone afterwards leaves less than a granule. */
#include "memory_test.h"

#define RACERS 16

static int gate[2];

static void race(int seed)
{
	uint64_t x = 0x9e3779b97f4a7c15u * (uint64_t)(seed + 1);
	CUdeviceptr p[4096];
	int n = 0, refused = 0;

	start();
	gate_wait(gate);
	while (refused < 2000) {
		x ^= x << 13, x ^= x >> 7, x ^= x << 17;
		if (n && (x >> 20) % 4 == 0) {
			OK(cuMemFree(p[--n]));
			continue;
		}
		CUresult result = n < 4096 ? cuMemAlloc(&p[n], (x >> 30) % (256 * MIB) + 1) : CUDA_ERROR_OUT_OF_MEMORY;
		CHECK(result == CUDA_SUCCESS || result == CUDA_ERROR_OUT_OF_MEMORY, "%d", (int)result);
		if (result == CUDA_SUCCESS)
			n++;
		else
			refused++;
	}
	while (n)
		OK(cuMemFree(p[--n]));
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
