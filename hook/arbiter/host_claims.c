/* host_claims.c: what a tenant says of its turns, read from its ledger, without what dead processes left in it.
 *
 * Called by host.c each round, after a closed turn was published (the fence between is turns_publish()'s). The ledger is
 * mapped and read under host_guard.c, no system call: a tenant may truncate it or write anything into it, and whatever it
 * claims harms only itself. A process that was killed in its turn claims for ever that it works; so where a claim is
 * suspicious (a closed turn that is not drained, a turn that was not used by who had asked for it, a flight that lasts),
 * the slot's lock is asked for: free = dead. Such a claim is left out until the line says something else: whoever takes
 * the slot next clears it first. */
#include "host_local.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#define AHEAD        (10 * HOST_MS) /* of the clock: more is no matter of who looked at it first */
#define ASK_FIRST    (10 * HOST_MS) /* after a turn was closed: most are drained by then */
#define ASK_OPEN     (100 * HOST_MS) /* after work in flight began, in an open turn */
#define ASK_LAST     (100 * HOST_MS) /* most distance between two looks at a tenant that keeps others waiting */
#define ASK_SELDOM   (1000 * HOST_MS) /* … at one that does not */
#define ASK_PRICE    (HOST_MS / 20) /* no sooner again than so much for each lock that was asked for */
#define BURIED_EVERY (10000 * HOST_MS) /* between two lines in the log: a tenant may claim what it likes */

struct head {
	const struct ptg_ledger *ledger;
	uint32_t bell, high;
};

HOST_GUARDED static void read_head(void *argument)
{
	struct head *head = argument;
	head->bell = __atomic_load_n(&head->ledger->turn_bell, __ATOMIC_ACQUIRE);
	head->high = __atomic_load_n(&head->ledger->high, __ATOMIC_RELAXED);
}

void claims_bell(struct tenant *t)
{
	struct head head = {t->ledger, t->bell, 0};
	t->cut = !guard_run(read_head, &head);
	t->rings_now = head.bell != t->bell;
	t->bell = head.bell;
	t->high = head.high < PTG_SLOTS ? head.high : PTG_SLOTS;
}

struct copy {
	const struct ptg_slot_turn *from;
	struct ptg_slot_turn *to;
	unsigned count;
};

/* Word by word: their writer is at work meanwhile. */
HOST_GUARDED static void copy_lines(void *argument)
{
	struct copy *copy = argument;
	const uint64_t *from = (const uint64_t *)(const void *)copy->from;
	uint64_t *to = (uint64_t *)(void *)copy->to;
	for (size_t i = 0; i < copy->count * (sizeof *copy->to / sizeof *to); i++)
		to[i] = __atomic_load_n(&from[i], __ATOMIC_RELAXED);
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

/* Ask for the lock of each slot that claims something; returns how many were asked for. */
static unsigned find_dead(struct ptg_host *host, struct tenant *t, struct account *a, const struct ptg_slot_turn *lines,
                          uint64_t now)
{
	unsigned asked = 0, found = 0;
	if (!a->ghosts)
		a->ghosts = calloc(PTG_SLOTS, sizeof *a->ghosts);
	for (unsigned slot = 0; a->ghosts && slot < t->high; slot++) {
		const struct ptg_slot_turn *line = &lines[slot];
		if ((!line->busy_ns && !line->want) || is_ghost(a, slot, line))
			continue;
		asked++;
		if (!lock_is_free(t->ledger_fd, slot))
			continue;
		a->ghosts[slot] = (struct ghost){line->busy_ns, line->want_ns};
		found++;
	}
	host->stats.ghosts += found;
	if (!found || (t->buried_at && now - t->buried_at < BURIED_EVERY))
		return asked;
	t->buried_at = now;
	host_log(host, "%s: what %u dead %s on %s claims no longer counts", t->name, found,
	         found == 1 ? "process" : "processes", host->device[a->device].uuid);
	return asked;
}

static uint64_t earlier(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

/* A moment that has not come, by a clock that is read after it was. */
static bool lies_ahead(uint64_t moment, uint64_t now)
{
	return moment > now && moment > host_now() + AHEAD;
}

static bool is_absurd(const struct ptg_slot_turn *line, uint64_t now)
{
	return lies_ahead(line->idle_ns, now) || lies_ahead(line->busy_ns, now) || lies_ahead(line->want_ns, now);
}

/* Add up the lines; times that have not come yet are taken for now. */
static struct arb_claim sum_up(const struct tenant *t, const struct account *a, const struct ptg_slot_turn *lines,
                               uint64_t now)
{
	struct arb_claim claim = {.busy_since = now, .want_since = now};
	for (unsigned slot = 0; slot < t->high; slot++) {
		const struct ptg_slot_turn *line = &lines[slot];
		uint64_t idle = earlier(line->idle_ns, now);
		claim.absurd |= is_absurd(line, now);
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

/* When a look for the dead becomes worth it, by what is claimed now. A dead waiter harms nobody until it is given a turn,
 * which it does not use: then it asks for longer than since that turn. */
static uint64_t suspicious_from(const struct tenant *t, const struct account *a)
{
	const struct arb_claim *c = &a->claim;
	uint64_t from = ARB_NEVER;
	if (c->busy)
		from = is_open(t, a) ? c->busy_since + ASK_OPEN : a->closed_at + ASK_FIRST;
	if (c->wants && c->want_since < a->opened_at)
		from = earlier(from, is_open(t, a) ? a->opened_at + ASK_FIRST : a->closed_at);
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
	return a->claim.busy && now - a->closed_at < ASK_LAST ? ASK_FIRST : ASK_LAST;
}

static struct arb_claim read_account(struct ptg_host *host, struct tenant *t, unsigned index, uint64_t now)
{
	static _Thread_local struct ptg_slot_turn lines[PTG_SLOTS];
	struct account *a = &t->account[index];
	struct copy copy = {t->ledger ? t->ledger->turn[index] : NULL, lines, t->high};
	a->stale = false;
	if (t->cut || !t->ledger || !guard_run(copy_lines, &copy)) {
		t->cut = true;
		return (struct arb_claim){0};
	}
	a->claim = sum_up(t, a, lines, now);
	if (suspicious_from(t, a) == ARB_NEVER) {
		a->ask_at = a->ask_after = 0;
		return a->claim;
	}
	if (now < claims_due(t, a))
		return a->claim;
	uint64_t price = ASK_PRICE * find_dead(host, t, a, lines, now), distance = next_distance(t, a, now);
	a->ask_after = price > distance ? price : distance;
	a->ask_at = now + a->ask_after;
	return sum_up(t, a, lines, now);
}

uint32_t claims_read(struct ptg_host *host, struct tenant *t, uint64_t now)
{
	uint32_t read = 0;
	for (unsigned index = 0; index < t->policy.ndev; index++) {
		struct account *a = &t->account[index];
		if (!a->served || !a->told.gated)
			continue;
		/* While its word is even, a container rings whenever it claims something else. */
		if (!t->rings_now && !t->cut && !a->stale && !is_open(t, a) && claims_due(t, a) > now)
			continue;
		a->claim = read_account(host, t, index, now);
		read |= UINT32_C(1) << index;
	}
	return read;
}
