/* share.h: a hand-over directory for C tests: a valid policy for one simulated device and an empty ledger.
 * Used by programs that start shimmed children themselves. Every failure ends the test with the reason. */
#ifndef PARTAGE_TESTS_SHARE_H
#define PARTAGE_TESTS_SHARE_H

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "check.h"
#include "machine.h"
#include "partage/ledger.h"
#include "partage/policy.h"

static inline uint32_t share_crc32c(const unsigned char *p, size_t n)
{
	uint32_t crc = 0xffffffff;
	while (n--) {
		crc ^= *p++;
		for (int bit = 0; bit < 8; bit++)
			crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78 : 0);
	}
	return ~crc;
}

/* Maps a whole file; size is what it must have at least. */
static inline void *share_map(const char *path, size_t size)
{
	int fd = open(path, O_RDWR | O_CLOEXEC);
	CHECK(fd >= 0, "%s: %s", path, strerror(errno));
	struct stat status;
	CHECK(fstat(fd, &status) == 0 && (size_t)status.st_size >= size, "%s has %lld bytes, %zu expected", path,
	      (long long)status.st_size, size);
	void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	CHECK(p != MAP_FAILED, "mmap %s: %s", path, strerror(errno));
	close(fd);
	return p;
}

/* Writes directory/policy (one device, `memory` bytes) and an empty directory/ledger. */
static inline void share_create(const char *directory, const struct sim_device_model *model, uint64_t memory)
{
	struct ptg_policy policy = {.magic = PTG_POLICY_MAGIC, .layout = PTG_POLICY_LAYOUT, .size = sizeof policy};
	policy.seq = 2;
	policy.generation = 1;
	policy.state = PTG_STATE_OPEN;
	policy.priority = 1;
	policy.enforcement = PTG_ENFORCE_SHIM;
	policy.ndev = 1;
	memcpy(policy.device[0].uuid, model->uuid, sizeof policy.device[0].uuid);
	policy.device[0].memory = memory;
	policy.device[0].physical = model->memory;
	policy.device[0].ceiling = 1000;
	policy.device[0].weight = 100;
	policy.device[0].context = model->context;
	policy.crc32c = share_crc32c((unsigned char *)&policy.generation,
	                             sizeof policy - offsetof(struct ptg_policy, generation));
	char path[1024];
	CHECK(mkdir(directory, 0700) == 0, "mkdir %s: %s", directory, strerror(errno));
	for (int i = 0; i < 2; i++) {
		snprintf(path, sizeof path, "%.900s/%s", directory, i ? "ledger" : "policy");
		int fd = open(path, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600);
		CHECK(fd >= 0, "%s: %s", path, strerror(errno));
		CHECK(i || write(fd, &policy, sizeof policy) == sizeof policy, "%s: %s", path, strerror(errno));
		close(fd);
	}
}

/* Bytes of physical memory that live clients hold on device 0, as the simulator counts them. */
static inline uint64_t share_physical(const struct sim_machine *machine)
{
	uint64_t sum = 0;
	for (int i = 0; i < SIM_CLIENTS; i++) {
		char path[64];
		snprintf(path, sizeof path, "/proc/%d", machine->client[i].pid);
		if (machine->client[i].state && access(path, F_OK) == 0)
			sum += machine->client[i].device[0].memory;
	}
	return sum;
}

/* Bytes charged to device 0: the container's word. */
static inline uint64_t share_charged(struct ptg_ledger *ledger)
{
	return (__atomic_load_n(&ledger->device[0].word, __ATOMIC_ACQUIRE) >> PTG_USED_SHIFT) * PTG_UNIT;
}

#endif
