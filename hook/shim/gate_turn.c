/* gate_turn.c: whether a launch may go now, and waiting until it may: for the turn, for room, for the private bucket.
 *
 * Called by gate.c with the gate's lock, which is given back while the thread sleeps. Sleeps are raw futex calls of at most
 * 100 ms: neither a signal, nor the arbiter's death, nor a policy that opens the gate is missed for longer.
 * What can go wrong: the arbiter does not answer. Whoever has asked and waited PTG_PATIENCE_NS beside a heartbeat that
 * stands still goes on by the container's private bucket, until the heartbeat goes on. A turns file of garbage is an
 * arbiter that does not answer. Work that never ends is waited for once, for a bounded time. */
#include "gate_core.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define SLEEP_NS    100000000u /* most at a time */
#define EXPIRED_NS  200000 /* the same while the deadline has passed and the word still says that we may */
#define DEADLINE_NS UINT64_C(2000000000) /* a deadline further ahead is garbage */
#define DEBT_NS     UINT64_C(900000000) /* most that the bucket may owe: nobody stands still for longer */

void gate_sleep(const uint32_t *word, uint32_t value, uint64_t ns, bool shared)
{
	struct timespec bound = {.tv_sec = (time_t)(ns / 1000000000u), .tv_nsec = (long)(ns % 1000000000u)};
	syscall(SYS_futex, word, shared ? FUTEX_WAIT : FUTEX_WAIT_PRIVATE, value, &bound, NULL, 0);
}

void gate_ring(struct gate *g)
{
	if (!g->bell)
		return;
	__atomic_add_fetch(g->bell, 1, __ATOMIC_SEQ_CST);
	vgpu_futex_wake(g->bell, INT_MAX);
}

bool gate_urgent(const struct gate_device *d)
{
	return !(__atomic_load_n(&d->turn->word, __ATOMIC_ACQUIRE) & 1) ||
	       __atomic_load_n(&d->turn->flags, __ATOMIC_RELAXED) & PTG_TURN_WATCHED;
}

/* ---- the private bucket ------------------------------------------------------------------------------------------------ */

static uint32_t rate(int device)
{
	struct vgpu_state *s = vgpu_state();
	struct gate *g = gate_there();
	uint32_t fallback = g ? __atomic_load_n(&g->device[device].turn->fallback, __ATOMIC_RELAXED) : 0;
	uint32_t cores = s ? __atomic_load_n(&s->policy.device[device].cores, __ATOMIC_RELAXED) : 0;
	uint32_t ceiling = s ? __atomic_load_n(&s->policy.device[device].ceiling, __ATOMIC_RELAXED) : 0;
	uint32_t permille = fallback ? fallback : cores ? cores : ceiling;
	return permille >= 1 && permille <= 1000 ? permille : 1000;
}

void gate_pay(struct gate *g, int device, uint64_t now)
{
	struct gate_device *d = &g->device[device];
	uint64_t from = d->charged_ns > d->busy_ns ? d->charged_ns : d->busy_ns;
	if (!d->degraded || !d->busy_ns || now <= from)
		return;
	d->charged_ns = now;
	uint64_t price = (now - from) * 1000 / rate(device) / gate_peers(g, device, now);
	uint64_t most = now + PTG_BUCKET_NS + DEBT_NS;
	uint64_t before = __atomic_load_n(d->bucket, __ATOMIC_RELAXED), after;
	do {
		after = before > most ? most : (before > now ? before : now) + price;
		after = after > most ? most : after;
	} while (!__atomic_compare_exchange_n(d->bucket, &before, after, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
}

/* How long until it may launch; 0: now. */
static uint64_t bucket_full(struct gate *g, int device, uint64_t now)
{
	gate_pay(g, device, now);
	uint64_t *bucket = g->device[device].bucket, until = __atomic_load_n(bucket, __ATOMIC_RELAXED);
	if (until <= now + PTG_BUCKET_NS)
		return 0;
	if (until > now + PTG_BUCKET_NS + DEBT_NS) /* a scribbled ledger's */
		__atomic_compare_exchange_n(bucket, &until, now + PTG_BUCKET_NS + DEBT_NS, false, __ATOMIC_RELAXED,
		                            __ATOMIC_RELAXED);
	until -= now + PTG_BUCKET_NS;
	return until < DEBT_NS ? until : DEBT_NS;
}

static void degrade(struct gate *g, int device, bool degraded, uint64_t now)
{
	struct gate_device *d = &g->device[device];
	if (d->degraded == degraded)
		return;
	if (degraded)
		d->charged_ns = now;
	d->degraded = degraded;
	__atomic_store_n(&d->line->degraded, degraded, __ATOMIC_RELEASE);
	if (degraded)
		vgpu_log(VGPU_LOG_WARNING,
		         "no arbiter answers for device %d of the grant: launches go by the share's own bucket",
		         device);
	else
		vgpu_log(VGPU_LOG_WARNING,
		         "the arbiter answers again for device %d of the grant: launches wait for turns", device);
}

/* ---- the turn ----------------------------------------------------------------------------------------------------------- */

static bool alive(const struct gate_device *d, uint64_t now)
{
	uint64_t beat = __atomic_load_n(&d->turn->heartbeat_ns, __ATOMIC_ACQUIRE);
	return beat > now ? beat - now < PTG_PATIENCE_NS : now - beat < PTG_PATIENCE_NS;
}

static bool has_turn(const struct gate_device *d, struct gate_wait *wait, uint64_t now)
{
	wait->word = __atomic_load_n(&d->turn->word, __ATOMIC_SEQ_CST); /* after `busy_ns` is stored, see ledger.h */
	uint64_t deadline = __atomic_load_n(&d->turn->deadline_ns, __ATOMIC_ACQUIRE);
	bool in_time = deadline > now && deadline - now <= DEADLINE_NS;
	wait->sleep_ns = (wait->word & 1) && !in_time ? EXPIRED_NS : SLEEP_NS;
	return (wait->word & 1) && in_time;
}

/* Nobody answers: there never was an arbiter, or one that was asked has said nothing for so long. */
static bool deserted(const struct gate *g, const struct gate_device *d, const struct gate_wait *wait, uint64_t now)
{
	if (!g->turns || (__atomic_load_n(&g->turns->arbiter, __ATOMIC_RELAXED) == 0 &&
	                  __atomic_load_n(&d->turn->heartbeat_ns, __ATOMIC_RELAXED) == 0))
		return true;
	return wait->want_ns != 0 && now - wait->want_ns >= PTG_PATIENCE_NS;
}

/* ---- work that does not end --------------------------------------------------------------------------------------------- */

/* What is in flight may need the next launch in order to end, or be long: one launch is let through, and, as long as still
 * nothing ends, twice as many after every further guard, each of which is longer by one than the last: a queue of a thousand
 * fills in seconds, and a kernel of a second has some dozens behind it, not a thousand. */
static uint64_t guard(const struct gate_device *d)
{
	unsigned times = d->doubled ? 33 - (unsigned)__builtin_clz(d->doubled) : 1;
	return GATE_GUARD_NS * times;
}

static bool let_through(struct gate *g, int device, struct gate_wait *wait, uint64_t now)
{
	struct gate_device *d = &g->device[device];
	if (wait->room_ns == 0 || wait->over != d->over) {
		wait->over = d->over;
		wait->room_ns = now + (d->stuck ? 0 : 2 * gate_in_flight(g, device)) + guard(d);
	}
	if (d->let == 0 && now >= wait->room_ns) {
		d->stuck = true;
		d->doubled = d->doubled ? 2 * d->doubled : 1;
		d->let = d->doubled;
	}
	if (d->let == 0)
		return false;
	d->let--;
	return true;
}

/* ---- turn or bucket ------------------------------------------------------------------------------------------------------ */

static bool may_by_turn(struct gate *g, int device, struct gate_wait *wait, uint64_t now)
{
	struct gate_device *d = &g->device[device];
	bool turn = has_turn(d, wait, now);
	if (alive(d, now))
		degrade(g, device, false, now);
	else if (!turn && deserted(g, d, wait, now))
		degrade(g, device, true, now);
	if (!d->degraded)
		return turn;
	uint64_t until = bucket_full(g, device, now);
	wait->sleep_ns = until < SLEEP_NS ? until : SLEEP_NS;
	/* As long as something is in flight the bucket pays for it, and may never be full again. */
	wait->let = until != 0 && d->busy_ns && let_through(g, device, wait, now);
	return until == 0 || wait->let;
}

/* ---- room --------------------------------------------------------------------------------------------------------------- */

/* For all processes of the container together: gate_peers.c sees to it. */
uint64_t gate_bound(const struct gate *g, int device)
{
	const struct gate_device *d = &g->device[device];
	uint64_t bound = UINT64_C(1000) * __atomic_load_n(&d->turn->outstanding_us, __ATOMIC_RELAXED);
	if (bound == 0 || bound > UINT64_C(1000000000))
		bound = GATE_FLIGHT_NS;
	if (__atomic_load_n(&d->turn->flags, __ATOMIC_RELAXED) & PTG_TURN_SHORT && bound > GATE_SHORT_NS)
		bound = GATE_SHORT_NS;
	return bound;
}

/* One launch always has room, unless another process of the container is next. */
static bool has_room(struct gate *g, int device, struct gate_wait *wait, uint64_t now)
{
	struct gate_device *d = &g->device[device];
	uint64_t flight = gate_in_flight(g, device);
	bool yields = gate_peers_next(g, device, wait, now);
	if (!yields && (flight == 0 || flight + gate_mean(d, wait->work) <= gate_bound(g, device)))
		return true;
	if (yields && flight == 0 && gate_settle(g, device, vgpu_gate_self, now)) {
		wait->behind = true;
		return false;
	}
	if (wait->let || let_through(g, device, wait, now))
		return true;
	if (yields)
		gate_peers_leave(g, device, now);
	uint64_t next = gate_look_at(d, gate_next_over(g, device), now);
	wait->sleep_ns = next - now < GATE_TICK_NS ? next - now : GATE_TICK_NS;
	return false;
}

/* ---- both --------------------------------------------------------------------------------------------------------------- */

void gate_want(struct gate_device *d, int change, uint64_t now)
{
	d->want += (uint32_t)change;
	if (change > 0 && d->want == 1)
		d->want_ns = now;
	__atomic_store_n(&d->line->want_ns, d->want ? d->want_ns : 0, __ATOMIC_RELAXED);
	__atomic_store_n(&d->line->want, d->want, __ATOMIC_SEQ_CST);
}

void gate_waited(struct gate *g, int device, struct gate_wait *wait)
{
	struct gate_device *d = &g->device[device];
	if (wait->want_ns == 0)
		return;
	uint64_t now = vgpu_now_ns();
	gate_want(d, -1, now);
	if (vgpu_gate_self->used)
		vgpu_gate_self->waiting = 0;
	d->waits++;
	d->waited_ns += now - wait->want_ns;
	wait->want_ns = 0;
	__atomic_store_n(&d->line->waits, d->waits, __ATOMIC_RELAXED);
	__atomic_store_n(&d->line->waited_ns, d->waited_ns, __ATOMIC_RELAXED);
}

/* A period begins, and is withdrawn where the turn has gone meanwhile or others of the container were quicker. */
static bool begins(struct gate *g, int device, const struct gate_wait *wait, uint64_t now)
{
	struct gate_device *d = &g->device[device];
	gate_begin(g, device, now);
	uint32_t word = __atomic_load_n(&d->turn->word, __ATOMIC_SEQ_CST);
	if ((d->degraded || word == wait->word) && !gate_peers_before(g, device))
		return true;
	gate_withdraw(g, device);
	return false;
}

bool gate_may_launch(struct gate *g, int device, struct gate_wait *wait)
{
	struct gate_device *d = &g->device[device];
	for (;;) {
		uint64_t now = vgpu_now_ns();
		wait->free = !gate_gated(device);
		if (wait->free)
			return true;
		wait->room = wait->peers = wait->let = false;
		if (!may_by_turn(g, device, wait, now))
			return false;
		if (d->busy_ns) {
			if (has_room(g, device, wait, now))
				return true;
			wait->room = d->busy_ns != 0;
			if (wait->room)
				return false;
		} else {
			wait->peers = gate_peers_full(g, device, wait, now);
			if (wait->peers)
				return false;
			if (begins(g, device, wait, now))
				return true;
		}
	}
}

static void wait_for_room(struct gate *g, struct gate_wait *wait)
{
	if (gate_ask(g))
		return;
	uint32_t progress = __atomic_load_n(&g->progress, __ATOMIC_ACQUIRE);
	g->sleepers++;
	vgpu_unlock(&g->lock);
	gate_sleep(&g->progress, progress, wait->sleep_ns, false);
	vgpu_lock(&g->lock);
	g->sleepers--;
}

static void wait_for_turn(struct gate *g, int device, struct gate_wait *wait)
{
	struct gate_device *d = &g->device[device];
	uint64_t now = vgpu_now_ns();
	wait->behind = wait->let_pass = false; /* all begin anew with the next turn */
	wait->peers_ns = 0;
	if (wait->want_ns == 0) {
		wait->want_ns = now;
		gate_want(d, 1, now);
		if (vgpu_gate_self->used)
			vgpu_gate_self->waiting = (uint32_t)device + 1;
		wait->spared = d->want == 1;
	}
	/* A new arbiter has not heard the first ring, and who spared this one that may be dead. */
	if (!alive(d, now) || (wait->spared && !gate_peers_asked(g, device, now))) {
		gate_ring(g);
		wait->spared = false;
	}
	gate_settle(g, device, vgpu_gate_self, now);
	gate_helper_need(g, now + gate_in_flight(g, device));
	vgpu_unlock(&g->lock);
	gate_sleep(&d->turn->word, wait->word, wait->sleep_ns, true);
	vgpu_lock(&g->lock);
}

void gate_wait(struct gate *g, int device, struct gate_wait *wait)
{
	if (wait->room || wait->peers)
		gate_waited(g, device, wait); /* it has its turn */
	if (wait->peers) {
		gate_peers_sleep(g, device, wait);
	} else if (wait->room) {
		wait_for_room(g, wait);
	} else {
		wait_for_turn(g, device, wait);
	}
}
