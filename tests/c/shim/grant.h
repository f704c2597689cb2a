/* grant.h: hand-over directories for the tests of charging: a policy that names devices of the machine by number, in any
 * order, an empty ledger, and the way in which an agent changes the policy while programs run. The machine must exist:
 * some process has called the driver. Every failure ends the test with the reason.
 */
#ifndef PARTAGE_TESTS_GRANT_H
#define PARTAGE_TESTS_GRANT_H

#include "kill/share.h"
#include <signal.h>

#include "shim_test.h"

struct granted {
	int device; /* of the machine */
	uint64_t memory;
};

static inline void grant_seal(struct ptg_policy *policy)
{
	policy->crc32c = share_crc32c((unsigned char *)&policy->generation,
	                              sizeof(*policy) - offsetof(struct ptg_policy, generation));
}

static inline struct ptg_policy grant_policy(const struct granted *granted, unsigned count)
{
	struct ptg_policy policy = {.magic = PTG_POLICY_MAGIC, .layout = PTG_POLICY_LAYOUT, .size = sizeof(policy)};
	policy.seq = 2;
	policy.generation = 1;
	policy.state = PTG_STATE_OPEN;
	policy.priority = 1;
	policy.enforcement = PTG_ENFORCE_SHIM;
	policy.ndev = count;
	for (unsigned i = 0; i < count; i++) {
		const struct sim_device_model *model = &machine()->model[granted[i].device];
		snprintf(policy.device[i].uuid, sizeof(policy.device[i].uuid), "%s", model->uuid);
		policy.device[i].memory = granted[i].memory;
		policy.device[i].physical = model->memory;
		policy.device[i].ceiling = 1000;
		policy.device[i].weight = 100;
		policy.device[i].context = model->context;
	}
	grant_seal(&policy);
	return policy;
}

/* The path of a file of a hand-over directory of this test. */
static inline const char *grant_path(const char *name, const char *file)
{
	static char path[4][512];
	static unsigned turn;
	char *to = path[turn++ % 4];
	snprintf(to, sizeof(path[0]), "%s/%s/%s", getenv("TEST_SCRATCH"), name, file);
	return to;
}

/* Makes the directory; children that start from now on find it. */
static inline void grant_hand_over(const char *name, const struct ptg_policy *policy)
{
	char path[512];
	snprintf(path, sizeof(path), "%s/%s", getenv("TEST_SCRATCH"), name);
	CHECK(mkdir(path, 0700) == 0, "mkdir %s", path);
	setenv("PARTAGE_DIR", path, 1);
	for (int ledger = 0; ledger < 2; ledger++) {
		const char *file = grant_path(name, ledger ? "ledger" : "policy");
		int fd = open(file, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
		CHECK(fd >= 0 && (ledger || write(fd, policy, sizeof(*policy)) == sizeof(*policy)), "%s", file);
		close(fd);
	}
}

static inline void grant(const char *name, const struct granted *granted, unsigned count)
{
	struct ptg_policy policy = grant_policy(granted, count);
	grant_hand_over(name, &policy);
}

/* In place under the sequence, as the agent does. */
static inline void grant_change(const char *name, struct ptg_policy policy)
{
	struct ptg_policy *map = share_map(grant_path(name, "policy"), sizeof(*map));
	uint32_t seq = map->seq;
	grant_seal(&policy);
	__atomic_store_n(&map->seq, seq | 1, __ATOMIC_SEQ_CST);
	memcpy(&map->generation, &policy.generation, sizeof(policy) - offsetof(struct ptg_policy, generation));
	map->crc32c = policy.crc32c;
	__atomic_store_n(&map->seq, (seq | 1) + 1, __ATOMIC_SEQ_CST);
	munmap(map, sizeof(*map));
}

/* Bytes that one process has charged to a device of the grant; UINT64_MAX where it has no slot. */
static inline uint64_t grant_charged_by(const char *name, pid_t pid, unsigned device)
{
	static struct ptg_ledger *ledger;
	static const char *of;
	if (of != name)
		ledger = share_map(grant_path(name, "ledger"), sizeof(*ledger));
	of = name;
	for (int i = 0; i < PTG_SLOTS; i++)
		if (ledger->slot[i].state == PTG_SLOT_USED && ledger->slot[i].pid == pid)
			return (__atomic_load_n(&ledger->slot[i].device[device].done, __ATOMIC_ACQUIRE) >>
			        PTG_USED_SHIFT) *
			       PTG_UNIT;
	return UINT64_MAX;
}

/* Runs in a process of its own; fails the test unless that exits 0. */
static inline void scene(const char *name, void (*body)(void))
{
	int status;
	pid_t pid = fork();
	CHECK(pid >= 0, "fork");
	if (pid == 0) {
		body();
		_exit(0);
	}
	CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0, "%s: status 0x%x", name,
	      status);
}

/* Makes the machine. */
static inline void touch(void)
{
	OK(cuInit(0));
}

/* A child that does its part whenever it is told to, and can be killed. */
struct player {
	pid_t pid;
	int to, from;
};

static inline struct player player_start(void (*body)(int in, int out))
{
	struct player p;
	int to[2], from[2];
	CHECK(pipe2(to, O_CLOEXEC) == 0 && pipe2(from, O_CLOEXEC) == 0, "pipe");
	p.pid = fork();
	CHECK(p.pid >= 0, "fork");
	if (p.pid == 0) {
		close(to[1]);
		close(from[0]);
		body(to[0], from[1]);
		_exit(0);
	}
	close(to[0]);
	close(from[1]);
	p.to = to[1];
	p.from = from[0];
	return p;
}

/* In the child: the next command, 0 at the end. */
static inline unsigned char player_next(int in)
{
	unsigned char command;
	return read(in, &command, 1) == 1 ? command : 0;
}

static inline void player_answer(int out, uint64_t answer)
{
	CHECK(write(out, &answer, sizeof(answer)) == sizeof(answer), "answer");
}

/* In the parent: one command, one answer. */
static inline uint64_t player_ask(const struct player *p, unsigned char command)
{
	uint64_t answer;
	CHECK(write(p->to, &command, 1) == 1, "command %u", command);
	CHECK(read(p->from, &answer, sizeof(answer)) == sizeof(answer), "no answer to command %u", command);
	return answer;
}

static inline void player_end(const struct player *p, bool with_kill)
{
	int status;
	if (with_kill)
		kill(p->pid, SIGKILL);
	else /* later players have copies of the pipe, so that closing it here would not be seen */
		CHECK(write(p->to, "", 1) == 1, "end");
	close(p->to);
	close(p->from);
	CHECK(waitpid(p->pid, &status, 0) == p->pid, "wait");
	CHECK(with_kill ? WIFSIGNALED(status) : status == 0, "a player ended with status 0x%x", status);
}

#endif
