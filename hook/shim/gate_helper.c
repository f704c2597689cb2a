/* gate_helper.c: the thread that notices what nobody waits for: marks that are over, periods that have ended.
 *
 * One per process, made at its first launch under the gate and again after a fork, when the child launches. All signals
 * are blocked in it, it never blocks inside the driver, and it holds no reference to any context: a context that ends, a
 * device that is lost and a process that exits do not wait for it. It looks when the work in flight is expected to be
 * over, at once when the turn is closed, and sleeps without an end when nothing is in flight.
 * What can go wrong: no thread can be made. Then threads that launch or synchronise notice, and the rest is left to the
 * arbiter's guard; it is tried again. */
#include "gate_core.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "threads.h"

#define STACK_BYTES (512 << 10)
#define RETRY_NS    UINT64_C(1000000000)
#define FOREVER     UINT64_MAX
#define LONGEST_NS  UINT64_C(100000000) /* between two looks while something is in flight */
#ifndef SYS_futex_waitv
#define SYS_futex_waitv 449
#endif

enum { HELPER_NONE, HELPER_ALIVE, HELPER_LEAVES };

/* linux/futex.h of kernels before 5.16 lacks them. */
struct waited_word {
	uint64_t value, address;
	uint32_t flags, reserved;
};
#define WORD_32      2
#define WORD_PRIVATE 128

/* ---- sleeping until a time, a call, or a turn that changes ------------------------------------------------------------- */

struct watch {
	struct waited_word word[PTG_DEVICES + 1];
	unsigned count;
};

static void sleep_until(const struct gate *g, const struct watch *w, uint64_t at)
{
	static uint32_t lacking; /* the kernel has no such call */
	struct timespec until = {.tv_sec = (time_t)(at / 1000000000u), .tv_nsec = (long)(at % 1000000000u)};
	uint64_t now = vgpu_now_ns();
	if (at <= now)
		return;
	if (!__atomic_load_n(&lacking, __ATOMIC_RELAXED)) {
		long result =
		        syscall(SYS_futex_waitv, w->word, w->count, 0, at == FOREVER ? NULL : &until, CLOCK_MONOTONIC);
		if (result >= 0 || (errno != ENOSYS && errno != EPERM))
			return;
		__atomic_store_n(&lacking, 1, __ATOMIC_RELAXED);
	}
	/* Without it, turns that change while something is in flight are noticed a little late. */
	uint64_t most = w->count > 1 ? GATE_TICK_NS : LONGEST_NS * 10;
	uint64_t ns = at - now < most ? at - now : most;
	gate_sleep(&g->helper_bell, (uint32_t)w->word[0].value, ns, false);
}

/* ---- one look ------------------------------------------------------------------------------------------------------------ */

/* When it is worth looking at this device again. */
static uint64_t next_look(struct gate *g, int device, uint64_t now)
{
	struct gate_device *d = &g->device[device];
	uint64_t flight = gate_in_flight(g, device), expected = d->seen_ns + flight;
	bool awaited = gate_awaited(d, now);
	if (flight == 0 && !d->inside && !awaited && d->known_ns + GATE_LAZY_NS > now)
		return d->known_ns + GATE_LAZY_NS;
	if (expected > now + GATE_POLL_NS)
		return awaited                         ? gate_look_at(d, expected, now)
		       : expected - now < GATE_TICK_NS ? expected
		                                       : now + GATE_TICK_NS;
	uint64_t late = now > expected ? (now - expected) / 8 : 0, most = awaited ? GATE_TICK_NS : 5 * GATE_TICK_NS;
	late = late < GATE_POLL_NS ? GATE_POLL_NS : late;
	return now + (late < most ? late : most);
}

static uint64_t look(struct gate *g, struct watch *w)
{
	uint64_t next = FOREVER;
	gate_ask(g);
	uint64_t now = vgpu_now_ns();
	w->count = 1;
	w->word[0] = (struct waited_word){.address = (uintptr_t)&g->helper_bell,
	                                  .value = __atomic_load_n(&g->helper_bell, __ATOMIC_ACQUIRE),
	                                  .flags = WORD_32 | WORD_PRIVATE};
	for (uint32_t i = 0; i < g->ndev && i < PTG_DEVICES; i++) {
		struct gate_device *d = &g->device[i];
		uint32_t word = __atomic_load_n(&d->turn->word, __ATOMIC_ACQUIRE);
		if (d->busy_ns)
			gate_settle(g, (int)i, NULL, now);
		if (!d->busy_ns)
			continue;
		gate_pay(g, (int)i, now);
		gate_peers_leave(g, (int)i, now);
		uint64_t at = next_look(g, (int)i, now), leaves = gate_peers_look_at(g, (int)i, now);
		at = leaves < at ? leaves : at;
		next = at < next ? at : next;
		w->word[w->count++] =
		        (struct waited_word){.address = (uintptr_t)&d->turn->word, .value = word, .flags = WORD_32};
	}
	g->helper_at = next;
	return next;
}

static void *helper_main(void *arg)
{
	struct gate *g = arg;
	struct watch watch;
	CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	prctl(PR_SET_NAME, "vgpu-gate");
	prctl(PR_SET_TIMERSLACK, 1000UL, 0UL, 0UL, 0UL); /* this thread's only */
	real_cuThreadExchangeStreamCaptureMode(&mode);
	vgpu_lock(&g->lock);
	while (g->helper == HELPER_ALIVE) {
		uint64_t at = look(g, &watch);
		vgpu_unlock(&g->lock);
		sleep_until(g, &watch, at);
		vgpu_lock(&g->lock);
	}
	vgpu_unlock(&g->lock);
	return NULL;
}

/* ---- its life ------------------------------------------------------------------------------------------------------------- */

static void wake(struct gate *g)
{
	__atomic_add_fetch(&g->helper_bell, 1, __ATOMIC_RELEASE);
	syscall(SYS_futex, &g->helper_bell, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

void gate_helper_need(struct gate *g, uint64_t at)
{
	if (__builtin_expect(g->helper == HELPER_ALIVE, 1)) {
		if (g->helper_at <= at + GATE_POLL_NS)
			return;
		g->helper_at = at;
		wake(g);
		return;
	}
	uint64_t now = vgpu_now_ns();
	if (g->helper == HELPER_LEAVES || (g->helper_tried && now - g->helper_tried < RETRY_NS))
		return;
	g->helper_tried = now;
	g->helper_at = 0; /* it looks as soon as it runs */
	g->helper = HELPER_ALIVE;
	vgpu_unlock(&g->lock);
	bool made = vgpu_thread_make(helper_main, g, STACK_BYTES);
	vgpu_lock(&g->lock);
	if (!made && g->helper == HELPER_ALIVE)
		g->helper = HELPER_NONE;
}

/* The driver is about to be taken down: nobody asks it any more. A lock that the interrupted thread holds is not waited
 * for. */
__attribute__((destructor)) static void leave(void)
{
	struct gate *g = gate_there();
	if (!g || !vgpu_lock_try(&g->lock))
		return;
	g->helper = HELPER_LEAVES;
	g->frozen++;
	wake(g);
	vgpu_unlock(&g->lock);
	for (int i = 0; i < 100 && __atomic_load_n(&g->asking, __ATOMIC_ACQUIRE); i++)
		vgpu_pause_ns(100000);
}
