/* host_sleepers.c: threads that sleep on the bells which the loop does not sleep on itself, and wake it when one rings.
 *
 * Called by host_wait.c. A sleeper takes up to 127 bells into one futex_waitv, beside a word of its own that says that its
 * bells have changed or that it is to end: many tenants cost a few threads, and while none rings none of them wakes. On a
 * kernel without futex_waitv it takes one bell and wakes once a second, since it cannot sleep on its own word as well.
 * What can go wrong: no thread can be made (`sleepers_add` says so); a tenant cuts its ledger, or rings without end: its
 * bell is left out for a while, so that it neither keeps the thread awake nor the others from being heard. */
#include "host_local.h"

#include <errno.h>
#include <linux/futex.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#define CUT_AGAIN  (1000 * HOST_MS) /* a cut ledger is looked at again after so long */
#define LOOK_EVERY (1000 * HOST_MS) /* without futex_waitv: at the sleeper's own word */

struct bell {
	const uint32_t *word;
	int ledger_fd;
	uint32_t seen;
	struct ring_count rings;
	uint64_t quiet_until;
};

struct sleeper {
	struct sleeper *next;
	struct ptg_host *host;
	pthread_t thread;
	pthread_mutex_t lock; /* of the bells, what they are at included; held for no longer than a look at them */
	_Atomic uint32_t changed; /* futex: +1 with each change of the bells, and at the end */
	bool end;
	unsigned nbells;
	struct bell bell[WAIT_BELLS];
};

/* ---- in the thread -------------------------------------------------------------------------------------------------------- */

/* Whether it rang. Read through the file: it may be cut under the mapping at any moment. */
static bool rang(struct bell *b, uint64_t now)
{
	uint32_t value;
	if (pread(b->ledger_fd, &value, sizeof value, offsetof(struct ptg_ledger, turn_bell)) != sizeof value) {
		b->quiet_until = now + CUT_AGAIN;
		return false;
	}
	if (value == b->seen)
		return false;
	b->seen = value;
	if (rings_too_often(&b->rings, now))
		b->quiet_until = now + MUTE_RINGING;
	return true;
}

/* Leave out the bells that the kernel cannot sleep on. */
static void leave_out_cut(struct sleeper *s, uint64_t now)
{
	for (unsigned i = 0; i < s->nbells; i++)
		if (s->bell[i].quiet_until <= now && wait_is_cut(s->bell[i].word, s->bell[i].seen))
			s->bell[i].quiet_until = now + CUT_AGAIN;
}

/* Put what to sleep on into `list`, the own word first; `until`: when a bell that is left out is listened to again. */
static unsigned list_bells(const struct sleeper *s, struct waiter *list, uint64_t now, uint64_t *until)
{
	unsigned n = 0;
	*until = ARB_NEVER;
	list[n++] = wait_for_own(&s->changed, atomic_load(&s->changed));
	for (unsigned i = 0; i < s->nbells; i++) {
		const struct bell *b = &s->bell[i];
		if (b->quiet_until <= now)
			list[n++] = wait_for_shared(b->word, b->seen);
		else if (b->quiet_until < *until)
			*until = b->quiet_until;
	}
	return n;
}

/* Sleep until a word of the list is not what it was; its place in the list, or -errno. */
static int sleep_on(const struct sleeper *s, struct waiter *list, unsigned n, uint64_t now, uint64_t until)
{
	if (s->host->has_waitv || n == 1)
		return wait_on(s->host, list, n, until);
	uint64_t look = now + LOOK_EVERY;
	return wait_on(s->host, list + 1, 1, until < look ? until : look);
}

static void *listen(void *argument)
{
	struct sleeper *s = argument;
	struct waiter list[WAIT_BELLS + 1];
	int result = 0;
	pthread_mutex_lock(&s->lock);
	while (!s->end) {
		uint64_t now = host_now(), until;
		bool kicks = false;
		if (result == -EFAULT)
			leave_out_cut(s, now);
		for (unsigned i = 0; i < s->nbells;
		     i++) /* the one that woke us, or all: a hundred need not be read for one */
			if (s->bell[i].quiet_until <= now &&
			    (result <= 0 || wait_is_for(&list[result], s->bell[i].word)))
				kicks |= rang(&s->bell[i], now);
		unsigned n = list_bells(s, list, now, &until);
		pthread_mutex_unlock(&s->lock);
		if (kicks)
			host_kick(s->host);
		result = sleep_on(s, list, n, now, until);
		pthread_mutex_lock(&s->lock);
	}
	pthread_mutex_unlock(&s->lock);
	return NULL;
}

/* ---- for the loop --------------------------------------------------------------------------------------------------------- */

/* Let the thread look at its bells anew. What it still has in its list may be unmapped: the kernel then says so, or that
 * the word beside it has changed, and touches nothing. */
static void tell(struct sleeper *s)
{
	atomic_fetch_add(&s->changed, 1);
	syscall(SYS_futex, &s->changed, FUTEX_WAKE | FUTEX_PRIVATE_FLAG, 1, NULL, NULL, 0);
	if (!s->host->has_waitv && s->nbells)
		syscall(SYS_futex, s->bell[0].word, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

static struct sleeper *sleeper_new(struct ptg_host *host)
{
	struct sleeper *s = calloc(1, sizeof *s);
	if (!s)
		return NULL;
	s->host = host;
	pthread_mutex_init(&s->lock, NULL);
	sigset_t all, before;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	int error = pthread_create(&s->thread, NULL, listen, s);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (error) {
		pthread_mutex_destroy(&s->lock);
		free(s);
		return NULL;
	}
	s->next = host->sleepers;
	host->sleepers = s;
	return s;
}

static void sleeper_free(struct sleeper *s)
{
	struct sleeper **at = &s->host->sleepers;
	while (*at != s)
		at = &(*at)->next;
	*at = s->next;
	pthread_join(s->thread, NULL);
	pthread_mutex_destroy(&s->lock);
	free(s);
}

bool sleepers_add(struct ptg_host *host, struct tenant *t)
{
	struct sleeper *s = host->sleepers;
	while (s && s->nbells == (host->has_waitv ? WAIT_BELLS : 1))
		s = s->next;
	if (!s && !(s = sleeper_new(host)))
		return false;
	pthread_mutex_lock(&s->lock);
	s->bell[s->nbells++] = (struct bell){.word = &t->ledger->turn_bell, .ledger_fd = t->ledger_fd, .seen = t->bell};
	pthread_mutex_unlock(&s->lock);
	t->sleeper = s;
	tell(s);
	return true;
}

void sleepers_remove(struct tenant *t)
{
	struct sleeper *s = t->sleeper;
	t->sleeper = NULL;
	pthread_mutex_lock(&s->lock);
	s->end = s->nbells == 1;
	tell(s);
	for (unsigned i = 0; i < s->nbells; i++)
		if (s->bell[i].word == &t->ledger->turn_bell) {
			s->bell[i] = s->bell[--s->nbells];
			break;
		}
	pthread_mutex_unlock(&s->lock);
	if (s->nbells == 0)
		sleeper_free(s);
}
