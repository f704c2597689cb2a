/* proc.c: the operating system as the accounting needs it: who am I, who is alive, locks, raw calls.
 *
 * Called by ledger.c, slot.c, policy.c, setup.c and charge.c. Every call here is made with the process's own lock held
 * at one time or another, so none is a point of cancellation (a thread cancelled inside would leave the lock taken) and
 * none waits for another process without a bound. */
#include "core.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* Out of the way of programs that count on low numbers, and of select(). */
#define HIGH_DESCRIPTOR 960

#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18
#endif
#ifndef F_OFD_SETLK
#define F_OFD_GETLK 36
#define F_OFD_SETLK 37
#endif

int vgpu_open(int dirfd, const char *path, int flags, mode_t mode)
{
	return (int)syscall(SYS_openat, dirfd, path, flags | O_CLOEXEC | O_NOCTTY, mode);
}

void vgpu_close(int fd)
{
	syscall(SYS_close, fd);
}

int vgpu_move_high(int fd)
{
	struct rlimit limit;
	int lowest = HIGH_DESCRIPTOR;
	if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur <= HIGH_DESCRIPTOR + 16)
		lowest = (int)(limit.rlim_cur > 64 ? limit.rlim_cur - 32 : limit.rlim_cur / 2);
	int high = (int)syscall(SYS_fcntl, fd, F_DUPFD_CLOEXEC, lowest);
	if (high < 0)
		return fd;
	vgpu_close(fd);
	return high;
}

ssize_t vgpu_pread(int fd, void *to, size_t count, off_t at)
{
	return syscall(SYS_pread64, fd, to, count, at);
}

/* libc's stat has a symbol version of 2.33; the kernel's structure is libc's on every 64-bit machine. */
int vgpu_stat(const char *path, struct stat *st, bool follow)
{
	return (int)syscall(SYS_newfstatat, AT_FDCWD, path, st, follow ? 0 : AT_SYMLINK_NOFOLLOW);
}

int vgpu_fstat(int fd, struct stat *st)
{
	return (int)syscall(SYS_fstat, fd, st);
}

uint64_t vgpu_now_ns(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

void vgpu_pause_ns(uint64_t ns)
{
	struct timespec wait = {.tv_sec = (time_t)(ns / 1000000000u), .tv_nsec = (long)(ns % 1000000000u)};
	syscall(SYS_nanosleep, &wait, NULL);
}

/* ---- locks of files and words that others see -------------------------------------------------------------------- */

void vgpu_futex_wake(uint32_t *word, int count)
{
	syscall(SYS_futex, word, FUTEX_WAKE, count, NULL, NULL, 0);
}

static int byte_lock(int fd, off_t byte, short type)
{
	struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
	return (int)syscall(SYS_fcntl, fd, F_OFD_SETLK, &lock);
}

int vgpu_byte_lock(int fd, off_t byte)
{
	return byte_lock(fd, byte, F_WRLCK);
}

int vgpu_byte_lock_shared(int fd, off_t byte)
{
	return byte_lock(fd, byte, F_RDLCK);
}

bool vgpu_byte_locked(int fd, off_t byte)
{
	struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
	return syscall(SYS_fcntl, fd, F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

void vgpu_byte_unlock(int fd, off_t byte)
{
	byte_lock(fd, byte, F_UNLCK);
}

/* ---- this process and others ----------------------------------------------------------------------------------------- */

/* What /proc/<pid>/stat says. The name may hold blanks and parentheses, so fields are counted behind the last ')'. */
struct stat_line {
	char name[16];
	char state;
	unsigned long threads;
	uint64_t start_time;
};

static bool read_stat(const char *path, struct stat_line *out)
{
	char text[1024];
	int fd = vgpu_open(AT_FDCWD, path, O_RDONLY, 0);
	if (fd < 0)
		return false;
	ssize_t n = vgpu_pread(fd, text, sizeof text - 1, 0);
	vgpu_close(fd);
	if (n <= 0)
		return false;
	text[n] = '\0';
	char *open = strchr(text, '('), *close = strrchr(text, ')');
	if (!open || !close || close < open)
		return false;
	size_t length = (size_t)(close - open - 1);
	memset(out, 0, sizeof *out);
	memcpy(out->name, open + 1, length < sizeof out->name ? length : sizeof out->name - 1);
	int field = 2;
	for (char *at = close + 1; *at; at++) {
		if (*at != ' ')
			continue;
		switch (++field) {
		case 3:
			out->state = at[1];
			break;
		case 20:
			out->threads = strtoul(at + 1, NULL, 10);
			break;
		case 22:
			out->start_time = strtoull(at + 1, NULL, 10);
			return true;
		default:
			break;
		}
	}
	return false;
}

int32_t vgpu_pid(void)
{
	return (int32_t)syscall(SYS_getpid);
}

void vgpu_identify(struct vgpu_identity *self)
{
	struct stat_line line;
	struct stat ns;
	memset(self, 0, sizeof *self);
	self->pid = vgpu_pid();
	if (read_stat("/proc/self/stat", &line)) {
		self->start_time = line.start_time;
		memcpy(self->name, line.name, sizeof self->name);
	}
	if (vgpu_stat("/proc/self/ns/pid", &ns, true) == 0)
		self->pid_ns = ns.st_ino;
}

/* Returns where the text ends. */
static char *decimal(char *to, uint32_t number)
{
	char digits[10];
	int n = 0;
	do
		digits[n++] = (char)('0' + number % 10);
	while (number /= 10);
	while (n)
		*to++ = digits[--n];
	*to = '\0';
	return to;
}

bool vgpu_process_alive(int32_t pid, uint64_t start_time)
{
	char path[32] = "/proc/";
	struct stat_line line;
	/* The number may be a thread's by now, which has a file in /proc too, and perhaps the same start time. */
	if (pid <= 0 || (syscall(SYS_tgkill, (long)pid, (long)pid, 0L) != 0 && errno == ESRCH))
		return false;
	memcpy(decimal(path + 6, (uint32_t)pid), "/stat", sizeof "/stat");
	errno = 0;
	if (!read_stat(path, &line))
		return errno != ENOENT && errno != ESRCH;
	if (line.start_time != start_time)
		return false;
	/* The first thread is a zombie as soon as it has ended, its siblings may still hold everything. */
	return (line.state != 'Z' && line.state != 'X') || line.threads > 1;
}

/* ---- who maps a file ------------------------------------------------------------------------------------------------- */

/* Lines of /proc/<pid>/maps one by one, through a small buffer: programs of this kind have thousands. */
struct maps {
	int fd;
	size_t begin, end;
	off_t at;
	char text[4096];
};

/* Cut off at the length of a buffer, which holds all that stands before the path. NULL at the end. */
static const char *next_line(struct maps *m)
{
	char *newline = memchr(m->text + m->begin, '\n', m->end - m->begin);
	if (!newline) {
		memmove(m->text, m->text + m->begin, m->end - m->begin);
		m->end -= m->begin;
		m->begin = 0;
		ssize_t n = vgpu_pread(m->fd, m->text + m->end, sizeof m->text - m->end, m->at);
		if (n <= 0)
			return NULL;
		m->at += n;
		m->end += (size_t)n;
		newline = memchr(m->text, '\n', m->end);
		if (!newline)
			newline = m->text + m->end - 1;
	}
	const char *line = m->text + m->begin;
	*newline = '\0';
	m->begin = (size_t)(newline - m->text) + 1;
	return line;
}

/* "08:01 1234", device and inode as this file lists them: stat() names another device on some file systems. */
static bool file_of_line(const char *line, char file[48])
{
	const char *at = line;
	for (int field = 0; at && field < 3; field++) {
		at = strchr(at, ' ');
		at += at != NULL;
	}
	const char *inode = at ? strchr(at, ' ') : NULL;
	size_t length = inode ? (size_t)(inode - at) + 1 + strspn(inode + 1, "0123456789") : 0;
	if (length == 0 || length >= 48)
		return false;
	memcpy(file, at, length);
	file[length] = '\0';
	return true;
}

/* Which file lies at an address of ours. */
static bool own_file(struct maps *m, uintptr_t address, char file[48])
{
	const char *line;
	while ((line = next_line(m)) != NULL) {
		char *end;
		uintptr_t from = strtoul(line, &end, 16);
		if (address >= from && *end == '-' && address < strtoul(end + 1, NULL, 16))
			return file_of_line(line, file);
	}
	return false;
}

static bool open_maps(struct maps *m, const char *path)
{
	m->begin = m->end = 0;
	m->at = 0;
	m->fd = vgpu_open(AT_FDCWD, path, O_RDONLY, 0);
	return m->fd >= 0;
}

bool vgpu_process_maps(int32_t pid, const void *address)
{
	char path[32] = "/proc/", wanted[48], seen[48];
	struct maps m;
	const char *line;
	bool there = true;
	if (!open_maps(&m, "/proc/self/maps"))
		return true;
	bool known = own_file(&m, (uintptr_t)address, wanted);
	vgpu_close(m.fd);
	memcpy(decimal(path + 6, (uint32_t)pid), "/maps", sizeof "/maps");
	if (!known || !open_maps(&m, path))
		return true;
	/* A list without a line is one that may not be read. */
	while ((line = next_line(&m)) != NULL) {
		there = file_of_line(line, seen) && strcmp(seen, wanted) == 0;
		if (there)
			break;
	}
	vgpu_close(m.fd);
	return there;
}

/* ---- fork ------------------------------------------------------------------------------------------------------------ */

void *vgpu_private_pages(size_t bytes)
{
	void *pages = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (pages == MAP_FAILED)
		return NULL;
	/* Refused by kernels before 4.14: there the handler below has to do. */
	madvise(pages, bytes, MADV_WIPEONFORK);
	return pages;
}

/* pthread_atfork is a static function of a newer libc's libc_nonshared.a; this is what it calls, in every glibc. */
extern int __register_atfork(void (*)(void), void (*)(void), void (*)(void), void *);

void vgpu_at_fork(void (*child)(void))
{
	__register_atfork(NULL, NULL, child, NULL);
}
