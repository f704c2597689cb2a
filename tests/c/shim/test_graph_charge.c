/* K02: threads race launches, frees, trims and destroyed executables through graph_charge.c over a driver that shares
 * and steals graph memory as freely as one may. At every change of either side what is charged is at least what the
 * driver holds; nothing passes the limit; when all is trimmed nothing is charged; and a limit that holds what a program
 * has is enough for it to go on. Arguments: threads, rounds per thread.
 */
#include <pthread.h>
#include <sched.h>

#include "check.h"
#include "graphs.h"
#include "hooks.h"
#include "memory.h"

#define MIB     (UINT64_C(1) << 20)
#define GRANULE (32 * MIB)
#define LIMIT   (1024 * MIB)
#define BLOCKS  4096

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t charged, reserved, spare, worst, peak, refused;
static uint64_t elsewhere; /* of the charge: not for graphs */

/* What one executable allocates. */
static struct block {
	uint64_t bytes; /* 0: none */
	unsigned uses, stream;
	bool live, backed, gone; /* gone: its executable is */
} block[BLOCKS];

static void enter(void)
{
	if ((rand() & 3) == 0)
		sched_yield();
	pthread_mutex_lock(&lock);
}

static void leave(void)
{
	if (reserved + elsewhere > charged && reserved + elsewhere - charged > worst)
		worst = reserved + elsewhere - charged;
	peak = reserved > peak ? reserved : peak;
	pthread_mutex_unlock(&lock);
	if ((rand() & 3) == 0)
		sched_yield();
}

/* ---- the ledger -------------------------------------------------------------------------------------------------- */

CUresult vgpu_reserve(CUdevice device, uint64_t bytes)
{
	(void)device;
	enter();
	bool fits = bytes <= LIMIT && charged <= LIMIT - bytes;
	charged += fits ? bytes : 0;
	leave();
	return fits ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult vgpu_reserve_for_graph(CUdevice device, uint64_t bytes)
{
	CUresult error = vgpu_reserve(device, bytes);
	return error != CUDA_SUCCESS && vgpu_graph_reconcile(device) ? vgpu_reserve(device, bytes) : error;
}

void vgpu_charge(CUdevice device, uint64_t bytes)
{
	(void)device;
	enter();
	charged += bytes;
	leave();
}

void vgpu_give_back(CUdevice device, uint64_t bytes)
{
	(void)device;
	enter();
	CHECK(bytes <= charged, "%lu bytes given back of %lu", (unsigned long)bytes, (unsigned long)charged);
	charged -= bytes;
	leave();
}

CUstreamCaptureMode vgpu_relax(void)
{
	return CU_STREAM_CAPTURE_MODE_RELAXED;
}

void vgpu_unrelax(CUstreamCaptureMode before)
{
	(void)before;
}

/* ---- the driver -------------------------------------------------------------------------------------------------- */

static void strip(struct block *b)
{
	spare += b->backed ? b->bytes : 0;
	b->backed = false;
	if (b->gone && !b->uses && !b->live)
		b->bytes = 0;
}

static CUresult launch(struct block *b, unsigned stream)
{
	CUresult error = CUDA_SUCCESS;
	enter();
	if (b->live)
		error = CUDA_ERROR_INVALID_VALUE;
	for (unsigned i = 0; i < BLOCKS && error == CUDA_SUCCESS && !b->backed && spare < b->bytes; i++)
		if (block[i].bytes && &block[i] != b && !block[i].live && (!block[i].uses || block[i].stream == stream))
			strip(&block[i]);
	if (error == CUDA_SUCCESS && !b->backed) {
		if (spare < b->bytes) {
			uint64_t all = vgpu_round_up(reserved + b->bytes - spare, GRANULE);
			spare += all - reserved;
			reserved = all;
		}
		spare -= b->bytes;
		b->backed = true;
	}
	if (error == CUDA_SUCCESS) {
		b->stream = b->uses == 0 || b->stream == stream ? stream : 0;
		b->uses++;
		b->live = rand() % 4 == 0;
	}
	leave();
	return error;
}

static void settle(struct block *b)
{
	if (b->gone && !b->uses && !b->live)
		strip(b);
}

static void run(struct block *b, bool release)
{
	enter();
	b->live = b->live && !release;
	b->uses = 0;
	settle(b);
	leave();
}

/* What another thread does between a reading of the driver's and its use: once. */
static void (*meanwhile)(void);
static CUgraphMem_attribute meanwhile_reading;

static CUresult fake_attribute(CUdevice device, CUgraphMem_attribute attribute, void *value)
{
	uint64_t used = 0;
	(void)device;
	enter();
	for (unsigned i = 0; i < BLOCKS; i++)
		used += block[i].bytes && block[i].backed && (block[i].uses || block[i].live) ? block[i].bytes : 0;
	*(cuuint64_t *)value = attribute == CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT ? used : reserved;
	leave();
	void (*others)(void) = meanwhile;
	if (others && meanwhile_reading == attribute) {
		meanwhile = NULL;
		others();
	}
	return CUDA_SUCCESS;
}

static CUresult fake_trim(CUdevice device)
{
	(void)device;
	enter();
	for (unsigned i = 0; i < BLOCKS; i++)
		if (block[i].bytes && !block[i].uses && !block[i].live)
			strip(&block[i]);
	uint64_t part = spare / GRANULE * GRANULE;
	reserved -= part;
	spare -= part;
	leave();
	return CUDA_SUCCESS;
}

void *vgpu_real[VGPU_REALS];

void *vgpu_real_fn(unsigned index)
{
	if (index == VGPU_INDEX_cuDeviceGetGraphMemAttribute)
		return (void *)fake_attribute;
	return index == VGPU_INDEX_cuDeviceGraphMemTrim ? (void *)fake_trim : NULL;
}

/* ---- programs ---------------------------------------------------------------------------------------------------- */

static struct block *new_block(unsigned *seed)
{
	struct block *b = NULL;
	enter();
	for (unsigned i = 0; i < BLOCKS && !b; i++)
		if (!block[i].bytes)
			b = &block[i];
	CHECK(b, "no block is free");
	*b = (struct block){.bytes = (1 + (uint64_t)rand_r(seed) % 90) * 2 * MIB};
	leave();
	return b;
}

/* As hook_cuGraphLaunch does it. */
static bool launch_charged(struct block *b, unsigned stream, bool *taken)
{
	struct vgpu_graph_call call;
	bool first = !*taken;
	if (vgpu_graph_begin(0, b->bytes, first, &call) != CUDA_SUCCESS)
		return false;
	CUresult error = launch(b, stream);
	vgpu_graph_end(0, &call);
	if (error != CUDA_SUCCESS && first)
		vgpu_graph_forget(0, b->bytes, true);
	*taken = *taken || error == CUDA_SUCCESS;
	return true;
}

static void destroy(struct block *b, bool *taken)
{
	uint64_t bytes = b->bytes;
	enter();
	b->gone = true;
	settle(b);
	if (!b->backed && !b->uses && !b->live)
		b->bytes = 0;
	leave();
	if (*taken)
		vgpu_graph_forget(0, bytes, false);
	*taken = false;
}

static unsigned rounds = 4000;

static void *program(void *arg)
{
	unsigned id = (unsigned)(uintptr_t)arg, seed = id * 7919;
	struct block *own[6];
	bool taken[6] = {false};
	for (int i = 0; i < 6; i++)
		own[i] = new_block(&seed);
	for (unsigned round = 0; round < rounds; round++) {
		unsigned k = (unsigned)rand_r(&seed) % 6;
		if (!launch_charged(own[k], id % 3 + 1, &taken[k]))
			__atomic_add_fetch(&refused, 1, __ATOMIC_RELAXED);
		if (rand_r(&seed) % 3 == 0)
			run(own[rand_r(&seed) % 6], rand_r(&seed) % 2);
		if (rand_r(&seed) % 40 == 0)
			CHECK(vgpu_graph_trim(0) == CUDA_SUCCESS, "trim");
		if (rand_r(&seed) % 30 == 0)
			vgpu_graph_reconcile(0);
		if (rand_r(&seed) % 50 == 0) {
			struct block *old = own[k];
			destroy(old, &taken[k]);
			own[k] = new_block(&seed);
			if (rand_r(&seed) % 2)
				run(own[k], true);
		}
	}
	for (int i = 0; i < 6; i++) {
		run(own[i], true);
		destroy(own[i], &taken[i]);
	}
	return NULL;
}

/* What destroyed executables left behind. */
static void run_all(void)
{
	for (unsigned i = 0; i < BLOCKS; i++)
		if (block[i].bytes)
			run(&block[i], true);
}

static void race(unsigned threads)
{
	pthread_t thread[64];
	charged = reserved = spare = worst = peak = refused = elsewhere = 0;
	for (uintptr_t i = 0; i < threads; i++)
		CHECK(pthread_create(&thread[i], NULL, program, (void *)(i + 1)) == 0, "no thread");
	for (unsigned i = 0; i < threads; i++)
		pthread_join(thread[i], NULL);
	run_all();
	CHECK(vgpu_graph_trim(0) == CUDA_SUCCESS, "trim");
	CHECK(worst == 0, "%u threads: the driver held %lu bytes more than were charged", threads,
	      (unsigned long)worst);
	CHECK(peak <= LIMIT && peak > LIMIT / 3, "%u threads: at most %lu bytes held", threads, (unsigned long)peak);
	CHECK(reserved == 0 && charged == 0, "%u threads: %lu bytes left, %lu charged", threads,
	      (unsigned long)reserved, (unsigned long)charged);
	CHECK(threads == 1 || refused != 0, "nothing was ever refused: no race");
}

/* The rest of the limit is taken: what is there already goes on, whichever way it is used. */
static void enough(void)
{
	unsigned seed = 1;
	bool taken[2] = {false};
	struct block *b[2] = {new_block(&seed), new_block(&seed)};
	/* one that goes while it is in use counts until all is trimmed */
	struct block *gone = new_block(&seed);
	CHECK(launch_charged(gone, 1, &taken[0]), "the launch of one that goes");
	enter();
	gone->live = true;
	leave();
	destroy(gone, &taken[0]);
	run_all();
	CHECK(vgpu_graph_trim(0) == CUDA_SUCCESS && charged == 0, "%lu bytes stay charged", (unsigned long)charged);
	b[0]->bytes = 200 * MIB;
	b[1]->bytes = 180 * MIB;
	CHECK(launch_charged(b[0], 1, &taken[0]), "the first launch");
	run(b[0], true);
	CHECK(vgpu_reserve(0, LIMIT - charged) == CUDA_SUCCESS, "the rest");
	elsewhere = LIMIT - reserved;
	for (int i = 0; i < 50; i++) {
		CHECK(launch_charged(b[0], 1, &taken[0]), "launch %d beside the one before", i);
		enter();
		b[0]->live = false;
		leave();
	}
	for (int i = 0; i < 50; i++) {
		run(b[0], true);
		run(b[1], true);
		CHECK(launch_charged(b[i % 2], 1, &taken[i % 2]), "launch %d of two by turns", i);
	}
	run_all();
	for (int i = 0; i < 2; i++)
		destroy(b[i], &taken[i]);
	CHECK(vgpu_graph_trim(0) == CUDA_SUCCESS && charged == elsewhere, "%lu bytes left charged",
	      (unsigned long)(charged - elsewhere));
}

/* ---- one order of events at a time, which threads meet seldom ------------------------------------------------------ */

static struct block *one, *two, *three;

/* The first graph has been launched and has run; `room` bytes of the limit are left. */
static void set_up(uint64_t room)
{
	unsigned seed = 1;
	bool taken = false;
	for (unsigned i = 0; i < BLOCKS; i++)
		block[i] = (struct block){0};
	vgpu_graph_charge_forked(); /* starts from nothing again */
	charged = reserved = spare = worst = peak = elsewhere = 0;
	one = new_block(&seed);
	two = new_block(&seed);
	three = new_block(&seed);
	one->bytes = two->bytes = 150 * MIB;
	three->bytes = 60 * MIB;
	CHECK(launch_charged(one, 1, &taken), "the first launch");
	run(one, true);
	CHECK(charged == 160 * MIB && vgpu_reserve(0, LIMIT - charged - room) == CUDA_SUCCESS, "%lu bytes charged",
	      (unsigned long)charged);
	elsewhere = charged - 160 * MIB;
}

static void never_more_than_charged(const char *what)
{
	CHECK(worst == 0, "%s: the driver held %lu bytes more than were charged", what, (unsigned long)worst);
}

static void begin(struct block *b, bool first, struct vgpu_graph_call *call)
{
	CHECK(vgpu_graph_begin(0, b->bytes, first, call) == CUDA_SUCCESS, "a call that fits is refused");
}

static void all_of_three(void)
{
	bool taken = false;
	CHECK(launch_charged(three, 2, &taken), "the third launch");
}

/* Its memory is trimmed after it was found to be there. */
static void trimmed_under_a_launch(void)
{
	struct vgpu_graph_call call;
	set_up(0);
	begin(one, false, &call);
	CHECK(vgpu_graph_trim(0) == CUDA_SUCCESS, "trim");
	launch(one, 1);
	vgpu_graph_end(0, &call);
	never_more_than_charged("trimmed");
}

/* The unused memory that a launch at the limit counts on is used up by one that began later. */
static void used_up_under_a_launch(void)
{
	struct vgpu_graph_call call;
	set_up(64 * MIB);
	begin(two, true, &call);
	CHECK(call.step == 0, "%lu bytes reserved beside unused ones", (unsigned long)call.step);
	all_of_three();
	launch(two, 1);
	vgpu_graph_end(0, &call);
	never_more_than_charged("used up");
}

/* What was read is old: another launch came between. */
static void launched_under_a_reading(void)
{
	set_up(512 * MIB);
	launch(one, 1); /* in use, so that the other takes more */
	meanwhile_reading = CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT;
	meanwhile = all_of_three;
	vgpu_graph_reconcile(0);
	never_more_than_charged("old reading");
}

static void drop_one_in_use(void)
{
	bool taken = true;
	struct vgpu_graph_call call;
	begin(one, false, &call);
	launch(one, 1);
	one->live = true;
	vgpu_graph_end(0, &call);
	destroy(one, &taken);
}

/* Nothing was in use when an executable went, but then another one went that is. */
static void gone_under_a_reading(void)
{
	bool taken = false;
	struct vgpu_graph_call call;
	set_up(512 * MIB);
	CHECK(launch_charged(three, 1, &taken), "the third launch");
	run(three, true);
	meanwhile_reading = CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT;
	meanwhile = drop_one_in_use;
	destroy(three, &taken);
	begin(two, true, &call);
	launch(two, 2);
	vgpu_graph_end(0, &call);
	never_more_than_charged("gone in use");
}

int main(int argc, char **argv)
{
	unsigned threads = argc > 1 ? (unsigned)atoi(argv[1]) : 8;
	if (argc > 2)
		rounds = (unsigned)atoi(argv[2]);
	race(1);
	race(threads);
	enough();
	trimmed_under_a_launch();
	used_up_under_a_launch();
	launched_under_a_reading();
	gone_under_a_reading();
	NOTE("%u threads x %u rounds: charged >= held at every change, %lu refusals", threads, rounds,
	     (unsigned long)refused);
	return 0;
}
