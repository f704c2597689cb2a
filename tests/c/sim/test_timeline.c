/* The shared line of engine time, with a clock in the test's hand: who is served, how much, what is given back, and what
 * going from one context to another takes. */
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
	sim_machine->device[0].engine_until[0] = 0;
	for (int round = 0; round < 100; round++)
		for (slot = 0; slot < CLIENTS; slot++) {
			struct sim_unit *own = &engine[slot].unit[0];
			sim_timeline_take(&engine[slot], 0, 1, 1000000000, SLICE);
			CHECK(own->cursor_ns == end, "round %d: client %d begins at %llu, the one before ended at %llu",
			      round, slot, (unsigned long long)own->cursor_ns, (unsigned long long)end);
			end = own->until_ns;
			own->run_ns = SLICE;
			now_ns = end + 50000; /* everybody is late, always */
			sim_timeline_used(&engine[slot], 0);
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
	sim_machine->device[0].engine_until[0] = now_ns;
	sim_timeline_take(&first, 0, 1, now_ns, SLICE);
	first.unit[0].run_ns = SLICE / 4;
	sim_timeline_used(&first, 0);
	sim_timeline_return(&first, 0);
	CHECK(sim_machine->device[0].engine_until[0] == 5000000000 + SLICE / 4, "the line ends at %llu",
	      (unsigned long long)sim_machine->device[0].engine_until[0]);
	sim_timeline_take(&first, 0, 1, now_ns, SLICE);
	sim_timeline_take(&second, 0, 1, now_ns, SLICE);
	sim_timeline_return(&first, 0);
	CHECK(second.unit[0].cursor_ns == 5000000000 + SLICE / 4 + SLICE, "the second client begins at %llu",
	      (unsigned long long)second.unit[0].cursor_ns);
	CHECK(sim_machine->device[0].engine_until[0] == second.unit[0].until_ns,
	      "a grant in the middle was given back");
}

/* An end that no clients can have asked for is left over from before a reboot. */
static void impossible_end(void)
{
	struct sim_engine engine = {0};
	sim_machine->device[0].engine_until[0] = now_ns + UINT64_C(3600000000000);
	sim_timeline_take(&engine, 0, 1, now_ns, SLICE);
	CHECK(engine.unit[0].cursor_ns == now_ns, "work begins at %llu, an hour late",
	      (unsigned long long)engine.unit[0].cursor_ns);
}

#define SWITCH UINT64_C(50000)

static uint64_t take(struct sim_engine *engine, unsigned unit, uint64_t context)
{
	sim_timeline_take(engine, unit, context, now_ns, SLICE);
	uint64_t start = engine->unit[unit].cursor_ns;
	engine->unit[unit].run_ns = SLICE;
	sim_timeline_used(engine, unit);
	return start;
}

static void hands_over(uint64_t *end, struct sim_engine *engine, unsigned unit, uint64_t context, uint64_t took)
{
	uint64_t start = take(engine, unit, context);
	CHECK(start == *end + took, "unit %u, context %llu: began %llu ns after the end of the line, not %llu", unit,
	      (unsigned long long)context, (unsigned long long)(start - *end), (unsigned long long)took);
	*end = start + SLICE;
}

/* It costs where the context changes, between processes and within one; not where one goes on; it is nobody's time. */
static void switches(void)
{
	struct sim_engine first = {0}, second = {0};
	struct sim_device_state *state = &sim_machine->device[0];
	memset(sim_machine->client, 0, sizeof(sim_machine->client));
	sim_machine->model[0].switch_us = SWITCH / 1000;
	*state = (struct sim_device_state){0};
	uint64_t end = now_ns;
	hands_over(&end, &first, 0, 1, 0); /* the very first finds nobody there */
	hands_over(&end, &first, 0, 1, 0);
	hands_over(&end, &second, 0, 1, SWITCH); /* another process's first context, not the same one */
	hands_over(&end, &first, 0, 1, SWITCH);
	hands_over(&end, &first, 0, 2, SWITCH);
	hands_over(&end, &first, 0, 2, 0);
	now_ns = end + 1000000; /* idle meanwhile, and still there */
	end = now_ns;
	hands_over(&end, &first, 0, 2, 0);
	hands_over(&end, &second, 0, 1, SWITCH);
	CHECK(state->switches == 4, "%llu switches were counted, not 4", (unsigned long long)state->switches);
	CHECK(state->engine_busy_ns == 8 * SLICE, "the engine was busy for %llu ns",
	      (unsigned long long)state->engine_busy_ns);
	end = now_ns;
	hands_over(&end, &first, SIM_UNIT_COPY_IN, 1, 0); /* copy engines change without delay, and are not "busy" */
	hands_over(&end, &second, SIM_UNIT_COPY_IN, 7, 0);
	CHECK(state->engine_busy_ns == 8 * SLICE && state->switches == 4, "copies were counted as kernels");
	CHECK(sim_machine->client[0].device[0].copy_ns[SIM_UNIT_COPY_IN] == 2 * SLICE, "copies took %llu ns",
	      (unsigned long long)sim_machine->client[0].device[0].copy_ns[SIM_UNIT_COPY_IN]);
}

/* Another context within a grant: the rest of the grant is shorter, and where nothing is left a new one is taken. */
static void switch_within_grant(void)
{
	struct sim_engine engine = {0};
	struct sim_unit *own = &engine.unit[0];
	sim_machine->device[0] = (struct sim_device_state){0};
	sim_timeline_take(&engine, 0, 1, now_ns, SLICE);
	own->run_ns = SLICE / 2;
	sim_timeline_used(&engine, 0);
	sim_timeline_take(&engine, 0, 2, now_ns, SLICE);
	CHECK(own->cursor_ns == now_ns + SLICE / 2 + SWITCH && own->until_ns == now_ns + SLICE,
	      "the second context has %llu to %llu of the grant", (unsigned long long)(own->cursor_ns - now_ns),
	      (unsigned long long)(own->until_ns - now_ns));
	own->run_ns = SLICE / 2 - SWITCH - 10000;
	sim_timeline_used(&engine, 0);
	sim_timeline_take(&engine, 0, 1, now_ns, SLICE);
	CHECK(own->cursor_ns == now_ns + SLICE - 10000 + SWITCH && own->until_ns == own->cursor_ns + SLICE,
	      "the first context again from %llu on", (unsigned long long)(own->cursor_ns - now_ns));
	CHECK(sim_machine->device[0].switches == 2, "%llu switches",
	      (unsigned long long)sim_machine->device[0].switches);
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
	slot = 0;
	switches();
	switch_within_grant();
	return 0;
}
