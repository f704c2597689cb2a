/* memory_test.h: what the test_memory_*.c, test_context_*.c and test_device_*.c programs share: calls that must succeed
 * or give one error, the machine file itself (whose numbers are the truth that the driver's answers are held against),
 * and child processes that meet at a pipe. */
#ifndef PARTAGE_TESTS_MEMORY_TEST_H
#define PARTAGE_TESTS_MEMORY_TEST_H

#include <cuda.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "check.h"
#include "machine.h"

#define KIB     UINT64_C(1024)
#define MIB     (UINT64_C(1024) * KIB)
#define GIB     (UINT64_C(1024) * MIB)
#define GRANULE (2 * MIB)

#define GIVES(code, call)                                                                                              \
	do {                                                                                                           \
		CUresult got_ = (call);                                                                                \
		CHECK(got_ == (code), "%s answers %d, must be %d", #call, (int)got_, (int)(code));                     \
	} while (0)
#define OK(call) GIVES(CUDA_SUCCESS, call)

/* The machine file, mapped by the test itself; it exists from the first cuInit of any process on. */
static inline struct sim_machine *the_machine(void)
{
	static struct sim_machine *machine;
	char path[4200];

	if (machine)
		return machine;
	snprintf(path, sizeof path, "%s/machine", getenv("PARTAGE_SIM_DIR"));
	int fd = open(path, O_RDWR | O_CLOEXEC);
	CHECK(fd >= 0, "%s", path);
	machine = mmap(NULL, sizeof *machine, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	CHECK(machine != MAP_FAILED, "%s", path);
	close(fd);
	return machine;
}

/* Bytes that this process holds on device 0, as the machine file says. */
static inline uint64_t held(void)
{
	for (int i = 0; i < SIM_CLIENTS; i++) {
		struct sim_client *client = &the_machine()->client[i];
		if (client->state && client->pid == getpid())
			return __atomic_load_n(&client->device[0].memory, __ATOMIC_ACQUIRE);
	}
	return 0;
}

/* What the card has for programs. */
static inline uint64_t usable(void)
{
	return the_machine()->model[0].memory - the_machine()->model[0].reserved;
}

static inline uint64_t free_bytes(void)
{
	size_t free_now, total;

	OK(cuMemGetInfo(&free_now, &total));
	CHECK(total == the_machine()->model[0].memory, "total %zu", total);
	return free_now;
}

/* cuInit and the primary context of device 0. */
static inline CUcontext start(void)
{
	CUcontext context;

	OK(cuInit(0));
	OK(cuDevicePrimaryCtxRetain(&context, 0));
	OK(cuCtxSetCurrent(context));
	return context;
}

/* Runs body in a child and expects it to end with 0. The parent must not have called cuInit. */
static inline pid_t start_child(void (*body)(int), int argument)
{
	fflush(stdout);
	pid_t child = fork();
	CHECK(child >= 0, "fork");
	if (child == 0) {
		body(argument);
		_exit(0);
	}
	return child;
}

static inline void end_child(pid_t child)
{
	int status;

	CHECK(waitpid(child, &status, 0) == child, "waitpid");
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "child %d ended with status %#x", (int)child, status);
}

static inline void in_child(void (*body)(int), int argument)
{
	end_child(start_child(body, argument));
}

/* A gate that many children wait at: reading ends when the parent closes its end. */
static inline void gate_wait(const int *gate)
{
	char byte;

	close(gate[1]);
	CHECK(read(gate[0], &byte, 1) == 0, "gate");
}

#endif
