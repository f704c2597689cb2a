/* spin.h: tells the processor that this thread only waits for somebody's store. Called in loops that are bounded by a
 * count, by lock.c and ledger_core.h. A round takes from one nanosecond to some fifty, by the processor. */
#ifndef PARTAGE_SHIM_SPIN_H
#define PARTAGE_SHIM_SPIN_H

static inline void vgpu_spin_once(void)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("isb" ::: "memory");
#endif
}

#endif
