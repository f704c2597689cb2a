/* ledger.h: what one container's processes have charged and want (ABI, layout 2).
 *
 * Read and written by every process of the container through one shared mapping; read by the agent, the parent of
 * `partage run` and the CLI, which must treat every byte as a tenant's claim (bounds-checked, read with pread so that
 * a truncated file cannot hurt them). Sizes: 8,192 bytes of header and device lines + PTG_SLOTS (1,024) x 1,024 bytes
 * of slots + PTG_DEVICES (16) x PTG_SLOTS x 64 bytes of turn lines = 2,105,344 bytes, little-endian. Charges are counted in units of PTG_UNIT (4 KiB), rounded up.
 *
 * Words: a *slot* is one process's place, a stable index that is never moved. A process owns slot i while it holds the
 * OFD write lock on byte i of the file (bytes from 0; the lock need not lie on bytes that mean anything). The lock is
 * kept by the mapping through which the owner uses the ledger, not by a descriptor: a program that closes descriptors
 * it did not open keeps its slot, a fork's child does not inherit the mapping, and the kernel, which drops the lock at
 * death, drops it after the process's descriptors, the driver's among them.
 * Dead = the lock can be had, and, where the slot's pid namespace is the observer's own, no process with that pid and
 * start time is left (a zombie whose threads are all gone counts as gone).
 * Byte PTG_LOCK_SETUP is held while the file is initialised or a device is claimed; never across a driver call. Where
 * the file is one that its last user removes, byte PTG_LOCK_REMOVE is held for reading while a slot is taken, so that
 * those who start do not wait for each other, and for writing while it is removed. Byte PTG_LOCK_WATCH is held by
 * whoever watches from outside (agent, `partage run`).
 *
 * Taking a slot: a free one is locked, seen still free, its `done` words brought to zero, its identity written,
 * `generation` counted up, and `state` stored last. `hint` is where a search may begin; slots at and above `high` were
 * never taken. Giving a dead one back: lock, change by -done on each device, `state` = free, unlock; whoever is killed
 * in between leaves a dead slot with less in it.
 *
 * Memory that one process exports and others import is in no process's slot but in one of its own (PTG_SLOT_SHARED, no
 * identity). Who holds the memory, its maker too, has a read lock on that slot's byte; taken like any slot, by a write
 * lock that becomes a read lock. Dead = the write lock can be had: nobody holds the memory. The slots of all processes
 * and of shared memory together are what a container uses.
 *
 * Counting that no kill can break. The device's word W holds (used, slot, seq): the container's total, the slot that
 * changed it last, and the number of the change. A change by delta units on behalf of slot s (by its owner, or by a
 * reclaimer that holds s's OFD lock):
 *   1. load W = (used, t, n).
 *   2. complete change n: where `completed`, beside W, is not W: where slot t's `done` word does not carry number n, read
 *      t's `next` word; if next carries n, compare-and-swap done: old -> next. Failure means that somebody completed it.
 *   3. where done(s) carries number n+1 (its last change was made one whole turn of the counter ago), store
 *      done(s) = (done(s).used, n): else it would pass for the completion of this change.
 *      Likewise `completed` = W where it is what W becomes in step 4. Store s.next = (done(s).used + delta, n+1).
 *   4. compare-and-swap W: (used, t, n) -> (used + delta, s, n+1). On failure go back to 1, after a fixed number of
 *      rounds in which the line is left to whoever has it: it then makes its next changes without fetching it again.
 *   5. complete change n+1 (store s.done = s.next, then `completed` = W of step 4): may be left to whoever comes next.
 *      `completed` spares the next comer, whose cache has just fetched the line of W, the line of slot t, and slot t's
 *      owner the way back of that line. It is a hint: whoever does not store it leaves the next comer to look.
 * A process killed anywhere leaves either no change, or a change whose slot the next comer completes. Invariant after
 * completion: W.used = sum of done.used over all slots. Reclaiming a dead slot is the change by -done.used.
 * Threads of one process serialise steps 1-5 by a process-private lock that is never held across a driver call.
 * Numbers wrap at 2^PTG_SEQ_BITS; a helper would have to sleep through a multiple of 4 million changes to be fooled.
 */
#ifndef PARTAGE_LEDGER_H
#define PARTAGE_LEDGER_H

#include <stdint.h>

#include "partage/policy.h"

#define PTG_LEDGER_MAGIC  UINT64_C(0x3144454c47545250) /* "PRTGLED1" */
#define PTG_LEDGER_LAYOUT 2
#define PTG_SLOTS         1024 /* most processes of one container on a device at once */
#define PTG_BUCKET_NS     100000000 /* window of the private bucket that holds while no arbiter answers */
#define PTG_UNIT          4096 /* bytes per charged unit */
#define PTG_BELL_PAGE     4096 /* bytes at the beginning that hold both bells: what a listener maps */

/* Device word W: used:32 | slot:10 | seq:22. Slot words `done` and `next`: used:32 | 0:10 | seq:22. */
#define PTG_USED_SHIFT 32
#define PTG_SLOT_SHIFT 22
#define PTG_SLOT_MASK  0x3ffu
#define PTG_SEQ_BITS   22
#define PTG_SEQ_MASK   0x3fffffu

/* OFD lock bytes behind the slots' */
#define PTG_LOCK_SETUP  4096
#define PTG_LOCK_WATCH  4097
#define PTG_LOCK_REMOVE 4098

/* ptg_slot.state */
#define PTG_SLOT_FREE   0
#define PTG_SLOT_USED   1
#define PTG_SLOT_SHARED 2 /* no process's: memory that several may hold, each by a read lock on the slot's byte */

/* ptg_slot.share_kind: what an importer has in hand */
#define PTG_SHARE_BYTES      1 /* a handle of plain bytes; key: a hash of it */
#define PTG_SHARE_DESCRIPTOR 2 /* a file descriptor; key: process and signal number written into it by the exporter */

struct ptg_slot_device {
	uint64_t done;       /* (units, number of the last completed change of this slot) */
	uint64_t next;       /* (units, number) proposed by the owner */
	uint64_t context;    /* units of `done` that are estimates for contexts */
	uint64_t refused;    /* allocations refused since the slot was taken */
};

/* One process: identity = (pid, start time, pid namespace). */
struct ptg_slot {
	uint32_t state; /* PTG_SLOT_*; stored last */
	uint32_t generation; /* +1 each time the slot is taken */
	int32_t pid;        /* as the process itself sees it */
	int32_t host_pid;   /* filled by whoever watches from outside; 0 = not known */
	uint64_t start_time; /* field 22 of /proc/self/stat, clock ticks since boot */
	uint64_t pid_ns;     /* inode of /proc/self/ns/pid */
	char name[16];   /* /proc/self/comm, NUL-terminated */
	uint64_t reserved0[2];
	struct ptg_slot_device device[PTG_DEVICES]; /* by index in ptg_ledger.uuid */
	/* PTG_SLOT_SHARED */
	uint64_t share_kind; /* PTG_SHARE_*, of a PTG_SLOT_SHARED */
	uint64_t share_key[2]; /* by which an importer finds the slot */
	uint64_t share_ns; /* pid namespace of the maker */
	uint64_t reserved[52];
};

/* One process on one device, for whoever gives turns; a cache line, written by its process alone, all zero where no slot
 * is taken. Protocol (hook/shim/gate.c, hook/arbiter): a process stores `busy_ns` before it looks at the turn's word for
 * its first launch, with a full fence between; the arbiter stores the word, then reads `busy_ns`, with a full fence
 * between. So while the word is even and `busy_ns` is 0, nothing of this process is on the device or on its way there. */
struct ptg_slot_turn {
	uint64_t
	        busy_ns; /* CLOCK_MONOTONIC: since when work is in flight or a thread is between gate and driver; 0: none */
	uint64_t idle_ns; /* CLOCK_MONOTONIC: when the latest period in flight ended */
	uint32_t want; /* threads that wait for the turn */
	uint32_t degraded; /* 1: launches by the private bucket, because no arbiter answers */
	uint64_t want_ns; /* CLOCK_MONOTONIC: since when the first of them waits */
	uint64_t flight_ns; /* sum of the periods in flight that have ended */
	uint64_t waited_ns; /* sum of the waits that have ended */
	uint64_t waits; /* how many those were */
	uint64_t launches; /* launches under the gate, counted a few late */
};

/* One device: the first line is written by charges, the second by launches without an arbiter. */
struct ptg_ledger_device {
	uint64_t word; /* W = used, slot that changed it last, number of the change; see above */
	uint64_t completed; /* the last W whose change its maker has completed */
	uint64_t reserved0[6];
	uint64_t
	        bucket_ns; /* CLOCK_MONOTONIC: until when the container has used up its private bucket; see PTG_BUCKET_NS */
	uint64_t peer_ns; /* CLOCK_MONOTONIC: when a process last waited for others of its own container */
	uint64_t peer_leaves; /* `busy_ns` of the process beside which another of the container may begin */
	uint32_t peer_bell; /* futex: +1 when one that waits so may begin */
	uint32_t reserved2;
	uint64_t reserved1[4];
};

struct ptg_ledger {
	uint64_t magic; /* stored last when the file is initialised */
	uint32_t layout; /* PTG_LEDGER_LAYOUT */
	uint32_t size; /* bytes of the whole structure */
	uint32_t ndev; /* devices claimed in `uuid` */
	uint32_t nslots; /* PTG_SLOTS */
	uint64_t reserved0[5];
	/* own cache line */
	uint32_t doorbell; /* futex: +1 when a slot is taken or code has been loaded */
	uint32_t reserved1[15];
	/* own cache line */
	uint32_t
	        turn_bell; /* futex: +1 when a turn is wanted, or the container's work begins or ends while it is watched */
	uint32_t reserved6[15];
	/* own cache line */
	uint32_t reclaimed; /* slots of dead processes that were given back */
	uint32_t hint; /* where the search for a free slot begins */
	uint32_t high; /* slots at and above this index were never taken */
	uint32_t reserved2[13];
	uint64_t reserved3[96];
	char uuid[PTG_DEVICES][PTG_UUID_SIZE]; /* device index -> UUID; under a policy: the policy's order */
	uint64_t reserved4[256];
	struct ptg_ledger_device device[PTG_DEVICES]; /* by index in `uuid`; at 4096 */
	uint64_t reserved5[256];
	struct ptg_slot slot[PTG_SLOTS]; /* one a process; at 8192 */
	struct ptg_slot_turn turn[PTG_DEVICES][PTG_SLOTS]; /* by index in `uuid`, then by slot; at 1056768 */
};

#endif
