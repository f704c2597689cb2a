/* gate_told.c: what the rest of the library tells the gate: that work is over, that a context ends.
 *
 * Called by the generated hooks of copies and of calls that wait (vgpu_gate_told), and by ctx.c. What a call has waited for is
 * over without a question to the driver: marks that were recorded on the stream before it, and the caller's own tail. What
 * it says nothing about, the other marks, is asked.
 * What can go wrong: work that another thread queued meanwhile must not pass for what was waited for; so a ticket is drawn
 * before the driver is called. */
#include "gate_core.h"

#include <string.h>

#define FREEZE_NS UINT64_C(2000000000)

/* ---- what synchronisation tells ------------------------------------------------------------------------------------------------ */

void vgpu_gate_draw(struct vgpu_ticket *ticket)
{
	struct gate *g = gate_there();
	if (!g)
		return;
	vgpu_lock(&g->lock);
	ticket->mark = g->seq + 1;
	ticket->loose = 0;
	for (uint32_t i = 0; i < g->ndev && i < PTG_DEVICES; i++)
		ticket->loose += g->device[i].loosened;
	vgpu_unlock(&g->lock);
}

/* The caller's own tail: it has launched nothing since the ticket was drawn. */
static void own_tail_over(struct gate *g, struct vgpu_gate_thread *t, uint64_t now)
{
	gate_take_stock(g, t, t->device, t->stream, now);
	if (t->since)
		g->device[t->device].known_ns = now; /* no mark says when */
	t->since = t->unmarked = t->tail_seen = 0;
}

static void loose_over(struct gate *g, const struct vgpu_ticket *ticket)
{
	uint64_t loosened = 0;
	for (uint32_t i = 0; i < g->ndev && i < PTG_DEVICES; i++)
		loosened += g->device[i].loosened;
	if (loosened == ticket->loose && g->ndev == 1)
		memset(g->device[0].loose, 0, sizeof g->device[0].loose);
}

void vgpu_gate_over(const struct vgpu_ticket *ticket, enum vgpu_over what, CUstream stream)
{
	struct gate *g = gate_there();
	struct vgpu_gate_thread *t = vgpu_gate_self->used ? vgpu_gate_self : NULL;
	CUcontext context = NULL;
	if (!g || (what == VGPU_OVER_CONTEXT && real_cuCtxGetCurrent(&context) != CUDA_SUCCESS))
		return;
	vgpu_lock(&g->lock);
	uint64_t now = vgpu_now_ns();
	for (unsigned i = 0; i < g->count && what != VGPU_OVER_SOME; i++) {
		struct gate_mark *m = &g->mark[i];
		bool covered =
		        what == VGPU_OVER_CONTEXT ? m->context == context : !m->unknown_ns && m->stream == stream;
		m->over = m->over || (covered && m->seq < ticket->mark);
	}
	gate_sweep(g, now);
	if (what != VGPU_OVER_SOME && t && (what == VGPU_OVER_CONTEXT || t->stream == stream))
		own_tail_over(g, t, now);
	if (what == VGPU_OVER_CONTEXT)
		loose_over(g, ticket);
	if (g->count && (what != VGPU_OVER_SOME || now - g->asked_ns >= GATE_POLL_NS))
		gate_ask(g);
	for (uint32_t i = 0; i < g->ndev && i < PTG_DEVICES; i++) {
		if (g->device[i].busy_ns)
			gate_settle(g, (int)i, t, now);
	}
	vgpu_unlock(&g->lock);
}

/* ---- contexts that end ----------------------------------------------------------------------------------------------------------- */

void vgpu_gate_context_begin(void)
{
	struct gate *g = gate_there();
	if (!g)
		return;
	vgpu_lock(&g->lock);
	g->frozen++;
	vgpu_unlock(&g->lock);
	for (uint64_t waited = 0; __atomic_load_n(&g->asking, __ATOMIC_ACQUIRE) && waited < FREEZE_NS; waited += 50000)
		vgpu_pause_ns(50000);
}

static void forget_context(struct gate *g, CUcontext gone)
{
	for (unsigned i = 0; i < g->count; i++) {
		if (g->mark[i].context == gone)
			g->mark[i].over = true;
	}
	gate_sweep(g, vgpu_now_ns());
	for (unsigned i = 0; i < g->spares;) {
		if (g->spare[i].context == gone)
			g->spare[i] = g->spare[--g->spares];
		else
			i++;
	}
}

void vgpu_gate_context_end(CUcontext gone)
{
	struct gate *g = gate_there();
	if (!g)
		return;
	vgpu_lock(&g->lock);
	if (g->frozen)
		g->frozen--;
	if (gone)
		forget_context(g, gone);
	gate_helper_need(g, vgpu_now_ns());
	vgpu_unlock(&g->lock);
}
