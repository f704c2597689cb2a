/* host_wait.c: sleeping until any tenant rings, something else happens, or a time comes; nobody polls.
 *
 * The loop sleeps in futex_waitv on up to 127 bells and one word of our own (`kick`), which everything that is no bell
 * rings: inotify's thread, ptg_host_stop(). Bells beyond that, and all of them on a kernel without futex_waitv (before
 * 5.16), have a small thread each that sleeps on the bell and rings `kick`.
 * What can go wrong: a tenant cuts its ledger, and the kernel cannot sleep on its bell (EFAULT, for the whole list); it is
 * found and left out for a while, longer each time. A tenant that rings without end is left out likewise: neither may
 * keep the loop from its sleep. */
#include "host_local.h"

#include <errno.h>
#include <linux/futex.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#ifndef SYS_futex_waitv
#define SYS_futex_waitv 449
#endif
#define WAITV_MAX     128
#define WAITV_32      2
#define WAITV_PRIVATE 128
#define MUTE_CUT      (100 * HOST_MS)
#define MUTE_LAST     (100 * MUTE_CUT)
#define THREAD_EVERY  1 /* s: a bell's thread looks whether it is still wanted */

struct waiter { /* struct futex_waitv, which older headers lack */
	uint64_t value, address;
	uint32_t flags, reserved;
};

struct bell_thread {
	pthread_t thread;
	struct ptg_host *host;
	const uint32_t *bell;
	int ledger_fd;
	_Atomic bool end;
};

bool wait_supported(void)
{
	return syscall(SYS_futex_waitv, NULL, 0, 0, NULL, 0) < 0 && errno != ENOSYS;
}

void host_kick(struct ptg_host *host)
{
	atomic_fetch_add(&host->kick, 1);
	syscall(SYS_futex, &host->kick, FUTEX_WAKE | FUTEX_PRIVATE_FLAG, 1, NULL, NULL, 0);
}

/* ---- a thread for a bell -------------------------------------------------------------------------------------------------- */

static void *sleep_on_bell(void *argument)
{
	struct bell_thread *b = argument;
	uint32_t seen, now;
	bool first = true;
	while (!atomic_load(&b->end)) {
		if (pread(b->ledger_fd, &now, sizeof now, offsetof(struct ptg_ledger, turn_bell)) != sizeof now) {
			struct timespec nap = {.tv_sec = THREAD_EVERY}; /* cut: until it is whole again */
			nanosleep(&nap, NULL);
			continue;
		}
		if (first || now != seen)
			host_kick(b->host);
		first = false;
		seen = now;
		struct timespec most = {.tv_sec = THREAD_EVERY};
		if (syscall(SYS_futex, b->bell, FUTEX_WAIT, seen, &most, NULL, 0) && errno == EFAULT)
			nanosleep(&most, NULL);
	}
	return NULL;
}

static void start_thread(struct ptg_host *host, struct tenant *t)
{
	sigset_t all, before;
	struct bell_thread *b = calloc(1, sizeof *b);
	if (!b)
		return;
	b->host = host;
	b->bell = &t->ledger->turn_bell;
	b->ledger_fd = t->ledger_fd;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	if (pthread_create(&b->thread, NULL, sleep_on_bell, b)) {
		host_log(host, "%s: no thread for its bell; it is heard when others ring", t->name);
		free(b);
		b = NULL;
	}
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	t->thread = b;
}

void wait_add(struct ptg_host *host, struct tenant *t)
{
	t->direct = host->has_waitv && host->direct < WAITV_MAX - 1;
	if (t->direct)
		host->direct++;
	else
		start_thread(host, t);
}

void wait_remove(struct ptg_host *host, struct tenant *t)
{
	if (t->direct)
		host->direct--;
	t->direct = false;
	if (!t->thread)
		return;
	atomic_store(&t->thread->end, true);
	syscall(SYS_futex, &t->ledger->turn_bell, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
	pthread_join(t->thread->thread, NULL);
	free(t->thread);
	t->thread = NULL;
}

/* ---- the loop's sleep ------------------------------------------------------------------------------------------------------- */

/* Find the bells that the kernel cannot sleep on. */
static void leave_out_cut(struct ptg_host *host)
{
	uint64_t now = host_now();
	for (struct tenant *t = host->tenants; t; t = t->next) {
		struct timespec none = {0};
		if (!t->direct || t->mute_until > now)
			continue;
		if (syscall(SYS_futex, &t->ledger->turn_bell, FUTEX_WAIT, t->bell, &none, NULL, 0) && errno == EFAULT) {
			t->cut = true;
			t->mute_after = t->mute_after < MUTE_CUT    ? MUTE_CUT
			                : t->mute_after < MUTE_LAST ? 2 * t->mute_after
			                                            : MUTE_LAST;
			t->mute_until = now + t->mute_after;
		}
	}
}

void wait_sleep(struct ptg_host *host, uint32_t kick, uint64_t now, uint64_t until)
{
	struct waiter list[WAITV_MAX] = {{kick, (uintptr_t)&host->kick, WAITV_32 | WAITV_PRIVATE, 0}};
	unsigned n = 1;
	for (struct tenant *t = host->tenants; t && n < WAITV_MAX; t = t->next)
		if (t->direct && t->mute_until <= now)
			list[n++] = (struct waiter){t->bell, (uintptr_t)&t->ledger->turn_bell, WAITV_32, 0};
	struct timespec at = {(time_t)(until / 1000000000), (long)(until % 1000000000)};
	struct timespec *most = until == ARB_NEVER ? NULL : &at;
	long result;
	if (host->has_waitv)
		result = syscall(SYS_futex_waitv, list, n, 0, most, CLOCK_MONOTONIC);
	else
		result = syscall(SYS_futex, &host->kick, FUTEX_WAIT_BITSET | FUTEX_PRIVATE_FLAG, kick, most, NULL,
		                 FUTEX_BITSET_MATCH_ANY);
	if (result < 0 && errno == EFAULT)
		leave_out_cut(host);
}
