/* policy.h: the grant as one container sees it (ABI, layout 1).
 *
 * Written in place by the agent (or the parent of `partage run`), mapped read-only by every process of the
 * container. Sizes: 64-byte header + PTG_DEVICES (16) x 128 bytes = 2,112 bytes, little-endian.
 * Who reads: hook/shim (each charge compares `seq` with the sequence of its private copy), python/partage/shm.
 * What can go wrong: the file is missing, short, of another layout, or its checksum does not match. A reader
 * then has no policy and the container is *closed*: allocations are refused, never unlimited.
 *
 * Writing: seq becomes odd, the bytes change, crc is computed, seq becomes even (one higher than it was).
 * Never truncated, never renamed. A reader retries for at most 1 ms while seq is odd or the crc does not match,
 * then keeps its last good copy, or is closed if it has none.
 */
#ifndef PARTAGE_POLICY_H
#define PARTAGE_POLICY_H

#include <stdint.h>

#define PTG_POLICY_MAGIC  UINT64_C(0x314c4f5047545250) /* "PRTGPOL1" */
#define PTG_POLICY_LAYOUT 1
#define PTG_DEVICES       16 /* most devices of one container */
#define PTG_UUID_SIZE     64 /* "GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx", NUL-padded */

/* ptg_policy.state */
#define PTG_STATE_CLOSED 0
#define PTG_STATE_OPEN   1
/* ptg_policy.flags */
#define PTG_FLAG_OVERSUBSCRIBED 1
#define PTG_FLAG_EVICTING       2
/* ptg_policy.share_class */
#define PTG_CLASS_FIXED       0
#define PTG_CLASS_BURST       1
#define PTG_CLASS_BEST_EFFORT 2
/* ptg_policy.enforcement, bits */
#define PTG_ENFORCE_SHIM   1
#define PTG_ENFORCE_DMEM   2
#define PTG_ENFORCE_MPS    4
#define PTG_ENFORCE_MIG    8
#define PTG_ENFORCE_VENDOR 16
/* ptg_policy_device.context: the writer knows no better than the library's own estimate */
#define PTG_CONTEXT_UNKNOWN UINT64_MAX

/* One device of the grant; its position is the ordinal in the container. */
struct ptg_policy_device {
	char uuid[PTG_UUID_SIZE]; /* NUL-padded, as the driver and NVML print it */
	uint64_t memory;   /* bytes: the hard limit, > 0 */
	int64_t overhead; /* bytes: the watcher's correction, written >= 0 (less would outlive what it corrects and lift the
	                   * limit); used = max(0, ledger + overhead) */
	uint64_t physical; /* bytes of the whole card */
	uint32_t cores; /* permille of the device's time that is guaranteed */
	uint32_t ceiling; /* permille, 1-1000 */
	uint32_t weight; /* 1-10000: part of the surplus */
	uint32_t gated; /* 1 = wait for turns before launching; flipped live; see ptg_policy.gated */
	uint32_t turn; /* index into the turns file */
	uint32_t reserved0;
	uint64_t context; /* bytes: estimate of one context on this device, or PTG_CONTEXT_UNKNOWN */
	uint64_t audit_ns; /* ns, only grows: use that NVML saw and the arbiter had not charged; it charges that */
};

struct ptg_policy {
	uint64_t magic; /* PTG_POLICY_MAGIC */
	uint32_t layout; /* PTG_POLICY_LAYOUT */
	uint32_t size; /* bytes of the whole structure */
	uint32_t seq; /* odd = being written */
	uint32_t crc32c; /* over every byte behind this field */
	uint64_t generation; /* of the grant: +1 with every rewrite */
	uint32_t state; /* PTG_STATE_* */
	uint32_t flags; /* PTG_FLAG_*, bits */
	uint32_t share_class; /* PTG_CLASS_* */
	uint32_t priority; /* 0 (first) to 2 */
	uint32_t enforcement; /* PTG_ENFORCE_*, bits: what really holds the limit */
	uint32_t ndev; /* <= PTG_DEVICES */
	uint32_t gated; /* bit i = device[i].gated: the one word that a launch loads */
	uint32_t reserved;
	struct ptg_policy_device device[PTG_DEVICES]; /* the first `ndev` are granted */
};

#endif
