/* host_locks.c: one arbiter a device on this machine, one host a root.
 *
 * A device is arbitrated by whoever holds the OFD lock of its file in the machine's lock directory (the kernel drops it at
 * death, and others can ask for it without taking it); the file says who that is.
 * It is taken while tenants of ours are gated on the device and let go when none is. Who does not get it is told, once, in
 * the log, by whom it is held, and tries again when that file is closed by anybody (inotify; the kernel lets the lock go a
 * moment after the event, hence a few tries).
 * The directory is one that every user of the machine can reach (/run/lock), so everything in it may be somebody's trap:
 * nothing is followed, a file must be plain and have one name, and what it says is shown and never believed. Whoever can
 * write into that directory can keep arbiters off a device; tenants then live by their private buckets.
 * What can go wrong: no such directory, one that anybody may rename in, a file that we cannot open: DEVICE_REFUSED, with a
 * line in the log; tried again for a few seconds, and whenever a share changes. */
#include "host_local.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define RETRY_FIRST HOST_MS
#define RETRY_LAST  (2048 * HOST_MS)

/* ---- a file that says who holds it ----------------------------------------------------------------------------------- */

/* Field 22 of /proc/self/stat: when this process started, in clock ticks since boot. */
static unsigned long long start_time(void)
{
	char text[1024];
	int fd = open("/proc/self/stat", O_RDONLY | O_CLOEXEC);
	ssize_t n = fd >= 0 ? read(fd, text, sizeof text - 1) : -1;
	if (fd >= 0)
		close(fd);
	if (n <= 0)
		return 0;
	text[n] = '\0';
	char *at = strrchr(text, ')');
	for (int field = 2; at && field < 22; field++)
		at = strchr(at + 1, ' ');
	return at ? strtoull(at + 1, NULL, 10) : 0;
}

static void sign(struct ptg_host *host, int fd)
{
	char text[4600];
	int n = snprintf(text, sizeof text, "pid %d uid %u start %llu root %s\n", (int)getpid(), (unsigned)geteuid(),
	                 start_time(), host->root);
	if (ftruncate(fd, 0) || pwrite(fd, text, (size_t)n, 0) != n)
		host_log(host, "cannot say in a lock file that it is ours: %s", strerror(errno));
}

/* When to try again: a few times, longer apart each time. */
static void try_again(struct device *d, uint64_t now)
{
	d->retry_after = d->retry_after ? 2 * d->retry_after : RETRY_FIRST;
	d->retry_at = d->retry_after > RETRY_LAST ? ARB_NEVER : now + d->retry_after;
}

/* Take the lock of a file that open_lock() opened, if nobody holds it. */
static bool try_lock(int fd)
{
	struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 0, .l_len = 1};
	return fcntl(fd, F_OFD_SETLK, &lock) == 0;
}

static void read_owner(int fd, char *text, size_t size)
{
	ssize_t n = pread(fd, text, size - 1, 0);
	text[n > 0 ? n : 0] = '\0';
	text[strcspn(text, "\n")] = '\0';
	if (!*text)
		snprintf(text, size, "somebody who does not say who it is");
}

/* Open a lock file, made where it is missing; -errno. A file of another user is only opened without O_CREAT, which the
 * kernel refuses in directories that everybody may write to. */
static int open_lock(int dir, const char *name, mode_t mode)
{
	const int flags = O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
	struct stat st;
	int fd = openat(dir, name, flags);
	if (fd < 0 && errno == ENOENT) {
		fd = openat(dir, name, flags | O_CREAT | O_EXCL, mode);
		if (fd >= 0)
			fchmod(fd, mode); /* whatever the umask is */
		else if (errno == EEXIST)
			fd = openat(dir, name, flags);
	}
	if (fd < 0)
		return -errno;
	if (fstat(fd, &st) || !S_ISREG(st.st_mode) || st.st_nlink != 1) {
		close(fd);
		return -EPERM;
	}
	return fd;
}

/* ---- the root ---------------------------------------------------------------------------------------------------------- */

int locks_serve(struct ptg_host *host, char *why, size_t size)
{
	host->serving_fd = open_lock(host->root_fd, HOST_SERVING, 0600);
	if (host->serving_fd < 0) {
		int error = host->serving_fd;
		host->serving_fd = -1;
		snprintf(why, size, "%s/%s: %s", host->root, HOST_SERVING, strerror(-error));
		return error;
	}
	if (!try_lock(host->serving_fd)) {
		char owner[512];
		read_owner(host->serving_fd, owner, sizeof owner);
		snprintf(why, size, "served by %s", owner);
		close(host->serving_fd); /* not ours to empty */
		host->serving_fd = -1;
		return -EBUSY;
	}
	sign(host, host->serving_fd);
	return 0;
}

int locks_registry(struct ptg_host *host)
{
	int fd = openat(host->root_fd, HOST_REGISTRY, O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600);
	if (fd >= 0 && !try_lock(fd)) {
		close(fd);
		return -1;
	}
	return fd;
}

/* ---- devices ------------------------------------------------------------------------------------------------------------ */

int locks_device(struct ptg_host *host, const char *uuid)
{
	for (int i = 0; i < host->ndevices; i++)
		if (!strcmp(host->device[i].uuid, uuid))
			return i;
	int index = host->ndevices < ARB_DEVICES ? arb_device(host->arb, uuid) : -1;
	if (index < 0) {
		host_log(host, "device %s: the arbiter has as many devices as it can hold", uuid);
		return -1;
	}
	struct device *d = &host->device[host->ndevices];
	*d = (struct device){.index = index, .lock = -1, .watch = -1, .retry_at = ARB_NEVER};
	snprintf(d->uuid, sizeof d->uuid, "%s", uuid);
	return host->ndevices++;
}

/* The lock directory, where nobody but its owner (root or we) can put another file in a file's place; -1 with a reason. */
static int open_lock_dir(struct ptg_host *host, const char **why)
{
	struct stat st;
	int fd = open(host->lock_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0 || fstat(fd, &st)) {
		*why = strerror(errno);
	} else if (st.st_uid != 0 && st.st_uid != geteuid()) {
		*why = "the directory belongs to another user";
	} else if (st.st_mode & 022 && !(st.st_mode & S_ISVTX)) {
		*why = "others may write to the directory and it is not sticky";
	} else {
		return fd;
	}
	if (fd >= 0)
		close(fd);
	return -1;
}

static int open_device_lock(struct ptg_host *host, const struct device *d, const char **why)
{
	char name[PTG_UUID_SIZE + 32];
	if (d->uuid[strspn(d->uuid, "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-_.")]) {
		*why = "its name does not fit a file's";
		return -1;
	}
	int dir = open_lock_dir(host, why);
	if (dir < 0)
		return -1;
	snprintf(name, sizeof name, "partage-%s.lock", d->uuid);
	int fd = open_lock(dir, name, 0666);
	close(dir);
	if (fd < 0)
		*why = fd == -EPERM ? "its lock file is no plain file of one name" : strerror(-fd);
	return fd;
}

static void let_go(struct ptg_host *host, struct device *d)
{
	watch_remove(host, d->watch);
	d->watch = -1;
	if (d->lock >= 0) {
		if (d->state == DEVICE_OURS && ftruncate(d->lock, 0))
			host_log(host, "device %s: cannot empty its lock file", d->uuid);
		close(d->lock);
	}
	d->lock = -1;
	d->state = DEVICE_UNUSED;
	d->retry_at = ARB_NEVER;
	d->retry_after = 0;
}

/* Whether the lock file still has the name that others look for. */
static bool is_named(int fd)
{
	struct stat st;
	return fstat(fd, &st) == 0 && st.st_nlink == 1;
}

static void take(struct ptg_host *host, struct device *d, uint64_t now)
{
	const char *why = "";
	if (d->lock < 0)
		d->lock = open_device_lock(host, d, &why);
	if (d->lock < 0) {
		if (d->state != DEVICE_REFUSED)
			host_log(host,
			         "device %s: cannot be locked in %s: %s; its tenants live by their private buckets",
			         d->uuid, host->lock_dir, why);
		d->state = DEVICE_REFUSED;
		try_again(d, now); /* its maker may just be about to open it for all */
		return;
	}
	if (d->watch < 0)
		d->watch = watch_lock(host, d->lock); /* before the lock is tried: its end is not missed */
	if (try_lock(d->lock)) {
		if (!is_named(d->lock)) { /* removed since we opened it */
			let_go(host, d);
			d->retry_at = now;
			return;
		}
		if (d->state == DEVICE_FOREIGN)
			host_log(host, "device %s: free now, arbitrated from here", d->uuid);
		d->state = DEVICE_OURS;
		d->retry_at = ARB_NEVER;
		d->retry_after = 0;
		sign(host, d->lock);
		return;
	}
	if (d->state != DEVICE_FOREIGN) {
		char owner[512];
		read_owner(d->lock, owner, sizeof owner);
		host_log(host,
		         "device %s: arbitrated by %s; tenants of %s there live by their private buckets until it ends",
		         d->uuid, owner, host->root);
	}
	d->state = DEVICE_FOREIGN;
	try_again(d, now);
	if (d->watch < 0)
		d->retry_at = now + RETRY_LAST; /* nothing tells us */
}

bool locks_step(struct ptg_host *host, uint64_t now)
{
	bool changed = false;
	for (int i = 0; i < host->ndevices; i++) {
		struct device *d = &host->device[i];
		enum device_state before = d->state;
		if (d->lock >= 0 && d->retry_at <= now && !is_named(d->lock))
			let_go(host, d); /* somebody removed the file: who comes next makes another */
		if (!d->gated && d->state != DEVICE_UNUSED)
			let_go(host, d);
		else if (d->gated && d->state != DEVICE_OURS &&
		         (d->state == DEVICE_UNUSED || d->retry_at <= now ||
		          (d->state == DEVICE_REFUSED && host->changed)))
			take(host, d, now);
		if (d->state == DEVICE_OURS || (d->state == DEVICE_UNUSED && !d->gated))
			d->retry_at = ARB_NEVER;
		changed |= before != d->state;
	}
	return changed;
}

void locks_close(struct ptg_host *host)
{
	for (int i = 0; i < host->ndevices; i++)
		let_go(host, &host->device[i]);
	if (host->serving_fd >= 0) {
		if (ftruncate(host->serving_fd, 0))
			host_log(host, "cannot empty %s/%s", host->root, HOST_SERVING);
		close(host->serving_fd);
	}
	host->serving_fd = -1;
}
