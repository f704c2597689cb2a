/* fake_driver.h: a driver and a ledger in one process, under one lock, that check one rule at every change: what is
 * charged is never less than what the driver holds. Used by the tests that link the shim's own files and race threads
 * through them; the fake hands addresses and handles out again at once, which is the worst that a driver may do.
 */
#ifndef PARTAGE_TESTS_FAKE_DRIVER_H
#define PARTAGE_TESTS_FAKE_DRIVER_H

#include <stdint.h>

#include "check.h"
#include "hooks.h"
#include "memory.h"

#define MIB          (UINT64_C(1) << 20)
#define FAKE_CONTEXT (UINT64_C(64) << 20) /* what a context takes, and is estimated to */

void fake_reset(uint64_t limit); /* empties driver and ledger */
uint64_t fake_physical(void);
uint64_t fake_charged(void);
uint64_t fake_worst(void); /* most bytes by which the driver ever held more than was charged */
uint64_t fake_peak(void); /* most bytes the driver ever held */
uint64_t fake_over_refunds(void); /* bytes given back that were not charged */
void fake_sync(void); /* all queued work has run: pending frees happen, the pool releases what is unused */
void fake_keep(uint64_t bytes); /* the pool's release threshold */
void fake_pitch(uint64_t unit); /* rows are a multiple of this (512) */
void fake_busy(bool busy);         /* streams have work that has not run */
void fake_interrupt(const char *call, void (*by)(void)); /* the next call of this name meets a signal handler first */
void fake_fail_next(const char *call, CUresult error); /* the next call of this name fails */
void fake_old_arrays(bool is); /* a driver that does not say what an array needs */

#endif
