/* host_local.h: what the host's files share; nothing of it is for others.
 *
 *   host.c         the loop: read claims, decide, publish, sleep
 *   host_tenant.c  one hand-over: its files, its policy, whether anybody uses it
 *   host_claims.c  what a ledger says of turns, without what dead processes left in it
 *   host_turns.c   the turn words
 *   host_guard.c   files that somebody cuts while they are mapped
 *   host_watch.c   hand-overs that come and go (inotify)
 *   host_wait.c    sleeping on all bells at once
 *   host_sleepers.c  threads for the bells that are more than that
 *   host_locks.c   one arbiter a device, one host a root
 *   host_log.c     a line for whoever looks
 *   host_stats.c   what it counts
 *
 * Everything but `kick`, `stop` and the `stats` belongs to the thread that runs the host. */
#ifndef PARTAGE_ARBITER_HOST_LOCAL_H
#define PARTAGE_ARBITER_HOST_LOCAL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "arbiter.h"
#include "host.h"
#include "partage/ledger.h"
#include "partage/policy.h"
#include "partage/turns.h"

#define HOST_NAME     256 /* bytes of a hand-over's name, its end included */
#define HOST_MS       UINT64_C(1000000)
#define HOST_REGISTRY ".lock"    /* in the root: names.REGISTRY_LOCK of the Python side */
#define HOST_SERVING  ".arbiter" /* in the root: held by its host, says who that is; names.ARBITER_LOCK */

/* Claims of a dead process: what its line said when its lock was found free. */
struct ghost {
	uint64_t busy_ns, want_ns;
};

/* One tenant on one device. */
struct account {
	int device; /* index into ptg_host.device; -1: none */
	uint32_t at; /* index into the turns file */
	bool served; /* it has an account in the core */
	struct arb_share share; /* as the policy says now */
	struct arb_share told; /* as the core was told last */
	uint64_t audit, audited; /* the policy's audit_ns; how much of it the core was told, or came before us */
	struct arb_claim claim;
	bool stale; /* the claim was not read since the turn was closed, or at all */
	struct arb_turn shown; /* what was published last */
	uint64_t opened_at, closed_at; /* when the word was made odd, and even, the latest time */
	uint64_t ask_at; /* when to look for dead processes among the claims; ARB_NEVER: nothing is suspicious */
	uint64_t ask_after; /* distance to the next look */
	struct ghost *ghosts; /* by slot; NULL: none yet */
};

struct file_id {
	dev_t dev;
	ino_t ino;
};

/* How often a bell was rung of late. */
struct ring_count {
	uint64_t since;
	uint32_t rings;
};

/* A hand-over. */
struct tenant {
	struct tenant *next;
	char name[HOST_NAME];
	bool seen; /* by the scan that goes on */
	int dir, policy_fd, ledger_fd; /* -1: not open */
	int watch; /* inotify's, of the directory; -1: none */
	struct file_id dir_id, policy_id, ledger_id, turns_id;
	struct ptg_turns *turns; /* NULL: not mapped */
	uint32_t word[PTG_DEVICES]; /* by index there: ours, since whoever maps the file may scribble on it */
	const struct ptg_ledger *ledger; /* mapped for reading, under host_guard.c; NULL: none */
	uint32_t bell; /* as it was before the claims were read */
	uint32_t high; /* slots in use, bounded */
	bool cut; /* the ledger ends before its bell or its claims */
	bool complained; /* a line was written about these files */
	uint64_t mute_until, mute_after; /* its bell is left out of our sleep; for how long the next time */
	struct ring_count rings;
	uint64_t buried_at, complained_at; /* when a line about dead processes, about turns not drained was written */
	uint32_t complaints; /* turns not drained since */
	uint32_t claimed; /* accounts whose claims were read in this round, bits */
	bool rings_now; /* its bell was rung since the round before */
	bool rung; /* since the policy was looked at last */
	const struct ptg_policy *policy_at_hand; /* mapped for reading, for its sequence; NULL: none */
	struct ptg_policy policy; /* the last good copy; magic 0: none yet */
	uint32_t policy_seq; /* of that copy */
	uint64_t policy_at; /* when its sequence was looked at last */

	uint64_t look_at, look_after; /* when to look at files and use again; ARB_NEVER: nothing has happened */
	bool used; /* watched, or a process holds a slot */
	int id; /* in the core; -1: none */
	struct account account[PTG_DEVICES]; /* by index in the policy */
	struct sleeper *sleeper; /* where it is not among those that we sleep on ourselves; NULL: nobody */
	bool direct; /* it is */
};

enum device_state {
	DEVICE_UNUSED, /* nobody gated is on it: others may arbitrate */
	DEVICE_OURS,
	DEVICE_FOREIGN, /* somebody else arbitrates it; we wait */
	DEVICE_REFUSED, /* its lock cannot be had: no such directory, not a plain file */
};

struct device {
	char uuid[PTG_UUID_SIZE];
	int index; /* in the core */
	enum device_state state;
	uint32_t gated; /* accounts of ours that wait for turns there */
	int lock; /* descriptor of its lock file; -1: none */
	int watch; /* inotify's, of the lock file; -1: none */
	uint64_t retry_at, retry_after;
};

struct ptg_host {
	struct arb *arb;
	char root[4096], lock_dir[4096];
	int root_fd, serving_fd, log_fd;
	uint32_t flags;
	uint64_t idle_ns, idle_since; /* since when nobody is gated; 0: somebody is */
	bool adopted, root_gone;
	struct tenant *tenants;
	struct device device[ARB_DEVICES];
	int ndevices;
	int inotify, root_watch; /* -1: scanned once a second, and tried again then */
	uint64_t scan_at; /* when to list the root; ARB_NEVER: nothing has happened */
	uint64_t beat_at; /* of the last heartbeat */
	bool changed; /* a tenant or a device did: count and tell again */
	bool active; /* somebody waits or works */
	bool has_waitv;
	unsigned direct; /* bells that we sleep on ourselves */
	struct sleeper *sleepers; /* the threads for others */
	pthread_t thread, events;
	bool has_thread, has_events;
	int events_end, events_set; /* eventfd that ends the thread `events`; what that waits for */
	int unwatched; /* errno: something has no inotify watch since the last scan; 0: nothing */
	bool told_unwatched; /* the log says so */
	_Atomic uint32_t kick; /* futex: +1 whenever something but a bell may have happened */
	uint32_t heard; /* `kick` when events were read last */
	_Atomic uint32_t stop;
	struct {
		_Atomic uint64_t rounds, sleeps, opened, closed, ghosts, undrained, met;
		_Atomic uint32_t tenants, gated, devices, foreign;
	} stats;
	_Atomic uint32_t stats_word; /* futex: +1 with each round while anybody waits for news of them */
	_Atomic uint32_t stats_waiters; /* how many do */
};

static inline bool is_open(const struct tenant *t, const struct account *a)
{
	return t->word[a->at] & 1;
}

uint64_t host_now(void);
void host_kick(struct ptg_host *host);

/* host_log.c */
void host_log(struct ptg_host *host, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* host_stats.c */
void stats_tell(struct ptg_host *host); /* a round is over */

/* host_tenant.c */
struct tenant *tenant_new(struct ptg_host *host, const char *name);
void tenant_free(struct ptg_host *host, struct tenant *t);
/* Open, map, or drop what lies in the directory now, and see whether anybody uses it. */
void tenant_look(struct ptg_host *host, struct tenant *t, uint64_t now);
void tenant_look_soon(struct tenant *t, uint64_t now); /* and a few times more, for a second */
void tenant_policy(struct ptg_host *host, struct tenant *t, uint64_t now); /* read again where its sequence has moved */
void tenant_shares(struct ptg_host *host, struct tenant *t, uint64_t now); /* tell the core what differs */
bool tenant_gated(const struct tenant *t);

/* host_guard.c */
int guard_install(void); /* once a process; 0 or -errno */
/* Run a few plain accesses to mapped files; false: one of them was to a page that is cut off. */
bool guard_run(void (*accesses)(void *), void *argument);
/* Of a function that makes them: the thread sanitizer holds a lock of its own within an atomic access, and would hold it
 * for ever where the access does not come back. */
#define HOST_GUARDED __attribute__((no_sanitize("thread")))

/* host_claims.c */
void claims_bell(struct tenant *t); /* read the bell and `high`; sets `rings_now` */
/* Read what may have changed since the round before; bit i: the claim of account i was read. */
uint32_t claims_read(struct ptg_host *host, struct tenant *t, uint64_t now);
uint64_t claims_due(const struct tenant *t,
                    const struct account *a); /* when a look for the dead is due; ARB_NEVER: not at all */

/* host_turns.c */
bool turns_reset(struct tenant *t, int32_t arbiter); /* even words; false: the file is cut */
/* Publish what differs: the turns that open, or all others. Whether the claims have to be read again before anybody
 * sleeps: a turn was closed, or is watched from now on. */
bool turns_publish(struct ptg_host *host, struct tenant *t, uint64_t now, bool beat, bool opening);

/* host_watch.c */
void watch_open(struct ptg_host *host);
void watch_close(struct ptg_host *host);
void watch_read(struct ptg_host *host, uint64_t now);
void watch_scan(struct ptg_host *host, uint64_t now);
int watch_directory(struct ptg_host *host, int dir);
int watch_lock(struct ptg_host *host, int fd);
void watch_remove(struct ptg_host *host, int watch);

/* host_wait.c */
void wait_add(struct ptg_host *host, struct tenant *t);
void wait_remove(struct ptg_host *host, struct tenant *t);
void wait_sleep(struct ptg_host *host, uint32_t kick, uint64_t now, uint64_t until);
bool wait_supported(void);
bool rings_too_often(struct ring_count *count, uint64_t now); /* counts one ring; whether to mute the bell a while */

#define WAIT_BELLS   127 /* of one futex_waitv, beside a word of the sleeper's own */
#define MUTE_RINGING HOST_MS

struct waiter { /* struct futex_waitv, which older headers lack */
	uint64_t value, address;
	uint32_t flags, reserved;
};

struct waiter wait_for_own(const _Atomic uint32_t *word, uint32_t value);
struct waiter wait_for_shared(const uint32_t *word, uint32_t value); /* of a file that others map, too */
bool wait_is_for(const struct waiter *w, const uint32_t *word);
bool wait_is_cut(const uint32_t *word, uint32_t value); /* the kernel cannot sleep on it */
/* Sleep until one of the words is not its value, or until CLOCK_MONOTONIC's `until`: the place of one that was rung, or
 * -errno, -EAGAIN where one was another value from the beginning. Without futex_waitv: on the first alone. */
int wait_on(const struct ptg_host *host, const struct waiter *list, unsigned n, uint64_t until);

/* host_sleepers.c */
bool sleepers_add(struct ptg_host *host, struct tenant *t); /* false: no thread can be made */
void sleepers_remove(struct tenant *t); /* afterwards nothing of its ledger is touched any more */

/* host_locks.c */
int locks_serve(struct ptg_host *host, char *why, size_t size); /* the root's; -errno */
int locks_device(struct ptg_host *host, const char *uuid); /* index into ptg_host.device, new where needed; -1: full */
bool locks_step(struct ptg_host *host,
                uint64_t now); /* take, retry and let go; whether a device became or ceased to be ours */
void locks_close(struct ptg_host *host);
int locks_registry(struct ptg_host *host); /* descriptor that holds the registry's lock; -1: not now */

#endif
