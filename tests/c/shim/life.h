/* life.h: what the tests of a process's life share: a hand-over named "share" for device 0, this program started again in
 * a role of its own (as a fresh process, whatever the caller's state), and the ledger and the machine as witnesses.
 */
#ifndef PARTAGE_TESTS_LIFE_H
#define PARTAGE_TESTS_LIFE_H

#include "grant.h"

#include "ledger_core.h"

#define LIFE_LIMIT (4 * GIB)

static inline struct ptg_ledger *life_ledger(void)
{
	static struct ptg_ledger *map;
	if (map == NULL)
		map = share_map(grant_path("share", "ledger"), sizeof(*map));
	return map;
}

/* Bytes that all processes of the share have charged together. */
static inline uint64_t life_charged(void)
{
	return (uint64_t)ptg_word_used(ptg_load(&life_ledger()->device[0].word)) * PTG_UNIT;
}

static inline uint64_t life_charged_by(pid_t pid)
{
	uint64_t bytes = grant_charged_by("share", pid, 0);
	return bytes == UINT64_MAX ? 0 : bytes;
}

static inline unsigned life_slots(void)
{
	unsigned slots = 0;
	for (int i = 0; i < PTG_SLOTS; i++)
		slots += __atomic_load_n(&life_ledger()->slot[i].state, __ATOMIC_ACQUIRE) == PTG_SLOT_USED;
	return slots;
}

static inline CUdeviceptr life_take(uint64_t bytes)
{
	CUdeviceptr p = 0;
	CUresult error = cuMemAlloc_v2(&p, bytes);
	CHECK(error == CUDA_SUCCESS, "%lu bytes: %d while %lu are charged", (unsigned long)bytes, (int)error,
	      (unsigned long)life_charged());
	return p;
}

/* Replace this process by this program in another role; comes back only where that fails. */
static inline void life_exec(const char *role, uint64_t number)
{
	char text[32];
	snprintf(text, sizeof(text), "%lu", (unsigned long)number);
	execl("/proc/self/exe", "life", role, text, (char *)NULL);
}

static inline void life_wait(const char *what, pid_t pid, int expected)
{
	int status;
	CHECK(pid > 0, "%s: no process", what);
	CHECK(waitpid(pid, &status, 0) == pid, "%s: wait", what);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == expected, "%s: status 0x%x", what, status);
}

/* The whole limit can be had by a newcomer: nothing of the dead is charged or held. */
static inline void life_all_free(void)
{
	start(0);
	life_take(LIFE_LIMIT);
	CHECK(held(0) == LIFE_LIMIT, "somebody else holds %lu", (unsigned long)(held(0) - LIFE_LIMIT));
	CHECK(life_slots() == 1, "%u slots are taken", life_slots());
}

static inline void life_begin(void)
{
	unsetenv("CUDA_DEVICE_MEMORY_LIMIT");
	scene("make the machine", touch);
	grant("share", &(struct granted){0, LIFE_LIMIT}, 1);
}

#endif
