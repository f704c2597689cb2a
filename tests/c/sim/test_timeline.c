/* The shared line of engine time, with a clock in the test's hand: who is served, how much, and what is given back. */
#include "sim_test.h"
#include "timeline.h"

struct sim_machine *sim_machine;
static uint64_t now_ns = 1000000000;
static int slot;

uint64_t sim_now(void)
{
	return now_ns;
}

int sim_client_slot(void)
{
	return slot;
}

void sim_log(const char *format, ...)
{
	(void)format;
}

bool sim_meeting_met(uint64_t key, int device, uint64_t item, bool give_up)
{
	(void)key, (void)device, (void)item, (void)give_up;
	return false;
}

#define SLICE   UINT64_C(2000000)
#define CLIENTS 4

/* Four clients with work without end get the same, one after the other, without a hole. */
static void taken_in_turn(void)
{
	struct sim_engine engine[CLIENTS] = {0};
	uint64_t end = now_ns;
	sim_machine->device[0].engine_until = 0;
	for (int round = 0; round < 100; round++)
		for (slot = 0; slot < CLIENTS; slot++) {
			struct sim_engine *own = &engine[slot];
			sim_timeline_take(own, 1000000000, SLICE);
			CHECK(own->cursor_ns == end, "round %d: client %d begins at %llu, the one before ended at %llu",
			      round, slot, (unsigned long long)own->cursor_ns, (unsigned long long)end);
			end = own->until_ns;
			own->run_ns = SLICE;
			now_ns = end + 50000; /* everybody is late, always */
			sim_timeline_used(own);
		}
	CHECK(end == 1000000000 + 100 * CLIENTS * SLICE, "lateness added up: the end is %llu", (unsigned long long)end);
	for (int i = 0; i < CLIENTS; i++)
		CHECK(sim_machine->client[i].device[0].busy_ns == 100 * SLICE, "client %d got %llu", i,
		      (unsigned long long)sim_machine->client[i].device[0].busy_ns);
	CHECK(sim_machine->device[0].engine_busy_ns == 100 * CLIENTS * SLICE, "the engine was busy for %llu",
	      (unsigned long long)sim_machine->device[0].engine_busy_ns);
}

/* The buckets add up to the busy time, each at most its own length. */
static void buckets(void)
{
	uint64_t sum = 0;
	for (int i = 0; i < SIM_BUCKETS; i++) {
		uint32_t ns = sim_machine->client[0].device[0].bucket_ns[i];
		CHECK(ns <= SIM_BUCKET_NS, "bucket %d holds %u ns", i, ns);
		sum += ns;
	}
	CHECK(sum == sim_machine->client[0].device[0].busy_ns, "buckets hold %llu ns", (unsigned long long)sum);
}

/* What is not used goes back, unless somebody has been granted time behind it. */
static void given_back(void)
{
	struct sim_engine first = {0}, second = {0};
	now_ns = 5000000000;
	sim_machine->device[0].engine_until = now_ns;
	sim_timeline_take(&first, now_ns, SLICE);
	first.run_ns = SLICE / 4;
	sim_timeline_used(&first);
	sim_timeline_return(&first);
	CHECK(sim_machine->device[0].engine_until == 5000000000 + SLICE / 4, "the line ends at %llu",
	      (unsigned long long)sim_machine->device[0].engine_until);
	sim_timeline_take(&first, now_ns, SLICE);
	sim_timeline_take(&second, now_ns, SLICE);
	sim_timeline_return(&first);
	CHECK(second.cursor_ns == 5000000000 + SLICE / 4 + SLICE, "the second client begins at %llu",
	      (unsigned long long)second.cursor_ns);
	CHECK(sim_machine->device[0].engine_until == second.until_ns, "a grant in the middle was given back");
}

/* An end that no clients can have asked for is left over from before a reboot. */
static void impossible_end(void)
{
	struct sim_engine engine = {0};
	sim_machine->device[0].engine_until = now_ns + UINT64_C(3600000000000);
	sim_timeline_take(&engine, now_ns, SLICE);
	CHECK(engine.cursor_ns == now_ns, "work begins at %llu, an hour late", (unsigned long long)engine.cursor_ns);
}

int main(void)
{
	sim_machine = calloc(1, sizeof(*sim_machine));
	CHECK(sim_machine, "no memory");
	sim_machine->model[0].slice_us = SLICE / 1000;
	taken_in_turn();
	buckets();
	given_back();
	impossible_end();
	return 0;
}
