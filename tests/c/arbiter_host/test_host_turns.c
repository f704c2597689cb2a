/* test_host_turns.c: turns through real files: asked, given, closed, given to the next, with and without futex_waitv.
 *
 * The decisions are the core's (tests/c/arbiter); here it is proved that claims reach it and words come back, that a word
 * is even before another's is odd while the first is drained, and that a policy that changes is followed. */
#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <string.h>
#include <unistd.h>

#include "world.h"

static uint32_t working; /* on the one card */
static uint32_t overlaps; /* turns that began while another worked */
static uint32_t finished; /* contenders that have had all their turns */

static void *contend(void *argument)
{
	struct hand *h = argument;
	struct ptg_slot_turn *line = &h->ledger->turn[0][0];
	for (int i = 0; i < 15; i++) {
		for (;;) {
			__atomic_store_n(&line->busy_ns, now_ns(), __ATOMIC_SEQ_CST);
			if (word_of(h, 0) & 1)
				break;
			finish(h, 0, 0);
			want(h, 0, 0);
			await_open(h, 0);
		}
		/* Lent: the holder works beside a borrower until that has noticed. */
		bool lent = h->turns->turn[0].flags & PTG_TURN_WATCHED;
		begin(h, 0, 0);
		uint32_t others = lent ? 0 : __atomic_load_n(&working, __ATOMIC_SEQ_CST);
		__atomic_fetch_add(&working, 1, __ATOMIC_SEQ_CST);
		__atomic_fetch_add(&overlaps, others, __ATOMIC_SEQ_CST);
		while (word_of(h, 0) & 1 && !__atomic_load_n(&finished, __ATOMIC_SEQ_CST))
			sched_yield(); /* as if kernels were launched */
		__atomic_fetch_sub(&working, 1, __ATOMIC_SEQ_CST);
		finish(h, 0, 0);
	}
	__atomic_fetch_add(&finished, 1, __ATOMIC_SEQ_CST);
	return NULL;
}

/* Each works until its word is even and only then says that it is drained. Returns by how many the turns that began beside
 * another are more than those of which the host knows. */
static uint32_t unknown_overlaps(uint32_t flags, int round)
{
	char name[32];
	snprintf(name, sizeof name, "%s-%d", flags ? "threads" : "waitv", round);
	struct world w = world_make(name);
	struct hand a = hand_make(&w, "a", GATED30, NULL), b = hand_make(&w, "b", GATED30, NULL);
	struct ptg_host *host = world_host(&w, PTG_HOST_FOREVER, flags);
	pthread_t thread[2];
	finished = overlaps = 0;
	CHECK(take_slot(&a, 0) && take_slot(&b, 0), "slots");
	pthread_create(&thread[0], NULL, contend, &a);
	pthread_create(&thread[1], NULL, contend, &b);
	pthread_join(thread[0], NULL);
	pthread_join(thread[1], NULL);
	struct ptg_host_stats stats;
	ptg_host_stats(host, &stats);
	NOTE("%u turns began beside another, %llu were late", overlaps, (unsigned long long)stats.undrained);
	ptg_host_close(host);
	CHECK(!(word_of(&a, 0) & 1) && !(word_of(&b, 0) & 1), "closed when the host ends");
	CHECK(a.turns->arbiter == 0, "nobody arbitrates any more, it says %d", a.turns->arbiter);
	return overlaps > stats.undrained ? overlaps - (uint32_t)stats.undrained : 0;
}

/* Who has a turn has it alone. On a machine so loaded that a thread stands still for longer than the guard, others go on
 * beside it, which the host counts once however many turns they have meanwhile. That is not so round after round. */
static void test_one_at_a_time(uint32_t flags)
{
	int round = 0;
	while (unknown_overlaps(flags, round) > 0)
		CHECK(++round < 10, "in every round turns began beside another");
}

static bool has_two(const struct ptg_host_stats *s)
{
	return s->tenants == 2;
}

static bool has_one(const struct ptg_host_stats *s)
{
	return s->tenants == 1;
}

static bool has_none(const struct ptg_host_stats *s)
{
	return s->tenants == 0;
}

/* Hand-overs that come while the host runs, go, are left without a user, and are used again. */
static void test_come_and_go(void)
{
	struct world w = world_make("come");
	struct ptg_host *host = world_host(&w, PTG_HOST_FOREVER, 0);
	struct hand a = hand_make(&w, "a", GATED30, NULL);
	CHECK(take_slot(&a, 3), "slot");
	take_turn(&a, 0, 3);
	CHECK(a.turns->arbiter == getpid(), "arbiter %d", a.turns->arbiter);
	struct hand b = hand_make(&w, "b", GATED30, NULL);
	CHECK(take_slot(&b, 0), "slot");
	take_turn(&b, 0, 0);
	await_stat(host, has_two, "two tenants");
	hand_leave(&b);
	await_stat(host, has_one, "one is not used any more");
	hand_remove(&b);
	CHECK(log_waits(&w, "b: gone"), "the removed one is forgotten");
	/* The watcher goes and comes again, as when its container starts anew. */
	struct hand old = a;
	hand_leave(&old);
	await_stat(host, has_none, "nobody uses the other");
	struct hand c = hand_make(&w, "c", GATED30, NULL);
	take_slot(&c, 0);
	take_turn(&c, 0, 0);
	ptg_host_close(host);
}

/* Gated and not, live; and two devices of one tenant are two turns. */
static void test_policy_flips(void)
{
	struct world w = world_make("flip");
	struct hand a = hand_make(&w, "a", FREE, CARD2), b = hand_make(&w, "b", GATED30, NULL);
	struct ptg_host *host = world_host(&w, PTG_HOST_FOREVER, 0);
	CHECK(take_slot(&a, 0) && take_slot(&b, 0), "slots");
	take_turn(&b, 0, 0);
	await_open(&a, 0); /* without asking: it is not gated */
	hand_share(&a, GATED30);
	take_turn(&a, 0, 0);
	take_turn(&a, 1, 0);
	hand_share(&a, (struct share){100, 100, 100, PTG_CLASS_FIXED, true});
	want(&a, 0, 0);
	await_open(&a, 0);
	CHECK(a.turns->turn[0].fallback > 0, "fallback %u", a.turns->turn[0].fallback);
	hand_share(&a, FREE);
	await_open(&a, 0);
	await_closed(&a, 1); /* nobody is gated there any more: others may arbitrate it */
	ptg_host_close(host);
}

/* What a witness saw beyond the books is charged, and repaid before the next turn. What it saw before this arbiter came is
 * not: another one charged it. */
static void test_audit(void)
{
	const uint64_t beyond = 300000000, least = 500000000; /* at 30 %: 1 s, less what was saved */
	struct world w = world_make("audit");
	struct hand a = hand_make(&w, "a", GATED30, NULL);
	a.policy->device[0].audit_ns = 10 * beyond;
	hand_share(&a, GATED30);
	struct ptg_host *host = world_host(&w, PTG_HOST_FOREVER, 0);
	CHECK(take_slot(&a, 0), "a slot");
	take_turn(&a, 0, 0);
	await_closed(&a, 0);
	uint64_t charged = a.turns->turn[0].charged_ns, from = now_ns();
	CHECK(charged < beyond, "%lu ns are charged for what an arbiter before saw", charged);
	a.policy->device[0].audit_ns += beyond;
	hand_share(&a, GATED30);
	CHECK(log_waits(&w, "a: used 300.0 ms of a device more than it claimed"), "no word about it");
	take_turn(&a, 0, 0);
	uint64_t waited = now_ns() - from;
	CHECK(waited > least, "the next turn came after %lu ns", waited);
	charged = a.turns->turn[0].charged_ns - charged;
	CHECK(charged >= beyond, "%lu of %lu ns charged", charged, beyond);
	ptg_host_close(host);
}

static unsigned threads_now(void)
{
	unsigned n = 0;
	DIR *tasks = opendir("/proc/self/task");
	CHECK(tasks, "/proc/self/task");
	for (struct dirent *entry; (entry = readdir(tasks));)
		n += entry->d_name[0] != '.';
	closedir(tasks);
	return n;
}

/* Until there are so many: who was joined is still listed for a moment, and nobody announces the end of that. */
static void await_threads(unsigned wanted, const char *what)
{
	uint64_t deadline = now_ns() + 60000000000;
	while (threads_now() != wanted) {
		CHECK(now_ns() < deadline, "%s: %u threads, not %u", what, threads_now(), wanted);
		sched_yield();
	}
}

static uint32_t tenants_left;

static bool left(const struct ptg_host_stats *stats)
{
	return stats->tenants == tenants_left;
}

/* More bells than one futex_waitv takes: others listen to the rest, a hundred to a thread, and none that is idle wakes. */
static void test_many(void)
{
	enum { MANY = 140, GO = 20 };
	static struct hand h[MANY];
	struct world w = world_make("many");
	char name[16];
	for (int i = 0; i < MANY; i++) {
		snprintf(name, sizeof name, "h%d", i);
		h[i] = hand_make(&w, name, GATED30, NULL);
	}
	unsigned before = threads_now();
	struct ptg_host *host = world_host(&w, PTG_HOST_FOREVER, 0);
	await_threads(before + 3, "the loop, its events, and one for the bells beyond");
	for (int i = 0; i < MANY; i += 23) {
		take_slot(&h[i], 0);
		take_turn(&h[i], 0, 0);
	}
	take_slot(&h[MANY - 1], 0);
	take_turn(&h[MANY - 1], 0, 0);
	take_slot(&h[0], 0);
	take_turn(&h[0], 0, 0);
	for (int i = 1; i < MANY - 1; i += 2) /* a list with a bell in it that is gone is no list to sleep on */
		CHECK(!ftruncate(h[i].ledger_fd, 0), "ledger of %d: %s", i, strerror(errno));
	for (int i = 46; i < MANY; i += 46)
		take_turn(&h[i], 0, 0);
	take_turn(&h[MANY - 1], 0, 0);
	for (int i = 0; i < GO; i++)
		hand_remove(&h[i]);
	tenants_left = MANY - GO;
	await_stat(host, left, "hand-overs that go");
	await_threads(before + 2, "those that are left have room in one sleep");
	take_turn(&h[MANY - 1], 0, 0);
	take_turn(&h[46], 0, 0);
	ptg_host_close(host);
	await_threads(before, "closed");
	for (int i = 0; i < MANY; i++)
		hand_leave(&h[i]);
}

int main(int argc, char **argv)
{
	uint32_t flags = argc > 1 && !strcmp(argv[1], "threads") ? PTG_HOST_NO_WAITV : 0;
	test_one_at_a_time(flags);
	if (flags)
		return 0;
	test_come_and_go();
	test_policy_flips();
	test_audit();
	test_many();
	return 0;
}
