/* host.h: the arbiter as it runs: real time, files, locks and futexes around the policy core (arbiter.h).
 *
 * Used by main.c (`partage-arbiter`, started by `partage run`), through cffi by the node agent, and by tests/c/arbiter_host.
 * A host serves one *root*: a directory of hand-overs, each with a policy, a turns file and a ledger. It finds them when
 * it starts and as they come, and forgets those that are gone or that nobody uses. All of it runs on one thread, the one
 * in host_run(), or one that host_start() makes; no callback, so no Python, is on the path of a turn.
 *
 * What can go wrong: the root is not ours (host_open says so); another host serves it already (HOST_SERVED); a device is
 * arbitrated by somebody else, a user's or an older agent's (a line in the log names the owner; the host waits for the
 * device, and its tenants there live by their private buckets meanwhile); a hand-over with files of another layout (a line
 * in the log, not served); a ledger that its tenant cuts or scribbles on (its own harm).
 *
 * Read by cffi too: fixed-width types, no includes but stdint.h, no function-like macros. */
#ifndef PARTAGE_ARBITER_HOST_H
#define PARTAGE_ARBITER_HOST_H

#include <stdint.h>

#define PTG_HOST_FOREVER UINT64_MAX
/* Flags of struct ptg_host_options. */
#define PTG_HOST_NO_WAITV 1 /* as on a kernel without futex_waitv: one thread for each bell */
/* Results of ptg_host_run(); less than 0: -errno. */
#define PTG_HOST_STOPPED   0
#define PTG_HOST_IDLE      1
#define PTG_HOST_ROOT_GONE 2

struct ptg_host;

struct ptg_host_options {
	const char *root;     /* directory of hand-overs: its owner's alone */
	const char *lock_dir; /* where all arbiters of the machine lock its devices */
	uint64_t idle_ns;     /* end when no tenant was gated for so long; PTG_HOST_FOREVER: never */
	int32_t log_fd;       /* what happens, a line each; -1: nowhere */
	uint32_t flags;       /* PTG_HOST_* */
};

/* Sums since the host was opened, and what there is now. */
struct ptg_host_stats {
	uint64_t rounds;    /* claims read, decided, published */
	uint64_t sleeps;
	uint64_t opened, closed; /* turns */
	uint64_t ghosts;    /* claims of dead processes that were left out */
	uint64_t undrained; /* turns that were not drained within the guard */
	uint64_t met;       /* tenants that came, or came back */
	uint32_t tenants;   /* in use now */
	uint32_t gated;     /* of them gated on some device */
	uint32_t devices;   /* that we arbitrate now */
	uint32_t foreign;   /* that we wait for: somebody else arbitrates them */
};

/* NULL, with a sentence in `why`: the root is missing or not ours, or another host serves it (the sentence then begins with
 * "served by"). `why` takes at most `size` bytes. */
struct ptg_host *ptg_host_open(const struct ptg_host_options *options, char *why, uint64_t size);
/* Find what there is and reset words that a dead arbiter left behind. After that the host holds its heartbeat. Optional:
 * ptg_host_run() does it where nobody has. */
void ptg_host_adopt(struct ptg_host *host);
/* Serve until ptg_host_stop(), until idle, or until the root is gone. Turns are closed when it returns. */
int32_t ptg_host_run(struct ptg_host *host);
/* The same on a thread of its own; 0 or -errno. ptg_host_close() ends it. */
int32_t ptg_host_start(struct ptg_host *host);
/* From any thread or signal handler. */
void ptg_host_stop(struct ptg_host *host);
void ptg_host_stats(struct ptg_host *host, struct ptg_host_stats *stats);
/* Sleeps until a round has made something but the counts of rounds and sleeps differ from what `stats` says; it says what
 * there is now then. 0: nothing has within `most_ns`. From any thread, while the host is open. */
int32_t ptg_host_stats_await(struct ptg_host *host, struct ptg_host_stats *stats, uint64_t most_ns);
/* Stops a thread of its own, lets every device and the root go. */
void ptg_host_close(struct ptg_host *host);

#endif
