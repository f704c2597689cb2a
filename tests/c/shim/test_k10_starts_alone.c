/* K10: processes that start at once under a limit of the environment share one ledger, which nobody makes for them and the
 * last one removes. We test: 200 of them all get their first block and none waits for another's start, and nothing is left
 * behind; somebody who is stopped while making the ledger, or while starting, keeps nobody from one that is made; a ledger
 * that is being removed is waited for, and not once it is gone or its remover dead.
 */
#include <dirent.h>
#include <signal.h>
#include <sys/prctl.h>

#include "grant.h"

#define STARTS 200

static const char *ledger_path(void)
{
	static char path[1024];
	char directory[512];
	snprintf(directory, sizeof(directory), "%s/partage", getenv("XDG_RUNTIME_DIR"));
	DIR *d = opendir(directory);
	path[0] = '\0';
	for (struct dirent *entry; d && (entry = readdir(d)) != NULL;)
		if (strncmp(entry->d_name, "ledger", 6) == 0)
			snprintf(path, sizeof(path), "%s/%s", directory, entry->d_name);
	if (d)
		closedir(d);
	return path[0] ? path : NULL;
}

static void is_served(void)
{
	alarm(60); /* a hang is a failure, not a wait */
	start(0);
	OK(cuMemAlloc_v2(&(CUdeviceptr){0}, 16 * MIB));
	IS(cuMemAlloc_v2(&(CUdeviceptr){0}, 4 * GIB), CUDA_ERROR_OUT_OF_MEMORY);
}

static void comes_and_goes(void)
{
	is_served();
	exit(0); /* with the library's own end */
}

static void first_block(struct crew *crew, unsigned index)
{
	(void)index;
	crew_wait(crew);
	comes_and_goes();
}

static void all_at_once(void)
{
	struct crew crew;
	crew_start(&crew, STARTS, first_block);
	crew_join(&crew);
	CHECK(peak() <= 4 * GIB, "%lu bytes were held", (unsigned long)peak());
	/* Of those that end together, none may have been the last one. */
	scene("alone", comes_and_goes);
	CHECK(ledger_path() == NULL, "%s was left behind", ledger_path());
}

/* A user of the ledger, which is there until it has ended. */
static pid_t user(void)
{
	int done[2];
	char byte;
	CHECK(pipe(done) == 0, "pipe");
	pid_t pid = fork();
	CHECK(pid >= 0, "fork");
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		is_served();
		alarm(0);
		CHECK(write(done[1], "x", 1) == 1, "served");
		for (;;)
			pause();
	}
	CHECK(read(done[0], &byte, 1) == 1, "the user is gone");
	close(done[0]);
	close(done[1]);
	return pid;
}

static int hold(off_t byte, short type)
{
	struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
	CHECK(ledger_path() != NULL, "there is no ledger");
	int fd = open(ledger_path(), O_RDWR | O_CLOEXEC);
	CHECK(fd >= 0 && fcntl(fd, F_OFD_SETLK, &lock) == 0, "byte %ld cannot be locked", (long)byte);
	return fd;
}

static void end(pid_t pid)
{
	CHECK(kill(pid, SIGKILL) == 0 && waitpid(pid, NULL, 0) == pid, "kill");
}

/* A child that keeps our description, and with it the lock, until it is killed. */
static pid_t keeper(int fd)
{
	pid_t pid = fork();
	CHECK(pid >= 0, "fork");
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		for (;;)
			pause();
	}
	close(fd);
	return pid;
}

static void starts_and_is_served(struct crew *crew, unsigned index)
{
	(void)index;
	crew_wait(crew);
	is_served();
}

static void removed(void)
{
	struct crew crew;
	pid_t one = user();
	pid_t remover = keeper(hold(PTG_LOCK_REMOVE, F_WRLCK));
	crew_start(&crew, 4, starts_and_is_served);
	end(remover);
	crew_join(&crew);
	int fd = hold(PTG_LOCK_REMOVE, F_WRLCK);
	CHECK(unlink(ledger_path()) == 0, "unlink");
	scene("it is gone, though its remover still has the lock", is_served);
	close(fd);
	end(one);
}

static void stopped(off_t byte, short type, const char *what)
{
	pid_t one = user();
	int fd = hold(byte, type);
	scene(what, is_served);
	close(fd);
	end(one);
}

int main(void)
{
	scene("make the machine", touch);
	all_at_once();
	stopped(PTG_LOCK_SETUP, F_WRLCK, "somebody is stopped with the set-up lock of a ledger that is made");
	stopped(PTG_LOCK_REMOVE, F_RDLCK, "somebody is stopped while it takes a slot");
	removed();
	return 0;
}
