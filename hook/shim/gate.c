/* gate.c: the slow way of a launch: in, and out again.
 *
 * Called by the generated slow_X() of the launch calls and by large copies: where the gate word is not 0, and at the first
 * launch of each kind, when the driver's function is not looked up yet. The order in here is the protocol of struct
 * ptg_slot_turn: the period is begun in the ledger, then the turn's word is looked at again, then the launch goes.
 * What can go wrong: no policy, no ledger, no slot, no turns file, no memory: without a policy nothing waits, without the
 * rest launches go by the private bucket. A thread that leaves a launch by longjmp or dies in it is put right at its next
 * launch, or by the end of its thread. Nothing here fails a launch. */
#include "gate_core.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "threads.h"

#define MEMBARRIER_REGISTER 16 /* MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED */

static struct vgpu_gate_thread nobody;

uint32_t vgpu_gate_epoch;
uint32_t vgpu_gate_busy;
__thread struct vgpu_gate_thread *vgpu_gate_self __attribute__((tls_model("initial-exec"))) = &nobody;

static struct gate *gate;
static pthread_key_t thread_key;
static uint32_t thread_key_made;

static void forked(void)
{
	vgpu_gate_self = &nobody;
	vgpu_gate_busy = 0;
	if (gate)
		memset(gate, 0, sizeof *gate);
}

/* ---- set up ---------------------------------------------------------------------------------------------------------- */

static void set_up_device(struct gate *g, struct vgpu_state *s, int index, bool slot)
{
	static const struct ptg_turn no_turn;
	struct gate_device *d = &g->device[index];
	uint32_t turn = s->policy.device[index].turn;
	d->turn = s->turns && turn < PTG_DEVICES && turn < s->turns->ndev ? &s->turns->turn[turn] : &no_turn;
	d->line = slot ? &s->ledger.map->turn[index][s->slot] : &g->line[index];
	d->common = slot ? &s->ledger.map->device[index] : NULL;
	d->bucket = slot ? &s->ledger.map->device[index].bucket_ns : &g->bucket[index];
}

/* With the gate's lock. */
static void set_up(struct gate *g, struct vgpu_state *s)
{
	vgpu_lock(&s->lock);
	bool slot = vgpu_slot_ready(s);
	for (int i = 0; i < PTG_DEVICES; i++)
		set_up_device(g, s, i, slot);
	g->turns = s->turns;
	g->bell = slot ? &s->ledger.map->turn_bell : NULL;
	g->ndev = s->policy.ndev;
	vgpu_unlock(&s->lock);
	g->barrier = syscall(SYS_membarrier, MEMBARRIER_REGISTER, 0, 0) == 0;
	__atomic_store_n(&g->ready, 1, __ATOMIC_RELEASE);
}

struct gate *gate_there(void)
{
	struct gate *g = __atomic_load_n(&gate, __ATOMIC_ACQUIRE);
	return g && __atomic_load_n(&g->ready, __ATOMIC_ACQUIRE) ? g : NULL;
}

static struct gate *pages(void)
{
	struct gate *g = __atomic_load_n(&gate, __ATOMIC_ACQUIRE);
	if (g)
		return g;
	struct gate *fresh = vgpu_private_pages(sizeof *fresh);
	if (!fresh)
		return NULL;
	if (__atomic_compare_exchange_n(&gate, &g, fresh, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
		vgpu_at_fork(forked);
		return fresh;
	}
	munmap(fresh, sizeof *fresh);
	return g;
}

struct gate *gate_get(void)
{
	struct gate *g = gate_there();
	if (__builtin_expect(g != NULL, 1))
		return g;
	struct vgpu_state *s = vgpu_state();
	if (!s || !s->from_file || !vgpu_good(s) || !(g = pages()))
		return NULL;
	vgpu_lock(&g->lock);
	if (!g->ready)
		set_up(g, s);
	vgpu_unlock(&g->lock);
	return g;
}

/* ---- threads ---------------------------------------------------------------------------------------------------------- */

/* With the lock: whatever the thread was in the middle of is over. */
static void put_right(struct gate *g, struct vgpu_gate_thread *t)
{
	if (t->inside) {
		g->device[t->inside - 1].inside--;
		t->inside = 0;
	}
	if (t->waiting) {
		struct gate_device *d = &g->device[t->waiting - 1];
		t->waiting = 0;
		gate_want(d, -1, vgpu_now_ns());
	}
}

/* Also of a thread that was cancelled. Its memory stays: somebody may be looking at it. */
static void thread_ends(void *block)
{
	struct vgpu_gate_thread *t = block;
	struct gate *g = gate_there();
	vgpu_gate_self = &nobody;
	if (!g || !t->used) /* it is a fork's child now */
		return;
	vgpu_lock(&g->lock);
	put_right(g, t);
	gate_take_stock(g, t, t->device, t->stream, vgpu_now_ns());
	gate_give_up(g, t, vgpu_now_ns());
	__atomic_store_n(&t->entered, 0, __ATOMIC_RELEASE);
	t->used = 0;
	g->threads--;
	gate_helper_need(g, vgpu_now_ns());
	vgpu_unlock(&g->lock);
}

/* The first thread makes the key; without one, threads are given nothing in advance, and leave nothing behind. */
static bool key_ready(void)
{
	uint32_t made = __atomic_load_n(&thread_key_made, __ATOMIC_ACQUIRE);
	if (made == 0 &&
	    __atomic_compare_exchange_n(&thread_key_made, &made, 1, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
		made = vgpu_thread_key(&thread_key, thread_ends) ? 2 : 3;
		__atomic_store_n(&thread_key_made, made, __ATOMIC_RELEASE);
	}
	return made == 2;
}

static struct vgpu_gate_thread *own_block(struct gate *g)
{
	struct vgpu_gate_thread *t = vgpu_gate_self;
	if (__builtin_expect(t != &nobody && t->used, 1))
		return t;
	if (!key_ready())
		return NULL;
	t = NULL;
	vgpu_lock(&g->lock);
	for (uint32_t i = 0; i < GATE_THREADS && !t; i++)
		if (!g->thread[i].used)
			t = &g->thread[i];
	if (t) {
		memset(&t->used, 0, sizeof *t - offsetof(struct vgpu_gate_thread, used));
		__atomic_store_n(&t->left, 0, __ATOMIC_RELAXED);
		t->used = 1;
		g->threads++;
		if (g->high <= (uint32_t)(t - g->thread))
			g->high = (uint32_t)(t - g->thread) + 1;
	}
	vgpu_unlock(&g->lock);
	if (!t || !vgpu_thread_value(thread_key, t))
		return NULL;
	return vgpu_gate_self = t;
}

/* ---- in ---------------------------------------------------------------------------------------------------------------- */

/* Index of the device that a launch goes to; below 0: none of ours. */
static int device_of(const struct gate *g, CUstream stream)
{
	CUdevice device = -1;
	if (g->ndev == 1)
		return 0;
	bool named = stream != NULL && stream != CU_STREAM_LEGACY && stream != CU_STREAM_PER_THREAD;
	if (named && real_cuStreamGetDevice(stream, &device) == CUDA_SUCCESS)
		return vgpu_index_of(device);
	CUresult error;
	device = vgpu_current_device(&error);
	return error == CUDA_SUCCESS ? vgpu_index_of(device) : -1;
}

/* The first launch here since the policy changed: what was launched without a look before is work in flight like any
 * other. Where a stream captures, no event can be had behind all streams: the next launch tries again. */
static void meet(struct gate *g, int device, CUstream stream)
{
	struct gate_device *d = &g->device[device];
	uint32_t policy = vgpu_policy_number();
	if (__builtin_expect(d->met && d->policy == policy, 1))
		return;
	struct gate_mark mark = {.device = device};
	uint64_t now = vgpu_now_ns();
	bool busy = d->met && d->busy_ns != 0; /* a policy that changed in something else */
	gate_begin(g, device, now);
	d->inside++; /* so that the period lasts */
	vgpu_unlock(&g->lock);
	bool recorded = gate_record_all(g, &mark) || gate_record(g, stream, &mark);
	vgpu_lock(&g->lock);
	d->inside--;
	d->met = recorded || !gate_any_capture();
	d->policy = policy;
	if (recorded) {
		mark.unknown_ns = busy ? 1 : gate_bound(g, device); /* nobody knows */
		mark.first_ns = now;
		gate_push(g, &mark);
		gate_ask(g);
	}
	gate_settle(g, device, vgpu_gate_self, vgpu_now_ns());
}

/* Without a driver that is up (in a fork's child), or any context, a launch fails: it does not wait for that. */
static bool can_run(CUstream stream)
{
	CUcontext context = NULL;
	CUresult result = real_cuCtxGetCurrent(&context);
	bool own = stream == NULL || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD;
	return result == CUDA_SUCCESS && (context != NULL || !own);
}

static void admit(struct gate *g, int device, struct vgpu_launch *launch)
{
	struct gate_device *d = &g->device[device];
	struct vgpu_gate_thread *t = own_block(g);
	struct gate_wait wait = {.work = launch->work};
	vgpu_lock(&g->lock);
	if (t) {
		put_right(g, t);
		gate_take_stock(g, t, device, launch->stream, vgpu_now_ns());
	}
	meet(g, device, launch->stream);
	while (!gate_may_launch(g, device, &wait))
		gate_wait(g, device, &wait);
	gate_waited(g, device, &wait);
	if (!wait.free) {
		launch->device = device;
		launch->word = wait.word;
		launch->mark = !t || launch->work != VGPU_WORK_KERNEL || t->unmarked + 1 >= gate_every(d);
		launch->begun_ns = vgpu_now_ns();
		d->inside++;
		if (t)
			t->inside = (uint32_t)device + 1;
	}
	vgpu_unlock(&g->lock);
}

void vgpu_gate_enter(struct vgpu_launch *launch)
{
	int error = errno;
	launch->device = -1;
	__atomic_store_n(&vgpu_gate_self->entered, 0, __ATOMIC_RELEASE);
	if (__atomic_load_n(vgpu_gate_at, __ATOMIC_ACQUIRE) == 0)
		vgpu_state(); /* the first call of all may be a launch */
	struct gate *g = __atomic_load_n(vgpu_gate_at, __ATOMIC_ACQUIRE) != 0 ? gate_get() : NULL;
	if (g && can_run(launch->stream) && !gate_capturing(launch->stream)) { /* what is captured does not run now */
		int device = device_of(g, launch->stream);
		if (device >= 0 && device < PTG_DEVICES && gate_gated(device))
			admit(g, device, launch);
	}
	errno = error;
}

/* ---- out --------------------------------------------------------------------------------------------------------------- */

/* How many more the thread may launch before it looks again. */
static void give(struct gate *g, int device, struct vgpu_gate_thread *t, uint32_t word)
{
	struct gate_device *d = &g->device[device];
	uint32_t every = gate_every(d), left = 0;
	/* With several devices a launch may go to another one than the last. */
	if (g->ndev == 1 && g->barrier && t->unmarked + 1 < every && !gate_any_capture())
		left = every - 1 - t->unmarked;
	if (left) {
		uint64_t bound = gate_bound(g, device), flight = gate_in_flight(g, device);
		uint64_t most = flight < bound ? (bound - flight) / gate_mean(d, VGPU_WORK_KERNEL) : 0;
		left = left < most ? left : (uint32_t)most;
	}
	t->word = &d->turn->word;
	t->seen = word;
	t->epoch = vgpu_gate_epoch;
	t->granted = left;
	__atomic_store_n(&t->left, left, __ATOMIC_RELAXED);
}

static void account(struct gate *g, struct vgpu_launch *launch, struct vgpu_gate_thread *t, struct gate_mark *mark,
                    bool marked)
{
	struct gate_device *d = &g->device[launch->device];
	uint64_t now = vgpu_now_ns();
	uint32_t before = t && t->device == launch->device ? t->since : 0;
	d->launches++;
	d->part_ns += gate_mean(d, launch->work);
	d->launched_ns = now;
	__atomic_store_n(&d->line->launches, d->launches, __ATOMIC_RELAXED);
	if (marked) {
		mark->device = launch->device;
		mark->stream = launch->stream;
		mark->first_ns = launch->begun_ns;
		mark->launches[VGPU_WORK_KERNEL] = before;
		mark->launches[launch->work]++;
		gate_push(g, mark);
		if (t && t->device == launch->device)
			t->since = t->unmarked = t->tail_seen = 0;
	} else if (t && launch->work == VGPU_WORK_KERNEL && t->device == launch->device) {
		t->since++;
		t->unmarked++;
		t->tail_seen = 0;
	} else {
		gate_loosen(d, launch->work, 1, now);
	}
	if (t && t->device == launch->device)
		give(g, launch->device, t, launch->word);
	gate_helper_need(g, gate_awaited(d, now) ? now + gate_in_flight(g, launch->device) : now + GATE_TICK_NS);
}

void vgpu_gate_leave(struct vgpu_launch *launch, CUresult result)
{
	if (launch->device < 0)
		return;
	int error = errno;
	struct gate *g = gate_there();
	struct vgpu_gate_thread *t = vgpu_gate_self->used ? vgpu_gate_self : NULL;
	struct gate_mark mark = {0};
	if (!g) /* it forked in there */
		return;
	bool marked = result == CUDA_SUCCESS && launch->mark && gate_record(g, launch->stream, &mark);
	vgpu_lock(&g->lock);
	if (!t || t->inside)
		g->device[launch->device].inside--;
	if (t)
		t->inside = 0;
	if (result == CUDA_SUCCESS)
		account(g, launch, t, &mark, marked);
	else
		gate_settle(g, launch->device, t, vgpu_now_ns());
	vgpu_unlock(&g->lock);
	errno = error;
}

/* ---- one launch on several devices -------------------------------------------------------------------------------------- */

void vgpu_gate_enter_list(struct vgpu_launch *launch, const CUDA_LAUNCH_PARAMS *list, unsigned count)
{
	for (unsigned i = 0; i < VGPU_LAUNCH_DEVICES; i++) {
		launch[i].device = -1;
		launch[i].work = VGPU_WORK_KERNEL;
		if (!list || i >= count)
			continue;
		launch[i].stream = list[i].hStream;
		vgpu_gate_enter(&launch[i]);
		if (vgpu_gate_self->used)
			vgpu_gate_self->inside = 0; /* several at once are not put right behind a longjmp */
	}
}

void vgpu_gate_leave_list(struct vgpu_launch *launch, unsigned count, CUresult result)
{
	for (unsigned i = 0; i < count && i < VGPU_LAUNCH_DEVICES; i++) {
		if (launch[i].device < 0)
			continue;
		if (vgpu_gate_self->used)
			vgpu_gate_self->inside = (uint32_t)launch[i].device + 1;
		vgpu_gate_leave(&launch[i], result);
	}
}
