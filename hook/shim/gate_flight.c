/* gate_flight.c: what this process has in flight on a device, and when the period is over.
 *
 * Called with the gate's lock by gate.c, gate_turn.c, gate_marks.c and gate_helper.c. A period ends when nothing is inside,
 * all marks are over and every tail has had its estimated time. Threads that launch without a look are asked for by a
 * barrier: the epoch is counted up, so that from then on every launch takes the slow way, membarrier makes what each
 * thread has stored visible, and then a thread between gate and driver, descheduled or not, is seen by its flag.
 * What can go wrong: a tail lasts longer than its estimate, because its last kernel is of another kind than those before.
 * The mark behind the next launches tells, and the mean rises. */
#include "gate_core.h"

#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MEMBARRIER_EXPEDITED 8 /* MEMBARRIER_CMD_PRIVATE_EXPEDITED */
#define FIRST_MEAN_NS        GATE_FLIGHT_NS /* of what was never seen to end: one at a time */
#define TAIL_GRACE_NS        100000
#define NO_STREAM            ((CUstream)UINTPTR_MAX)

uint64_t gate_mean(const struct gate_device *d, enum vgpu_work work)
{
	return d->mean_ns[work] ? d->mean_ns[work] : FIRST_MEAN_NS;
}

uint32_t gate_every(const struct gate_device *d)
{
	if (d->stuck) /* what does not end may wait for launches that still have to find place in the driver's queue */
		return GATE_EVERY;
	uint64_t mean = gate_mean(d, VGPU_WORK_KERNEL), every = mean < GATE_LONG_NS ? GATE_SPAN_NS / mean : 1;
	return every < 1 ? 1 : every > GATE_EVERY ? GATE_EVERY : (uint32_t)every;
}

/* ---- tails ---------------------------------------------------------------------------------------------------------------- */

static uint32_t tail_of(const struct vgpu_gate_thread *t)
{
	return t->since + t->granted - __atomic_load_n(&t->left, __ATOMIC_RELAXED);
}

void gate_take_stock(struct gate *g, struct vgpu_gate_thread *t, int device, CUstream stream, uint64_t now)
{
	uint32_t launched = t->granted - __atomic_load_n(&t->left, __ATOMIC_RELAXED);
	struct gate_device *d = &g->device[t->device];
	t->granted = 0;
	__atomic_store_n(&t->left, 0, __ATOMIC_RELAXED);
	t->since += launched;
	t->unmarked += launched;
	d->launches += launched;
	d->part_ns += launched * gate_mean(d, VGPU_WORK_KERNEL);
	if (launched)
		__atomic_store_n(&d->line->launches, d->launches, __ATOMIC_RELAXED);
	if (t->since && (t->stream != stream || t->device != device))
		gate_give_up(g, t, now);
	if (t->device != device)
		t->unmarked = 0;
	t->device = device;
	t->stream = stream;
	t->own = stream == CU_STREAM_PER_THREAD ? NULL : stream ? stream : NO_STREAM;
}

uint64_t gate_worth(const struct gate_device *d, const uint32_t launches[VGPU_WORKS])
{
	uint64_t worth = 0;
	for (int work = 0; work < VGPU_WORKS; work++)
		worth += launches[work] * gate_mean(d, (enum vgpu_work)work);
	return worth;
}

void gate_loosen(struct gate_device *d, enum vgpu_work work, uint32_t launches, uint64_t now)
{
	d->loosened += launches;
	d->loose[work] += launches;
	d->loose_at = now;
}

void gate_give_up(struct gate *g, struct vgpu_gate_thread *t, uint64_t now)
{
	struct gate_device *d = &g->device[t->device];
	gate_loosen(d, VGPU_WORK_KERNEL, t->since, now);
	t->since = 0;
	t->tail_seen = 0;
}

/* Launches in tails of a device. */
static uint64_t tails(const struct gate *g, int device)
{
	uint64_t count = 0;
	for (uint32_t i = 0; i < g->high; i++)
		if (g->thread[i].used && g->thread[i].device == device)
			count += tail_of(&g->thread[i]);
	return count;
}

uint64_t gate_in_flight(struct gate *g, int device)
{
	struct gate_device *d = &g->device[device];
	uint64_t flight = gate_worth(d, d->queued) + gate_worth(d, d->loose) + d->unknown_ns +
	                  tails(g, device) * gate_mean(d, VGPU_WORK_KERNEL);
	return flight || !d->marks ? flight : 1;
}

/* A tail that stays as it is for as long as it may take has run. */
static bool tail_over(struct gate_device *d, struct vgpu_gate_thread *t, uint64_t now)
{
	uint32_t tail = tail_of(t);
	if (tail == 0)
		return true;
	if (t->tail_seen != tail) {
		t->tail_seen = tail;
		t->tail_at = now;
		return false;
	}
	uint64_t end = t->tail_at + tail * gate_mean(d, VGPU_WORK_KERNEL);
	if (now < end + TAIL_GRACE_NS)
		return false;
	d->known_ns = d->known_ns > end ? d->known_ns : end;
	return true;
}

static bool loose_over(struct gate_device *d, uint64_t now)
{
	uint64_t worth = gate_worth(d, d->loose);
	uint64_t end = (d->loose_at > d->known_ns ? d->loose_at : d->known_ns) + worth;
	if (worth == 0)
		return true;
	if (now < end + TAIL_GRACE_NS)
		return false;
	memset(d->loose, 0, sizeof d->loose);
	d->known_ns = end;
	return true;
}

static bool tails_over(struct gate *g, int device, uint64_t now)
{
	struct gate_device *d = &g->device[device];
	bool over = loose_over(d, now);
	for (uint32_t i = 0; i < g->high; i++) {
		struct vgpu_gate_thread *t = &g->thread[i];
		if (t->used && t->device == device)
			over = tail_over(d, t, now) && over;
	}
	return over;
}

/* ---- periods -------------------------------------------------------------------------------------------------------------- */

static void store_busy(struct gate *g, int device, uint64_t since)
{
	struct gate_device *d = &g->device[device];
	d->busy_ns = since;
	__atomic_store_n(&d->line->busy_ns, since, __ATOMIC_SEQ_CST);
	if (since)
		__atomic_or_fetch(&vgpu_gate_busy, UINT32_C(1) << device, __ATOMIC_SEQ_CST);
	else
		__atomic_and_fetch(&vgpu_gate_busy, ~(UINT32_C(1) << device), __ATOMIC_SEQ_CST);
}

void gate_begin(struct gate *g, int device, uint64_t now)
{
	struct gate_device *d = &g->device[device];
	if (d->busy_ns)
		return;
	d->seen_ns = d->known_ns = now;
	d->part_ns = 0;
	store_busy(g, device, now);
	if (__atomic_load_n(&d->turn->flags, __ATOMIC_SEQ_CST) & PTG_TURN_WATCHED && /* not before it is stored */
	    !gate_peers_began(g, device, now))
		gate_ring(g);
}

/* Of several processes that end at once, the last one finds that nobody of the container is at work any more. */
static void tell_end(struct gate *g, int device, uint64_t now)
{
	if (gate_urgent(&g->device[device]) && !gate_peers_go_on(g, device, now))
		gate_ring(g);
}

void gate_withdraw(struct gate *g, int device)
{
	uint64_t now = vgpu_now_ns();
	store_busy(g, device, 0);
	tell_end(g, device, now);
	gate_peers_ended(&g->device[device], now);
}

static void end_period(struct gate *g, int device, uint64_t now)
{
	struct gate_device *d = &g->device[device];
	uint64_t end = d->known_ns < d->busy_ns ? d->busy_ns : d->known_ns;
	gate_pay(g, device, end);
	d->flight_ns += end - d->busy_ns;
	memset(d->loose, 0, sizeof d->loose);
	__atomic_store_n(&d->line->flight_ns, d->flight_ns, __ATOMIC_RELAXED);
	__atomic_store_n(&d->line->idle_ns, end, __ATOMIC_RELAXED);
	store_busy(g, device, 0);
	tell_end(g, device, now);
	gate_peers_ended(d, now);
}

/* No thread launches without a look from here on, and none is on its way; false: one is, or some have meanwhile. */
static bool all_out(struct gate *g, int device, const struct vgpu_gate_thread *self)
{
	bool others = g->threads > (self && self->used ? 1 : 0);
	uint64_t before = tails(g, device);
	__atomic_add_fetch(&vgpu_gate_epoch, 1, __ATOMIC_SEQ_CST);
	if (!others || !g->barrier)
		return true;
	if (syscall(SYS_membarrier, MEMBARRIER_EXPEDITED, 0, 0) != 0)
		return false;
	for (uint32_t i = 0; i < g->high; i++)
		if (&g->thread[i] != self && __atomic_load_n(&g->thread[i].entered, __ATOMIC_ACQUIRE))
			return false;
	return tails(g, device) == before;
}

/* Nobody's tail is worth a look any more. */
static void forget_tails(struct gate *g, int device)
{
	for (uint32_t i = 0; i < g->high; i++) {
		struct vgpu_gate_thread *t = &g->thread[i];
		if (!t->used || t->device != device)
			continue;
		uint32_t launched = t->granted - __atomic_load_n(&t->left, __ATOMIC_RELAXED);
		g->device[device].launches += launched;
		t->granted -= launched; /* its `left` is its own to write, and of no use in this epoch */
		t->since = t->unmarked = t->tail_seen = 0;
	}
}

bool gate_settle(struct gate *g, int device, const struct vgpu_gate_thread *self, uint64_t now)
{
	struct gate_device *d = &g->device[device];
	if (!d->busy_ns || d->inside || d->marks || !tails_over(g, device, now))
		return false;
	bool alone = g->threads <= (self && self->used ? 1 : 0);
	if (!alone && !gate_awaited(d, now) && now - d->known_ns < GATE_LAZY_NS)
		return false; /* a barrier for each pause would cost more than it tells anybody */
	if (!all_out(g, device, self))
		return false;
	forget_tails(g, device);
	end_period(g, device, now);
	return true;
}
