/* turns.h: whose turn it is, per device of one container (ABI, layout 2).
 *
 * Written by the arbiter alone (made by whoever makes the hand-over, in which nobody holds a turn); mapped read-only by
 * every process of the container, which sleeps in FUTEX_WAIT on `word` (works on a read-only mapping). Sizes: 64-byte
 * header + PTG_DEVICES (16) x 64 bytes = 1,088 bytes, little-endian. What a container says to the arbiter stands in its
 * ledger (struct ptg_slot_turn).
 * Who reads: hook/shim/gate.c (the word at each launch, the rest at marks), python/partage/shm/turns.py.
 * What can go wrong: the arbiter dies. Its heartbeat stops, the deadline passes, waiters' time-out of 100 ms ends, and
 * launches fall back to the container's private bucket (ptg_ledger_device.bucket_ns) at `fallback` permille until the
 * heartbeat goes on.
 */
#ifndef PARTAGE_TURNS_H
#define PARTAGE_TURNS_H

#include <stdint.h>

#include "partage/policy.h"

#define PTG_TURNS_MAGIC  UINT64_C(0x314e525447545250) /* "PRTGTRN1" */
#define PTG_TURNS_LAYOUT 2
#define PTG_HEARTBEAT_NS 50000000 /* the heartbeat is at most this old while anybody waits or holds a turn */
#define PTG_PATIENCE_NS  100000000 /* a heartbeat older than this is a dead arbiter's */

/* ptg_turn.flags */
#define PTG_TURN_WATCHED 1 /* ring the ledger's turn_bell when the container's work in flight begins or ends */
#define PTG_TURN_SHORT   2 /* keep at most one launch or 1 ms in flight, whichever is more */

struct ptg_turn {
	uint32_t word;         /* futex: odd = this container may launch; +1 at each change */
	uint32_t flags;        /* PTG_TURN_*, bits */
	uint64_t serial;       /* number of the turn, of this container on this device */
	uint64_t
	        deadline_ns; /* CLOCK_MONOTONIC: launch nothing after this, whatever `word` says; moved on while it lasts */
	uint64_t heartbeat_ns; /* CLOCK_MONOTONIC: the arbiter's last sign of life */
	uint32_t outstanding_us; /* most work that a container may have in flight; 0 = the library's own bound */
	uint32_t
	        fallback; /* permille of the device's time for the private bucket; 0: nobody said, the policy's cores */
	uint64_t charged_ns; /* device time charged to this container since the arbiter met it */
	uint64_t reserved[2];
};

struct ptg_turns {
	uint64_t magic; /* PTG_TURNS_MAGIC, stored last when the file is made */
	uint32_t layout; /* PTG_TURNS_LAYOUT */
	uint32_t size; /* bytes of the whole structure */
	uint32_t ndev; /* <= PTG_DEVICES */
	int32_t arbiter; /* pid of the arbiter in its own namespace; 0: none yet */
	uint64_t reserved[5];
	struct ptg_turn turn[PTG_DEVICES]; /* by ptg_policy_device.turn */
};

#endif
