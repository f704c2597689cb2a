/* When the worker wakes: at the end of its grant, and before that only for what somebody notices. Queues and waiters are
 * made by hand; what the rest of the engine does is in other tests. */
#include "sim_test.h"
#include "timeline.h"

#define ITEMS 100
#define EACH  UINT64_C(20000)
#define GRANT (ITEMS * EACH)
#define START UINT64_C(1000000000)

static struct sim_engine engine;
static struct sim_stream streams[2];
static struct sim_item items[2][ITEMS];
static struct sim_context context;
static bool runnable;

bool sim_stream_runnable(const struct sim_engine *unused, const struct sim_stream *stream)
{
	(void)unused;
	return runnable && !stream->running;
}

static void fill(int number, unsigned unit)
{
	struct sim_stream *stream = &streams[number];
	*stream = (struct sim_stream){.context = &context, .head = items[number], .tail = &items[number][ITEMS - 1]};
	stream->depth = ITEMS;
	for (int i = 0; i < ITEMS; i++) {
		items[number][i] = (struct sim_item){.seq = 2 * (uint64_t)i + (uint64_t)number + 1, .left_ns = EACH};
		items[number][i].next = i + 1 < ITEMS ? &items[number][i + 1] : NULL;
		items[number][i].work.unit = unit;
	}
	stream->next_active = engine.active;
	engine.active = stream;
}

/* One stream whose first item runs, with a grant for all of them. */
static void one_stream(void)
{
	engine = (struct sim_engine){0};
	runnable = true;
	fill(0, SIM_UNIT_COMPUTE);
	streams[0].running = true;
	engine.unit[0] = (struct sim_unit){
	        .running = &streams[0], .run_ns = EACH, .cursor_ns = START, .until_ns = START + GRANT};
}

static void wakes(const struct sim_waiter *waiters, uint64_t items_later, const char *what)
{
	uint64_t at = sim_engine_alarm(&engine, waiters);
	CHECK(at == START + items_later * EACH, "%s: it wakes after %lld ns, not after %llu", what,
	      (long long)(at - START), (unsigned long long)(items_later * EACH));
}

static void nobody_waits(void)
{
	engine = (struct sim_engine){0};
	CHECK(sim_engine_alarm(&engine, NULL) == UINT64_MAX, "an idle worker has an alarm");
	one_stream();
	wakes(NULL, ITEMS, "kernels that nobody waits for");
	items[0][6].work.run = (void (*)(void *))nobody_waits;
	wakes(NULL, 7, "the seventh does something to memory");
	items[0][6].work.run = NULL;
	items[0][3].kind = SIM_ITEM_HOST;
	wakes(NULL, 3, "a host function comes after three");
	items[0][3].kind = SIM_ITEM_WORK;
	items[0][4].work.unit = SIM_UNIT_COPY_OUT;
	wakes(NULL, 4, "a copy comes after four");
	one_stream();
	engine.unit[0].until_ns = START + 2 * EACH;
	wakes(NULL, 2, "the grant is short");
	items[0][0].meeting = 1;
	wakes(NULL, 1, "a collective looks for its partner");
}

static void somebody_waits(void)
{
	struct sim_stream_event event = {0}, other = {0};
	struct sim_waiter stream = {.stream = &streams[0], .mark = items[0][9].seq};
	struct sim_waiter all = {.context = &context, .mark = items[0][19].seq};
	struct sim_waiter recorded = {.event = &event};
	struct sim_waiter room = {.stream = &streams[0], .patient = 12};
	one_stream();
	wakes(&stream, 10, "for the tenth in the stream");
	wakes(&all, 20, "for the twentieth in the context");
	wakes(&room, 12, "for room in the queue");
	stream.next = &all;
	all.next = &room;
	wakes(&stream, 10, "for the earliest of three");
	stream.stream = &streams[1];
	stream.next = all.next = NULL;
	wakes(&stream, ITEMS, "for another stream");
	stream.stream->context = &context;
	stream.stream->legacy = true;
	wakes(&stream, 10, "for the NULL stream, which waits for this one");
	items[0][4].kind = items[0][8].kind = SIM_ITEM_RECORD;
	items[0][4].left_ns = items[0][8].left_ns = 0;
	items[0][4].event = &other;
	items[0][8].event = &event;
	wakes(NULL, ITEMS - 2, "events that nobody waits for");
	wakes(&recorded, 7, "for an event");
	other.waits = 1;
	wakes(&recorded, 4, "another stream waits for the first event");
}

static void several_streams(void)
{
	one_stream();
	fill(1, SIM_UNIT_COMPUTE);
	wakes(NULL, ITEMS, "two streams on one unit");
	struct sim_waiter waiter = {.stream = &streams[1], .mark = items[1][0].seq};
	wakes(&waiter, 2, "for the first of the stream that comes next");
	items[1][0].kind = SIM_ITEM_WAIT;
	wakes(NULL, ITEMS, "the other waits for an event elsewhere");
	items[1][0].kind = SIM_ITEM_WORK;
	runnable = false;
	wakes(NULL, 1, "the other may wait for any of these");
	runnable = true;
	items[1][0].work.unit = SIM_UNIT_COPY_IN;
	wakes(NULL, 1, "its unit stands still");
	streams[1].running = true;
	for (int i = 0; i < ITEMS; i++)
		items[1][i].work.unit = SIM_UNIT_COPY_IN;
	engine.unit[SIM_UNIT_COPY_IN] = (struct sim_unit){
	        .running = &streams[1], .run_ns = EACH, .cursor_ns = START, .until_ns = START + 30 * EACH};
	wakes(NULL, 30, "the copy engine's grant ends first");
}

int main(void)
{
	nobody_waits();
	somebody_waits();
	several_streams();
	return 0;
}
