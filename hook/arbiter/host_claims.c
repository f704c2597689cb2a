/* host_claims.c: what a tenant says of its turns, read from its ledger, without what dead processes left in it.
 *
 * Called by host.c each round, after a closed turn was published (the fence between is turns_publish()'s). The ledger is
 * read at fixed places, the lines with pread and the words of its first page guarded: a tenant may truncate it or write
 * anything into it, and whatever it claims harms only itself. A process that was killed in its turn claims for ever that it works; so where a claim is suspicious
 * (a closed turn that is not drained, a wait or a flight that lasts), the slot's lock is asked for: free = dead. Such a
 * claim is left out until the line says something else: whoever takes the slot next clears it first. */
#include "host_local.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ASK_FIRST    (3 * HOST_MS) /* after a turn was closed: most are drained by then */
#define ASK_WAITER   (100 * HOST_MS)
#define ASK_LAST     (100 * HOST_MS) /* most distance between two looks at a tenant that keeps others waiting */
#define BURIED_EVERY (10000 * HOST_MS) /* between two lines in the log: a tenant may claim what it likes */
#define ASK_SELDOM   (1000 * HOST_MS) /* … at one that does not */

struct head {
	const struct ptg_ledger *page;
	uint32_t bell, high;
};

HOST_GUARDED static void read_head(void *argument)
{
	struct head *head = argument;
	head->bell = __atomic_load_n(&head->page->turn_bell, __ATOMIC_ACQUIRE);
	head->high = __atomic_load_n(&head->page->high, __ATOMIC_RELAXED);
}

void claims_bell(struct tenant *t)
{
	struct head head = {t->bell_page, t->bell, 0};
	t->cut = !guard_run(read_head, &head);
	t->rings_now = head.bell != t->bell;
	t->bell = head.bell;
	t->high = head.high < PTG_SLOTS ? head.high : PTG_SLOTS;
}

static bool lock_is_free(int fd, unsigned slot)
{
	struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = slot, .l_len = 1};
	return fcntl(fd, F_OFD_GETLK, &lock) == 0 && lock.l_type == F_UNLCK;
}

static bool is_ghost(const struct account *a, unsigned slot, const struct ptg_slot_turn *line)
{
	return a->ghosts && a->ghosts[slot].busy_ns == line->busy_ns && a->ghosts[slot].want_ns == line->want_ns;
}

/* Ask for the lock of each slot that claims something. */
static void find_dead(struct ptg_host *host, struct tenant *t, struct account *a, const struct ptg_slot_turn *lines,
                      uint64_t now)
{
	unsigned found = 0;
	if (!a->ghosts)
		a->ghosts = calloc(PTG_SLOTS, sizeof *a->ghosts);
	for (unsigned slot = 0; a->ghosts && slot < t->high; slot++) {
		const struct ptg_slot_turn *line = &lines[slot];
		if ((!line->busy_ns && !line->want) || is_ghost(a, slot, line) || !lock_is_free(t->ledger_fd, slot))
			continue;
		a->ghosts[slot] = (struct ghost){line->busy_ns, line->want_ns};
		found++;
	}
	host->stats.ghosts += found;
	if (!found || (t->buried_at && now - t->buried_at < BURIED_EVERY))
		return;
	t->buried_at = now;
	host_log(host, "%s: what %u dead %s on %s claims no longer counts", t->name, found,
	         found == 1 ? "process" : "processes", host->device[a->device].uuid);
}

static uint64_t earlier(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

/* Add up the lines; times that have not come yet are taken for now. */
static struct arb_claim sum_up(const struct tenant *t, const struct account *a, const struct ptg_slot_turn *lines,
                               uint64_t now)
{
	struct arb_claim claim = {.busy_since = now, .want_since = now};
	for (unsigned slot = 0; slot < t->high; slot++) {
		const struct ptg_slot_turn *line = &lines[slot];
		uint64_t idle = earlier(line->idle_ns, now);
		if (idle > claim.idle_since)
			claim.idle_since = idle;
		claim.flight += line->flight_ns;
		claim.launches += line->launches;
		if ((!line->busy_ns && !line->want) || is_ghost(a, slot, line))
			continue;
		claim.degraded |= line->degraded != 0;
		if (line->busy_ns) {
			claim.busy = true;
			claim.busy_since = earlier(claim.busy_since, line->busy_ns);
		}
		if (line->want) {
			claim.wants = true;
			claim.want_since = earlier(claim.want_since, line->want_ns ? line->want_ns : now);
		}
	}
	if (!claim.busy)
		claim.busy_since = 0;
	if (!claim.wants)
		claim.want_since = 0;
	return claim;
}

/* When a look for the dead becomes worth it, by what is claimed now. */
static uint64_t suspicious_from(const struct tenant *t, const struct account *a)
{
	uint64_t from = ARB_NEVER;
	if (a->claim.busy)
		from = is_open(t, a) ? a->claim.busy_since + ASK_WAITER : a->closed_at + ASK_FIRST;
	if (a->claim.wants)
		from = earlier(from, a->claim.want_since + ASK_WAITER);
	return from;
}

uint64_t claims_due(const struct tenant *t, const struct account *a)
{
	uint64_t from = suspicious_from(t, a);
	return from == ARB_NEVER ? ARB_NEVER : from > a->ask_at ? from : a->ask_at;
}

/* How long until the next look: short while others wait for a closed turn to drain, since a process's lock goes late in its
 * death; longer and longer else. */
static uint64_t next_distance(const struct tenant *t, const struct account *a, uint64_t now)
{
	if (is_open(t, a))
		return earlier(a->ask_after ? 2 * a->ask_after : ASK_FIRST, ASK_SELDOM);
	return now - a->closed_at < ASK_WAITER ? ASK_FIRST : ASK_LAST;
}

static void read_account(struct ptg_host *host, struct tenant *t, unsigned index, uint64_t now)
{
	static _Thread_local struct ptg_slot_turn lines[PTG_SLOTS];
	struct account *a = &t->account[index];
	size_t bytes = t->high * sizeof *lines;
	off_t from = (off_t)(offsetof(struct ptg_ledger, turn) + index * sizeof lines);
	a->claim = (struct arb_claim){0};
	a->stale = false;
	if (t->cut || pread(t->ledger_fd, lines, bytes, from) != (ssize_t)bytes) {
		t->cut = true;
		return;
	}
	a->claim = sum_up(t, a, lines, now);
	if (suspicious_from(t, a) == ARB_NEVER) {
		a->ask_at = a->ask_after = 0;
		return;
	}
	if (now < claims_due(t, a))
		return;
	find_dead(host, t, a, lines, now);
	a->ask_after = next_distance(t, a, now);
	a->ask_at = now + a->ask_after;
	a->claim = sum_up(t, a, lines, now);
}

void claims_read(struct ptg_host *host, struct tenant *t, uint64_t now)
{
	for (unsigned index = 0; index < t->policy.ndev; index++) {
		const struct account *a = &t->account[index];
		if (!a->served || !a->told.gated)
			continue;
		/* While its word is even, a container rings whenever it claims something else. */
		if (t->rings_now || t->cut || a->stale || is_open(t, a) || claims_due(t, a) <= now)
			read_account(host, t, index, now);
	}
}
