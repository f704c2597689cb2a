/* ledger.c: opens, makes and checks the container's ledger file and claims lines for devices in it.
 *
 * Called by setup.c (first metered call, first query of use), by slot.c and at exit. Under a policy the file lies beside
 * it and is the agent's to make; an empty one may be initialised by whoever comes first. Without one it is made per user
 * and limit set and removed by its last user.
 * What can go wrong: missing, read-only, short, foreign, of another layout, no room on the disk, a set-up lock that
 * somebody keeps. Each is answered with a reason, and the process's allocations are then refused. The room on the disk
 * is taken before the file is mapped, so that a full disk is an answer now and not a SIGBUS later. */
#include "core.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Nobody holds one of the locks for a millisecond; what is waited for is a loaded machine, or a holder that was stopped. */
#define WAIT_NS        UINT64_C(5000000000)
#define FIRST_PAUSE_NS UINT64_C(200000)
#define LAST_PAUSE_NS  UINT64_C(12800000)

__attribute__((format(printf, 2, 3))) static int refuse(char reason[VGPU_REASON_MAX], const char *format, ...)
{
	va_list arguments;
	va_start(arguments, format);
	vsnprintf(reason, VGPU_REASON_MAX, format, arguments);
	va_end(arguments);
	return -1;
}

/* ---- descriptors --------------------------------------------------------------------------------------------------- */

/* The descriptor once more, where a fork's child still finds it (struct vgpu_state is zeroed there). */
static struct vgpu_ledger inherited = {.fd = -1};

static void set_fd(struct vgpu_ledger *ledger, int fd)
{
	ledger->fd = fd;
	inherited.dev = ledger->dev;
	inherited.ino = ledger->ino;
	__atomic_store_n(&inherited.fd, fd, __ATOMIC_RELEASE);
}

static bool is_this_file(const struct vgpu_ledger *ledger, int fd)
{
	struct stat st;
	return fd >= 0 && vgpu_fstat(fd, &st) == 0 && st.st_dev == ledger->dev && st.st_ino == ledger->ino;
}

void vgpu_ledger_forked(void)
{
	if (is_this_file(&inherited, inherited.fd))
		vgpu_close(inherited.fd);
	inherited.fd = -1;
}

/* Open the same file once more: a description of its own, whose locks are its own. */
int vgpu_ledger_open_again(const struct vgpu_ledger *ledger)
{
	int fd = vgpu_open(AT_FDCWD, ledger->path, O_RDWR | O_NOFOLLOW | O_NONBLOCK, 0);
	if (fd < 0 || is_this_file(ledger, fd))
		return fd;
	vgpu_close(fd);
	errno = ESTALE;
	return -1;
}

int vgpu_ledger_fd(struct vgpu_ledger *ledger)
{
	/* The program may have closed our number and opened something of its own under it. */
	if (!is_this_file(ledger, ledger->fd)) {
		int fd = vgpu_ledger_open_again(ledger);
		set_fd(ledger, fd < 0 ? -1 : vgpu_move_high(fd));
	}
	return ledger->fd;
}

int vgpu_ledger_hold(struct vgpu_ledger *ledger, uint32_t slot)
{
	int fd = vgpu_ledger_open_again(ledger);
	int result = -1;
	if (fd < 0)
		return -1;
	/* In place of the first mapping, at its address, for whoever reads it just now. Not inherited by a fork's child,
	 * which would keep the lock after our death. */
	if (vgpu_byte_lock(fd, slot) == 0 &&
	    mmap(ledger->map, sizeof *ledger->map, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) != MAP_FAILED)
		result = madvise(ledger->map, sizeof *ledger->map, MADV_DONTFORK);
	int error = errno;
	vgpu_close(fd);
	errno = error;
	return result;
}

void vgpu_ledger_let_go(struct vgpu_ledger *ledger)
{
	int fd = vgpu_ledger_fd(ledger);
	if (fd >= 0 &&
	    mmap(ledger->map, sizeof *ledger->map, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) != MAP_FAILED)
		madvise(ledger->map, sizeof *ledger->map, MADV_DONTFORK);
}

bool vgpu_ledger_unlinked(const struct vgpu_ledger *ledger)
{
	struct stat st;
	return vgpu_stat(ledger->path, &st, false) != 0 || st.st_dev != ledger->dev || st.st_ino != ledger->ino;
}

/* ---- locks ----------------------------------------------------------------------------------------------------------- */

/* Waits for a lock, longer and longer at a time: a thousand processes that start together and look every moment would
 * keep its holder from the processor. False where that is of no use: the kernel frees a dead holder's lock; only a
 * stopped one makes us give up, or a system that has no such locks or does not let us have them. */
static bool wait_more(int error, uint64_t until, uint64_t *pause)
{
	if ((error != EAGAIN && error != EACCES) || vgpu_now_ns() >= until)
		return false;
	vgpu_pause_ns(*pause);
	if (*pause < LAST_PAUSE_NS)
		*pause *= 2;
	return true;
}

typedef bool condition(const struct vgpu_ledger *ledger, const char *uuid);

/* Take a lock, or find while it is somebody else's that it is no longer needed. */
enum locked { LOCKED, NEEDLESS, NOT_LOCKED };

static enum locked lock_unless(struct vgpu_ledger *ledger, int (*lock)(int fd, off_t byte), off_t byte,
                               condition *needless, const char *uuid)
{
	int fd = vgpu_ledger_fd(ledger);
	uint64_t until = vgpu_now_ns() + WAIT_NS, pause = FIRST_PAUSE_NS;
	int error = 0;
	do {
		if (fd < 0)
			return NOT_LOCKED;
		if (lock(fd, byte) == 0)
			return LOCKED;
		error = errno;
		if (needless(ledger, uuid))
			return NEEDLESS;
	} while (wait_more(error, until, &pause));
	return NOT_LOCKED;
}

static void unlock(const struct vgpu_ledger *ledger, off_t byte)
{
	if (is_this_file(ledger, ledger->fd))
		vgpu_byte_unlock(ledger->fd, byte);
}

static bool is_gone(const struct vgpu_ledger *ledger, const char *uuid)
{
	(void)uuid;
	return vgpu_ledger_unlinked(ledger);
}

int vgpu_ledger_keep(struct vgpu_ledger *ledger)
{
	return lock_unless(ledger, vgpu_byte_lock_shared, PTG_LOCK_REMOVE, is_gone, NULL) == LOCKED ? 0 : -1;
}

void vgpu_ledger_kept(struct vgpu_ledger *ledger)
{
	unlock(ledger, PTG_LOCK_REMOVE);
}

/* ---- the file ------------------------------------------------------------------------------------------------------- */

/* Give every byte of the file a place on the disk. */
static int take_room(int fd, const struct stat *st)
{
	struct rlimit limit;
	if ((uint64_t)st->st_size >= sizeof(struct ptg_ledger) &&
	    (uint64_t)st->st_blocks * 512 >= sizeof(struct ptg_ledger))
		return 0;
	/* Growing past this limit is a signal that kills the program, not only an error. */
	if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur < sizeof(struct ptg_ledger)) {
		errno = EFBIG;
		return -1;
	}
	if (syscall(SYS_fallocate, fd, 0, (off_t)0, (off_t)sizeof(struct ptg_ledger)) == 0)
		return 0;
	if (errno != EOPNOTSUPP && errno != ENOSYS)
		return -1;
	if ((uint64_t)st->st_size >= sizeof(struct ptg_ledger))
		return 0;
	static const char zeros[4096];
	for (size_t at = 0; at < sizeof(struct ptg_ledger); at += sizeof zeros)
		if (syscall(SYS_pwrite64, fd, zeros, sizeof zeros, (off_t)at) != (ssize_t)sizeof zeros)
			return -1;
	return 0;
}

/* Under the set-up lock: an empty file, or one whose maker died before the magic was written. */
static int initialise(int fd)
{
	struct ptg_ledger *map;
	uint64_t magic = 0;
	struct stat st;
	if (vgpu_fstat(fd, &st) != 0)
		return -1;
	if (st.st_size > 0 && (vgpu_pread(fd, &magic, sizeof magic, 0) < 0 || magic != 0))
		return 0;
	if (take_room(fd, &st) != 0)
		return -1;
	map = mmap(NULL, sizeof *map, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (map == MAP_FAILED)
		return -1;
	/* What lies behind a magic that was never written is nobody's charge. */
	if (st.st_size > 0)
		memset(map, 0, sizeof *map);
	map->layout = PTG_LEDGER_LAYOUT;
	map->size = sizeof *map;
	map->nslots = PTG_SLOTS;
	__atomic_store_n(&map->magic, PTG_LEDGER_MAGIC, __ATOMIC_RELEASE);
	munmap(map, sizeof *map);
	return 0;
}

static int check_header(const struct ptg_ledger *map, const char *path, char reason[VGPU_REASON_MAX])
{
	if (__atomic_load_n(&map->magic, __ATOMIC_ACQUIRE) != PTG_LEDGER_MAGIC)
		return refuse(reason, "%.200s is not a ledger; name another file or remove it", path);
	if (map->layout != PTG_LEDGER_LAYOUT || map->size != sizeof *map || map->nslots != PTG_SLOTS)
		return refuse(reason, "ledger %.200s has layout %u of %u bytes, this library needs layout %u of %zu",
		              path, map->layout, map->size, PTG_LEDGER_LAYOUT, sizeof *map);
	if (__atomic_load_n(&map->ndev, __ATOMIC_ACQUIRE) > PTG_DEVICES)
		return refuse(reason, "ledger %.200s counts %u devices, more than %u", path, map->ndev, PTG_DEVICES);
	return 0;
}

/* Somebody else has made it. */
static bool is_made(const struct vgpu_ledger *ledger, const char *uuid)
{
	uint64_t magic = 0;
	(void)uuid;
	return vgpu_pread(ledger->fd, &magic, sizeof magic, 0) == sizeof magic && magic != 0;
}

/* An empty or unfinished file is made whole; a short one that is neither is refused. */
static int make_whole(struct vgpu_ledger *ledger, char reason[VGPU_REASON_MAX])
{
	struct stat st;
	uint64_t magic = 0;
	int result = 0;
	if (vgpu_fstat(ledger->fd, &st) != 0)
		return refuse(reason, "ledger %.200s: %s", ledger->path, strerror(errno));
	if (st.st_size >= (off_t)sizeof magic && vgpu_pread(ledger->fd, &magic, sizeof magic, 0) < 0)
		return refuse(reason, "ledger %.200s cannot be read: %s", ledger->path, strerror(errno));
	if (magic == 0) {
		enum locked locked = lock_unless(ledger, vgpu_byte_lock, PTG_LOCK_SETUP, is_made, NULL);
		if (locked == NOT_LOCKED)
			return refuse(
			        reason,
			        "ledger %.200s: its set-up lock is held for more than 5 s, or locks are not allowed",
			        ledger->path);
		if (locked == LOCKED) {
			result = initialise(ledger->fd);
			int error = errno;
			unlock(ledger, PTG_LOCK_SETUP);
			errno = error;
		}
	}
	if (result == 0 && vgpu_fstat(ledger->fd, &st) == 0 && st.st_size < (off_t)sizeof(struct ptg_ledger))
		return refuse(reason, "ledger %.200s has %lld bytes of %zu", ledger->path, (long long)st.st_size,
		              sizeof(struct ptg_ledger));
	if (result != 0 || take_room(ledger->fd, &st) != 0)
		return refuse(reason, "ledger %.200s: no room for %zu bytes: %s", ledger->path,
		              sizeof(struct ptg_ledger), strerror(errno));
	return 0;
}

int vgpu_ledger_open(struct vgpu_ledger *ledger, char reason[VGPU_REASON_MAX])
{
	struct stat st;
	int flags = O_RDWR | O_NOFOLLOW | O_NONBLOCK | (ledger->create ? O_CREAT : 0);
	ledger->map = NULL;
	ledger->fd = vgpu_open(AT_FDCWD, ledger->path, flags, 0600);
	if (ledger->fd < 0)
		return refuse(reason, "ledger %.200s cannot be opened for reading and writing: %s", ledger->path,
		              strerror(errno));
	if (vgpu_fstat(ledger->fd, &st) != 0 || !S_ISREG(st.st_mode)) {
		vgpu_close(ledger->fd);
		ledger->fd = -1;
		return refuse(reason, "ledger %.200s is not a regular file", ledger->path);
	}
	ledger->dev = st.st_dev;
	ledger->ino = st.st_ino;
	set_fd(ledger, vgpu_move_high(ledger->fd));
	if (make_whole(ledger, reason) != 0) {
		vgpu_ledger_close(ledger);
		return -1;
	}
	void *map = mmap(NULL, sizeof *ledger->map, PROT_READ | PROT_WRITE, MAP_SHARED, ledger->fd, 0);
	if (map == MAP_FAILED || madvise(map, sizeof *ledger->map, MADV_DONTFORK) != 0) {
		int error = errno;
		if (map != MAP_FAILED)
			munmap(map, sizeof *ledger->map);
		vgpu_ledger_close(ledger);
		return refuse(reason, "ledger %.200s cannot be mapped: %s", ledger->path, strerror(error));
	}
	ledger->map = map;
	if (check_header(ledger->map, ledger->path, reason) != 0) {
		vgpu_ledger_close(ledger);
		return -1;
	}
	return 0;
}

void vgpu_ledger_close(struct vgpu_ledger *ledger)
{
	if (is_this_file(ledger, ledger->fd))
		vgpu_close(ledger->fd);
	set_fd(ledger, -1);
	if (ledger->map)
		munmap(ledger->map, sizeof *ledger->map);
	ledger->map = NULL;
}

/* ---- a ledger without an agent ---------------------------------------------------------------------------------------- */

static uint64_t hash(uint64_t seed, const void *bytes, size_t count)
{
	const unsigned char *at = bytes;
	while (count--)
		seed = (seed ^ *at++) * UINT64_C(0x100000001b3);
	return seed;
}

static uint64_t limit_set(const struct vgpu_env *env)
{
	uint64_t h = hash(UINT64_C(0xcbf29ce484222325), &env->all, sizeof env->all);
	for (int i = 0; i < VGPU_ORDINALS_MAX; i++) {
		uint64_t limit = vgpu_env_limit(env, i);
		h = hash(h, &limit, sizeof limit);
	}
	return h;
}

/* A directory of this user's that nobody else can enter; a link in its place is not followed. */
static bool own_directory(const char *path)
{
	struct stat st;
	if (syscall(SYS_mkdirat, AT_FDCWD, path, 0700) != 0 && errno != EEXIST)
		return false;
	if (vgpu_stat(path, &st, false) != 0)
		return false;
	if (S_ISDIR(st.st_mode) && st.st_uid == geteuid() && (st.st_mode & 077) == 0)
		return true;
	errno = EPERM;
	return false;
}

/* The file that HAMi's users name. It may be anybody's, so it is made, but not removed. */
static int named_path(struct vgpu_ledger *ledger, const char *named, char reason[VGPU_REASON_MAX])
{
	char *path = ledger->path, *slash;
	if (snprintf(path, VGPU_PATH_MAX, "%s", named) >= VGPU_PATH_MAX)
		return refuse(reason, "CUDA_DEVICE_MEMORY_SHARED_CACHE is longer than %d bytes", VGPU_PATH_MAX);
	slash = strrchr(path, '/');
	if (slash && slash != path) {
		*slash = '\0';
		syscall(SYS_mkdirat, AT_FDCWD, path, 0700);
		*slash = '/';
	}
	return 0;
}

int vgpu_ledger_standalone_path(struct vgpu_ledger *ledger, const struct vgpu_env *env, char reason[VGPU_REASON_MAX])
{
	const char *named = secure_getenv("CUDA_DEVICE_MEMORY_SHARED_CACHE");
	ledger->create = true;
	if (named && *named)
		return named_path(ledger, named, reason);
	char dir[VGPU_PATH_MAX - 64];
	const char *runtime = secure_getenv("XDG_RUNTIME_DIR");
	bool found = runtime && *runtime == '/' && snprintf(dir, sizeof dir, "%s/partage", runtime) < (int)sizeof dir &&
	             own_directory(dir);
	if (!found) {
		snprintf(dir, sizeof dir, "/tmp/partage-%u", (unsigned)geteuid());
		if (!own_directory(dir))
			return refuse(reason,
			              "%s cannot hold the ledger, it must be a directory of mode 0700 of user %u: %s",
			              dir, (unsigned)geteuid(), strerror(errno));
	}
	ledger->removable = true;
	snprintf(ledger->path, VGPU_PATH_MAX, "%s/ledger%d-%016llx", dir, PTG_LEDGER_LAYOUT,
	         (unsigned long long)limit_set(env));
	return 0;
}

/* ---- devices' lines ----------------------------------------------------------------------------------------------------- */

static int find_device(const struct ptg_ledger *map, const char *uuid)
{
	uint32_t count = __atomic_load_n(&map->ndev, __ATOMIC_ACQUIRE);
	for (uint32_t i = 0; i < count && i < PTG_DEVICES; i++)
		if (strncmp(map->uuid[i], uuid, PTG_UUID_SIZE) == 0)
			return (int)i;
	return -1;
}

static bool has_device(const struct vgpu_ledger *ledger, const char *uuid)
{
	return find_device(ledger->map, uuid) >= 0;
}

int vgpu_ledger_claim_device(struct vgpu_ledger *ledger, const char *uuid)
{
	struct ptg_ledger *map = ledger->map;
	int index = find_device(map, uuid);
	if (index >= 0)
		return index;
	enum locked locked = lock_unless(ledger, vgpu_byte_lock, PTG_LOCK_SETUP, has_device, uuid);
	if (locked == NOT_LOCKED)
		return -2;
	index = find_device(map, uuid);
	if (locked == NEEDLESS)
		return index;
	uint32_t count = __atomic_load_n(&map->ndev, __ATOMIC_ACQUIRE);
	if (index < 0 && count < PTG_DEVICES) {
		memset(map->uuid[count], 0, PTG_UUID_SIZE);
		memcpy(map->uuid[count], uuid, strnlen(uuid, PTG_UUID_SIZE - 1));
		__atomic_store_n(&map->ndev, count + 1, __ATOMIC_RELEASE);
		index = (int)count;
	}
	unlock(ledger, PTG_LOCK_SETUP);
	return index;
}

int vgpu_ledger_claim_policy(struct vgpu_ledger *ledger, const struct ptg_policy *policy, char reason[VGPU_REASON_MAX])
{
	struct ptg_ledger *map = ledger->map;
	for (uint32_t i = 0; i < policy->ndev; i++) {
		int index = vgpu_ledger_claim_device(ledger, policy->device[i].uuid);
		if (index == -2)
			return refuse(
			        reason,
			        "ledger %.200s: its set-up lock is held for more than 5 s, or locks are not allowed",
			        ledger->path);
		if (index != (int)i)
			return refuse(reason,
			              "ledger %.200s counts device %u as %.63s, the policy as %.63s; it belongs to "
			              "another grant",
			              ledger->path, i, map->uuid[i], policy->device[i].uuid);
	}
	return 0;
}
