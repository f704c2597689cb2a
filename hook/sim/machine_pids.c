/* machine_pids.c: which process a client is, as each pid namespace counts it.
 *
 * A client in a container knows its pid there, and a reader elsewhere (NVML on the host) must know the one on the host,
 * as a real driver tells it. The kernel knows both: it translates the owner of a *traditional* record lock into the pid
 * namespace of whoever asks (fcntl(2), F_GETLK), also between containers, users and mount namespaces, with no rights and
 * without /proc. So each client holds a read lock on a byte of its own in the file `pids` beside the machine; the byte
 * belongs to slot and generation, so that a predecessor that is still dying is never mistaken for it. Called by
 * machine_clients.c (announce) and NVML (sim_client_pid).
 *
 * What can go wrong: such a lock goes away with *any* descriptor of its file that the process closes. Hence a file of
 * its own, which nothing here ever closes; where a program closes all descriptors, the lock is taken again together with
 * the machine file's. Until then, and where the file cannot be had, a client is known in its own pid namespace only.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include "machine_local.h"

#define PIDS_FILE "pids"

static pthread_mutex_t pids_mutex = PTHREAD_MUTEX_INITIALIZER;
static int pids_fd = -1;
static dev_t pids_device;
static ino_t pids_inode;

static void after_fork_in_child(void)
{
	pthread_mutex_init(&pids_mutex, NULL);
}

static bool is_pids_file(int fd)
{
	struct stat st;

	return fd >= 0 && fstat(fd, &st) == 0 && st.st_ino == pids_inode && st.st_dev == pids_device;
}

/* Under pids_mutex. Not closed where it is no longer ours: it is the program's then. */
static int open_pids(void)
{
	static bool handler;
	struct stat st;

	if (is_pids_file(pids_fd))
		return pids_fd;
	if (!handler)
		handler = pthread_atfork(NULL, NULL, after_fork_in_child) == 0;
	int fd = sim_machine_open_beside(PIDS_FILE);
	if (fd >= 0 && fstat(fd, &st) == 0) {
		pids_device = st.st_dev;
		pids_inode = st.st_ino;
	}
	pids_fd = fd;
	return fd;
}

/* The file's descriptor; -1: there is none. errno is the program's. */
static int pids(void)
{
	int saved = errno;

	pthread_mutex_lock(&pids_mutex);
	int fd = open_pids();
	pthread_mutex_unlock(&pids_mutex);
	errno = saved;
	return fd;
}

static struct flock byte_of(int slot, short type)
{
	uint64_t generation = __atomic_load_n(&sim_machine->client[slot].generation, __ATOMIC_ACQUIRE);

	return (struct flock){.l_type = type,
	                      .l_whence = SEEK_SET,
	                      .l_start = (off_t)(generation * SIM_CLIENTS + (uint64_t)slot),
	                      .l_len = 1};
}

void sim_pid_announce(int slot)
{
	struct flock lock = byte_of(slot, F_RDLCK);
	int fd = pids();

	if (fd < 0 || fcntl(fd, F_SETLK, &lock) < 0)
		sim_log("client slot %d: cannot tell its pid to other pid namespaces (file `" PIDS_FILE "`)", slot);
}

static uint64_t own_namespace(void)
{
	struct stat st;

	return stat("/proc/self/ns/pid", &st) == 0 ? st.st_ino : 0;
}

int sim_client_pid(int slot)
{
	const struct sim_client *client = &sim_machine->client[slot];
	struct flock lock = byte_of(slot, F_WRLCK);
	int fd = pids();

	/* One's own locks are not in one's way, and so do not show. */
	if (fd >= 0 && fcntl(fd, F_GETLK, &lock) == 0 && lock.l_type != F_UNLCK)
		return lock.l_pid;
	return client->pid_ns == own_namespace() ? client->pid : 0;
}
