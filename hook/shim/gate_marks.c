/* gate_marks.c: events behind launches, and what they tell: what is over, and how long launches take.
 *
 * Called by gate.c (a mark behind a launch), gate_turn.c (who waits for room asks), gate_helper.c (asks the rest of the
 * time) and gate_told.c. The driver is called without the lock, with stream capture of the
 * calling thread relaxed, so that no capture of any thread is disturbed, and with cancellation off. One thread at a time
 * asks; a query never blocks, so whoever has to be sure that nobody uses an event (a context is about to end) waits for
 * microseconds.
 * What can go wrong: no event can be had, or a query fails because the context or the device is lost: what was launched is
 * then taken to be over. A thread that never comes back from asking (longjmp) is overtaken after a second. */
#include "gate_core.h"

#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define OVERTAKE_NS UINT64_C(1000000000)
#define AT_ONCE     32 /* marks asked about together */
#define STREAMS     8 /* with a mark that is not over: what lies behind it on them is not asked */
#define MEAN_MOST   UINT64_C(10000000000)
#define MEAN_LEAST  200

static CUstreamCaptureMode driver_begin(int *cancel)
{
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, cancel);
	return vgpu_relax();
}

static void driver_end(CUstreamCaptureMode before, int cancel)
{
	vgpu_unrelax(before);
	pthread_setcancelstate(cancel, NULL);
}

/* ---- recording ---------------------------------------------------------------------------------------------------------- */

static CUevent spare_event(struct gate *g, CUcontext context)
{
	CUevent event = NULL;
	vgpu_lock(&g->lock);
	for (unsigned i = g->spares; i-- > 0 && !event;) {
		if (g->spare[i].context != context)
			continue;
		event = g->spare[i].event;
		g->spare[i] = g->spare[--g->spares];
	}
	vgpu_unlock(&g->lock);
	return event;
}

/* With the lock. There is room for every event that a mark can have; those of many contexts may be more. */
static void keep_event(struct gate *g, CUcontext context, CUevent event)
{
	if (g->spares < GATE_SPARES)
		g->spare[g->spares++] = (struct gate_spare){.context = context, .event = event};
}

static bool full(struct gate *g)
{
	vgpu_lock(&g->lock);
	bool none = g->count >= GATE_MARKS || g->frozen;
	vgpu_unlock(&g->lock);
	return none;
}

/* The event is made, or was, in the current context. */
static bool record_here(struct gate *g, CUcontext context, CUstream stream, bool all, struct gate_mark *mark)
{
	CUevent event = spare_event(g, context);
	if (!event && real_cuEventCreate(&event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS)
		return false;
	mark->context = context;
	mark->event = event;
	if ((all ? real_cuCtxRecordEvent(context, event) : real_cuEventRecord(event, stream)) == CUDA_SUCCESS)
		return true;
	vgpu_lock(&g->lock);
	keep_event(g, context, event);
	vgpu_unlock(&g->lock);
	return false;
}

/* A launch may go to a stream of another context than the current one. */
static bool record(struct gate *g, CUstream stream, bool all, struct gate_mark *mark)
{
	CUcontext context = NULL, owner = NULL, old;
	if (real_cuCtxGetCurrent(&context) == CUDA_SUCCESS && context && record_here(g, context, stream, all, mark))
		return true;
	if (all || real_cuStreamGetCtx(stream, &owner) != CUDA_SUCCESS || owner == context ||
	    real_cuCtxPushCurrent_v2(owner) != CUDA_SUCCESS)
		return false;
	bool recorded = record_here(g, owner, stream, false, mark);
	real_cuCtxPopCurrent_v2(&old);
	return recorded;
}

bool gate_record(struct gate *g, CUstream stream, struct gate_mark *mark)
{
	int cancel;
	if (full(g))
		return false;
	CUstreamCaptureMode before = driver_begin(&cancel);
	bool recorded = record(g, stream, false, mark);
	driver_end(before, cancel);
	return recorded;
}

bool gate_record_all(struct gate *g, struct gate_mark *mark)
{
	int cancel;
	if (full(g) || !gate_hold_captures())
		return false;
	CUstreamCaptureMode before = driver_begin(&cancel);
	bool recorded = record(g, NULL, true, mark);
	driver_end(before, cancel);
	gate_release_captures();
	return recorded;
}

void gate_push(struct gate *g, const struct gate_mark *mark)
{
	struct gate_device *d = &g->device[mark->device];
	if (g->count >= GATE_MARKS || g->frozen) {
		/* Others were quicker, or a context is about to end: taken to last as long as estimated. */
		for (int work = 0; work < VGPU_WORKS; work++)
			gate_loosen(d, (enum vgpu_work)work, mark->launches[work], vgpu_now_ns());
		keep_event(g, mark->context, mark->event);
		return;
	}
	struct gate_mark *new = &g->mark[g->count++];
	*new = *mark;
	new->seq = ++g->seq;
	for (int work = 0; work < VGPU_WORKS; work++) {
		new->launches[work] += d->loose[work];
		d->queued[work] += new->launches[work];
		d->loose[work] = 0;
	}
	d->unknown_ns += new->unknown_ns;
	d->marks++;
}

uint64_t gate_next_over(const struct gate *g, int device)
{
	for (unsigned i = 0; i < g->count; i++)
		if (g->mark[i].device == device && !g->mark[i].over)
			return g->device[device].seen_ns + gate_worth(&g->device[device], g->mark[i].launches) +
			       g->mark[i].unknown_ns;
	return 0;
}

/* ---- what is over --------------------------------------------------------------------------------------------------------- */

static uint64_t clip(uint64_t value, uint64_t least, uint64_t most)
{
	return value < least ? least : value > most ? most : value;
}

/* The means move by what the marks took, against what they were expected to take. All that is known of it are two looks,
 * at the first of which they were not over: an expectation between the two is kept. Who looks late learns nothing. Where
 * other processes of the container have work in flight too, the device may have spent their part of the time on theirs. */
static void learn(struct gate *g, int device, const uint32_t launches[VGPU_WORKS], uint64_t least, uint64_t most)
{
	struct gate_device *d = &g->device[device];
	uint64_t expected = gate_worth(d, launches);
	uint64_t took = clip(expected, least / gate_peers(g, device, vgpu_now_ns()), most);
	for (int work = 0; work < VGPU_WORKS; work++) {
		if (launches[work] == 0)
			continue;
		uint64_t mean = gate_mean(d, (enum vgpu_work)work);
		uint64_t now = took > expected * 16 ? mean * 16 : (uint64_t)((__uint128_t)mean * took / expected);
		bool first = d->mean_ns[work] == 0;
		/* Falls quickly; a little more is a thread that looked late, a lot more is other work. */
		if (first)
			mean = mean * most / expected;
		else
			mean = now < mean || now > 4 * mean ? (mean + now) / 2 : (3 * mean + now) / 4;
		d->mean_ns[work] = mean < MEAN_LEAST ? MEAN_LEAST : mean > MEAN_MOST ? MEAN_MOST : mean;
	}
}

/* Counts what is over on a device, and learns from it. */
static void count_over(struct gate *g, int device, uint64_t now)
{
	struct gate_device *d = &g->device[device];
	uint32_t launches[VGPU_WORKS] = {0};
	uint64_t first = UINT64_MAX, over = d->over, open = 0;
	bool teaches = true;
	for (unsigned i = 0; i < g->count; i++) {
		const struct gate_mark *m = &g->mark[i];
		if (m->device != device || !m->over)
			continue;
		for (int work = 0; work < VGPU_WORKS; work++) {
			launches[work] += m->launches[work];
			d->queued[work] -= m->launches[work];
		}
		d->unknown_ns -= m->unknown_ns;
		d->over++;
		d->marks--;
		first = m->first_ns < first ? m->first_ns : first;
		open = m->open_ns > open ? m->open_ns : open;
		teaches = teaches && m->unknown_ns == 0;
	}
	if (d->over == over)
		return;
	uint64_t from = first > d->seen_ns ? first : d->seen_ns;
	uint64_t most = now > from ? now - from : 0, least = clip(open > from ? open - from : 0, 0, most);
	if (teaches)
		learn(g, device, launches, least, most);
	d->seen_ns = d->known_ns = teaches ? from + clip(gate_worth(d, launches), least, most) : now;
	d->stuck = false;
	d->let = d->doubled = 0;
}

void gate_sweep(struct gate *g, uint64_t now)
{
	unsigned kept = 0;
	for (int device = 0; device < PTG_DEVICES; device++)
		if (g->device[device].marks)
			count_over(g, device, now);
	for (unsigned i = 0; i < g->count; i++) {
		if (g->mark[i].over)
			keep_event(g, g->mark[i].context, g->mark[i].event);
		else
			g->mark[kept++] = g->mark[i];
	}
	if (kept == g->count)
		return;
	g->count = kept;
	__atomic_add_fetch(&g->progress, 1, __ATOMIC_RELEASE);
	if (g->sleepers)
		syscall(SYS_futex, &g->progress, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

/* ---- asking ----------------------------------------------------------------------------------------------------------------- */

struct question {
	CUcontext context;
	CUevent event;
	CUstream stream;
	uint64_t seq;
	bool over;
};

static bool query(const struct question *q)
{
	CUcontext old;
	if (real_cuCtxPushCurrent_v2(q->context) != CUDA_SUCCESS)
		return true; /* it is gone */
	CUresult result = real_cuEventQuery(q->event);
	real_cuCtxPopCurrent_v2(&old);
	return result != CUDA_ERROR_NOT_READY;
}

static void put(struct question *q, unsigned count)
{
	CUstream waits[STREAMS];
	unsigned streams = 0;
	for (unsigned i = 0; i < count && streams < STREAMS; i++) {
		bool behind = false;
		for (unsigned k = 0; k < streams; k++)
			behind = behind || waits[k] == q[i].stream;
		if (behind)
			continue;
		q[i].over = query(&q[i]);
		if (!q[i].over)
			waits[streams++] = q[i].stream;
	}
}

static void hear(struct gate *g, const struct question *q, unsigned count, uint64_t asked)
{
	unsigned at = 0;
	for (unsigned i = 0; i < count; i++) {
		while (at < g->count && g->mark[at].seq < q[i].seq)
			at++;
		if (at >= g->count || g->mark[at].seq != q[i].seq)
			continue;
		if (q[i].over)
			g->mark[at].over = true;
		else
			g->mark[at].open_ns = asked;
	}
}

bool gate_ask(struct gate *g)
{
	struct question q[AT_ONCE];
	unsigned count = 0;
	int cancel;
	uint64_t now = vgpu_now_ns();
	if (g->frozen || g->count == 0 || (g->asking && now - g->asking_ns < OVERTAKE_NS))
		return false;
	for (unsigned i = 0; i < g->count && count < AT_ONCE; i++)
		if (!g->mark[i].over)
			q[count++] = (struct question){.context = g->mark[i].context,
			                               .event = g->mark[i].event,
			                               .stream = g->mark[i].stream,
			                               .seq = g->mark[i].seq};
	__atomic_store_n(&g->asking, 1, __ATOMIC_RELEASE);
	g->asking_ns = g->asked_ns = now;
	vgpu_unlock(&g->lock);
	CUstreamCaptureMode before = driver_begin(&cancel);
	put(q, count);
	driver_end(before, cancel);
	vgpu_lock(&g->lock);
	__atomic_store_n(&g->asking, 0, __ATOMIC_RELEASE);
	hear(g, q, count, now);
	unsigned marks = g->count;
	gate_sweep(g, vgpu_now_ns());
	return g->count != marks;
}
