/* policy.c: finds the container's policy file and takes checked copies of it.
 *
 * Called by setup.c at the first call and again whenever the file's sequence has moved. The file is written by the agent
 * or by the parent of `partage run`; we only map it for reading.
 * Where it is looked for, the first that applies:
 *   1. /run/partage, where that holds a policy, a turns file or a ledger: the container's hand-over. The environment
 *      cannot point elsewhere.
 *   2. PARTAGE_DIR.
 *   3. /run/partage, where that is a directory: a hand-over that nobody has filled.
 * What can go wrong: a place is named and no good policy lies in it (missing, unreadable, short, another layout, wrong
 * checksum, for ever half-written). The container is then closed; the reason names the file and what was found. */
#include "core.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "partage/abi_check.h"

#define RETRY_NS UINT64_C(1000000)

const char *vgpu_system_dir = "/run/partage";

uint32_t vgpu_crc32c(const void *bytes, size_t count)
{
	/* Castagnoli polynomial, reflected, four bits at a time: a policy is checked a few times in a process's life. */
	static const uint32_t table[16] = {
	        0x00000000, 0x105ec76f, 0x20bd8ede, 0x30e349b1, 0x417b1dbc, 0x5125dad3, 0x61c69362, 0x7198540d,
	        0x82f63b78, 0x92a8fc17, 0xa24bb5a6, 0xb21572c9, 0xc38d26c4, 0xd3d3e1ab, 0xe330a81a, 0xf36e6f75,
	};
	const unsigned char *at = bytes;
	uint32_t crc = UINT32_MAX;
	while (count--) {
		crc ^= *at++;
		crc = crc >> 4 ^ table[crc & 15];
		crc = crc >> 4 ^ table[crc & 15];
	}
	return ~crc;
}

/* ---- what makes a policy good ------------------------------------------------------------------------------------------ */

static const char *check_device(const struct ptg_policy *p, unsigned i)
{
	const struct ptg_policy_device *d = &p->device[i];
	if (d->uuid[0] == '\0' || !memchr(d->uuid, '\0', sizeof d->uuid))
		return "a device without a proper UUID";
	if (d->memory == 0)
		return "a device with a memory limit of 0";
	for (unsigned other = 0; other < i; other++)
		if (strcmp(p->device[other].uuid, d->uuid) == 0)
			return "the same device twice";
	return NULL;
}

static const char *check(const struct ptg_policy *p)
{
	if (p->magic != PTG_POLICY_MAGIC)
		return "not a policy file";
	if (p->layout != PTG_POLICY_LAYOUT || p->size != sizeof *p)
		return "another layout than this library's; use the library of the agent's version";
	if (vgpu_crc32c(&p->generation, sizeof *p - offsetof(struct ptg_policy, generation)) != p->crc32c)
		return "wrong checksum";
	if (p->ndev > PTG_DEVICES)
		return "more devices than a policy can hold";
	if (p->state != PTG_STATE_OPEN && p->state != PTG_STATE_CLOSED)
		return "an unknown state";
	if (p->share_class > PTG_CLASS_BEST_EFFORT)
		return "an unknown class";
	for (unsigned i = 0; i < p->ndev; i++) {
		const char *wrong = check_device(p, i);
		if (wrong)
			return wrong;
	}
	return NULL;
}

static const char *verify_once(const struct ptg_policy *map, struct ptg_policy *copy, uint32_t *seen)
{
	*seen = __atomic_load_n(&map->seq, __ATOMIC_ACQUIRE);
	if (*seen & 1)
		return "being written and never finished";
	/* Acquiring loads keep the second look at the sequence behind the copy. */
	typedef uint64_t __attribute__((may_alias)) word;
	const word *from = (const word *)map;
	word *to = (word *)copy;
	for (size_t i = 0; i < sizeof *copy / sizeof *to; i++)
		to[i] = __atomic_load_n(&from[i], __ATOMIC_ACQUIRE);
	if (__atomic_load_n(&map->seq, __ATOMIC_RELAXED) != *seen)
		return "changing all the time";
	return check(copy);
}

const char *vgpu_policy_verify(const struct ptg_policy *map, struct ptg_policy *copy, uint32_t *seen)
{
	uint64_t until = 0;
	for (;;) {
		const char *wrong = verify_once(map, copy, seen);
		if (!wrong)
			return NULL;
		uint64_t now = vgpu_now_ns();
		if (until == 0)
			until = now + RETRY_NS;
		else if (now >= until)
			return wrong;
	}
}

/* ---- where it lies ----------------------------------------------------------------------------------------------------- */

static bool there(const char *dir, const char *name)
{
	char path[VGPU_PATH_MAX];
	struct stat st;
	snprintf(path, sizeof path, "%s/%s", dir, name);
	/* Any answer but "no such file" means that somebody put something there. */
	return vgpu_stat(path, &st, false) == 0 || (errno != ENOENT && errno != ENOTDIR);
}

static bool is_directory(const char *path)
{
	struct stat st;
	return vgpu_stat(path, &st, true) == 0 ? S_ISDIR(st.st_mode) : errno != ENOENT && errno != ENOTDIR;
}

static const char *choose_directory(void)
{
	if (there(vgpu_system_dir, "policy") || there(vgpu_system_dir, "turns") || there(vgpu_system_dir, "ledger"))
		return vgpu_system_dir;
	const char *named = secure_getenv("PARTAGE_DIR");
	if (named && *named)
		return named;
	return is_directory(vgpu_system_dir) ? vgpu_system_dir : NULL;
}

/* Launches read the policy's gate word before anything else: it stays mapped in a fork's child until the handler of the fork
 * takes it away, which some ways to fork do not call.
 * Map a regular file of at least `size` bytes for reading; NULL with errno, 0 where its size or kind is wrong. */
static const void *map_file(const char *path, size_t size)
{
	struct stat st;
	int fd = vgpu_open(AT_FDCWD, path, O_RDONLY | O_NONBLOCK, 0);
	if (fd < 0)
		return NULL;
	void *map = MAP_FAILED;
	errno = 0;
	if (vgpu_fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && (uint64_t)st.st_size >= size)
		map = mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0);
	int error = errno;
	vgpu_close(fd);
	errno = error;
	if (map == MAP_FAILED)
		return NULL;
	return map;
}

enum vgpu_found vgpu_policy_find(char dir[VGPU_PATH_MAX], const struct ptg_policy **map, char reason[VGPU_REASON_MAX])
{
	char path[VGPU_PATH_MAX];
	const char *chosen = choose_directory();
	if (!chosen)
		return VGPU_NO_POLICY;
	if (snprintf(dir, VGPU_PATH_MAX, "%s", chosen) >= VGPU_PATH_MAX - 16) {
		snprintf(reason, VGPU_REASON_MAX, "PARTAGE_DIR is longer than %d bytes", VGPU_PATH_MAX - 16);
		return VGPU_UNUSABLE;
	}
	snprintf(path, sizeof path, "%s/policy", chosen);
	*map = map_file(path, sizeof **map);
	if (*map)
		return VGPU_POLICY;
	snprintf(reason, VGPU_REASON_MAX, "policy %.200s cannot be used: %s", path,
	         errno ? strerror(errno) : "not a regular file of the right size");
	return VGPU_UNUSABLE;
}

const struct ptg_turns *vgpu_turns_map(const char *dir)
{
	char path[VGPU_PATH_MAX];
	if (snprintf(path, sizeof path, "%s/turns", dir) >= (int)sizeof path)
		return NULL;
	const struct ptg_turns *turns = map_file(path, sizeof *turns);
	if (turns && (turns->magic != PTG_TURNS_MAGIC || turns->layout != PTG_TURNS_LAYOUT ||
	              turns->size != sizeof *turns || turns->ndev > PTG_DEVICES)) {
		munmap((void *)turns, sizeof *turns);
		return NULL;
	}
	if (turns) /* a fork's child maps it anew */
		madvise((void *)turns, sizeof *turns, MADV_DONTFORK);
	return turns;
}
