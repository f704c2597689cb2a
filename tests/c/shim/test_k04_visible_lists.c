/* K04, C023, D4: two processes of a container see its two cards in different lists, "1" and "1,0", and each takes a part of
 * every card that it sees. Nothing is refused that fits, each process has its own slot, and on each card the limit is that
 * card's: with limits from the environment, and under a policy.
 */
#include <nvml.h>

#include "grant.h"

#define LIMIT (4 * GIB)
#define PART  (1600 * MIB)

static const struct {
	const char *visible;
	int cards;
	int card[2]; /* of the machine, by ordinal */
} view[] = {{"1", 1, {1}}, {"1,0", 2, {1, 0}}};

static int which;

static void holder(int in, int out)
{
	CUcontext context[2];
	CUdeviceptr p;
	int count;
	setenv("CUDA_VISIBLE_DEVICES", view[which].visible, 1);
	OK(cuInit(0));
	OK(cuDeviceGetCount(&count));
	CHECK(count == view[which].cards, "%d devices of \"%s\"", count, view[which].visible);
	for (int d = 0; d < count; d++) {
		uint64_t before = held(view[which].card[d]);
		OK(cuDevicePrimaryCtxRetain(&context[d], d));
		OK(cuCtxSetCurrent(context[d]));
		OK(cuMemAlloc_v2(&p, PART));
		CHECK(held(view[which].card[d]) == before + PART, "ordinal %d of \"%s\" is not card %d", d,
		      view[which].visible, view[which].card[d]);
	}
	player_answer(out, 0);
	for (unsigned char command; (command = player_next(in)) != 0;) {
		OK(cuCtxSetCurrent(context[command - 1]));
		uint64_t got = 0; /* all that is left there, granule by granule */
		while (cuMemAlloc_v2(&p, 64 * MIB) == CUDA_SUCCESS)
			got += 64 * MIB;
		while (cuMemAlloc_v2(&p, GRANULE) == CUDA_SUCCESS)
			got += GRANULE;
		player_answer(out, got);
	}
}

static unsigned processes_on(unsigned card)
{
	nvmlDevice_t device;
	nvmlProcessInfo_t list[8];
	unsigned n = 8;
	CHECK(nvmlDeviceGetHandleByUUID(machine()->model[card].uuid, &device) == NVML_SUCCESS, "card %u", card);
	CHECK(nvmlDeviceGetComputeRunningProcesses_v3(device, &n, list) == NVML_SUCCESS, "processes of card %u", card);
	return n;
}

static void both_lists(void)
{
	struct player p[2];
	uint64_t answer;
	for (which = 0; which < 2; which++) {
		p[which] = player_start(holder);
		CHECK(read(p[which].from, &answer, sizeof(answer)) == sizeof(answer), "\"%s\" failed",
		      view[which].visible);
	}
	CHECK(nvmlInit_v2() == NVML_SUCCESS, "NVML");
	CHECK(processes_on(1) == 2 && processes_on(0) == 1, "%u processes on card 1, %u on card 0", processes_on(1),
	      processes_on(0));
	CHECK(held(1) == 2 * PART && held(0) == PART, "held %lu and %lu", (unsigned long)held(0),
	      (unsigned long)held(1));
	player_ask(&p[0], 1);
	CHECK(held(1) > LIMIT - GRANULE && held(1) <= LIMIT, "card 1 is full at %lu of %lu", (unsigned long)held(1),
	      (unsigned long)LIMIT);
	CHECK(player_ask(&p[1], 1) == 0, "the other process got more of a full card");
	player_ask(&p[1], 2);
	CHECK(held(0) > LIMIT - GRANULE && held(0) <= LIMIT, "card 0 is full at %lu of %lu", (unsigned long)held(0),
	      (unsigned long)LIMIT);
	player_end(&p[0], false);
	player_end(&p[1], false);
}

int main(void)
{
	scene("make the machine", touch);
	setenv("CUDA_DEVICE_MEMORY_LIMIT", "4g", 1);
	scene("limits of the environment", both_lists);
	unsetenv("CUDA_DEVICE_MEMORY_LIMIT");
	const struct granted both[] = {{0, LIMIT}, {1, LIMIT}};
	grant("share", both, 2);
	scene("a policy", both_lists);
	return 0;
}
