/* spin.h: how whoever lost a word to another thread or process waits before it asks again (lock.c, ledger_core.h).
 *
 * The other has the word's cache line, and in a program that allocates in a loop it will want the line again at once. Two
 * that fetch it from each other for every change take several times as long as one that makes some dozens of changes while
 * the other stays away. Nobody is waited for: a count ends it. */
#ifndef PARTAGE_SHIM_SPIN_H
#define PARTAGE_SHIM_SPIN_H

#define VGPU_AWAY 200 /* rounds: 0.5 to 10 microseconds, by the processor */

static inline __attribute__((cold)) void vgpu_stay_away(void)
{
	for (int i = 0; i < VGPU_AWAY; i++) {
#if defined(__x86_64__)
		__builtin_ia32_pause();
#elif defined(__aarch64__)
		__asm__ volatile("isb" ::: "memory");
#else
		__asm__ volatile("" ::: "memory");
#endif
	}
}

#endif
