/* K03, C018, D5: of four processes in one container two are killed again and again, at any moment, and come back. The other
 * two go on allocating and freeing: after every step of theirs, their slot is where it was and says what they hold.
 */
#include "grant.h"

#define LIVE   16
#define ROUNDS 1500
#define KILLS  60

static uint64_t *rounds; /* shared: what the mortal ones have done */

static void one_step(CUdeviceptr live[LIVE], uint64_t bytes[LIVE], unsigned *seed, uint64_t *mine)
{
	unsigned at = (unsigned)rand_r(seed) % LIVE;
	if (live[at] != 0) {
		OK(cuMemFree_v2(live[at]));
		live[at] = 0;
		*mine -= bytes[at];
		return;
	}
	bytes[at] = GRANULE * (1 + (unsigned)rand_r(seed) % 64);
	CUresult error = cuMemAlloc_v2(&live[at], bytes[at]);
	CHECK(error == CUDA_SUCCESS || error == CUDA_ERROR_OUT_OF_MEMORY, "error %d", (int)error);
	if (error != CUDA_SUCCESS)
		live[at] = 0;
	else
		*mine += bytes[at];
}

static void mortal(int in, int out)
{
	CUdeviceptr live[LIVE] = {0};
	uint64_t bytes[LIVE], mine = 0;
	unsigned seed = (unsigned)getpid();
	(void)in;
	start(0);
	player_answer(out, 0);
	for (;;) {
		one_step(live, bytes, &seed, &mine);
		__atomic_add_fetch(rounds, 1, __ATOMIC_RELAXED);
	}
}

static int slot_of(const struct ptg_ledger *ledger, pid_t pid)
{
	for (int i = 0; i < PTG_SLOTS; i++)
		if (ledger->slot[i].state == PTG_SLOT_USED && ledger->slot[i].pid == pid)
			return i;
	return -1;
}

static void survivor(int in, int out)
{
	CUdeviceptr live[LIVE] = {0};
	uint64_t bytes[LIVE], mine = 0;
	unsigned seed = (unsigned)getpid();
	(void)in;
	start(0);
	CUdeviceptr first;
	OK(cuMemAlloc_v2(&first, GRANULE));
	struct ptg_ledger *ledger = share_map(grant_path("share", "ledger"), sizeof(*ledger));
	int slot = slot_of(ledger, getpid());
	CHECK(slot >= 0, "no slot");
	player_answer(out, 0);
	for (int i = 0; i < ROUNDS; i++) {
		one_step(live, bytes, &seed, &mine);
		uint64_t has =
		        (__atomic_load_n(&ledger->slot[slot].device[0].done, __ATOMIC_ACQUIRE) >> PTG_USED_SHIFT) *
		        PTG_UNIT;
		CHECK(ledger->slot[slot].pid == getpid() && ledger->slot[slot].state == PTG_SLOT_USED,
		      "round %d: slot %d is no longer mine", i, slot);
		CHECK(has == mine + GRANULE, "round %d: the slot says %lu, held are %lu", i, (unsigned long)has,
		      (unsigned long)(mine + GRANULE));
	}
	for (int i = 0; i < LIVE; i++)
		if (live[i] != 0)
			OK(cuMemFree_v2(live[i]));
	player_answer(out, mine);
	player_next(in);
}

static uint64_t answer_of(const struct player *p)
{
	uint64_t answer;
	CHECK(read(p->from, &answer, sizeof(answer)) == sizeof(answer), "a process failed");
	return answer;
}

int main(void)
{
	struct player b, d, dying[2];
	alarm(100); /* whoever waits for the dead must not outlive the test */
	unsetenv("CUDA_DEVICE_MEMORY_LIMIT");
	rounds = mmap(NULL, sizeof(*rounds), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	scene("make the machine", touch);
	grant("share", &(struct granted){0, 2 * GIB}, 1);
	dying[0] = player_start(mortal);
	answer_of(&dying[0]);
	b = player_start(survivor);
	answer_of(&b);
	dying[1] = player_start(mortal);
	answer_of(&dying[1]);
	d = player_start(survivor);
	answer_of(&d);
	for (unsigned i = 0; i < KILLS; i++) {
		uint64_t until = __atomic_load_n(rounds, __ATOMIC_RELAXED) + i % 7;
		while (__atomic_load_n(rounds, __ATOMIC_RELAXED) < until)
			CHECK(waitpid(dying[i % 2].pid, NULL, WNOHANG) == 0, "a mortal one failed by itself");
		player_end(&dying[i % 2], true);
		dying[i % 2] = player_start(mortal);
		answer_of(&dying[i % 2]);
	}
	answer_of(&b);
	answer_of(&d);
	player_end(&dying[0], true);
	player_end(&dying[1], true);
	player_end(&b, false);
	player_end(&d, false);
	CHECK(peak() <= 2 * GIB, "%lu bytes were held", (unsigned long)peak());
	start(0);
	CUdeviceptr all;
	OK(cuMemAlloc_v2(&all, 2 * GIB));
	CHECK(held(0) == 2 * GIB, "the dead still hold: %lu", (unsigned long)held(0));
	return 0;
}
