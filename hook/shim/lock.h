/* lock.h: the process-private lock of every table of ours: 0 free, 1 taken, 2 taken and somebody may sleep.
 *
 * Never held across a driver call, and for some tens of instructions only. On the way of every allocation and free, so
 * it costs one atomic instruction, not two: a free one is taken by compare-and-swap and given back by a plain store.
 * A waiter that marks the word between the owner's look and that store sleeps unwoken, which is why it sleeps for a
 * bounded time (lock.c). Words lie on pages that a fork's child gets zeroed, or are zeroed by a handler there. */
#ifndef PARTAGE_SHIM_LOCK_H
#define PARTAGE_SHIM_LOCK_H

#include <stdbool.h>
#include <stdint.h>

void vgpu_lock_wait(uint32_t *lock); /* lock.c: somebody has it */
void vgpu_lock_wake(uint32_t *lock); /* lock.c: frees it and wakes one who sleeps */

static inline bool vgpu_lock_try(uint32_t *lock)
{
	uint32_t unlocked = 0;
	return __atomic_compare_exchange_n(lock, &unlocked, 1, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED);
}

static inline void vgpu_lock(uint32_t *lock)
{
	if (__builtin_expect(!vgpu_lock_try(lock), 0))
		vgpu_lock_wait(lock);
}

static inline void vgpu_unlock(uint32_t *lock)
{
	if (__builtin_expect(__atomic_load_n(lock, __ATOMIC_RELAXED) == 1, 1))
		__atomic_store_n(lock, 0, __ATOMIC_RELEASE);
	else
		vgpu_lock_wake(lock);
}

#endif
