/* machine.c: finds, makes and maps the file that is the simulated machine (machine.h).
 *
 * Called by cuInit, nvmlInit and whoever needs sim_machine. Many processes may start at once: making the file happens
 * under the OFD lock SIM_LOCK_SETUP and its magic is stored last, so a maker that dies leaves a file that the next one
 * makes anew. What can go wrong: a directory that somebody else planted in /tmp, a file that is no machine, one of
 * another layout, one with impossible contents, no space, no profile of that name. Each is a reason in sim_log() and
 * -1, never a crash.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "machine_local.h"
#include "partage/names.h"
#include "profile.h"

#define MACHINE_FILE "machine"
#define REAL_NODE    "/dev/nvidiactl"

struct sim_machine *sim_machine;

static pthread_mutex_t open_mutex = PTHREAD_MUTEX_INITIALIZER;
static char machine_path[PATH_MAX];
static bool machine_dir_given;
static ino_t machine_inode; /* of the mapped file; 0 before there is one */

void sim_log(const char *format, ...)
{
	const char *target = getenv("PARTAGE_SIM_LOG");
	char text[1024];
	va_list args;
	int saved = errno;

	if (!target || !*target)
		return;
	int n = snprintf(text, sizeof text, "partage-sim[%d]: ", (int)getpid());
	va_start(args, format);
	n += vsnprintf(text + n, sizeof text - (size_t)n - 1, format, args);
	va_end(args);
	if (n > (int)sizeof text - 2)
		n = (int)sizeof text - 2;
	text[n++] = '\n';
	bool to_stderr = !strcmp(target, "1") || !strcmp(target, "stderr");
	int fd = to_stderr ? STDERR_FILENO : open(target, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (fd >= 0 && write(fd, text, (size_t)n) < 0)
		errno = 0; /* a full disk must not become the program's error */
	if (fd >= 0 && !to_stderr)
		close(fd);
	errno = saved;
}

uint64_t sim_now(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* A simulated card's node is a plain file, also where it was mounted to the place of a real one. */
static bool is_device_node(const char *path)
{
	struct stat st;

	return stat(path, &st) == 0 && S_ISCHR(st.st_mode);
}

bool sim_real_driver_refuses(const char *what)
{
	const char *force = getenv("PARTAGE_SIM_FORCE"), *probe = getenv("PARTAGE_SIM_REAL_DRIVER_PROBE");

	if (force && *force)
		return false;
	if (probe && *probe ? access(probe, F_OK) != 0
	                    : !is_device_node(REAL_NODE) && access("/proc/driver/nvidia/version", F_OK) != 0)
		return false;
	sim_log("%s: a real NVIDIA driver is on this machine; the simulated one runs beside it only where "
	        "PARTAGE_SIM_FORCE=1 is set",
	        what);
	return true;
}

/* ---- OFD locks -------------------------------------------------------------------------------------------------- */

static int byte_op(int fd, int command, short type, long byte, struct flock *lock)
{
	int result;

	*lock = (struct flock){.l_type = type, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
	do
		result = fcntl(fd, command, lock);
	while (result < 0 && errno == EINTR);
	return result;
}

bool sim_byte_lock(int fd, long byte, bool wait)
{
	struct flock lock;

	return byte_op(fd, wait ? F_OFD_SETLKW : F_OFD_SETLK, F_WRLCK, byte, &lock) == 0;
}

void sim_byte_unlock(int fd, long byte)
{
	struct flock lock;

	byte_op(fd, F_OFD_SETLK, F_UNLCK, byte, &lock);
}

bool sim_byte_free(int fd, long byte)
{
	struct flock lock;

	return byte_op(fd, F_OFD_GETLK, F_WRLCK, byte, &lock) == 0 && lock.l_type == F_UNLCK;
}

/* ---- where the file is ------------------------------------------------------------------------------------------ */

/* A machine that root made for all users: it is there whatever the environment says, as a real card is. */
static bool has_system_machine(void)
{
	struct stat st;

	return stat(PARTAGE_SIM_SYSTEM_DIRECTORY, &st) == 0 && S_ISDIR(st.st_mode) && !(st.st_mode & 022) &&
	       access(PARTAGE_SIM_SYSTEM_DIRECTORY "/" MACHINE_FILE, F_OK) == 0;
}

static bool choose_path(void)
{
	const char *given = getenv("PARTAGE_SIM_DIR"), *runtime = getenv("XDG_RUNTIME_DIR");
	int n;

	if (!(given && *given) && has_system_machine())
		given = PARTAGE_SIM_SYSTEM_DIRECTORY;
	machine_dir_given = given && *given;
	if (machine_dir_given)
		n = snprintf(machine_path, sizeof machine_path, "%s", given);
	else if (runtime && *runtime == '/')
		n = snprintf(machine_path, sizeof machine_path, "%s/partage-sim", runtime);
	else
		n = snprintf(machine_path, sizeof machine_path, "/tmp/partage-sim-%u", (unsigned)geteuid());
	if (n >= (int)sizeof machine_path) {
		sim_log("the directory of the simulated machine has a name of %d bytes; set PARTAGE_SIM_DIR to a "
		        "shorter one",
		        n);
		return false;
	}
	return true;
}

/* The directory, made if missing. One that we chose ourselves must be ours alone: in /tmp anybody can plant a name. */
static int open_directory(void)
{
	struct stat st;

	if (mkdir(machine_path, 0700) < 0 && errno != EEXIST) {
		sim_log("%s: cannot make the directory: %s; set PARTAGE_SIM_DIR", machine_path, strerror(errno));
		return -1;
	}
	int fd = open(machine_path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | (machine_dir_given ? 0 : O_NOFOLLOW));
	if (fd < 0 || fstat(fd, &st) < 0) {
		sim_log("%s: cannot open the directory: %s; set PARTAGE_SIM_DIR", machine_path, strerror(errno));
		if (fd >= 0)
			close(fd);
		return -1;
	}
	if (!machine_dir_given && (st.st_uid != geteuid() || (st.st_mode & 022))) {
		sim_log("%s: owned by uid %u with mode %04o, must be uid %u and not writable by others; set "
		        "PARTAGE_SIM_DIR",
		        machine_path, (unsigned)st.st_uid, (unsigned)st.st_mode & 07777, (unsigned)geteuid());
		close(fd);
		return -1;
	}
	return fd;
}

static int open_file(int directory, const char *name, int access, struct stat *st)
{
	int fd = openat(directory, name, access | O_CREAT | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, 0600);

	if (fd < 0 || fstat(fd, st) < 0) {
		sim_log("%s/%s: cannot open: %s", machine_path, name, strerror(errno));
		if (fd >= 0)
			close(fd);
		return -1;
	}
	if (!S_ISREG(st->st_mode) || st->st_nlink != 1 || (!machine_dir_given && st->st_uid != geteuid())) {
		sim_log("%s/%s: not a regular file with one name owned by uid %u", machine_path, name,
		        (unsigned)geteuid());
		close(fd);
		return -1;
	}
	return fd;
}

int sim_machine_reopen(void)
{
	struct stat st;
	int directory = open_directory();

	if (directory < 0)
		return -1;
	int fd = open_file(directory, MACHINE_FILE, O_RDWR, &st);
	close(directory);
	if (fd >= 0 && machine_inode && st.st_ino != machine_inode) {
		sim_log("%s/" MACHINE_FILE ": was replaced while this process used it; start the program again",
		        machine_path);
		close(fd);
		return -1;
	}
	machine_inode = fd >= 0 ? st.st_ino : machine_inode;
	return fd;
}

int sim_machine_open_beside(const char *name)
{
	struct stat st;
	int directory = open_directory();

	if (directory < 0)
		return -1;
	int fd = open_file(directory, name, O_RDONLY, &st);
	close(directory);
	return fd;
}

bool sim_is_machine_file(int fd)
{
	struct stat st;
	int saved = errno;
	bool is = fstat(fd, &st) == 0 && st.st_ino == machine_inode && S_ISREG(st.st_mode);

	errno = saved;
	return is;
}

/* ---- making and checking it ------------------------------------------------------------------------------------- */

static bool terminated(const char *text, size_t size)
{
	return memchr(text, 0, size) != NULL;
}

static bool power_of_two(uint64_t n)
{
	return n && !(n & (n - 1));
}

static bool model_is_sane(const struct sim_device_model *m)
{
	return terminated(m->name, sizeof m->name) && strstr(m->name, "SIMULATED") &&
	       terminated(m->uuid, sizeof m->uuid) && terminated(m->pci, sizeof m->pci) && m->memory > m->reserved &&
	       m->memory < UINT64_C(1) << 40 && power_of_two(m->granule) && m->granule >= 4096 &&
	       m->granule <= UINT64_C(1) << 30 && m->pool_granule && m->pool_granule % m->granule == 0 &&
	       m->pool_granule < UINT64_C(1) << 40 && power_of_two(m->pitch) && m->pitch <= m->granule && m->sms &&
	       m->ncosts <= SIM_COSTS;
}

static bool machine_is_sane(const struct sim_machine *m)
{
	if (m->ndev > SIM_DEVICES || !terminated(m->profile, sizeof m->profile) ||
	    !terminated(m->driver, sizeof m->driver) || !terminated(m->nodes.directory, sizeof m->nodes.directory)) {
		sim_log("%s/" MACHINE_FILE ": impossible contents (%u devices, at most %d); remove it", machine_path,
		        m->ndev, SIM_DEVICES);
		return false;
	}
	for (uint32_t i = 0; i < m->ndev; i++) {
		if (!model_is_sane(&m->model[i])) {
			sim_log("%s/" MACHINE_FILE
			        ": device %u has impossible values; remove the file or mend its profile",
			        machine_path, i);
			return false;
		}
	}
	return true;
}

static struct sim_machine *map_file(int fd)
{
	void *p = mmap(NULL, sizeof(struct sim_machine), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	if (p == MAP_FAILED) {
		sim_log("%s/" MACHINE_FILE ": cannot map %zu bytes: %s", machine_path, sizeof(struct sim_machine),
		        strerror(errno));
		return NULL;
	}
	return p;
}

static struct sim_machine *make_machine(int fd)
{
	const char *profile = getenv("PARTAGE_SIM");

	if (!profile || !*profile)
		profile = SIM_DEFAULT_PROFILE;
	if (ftruncate(fd, 0) < 0 || ftruncate(fd, sizeof(struct sim_machine)) < 0) {
		sim_log("%s/" MACHINE_FILE ": cannot grow it to %zu bytes: %s", machine_path,
		        sizeof(struct sim_machine), strerror(errno));
		return NULL;
	}
	struct sim_machine *m = map_file(fd);
	if (!m)
		return NULL;
	if (sim_profile_fill(m, profile) < 0 || !machine_is_sane(m)) {
		sim_log("PARTAGE_SIM=%s: no such profile, or one with impossible values; `partage sim list` shows them",
		        profile);
		munmap(m, sizeof *m);
		if (ftruncate(fd, 0) < 0)
			sim_log("%s/" MACHINE_FILE ": cannot empty it: %s", machine_path, strerror(errno));
		return NULL;
	}
	m->layout = SIM_MACHINE_LAYOUT;
	m->size = sizeof *m;
	__atomic_store_n(&m->magic, SIM_MACHINE_MAGIC, __ATOMIC_RELEASE);
	return m;
}

/* Under SIM_LOCK_SETUP. */
static struct sim_machine *adopt_or_make(int fd)
{
	struct {
		uint64_t magic;
		uint32_t layout, size;
	} head = {0};
	struct stat st;

	if (fstat(fd, &st) < 0)
		return NULL;
	if (st.st_size == 0)
		return make_machine(fd);
	if (pread(fd, &head, sizeof head, 0) != (ssize_t)sizeof head ||
	    (head.magic && head.magic != SIM_MACHINE_MAGIC)) {
		sim_log("%s/" MACHINE_FILE ": not a simulated machine; remove it or set PARTAGE_SIM_DIR", machine_path);
		return NULL;
	}
	if (head.magic && (head.layout != SIM_MACHINE_LAYOUT || head.size != sizeof(struct sim_machine))) {
		sim_log("%s/" MACHINE_FILE
		        ": layout %u of %u bytes, this driver knows layout %u of %zu; remove it when no program "
		        "uses it",
		        machine_path, head.layout, head.size, SIM_MACHINE_LAYOUT, sizeof(struct sim_machine));
		return NULL;
	}
	if (st.st_size != (off_t)sizeof(struct sim_machine)) {
		sim_log("%s/" MACHINE_FILE ": %lld bytes, must be %zu; remove it", machine_path, (long long)st.st_size,
		        sizeof(struct sim_machine));
		return NULL;
	}
	if (!head.magic)
		return make_machine(fd); /* its maker died */
	struct sim_machine *m = map_file(fd);
	if (m && !machine_is_sane(m)) {
		munmap(m, sizeof *m);
		return NULL;
	}
	return m;
}

static struct sim_machine *open_machine(void)
{
	struct sim_machine *m = NULL;

	machine_inode = 0;
	if (!choose_path())
		return NULL;
	/* The mapped description and the locked one must differ, see machine_local.h. */
	int mapped = sim_machine_reopen(), locked = sim_machine_reopen();
	if (mapped >= 0 && locked >= 0) {
		if (sim_byte_lock(locked, SIM_LOCK_SETUP, true))
			m = adopt_or_make(mapped);
		else
			sim_log("%s/" MACHINE_FILE ": cannot lock it: %s", machine_path, strerror(errno));
	}
	if (mapped >= 0)
		close(mapped);
	if (locked >= 0)
		close(locked); /* drops the setup lock too */
	return m;
}

/* A child inherits the mutex as its parent's other threads held it. */
static void after_fork_in_child(void)
{
	pthread_mutex_init(&open_mutex, NULL);
}

int sim_machine_open(void)
{
	static bool handler;

	if (__atomic_load_n(&sim_machine, __ATOMIC_ACQUIRE))
		return 0;
	pthread_mutex_lock(&open_mutex);
	if (!handler)
		handler = pthread_atfork(NULL, NULL, after_fork_in_child) == 0;
	if (!sim_machine)
		__atomic_store_n(&sim_machine, open_machine(), __ATOMIC_RELEASE);
	pthread_mutex_unlock(&open_mutex);
	return sim_machine ? 0 : -1;
}
