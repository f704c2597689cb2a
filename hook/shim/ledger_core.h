/* ledger_core.h: the counting protocol of partage/ledger.h as inline functions, and nothing else.
 *
 * Called by charge.c (a process for its own slot), slot.c (a reclaimer for a dead one) and the tests' oracle. It makes
 * no system call and takes no lock: the caller owns the slot and lets one thread at a time change on its behalf.
 * What can go wrong: the file is a tenant's to scribble on. Arithmetic saturates, indices are masked, no loop depends
 * on what the file says other than the compare-and-swap retry. */
#ifndef PARTAGE_SHIM_LEDGER_CORE_H
#define PARTAGE_SHIM_LEDGER_CORE_H

#include <stdbool.h>
#include <stdint.h>

#include "partage/ledger.h"
#include "spin.h"

#define PTG_UNITS_MAX UINT32_MAX

static inline uint64_t ptg_load(const uint64_t *word)
{
	return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}

static inline uint32_t ptg_word_used(uint64_t word)
{
	return (uint32_t)(word >> PTG_USED_SHIFT);
}

static inline unsigned ptg_word_slot(uint64_t word)
{
	return (unsigned)(word >> PTG_SLOT_SHIFT) & PTG_SLOT_MASK;
}

static inline uint32_t ptg_word_seq(uint64_t word)
{
	return (uint32_t)word & PTG_SEQ_MASK;
}

static inline uint64_t ptg_word(uint32_t used, unsigned slot, uint32_t seq)
{
	return (uint64_t)used << PTG_USED_SHIFT | (uint64_t)slot << PTG_SLOT_SHIFT | seq;
}

/* Bytes in units, rounded up; more than a word can hold becomes the most it can hold. */
static inline uint32_t ptg_units(uint64_t bytes)
{
	uint64_t units = bytes / PTG_UNIT + (bytes % PTG_UNIT != 0);
	return units > PTG_UNITS_MAX ? PTG_UNITS_MAX : (uint32_t)units;
}

static inline uint64_t ptg_add_saturating(uint64_t a, uint64_t b)
{
	return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}

/* What counts as used: the ledger's bytes corrected by the watcher's overhead, never below zero. */
static inline uint64_t ptg_used_bytes(uint32_t units, int64_t overhead)
{
	uint64_t charged = (uint64_t)units * PTG_UNIT;
	if (overhead >= 0)
		return ptg_add_saturating(charged, (uint64_t)overhead);
	uint64_t less = (uint64_t)0 - (uint64_t)overhead;
	return charged > less ? charged - less : 0;
}

/* Step 2 of the protocol: finish the change that `word` stands for, in the slot that made it. */
static inline void ptg_complete(struct ptg_ledger *ledger, unsigned device, uint64_t word)
{
	struct ptg_slot_device *line = &ledger->slot[ptg_word_slot(word)].device[device];
	if (__builtin_expect(ptg_load(&ledger->device[device].completed) == word, 1))
		return; /* without the other process's line */
	uint64_t done = ptg_load(&line->done);
	if (ptg_word_seq(done) == ptg_word_seq(word))
		return;
	uint64_t next = ptg_load(&line->next);
	if (ptg_word_seq(next) == ptg_word_seq(word))
		__atomic_compare_exchange_n(&line->done, &done, next, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
}

/* A bound on an increase. `first_free`: the change also goes through where nothing at all is charged yet. */
struct ptg_bound {
	uint64_t limit;    /* bytes */
	int64_t overhead;  /* bytes */
	bool first_free;
};

static inline bool ptg_fits(uint32_t used, uint32_t more, const struct ptg_bound *bound)
{
	if (more > PTG_UNITS_MAX - used)
		return false;
	if (bound->first_free && used == 0)
		return true;
	uint64_t now = ptg_used_bytes(used, bound->overhead);
	return now <= bound->limit && (uint64_t)more * PTG_UNIT <= bound->limit - now;
}

/* Propose, commit and complete one change; the caller computed the new totals from `word` and `done`. False where
 * somebody else's change came first: `word` is then the present one. */
static inline bool ptg_commit(struct ptg_ledger *ledger, unsigned device, unsigned slot, uint64_t *word, uint32_t used,
                              uint32_t mine)
{
	struct ptg_slot_device *line = &ledger->slot[slot].device[device];
	struct ptg_ledger_device *total = &ledger->device[device];
	uint32_t seq = (ptg_word_seq(*word) + 1) & PTG_SEQ_MASK;
	uint64_t done = ptg_load(&line->done);
	/* The slot's last change may carry the same number from a whole turn of the counter ago; it would then pass for
	 * the completion of this one. */
	if (ptg_word_seq(done) == seq)
		__atomic_store_n(&line->done, ptg_word(ptg_word_used(done), 0, ptg_word_seq(*word)), __ATOMIC_RELEASE);
	uint64_t next = ptg_word(mine, 0, seq), after = ptg_word(used, slot, seq);
	if (ptg_load(&total->completed) == after)
		__atomic_store_n(&total->completed, *word, __ATOMIC_RELEASE);
	__atomic_store_n(&line->next, next, __ATOMIC_RELEASE);
	if (!__atomic_compare_exchange_n(&total->word, word, after, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) {
		vgpu_stay_away();
		*word = ptg_load(&total->word);
		return false;
	}
	/* A plain store is enough: nobody but the slot's owner makes its later changes, and a helper stores the same. */
	__atomic_store_n(&line->done, next, __ATOMIC_RELEASE);
	__atomic_store_n(&total->completed, after, __ATOMIC_RELEASE);
	return true;
}

/* Add units on behalf of `slot`. With a bound: false, and nothing changed, where it does not fit. Without one the
 * totals saturate. */
static inline bool ptg_add(struct ptg_ledger *ledger, unsigned device, unsigned slot, uint32_t units,
                           const struct ptg_bound *bound)
{
	uint64_t word = ptg_load(&ledger->device[device].word);
	for (;;) {
		ptg_complete(ledger, device, word);
		uint32_t used = ptg_word_used(word);
		uint32_t mine = ptg_word_used(ptg_load(&ledger->slot[slot].device[device].done));
		uint32_t more = units;
		if (bound && !ptg_fits(used, more, bound))
			return false;
		if (more > PTG_UNITS_MAX - used)
			more = PTG_UNITS_MAX - used;
		if (more > PTG_UNITS_MAX - mine)
			more = PTG_UNITS_MAX - mine;
		if (ptg_commit(ledger, device, slot, &word, used + more, mine + more))
			return true;
	}
}

/* Take units off what `slot` has charged; never more than that. Returns what was taken. */
static inline uint32_t ptg_subtract(struct ptg_ledger *ledger, unsigned device, unsigned slot, uint32_t units)
{
	uint64_t word = ptg_load(&ledger->device[device].word);
	for (;;) {
		ptg_complete(ledger, device, word);
		uint32_t used = ptg_word_used(word);
		uint32_t mine = ptg_word_used(ptg_load(&ledger->slot[slot].device[device].done));
		uint32_t less = units < mine ? units : mine;
		if (less == 0)
			return 0;
		if (ptg_commit(ledger, device, slot, &word, used > less ? used - less : 0, mine - less))
			return less;
	}
}

/* A slot changes hands: its former owner waits for nothing and has nothing in flight. The caller holds its lock. */
static inline void ptg_turn_clear(struct ptg_ledger *ledger, uint32_t index)
{
	uint32_t ndev = __atomic_load_n(&ledger->ndev, __ATOMIC_ACQUIRE);
	for (uint32_t device = 0; device < ndev && device < PTG_DEVICES; device++) {
		struct ptg_slot_turn *line = &ledger->turn[device][index];
		__atomic_store_n(&line->want, 0, __ATOMIC_RELAXED);
		__atomic_store_n(&line->want_ns, 0, __ATOMIC_RELAXED);
		__atomic_store_n(&line->degraded, 0, __ATOMIC_RELAXED);
		__atomic_store_n(&line->busy_ns, 0, __ATOMIC_RELEASE);
		__atomic_store_n(&line->idle_ns, 0, __ATOMIC_RELAXED);
		__atomic_store_n(&line->flight_ns, 0, __ATOMIC_RELAXED);
		__atomic_store_n(&line->waited_ns, 0, __ATOMIC_RELAXED);
		__atomic_store_n(&line->waits, 0, __ATOMIC_RELAXED);
		__atomic_store_n(&line->launches, 0, __ATOMIC_RELAXED);
	}
}

#endif
