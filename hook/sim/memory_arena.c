/* memory_arena.c: where device memory and pinned host memory lie in this process.
 *
 * Called by memory.c, pool.c and memory_host.c under the memory mutex. Each device has one arena, mapped read-write
 * once and without reserve: nothing is mapped per block, so the kernel's limit on mappings does not matter, and
 * memory that nobody wrote costs nothing. It is a memfd, so that parts of it can be shared with other processes
 * (memory_share.c); private pages where there can be none. Granules that come back lose their pages: the process's size
 * returns, and the next owner reads zeroes. Every granule that is out is counted in the machine file. What can go
 * wrong: the card is full (CUDA_ERROR_OUT_OF_MEMORY), or the address space is (ulimit -v): smaller arenas are tried,
 * then the same error.
 */
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "memory_share.h"

#define ARENA_BYTES (UINT64_C(1) << 40)
#define LOW_BYTES   (UINT64_C(256) << 20) /* for the 32-bit entry points of CUDA 2 */
#define LOW_FIRST   (UINT64_C(256) << 20)
#define LOW_END     (UINT64_C(1) << 32)
#define SPARE_BYTES (UINT64_C(64) << 20) /* of the file, behind the arena */
#define HOST_BYTES  (UINT64_C(256) << 30)

#ifndef MAP_FIXED_NOREPLACE
#define MAP_FIXED_NOREPLACE 0x100000
#endif

pthread_mutex_t sim_memory_mutex = PTHREAD_MUTEX_INITIALIZER;

struct arena {
	uint64_t base, size;
	struct sim_space space;
	uint64_t granule;
	int fd; /* the memfd; 0: none */
	uint64_t inode;
	uint64_t map; /* address of its first byte */
	struct sim_granule **shared; /* by granule: what small blocks it holds, or NULL */
};

static struct arena arenas[SIM_DEVICES], low_arenas[SIM_DEVICES], host_arena;

/* A file of this size for an arena; -1: there can be none. */
static int make_file(struct arena *arena, uint64_t size)
{
	struct rlimit limit;
	struct stat st;

	/* Growing past this limit is a signal that kills the program, not only an error. */
	if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur < size + SPARE_BYTES)
		return -1;
	int fd = memfd_create("partage-sim-device", MFD_CLOEXEC);
	if (fd < 0)
		return -1;
	if (ftruncate(fd, (off_t)(size + SPARE_BYTES)) < 0 || fstat(fd, &st) < 0) {
		close(fd);
		return -1;
	}
	arena->inode = st.st_ino;
	return fd;
}

static void *map_file(struct arena *arena, uint64_t size)
{
	int fd = make_file(arena, size);

	if (fd < 0)
		return MAP_FAILED;
	void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
	if (p == MAP_FAILED) {
		close(fd);
		return p;
	}
	arena->fd = fd;
	arena->map = (uint64_t)(uintptr_t)p;
	return p;
}

static void *map_room(uint64_t at, uint64_t size)
{
	int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | (at ? MAP_FIXED_NOREPLACE : 0);
	void *p = mmap((void *)(uintptr_t)at, size, PROT_READ | PROT_WRITE, flags, -1, 0);

	if (p != MAP_FAILED && at && p != (void *)(uintptr_t)at) { /* a kernel without NOREPLACE took it as a hint */
		munmap(p, size);
		return MAP_FAILED;
	}
	return p;
}

static bool open_arena(struct arena *arena, void *p, uint64_t size, uint64_t align)
{
	uint64_t base = sim_round_up((uint64_t)(uintptr_t)p, align);
	uint64_t usable = (size - (base - (uint64_t)(uintptr_t)p)) / align * align;

	if (!sim_space_give(&arena->space, base, usable)) {
		munmap(p, size);
		return false;
	}
	arena->base = base;
	arena->size = usable;
	return true;
}

static bool map_arena(struct arena *arena, uint64_t wish, uint64_t align, bool file)
{
	for (uint64_t size = wish; size >= 64 * align; size /= 2) {
		void *p = file ? map_file(arena, size) : MAP_FAILED;
		if (p == MAP_FAILED)
			p = map_room(0, size);
		if (p != MAP_FAILED)
			return open_arena(arena, p, size, align);
	}
	sim_log("no address space for device memory; is it limited (ulimit -v)?");
	return false;
}

static bool map_device_arena(struct arena *arena, uint64_t granule)
{
	if (!map_arena(arena, ARENA_BYTES, granule, true))
		return false;
	/* A forked child has no driver; it must not copy what its parent then writes. */
	madvise((void *)(uintptr_t)arena->base, arena->size, MADV_DONTFORK);
	void *p = map_room(0, arena->size / granule * sizeof *arena->shared);
	arena->shared = p == MAP_FAILED ? NULL : p;
	arena->granule = granule;
	return true;
}

static bool map_low_arena(struct arena *arena, uint64_t granule)
{
	for (uint64_t at = LOW_FIRST; at + LOW_BYTES <= LOW_END; at += LOW_BYTES) {
		void *p = map_room(at, LOW_BYTES);
		if (p == MAP_FAILED)
			continue;
		madvise(p, LOW_BYTES, MADV_DONTFORK);
		return open_arena(arena, p, LOW_BYTES, granule);
	}
	return false;
}

static struct arena *device_arena(int device, bool low)
{
	struct arena *arena = low ? &low_arenas[device] : &arenas[device];
	uint64_t granule = sim_machine->model[device].granule;

	if (!arena->size && !(low ? map_low_arena(arena, granule) : map_device_arena(arena, granule)))
		return NULL;
	return arena;
}

CUresult sim_granules_take(int device, uint64_t bytes, bool low, bool overhead, uint64_t *start)
{
	if (bytes > sim_machine->model[device].memory)
		return CUDA_ERROR_OUT_OF_MEMORY;
	struct arena *arena = device_arena(device, low);
	if (!arena || sim_account_or_trim(device, (int64_t)bytes, overhead) < 0)
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (!sim_space_take(&arena->space, bytes, start)) {
		sim_account(device, -(int64_t)bytes, overhead);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	return CUDA_SUCCESS;
}

/* What lay there is gone, and is zero when it is used again. */
static void drop_pages(const struct arena *arena, uint64_t start, uint64_t bytes)
{
	madvise((void *)(uintptr_t)start, bytes, arena->fd > 0 ? MADV_REMOVE : MADV_DONTNEED);
}

void sim_granules_give(int device, uint64_t start, uint64_t bytes, bool overhead)
{
	struct arena *arena = start < LOW_END ? &low_arenas[device] : &arenas[device];
	enum sim_extent_end end = sim_extent_end(device, start);

	if (end == SIM_EXTENT_HELD) /* pages and place are theirs; ours, if ever, when the process is gone */
		return;
	drop_pages(arena, start, bytes);
	sim_space_give(&arena->space, start, bytes);
	if (end == SIM_EXTENT_OWN)
		sim_account(device, -(int64_t)bytes, overhead);
}

bool sim_arena_start(int device, uint64_t *start)
{
	struct arena *arena = device_arena(device, false);

	if (arena)
		*start = arena->base;
	return arena;
}

bool sim_arena_place(int device, uint64_t start, uint64_t bytes, struct sim_file_place *place)
{
	const struct arena *arena = &arenas[device];
	struct stat st;

	if (start - arena->base >= arena->size || arena->fd <= 0 || fstat(arena->fd, &st) < 0 ||
	    st.st_ino != arena->inode) /* the program closes descriptors that it did not open */
		return false;
	*place = (struct sim_file_place){getpid(), arena->fd, arena->inode, start - arena->map, bytes};
	return true;
}

uint64_t sim_arena_spare(int device)
{
	return arenas[device].base - arenas[device].map + arenas[device].size;
}

bool sim_room_take(int device, uint64_t bytes, uint64_t *start)
{
	struct arena *arena = device_arena(device, false);

	return arena && sim_space_take(&arena->space, bytes, start);
}

void sim_room_clear(int device, uint64_t start, uint64_t bytes)
{
	drop_pages(&arenas[device], start, bytes);
}

void sim_room_give(int device, uint64_t start, uint64_t bytes)
{
	drop_pages(&arenas[device], start, bytes);
	sim_space_give(&arenas[device].space, start, bytes);
}

/* The device arena around an address, NULL: none. Few devices have one. */
static struct arena *arena_around(uint64_t address)
{
	for (uint32_t i = 0; i < sim_machine->ndev; i++) {
		if (address - arenas[i].base < arenas[i].size)
			return &arenas[i];
	}
	return NULL;
}

bool sim_lies_in_file(const struct sim_block *block)
{
	struct arena *arena = arena_around(block->range.start);

	return block->kind == SIM_BLOCK_MAPPED || block->kind == SIM_BLOCK_IPC || (arena && arena->fd > 0);
}

struct sim_granule **sim_shared_granule(uint64_t address)
{
	struct arena *arena = arena_around(address);

	return arena && arena->shared ? &arena->shared[(address - arena->base) / arena->granule] : NULL;
}

uint64_t sim_next_granule(uint64_t address)
{
	struct arena *arena = arena_around(address);

	if (!arena || arena->size - (address - arena->base) <= arena->granule)
		return 0;
	return arena->base + ((address - arena->base) / arena->granule + 1) * arena->granule;
}

bool sim_host_take(uint64_t bytes, uint64_t *start)
{
	if (!host_arena.size && !map_arena(&host_arena, HOST_BYTES, 4096, false))
		return false;
	return sim_space_take(&host_arena.space, bytes, start);
}

void sim_host_give(uint64_t start, uint64_t bytes)
{
	madvise((void *)(uintptr_t)start, bytes, MADV_DONTNEED);
	sim_space_give(&host_arena.space, start, bytes);
}
