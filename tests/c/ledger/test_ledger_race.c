/* 16 processes of four threads race to one limit: what they get together is the limit to the byte, at no moment more, and
 * all of it returns. */
#include "world.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>

enum { PROCESSES = 16, THREADS = 4, BLOCKS = 2000, ROUNDS = 3000 };

static struct shared {
	uint64_t got; /* blocks */
	uint64_t ready; /* processes at the line */
	uint64_t go;
	uint64_t finished;
} *shared;

static void *grab(void *unused)
{
	(void)unused;
	while (vgpu_reserve(0, 2 * MIB) == CUDA_SUCCESS)
		__atomic_add_fetch(&shared->got, 1, __ATOMIC_SEQ_CST);
	return NULL;
}

static void *churn(void *argument)
{
	uint64_t seed = (uintptr_t)argument * 2654435761u + 88172645463325252u;
	for (int i = 0; i < ROUNDS; i++) {
		seed ^= seed << 13;
		seed ^= seed >> 7;
		seed ^= seed << 17;
		uint64_t bytes = seed % (300 * MIB) + 1;
		if (vgpu_reserve(1, bytes) == CUDA_SUCCESS)
			vgpu_give_back(1, bytes);
	}
	return NULL;
}

static void in_threads(void *(*body)(void *))
{
	pthread_t thread[THREADS];
	for (uintptr_t i = 0; i < THREADS; i++)
		CHECK(pthread_create(&thread[i], NULL, body, (void *)(i + (uintptr_t)getpid() * THREADS)) == 0,
		      "thread");
	for (int i = 0; i < THREADS; i++)
		pthread_join(thread[i], NULL);
}

static void run(int number)
{
	CHECK(vgpu_mode() == VGPU_LIMITED, "mode %d: %s", vgpu_mode(), vgpu_reason());
	__atomic_add_fetch(&shared->ready, 1, __ATOMIC_SEQ_CST);
	while (!__atomic_load_n(&shared->go, __ATOMIC_SEQ_CST))
		sched_yield();
	in_threads(grab);
	in_threads(churn);
	uint64_t mine = vgpu_used(0);
	CHECK(mine <= BLOCKS * 2 * MIB, "process %d sees %llu", number, (unsigned long long)mine);
	__atomic_add_fetch(&shared->finished, 1, __ATOMIC_SEQ_CST);
	pause();
}

int main(void)
{
	pid_t pids[PROCESSES];
	world_begin();
	world_share(BLOCKS * 2 * MIB + 4095);
	shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	for (int i = 0; i < PROCESSES; i++) {
		pids[i] = fork();
		CHECK(pids[i] >= 0, "fork");
		if (pids[i] == 0)
			run(i);
	}
	while (__atomic_load_n(&shared->ready, __ATOMIC_SEQ_CST) < PROCESSES)
		sched_yield();
	__atomic_store_n(&shared->go, 1, __ATOMIC_SEQ_CST);
	while (__atomic_load_n(&shared->finished, __ATOMIC_SEQ_CST) < PROCESSES)
		for (int i = 0; i < PROCESSES; i++)
			if (waitpid(pids[i], NULL, WNOHANG) != 0)
				CHECK(false, "process %d has failed", i);
			else if (i < 2 && shared->ready == PROCESSES && __atomic_load_n(&shared->got, __ATOMIC_SEQ_CST))
				CHECK(world_used((unsigned)i) <= BLOCKS * 2 * MIB + 4095, "over the limit on device %d",
				      i);
	CHECK(shared->got == BLOCKS, "together they got %llu blocks of %d", (unsigned long long)shared->got, BLOCKS);
	CHECK(world_used(0) == BLOCKS * 2 * MIB && world_sum(0) == world_used(0), "the word says %llu, the slots %llu",
	      (unsigned long long)world_used(0), (unsigned long long)world_sum(0));
	CHECK(world_used(1) == 0 && world_sum(1) == 0, "%llu bytes were given back and are still there",
	      (unsigned long long)world_used(1));
	for (int i = 0; i < PROCESSES; i++) {
		kill(pids[i], SIGKILL);
		waitpid(pids[i], NULL, 0);
	}
	CHECK(vgpu_reserve(0, BLOCKS * 2 * MIB) == CUDA_SUCCESS, "the memory of the dead did not return: %s",
	      vgpu_reason());
	CHECK(world_ledger()->reclaimed == PROCESSES, "%u slots were reclaimed of %d", world_ledger()->reclaimed,
	      PROCESSES);
	CHECK(vgpu_reserve(0, 1) == CUDA_ERROR_OUT_OF_MEMORY, "a byte past the limit");
	return 0;
}
