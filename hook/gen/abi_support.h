/* abi_support.h: what Python cannot do on shared memory: ordered stores, compare-and-swap, futexes, guarded access.
 *
 * Inlined by hook/gen/abi.py into the source of the cffi module `partage._abi` and called from python/partage/shm alone.
 * Python's own mmap gives neither ordering nor atomicity, and a mapping that a tenant truncates kills the reader with
 * SIGBUS: every function here that touches a file runs under a guard that turns SIGBUS into -EFAULT.
 * Results are 0 or more on success and -errno on failure. Nothing here allocates or keeps state beyond the guard.
 */
#ifndef PARTAGE_ABI_SUPPORT_H
#define PARTAGE_ABI_SUPPORT_H

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "ledger_core.h"
#include "partage/abi_check.h"
#include "partage/crc32c.h"
#include "partage/guard.h"

/* ---- policy: written in place --------------------------------------------------------------------------------------- */

static void ptg_policy_write(struct ptg_policy *shared, const struct ptg_policy *image)
{
	uint32_t odd = __atomic_load_n(&shared->seq, __ATOMIC_RELAXED) | 1;
	__atomic_store_n(&shared->seq, odd, __ATOMIC_RELAXED);
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	memcpy(&shared->generation, &image->generation, sizeof *image - offsetof(struct ptg_policy, generation));
	shared->layout = PTG_POLICY_LAYOUT;
	shared->size = sizeof *shared;
	shared->crc32c = ptg_policy_crc(image);
	shared->magic = PTG_POLICY_MAGIC;
	__atomic_store_n(&shared->seq, odd + 1, __ATOMIC_RELEASE);
}

/* Make `image` the policy at `shared`. Callers hold the writers' lock of the file; a writer that was killed half-way
 * left `seq` odd, and this write then simply completes it. -EFAULT: the file is cut, which a program of the same user can
 * do to the one of `partage run`. */
static int ptg_policy_publish(struct ptg_policy *shared, const struct ptg_policy *image)
{
	volatile int result = -EFAULT;
	if (!sigsetjmp(ptg_guard_back, 1)) {
		ptg_guard_armed = 1;
		ptg_policy_write(shared, image);
		result = 0;
	}
	ptg_guard_armed = 0;
	return result;
}

/* Whether launches wait for turns anywhere, as the policy says now; 0 where it is cut. */
static int ptg_policy_gated(const struct ptg_policy *shared)
{
	volatile int result = 0;
	if (!sigsetjmp(ptg_guard_back, 1)) {
		ptg_guard_armed = 1;
		result = __atomic_load_n(&shared->gated, __ATOMIC_RELAXED) != 0;
	}
	ptg_guard_armed = 0;
	return result;
}

/* ---- ledger: the watcher's side --------------------------------------------------------------------------------------- */

static int ptg_slot_lock(int fd, uint32_t index, short type)
{
	struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = index, .l_len = 1};
	return fcntl(fd, F_OFD_SETLK, &lock) ? -errno : 0;
}

/* The change by -done on every device (a change of its own that was left half-way is completed first), then free. */
static int ptg_slot_empty(struct ptg_ledger *ledger, uint32_t index)
{
	struct ptg_slot *slot = &ledger->slot[index];
	if (__atomic_load_n(&slot->state, __ATOMIC_ACQUIRE) == PTG_SLOT_FREE)
		return 0;
	for (uint32_t device = 0; device < PTG_DEVICES; device++) {
		ptg_complete(ledger, device, ptg_load(&ledger->device[device].word));
		ptg_subtract(ledger, device, index, PTG_UNITS_MAX);
	}
	ptg_turn_clear(ledger, index);
	__atomic_store_n(&slot->host_pid, 0, __ATOMIC_RELAXED);
	__atomic_store_n(&slot->state, PTG_SLOT_FREE, __ATOMIC_RELEASE);
	__atomic_fetch_add(&ledger->reclaimed, 1, __ATOMIC_RELAXED);
	return 1;
}

/* Give back what the dead process in slot `index` had charged. 1: reclaimed; 0: nothing to do; -EAGAIN: the slot's lock
 * is held (the process lives, or somebody reclaims it right now); -EFAULT: the file was truncated. `dead` says that the
 * caller knows the process to be dead although a raw clone's child still holds the description: then nobody else can
 * reclaim it. */
static int ptg_slot_reclaim(int fd, void *map, uint32_t index, int dead)
{
	if (index >= PTG_SLOTS)
		return -EINVAL;
	int locked = ptg_slot_lock(fd, index, F_WRLCK) == 0;
	if (!locked && !dead)
		return -EAGAIN;
	int result = -EFAULT;
	if (!sigsetjmp(ptg_guard_back, 1)) {
		ptg_guard_armed = 1;
		result = ptg_slot_empty(map, index);
	}
	ptg_guard_armed = 0;
	if (locked)
		ptg_slot_lock(fd, index, F_UNLCK);
	return result;
}

/* Say which process of the host a slot is. */
static int ptg_slot_set_host_pid(void *map, uint32_t index, int32_t pid)
{
	int result = -EFAULT;
	if (index < PTG_SLOTS && !sigsetjmp(ptg_guard_back, 1)) {
		ptg_guard_armed = 1;
		__atomic_store_n(&((struct ptg_ledger *)map)->slot[index].host_pid, pid, __ATOMIC_RELAXED);
		result = 0;
	}
	ptg_guard_armed = 0;
	return result;
}

/* ---- the bell of turns --------------------------------------------------------------------------------------------------- */

/* Tell the arbiter to look: +1 and wake, as a process does that wants a turn. -EFAULT: the ledger is cut. */
static int ptg_turn_bell_ring(int fd)
{
	void *page = mmap(NULL, PTG_BELL_PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (page == MAP_FAILED)
		return -errno;
	uint32_t *bell = &((struct ptg_ledger *)page)->turn_bell;
	volatile int result = -EFAULT;
	if (!sigsetjmp(ptg_guard_back, 1)) {
		ptg_guard_armed = 1;
		__atomic_fetch_add(bell, 1, __ATOMIC_SEQ_CST);
		result = 0;
	}
	ptg_guard_armed = 0;
	if (!result)
		result = (int)syscall(SYS_futex, bell, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
	munmap(page, PTG_BELL_PAGE);
	return result;
}

/* ---- doorbell ------------------------------------------------------------------------------------------------------------ */

/* Sleep until the word at `p` is not `expected`: 0 woken or changed, -ETIMEDOUT, -EINTR, -EFAULT (truncated: the kernel
 * looks at the page, so no guard is needed). */
static int ptg_futex_wait(void *p, uint32_t expected, int64_t timeout_ns)
{
	struct timespec timeout = {timeout_ns / 1000000000, timeout_ns % 1000000000};
	if (!syscall(SYS_futex, p, FUTEX_WAIT, expected, timeout_ns < 0 ? NULL : &timeout, NULL, 0) || errno == EAGAIN)
		return 0;
	return -errno;
}

static int ptg_futex_wake(void *p)
{
	long woken = syscall(SYS_futex, p, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
	return woken < 0 ? -errno : (int)woken;
}

/* Ring: +1 and wake, as a process does that takes a slot. The watcher rings its own bell to end its waiting thread. */
static int ptg_doorbell_ring(void *map)
{
	int result = -EFAULT;
	uint32_t *bell = &((struct ptg_ledger *)map)->doorbell;
	if (!sigsetjmp(ptg_guard_back, 1)) {
		ptg_guard_armed = 1;
		__atomic_fetch_add(bell, 1, __ATOMIC_RELEASE);
		result = 0;
	}
	ptg_guard_armed = 0;
	return result ? result : ptg_futex_wake(bell);
}

#endif
