/* sim_test.h: what the tests of the simulated driver share: a context, the machine file, code that takes time, a gate.
 *
 * Time is only ever looked at on the virtual timeline or in the machine's counters. To queue work that shall begin
 * together, close a gate first: a host function that waits until test_gate_open().
 */
#ifndef PARTAGE_SIM_TEST_H
#define PARTAGE_SIM_TEST_H

#include <cuda.h>
#include <fcntl.h>
#include <semaphore.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

#include "check.h"
#include "machine.h"

#define OK(call)                                                                                                       \
	do {                                                                                                           \
		CUresult ok_result = (call);                                                                           \
		CHECK(ok_result == CUDA_SUCCESS, "%s gave %d", #call, ok_result);                                      \
	} while (0)
#define GIVES(expected, call)                                                                                          \
	do {                                                                                                           \
		CUresult gives_result = (call);                                                                        \
		CHECK(gives_result == (expected), "%s gave %d, not %d", #call, gives_result, (int)(expected));         \
	} while (0)

/* Kernels for every test: spin_ns runs as long as its argument says, the others by their profile's rules. */
static const char test_ptx[] __attribute__((unused)) =
        ".version 8.0\n.target sm_70\n.address_size 64\n"
        ".visible .entry spin_ns(.param .u64 ns) { ret; }\n"
        ".visible .entry plain(.param .u64 p, .param .u32 n) { ret; }\n"
        ".visible .entry nothing() { ret; }\n"
        ".visible .entry ncclDevKernel_AllReduce(.param .u64 p) { ret; }\n";

/* The context of device 0 (or another), current. Sets the machine's profile before the first use. */
static inline CUcontext test_context(const char *profile, int device)
{
	CUcontext context;
	if (profile)
		setenv("PARTAGE_SIM", profile, 1);
	OK(cuInit(0));
	OK(cuDevicePrimaryCtxRetain(&context, device));
	OK(cuCtxSetCurrent(context));
	return context;
}

static inline CUfunction test_function(const char *name)
{
	CUmodule module;
	CUfunction function;
	OK(cuModuleLoadData(&module, test_ptx));
	OK(cuModuleGetFunction(&function, module, name));
	return function;
}

static inline void test_spin(CUfunction spin, CUstream stream, uint64_t ns)
{
	void *params[] = {&ns};
	OK(cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, stream, params, NULL));
}

static inline struct sim_machine *test_machine(void)
{
	char path[4096];
	snprintf(path, sizeof(path), "%s/machine", getenv("PARTAGE_SIM_DIR"));
	int fd = open(path, O_RDWR | O_CLOEXEC);
	CHECK(fd >= 0, "%s cannot be opened", path);
	void *machine = mmap(NULL, sizeof(struct sim_machine), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	CHECK(machine != MAP_FAILED, "%s cannot be mapped", path);
	close(fd);
	return machine;
}

/* This process's counters on a device. */
static inline struct sim_client_device *test_counters(struct sim_machine *machine, int device)
{
	for (int i = 0; i < SIM_CLIENTS; i++)
		if (machine->client[i].state && machine->client[i].pid == (int)getpid())
			return &machine->client[i].device[device];
	CHECK(0, "process %d has no client slot", (int)getpid());
	return NULL;
}

static inline void test_gate_function(void *semaphore)
{
	while (sem_wait(semaphore) != 0)
		;
}

static inline void test_gate_close(sem_t *gate, CUstream stream)
{
	CHECK(sem_init(gate, 0, 0) == 0, "no semaphore");
	OK(cuLaunchHostFunc(stream, test_gate_function, gate));
}

static inline void test_gate_open(sem_t *gate)
{
	sem_post(gate);
}

#endif
