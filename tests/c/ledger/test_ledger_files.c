/* D19, K03: the ledger file: every way in which it can be unusable ends in a refusal with a reason, never in a fault, a hang or no
 * limit; an empty one is made whole by whoever comes first, also when many do. */
#include "world.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

static const char *expected_reason;

static void is_refused(void)
{
	CHECK(vgpu_reserve(0, 1) == CUDA_ERROR_OUT_OF_MEMORY, "a byte was granted");
	CHECK(vgpu_mode() == VGPU_CLOSED, "mode %d", vgpu_mode());
	CHECK(strstr(vgpu_reason(), expected_reason), "reason \"%s\" does not say \"%s\"", vgpu_reason(),
	      expected_reason);
	CHECK(vgpu_used(0) == 0 && vgpu_reserve(1, 1) == CUDA_ERROR_OUT_OF_MEMORY,
	      "the second call is answered otherwise");
	vgpu_charge(0, 1);
	vgpu_give_back(0, 1);
}

static void works(void)
{
	CHECK(vgpu_reserve(0, MIB) == CUDA_SUCCESS, "%s", vgpu_reason());
	CHECK(vgpu_reserve(0, GIB) == CUDA_ERROR_OUT_OF_MEMORY, "past the limit");
	CHECK(vgpu_used(0) == MIB, "%llu bytes used", (unsigned long long)vgpu_used(0));
}

static void refused_for(const char *what, const char *reason)
{
	expected_reason = reason;
	scene(what, is_refused);
}

static void contents(void)
{
	static struct ptg_ledger good, l;
	world_share(GIB);
	unlink(world_path("ledger"));
	refused_for("missing", "No such file");
	world_write("ledger", "", 0);
	scene("empty", works);
	memcpy(&good, world_ledger(), sizeof good);
	l = good;
	world_write("ledger", &l, 4096);
	refused_for("short", "4096 bytes of");
	world_write("ledger", "proc_num=2000", 13);
	refused_for("text", "13 bytes of");
	memset(&l, 'x', sizeof l);
	world_write("ledger", &l, sizeof l);
	refused_for("foreign", "not a ledger");
	l = good, l.layout = PTG_LEDGER_LAYOUT + 1;
	world_write("ledger", &l, sizeof l);
	refused_for("later layout", "has layout 3");
	l = good, l.nslots = 2000;
	world_write("ledger", &l, sizeof l);
	refused_for("more slots", "layout");
	l = good, l.ndev = 100000;
	world_write("ledger", &l, sizeof l);
	refused_for("more devices", "counts 100000 devices");
	l = good, memcpy(l.uuid[1], fake_uuid(3), PTG_UUID_SIZE);
	world_write("ledger", &l, sizeof l);
	refused_for("another grant's", "another grant");
	memset(&l, 0, sizeof l);
	world_write("ledger", &l, sizeof l);
	scene("its maker died before the magic", works);
	l = good, l.magic = 0;
	world_write("ledger", &l, 5000);
	scene("its maker died while it grew", works);
	l = good, l.high = UINT32_MAX, l.hint = UINT32_MAX - 1;
	world_write("ledger", &l, sizeof l);
	scene("scribbled on", works);
}

static void places(void)
{
	world_share(GIB);
	unlink(world_path("ledger"));
	CHECK(mkdir(world_path("ledger"), 0700) == 0, "mkdir");
	refused_for("a directory", "directory");
	rmdir(world_path("ledger"));
	world_write("elsewhere", "", 0);
	CHECK(symlink(world_path("elsewhere"), world_path("ledger")) == 0, "symlink");
	refused_for("a link", "cannot be opened");
	unlink(world_path("ledger"));
	CHECK(mkfifo(world_path("ledger"), 0600) == 0, "mkfifo");
	refused_for("a pipe", "not a regular file");
}

static void is_read_only(void)
{
	CHECK(setresuid(65534, 65534, 65534) == 0, "setresuid");
	is_refused();
}

static void read_only(void)
{
	world_share(GIB);
	scene("makes it", works);
	CHECK(chmod(world_path("ledger"), 0444) == 0 && chmod(world_dir, 0755) == 0 &&
	              chmod(world_path("policy"), 0444) == 0,
	      "chmod");
	CHECK(chmod(getenv("TEST_SCRATCH") ? getenv("TEST_SCRATCH") : "/tmp", 01777) == 0 || errno == EPERM, "chmod");
	expected_reason = "Permission denied";
	if (geteuid() == 0)
		scene("somebody else's", is_read_only);
	else
		scene("read-only", is_refused);
}

static void small_files_only(void)
{
	struct rlimit limit = {.rlim_cur = 65536, .rlim_max = 65536};
	CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0, "setrlimit");
	is_refused();
}

static void no_room(void)
{
	world_share(GIB);
	expected_reason = "no room";
	scene("a limit on the size of files", small_files_only);
	if (mount("none", world_dir, "tmpfs", 0, "size=512k") != 0)
		SKIP("no right to mount a small file system (the rest has passed)");
	world_share(GIB);
	scene("a full disk", is_refused);
	/* Made by an agent that did not take the room: touching it would be a SIGBUS. */
	CHECK(truncate(world_path("ledger"), sizeof(struct ptg_ledger)) == 0, "truncate");
	scene("a full disk under a file with holes", is_refused);
	umount2(world_dir, MNT_DETACH);
}

static void few_descriptors(void)
{
	struct rlimit limit = {.rlim_cur = 16, .rlim_max = 16};
	CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0, "setrlimit");
	works();
}

static void no_descriptors(void)
{
	struct rlimit limit = {.rlim_cur = 3, .rlim_max = 3};
	CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0, "setrlimit");
	CHECK(vgpu_mode() == VGPU_CLOSED && vgpu_reserve(0, 1) == CUDA_ERROR_OUT_OF_MEMORY, "free without descriptors");
}

static void descriptors(void)
{
	world_share(GIB);
	scene("sixteen descriptors", few_descriptors);
	scene("none left", no_descriptors);
}

/* 32 processes find an empty file at once, while makers are killed at random. */
static void first_comers(void)
{
	enum { COMERS = 32 };
	for (int round = 0; round < 20; round++) {
		pid_t pids[COMERS];
		int gate[2];
		world_write("ledger", "", 0);
		CHECK(pipe(gate) == 0, "pipe");
		for (int i = 0; i < COMERS; i++) {
			pids[i] = fork();
			CHECK(pids[i] >= 0, "fork");
			if (pids[i] == 0) {
				char byte;
				close(gate[1]);
				CHECK(read(gate[0], &byte, 1) == 0, "gate");
				CHECK(vgpu_reserve(0, MIB) == CUDA_SUCCESS, "%s", vgpu_reason());
				_exit(0);
			}
		}
		close(gate[1]);
		for (int i = 0; i < COMERS; i += 8) {
			sched_yield();
			kill(pids[i], SIGKILL);
		}
		for (int i = 0; i < COMERS; i++) {
			int status;
			CHECK(waitpid(pids[i], &status, 0) == pids[i], "waitpid");
			CHECK(status == 0 || (i % 8 == 0 && WIFSIGNALED(status)), "comer %d ended with %#x", i, status);
		}
		close(gate[0]);
		struct ptg_ledger *map = world_ledger();
		CHECK(map->ndev == 2 && strcmp(map->uuid[0], fake_uuid(0)) == 0 &&
		              strcmp(map->uuid[1], fake_uuid(1)) == 0,
		      "devices claimed twice or in another order");
		CHECK(world_sum(0) == world_used(0), "the sum has drifted");
		scene("the next", works);
	}
}

static void lock_is_kept(void)
{
	world_share(GIB);
	int fd = open(world_path("ledger"), O_RDWR | O_CLOEXEC);
	CHECK(vgpu_byte_lock(fd, PTG_LOCK_SETUP) == 0, "lock");
	refused_for("somebody keeps the set-up lock", "5 s");
	close(fd);
	scene("it was freed", works);
}

/* A tenant that cuts its own ledger short hurts the next comer with a refusal, not with a fault. */
static void truncated(void)
{
	world_share(GIB);
	scene("makes it", works);
	CHECK(truncate(world_path("ledger"), 8192) == 0, "truncate");
	refused_for("truncated", "8192 bytes of");
}

int main(void)
{
	static void (*const parts[])(void) = {contents,     places,       read_only, descriptors,
	                                      first_comers, lock_is_kept, truncated, no_room};
	for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
		NOTE("part %zu", i);
		world_begin();
		if (parts[i] == first_comers)
			world_share(GIB);
		parts[i]();
	}
	return 0;
}
