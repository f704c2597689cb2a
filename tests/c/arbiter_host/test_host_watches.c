/* test_host_watches.c: a user's inotify instances or watches are used up, or descriptors are, for a while: tenants take turns
 * all the same, and once there are some again the host hears by itself as if nothing had been.
 *
 * inotify_init1(), inotify_add_watch() and fdopendir() are the test's: they fail where a test says so. */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/syscall.h>

#include "world.h"

static _Atomic int no_instance, no_watch, no_listing; /* errno; 0: there are some */

static bool is_hosts(const char *path)
{
	return !strncmp(path, "/proc/self/fd/", 14);
}

int inotify_init1(int flags)
{
	if (flags & IN_NONBLOCK && no_instance) { /* the host's, not that of who reads its log */
		errno = no_instance;
		return -1;
	}
	return (int)syscall(SYS_inotify_init1, flags);
}

int inotify_add_watch(int fd, const char *path, uint32_t events)
{
	if (is_hosts(path) && no_watch) {
		errno = no_watch;
		return -1;
	}
	return (int)syscall(SYS_inotify_add_watch, fd, path, events);
}

DIR *fdopendir(int fd)
{
	DIR *(*real)(int) = NULL;
	if (no_listing) {
		errno = atomic_exchange(&no_listing, 0);
		return NULL;
	}
	*(void **)&real = dlsym(RTLD_NEXT, "fdopendir");
	return real(fd);
}

static void ends(struct hand *h)
{
	hand_leave(h);
	hand_remove(h);
}

/* Its programs are gone, and nobody rings: a directory that is watched, or looked at once a second. */
static void leaves(const struct world *w, const char *name, struct hand *h)
{
	char words[64];
	snprintf(words, sizeof words, "%s: not in use any more", name);
	drop_slot(h, 0);
	hand_leave(h);
	CHECK(log_waits(w, words), "%s ended and nobody noticed", name);
	hand_remove(h);
}

static struct hand runs(const struct world *w, const char *name)
{
	struct hand h = hand_make(w, name, GATED30, NULL);
	take_slot(&h, 0);
	take_turn(&h, 0, 0);
	return h;
}

static void test_none_at_first(const char *name, _Atomic int *lacks, int error, const char *step)
{
	struct world w = world_make(name);
	*lacks = error;
	struct ptg_host *host = world_host(&w, PTG_HOST_FOREVER, 0);
	CHECK(log_waits(&w, "no inotify for all there is") && log_waits(&w, step), "no word about inotify");
	struct hand first = runs(&w, "first"), second = runs(&w, "second");
	leaves(&w, "first", &first);
	*lacks = 0;
	CHECK(log_waits(&w, "inotify for all there is again"), "it was not tried again");
	struct hand third = runs(&w, "third");
	leaves(&w, "third", &third);
	leaves(&w, "second", &second);
	ptg_host_close(host);
}

/* The root is watched, and then there are no watches left for what comes. */
static void test_none_for_a_while(void)
{
	struct world w = world_make("while");
	struct ptg_host *host = world_host(&w, PTG_HOST_FOREVER, 0);
	struct hand before = runs(&w, "before");
	no_watch = ENOSPC;
	struct hand after = runs(&w, "after");
	CHECK(log_waits(&w, "see fs.inotify.max_user_watches"), "no word about watches");
	leaves(&w, "after", &after);
	after = runs(&w, "again");
	no_watch = 0;
	CHECK(log_waits(&w, "inotify for all there is again"), "it was not tried again");
	leaves(&w, "again", &after);
	take_turn(&before, 0, 0);
	ends(&before);
	ptg_host_close(host);
}

/* The event of a new hand-over comes once. */
static void test_a_listing_that_fails(void)
{
	struct world w = world_make("listing");
	struct ptg_host *host = world_host(&w, PTG_HOST_FOREVER, 0);
	struct hand before = runs(&w, "before");
	for (int i = 0; i < 3; i++) {
		char name[32];
		snprintf(name, sizeof name, "after%d", i);
		no_listing = EMFILE;
		struct hand h = runs(&w, name);
		CHECK(!no_listing, "the root was not listed");
		ends(&h);
	}
	ends(&before);
	ptg_host_close(host);
}

int main(void)
{
	test_none_at_first("instances", &no_instance, EMFILE, "see fs.inotify.max_user_instances");
	test_none_at_first("watches", &no_watch, ENOSPC, "see fs.inotify.max_user_watches");
	test_none_for_a_while();
	test_a_listing_that_fails();
	return 0;
}
