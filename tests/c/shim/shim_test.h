/* shim_test.h: what the tests of charging share: a program under libvgpu.so on the simulated driver, the machine file
 * as the witness of what is really held, and children that start together. A parent that forks must not call the driver
 * before: a context does not survive a fork.
 */
#ifndef PARTAGE_TESTS_SHIM_TEST_H
#define PARTAGE_TESTS_SHIM_TEST_H

#include <cuda.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "check.h"
#include "machine.h"

#define MIB          (UINT64_C(1) << 20)
#define GIB          (UINT64_C(1) << 30)
#define GRANULE      (2 * MIB)
#define POOL_GRANULE (32 * MIB)

/* cuda.h is compiled with its internal versions here, so the plain names are the old ones. */
#define OK(call)                                                                                                       \
	do {                                                                                                           \
		CUresult ok_ = (call);                                                                                 \
		CHECK(ok_ == CUDA_SUCCESS, "%s is %d", #call, (int)ok_);                                               \
	} while (0)
#define IS(call, expected)                                                                                             \
	do {                                                                                                           \
		CUresult is_ = (call);                                                                                 \
		CHECK(is_ == (expected), "%s is %d, expected %d", #call, (int)is_, (int)(expected));                   \
	} while (0)

/* The machine, once some process has called the driver. */
static inline struct sim_machine *machine(void)
{
	static struct sim_machine *m;
	char path[512];
	if (m != NULL)
		return m;
	snprintf(path, sizeof(path), "%s/machine", getenv("PARTAGE_SIM_DIR"));
	int fd = open(path, O_RDWR | O_CLOEXEC);
	CHECK(fd >= 0, "%s cannot be opened", path);
	m = mmap(NULL, sizeof(*m), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	CHECK(m != MAP_FAILED && m->magic == SIM_MACHINE_MAGIC, "%s is no machine", path);
	close(fd);
	return m;
}

static inline uint64_t peak(void)
{
	return __atomic_load_n(&machine()->device[0].peak, __ATOMIC_ACQUIRE);
}

/* What the driver holds for living processes; call it when the dead are gone. */
static inline uint64_t held(int device)
{
	return __atomic_load_n(&machine()->device[device].used, __ATOMIC_ACQUIRE);
}

/* The next `count` calls of an entry point after `after` more fail with `code`. */
static inline void arm(const char *call, CUresult code, uint64_t after, uint64_t count)
{
	for (int i = 0; i < SIM_FAULTS; i++) {
		struct sim_fault *f = &machine()->fault[i];
		if (f->active)
			continue;
		memset(f, 0, sizeof(*f));
		snprintf(f->call, sizeof(f->call), "%s", call);
		f->device = -1;
		f->code = (int32_t)code;
		f->after = after;
		f->count = count;
		__atomic_store_n(&f->active, 1, __ATOMIC_RELEASE);
		if (machine()->faults <= (uint32_t)i)
			__atomic_store_n(&machine()->faults, (uint32_t)i + 1, __ATOMIC_RELEASE);
		return;
	}
}

static inline void disarm(void)
{
	for (int i = 0; i < SIM_FAULTS; i++)
		__atomic_store_n(&machine()->fault[i].active, 0, __ATOMIC_RELEASE);
}

/* cuInit and the primary context of a device, made current. */
static inline CUcontext start(CUdevice ordinal)
{
	CUdevice device;
	CUcontext context;
	OK(cuInit(0));
	OK(cuDeviceGet(&device, ordinal));
	OK(cuDevicePrimaryCtxRetain(&context, device));
	OK(cuCtxSetCurrent(context));
	return context;
}

/* As this container sees it. */
static inline uint64_t used(void)
{
	size_t free_bytes, total;
	OK(cuMemGetInfo_v2(&free_bytes, &total));
	CHECK(free_bytes <= total, "free %zu of total %zu", free_bytes, total);
	return total - free_bytes;
}

/* How often this process has called an entry point of the driver. */
uint64_t partage_sim_calls(const char *name);

/* ---- children that start together -------------------------------------------------------------------------------- */

struct crew {
	int gate[2]; /* closed by the parent: go */
	int ready[2];
	pid_t pid[256];
	unsigned count;
};

/* In a child: ready, and wait for the others. */
static inline void crew_wait(struct crew *c)
{
	char byte = 0;
	close(c->gate[1]);
	CHECK(write(c->ready[1], &byte, 1) == 1, "ready");
	CHECK(read(c->gate[0], &byte, 1) == 0, "gate");
}

static inline void crew_start(struct crew *c, unsigned count, void (*work)(struct crew *, unsigned))
{
	CHECK(pipe(c->gate) == 0 && pipe(c->ready) == 0, "pipes");
	c->count = count;
	for (unsigned i = 0; i < count; i++) {
		c->pid[i] = fork();
		CHECK(c->pid[i] >= 0, "fork %u", i);
		if (c->pid[i] == 0) {
			work(c, i);
			_exit(0);
		}
	}
	for (unsigned i = 0; i < count; i++) {
		char byte;
		CHECK(read(c->ready[0], &byte, 1) == 1, "child %u", i);
	}
	close(c->gate[0]);
	close(c->gate[1]);
}

static inline void crew_join(struct crew *c)
{
	for (unsigned i = 0; i < c->count; i++) {
		int status;
		CHECK(waitpid(c->pid[i], &status, 0) == c->pid[i], "wait for child %u", i);
		CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "child %u ended with status 0x%x", i, status);
	}
	close(c->ready[0]);
	close(c->ready[1]);
}

#endif
