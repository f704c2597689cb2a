/* K03, C015, C017: whoever holds the ledger's set-up lock is killed with it, while peers that start wait for it, again and
 * again and also in the middle of making the file. Every peer gets through and is held to the limit; what the dead one
 * had is given back, once, and nobody who asks meanwhile is refused; a slot that names a living process which never was its
 * owner keeps nobody waiting.
 */
#include "world.h"

#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>

enum { PEERS = 16, ROUNDS = 10 };

static int ready[2];

static void peer(void)
{
	alarm(60); /* a peer that waits for the dead must not outlive the test */
	CHECK(write(ready[1], "x", 1) == 1, "ready");
	CHECK(vgpu_reserve(0, MIB) == CUDA_SUCCESS, "%s", vgpu_reason());
	CHECK(vgpu_mode() == VGPU_LIMITED && vgpu_reserve(0, GIB) == CUDA_ERROR_OUT_OF_MEMORY, "not limited: %s",
	      vgpu_reason());
	exit(0);
}

static void start_peers(pid_t pid[PEERS])
{
	char byte;
	for (int i = 0; i < PEERS; i++) {
		pid[i] = fork();
		CHECK(pid[i] >= 0, "fork");
		if (pid[i] == 0)
			peer();
	}
	for (int i = 0; i < PEERS; i++)
		CHECK(read(ready[0], &byte, 1) == 1, "peer %d", i);
}

static void end_peers(const pid_t pid[PEERS], const char *when)
{
	for (int i = 0; i < PEERS; i++) {
		int status;
		CHECK(waitpid(pid[i], &status, 0) == pid[i] && status == 0, "%s: peer %d ended with %#x", when, i,
		      status);
	}
}

static void holds_the_lock(void)
{
	int fd = open(world_path("ledger"), O_RDWR | O_CLOEXEC);
	CHECK(fd >= 0 && vgpu_byte_lock(fd, PTG_LOCK_SETUP) == 0, "the set-up lock");
}

/* Half of the rounds find a ledger that is not made yet. */
static void killed_with_the_lock(void)
{
	pid_t pid[PEERS];
	for (int round = 0; round < ROUNDS; round++) {
		if (round % 2 == 0)
			world_write("ledger", "", 0);
		struct actor holder = actor_start(holds_the_lock);
		start_peers(pid);
		actor_kill(&holder);
		end_peers(pid, "the holder was killed");
		CHECK(world_sum(0) == world_used(0), "the sum has drifted");
	}
}

static void charges_half(void)
{
	CHECK(vgpu_reserve(0, GIB / 2) == CUDA_SUCCESS, "%s", vgpu_reason());
}

static void takes_all(void)
{
	CHECK(vgpu_reserve(0, GIB) == CUDA_SUCCESS, "%s", vgpu_reason());
}

static void counted(void)
{
	struct actor dead = actor_start(charges_half);
	uint32_t before = world_ledger()->reclaimed;
	actor_kill(&dead);
	scene("all of it can be had", takes_all);
	CHECK(world_ledger()->reclaimed == before + 1, "%u slots were reclaimed for one death",
	      world_ledger()->reclaimed - before);
}

/* As a crash, or a tenant, may leave it: the process number is that of somebody who lives, and is not the owner. */
static void somebody_elses_number(void)
{
	pid_t pid[PEERS];
	struct ptg_ledger *map = world_ledger();
	unsigned index = map->high++;
	map->slot[index].pid = getppid();
	map->slot[index].start_time = 1;
	map->slot[index].pid_ns = map->slot[0].pid_ns;
	map->slot[index].state = PTG_SLOT_USED;
	CHECK(ptg_add(map, 0, index, 1000, NULL), "forging");
	start_peers(pid);
	end_peers(pid, "a slot that names somebody else");
	scene("all of it can be had", takes_all);
}

/* All find that there is no room, one of them gives the dead one's memory back: the others have it, too. */
static void all_at_once(void)
{
	pid_t pid[PEERS];
	for (int round = 0; round < 3 * ROUNDS; round++) {
		struct actor dead = actor_start(takes_all);
		actor_kill(&dead);
		start_peers(pid);
		end_peers(pid, "what a dead process had is given back");
	}
}

int main(void)
{
	world_begin();
	world_share(GIB);
	CHECK(pipe2(ready, O_CLOEXEC) == 0, "pipe");
	killed_with_the_lock();
	counted();
	somebody_elses_number();
	all_at_once();
	return 0;
}
