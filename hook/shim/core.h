/* core.h: what the files that decide and keep count share (setup.c, policy.c, env.c, units.c, devices.c, ledger.c,
 * slot.c, proc.c, log.c, charge.c). The rest of the library sees shim.h only.
 *
 * All that these files know about the process lies in one struct vgpu_state, on pages that the kernel gives a fork's
 * child zeroed: a child starts from nothing, as an exec would, and can use no slot, lock or table of its parent.
 * Rules: `lock` orders the threads of this process and is never held across a call of the driver or NVML; system calls
 * made under it are raw ones, so that no thread can be cancelled while holding it. */
#ifndef PARTAGE_SHIM_CORE_H
#define PARTAGE_SHIM_CORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "ledger_core.h"
#include "lock.h"
#include "partage/turns.h"
#include "shim.h"

#define VGPU_ORDINALS_MAX 64 /* devices of one machine that we can tell apart */
#define VGPU_PATH_MAX     512
#define VGPU_REASON_MAX   384

/* ---- units.c ------------------------------------------------------------------------------------------------------- */

#define VGPU_SIZE_FORMS                                                                                                \
	"bytes, or a whole number with k, m, g or t and optionally i or B: 4294967296, 4096m, 4g, 4Gi, 4GB"
int vgpu_parse_size(const char *text, uint64_t *bytes); /* 0, or -1: not one of VGPU_SIZE_FORMS, or past 2^64 */
bool vgpu_parse_true(const char *text);                 /* 1, t, true in the usual spellings; NULL is false */

/* ---- env.c: what the environment asks for ---------------------------------------------------------------------------- */

struct vgpu_env {
	bool limited; /* some limit is set */
	bool numbered; /* some limit names a device by number */
	bool control_off; /* CUDA_DISABLE_CONTROL */
	bool oversubscribe;
	uint64_t all; /* bytes for every device that has no number of its own; 0 = none */
	uint64_t each[VGPU_ORDINALS_MAX]; /* bytes, 0 = none; where has_each */
	bool has_each[VGPU_ORDINALS_MAX];
	uint64_t context; /* bytes of one context, PTG_CONTEXT_UNKNOWN where not set */
};
/* 0, or -1 with the reason: some variable does not parse. */
int vgpu_env_read(struct vgpu_env *env, char reason[VGPU_REASON_MAX]);
uint64_t vgpu_env_limit(const struct vgpu_env *env, int number); /* number -1: of a device without one; 0 = none */

/* ---- policy.c -------------------------------------------------------------------------------------------------------- */

extern const char *vgpu_system_dir; /* "/run/partage"; the tests point it elsewhere */

/* Where the policy was looked for. */
enum vgpu_found {
	VGPU_NO_POLICY, /* nobody named one */
	VGPU_POLICY, /* mapped; whether it is good says vgpu_policy_verify */
	VGPU_UNUSABLE, /* named, but cannot be mapped */
};
enum vgpu_found vgpu_policy_find(char dir[VGPU_PATH_MAX], const struct ptg_policy **map, char reason[VGPU_REASON_MAX]);
uint32_t vgpu_crc32c(const void *bytes, size_t count);
/* Copy the mapped policy and check the copy; NULL where it is good, else what is wrong with it. Tries for at most 1 ms
 * while it is being written. `seen` is the sequence that was answered about. */
const char *vgpu_policy_verify(const struct ptg_policy *map, struct ptg_policy *copy, uint32_t *seen);
const struct ptg_turns *vgpu_turns_map(const char *dir); /* NULL where missing or not of this layout */

/* ---- proc.c: the operating system -------------------------------------------------------------------------------------- */

struct vgpu_identity {
	int32_t pid;
	uint64_t start_time; /* 0: /proc does not say */
	uint64_t pid_ns; /* 0: likewise */
	char name[16];
};
int32_t vgpu_pid(void);
void vgpu_identify(struct vgpu_identity *self);
/* A process of the caller's own pid namespace: false only where it is certainly gone, all its threads with it. */
bool vgpu_process_alive(int32_t pid, uint64_t start_time);
/* Whether a process has the file mapped that lies at an address of ours; true where that cannot be told. */
bool vgpu_process_maps(int32_t pid, const void *address);
uint64_t vgpu_now_ns(void); /* CLOCK_MONOTONIC */
void vgpu_pause_ns(uint64_t ns);
/* Raw system calls: not points of cancellation; -1 and errno. */
int vgpu_open(int dirfd, const char *path, int flags, mode_t mode); /* adds O_CLOEXEC | O_NOCTTY */
void vgpu_close(int fd);
int vgpu_move_high(int fd); /* to a number that programs do not meet; the same one where there is none */
struct stat;
int vgpu_stat(const char *path, struct stat *st, bool follow);
int vgpu_fstat(int fd, struct stat *st);
ssize_t vgpu_pread(int fd, void *to, size_t count, off_t at);
void vgpu_futex_wake(uint32_t *word, int count);
int vgpu_byte_lock(int fd, off_t byte); /* OFD write lock, not waited for: 0, or -1 */
int vgpu_byte_lock_shared(int fd, off_t byte); /* a read lock instead */
bool vgpu_byte_locked(int fd, off_t byte); /* by another description; also where it cannot be told */
void vgpu_byte_unlock(int fd, off_t byte);
void *vgpu_private_pages(size_t bytes); /* zero again in a fork's child; NULL without memory */
void vgpu_at_fork(void (*child)(void));

/* ---- ledger.c -------------------------------------------------------------------------------------------------------- */

struct vgpu_ledger {
	struct ptg_ledger *map; /* NULL: not open. A fork's child does not have the mapping. */
	int fd; /* for locks held for a moment; the slot's own rides on the mapping. Checked before use. */
	dev_t dev;
	ino_t ino;
	bool create; /* made by whoever comes first */
	bool removable; /* and removed by whoever leaves last */
	char path[VGPU_PATH_MAX];
};
/* Open, create where that is ours to do, check and map. 0, or -1 with the reason. */
int vgpu_ledger_open(struct vgpu_ledger *ledger, char reason[VGPU_REASON_MAX]);
void vgpu_ledger_close(struct vgpu_ledger *ledger);
int vgpu_ledger_open_again(const struct vgpu_ledger *ledger); /* a description with locks of its own; -1 with errno */
int vgpu_ledger_fd(struct vgpu_ledger *ledger); /* a descriptor for locks; -1 with errno */
/* Lock byte `slot` so that the lock lasts as long as the mapping: 0, or -1 with errno (EAGAIN: it is somebody's). */
int vgpu_ledger_hold(struct vgpu_ledger *ledger, uint32_t slot);
void vgpu_ledger_let_go(struct vgpu_ledger *ledger); /* undo that */
bool vgpu_ledger_unlinked(const struct vgpu_ledger *ledger);
void vgpu_ledger_forked(void); /* in a fork's child: close the descriptor it inherited */
/* Nobody removes the file until _kept; any number of processes may ask for that at once. 0; -1: it is removed, or somebody
 * was about to for five seconds. */
int vgpu_ledger_keep(struct vgpu_ledger *ledger);
void vgpu_ledger_kept(struct vgpu_ledger *ledger);
/* Fill in where the ledger of this user and these limits lies; makes the directory. 0, or -1 with the reason. */
int vgpu_ledger_standalone_path(struct vgpu_ledger *ledger, const struct vgpu_env *env, char reason[VGPU_REASON_MAX]);
/* The index that a device has in the ledger, claimed where it has none yet; -1 where all are taken, -2 where the set-up
 * lock cannot be had. */
int vgpu_ledger_claim_device(struct vgpu_ledger *ledger, const char *uuid);
/* The first user writes the policy's devices, later ones compare: 0, or -1 with the reason. */
int vgpu_ledger_claim_policy(struct vgpu_ledger *ledger, const struct ptg_policy *policy, char reason[VGPU_REASON_MAX]);

/* ---- slot.c ---------------------------------------------------------------------------------------------------------- */

#define VGPU_NO_SLOT UINT32_MAX
/* Take a slot for this process: its index, or VGPU_NO_SLOT with the reason. */
uint32_t vgpu_slot_take(struct vgpu_ledger *ledger, char reason[VGPU_REASON_MAX]);
/* Give back what dead processes have charged; returns how many slots. Stops after `most_alive` living ones. */
unsigned vgpu_slot_reclaim(struct vgpu_ledger *ledger, uint32_t own, unsigned most_alive);
uint32_t vgpu_slot_high(const struct ptg_ledger *map); /* slots from here on have never been taken */
void vgpu_slot_reclaim_one(struct vgpu_ledger *ledger, uint32_t index); /* the same for this one */
/* By another description; true: nobody holds it, nor ever will what it stood for. */
bool vgpu_slot_reclaim_by(struct vgpu_ledger *ledger, int fd, uint32_t index);
/* For memory that several processes hold: lock a free slot through this descriptor (VGPU_NO_SLOT: none); make it one that
 * no process owns. */
uint32_t vgpu_slot_lock_free(struct vgpu_ledger *ledger, int fd);
void vgpu_slot_make_shared(struct vgpu_ledger *ledger, uint32_t index);
/* Give back what this process held before it was replaced by exec. */
void vgpu_slot_forget_former(struct vgpu_ledger *ledger);
bool vgpu_slot_any_other(struct vgpu_ledger *ledger, uint32_t own); /* some other slot may be in use */

/* ---- devices.c: ordinals of this process, numbers of the machine, UUIDs --------------------------------------------------- */

struct vgpu_devices {
	int count; /* ordinals of this process */
	char uuid[VGPU_ORDINALS_MAX][PTG_UUID_SIZE]; /* by ordinal */
	int machine_count; /* -1: not known */
	char machine[VGPU_ORDINALS_MAX][PTG_UUID_SIZE]; /* by number in the machine (PCI order) */
};
/* Asks the driver; the caller holds no lock. The driver's own error where it is not ready. */
CUresult vgpu_devices_gather(struct vgpu_devices *devices, bool numbered);
/* Asks NVML for the machine's devices in its order: 0 or -1. */
int vgpu_machine_gather(struct vgpu_devices *devices);
int vgpu_machine_number(const struct vgpu_devices *devices, const char *uuid); /* -1: not known */
bool vgpu_uuid_equal(const char *a, const char *b); /* hexadecimal digits only: "GPU-" and "MIG-" are not compared */

/* ---- log.c ----------------------------------------------------------------------------------------------------------- */

enum vgpu_level { VGPU_LOG_ERROR = 1, VGPU_LOG_WARNING, VGPU_LOG_INFO, VGPU_LOG_DEBUG };
void vgpu_log(enum vgpu_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* ---- setup.c ----------------------------------------------------------------------------------------------------------- */

struct vgpu_state {
	uint32_t lock;
	uint32_t stage; /* enum below */
	uint32_t mode; /* enum vgpu_mode */
	uint32_t seen; /* sequence of the policy file that `policy` and `mode` answer to */
	uint32_t mapped; /* the ordinals below are known */
	const uint32_t *seq; /* the policy file's sequence, or a word that never changes */
	bool from_file; /* a policy file is in force, not the environment */
	uint32_t good; /* `policy` holds a policy; its UUIDs no longer change where it is from the file */
	struct vgpu_env env;
	struct ptg_policy policy; /* verified copy, or made from the environment */
	const struct ptg_policy *file;
	const struct ptg_turns *turns;
	char dir[VGPU_PATH_MAX];
	struct vgpu_ledger ledger;
	uint32_t slot; /* VGPU_NO_SLOT until the first charge */
	bool closed_for_good;
	struct vgpu_devices devices;
	int8_t index_of[VGPU_ORDINALS_MAX]; /* ordinal -> index in policy and ledger, or one below */
	int8_t ordinal_of[PTG_DEVICES]; /* the reverse, -1 */
	char reason[VGPU_REASON_MAX]; /* why closed */
};
#define VGPU_NOT_GRANTED (-1)
#define VGPU_NO_ROOM     (-2) /* more limited devices than a ledger has lines for: refused */

enum { VGPU_STAGE_NEW, VGPU_STAGE_READY };

extern struct vgpu_state *vgpu_state_pointer;

/* Never NULL. One bit per device index of the policy, 1 = launches there wait for turns (gate.h). The policy file's own
 * word, which somebody else writes; one that is always 0 until this process is under such a file, and again in a fork's
 * child. */
extern const uint32_t *vgpu_gate_at __attribute__((visibility("hidden")));
struct vgpu_state *vgpu_state_slow(void); /* sets up; NULL without memory, or while this thread is asking the driver */

static inline struct vgpu_state *vgpu_state(void)
{
	struct vgpu_state *s = __atomic_load_n(&vgpu_state_pointer, __ATOMIC_ACQUIRE);
	if (__builtin_expect(s && __atomic_load_n(&s->stage, __ATOMIC_ACQUIRE) == VGPU_STAGE_READY, 1))
		return s;
	return vgpu_state_slow();
}

static inline bool vgpu_good(const struct vgpu_state *s)
{
	return __atomic_load_n(&s->good, __ATOMIC_ACQUIRE) != 0;
}

/* These want s->lock held. */
void vgpu_refresh(struct vgpu_state *s); /* the policy file has changed */
bool vgpu_ledger_ready(struct vgpu_state *s); /* open and checked; else closed, with the reason */
bool vgpu_slot_ready(struct vgpu_state *s);
int vgpu_env_device(struct vgpu_state *s,
                    const char *uuid); /* index of a device limited by the environment, or below 0 */

static inline bool vgpu_stale(const struct vgpu_state *s)
{
	return __atomic_load_n(s->seq, __ATOMIC_ACQUIRE) != __atomic_load_n(&s->seen, __ATOMIC_RELAXED);
}

/* Wants s->lock free: makes the ordinals known. The driver's own error where it is not ready. */
CUresult vgpu_map_devices(struct vgpu_state *s);

#endif
