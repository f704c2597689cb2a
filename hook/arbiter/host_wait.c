/* host_wait.c: sleeping until any tenant rings, something else happens, or a time comes; nobody polls.
 *
 * The loop sleeps in futex_waitv on up to 127 bells and one word of our own (`kick`), which everything that is no bell
 * rings: inotify's thread, ptg_host_stop(). Bells beyond that, and all of them on a kernel without futex_waitv (before
 * 5.16), are listened to by other threads (host_sleepers.c), which ring `kick`.
 * What can go wrong: a tenant cuts its ledger, and the kernel cannot sleep on its bell (EFAULT, for the whole list); it is
 * found and left out for a while, longer each time. A tenant that rings without end is left out likewise: neither may
 * keep the loop from its sleep. */
#include "host_local.h"

#include <errno.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#ifndef SYS_futex_waitv
#define SYS_futex_waitv 449
#endif
#define WAITV_32      2
#define WAITV_PRIVATE 128
#define RING_WINDOW   (10 * HOST_MS)
#define RING_MOST     20 /* rings of a tenant that wake us in a window; more of them are heard together */
#define MUTE_CUT      (100 * HOST_MS)
#define MUTE_LAST     (100 * MUTE_CUT)

bool wait_supported(void)
{
	return syscall(SYS_futex_waitv, NULL, 0, 0, NULL, 0) < 0 && errno != ENOSYS;
}

void host_kick(struct ptg_host *host)
{
	atomic_fetch_add(&host->kick, 1);
	syscall(SYS_futex, &host->kick, FUTEX_WAKE | FUTEX_PRIVATE_FLAG, 1, NULL, NULL, 0);
}

bool rings_too_often(struct ring_count *count, uint64_t now)
{
	if (now - count->since > RING_WINDOW) {
		count->since = now;
		count->rings = 0;
	}
	return ++count->rings > RING_MOST;
}

/* ---- words to sleep on ------------------------------------------------------------------------------------------------------ */

struct waiter wait_for_own(const _Atomic uint32_t *word, uint32_t value)
{
	return (struct waiter){value, (uintptr_t)word, WAITV_32 | WAITV_PRIVATE, 0};
}

struct waiter wait_for_shared(const uint32_t *word, uint32_t value)
{
	return (struct waiter){value, (uintptr_t)word, WAITV_32, 0};
}

bool wait_is_for(const struct waiter *w, const uint32_t *word)
{
	return w->address == (uintptr_t)word;
}

bool wait_is_cut(const uint32_t *word, uint32_t value)
{
	struct timespec none = {0};
	return syscall(SYS_futex, word, FUTEX_WAIT, value, &none, NULL, 0) && errno == EFAULT;
}

int wait_on(const struct ptg_host *host, const struct waiter *list, unsigned n, uint64_t until)
{
	struct timespec at = {(time_t)(until / 1000000000), (long)(until % 1000000000)};
	struct timespec *most = until == ARB_NEVER ? NULL : &at;
	long result;
	if (host->has_waitv) {
		result = syscall(SYS_futex_waitv, list, n, 0, most, CLOCK_MONOTONIC);
	} else {
		int operation = FUTEX_WAIT_BITSET | (list->flags & WAITV_PRIVATE ? FUTEX_PRIVATE_FLAG : 0);
		result = syscall(SYS_futex, (uintptr_t)list->address, operation, (uint32_t)list->value, most, NULL,
		                 FUTEX_BITSET_MATCH_ANY);
	}
	return result < 0 ? -errno : (int)result;
}

/* ---- the loop's sleep ------------------------------------------------------------------------------------------------------- */

/* Sleep on its bell ourselves where there is room, else let another thread. */
void wait_add(struct ptg_host *host, struct tenant *t)
{
	t->direct = host->has_waitv && host->direct < WAIT_BELLS;
	if (t->direct)
		host->direct++;
	else if (!sleepers_add(host, t))
		host_log(host, "%s: no thread for its bell; it is heard when others ring", t->name);
}

/* Who is heard through another thread takes the room that others leave: a thread is there while it is needed. */
void wait_remove(struct ptg_host *host, struct tenant *t)
{
	if (t->sleeper)
		sleepers_remove(t);
	if (!t->direct)
		return;
	t->direct = false;
	host->direct--;
	for (struct tenant *other = host->tenants; other; other = other->next)
		if (other->sleeper) {
			sleepers_remove(other);
			other->direct = true;
			host->direct++;
			return;
		}
}

/* Find the bells that the kernel cannot sleep on. */
static void leave_out_cut(struct ptg_host *host)
{
	uint64_t now = host_now();
	for (struct tenant *t = host->tenants; t; t = t->next) {
		if (!t->direct || t->mute_until > now || !wait_is_cut(&t->ledger->turn_bell, t->bell))
			continue;
		t->cut = true;
		t->mute_after = t->mute_after < MUTE_CUT    ? MUTE_CUT
		                : t->mute_after < MUTE_LAST ? 2 * t->mute_after
		                                            : MUTE_LAST;
		t->mute_until = now + t->mute_after;
	}
}

void wait_sleep(struct ptg_host *host, uint32_t kick, uint64_t now, uint64_t until)
{
	struct waiter list[WAIT_BELLS + 1] = {wait_for_own(&host->kick, kick)};
	unsigned n = 1;
	for (struct tenant *t = host->tenants; t && n <= WAIT_BELLS; t = t->next)
		if (t->direct && t->mute_until <= now)
			list[n++] = wait_for_shared(&t->ledger->turn_bell, t->bell);
	if (wait_on(host, list, n, until) == -EFAULT)
		leave_out_cut(host);
}
