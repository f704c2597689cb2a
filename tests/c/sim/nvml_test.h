/* nvml_test.h: a machine of its own for each case of a test_nvml_*.c program, and clients that play a program's part.
 *
 * One process knows one machine, so every case runs in a child (run_on). A played client writes the words that the
 * driver would write: exact figures, without timing. */
#ifndef PARTAGE_TESTS_NVML_TEST_H
#define PARTAGE_TESTS_NVML_TEST_H

#define NVML_NO_UNVERSIONED_FUNC_DEFS /* old names mean the old functions */

#include <cuda.h>
#include <fcntl.h>
#include <nvml.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>

#include "check.h"
#include "machine.h"

#define OK(call) CHECK((call) == NVML_SUCCESS, "must succeed")
#define GIVES(code, call)                                                                                              \
	do {                                                                                                           \
		nvmlReturn_t got_ = (call);                                                                            \
		CHECK(got_ == (code), "answers %d (%s), must be %d", (int)got_, nvmlErrorString(got_), (int)(code));   \
	} while (0)

static inline void run_on(const char *profile, void (*body)(void))
{
	char directory[4096];
	int status;
	const char *scratch = getenv("TEST_SCRATCH");

	pid_t child = fork();
	CHECK(child >= 0, "fork");
	if (child == 0) {
		snprintf(directory, sizeof(directory), "%s/%s-%d", scratch ? scratch : "/tmp", profile, (int)getpid());
		CHECK(mkdir(directory, 0700) == 0, "%s", directory);
		setenv("PARTAGE_SIM_DIR", directory, 1);
		setenv("PARTAGE_SIM", profile, 1);
		OK(nvmlInit_v2());
		body();
		exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0,
	      "profile %s: status %#x", profile, status);
}

static inline nvmlDevice_t device_at(unsigned index)
{
	nvmlDevice_t device;
	OK(nvmlDeviceGetHandleByIndex_v2(index, &device));
	return device;
}

/* The machine file, mapped by the test itself. */
static inline struct sim_machine *map_machine(void)
{
	char path[4200];
	snprintf(path, sizeof(path), "%s/machine", getenv("PARTAGE_SIM_DIR"));
	int fd = open(path, O_RDWR | O_CLOEXEC);
	CHECK(fd >= 0, "%s", path);
	void *p = mmap(NULL, sizeof(struct sim_machine), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	CHECK(p != MAP_FAILED, "mmap of %s", path);
	close(fd);
	return p;
}

/* Takes a client slot with its lock; the descriptor returned keeps it alive. Slot 0 is the test itself: it calls NVML.
 */
static inline int play_client(struct sim_machine *machine, int slot, int pid)
{
	char path[4200];
	struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = SIM_LOCK_CLIENT + slot, .l_len = 1};
	struct stat st;

	snprintf(path, sizeof(path), "%s/machine", getenv("PARTAGE_SIM_DIR"));
	int fd = open(path, O_RDWR | O_CLOEXEC);
	CHECK(fd >= 0 && fcntl(fd, F_OFD_SETLK, &lock) == 0, "slot %d", slot);
	CHECK(stat("/proc/self/ns/pid", &st) == 0, "own pid namespace");
	for (int used = 0; used <= slot; used++) /* slots are taken lowest first */
		machine->client[used].generation |= 1;
	machine->client[slot].pid = pid;
	machine->client[slot].pid_ns = st.st_ino;
	machine->client[slot].state = 1;
	return fd;
}

/* Busy for `ns` of every 50 ms from a second ago until some seconds ahead. */
static inline void play_busy(struct sim_machine *machine, int slot, int device, uint32_t ns)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	uint64_t bucket = ((uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec) / SIM_BUCKET_NS;

	for (uint64_t b = bucket - 30; b < bucket + 90; b++) {
		machine->client[slot].device[device].bucket_at[b % SIM_BUCKETS] = b;
		machine->client[slot].device[device].bucket_ns[b % SIM_BUCKETS] = ns;
	}
	machine->client[slot].device[device].busy_ns += ns;
}

/* Bytes as the driver accounts them. */
static inline void play_memory(struct sim_machine *machine, int slot, int device, uint64_t bytes)
{
	machine->client[slot].device[device].memory = bytes;
	machine->device[device].used += bytes;
	machine->device[device].holders[slot / 64] |= UINT64_C(1) << (slot % 64);
}

#endif
