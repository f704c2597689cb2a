/* descriptor.c: memory that is kept by a descriptor: what cuMemExportToShareableHandle gave is memory of the device for as
 * long as the descriptor is open anywhere, in this process, in others or under way between them, whoever has released it.
 *
 * Called by vmm.c. The descriptor itself tells: it is locked here (read, by open file description, at an offset that
 * nobody can guess), the kernel drops the lock with the last copy of the descriptor, and a description of our own of the
 * same file, the *probe*, sees whether it is there. So what its maker has let go of stays charged until then. It is
 * looked for before a refusal, by queries, at synchronisation, and when the next is let go of.
 * What can go wrong: a file that cannot be locked or opened again (no /proc): then the descriptor is not waited for. A
 * probe that the program has closed: the charge stays until the process ends. A maker that is dead looks for nothing.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "core.h"
#include "memory.h"

#define TOKENS (UINT64_C(1) << 61) /* offsets from there on: no driver's own locks are near */

/* A file of which descriptors were exported; on many drivers one for all. */
struct probe {
	struct probe *next;
	dev_t device;
	ino_t file;
	int fd;
	uint32_t users;
};

struct vgpu_descriptor {
	struct vgpu_descriptor *next; /* of the same memory, in another file */
	struct probe *probe;
	off_t token;
};

/* Memory that has been let go of, and a descriptor of it has not been closed. */
struct kept {
	struct kept *next;
	struct vgpu_descriptor *descriptors;
	void (*end)(void *);
	void *argument;
};

static uint32_t lock; /* process-private, never held across a driver call */
static struct probe *probes;
static struct kept *all_kept; /* also read without the lock: whether there is any */

/* ---- probes ------------------------------------------------------------------------------------------------------ */

static bool shows(const struct probe *probe, int fd)
{
	struct stat st;
	return vgpu_fstat(fd, &st) == 0 && st.st_dev == probe->device && st.st_ino == probe->file;
}

static int open_again(int fd)
{
	char path[32] = "/proc/self/fd/", digits[12];
	size_t n = 0, at = sizeof("/proc/self/fd/") - 1;
	do
		digits[n++] = (char)('0' + fd % 10);
	while ((fd /= 10) != 0);
	while (n != 0)
		path[at++] = digits[--n];
	int again = vgpu_open(AT_FDCWD, path, O_RDONLY | O_NONBLOCK, 0);
	return again < 0 ? again : vgpu_move_high(again);
}

/* With the lock held: one user more; NULL: the file cannot be had. */
static struct probe *probe_of(int fd)
{
	struct stat st;
	struct probe *probe = probes;
	if (fd < 0 || vgpu_fstat(fd, &st) != 0)
		return NULL;
	while (probe != NULL && (probe->device != st.st_dev || probe->file != st.st_ino))
		probe = probe->next;
	if (probe == NULL && (probe = malloc(sizeof(*probe))) != NULL) {
		*probe = (struct probe){probes, st.st_dev, st.st_ino, open_again(fd), 0};
		if (probe->fd < 0) {
			free(probe);
			return NULL;
		}
		probes = probe;
	}
	if (probe != NULL)
		probe->users++;
	return probe;
}

static void leave_probe(struct probe *probe)
{
	struct probe **link = &probes;
	if (--probe->users != 0)
		return;
	while (*link != probe)
		link = &(*link)->next;
	*link = probe->next;
	if (shows(probe, probe->fd)) /* else it is the program's by now */
		vgpu_close(probe->fd);
	free(probe);
}

/* ---- descriptors ------------------------------------------------------------------------------------------------- */

/* With the lock held. */
static struct vgpu_descriptor *watch(int fd)
{
	struct vgpu_descriptor *d = malloc(sizeof(*d));
	uint64_t token;
	struct probe *probe = d != NULL ? probe_of(fd) : NULL;
	if (probe == NULL) {
		free(d);
		return NULL;
	}
	if (syscall(SYS_getrandom, &token, sizeof(token), 0) == (long)sizeof(token)) {
		*d = (struct vgpu_descriptor){.probe = probe, .token = (off_t)(TOKENS | (token & (TOKENS - 1)))};
		if (vgpu_byte_lock_shared(fd, d->token) == 0)
			return d;
	}
	leave_probe(probe);
	free(d);
	return NULL;
}

void vgpu_descriptor_watch(struct vgpu_descriptor **all, int fd)
{
	int saved = errno;
	vgpu_lock(&lock);
	struct vgpu_descriptor *d = *all;
	while (d != NULL && !shows(d->probe, fd))
		d = d->next;
	if (d != NULL) { /* one more of what is watched already */
		vgpu_byte_lock_shared(fd, d->token);
	} else if ((d = watch(fd)) != NULL) {
		d->next = *all;
		*all = d;
	}
	vgpu_unlock(&lock);
	errno = saved;
}

/* With the lock held; true where it cannot be told. */
static bool any_open(const struct vgpu_descriptor *d)
{
	while (d != NULL && shows(d->probe, d->probe->fd) && !vgpu_byte_locked(d->probe->fd, d->token))
		d = d->next;
	return d != NULL;
}

static void forget(struct vgpu_descriptor *d)
{
	for (struct vgpu_descriptor *next; d != NULL; d = next) {
		next = d->next;
		leave_probe(d->probe);
		free(d);
	}
}

/* ---- what they keep ---------------------------------------------------------------------------------------------- */

void vgpu_descriptor_end(struct vgpu_descriptor *descriptors, void (*end)(void *), void *argument)
{
	int saved = errno;
	if (descriptors == NULL) {
		end(argument);
		return;
	}
	vgpu_descriptors_poll();
	vgpu_lock(&lock);
	bool open = any_open(descriptors);
	struct kept *kept = open ? malloc(sizeof(*kept)) : NULL;
	if (kept != NULL) { /* else it stays charged: too much, never too little */
		*kept = (struct kept){all_kept, descriptors, end, argument};
		__atomic_store_n(&all_kept, kept, __ATOMIC_RELEASE);
	}
	if (!open)
		forget(descriptors);
	vgpu_unlock(&lock);
	if (!open)
		end(argument);
	errno = saved;
}

/* Takes out those that nothing keeps any more. */
static struct kept *take_closed(void)
{
	struct kept *closed = NULL;
	int saved = errno;
	vgpu_lock(&lock);
	for (struct kept **link = &all_kept; *link != NULL;) {
		struct kept *kept = *link;
		if (any_open(kept->descriptors)) {
			link = &kept->next;
			continue;
		}
		__atomic_store_n(link, kept->next, __ATOMIC_RELEASE);
		forget(kept->descriptors);
		kept->next = closed;
		closed = kept;
	}
	vgpu_unlock(&lock);
	errno = saved;
	return closed;
}

bool vgpu_descriptors_poll(void)
{
	if (__atomic_load_n(&all_kept, __ATOMIC_ACQUIRE) == NULL)
		return false;
	struct kept *closed = take_closed(), *next;
	bool any = closed != NULL;
	for (; closed != NULL; closed = next) {
		next = closed->next;
		closed->end(closed->argument);
		free(closed);
	}
	return any;
}

/* The probes stay open in the child: it has no way to tell them from what the program may have put in their place. */
void vgpu_descriptors_forked(void)
{
	lock = 0;
	probes = NULL;
	all_kept = NULL;
}
