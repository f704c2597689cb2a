/* host_turns.c: writes what the core decided into the turns files and wakes who waits for it.
 *
 * Called by host.c, each round for what differs, and when a tenant is met (words that a dead arbiter left odd) or left.
 * The word itself is ours: it is counted up from a copy of our own, whatever somebody may have written into the file.
 * What can go wrong: a turns file that somebody truncated; the write is then left out (host_guard.c), and the tenant is
 * dropped until its files are whole again. */
#include "host_local.h"

#include <limits.h>
#include <linux/futex.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

static void wake(uint32_t *word)
{
	syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

static uint32_t flags_of(const struct arb_turn *turn)
{
	return (turn->watched ? PTG_TURN_WATCHED : 0u) | (turn->brief ? PTG_TURN_SHORT : 0u);
}

/* All but the word. */
HOST_GUARDED static void store(struct ptg_turn *at, const struct arb_turn *turn)
{
	__atomic_store_n(&at->flags, flags_of(turn), __ATOMIC_RELAXED);
	__atomic_store_n(&at->serial, turn->serial, __ATOMIC_RELAXED);
	__atomic_store_n(&at->deadline_ns, turn->open ? turn->deadline : 0, __ATOMIC_RELAXED);
	__atomic_store_n(&at->outstanding_us, turn->outstanding_us, __ATOMIC_RELAXED);
	__atomic_store_n(&at->fallback, turn->fallback, __ATOMIC_RELAXED);
	__atomic_store_n(&at->charged_ns, turn->charged, __ATOMIC_RELAXED);
}

static bool same(const struct arb_turn *a, const struct arb_turn *b)
{
	return a->open == b->open && flags_of(a) == flags_of(b) && a->serial == b->serial &&
	       a->deadline == b->deadline && a->outstanding_us == b->outstanding_us && a->fallback == b->fallback &&
	       a->charged == b->charged;
}

/* How far the word moves. A turn that stays open, with other flags or as another turn, moves it by two: launches that do
 * not look at more than the word must notice. */
static uint32_t step_of(const struct account *a, bool open, const struct arb_turn *turn)
{
	if (turn->open != open)
		return 1;
	bool other = turn->serial != a->shown.serial || flags_of(turn) != flags_of(&a->shown);
	return turn->open && other ? 2 : 0;
}

/* Publish one account; whether what it did before it could see that has to be looked at: it rang no bell. */
HOST_GUARDED static bool publish(struct ptg_host *host, struct tenant *t, struct account *a,
                                 const struct arb_turn *turn, uint64_t now)
{
	struct ptg_turn *at = &t->turns->turn[a->at];
	uint32_t step = step_of(a, is_open(t, a), turn);
	uint32_t word = t->word[a->at] += step;
	if (step == 1 && !turn->open) {
		/* First of all: nothing more is launched. The claims that say so are read after it. */
		__atomic_store_n(&at->word, word, __ATOMIC_SEQ_CST);
		store(at, turn);
		a->closed_at = now;
		a->stale = true;
		a->ask_at = a->ask_after = 0;
		wake(&at->word); /* whoever watches for the end of what is in flight looks more often now */
		host->stats.closed++;
	} else {
		store(at, turn);
		__atomic_store_n(&at->word, word, __ATOMIC_RELEASE);
		if (step) {
			wake(&at->word);
		}
		if (step == 1) {
			a->opened_at = now;
			host->stats.opened++;
		}
	}
	bool look = (step == 1 && !turn->open) || (turn->watched && !a->shown.watched);
	a->shown = *turn;
	return look;
}

struct publication {
	struct ptg_host *host;
	struct tenant *tenant;
	uint64_t now;
	bool beat, opening, look;
};

/* What the core says of an account; NULL: this is not the pass for it, or nothing is to be said. */
static const struct arb_turn *turn_of(const struct publication *p, const struct account *a)
{
	static const struct arb_turn nothing;
	const struct tenant *t = p->tenant;
	const struct arb_turn *turn = NULL;
	if (a->device < 0 || (!a->served && !is_open(t, a)))
		return NULL;
	if (a->served)
		turn = arb_turn(p->host->arb, t->id, p->host->device[a->device].index);
	if (!turn)
		turn = &nothing;
	return p->opening == (turn->open && !is_open(t, a)) ? turn : NULL;
}

HOST_GUARDED static void publish_all(void *argument)
{
	struct publication *p = argument;
	struct tenant *t = p->tenant;
	for (unsigned i = 0; i < t->policy.ndev; i++) {
		struct account *a = &t->account[i];
		const struct arb_turn *turn = turn_of(p, a);
		if (!turn)
			continue;
		bool differs = !same(turn, &a->shown);
		if (p->beat || (differs && turn->open))
			__atomic_store_n(&t->turns->turn[a->at].heartbeat_ns, p->now, __ATOMIC_RELAXED);
		if (differs)
			p->look |= publish(p->host, t, a, turn, p->now);
	}
}

/* Most rounds change nothing for most tenants, whose files are then left alone. */
static bool has_news(const struct publication *p)
{
	const struct tenant *t = p->tenant;
	for (unsigned i = 0; i < t->policy.ndev; i++) {
		const struct arb_turn *turn = turn_of(p, &t->account[i]);
		if (turn && (p->beat || !same(turn, &t->account[i].shown)))
			return true;
	}
	return false;
}

bool turns_publish(struct ptg_host *host, struct tenant *t, uint64_t now, bool beat, bool opening)
{
	struct publication p = {host, t, now, beat, opening, false};
	if (!has_news(&p))
		return false;
	if (!guard_run(publish_all, &p)) {
		host_log(host, "%s: its turns file was cut: it gets no turns until that is whole again", t->name);
		munmap(t->turns, sizeof *t->turns);
		t->turns = NULL;
	}
	/* Between the word of a closed turn and the next look at the claims. */
	atomic_thread_fence(memory_order_seq_cst);
	return p.look;
}

struct reset {
	struct tenant *tenant;
	int32_t arbiter;
};

/* Bring every word to even; who sleeps on one looks again. */
HOST_GUARDED static void close_words(void *argument)
{
	struct reset *reset = argument;
	struct tenant *t = reset->tenant;
	for (unsigned i = 0; i < PTG_DEVICES; i++) {
		struct ptg_turn *at = &t->turns->turn[i];
		uint32_t word = __atomic_load_n(&at->word, __ATOMIC_RELAXED);
		t->word[i] = word + (word & 1);
		__atomic_store_n(&at->word, t->word[i], __ATOMIC_SEQ_CST);
		wake(&at->word);
	}
	__atomic_store_n(&t->turns->arbiter, reset->arbiter, __ATOMIC_RELAXED);
}

bool turns_reset(struct tenant *t, int32_t arbiter)
{
	struct reset reset = {t, arbiter};
	return guard_run(close_words, &reset);
}
