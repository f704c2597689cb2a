/* Clients killed at any instruction: their memory returns, nobody waits for a lock of theirs, and the count stays exact
 * while others go on allocating. Also a slot that a dead client left is taken again. */
#include <sys/prctl.h>

#include "memory_test.h"

#define WORKERS 4
#define KILLS   300

static void work(int hold)
{
	CUdeviceptr p;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	start();
	if (hold) {
		OK(cuMemAlloc(&p, 40 * GIB));
		CHECK(write(hold, "x", 1) == 1, "tell");
		pause();
	}
	for (;;) {
		CUresult result = cuMemAlloc(&p, 8 * GIB);
		CHECK(result == CUDA_SUCCESS || result == CUDA_ERROR_OUT_OF_MEMORY, "%d", (int)result);
		if (result == CUDA_SUCCESS)
			OK(cuMemFree(p));
	}
}

static void kill_child(pid_t child)
{
	CHECK(kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child, "kill");
}

/* The bytes of a killed client are free for the next allocation, without anybody having looked before. */
static void killed_memory_returns(int unused)
{
	CUdeviceptr p;
	int told[2];
	char byte;

	(void)unused;
	CHECK(pipe2(told, O_CLOEXEC) == 0, "pipe");
	pid_t child = start_child(work, told[1]);
	CHECK(read(told[0], &byte, 1) == 1, "told");
	start();
	uint64_t peak = the_machine()->device[0].peak;
	GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc(&p, 60 * GIB));
	kill_child(child);
	OK(cuMemAlloc(&p, 60 * GIB));
	CHECK(free_bytes() == usable() - held(), "%lu free, %lu held", free_bytes(), held());
	CHECK(the_machine()->device[0].peak == (peak > held() ? peak : held()), "peak %lu counts the dead",
	      the_machine()->device[0].peak);
}

/* A client that dies inside the device's lock leaves it taken and its numbers half-written. Played by writing the words
 * that it would leave. */
static void dead_owner(int unused)
{
	struct sim_device_state *state = &the_machine()->device[0];
	int told[2], slot = -1;
	CUdeviceptr p;
	char byte;

	(void)unused;
	CHECK(pipe2(told, O_CLOEXEC) == 0, "pipe");
	pid_t child = start_child(work, told[1]);
	CHECK(read(told[0], &byte, 1) == 1, "told");
	for (int i = 0; i < SIM_CLIENTS; i++) {
		if (the_machine()->client[i].state && the_machine()->client[i].pid == child)
			slot = i;
	}
	CHECK(slot >= 0, "the child's slot");
	start();
	kill_child(child);
	state->used += 123 * GIB;
	__atomic_store_n(&state->lock, (uint64_t)the_machine()->client[slot].generation << 32 | (uint64_t)(slot + 1),
	                 __ATOMIC_RELEASE);
	OK(cuMemAlloc(&p, 70 * GIB));
	CHECK(state->used == held(), "counted again: %lu, %lu held", state->used, held());
	/* and of a slot that has a new tenant by now: this process, as an older one */
	for (int i = 0; i < SIM_CLIENTS; i++) {
		if (the_machine()->client[i].state && the_machine()->client[i].pid == getpid())
			slot = i;
	}
	uint64_t older = (the_machine()->client[slot].generation - UINT64_C(1)) << 32;
	__atomic_store_n(&state->lock, older | (uint64_t)(slot + 1), __ATOMIC_RELEASE);
	OK(cuMemFree(p));
	CHECK(state->lock == 0, "free again: %lx", state->lock);
}

/* In the child of an initialised process, which has no driver, hence a program of its own. */
static void takes_the_rest(int unused)
{
	(void)unused;
	execl("/proc/self/exe", "third", "third", (char *)NULL);
	CHECK(0, "exec");
}

static int third(void)
{
	CUdeviceptr p;

	start();
	GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc(&p, 21 * GIB));
	OK(cuMemAlloc(&p, 19 * GIB));
	return 0;
}

/* A program that closes every descriptor, as daemons do, and opens others under their numbers: the living still look
 * alive to it, a dead one's lock can still be taken over, and it counts as alive again itself. */
static void closed_descriptors(int reuse)
{
	struct sim_device_state *state = &the_machine()->device[0];
	int told[2];
	CUdeviceptr p;
	char byte;

	CHECK(pipe2(told, O_CLOEXEC) == 0, "pipe");
	pid_t child = start_child(work, told[1]);
	CHECK(read(told[0], &byte, 1) == 1, "told");
	start();
	for (int fd = 3; fd < 64; fd++)
		close(fd);
	for (int i = 0; reuse && i < 60; i++)
		CHECK(open("/proc/self/exe", O_RDONLY | O_CLOEXEC) >= 0, "open");
	GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc(&p, 60 * GIB));
	CHECK(state->used == 40 * GIB, "the living one still has its bytes: %lu", state->used);
	OK(cuMemAlloc(&p, 20 * GIB));
	/* and the others know: a third one finds this one's bytes taken */
	pid_t third = start_child(takes_the_rest, 0);
	end_child(third);
	uint64_t dead = 0;
	for (int i = 0; i < SIM_CLIENTS; i++)
		if (the_machine()->client[i].state && the_machine()->client[i].pid == child)
			dead = (uint64_t)the_machine()->client[i].generation << 32 | (uint64_t)(i + 1);
	kill_child(child);
	__atomic_store_n(&state->lock, dead, __ATOMIC_RELEASE);
	OK(cuMemAlloc(&p, 50 * GIB));
}

static void contended(void)
{
	pid_t child[WORKERS];
	uint64_t x = 12345;

	for (int i = 0; i < WORKERS; i++)
		child[i] = start_child(work, 0);
	for (int i = 0; i < KILLS; i++) {
		x ^= x << 13, x ^= x >> 7, x ^= x << 17;
		for (uint64_t spin = x % 2000000; spin; spin--)
			__asm__ volatile("");
		kill_child(child[i % WORKERS]);
		child[i % WORKERS] = start_child(work, 0);
	}
	for (int i = 0; i < WORKERS; i++)
		kill_child(child[i]);
}

static void afterwards(int unused)
{
	CUdeviceptr p;
	int used = 0;

	(void)unused;
	start();
	CHECK(free_bytes() == usable() - the_machine()->model[0].context, "%lu free after the kills", free_bytes());
	OK(cuMemAlloc(&p, 70 * GIB));
	for (int i = 0; i < SIM_CLIENTS; i++)
		used += the_machine()->client[i].generation != 0;
	CHECK(used <= 4 * WORKERS, "%d slots were ever used: dead ones are not taken again", used);
	CHECK(the_machine()->device[0].peak <= usable(), "peak %lu", the_machine()->device[0].peak);
}

int main(int argc, char **argv)
{
	if (argc > 1 && !strcmp(argv[1], "third"))
		return third();
	setenv("PARTAGE_SIM", "zero", 1); /* contexts cost nothing: the kills hit allocations */
	in_child(killed_memory_returns, 0);
	in_child(dead_owner, 0);
	in_child(closed_descriptors, 0);
	in_child(closed_descriptors, 1);
	contended();
	in_child(afterwards, 0);
	return 0;
}
