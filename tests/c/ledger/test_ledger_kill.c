/* kill -9 at any instruction: workers change the ledger as fast as they can and are killed at random points; after each
 * death the ledger equals what the worker had before or after its last change, and nobody waits. */
#include "world.h"

#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>

enum { WORKERS = 4, KILLS = 300, SLOTS = WORKERS };

/* What a worker says about itself, where its death leaves it readable. */
struct diary {
	uint64_t changes;
	uint64_t before, after; /* units before and after the change that is under way */
};

static struct shared {
	struct ptg_ledger ledger;
	struct diary diary[WORKERS];
} *shared;

static uint64_t next_random(uint64_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return *state;
}

static _Noreturn void work(unsigned slot, uint64_t seed)
{
	struct diary *diary = &shared->diary[slot];
	struct ptg_bound bound = {.limit = UINT64_C(20000) * PTG_UNIT};
	uint64_t mine = 0;
	for (;;) {
		uint32_t units = (uint32_t)(next_random(&seed) % 2000);
		bool up = next_random(&seed) & 1;
		uint64_t wanted = up ? mine + units : mine - (units < mine ? units : mine);
		__atomic_store_n(&diary->before, mine, __ATOMIC_SEQ_CST);
		__atomic_store_n(&diary->after, wanted, __ATOMIC_SEQ_CST);
		bool done = up ? ptg_add(&shared->ledger, 0, slot, units, &bound)
		               : ptg_subtract(&shared->ledger, 0, slot, units) == mine - wanted;
		CHECK(up || done, "slot %u could not give back what it has", slot);
		mine = done ? wanted : mine;
		__atomic_store_n(&diary->changes, diary->changes + 1, __ATOMIC_SEQ_CST);
	}
}

static pid_t start(unsigned slot, uint64_t seed)
{
	memset(&shared->diary[slot], 0, sizeof shared->diary[slot]);
	pid_t pid = fork();
	CHECK(pid >= 0, "fork");
	if (pid == 0)
		work(slot, seed | 1);
	return pid;
}

static void examine(unsigned slot)
{
	struct diary *diary = &shared->diary[slot];
	ptg_complete(&shared->ledger, 0, ptg_load(&shared->ledger.device[0].word));
	uint64_t has = ptg_word_used(ptg_load(&shared->ledger.slot[slot].device[0].done));
	CHECK(has == diary->before || has == diary->after, "slot %u has %llu, its owner had %llu or %llu", slot,
	      (unsigned long long)has, (unsigned long long)diary->before, (unsigned long long)diary->after);
	CHECK(ptg_subtract(&shared->ledger, 0, slot, UINT32_MAX) == has, "slot %u was not given back whole", slot);
}

int main(void)
{
	uint64_t seed = 0x9e3779b97f4a7c15u;
	pid_t pids[WORKERS];
	shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(shared != MAP_FAILED, "mmap");
	for (unsigned i = 0; i < WORKERS; i++)
		pids[i] = start(i, next_random(&seed));
	for (int round = 0; round < KILLS; round++) {
		unsigned victim = (unsigned)(next_random(&seed) % WORKERS);
		uint64_t enough = next_random(&seed) % 1000;
		while (__atomic_load_n(&shared->diary[victim].changes, __ATOMIC_SEQ_CST) < enough)
			CHECK(waitpid(pids[victim], NULL, WNOHANG) == 0, "worker %u has failed", victim);
		kill(pids[victim], SIGKILL);
		waitpid(pids[victim], NULL, 0);
		examine(victim);
		pids[victim] = start(victim, next_random(&seed));
	}
	for (unsigned i = 0; i < WORKERS; i++) {
		kill(pids[i], SIGKILL);
		waitpid(pids[i], NULL, 0);
	}
	uint64_t total = 0;
	ptg_complete(&shared->ledger, 0, ptg_load(&shared->ledger.device[0].word));
	for (unsigned i = 0; i < SLOTS; i++)
		total += ptg_word_used(shared->ledger.slot[i].device[0].done);
	CHECK(ptg_word_used(shared->ledger.device[0].word) == total, "the word says %u, the slots %llu",
	      ptg_word_used(shared->ledger.device[0].word), (unsigned long long)total);
	CHECK(total > 0, "nobody has charged anything: nothing was tested");
	for (unsigned i = 0; i < WORKERS; i++)
		examine(i);
	CHECK(ptg_word_used(shared->ledger.device[0].word) == 0, "%u units left of the dead",
	      ptg_word_used(shared->ledger.device[0].word));
	return 0;
}
