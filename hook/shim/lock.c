/* lock.c: waiting for a lock of this process (lock.h).
 *
 * Called where a lock is taken already. Raw system calls: no thread can be cancelled in here. What can go wrong: the owner
 * was preempted; a waiter then sleeps until it is woken, or for WAIT_NS where its mark and the owner's store crossed. */
#include "lock.h"

#include <errno.h>
#include <linux/futex.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "spin.h"

#define SPINS   4
#define WAIT_NS 200000

void vgpu_lock_wait(uint32_t *lock)
{
	static const struct timespec bound = {.tv_nsec = WAIT_NS};
	int saved = errno;
	for (int spin = 0; spin < SPINS && __atomic_load_n(lock, __ATOMIC_RELAXED) != 2; spin++) {
		vgpu_stay_away();
		if (__atomic_load_n(lock, __ATOMIC_RELAXED) == 0 && vgpu_lock_try(lock))
			return;
	}
	while (__atomic_exchange_n(lock, 2, __ATOMIC_ACQUIRE) != 0)
		syscall(SYS_futex, lock, FUTEX_WAIT_PRIVATE, 2, &bound, NULL, 0);
	errno = saved;
}

void vgpu_lock_wake(uint32_t *lock)
{
	int saved = errno;
	__atomic_store_n(lock, 0, __ATOMIC_RELEASE);
	syscall(SYS_futex, lock, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
	errno = saved;
}
