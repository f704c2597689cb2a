/* Slots: a stable place per process, known by (pid, start time, pid namespace), held by a lock that no closing of
 * descriptors loses, given back after death and never while its process lives. */
#include "world.h"

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>

static void charge_100(void)
{
	CHECK(vgpu_reserve(0, 100 * MIB) == CUDA_SUCCESS, "100 MiB refused: %s", vgpu_reason());
}

static int slot_of(pid_t pid)
{
	struct ptg_ledger *map = world_ledger();
	for (int i = 0; i < PTG_SLOTS; i++)
		if (map->slot[i].state == PTG_SLOT_USED && map->slot[i].pid == pid)
			return i;
	return -1;
}

static uint64_t charged_by(int slot, unsigned device)
{
	struct ptg_ledger *map = world_ledger();
	return (uint64_t)ptg_word_used(ptg_load(&map->slot[slot].device[device].done)) * PTG_UNIT;
}

static void wants_all(void)
{
	CHECK(vgpu_reserve(0, 10 * GIB) == CUDA_ERROR_OUT_OF_MEMORY, "10 GiB of 1 granted");
}

/* Four processes, two of them die: the others' places and numbers stay what they were. */
static void stability(void)
{
	struct actor actor[4];
	int slot[4];
	for (int i = 0; i < 4; i++) {
		actor[i] = actor_start(charge_100);
		slot[i] = slot_of(actor[i].pid);
		CHECK(slot[i] >= 0, "process %d has no slot", i);
		CHECK(charged_by(slot[i], 0) == 100 * MIB, "its slot says %llu",
		      (unsigned long long)charged_by(slot[i], 0));
	}
	actor_kill(&actor[0]);
	actor_kill(&actor[2]);
	scene("a refusal sweeps", wants_all);
	CHECK(slot_of(actor[1].pid) == slot[1] && slot_of(actor[3].pid) == slot[3],
	      "a living process's slot has moved");
	CHECK(charged_by(slot[1], 0) == 100 * MIB && charged_by(slot[3], 0) == 100 * MIB,
	      "a living process's charge has changed");
	CHECK(world_used(0) == 200 * MIB && world_sum(0) == 200 * MIB, "%llu bytes used after two of four died",
	      (unsigned long long)world_used(0));
	actor_end(&actor[1]);
	actor_end(&actor[3]);
}

/* A new process finds what a former life left gone before it is shown anything of its own. */
static void restart(void)
{
	charge_100();
	CHECK(vgpu_used(0) == 100 * MIB, "%llu bytes used by a process that has charged 100 MiB alone",
	      (unsigned long long)vgpu_used(0));
}

static uint64_t own_start_time(void)
{
	struct vgpu_identity self;
	vgpu_identify(&self);
	return self.start_time;
}

/* Puts a slot there as if `pid` had taken it and lost its lock. */
static int forge_slot(pid_t pid, uint64_t start_time, uint64_t pid_ns)
{
	struct ptg_ledger *map = world_ledger();
	int index = (int)map->high++;
	struct ptg_slot *slot = &map->slot[index];
	slot->pid = pid;
	slot->start_time = start_time;
	slot->pid_ns = pid_ns;
	slot->state = PTG_SLOT_USED;
	CHECK(ptg_add(map, 0, (unsigned)index, 1000, NULL), "forging");
	return index;
}

static void identity(void)
{
	struct vgpu_identity self;
	scene("makes the ledger", charge_100);
	vgpu_identify(&self);
	CHECK(self.pid == getpid() && self.start_time && self.pid_ns, "identity is incomplete");
	int same = forge_slot(getpid(), self.start_time, self.pid_ns);
	int reused = forge_slot(getpid(), self.start_time + 1, self.pid_ns);
	int elsewhere = forge_slot(getpid(), self.start_time, self.pid_ns + 1);
	int gone = forge_slot(0x3ffffff, 1, self.pid_ns);
	scene("a refusal sweeps", wants_all);
	CHECK(world_ledger()->slot[same].state == PTG_SLOT_USED && charged_by(same, 0),
	      "a living process without its lock lost its slot");
	CHECK(world_ledger()->slot[reused].state == PTG_SLOT_FREE && !charged_by(reused, 0),
	      "another start time is another process");
	CHECK(world_ledger()->slot[elsewhere].state == PTG_SLOT_FREE, "the pid of another namespace says nothing");
	CHECK(world_ledger()->slot[gone].state == PTG_SLOT_FREE, "nobody has that pid");
	CHECK(world_sum(0) == world_used(0), "the sum has drifted");
	world_ledger()->slot[same].start_time = 1;
	scene("a refusal sweeps", wants_all);
	CHECK(world_used(0) == 0, "%llu bytes left", (unsigned long long)world_used(0));
}

/* D7: a process's name may look like the rest of its stat line. */
static void odd_name(void)
{
	CHECK(pthread_setname_np(pthread_self(), "a) Z 1 (X 2") == 0, "name");
	charge_100();
	CHECK(vgpu_process_alive(getpid(), own_start_time()), "taken for dead because of its name");
}

static void close_everything(void)
{
	charge_100();
	wants_all();
	for (int fd = 3; fd < 4096; fd++)
		if (fcntl(fd, F_GETFD) >= 0 && fcntl(fd, F_GETFL) >= 0 && !(fcntl(fd, F_GETPIPE_SZ) > 0))
			close(fd);
}

static void closing(void)
{
	struct actor actor = actor_start(close_everything);
	int slot = slot_of(actor.pid);
	/* As a viewer in another namespace would see it: only the lock tells. */
	world_ledger()->slot[slot].pid_ns = 1;
	scene("a refusal sweeps", wants_all);
	CHECK(slot_of(actor.pid) == slot && charged_by(slot, 0) == 100 * MIB, "closing descriptors lost the slot");
	actor_kill(&actor);
	scene("a refusal sweeps", wants_all);
	CHECK(world_used(0) == 0, "%llu bytes left of the dead", (unsigned long long)world_used(0));
}

/* The descriptor that is left for other locks was closed, and its number is another file's now. A viewer in another pid
 * namespace would be deceived first: only the lock tells it who lives. */
static void stolen_descriptor(void)
{
	charge_100();
	wants_all();
	for (int fd = 3; fd < 1024; fd++) {
		char path[64], target[512];
		snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
		ssize_t n = readlink(path, target, sizeof target - 1);
		if (n > 0 && (target[n] = '\0', strstr(target, "/ledger"))) {
			int other = open(world_path("bystander"), O_RDWR | O_CREAT, 0600);
			CHECK(dup2(other, fd) == fd, "dup2");
			close(other);
		}
	}
	struct actor actor = actor_start(charge_100);
	int slot = slot_of(actor.pid);
	world_ledger()->slot[slot].pid_ns = 1;
	wants_all();
	CHECK(charged_by(slot, 0) == 100 * MIB, "a lock on a bystander's file was taken for a living process's");
	actor_kill(&actor);
	wants_all();
	CHECK(vgpu_used(0) == 100 * MIB, "%llu bytes used", (unsigned long long)vgpu_used(0));
}

enum { SHORT_LIVES = 300 };

static int held_locks[PTG_SLOTS];

/* Every slot is somebody's: the locks are real, one description each. */
static void fill_table(void)
{
	struct ptg_ledger *map = world_ledger();
	for (int i = 0; i < PTG_SLOTS; i++) {
		held_locks[i] = open(world_path("ledger"), O_RDWR | O_CLOEXEC);
		CHECK(held_locks[i] >= 0, "descriptor %d", i);
		if (vgpu_byte_lock(held_locks[i], i) == 0)
			map->slot[i].state = PTG_SLOT_USED;
	}
	map->high = PTG_SLOTS;
}

static void finds_no_room(void)
{
	CHECK(vgpu_reserve(0, MIB) == CUDA_ERROR_OUT_OF_MEMORY, "charged without a slot");
	CHECK(vgpu_mode() == VGPU_CLOSED && strstr(vgpu_reason(), "slots are taken"), "mode %d, reason \"%s\"",
	      vgpu_mode(), vgpu_reason());
}

static void finds_the_one(void)
{
	charge_100();
	CHECK(slot_of(getpid()) == 700, "took slot %d", slot_of(getpid()));
}

static void full_table(void)
{
	scene("makes the ledger", charge_100);
	fill_table();
	scene("no room", finds_no_room);
	close(held_locks[700]);
	scene("one has died", finds_the_one);
	for (int i = 0; i < PTG_SLOTS; i++)
		if (i != 700)
			close(held_locks[i]);
}

/* Short processes, one after the other, leave nothing behind and stay in the same few slots. */
static void short_lives(void)
{
	for (int i = 0; i < SHORT_LIVES; i++) {
		pid_t pid = fork();
		CHECK(pid >= 0, "fork");
		if (pid == 0) {
			charge_100();
			_exit(0);
		}
		int status;
		CHECK(waitpid(pid, &status, 0) == pid && status == 0, "short process %d ended with %#x", i, status);
	}
	CHECK(world_used(0) == 100 * MIB, "%llu bytes: more than the last one's", (unsigned long long)world_used(0));
	CHECK(world_ledger()->high <= 2, "slots up to %u were used by one process at a time", world_ledger()->high);
	CHECK(world_ledger()->slot[0].generation + world_ledger()->slot[1].generation >= SHORT_LIVES,
	      "generations do not count");
}

/* The container's pid 1 dies and is started again in a fresh pid namespace on the same ledger. */
static void pid_one(void)
{
	for (int life = 0; life < 3; life++) {
		int status;
		pid_t pid = (pid_t)syscall(SYS_clone, CLONE_NEWPID | SIGCHLD, NULL, NULL, NULL, NULL);
		if (pid < 0)
			SKIP("no right to make a pid namespace");
		if (pid == 0) {
			/* No handlers have run: as raw a child as there is. */
			CHECK(getpid() == 1, "pid %d", getpid());
			charge_100();
			CHECK(vgpu_used(0) == 100 * MIB, "life %d starts with %llu bytes", life,
			      (unsigned long long)(vgpu_used(0) - 100 * MIB));
			kill(getpid(), SIGKILL);
			_exit(0);
		}
		CHECK(waitpid(pid, &status, 0) == pid && status == 0, "life %d ended with %#x", life, status);
	}
}

static void rings(void)
{
	scene("makes the ledger", charge_100);
	uint32_t before = world_ledger()->doorbell;
	scene("takes a slot", charge_100);
	CHECK(world_ledger()->doorbell == before + 1, "the doorbell was not rung");
}

int main(void)
{
	static const struct {
		const char *name;
		void (*body)(void);
	} parts[] = {{"stability", stability},   {"identity", identity}, {"closing", closing},
	             {"full table", full_table}, {"doorbell", rings},    {"short lives", short_lives},
	             {"pid 1", pid_one}};
	for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
		NOTE("%s", parts[i].name);
		world_begin();
		world_share(GIB);
		parts[i].body();
	}
	world_begin();
	world_share(GIB);
	scene("odd name", odd_name);
	scene("restart", restart);
	scene("restart", restart);
	scene("stolen descriptor", stolen_descriptor);
	return 0;
}
