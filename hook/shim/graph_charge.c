/* graph_charge.c: the charge of memory that graphs allocate.
 *
 * Called by graph_hooks.c around every call that may take such memory, by pool.c before a refusal and for queries.
 * Graphs' memory is physical from the launch on and stays with the device's graphs, used or not, until it is trimmed; so
 * it is charged as a whole, by what the driver says is reserved (CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT). Before a launch
 * the least of three bounds on its growth is reserved, its *step*, and folded afterwards into what there really is, by
 * the rule of pool.c: what was read counts only if nobody folded meanwhile, so charge + steps >= reserved at every moment.
 *
 *  - The bytes that the executable allocates: it can take no more.
 *  - What all executables that were ever launched allocate together (`most`), less what is charged: each backs its
 *    memory at most once. So a loop of launches reserves nothing and asks the driver nothing.
 *  - If no other call is under way, the bytes that it allocates less what is reserved and unused. Calls that begin later
 *    may use that up, but then they do not take what they reserved themselves.
 *
 * The last two count on what is charged, so while such a call is under way the charge is not lowered, whatever is
 * trimmed meanwhile.
 *
 * What can go wrong: a driver that takes more than any of these (rounding, fragments). It is charged then, past the limit
 * if need be, since a launch cannot be undone, and larger steps are learned.
 */
#include "graphs.h"

#include <pthread.h>

#include "hooks.h"
#include "memory.h"

struct graphs {
	pthread_mutex_t lock; /* process-private, never held across a driver call */
	uint64_t charged; /* what the ledger holds, without the steps of calls under way; also read without the lock */
	uint64_t steps; /* the sum of those */
	uint64_t granule; /* the driver takes memory by multiples of this */
	uint64_t most; /* of live executables that were launched */
	uint64_t left; /* of those that were destroyed, as long as some of their memory may be in use */
	uint64_t forgets; /* changes of `left` */
	uint64_t folds; /* changes of `charged`, and ends of bounded calls */
	uint32_t calls; /* under way */
	uint32_t bounded; /* of them: rely on `most` */
	uint32_t alone; /* of them: relies on unused memory */
};

static struct graphs graphs[VGPU_ORDINALS] = {
        [0 ... VGPU_ORDINALS - 1] = {.lock = PTHREAD_MUTEX_INITIALIZER, .granule = VGPU_POOL_GRANULE}};

static bool read_attribute(CUdevice device, CUgraphMem_attribute attribute, uint64_t *bytes)
{
	cuuint64_t value = 0;
	CUstreamCaptureMode before = vgpu_relax();
	CUresult error = real_cuDeviceGetGraphMemAttribute(device, attribute, &value);
	vgpu_unrelax(before);
	*bytes = value;
	return error == CUDA_SUCCESS;
}

/* ---- folding ----------------------------------------------------------------------------------------------------- */

/* With the lock held: a call of this kind ends, or VGPU_GRAPH_NONE. */
static void leave(struct graphs *g, enum vgpu_graph_kind kind)
{
	g->calls -= kind != VGPU_GRAPH_NONE;
	g->bounded -= kind == VGPU_GRAPH_BOUNDED;
	g->alone -= kind == VGPU_GRAPH_ALONE;
	g->folds++;
}

struct folded {
	uint64_t back; /* bytes to give back */
	uint64_t excess; /* bytes that were taken without having been reserved */
};

/* With the lock held: replaces charge + step by what was read, if that still counts (`quiet`). */
static struct folded fold_locked(struct graphs *g, const struct vgpu_graph_call *call, bool quiet, uint64_t reserved)
{
	struct folded f = {0};
	uint64_t all = g->charged + call->step, target = all, most = g->charged + g->steps;
	if (quiet)
		f.excess = reserved > most ? reserved - most : 0;
	leave(g, call->kind);
	if (quiet && g->bounded == 0 && g->alone == 0 && reserved < all)
		target = reserved;
	f.back = all - target;
	__atomic_store_n(&g->charged, target + f.excess, __ATOMIC_RELAXED);
	g->steps -= call->step;
	if (f.excess != 0)
		g->granule += vgpu_round_up(f.excess, VGPU_GRANULE);
	return f;
}

static struct folded fold(CUdevice device, const struct vgpu_graph_call *call)
{
	struct graphs *g = &graphs[device];
	struct folded f;
	for (int attempt = 0;; attempt++) {
		uint64_t reserved;
		pthread_mutex_lock(&g->lock);
		uint64_t before = g->folds;
		pthread_mutex_unlock(&g->lock);
		bool known = read_attribute(device, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &reserved);
		pthread_mutex_lock(&g->lock);
		bool quiet = known && g->folds == before;
		if (quiet || !known || attempt == 8) { /* else too much stays charged until a later reading */
			f = fold_locked(g, call, quiet, reserved);
			pthread_mutex_unlock(&g->lock);
			break;
		}
		pthread_mutex_unlock(&g->lock);
	}
	if (f.back != 0)
		vgpu_give_back(device, f.back);
	if (f.excess != 0 && vgpu_reserve(device, f.excess) != CUDA_SUCCESS)
		vgpu_charge(device, f.excess);
	return f;
}

bool vgpu_graph_reconcile(CUdevice device)
{
	if (device < 0 || device >= VGPU_ORDINALS || __atomic_load_n(&graphs[device].charged, __ATOMIC_RELAXED) == 0)
		return false;
	return fold(device, &(struct vgpu_graph_call){.kind = VGPU_GRAPH_NONE}).back != 0;
}

/* ---- calls that take memory -------------------------------------------------------------------------------------- */

/* Counts a call in; says what to reserve for it by the first two bounds. */
static void enter(struct graphs *g, uint64_t bytes, bool first, struct vgpu_graph_call *call)
{
	pthread_mutex_lock(&g->lock);
	g->calls++;
	g->most += first ? bytes : 0;
	uint64_t own = vgpu_round_up(bytes, g->granule), all = vgpu_round_up(g->most + g->left, g->granule);
	uint64_t have = g->charged + g->steps, missing = all > have ? all - have : 0;
	call->kind = missing < own ? VGPU_GRAPH_BOUNDED : VGPU_GRAPH_PLAIN;
	call->step = missing < own ? missing : own;
	g->bounded += call->kind == VGPU_GRAPH_BOUNDED;
	pthread_mutex_unlock(&g->lock);
}

/* What graphs have in use. If that is nothing, executables that are gone have nothing either, and will not come back. */
static bool read_used(CUdevice device, uint64_t *used)
{
	struct graphs *g = &graphs[device];
	pthread_mutex_lock(&g->lock);
	uint64_t forgets = g->forgets;
	pthread_mutex_unlock(&g->lock);
	if (!read_attribute(device, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, used))
		return false;
	pthread_mutex_lock(&g->lock);
	if (*used == 0 && g->forgets == forgets)
		g->left = 0;
	pthread_mutex_unlock(&g->lock);
	return true;
}

/* The third bound: if no other call is under way, what is unused need not be taken. */
static bool go_alone(CUdevice device, uint64_t bytes, struct vgpu_graph_call *call)
{
	struct graphs *g = &graphs[device];
	uint64_t reserved = 0, used = 0;
	pthread_mutex_lock(&g->lock);
	bool may = g->calls == 1;
	if (may) {
		g->bounded -= call->kind == VGPU_GRAPH_BOUNDED;
		call->kind = VGPU_GRAPH_ALONE;
		g->alone = 1;
	}
	uint64_t granule = g->granule;
	pthread_mutex_unlock(&g->lock);
	if (!may || !read_attribute(device, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &reserved) ||
	    !read_used(device, &used) || used > reserved)
		return false;
	uint64_t unused = reserved - used;
	call->step = bytes > unused ? vgpu_round_up(reserved + bytes - unused, granule) - reserved : 0;
	return vgpu_reserve_for_graph(device, call->step) == CUDA_SUCCESS;
}

CUresult vgpu_graph_begin(CUdevice device, uint64_t bytes, bool first, struct vgpu_graph_call *call)
{
	struct graphs *g = &graphs[device];
	enter(g, bytes, first, call);
	bool fits = vgpu_reserve_for_graph(device, call->step) == CUDA_SUCCESS || go_alone(device, bytes, call);
	pthread_mutex_lock(&g->lock);
	if (fits) {
		g->steps += call->step;
	} else {
		leave(g, call->kind);
		g->most -= first ? bytes : 0;
	}
	pthread_mutex_unlock(&g->lock);
	return fits ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

void vgpu_graph_end(CUdevice device, const struct vgpu_graph_call *call)
{
	struct graphs *g = &graphs[device];
	if (call->kind != VGPU_GRAPH_BOUNDED || call->step != 0) {
		fold(device, call);
		return;
	}
	pthread_mutex_lock(&g->lock); /* it took nothing that was not charged */
	leave(g, call->kind);
	pthread_mutex_unlock(&g->lock);
}

void vgpu_graph_forget(CUdevice device, uint64_t bytes, bool unused)
{
	struct graphs *g = &graphs[device];
	pthread_mutex_lock(&g->lock);
	g->most -= bytes;
	g->left += unused ? 0 : bytes;
	g->forgets++;
	pthread_mutex_unlock(&g->lock);
	if (!unused)
		read_used(device, &bytes);
}

CUresult vgpu_graph_trim(CUdevice device)
{
	CUresult error = real_cuDeviceGraphMemTrim(device);
	vgpu_graph_reconcile(device);
	return error;
}

bool vgpu_graph_yield(CUdevice device)
{
	if (device < 0 || device >= VGPU_ORDINALS || __atomic_load_n(&graphs[device].charged, __ATOMIC_RELAXED) == 0)
		return false;
	CUstreamCaptureMode before = vgpu_relax();
	CUresult error = vgpu_graph_trim(device);
	vgpu_unrelax(before);
	return error == CUDA_SUCCESS; /* another thread may have seen the loss first */
}

void vgpu_graph_charge_forked(void)
{
	for (CUdevice d = 0; d < VGPU_ORDINALS; d++) {
		graphs[d] = (struct graphs){.granule = VGPU_POOL_GRANULE};
		pthread_mutex_init(&graphs[d].lock, NULL);
	}
}
