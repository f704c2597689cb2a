/* charge.c: what this container may use and uses: the API that the hooks charge by (declared in shim.h).
 *
 * Called before and after every driver call that takes or gives device memory, by any thread. A charge is one
 * compare-and-swap on the container's word and no system call; taking the first slot, the sweep before a refusal and a
 * changed policy are the slow ways.
 * What can go wrong: closed (no usable policy or ledger), over the limit, a device that was not granted. All three are
 * CUDA_ERROR_OUT_OF_MEMORY to the program; the reason is logged. */
#include "core.h"

#include <limits.h>

/* A guess where nobody has measured what a context costs on this device. */
#define CONTEXT_GUESS (UINT64_C(256) << 20)

/* ---- which device ------------------------------------------------------------------------------------------------------ */

/* Index in policy and ledger, or below 0. */
static CUresult find_index(struct vgpu_state *s, CUdevice device, int *index)
{
	if (!vgpu_good(s))
		return CUDA_ERROR_OUT_OF_MEMORY;
	CUresult error = vgpu_map_devices(s);
	if (error == CUDA_SUCCESS)
		*index = device >= 0 && device < VGPU_ORDINALS_MAX ? s->index_of[device] : VGPU_NOT_GRANTED;
	return error;
}

/* For callers that have no use for an error: below 0 where the device is not one of ours or not known yet. */
static int index_or_none(struct vgpu_state *s, CUdevice device)
{
	int index;
	return find_index(s, device, &index) == CUDA_SUCCESS ? index : VGPU_NOT_GRANTED;
}

static bool is_free(const struct vgpu_state *s)
{
	return s && __atomic_load_n(&s->mode, __ATOMIC_RELAXED) == VGPU_FREE;
}

int vgpu_index_of(CUdevice device)
{
	struct vgpu_state *s = vgpu_state();
	int index;
	return s && !is_free(s) && find_index(s, device, &index) == CUDA_SUCCESS ? index : VGPU_NOT_GRANTED;
}

unsigned vgpu_charged_devices(CUdevice device[VGPU_ORDINALS_MAX])
{
	struct vgpu_state *s = vgpu_state();
	unsigned count = 0;
	if (!s || is_free(s) || !vgpu_good(s) || vgpu_map_devices(s) != CUDA_SUCCESS)
		return 0;
	for (int d = 0; d < s->devices.count; d++)
		if (s->index_of[d] >= 0)
			device[count++] = d;
	return count;
}

CUdevice vgpu_current_device(CUresult *error)
{
	static CUresult (*get_device)(CUdevice *);
	CUresult (*get)(CUdevice *) = __atomic_load_n(&get_device, __ATOMIC_RELAXED);
	if (!get) {
		get = (CUresult (*)(CUdevice *))vgpu_real_cuda("cuCtxGetDevice");
		__atomic_store_n(&get_device, get, __ATOMIC_RELAXED);
	}
	CUdevice device = -1;
	CUresult result = get ? get(&device) : CUDA_ERROR_NOT_FOUND;
	if (error)
		*error = result;
	return device;
}

/* ---- charging ---------------------------------------------------------------------------------------------------------- */

static bool add(struct vgpu_state *s, int index, uint32_t units, bool first_free)
{
	const struct ptg_policy_device *device = &s->policy.device[index];
	struct ptg_bound bound = {.limit = device->memory, .overhead = device->overhead, .first_free = first_free};
	if (__builtin_expect(ptg_add(s->ledger.map, (unsigned)index, s->slot, units, &bound), 1))
		return true;
	if (!vgpu_slot_any_other(&s->ledger, s->slot))
		return false;
	vgpu_slot_reclaim(&s->ledger, s->slot, UINT_MAX);
	/* Also where we gave nothing back: a peer may have done so since we saw that there is no room. */
	return ptg_add(s->ledger.map, (unsigned)index, s->slot, units, &bound);
}

static uint32_t used_units(const struct vgpu_state *s, int index)
{
	return s->ledger.map ? ptg_word_used(ptg_load(&s->ledger.map->device[index].word)) : 0;
}

static void note_refusal(struct vgpu_state *s, int index, uint64_t bytes)
{
	if (index < 0) {
		vgpu_log(VGPU_LOG_WARNING, "refused %llu bytes: the device is not granted to this container",
		         (unsigned long long)bytes);
		return;
	}
	if (s->slot != VGPU_NO_SLOT) {
		uint64_t *refused = &s->ledger.map->slot[s->slot].device[index].refused;
		__atomic_store_n(refused, *refused + 1, __ATOMIC_RELAXED);
	}
	const struct ptg_policy_device *device = &s->policy.device[index];
	if (s->mode != VGPU_LIMITED)
		vgpu_log(VGPU_LOG_WARNING, "refused %llu bytes on %s: %s", (unsigned long long)bytes, device->uuid,
		         s->reason);
	else
		vgpu_log(VGPU_LOG_WARNING,
		         "refused %llu bytes on %s: %llu of %llu are used; free some, or ask for a larger share",
		         (unsigned long long)bytes, device->uuid,
		         (unsigned long long)ptg_used_bytes(used_units(s, index), device->overhead),
		         (unsigned long long)device->memory);
}

/* The device's index is known, the lock is ours: does what is asked fit, then it is charged. */
static bool reserve_locked(struct vgpu_state *s, int index, uint64_t bytes, bool first_free)
{
	if (__builtin_expect(vgpu_stale(s), 0))
		vgpu_refresh(s);
	if (index >= 0 && s->mode == VGPU_LIMITED && vgpu_slot_ready(s) && bytes / PTG_UNIT < PTG_UNITS_MAX &&
	    add(s, index, ptg_units(bytes), first_free))
		return true;
	note_refusal(s, index, bytes);
	return false;
}

CUresult vgpu_reserve(CUdevice device, uint64_t bytes)
{
	struct vgpu_state *s = vgpu_state();
	int index;
	if (!s)
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (is_free(s) || bytes == 0)
		return CUDA_SUCCESS;
	CUresult error = find_index(s, device, &index);
	if (error != CUDA_SUCCESS)
		return error;
	vgpu_lock(&s->lock);
	bool fits = reserve_locked(s, index, bytes, false);
	vgpu_unlock(&s->lock);
	return fits ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

void vgpu_charge(CUdevice device, uint64_t bytes)
{
	struct vgpu_state *s = vgpu_state();
	if (!s || is_free(s))
		return;
	int index = index_or_none(s, device);
	if (index < 0)
		return;
	vgpu_lock(&s->lock);
	if (vgpu_slot_ready(s))
		ptg_add(s->ledger.map, (unsigned)index, s->slot, ptg_units(bytes), NULL);
	vgpu_unlock(&s->lock);
}

/* What a context was estimated to cost is part of what is charged, so never more than that. */
static void bound_context(struct vgpu_state *s, int index)
{
	struct ptg_slot_device *line = &s->ledger.map->slot[s->slot].device[index];
	uint64_t units = ptg_word_used(ptg_load(&line->done));
	if (line->context > units)
		__atomic_store_n(&line->context, units, __ATOMIC_RELAXED);
}

void vgpu_give_back(CUdevice device, uint64_t bytes)
{
	struct vgpu_state *s = vgpu_state();
	if (!s || is_free(s))
		return;
	int index = index_or_none(s, device);
	if (index < 0)
		return;
	vgpu_lock(&s->lock);
	if (s->slot != VGPU_NO_SLOT) {
		ptg_subtract(s->ledger.map, (unsigned)index, s->slot, ptg_units(bytes));
		bound_context(s, index);
	}
	vgpu_unlock(&s->lock);
}

/* ---- contexts ---------------------------------------------------------------------------------------------------------- */

static void count_context(struct vgpu_state *s, int index, int64_t units)
{
	if (s->slot == VGPU_NO_SLOT)
		return;
	uint64_t *context = &s->ledger.map->slot[s->slot].device[index].context;
	uint64_t now = *context;
	now = units >= 0 ? now + (uint64_t)units : now - (now < (uint64_t)-units ? now : (uint64_t)-units);
	__atomic_store_n(context, now, __ATOMIC_RELAXED);
}

CUresult vgpu_reserve_context(CUdevice device, uint64_t *charged)
{
	struct vgpu_state *s = vgpu_state();
	int index;
	*charged = 0;
	if (!s)
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (is_free(s))
		return CUDA_SUCCESS;
	CUresult error = find_index(s, device, &index);
	if (error != CUDA_SUCCESS)
		return error;
	vgpu_lock(&s->lock);
	uint64_t estimate = index >= 0 ? s->policy.device[index].context : 0;
	if (estimate == PTG_CONTEXT_UNKNOWN)
		estimate = CONTEXT_GUESS;
	bool fits = index >= 0 && estimate == 0 ? s->mode == VGPU_LIMITED : reserve_locked(s, index, estimate, true);
	if (fits && estimate) {
		count_context(s, index, ptg_units(estimate));
		*charged = estimate;
	}
	vgpu_unlock(&s->lock);
	return fits ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

uint64_t vgpu_settle_context(CUdevice device, uint64_t charged, uint64_t card_used)
{
	struct vgpu_state *s = vgpu_state();
	int index = s && !is_free(s) && charged > card_used ? index_or_none(s, device) : VGPU_NOT_GRANTED;
	if (index < 0)
		return charged;
	vgpu_lock(&s->lock);
	if (s->slot != VGPU_NO_SLOT && s->policy.device[index].context == PTG_CONTEXT_UNKNOWN) {
		uint32_t less = ptg_units(charged) - ptg_units(card_used);
		ptg_subtract(s->ledger.map, (unsigned)index, s->slot, less);
		count_context(s, index, -(int64_t)less);
		charged = card_used;
	}
	vgpu_unlock(&s->lock);
	return charged;
}

uint32_t vgpu_policy_number(void)
{
	struct vgpu_state *s = vgpu_state();
	return s && s->seq ? __atomic_load_n(s->seq, __ATOMIC_ACQUIRE) : 0;
}

uint64_t vgpu_context_estimate(CUdevice device)
{
	struct vgpu_state *s = vgpu_state();
	int index = s && !is_free(s) ? index_or_none(s, device) : VGPU_NOT_GRANTED;
	if (index < 0)
		return UINT64_MAX;
	vgpu_lock(&s->lock);
	if (vgpu_stale(s))
		vgpu_refresh(s);
	uint64_t estimate = s->policy.device[index].context;
	vgpu_unlock(&s->lock);
	return estimate;
}

uint64_t vgpu_lower_context(CUdevice device, uint64_t charged)
{
	struct vgpu_state *s = vgpu_state();
	int index = s && !is_free(s) ? index_or_none(s, device) : VGPU_NOT_GRANTED;
	if (index < 0)
		return charged;
	vgpu_lock(&s->lock);
	uint64_t estimate = s->policy.device[index].context;
	if (s->slot != VGPU_NO_SLOT && estimate < charged) {
		uint32_t less = ptg_units(charged) - ptg_units(estimate);
		ptg_subtract(s->ledger.map, (unsigned)index, s->slot, less);
		count_context(s, index, -(int64_t)less);
		charged = estimate;
	}
	vgpu_unlock(&s->lock);
	return charged;
}

void vgpu_ring(void)
{
	struct vgpu_state *s = vgpu_state();
	if (!s || is_free(s))
		return;
	vgpu_lock(&s->lock);
	if (s->slot != VGPU_NO_SLOT) {
		__atomic_add_fetch(&s->ledger.map->doorbell, 1, __ATOMIC_RELEASE);
		vgpu_futex_wake(&s->ledger.map->doorbell, INT_MAX);
	}
	vgpu_unlock(&s->lock);
}

void vgpu_give_back_context(CUdevice device, uint64_t charged)
{
	struct vgpu_state *s = vgpu_state();
	int index = s && !is_free(s) ? index_or_none(s, device) : VGPU_NOT_GRANTED;
	if (index < 0 || charged == 0)
		return;
	vgpu_lock(&s->lock);
	if (s->slot != VGPU_NO_SLOT) {
		count_context(s, index, -(int64_t)ptg_units(charged));
		ptg_subtract(s->ledger.map, (unsigned)index, s->slot, ptg_units(charged));
	}
	vgpu_unlock(&s->lock);
}

/* ---- answers ------------------------------------------------------------------------------------------------------------ */

struct answer {
	uint64_t limit; /* bytes, UINT64_MAX without one */
	uint64_t used;  /* bytes */
	bool oversubscribed;
	bool closed; /* nothing more can be had */
};

static struct answer look(struct vgpu_state *s, int index)
{
	struct answer a = {.limit = UINT64_MAX};
	vgpu_lock(&s->lock);
	if (vgpu_stale(s))
		vgpu_refresh(s);
	if (index >= 0 && index < PTG_DEVICES && s->good) {
		vgpu_ledger_ready(s);
		a.limit = s->policy.device[index].memory;
		a.used = ptg_used_bytes(used_units(s, index), s->policy.device[index].overhead);
	}
	a.oversubscribed = s->policy.flags & PTG_FLAG_OVERSUBSCRIBED;
	a.closed = s->mode == VGPU_CLOSED;
	vgpu_unlock(&s->lock);
	return a;
}

static struct answer look_at(CUdevice device)
{
	struct vgpu_state *s = vgpu_state();
	if (!s)
		return (struct answer){.limit = UINT64_MAX, .closed = true};
	if (is_free(s))
		return (struct answer){.limit = UINT64_MAX};
	return look(s, index_or_none(s, device));
}

uint64_t vgpu_limit(CUdevice device)
{
	return look_at(device).limit;
}

uint64_t vgpu_used(CUdevice device)
{
	return look_at(device).used;
}

uint64_t vgpu_limit_index(int index)
{
	struct vgpu_state *s = vgpu_state();
	return s ? look(s, index).limit : UINT64_MAX;
}

uint64_t vgpu_used_index(int index)
{
	struct vgpu_state *s = vgpu_state();
	return s ? look(s, index).used : 0;
}

static void view(const struct answer *a, uint64_t physical_total, uint64_t physical_free, uint64_t *total,
                 uint64_t *free)
{
	bool beyond = a->oversubscribed && a->limit != UINT64_MAX;
	*total = a->limit < physical_total || beyond ? a->limit : physical_total;
	*free = *total > a->used ? *total - a->used : 0;
	if (!beyond && *free > physical_free)
		*free = physical_free;
	if (a->closed)
		*free = 0;
}

void vgpu_view(CUdevice device, uint64_t physical_total, uint64_t physical_free, uint64_t *total, uint64_t *free)
{
	struct answer a = look_at(device);
	view(&a, physical_total, physical_free, total, free);
}

void vgpu_view_index(int index, uint64_t physical_total, uint64_t physical_free, uint64_t *total, uint64_t *free)
{
	struct vgpu_state *s = vgpu_state();
	struct answer a = s ? look(s, index) : (struct answer){.limit = UINT64_MAX, .closed = true};
	view(&a, physical_total, physical_free, total, free);
}

bool vgpu_visible(CUdevice device)
{
	struct vgpu_state *s = vgpu_state();
	int index;
	if (!s || is_free(s) || !s->from_file)
		return true;
	/* A driver that cannot name its devices yet answers the caller itself. */
	return find_index(s, device, &index) != CUDA_SUCCESS || index >= 0;
}

int vgpu_granted_count(void)
{
	struct vgpu_state *s = vgpu_state();
	return s && s->from_file && vgpu_good(s) ? (int)s->policy.ndev : -1;
}

const char *vgpu_granted_uuid(int index)
{
	struct vgpu_state *s = vgpu_state();
	if (!s || !vgpu_good(s) || index < 0 || index >= PTG_DEVICES)
		return NULL;
	vgpu_lock(&s->lock);
	const char *uuid = s->policy.device[index].uuid;
	bool known = (uint32_t)index < s->policy.ndev && uuid[0];
	vgpu_unlock(&s->lock);
	return known ? uuid : NULL;
}

CUdevice vgpu_granted_device(int index)
{
	struct vgpu_state *s = vgpu_state();
	if (!s || !vgpu_good(s) || index < 0 || index >= PTG_DEVICES || vgpu_map_devices(s) != CUDA_SUCCESS)
		return -1;
	return s->ordinal_of[index];
}

const char *vgpu_reason(void)
{
	struct vgpu_state *s = vgpu_state();
	return s ? s->reason : "no memory for the library's own state";
}
