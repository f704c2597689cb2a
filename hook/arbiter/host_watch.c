/* host_watch.c: sees hand-overs come and go, files in them appear and be closed, and device locks be let go (inotify).
 *
 * The loop sleeps in futex_waitv, which knows futex words alone. So a thread of ours turns events into such a word (`kick`):
 * this way round, because the bells of tenants, which are on the path of every turn, then wake the loop with no thread
 * between. The thread waits edge-triggered and reads nothing; the loop reads the events when it comes round.
 * What can go wrong: no inotify to be had (the user's instances or watches of it, or our descriptors, are used up), at all
 * or for one directory or lock file: once a second the root is then listed, what has no watch is looked at, and the watch
 * is tried again; a line in the log says when that begins and ends. A root that cannot be listed: likewise. A lost event
 * (queue full): everything is looked at. */
#include "host_local.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#define SCAN_EVERY (1000 * HOST_MS) /* where nothing tells us */

static const uint32_t root_events = IN_CREATE | IN_MOVED_TO | IN_DELETE | IN_MOVED_FROM | IN_DELETE_SELF | IN_MOVE_SELF;
static const uint32_t directory_events = IN_CREATE | IN_MOVED_TO | IN_DELETE | IN_MOVED_FROM | IN_CLOSE_WRITE;
static const uint32_t lock_events = IN_CLOSE | IN_ATTRIB | IN_DELETE_SELF;

/* Nothing tells us all that happens: list again in a second. */
static void scan_again(struct ptg_host *host)
{
	uint64_t at = host_now() + SCAN_EVERY;
	if (host->scan_at > at)
		host->scan_at = at;
}

static int watch_fd(struct ptg_host *host, int fd, uint32_t events)
{
	char path[64];
	int watch = -1;
	if (host->inotify < 0) /* hear() has said so and tries again */
		return -1;
	if (fd >= 0) { /* else it could not be opened a moment ago */
		snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
		watch = inotify_add_watch(host->inotify, path, events);
	}
	if (watch < 0) {
		host->unwatched = errno;
		scan_again(host);
	}
	return watch;
}

int watch_directory(struct ptg_host *host, int dir)
{
	return watch_fd(host, dir, directory_events | IN_ONLYDIR);
}

int watch_lock(struct ptg_host *host, int fd)
{
	return watch_fd(host, fd, lock_events);
}

void watch_remove(struct ptg_host *host, int watch)
{
	if (host->inotify >= 0 && watch >= 0)
		inotify_rm_watch(host->inotify, watch);
}

static void *pass_on_events(void *argument)
{
	struct ptg_host *host = argument;
	struct epoll_event event;
	for (;;) {
		int n = epoll_wait(host->events_set, &event, 1, -1);
		if ((n < 0 && errno != EINTR) || (n > 0 && event.data.u32 == 1))
			break;
		host_kick(host);
	}
	return NULL;
}

/* What the thread waits for; false with errno. */
static bool make_events_set(struct ptg_host *host)
{
	struct epoll_event news = {.events = EPOLLIN | EPOLLET}, end = {.events = EPOLLIN, .data.u32 = 1};
	if (host->events_end < 0)
		host->events_end = eventfd(0, EFD_CLOEXEC);
	if (host->events_end < 0 || host->events_set >= 0)
		return host->events_set >= 0;
	int set = epoll_create1(EPOLL_CLOEXEC);
	if (set >= 0 && !epoll_ctl(set, EPOLL_CTL_ADD, host->inotify, &news) &&
	    !epoll_ctl(set, EPOLL_CTL_ADD, host->events_end, &end)) {
		host->events_set = set;
		return true;
	}
	int error = errno;
	if (set >= 0)
		close(set);
	errno = error;
	return false;
}

/* Begin to be told what happens in the root; what exists of that already stays. False with errno. */
static bool hear(struct ptg_host *host)
{
	if (host->inotify < 0)
		host->inotify = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
	if (host->inotify < 0)
		return false;
	if (host->root_watch < 0)
		host->root_watch = watch_fd(host, host->root_fd, root_events | IN_ONLYDIR);
	if (host->root_watch < 0 || !make_events_set(host))
		return false;
	sigset_t all, before;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	int error = pthread_create(&host->events, NULL, pass_on_events, host);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	host->has_events = error == 0;
	errno = error;
	return host->has_events;
}

/* Say when watches begin to be missing, and when none is missing any more. */
static void say_unwatched(struct ptg_host *host)
{
	if (host->unwatched && !host->told_unwatched)
		host_log(host, "no inotify for all there is (%s): %s is listed once a second; see %s",
		         strerror(host->unwatched), host->root,
		         host->unwatched == ENOSPC   ? "fs.inotify.max_user_watches"
		         : host->unwatched == EMFILE ? "fs.inotify.max_user_instances and the limit of open files"
		                                     : "the kernel's log");
	else if (!host->unwatched && host->told_unwatched)
		host_log(host, "inotify for all there is again");
	host->told_unwatched = host->unwatched != 0;
}

void watch_open(struct ptg_host *host)
{
	if (!hear(host))
		host->unwatched = errno;
	say_unwatched(host);
}

void watch_close(struct ptg_host *host)
{
	if (host->has_events) {
		eventfd_write(host->events_end, 1);
		pthread_join(host->events, NULL);
	}
	if (host->events_set >= 0)
		close(host->events_set);
	if (host->events_end >= 0)
		close(host->events_end);
	if (host->inotify >= 0)
		close(host->inotify);
}

/* ---- events ------------------------------------------------------------------------------------------------------------ */

static void look_at_all(struct ptg_host *host, uint64_t now)
{
	host->scan_at = now;
	for (struct tenant *t = host->tenants; t; t = t->next)
		tenant_look_soon(t, now);
	for (int i = 0; i < host->ndevices; i++)
		host->device[i].retry_at = now;
}

static void take_event(struct ptg_host *host, const struct inotify_event *event, uint64_t now)
{
	if (event->mask & IN_Q_OVERFLOW) {
		look_at_all(host, now);
		return;
	}
	if (event->wd == host->root_watch) {
		host->scan_at = now;
		host->root_gone |= (event->mask & (IN_DELETE_SELF | IN_MOVE_SELF | IN_IGNORED)) != 0;
		return;
	}
	for (struct tenant *t = host->tenants; t; t = t->next)
		if (t->watch == event->wd)
			tenant_look_soon(t, now);
	/* The lock goes a moment after the event that its file was closed: tried a few times. */
	for (int i = 0; i < host->ndevices; i++)
		if (host->device[i].watch == event->wd)
			host->device[i].retry_at = host->device[i].retry_after = 0;
}

void watch_read(struct ptg_host *host, uint64_t now)
{
	char buffer[8192] __attribute__((aligned(__alignof__(struct inotify_event))));
	ssize_t n;
	if (host->inotify < 0)
		return;
	while ((n = read(host->inotify, buffer, sizeof buffer)) > 0)
		for (char *at = buffer; at < buffer + n;) {
			const struct inotify_event *event = (const struct inotify_event *)at;
			take_event(host, event, now);
			at += sizeof *event + event->len;
		}
}

/* ---- the root ---------------------------------------------------------------------------------------------------------- */

static struct tenant *find(struct ptg_host *host, const char *name)
{
	for (struct tenant *t = host->tenants; t; t = t->next)
		if (!strcmp(t->name, name))
			return t;
	return NULL;
}

static void meet(struct ptg_host *host, const char *name, uint64_t now)
{
	struct stat st;
	struct tenant *t = find(host, name);
	if (strlen(name) >= HOST_NAME || fstatat(host->root_fd, name, &st, AT_SYMLINK_NOFOLLOW) || !S_ISDIR(st.st_mode))
		return;
	if (t && (t->dir_id.dev != st.st_dev || t->dir_id.ino != st.st_ino)) {
		tenant_free(host, t);
		t = NULL;
	}
	if (!t) {
		t = tenant_new(host, name);
		if (!t)
			return;
		t->dir_id = (struct file_id){st.st_dev, st.st_ino};
		tenant_look_soon(t, now);
		t->look_at = now;
	}
	if (t->dir < 0)
		t->dir = openat(host->root_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (t->dir < 0 && errno == ENOENT)
		return; /* gone since it was listed */
	if (t->watch < 0) {
		t->watch = watch_directory(host, t->dir);
		t->look_at = now; /* after it: what happens between is seen */
	}
	t->seen = true;
	if (!host->has_events)
		t->look_at = now;
}

/* Lock files that nobody watches for us; those of others are tried again in host_locks.c. */
static void watch_locks(struct ptg_host *host, uint64_t now)
{
	for (int i = 0; i < host->ndevices; i++) {
		struct device *d = &host->device[i];
		if (d->lock < 0 || d->watch >= 0)
			continue;
		d->watch = watch_lock(host, d->lock);
		d->retry_at = now;
	}
}

static void meet_all(struct ptg_host *host, DIR *list, uint64_t now)
{
	for (struct tenant *t = host->tenants; t; t = t->next)
		t->seen = false;
	for (struct dirent *entry; (entry = readdir(list));)
		if (entry->d_name[0] != '.')
			meet(host, entry->d_name, now);
	for (struct tenant *t = host->tenants, *next; t; t = next) {
		next = t->next;
		if (!t->seen) {
			host_log(host, "%s: gone", t->name);
			tenant_free(host, t);
		}
	}
}

void watch_scan(struct ptg_host *host, uint64_t now)
{
	host->scan_at = ARB_NEVER;
	host->unwatched = 0;
	if (!host->has_events && !hear(host)) {
		host->unwatched = errno;
		scan_again(host);
	}
	int fd = openat(host->root_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *list = fd >= 0 ? fdopendir(fd) : NULL;
	if (list) {
		meet_all(host, list, now);
		closedir(list);
	} else {
		scan_again(host);
		if (fd >= 0)
			close(fd);
	}
	watch_locks(host, now);
	say_unwatched(host);
}
