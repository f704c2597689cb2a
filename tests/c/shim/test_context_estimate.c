/* What nobody can measure from inside is settled as soon as somebody has. Contexts that were charged by a guess cost what
 * the policy says once it says so: created, primary and green ones, in a query and before a refusal. Code takes memory
 * that only the card knows: it is not loaded into a full share, and the watcher is rung for when it was.
 */
#include "grant.h"

#define GUESS   (256 * MIB)
#define CONTEXT (96 * MIB)
#define LIMIT   GIB

static struct ptg_policy policy;

static CUdevResourceDesc description(void)
{
	CUdevResource all;
	CUdevResourceDesc desc;
	OK(cuDeviceGetDevResource(0, &all, CU_DEV_RESOURCE_TYPE_SM));
	OK(cuDevResourceGenerateDesc(&desc, &all, 1));
	return desc;
}

/* The card is busy with others', so that the guess cannot be cut to what is in use. */
static void neighbour(int in, int out)
{
	CUdeviceptr p;
	unsetenv("PARTAGE_DIR");
	setenv("CUDA_DEVICE_MEMORY_LIMIT", "0m", 1);
	start(0);
	OK(cuMemAlloc_v2(&p, 4 * GIB));
	player_answer(out, 0);
	player_next(in);
}

static void measured(void)
{
	policy.device[0].context = CONTEXT;
	grant_change("share", policy);
}

static void settled(void)
{
	CUcontext second, old;
	CUgreenCtx green;
	CUdeviceptr p;
	start(0);
	CHECK(used() == GUESS, "one context by guess: %lu", (unsigned long)used());
	OK(cuCtxCreate_v2(&second, 0, 0));
	OK(cuCtxPopCurrent_v2(&old));
	OK(cuGreenCtxCreate(&green, description(), 0, 0));
	CHECK(used() == 3 * GUESS, "three contexts by guess: %lu", (unsigned long)used());
	measured();
	/* Asked for first: three guesses would not leave room for it. */
	OK(cuMemAlloc_v2(&p, LIMIT - 3 * CONTEXT));
	CHECK(used() == LIMIT, "three contexts as measured: %lu", (unsigned long)used());
	OK(cuMemFree_v2(p));
	OK(cuGreenCtxDestroy(green));
	CHECK(used() == 2 * CONTEXT, "two contexts: %lu", (unsigned long)used());
	OK(cuCtxDestroy_v2(second));
	OK(cuCtxCreate_v2(&second, 0, 0));
	OK(cuCtxPopCurrent_v2(&old));
	CHECK(used() == 2 * CONTEXT && held(0) - 4 * GIB == 3 * CONTEXT, "used %lu, the card has %lu",
	      (unsigned long)used(),
	      (unsigned long)(held(0) - 4 * GIB)); /* the neighbour's own context is there, too */
	OK(cuCtxDestroy_v2(second));
}

static void in_a_query(void)
{
	start(0);
	CHECK(used() == GUESS, "by guess: %lu", (unsigned long)used());
	measured();
	CHECK(used() == CONTEXT, "as measured: %lu", (unsigned long)used());
}

static void code(void)
{
	static const char image[] =
	        ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry nothing() { ret; }\n";
	CUmodule module;
	CUdeviceptr p;
	const struct ptg_ledger *ledger;
	measured();
	start(0);
	ledger = share_map(grant_path("share", "ledger"), sizeof(*ledger));
	OK(cuMemAlloc_v2(&p, LIMIT - CONTEXT));
	uint64_t calls = partage_sim_calls("cuModuleLoadData");
	IS(cuModuleLoadData(&module, image), CUDA_ERROR_OUT_OF_MEMORY);
	CHECK(partage_sim_calls("cuModuleLoadData") == calls, "the driver was asked for code that has no room");
	OK(cuMemFree_v2(p));
	OK(cuMemAlloc_v2(&p, LIMIT - CONTEXT - GRANULE));
	uint32_t rung = __atomic_load_n(&ledger->doorbell, __ATOMIC_ACQUIRE);
	OK(cuModuleLoadData(&module, image));
	CHECK(__atomic_load_n(&ledger->doorbell, __ATOMIC_ACQUIRE) != rung, "nobody was rung for");
	CHECK(used() == LIMIT - GRANULE, "the code is the watcher's to charge: %lu", (unsigned long)used());
	OK(cuModuleUnload(module));
}

int main(void)
{
	static const struct granted one = {0, LIMIT};
	uint64_t ready;
	scene("make the machine", touch);
	machine()->model[0].context = CONTEXT;
	policy = grant_policy(&one, 1);
	policy.device[0].context = PTG_CONTEXT_UNKNOWN;
	grant_seal(&policy);
	grant_hand_over("share", &policy);
	struct player other = player_start(neighbour);
	CHECK(read(other.from, &ready, sizeof(ready)) == sizeof(ready), "the neighbour failed");
	scene("contexts by guess are settled", settled);
	policy.device[0].context = PTG_CONTEXT_UNKNOWN;
	grant_change("share", policy);
	scene("also in a query", in_a_query);
	scene("code", code);
	player_end(&other, true);
	return 0;
}
