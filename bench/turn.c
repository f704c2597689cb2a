/* turn.c: a hand-over in which it is always this process's turn, for the rows of launches that hold one. Called by ops.c
 * before the driver, and what stands before it, is loaded: from then on the directory is named by PARTAGE_DIR.
 *
 * A thread moves the deadline on, as an arbiter does. What can go wrong: no room for the files (give_up). */
#include "ops.h"

#include <fcntl.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "partage/turns.h"

#define NULL_DEVICE "GPU-07070707-0707-0707-0707-070707070707" /* the null driver's */

static uint32_t crc32c(const unsigned char *p, size_t n)
{
	uint32_t crc = 0xffffffff;
	while (n--) {
		crc ^= *p++;
		for (int bit = 0; bit < 8; bit++)
			crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78 : 0);
	}
	return ~crc;
}

static uint64_t now_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void move_on(struct ptg_turn *turn)
{
	uint64_t now = now_ns();
	__atomic_store_n(&turn->deadline_ns, now + 1000000000u, __ATOMIC_SEQ_CST);
	__atomic_store_n(&turn->heartbeat_ns, now, __ATOMIC_SEQ_CST);
}

static void *keep(void *turn)
{
	struct timespec some = {.tv_nsec = 30000000};
	for (;;) {
		move_on(turn);
		nanosleep(&some, NULL);
	}
	return NULL;
}

static void *file(const char *directory, const char *name, size_t bytes)
{
	char path[512];
	snprintf(path, sizeof path, "%s/%s", directory, name);
	int fd = open(path, O_CREAT | O_TRUNC | O_RDWR | O_CLOEXEC, 0600);
	if (fd < 0 || ftruncate(fd, (off_t)bytes) != 0)
		give_up("no room for the files of a share");
	void *map = bytes ? mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) : NULL;
	close(fd);
	if (map == MAP_FAILED)
		give_up("no room for the files of a share");
	return map;
}

void turn_take(void)
{
	static char directory[400];
	pthread_t thread;
	const char *parent = getenv("XDG_RUNTIME_DIR");
	snprintf(directory, sizeof directory, "%s/turn-%d", parent ? parent : "/tmp", (int)getpid());
	if (mkdir(directory, 0700) != 0)
		give_up("no room for the files of a share");
	struct ptg_policy *policy = file(directory, "policy", sizeof *policy);
	struct ptg_turns *turns = file(directory, "turns", sizeof *turns);
	file(directory, "ledger", 0);
	*policy = (struct ptg_policy){.magic = PTG_POLICY_MAGIC,
	                              .layout = PTG_POLICY_LAYOUT,
	                              .size = sizeof *policy,
	                              .seq = 2,
	                              .state = PTG_STATE_OPEN,
	                              .enforcement = PTG_ENFORCE_SHIM,
	                              .ndev = 1,
	                              .gated = 1};
	policy->device[0] = (struct ptg_policy_device){.uuid = NULL_DEVICE,
	                                               .memory = UINT64_C(40) << 30,
	                                               .physical = UINT64_C(80) << 30,
	                                               .cores = 500,
	                                               .ceiling = 1000,
	                                               .weight = 100,
	                                               .gated = 1};
	policy->crc32c =
	        crc32c((unsigned char *)&policy->generation, sizeof *policy - offsetof(struct ptg_policy, generation));
	turns->layout = PTG_TURNS_LAYOUT;
	turns->size = sizeof *turns;
	turns->ndev = 1;
	turns->arbiter = (int32_t)getpid();
	turns->turn[0].word = 1;
	move_on(&turns->turn[0]);
	turns->magic = PTG_TURNS_MAGIC;
	if (pthread_create(&thread, NULL, keep, &turns->turn[0]) != 0)
		give_up("no thread");
	setenv("PARTAGE_DIR", directory, 1);
}
