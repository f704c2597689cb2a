/* memory_share.c: parts of the arena that other processes map, and parts of theirs that are mapped here.
 *
 * Called by ipc.c and pool_share.c, and by memory_arena.c when granules go back. Device memory lies in one memfd per
 * device and process, so an importer really maps the same pages: by a descriptor it was handed, or through the
 * exporter's /proc entry, as cuIpc handles are plain bytes. The card counts each part once, as long as any process holds
 * it (machine_shares.c); its place in the file is not used again while others may map it. What can go wrong: the
 * exporter is gone or in another pid namespace, the table of shares is full, no address space.
 */
#include "memory_share.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* Granules of ours that have a share. */
struct extent {
	struct extent *next;
	int device;
	uint64_t start, bytes, share;
};

/* All that this process holds of a share counts as one. */
struct hold {
	struct hold *next;
	int device;
	unsigned count;
	uint64_t share;
};

struct sim_import {
	void *map;
	uint64_t bytes, share;
	int device;
};

static struct extent *extents;
static struct hold *holds;

static struct hold *hold_of(uint64_t share)
{
	struct hold *hold = holds;

	while (hold && hold->share != share)
		hold = hold->next;
	return hold;
}

/* This process holds the share already, or has just come to. */
static bool note_hold(int device, uint64_t share)
{
	struct hold *hold = hold_of(share);

	if (!hold) {
		hold = calloc(1, sizeof *hold);
		if (!hold)
			return false;
		hold->device = device;
		hold->share = share;
		hold->next = holds;
		holds = hold;
	}
	hold->count++;
	return true;
}

/* True where nobody holds it any more. */
static bool drop_hold(uint64_t share)
{
	struct hold **link = &holds;

	while (*link && (*link)->share != share)
		link = &(*link)->next;
	struct hold *hold = *link;
	if (!hold || --hold->count)
		return false;
	*link = hold->next;
	bool last = sim_share_leave(hold->device, share);
	free(hold);
	return last;
}

uint64_t sim_extent_share(int device, uint64_t start, uint64_t bytes)
{
	for (struct extent *extent = extents; extent; extent = extent->next) {
		if (extent->start == start && extent->device == device)
			return extent->share;
	}
	struct extent *extent = calloc(1, sizeof *extent);
	uint64_t share = extent ? sim_share_make(device, bytes) : 0;
	if (!share || !note_hold(device, share)) {
		free(extent);
		return 0;
	}
	*extent = (struct extent){extents, device, start, bytes, share};
	extents = extent;
	return share;
}

enum sim_extent_end sim_extent_end(int device, uint64_t start)
{
	struct extent **link = &extents;

	while (*link && ((*link)->start != start || (*link)->device != device))
		link = &(*link)->next;
	struct extent *extent = *link;
	if (!extent)
		return SIM_EXTENT_OWN;
	*link = extent->next;
	bool last = drop_hold(extent->share);
	free(extent);
	return last ? SIM_EXTENT_LAST : SIM_EXTENT_HELD;
}

/* ---- what others share with us ----------------------------------------------------------------------------------- */

static int open_place(const struct sim_file_place *place)
{
	char path[64];
	struct stat st;

	snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)place->pid, (int)place->fd);
	int fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd >= 0 && (fstat(fd, &st) < 0 || st.st_ino != place->inode)) {
		close(fd);
		fd = -1;
	}
	return fd;
}

static void *map_place(const struct sim_file_place *place, int fd)
{
	void *p = mmap(NULL, place->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)place->offset);

	if (p != MAP_FAILED)
		madvise(p, place->bytes, MADV_DONTFORK);
	return p;
}

struct sim_import *sim_import_open(const struct sim_file_place *place, int fd, int device, uint64_t share)
{
	struct sim_import *import = calloc(1, sizeof *import);
	int own = fd < 0 ? open_place(place) : fd;
	void *map = import && own >= 0 ? map_place(place, own) : MAP_FAILED;
	bool joined = map != MAP_FAILED && (hold_of(share) || sim_share_join(device, share, 0) == 0);

	if (own >= 0 && own != fd)
		close(own);
	if (joined && note_hold(device, share)) {
		*import = (struct sim_import){map, place->bytes, share, device};
		return import;
	}
	if (joined && !hold_of(share))
		sim_share_leave(device, share);
	if (map != MAP_FAILED)
		munmap(map, place->bytes);
	free(import);
	return NULL;
}

uint64_t sim_import_start(const struct sim_import *import)
{
	return (uint64_t)(uintptr_t)import->map;
}

void sim_import_close(struct sim_import *import)
{
	munmap(import->map, import->bytes);
	drop_hold(import->share);
	free(import);
}
