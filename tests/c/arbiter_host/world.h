/* world.h: a root with hand-overs, a lock directory, and tenants that are threads or processes of the test.
 *
 * Used by tests/c/arbiter_host. Everything is real: files, locks, futexes, the clock. Nothing sleeps to let something
 * happen: who waits for a turn sleeps on its word, who waits for the host sleeps on what the host writes. */
#ifndef PARTAGE_TESTS_ARBITER_WORLD_H
#define PARTAGE_TESTS_ARBITER_WORLD_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "check.h"
#include "host.h"
#include "partage/ledger.h"
#include "partage/policy.h"
#include "partage/turns.h"

#define CARD  "GPU-00000000-0000-0000-0000-000000000001"
#define CARD2 "GPU-00000000-0000-0000-0000-000000000002"

struct world {
	char root[256], locks[256], log[256];
};

/* A hand-over as its container and the writer of its policy see it. */
struct hand {
	char path[512];
	struct ptg_policy *policy;
	struct ptg_ledger *ledger;
	const struct ptg_turns *turns;
	int ledger_fd; /* of the container; slot locks are this description's */
	int watch_fd; /* holds PTG_LOCK_WATCH: somebody uses the hand-over; -1: not */
};

struct share {
	uint32_t cores, ceiling, weight, share_class;
	bool gated;
};

#define GATED30 ((struct share){300, 300, 300, PTG_CLASS_FIXED, true})
#define FREE    ((struct share){0, 1000, 100, PTG_CLASS_BURST, false})

struct world world_make(const char *name);
struct ptg_host *world_host(const struct world *w, uint64_t idle_ns,
                            uint32_t flags); /* running on a thread of its own */
struct ptg_host *world_open(const struct world *w, const char *root, uint64_t idle_ns, uint32_t flags);
pid_t world_arbiter(const struct world *w, const char *idle, int *ready); /* the program; ready: its pipe */
void world_ready(int fd, const char *line); /* wait for what --ready-fd says */

/* Turns, then ledger, then policy, as `partage run` makes them; watched. `card2` may be NULL. */
struct hand hand_make(const struct world *w, const char *name, struct share share, const char *card2);
struct hand hand_open(const struct world *w, const char *name); /* one that is there; nobody watches it */
void hand_share(struct hand *h, struct share share); /* change the policy and ring */
void hand_leave(struct hand *h); /* let the watch go and unmap; the files stay */
void hand_remove(struct hand *h); /* remove the directory */

void file_write(const char *dir, const char *name, const void *bytes, size_t size); /* replaces what is there */
char *file_read(const char *path); /* text; the caller frees it */
bool log_waits(const struct world *w, const char *words); /* until the log says so; false after 60 s */

void ring(struct hand *h);
bool take_slot(struct hand *h, unsigned slot); /* the lock, and `high` */
void drop_slot(struct hand *h, unsigned slot);
void want(struct hand *h, unsigned device, unsigned slot); /* says so and rings; does not wait */
void begin(struct hand *h, unsigned device, unsigned slot); /* work in flight */
void finish(struct hand *h, unsigned device, unsigned slot); /* none any more; rings where that is to be known */
uint32_t word_of(const struct hand *h, unsigned device);
/* Sleep on the word until it is odd, or even, or has been meanwhile; fails the test after 60 s. */
void await_open(const struct hand *h, unsigned device);
void await_closed(const struct hand *h, unsigned device);
/* Want, wait, work and finish once. */
void take_turn(struct hand *h, unsigned device, unsigned slot);
uint64_t now_ns(void);
void await_stat(struct ptg_host *host, bool (*holds)(const struct ptg_host_stats *), const char *what);

#endif
