/* turns.h: whose turn it is, as one container sees it (ABI, layout 1).
 *
 * Written by the arbiter alone, mapped read-only by the container's processes, which load `word` before a launch and
 * wait on it as a futex (works on a read-only mapping). Sizes: 64-byte header + PTG_DEVICES (16) x 64 bytes = 1,088
 * bytes, little-endian; each cell has a cache line of its own.
 * What can go wrong: the arbiter dies. Waiters time out after 100 ms and fall back to the container's private bucket.
 */
#ifndef PARTAGE_TURNS_H
#define PARTAGE_TURNS_H

#include <stdint.h>

#include "partage/policy.h"

#define PTG_TURNS_MAGIC  UINT64_C(0x314e525447545250) /* "PRTGTRN1" */
#define PTG_TURNS_LAYOUT 1

struct ptg_turn {
	uint32_t word;         /* futex: odd = the container holds the turn; +1 at each change */
	uint32_t quantum_us;   /* length of the turn that was given */
	uint64_t serial;       /* number of the turn, echoed as `drained` in the ledger */
	uint64_t deadline_ns;  /* CLOCK_MONOTONIC: launch nothing after this */
	uint64_t heartbeat_ns; /* CLOCK_MONOTONIC: the arbiter's last sign of life */
	uint32_t outstanding_us; /* most work that may be in flight; 0 = the library's own bound */
	uint32_t revoked;      /* 1 = end at the next launch boundary */
	uint64_t reserved[3];
};

struct ptg_turns {
	uint64_t magic; /* PTG_TURNS_MAGIC, stored last when the file is made */
	uint32_t layout; /* PTG_TURNS_LAYOUT */
	uint32_t size; /* bytes of the whole structure */
	uint32_t ndev; /* <= PTG_DEVICES */
	uint32_t reserved0;
	uint64_t reserved[5];
	struct ptg_turn turn[PTG_DEVICES]; /* by ptg_policy_device.turn */
};

#endif
