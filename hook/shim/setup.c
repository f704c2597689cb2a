/* setup.c: which of the three states this process is in (free, limited, closed), and what it takes to charge.
 *
 * Called by everything through vgpu_state(), vgpu_mode() and charge.c. Nothing happens before the first cu* or nvml* call.
 * What is done when: the policy and the environment are read at the first call; the ledger is opened at the first charge
 * or query of use; a slot is taken at the first charge; ordinals are translated when the driver is ready to name them.
 * What can go wrong at each step has one answer: closed, with a reason. The reason is logged once. */
#include "core.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct vgpu_state *vgpu_state_pointer;

static const uint32_t never_changes, open_gate;

const uint32_t *vgpu_gate_at = &open_gate;

/* This thread is asking the driver or NVML; what those call in turn must not ask again. */
static __thread bool asking __attribute__((tls_model("initial-exec")));

static void set_mode(struct vgpu_state *s, enum vgpu_mode mode)
{
	__atomic_store_n(&s->mode, mode, __ATOMIC_RELEASE);
}

static void close_for_good(struct vgpu_state *s)
{
	s->closed_for_good = true;
	s->seq = &never_changes;
	__atomic_store_n(&s->seen, never_changes, __ATOMIC_RELAXED);
	set_mode(s, VGPU_CLOSED);
	vgpu_log(VGPU_LOG_ERROR, "allocations are refused: %s", s->reason);
}

/* ---- the policy file ------------------------------------------------------------------------------------------------- */

static bool same_devices(const struct ptg_policy *a, const struct ptg_policy *b)
{
	if (a->ndev != b->ndev)
		return false;
	for (uint32_t i = 0; i < a->ndev; i++)
		if (strcmp(a->device[i].uuid, b->device[i].uuid) != 0)
			return false;
	return true;
}

/* The environment may only lower what the policy grants; a device's number is its position there. */
static void lower_by_environment(const struct vgpu_env *env, struct ptg_policy *policy)
{
	for (uint32_t i = 0; i < policy->ndev; i++) {
		uint64_t limit = vgpu_env_limit(env, (int)i);
		if (limit && limit < policy->device[i].memory)
			policy->device[i].memory = limit;
	}
}

/* Numbers that a concurrent reader may be looking at are changed in place; the UUIDs stay what they are. */
static void adopt(struct vgpu_state *s, const struct ptg_policy *copy)
{
	if (!s->good) {
		s->policy = *copy;
		__atomic_store_n(&s->good, 1, __ATOMIC_RELEASE);
		return;
	}
	for (uint32_t i = 0; i < copy->ndev; i++)
		memcpy(&s->policy.device[i].memory, &copy->device[i].memory,
		       sizeof copy->device[i] - offsetof(struct ptg_policy_device, memory));
	s->policy.generation = copy->generation;
	s->policy.state = copy->state;
	s->policy.flags = copy->flags;
	s->policy.share_class = copy->share_class;
	s->policy.priority = copy->priority;
	s->policy.enforcement = copy->enforcement;
}

void vgpu_refresh(struct vgpu_state *s)
{
	struct ptg_policy copy;
	uint32_t seen;
	if (!vgpu_stale(s))
		return;
	const char *wrong = vgpu_policy_verify(s->file, &copy, &seen);
	if (!wrong && s->good && !same_devices(&s->policy, &copy))
		wrong = "it names other devices than before";
	if (wrong) {
		snprintf(s->reason, sizeof s->reason, "policy %.200s/policy: %s", s->dir, wrong);
		vgpu_log(VGPU_LOG_ERROR, "%s; %s", s->reason,
		         s->good ? "the last good one stays in force" : "allocations are refused");
		if (!s->good)
			set_mode(s, VGPU_CLOSED);
	} else {
		lower_by_environment(&s->env, &copy);
		adopt(s, &copy);
		if (copy.state == PTG_STATE_CLOSED)
			snprintf(s->reason, sizeof s->reason, "policy %.200s/policy: the node's agent has closed it",
			         s->dir);
		set_mode(s, copy.state == PTG_STATE_OPEN ? VGPU_LIMITED : VGPU_CLOSED);
	}
	__atomic_store_n(&s->seen, seen, __ATOMIC_RELEASE);
}

/* ---- first call -------------------------------------------------------------------------------------------------------- */

static void set_up_from_file(struct vgpu_state *s)
{
	s->from_file = true;
	s->turns = vgpu_turns_map(s->dir);
	s->seq = &s->file->seq;
	__atomic_store_n(&s->seen, ~__atomic_load_n(s->seq, __ATOMIC_RELAXED), __ATOMIC_RELAXED);
	vgpu_refresh(s);
	__atomic_store_n(&vgpu_gate_at, &s->file->gated, __ATOMIC_RELEASE);
}

static void set_up_from_environment(struct vgpu_state *s)
{
	if (!s->env.limited) {
		set_mode(s, VGPU_FREE);
		return;
	}
	s->policy.state = PTG_STATE_OPEN;
	s->policy.flags = s->env.oversubscribe ? PTG_FLAG_OVERSUBSCRIBED : 0;
	s->policy.enforcement = PTG_ENFORCE_SHIM;
	__atomic_store_n(&s->good, 1, __ATOMIC_RELEASE);
	set_mode(s, VGPU_LIMITED);
}

static void set_up(struct vgpu_state *s)
{
	s->slot = VGPU_NO_SLOT;
	s->ledger.fd = -1;
	s->seq = &never_changes;
	memset(s->ordinal_of, -1, sizeof s->ordinal_of);
	bool env_bad = vgpu_env_read(&s->env, s->reason) != 0;
	enum vgpu_found found = VGPU_UNUSABLE;
	char reason[VGPU_REASON_MAX];
	found = vgpu_policy_find(s->dir, &s->file, reason);
	if (found == VGPU_NO_POLICY && s->env.control_off) {
		set_mode(s, VGPU_FREE);
		return;
	}
	if (found == VGPU_UNUSABLE)
		memcpy(s->reason, reason, sizeof s->reason);
	if (found == VGPU_UNUSABLE || env_bad)
		close_for_good(s);
	else if (found == VGPU_POLICY)
		set_up_from_file(s);
	else
		set_up_from_environment(s);
}

static void forked(void)
{
	vgpu_ledger_forked();
	if (vgpu_gate_at != &open_gate)
		munmap((char *)(uintptr_t)vgpu_gate_at - offsetof(struct ptg_policy, gated), sizeof(struct ptg_policy));
	vgpu_gate_at = &open_gate;
	asking = false;
	if (vgpu_state_pointer)
		memset(vgpu_state_pointer, 0, sizeof *vgpu_state_pointer);
}

struct vgpu_state *vgpu_state_slow(void)
{
	int error = errno;
	struct vgpu_state *s = __atomic_load_n(&vgpu_state_pointer, __ATOMIC_ACQUIRE);
	if (!s) {
		struct vgpu_state *fresh = vgpu_private_pages(sizeof *fresh);
		if (!fresh)
			return NULL;
		if (__atomic_compare_exchange_n(&vgpu_state_pointer, &s, fresh, false, __ATOMIC_ACQ_REL,
		                                __ATOMIC_ACQUIRE)) {
			vgpu_at_fork(forked);
			s = fresh;
		} else {
			munmap(fresh, sizeof *fresh);
		}
	}
	vgpu_lock(&s->lock);
	if (s->stage == VGPU_STAGE_NEW) {
		set_up(s);
		__atomic_store_n(&s->stage, VGPU_STAGE_READY, __ATOMIC_RELEASE);
	}
	vgpu_unlock(&s->lock);
	errno = error;
	return s;
}

enum vgpu_mode vgpu_mode(void)
{
	struct vgpu_state *s = vgpu_state();
	if (!s)
		return VGPU_CLOSED;
	if (__builtin_expect(vgpu_stale(s), 0)) {
		vgpu_lock(&s->lock);
		vgpu_refresh(s);
		vgpu_unlock(&s->lock);
	}
	return (enum vgpu_mode)__atomic_load_n(&s->mode, __ATOMIC_ACQUIRE);
}

/* ---- ledger and slot ------------------------------------------------------------------------------------------------------ */

static bool take_slot(struct vgpu_state *s)
{
	s->slot = vgpu_slot_take(&s->ledger, s->reason);
	if (s->slot == VGPU_NO_SLOT)
		close_for_good(s);
	return s->slot != VGPU_NO_SLOT;
}

/* A file that its last user removes: the slot is taken while nobody may, and before anything else is done with the file,
 * so that nobody goes on with one that is gone. */
static bool open_removable(struct vgpu_state *s)
{
	for (int attempt = 0; attempt < 16; attempt++) {
		if (vgpu_ledger_open(&s->ledger, s->reason) != 0)
			break;
		if (vgpu_ledger_keep(&s->ledger) != 0) {
			if (vgpu_ledger_unlinked(&s->ledger)) {
				vgpu_ledger_close(&s->ledger);
				continue;
			}
			snprintf(s->reason, sizeof s->reason, "ledger %.200s: its set-up lock was not to be had in 5 s",
			         s->ledger.path);
			break;
		}
		bool gone = vgpu_ledger_unlinked(&s->ledger);
		bool taken = !gone && take_slot(s);
		vgpu_ledger_kept(&s->ledger);
		if (!gone)
			return taken;
		vgpu_ledger_close(&s->ledger);
	}
	close_for_good(s);
	return false;
}

static bool open_beside_policy(struct vgpu_state *s)
{
	snprintf(s->ledger.path, sizeof s->ledger.path, "%.*s/ledger", VGPU_PATH_MAX - 16, s->dir);
	if (s->good && vgpu_ledger_open(&s->ledger, s->reason) == 0) {
		if (vgpu_ledger_claim_policy(&s->ledger, &s->policy, s->reason) == 0) {
			/* Programs that only ask have no slot; what they were before exec is not to be shown to them,
			 * nor to be kept by the ledger that they now have mapped. */
			vgpu_slot_forget_former(&s->ledger);
			return true;
		}
		vgpu_ledger_close(&s->ledger);
	}
	/* Without any good policy yet there is nothing to charge against; one may still come. */
	if (s->good)
		close_for_good(s);
	return false;
}

bool vgpu_ledger_ready(struct vgpu_state *s)
{
	if (__builtin_expect(s->ledger.map != NULL, 1))
		return true;
	if (s->closed_for_good)
		return false;
	if (s->from_file)
		return open_beside_policy(s);
	if (vgpu_ledger_standalone_path(&s->ledger, &s->env, s->reason) == 0) {
		if (s->ledger.removable)
			return open_removable(s);
		if (vgpu_ledger_open(&s->ledger, s->reason) == 0)
			return true;
	}
	close_for_good(s);
	return false;
}

bool vgpu_slot_ready(struct vgpu_state *s)
{
	if (__builtin_expect(s->slot != VGPU_NO_SLOT, 1))
		return true;
	return vgpu_ledger_ready(s) && !s->closed_for_good && (s->slot != VGPU_NO_SLOT || take_slot(s));
}

/* With the lock held. The last user of a ledger that nobody else looks after takes it away. What this process still
 * holds on the card is gone a moment later, with the process. Calls that come after this still find everything in place. */
static void leave_ledger(struct vgpu_state *s)
{
	if (!s->ledger.map || !s->ledger.removable || s->slot == VGPU_NO_SLOT)
		return;
	int fd = vgpu_ledger_fd(&s->ledger);
	if (fd >= 0 && vgpu_byte_lock(fd, PTG_LOCK_REMOVE) == 0) {
		vgpu_slot_reclaim(&s->ledger, s->slot, 1);
		if (!vgpu_slot_any_other(&s->ledger, s->slot) && !vgpu_ledger_unlinked(&s->ledger))
			unlink(s->ledger.path);
		vgpu_byte_unlock(fd, PTG_LOCK_REMOVE);
	}
}

__attribute__((destructor)) static void leave(void)
{
	struct vgpu_state *s = __atomic_load_n(&vgpu_state_pointer, __ATOMIC_ACQUIRE);
	if (!s || __atomic_load_n(&s->stage, __ATOMIC_ACQUIRE) != VGPU_STAGE_READY)
		return;
	/* exit() may have been called by a signal handler that interrupted the lock's holder: do not wait for it. */
	if (!vgpu_lock_try(&s->lock))
		return;
	leave_ledger(s);
	vgpu_unlock(&s->lock);
}

/* ---- devices -------------------------------------------------------------------------------------------------------------- */

int vgpu_env_device(struct vgpu_state *s, const char *uuid)
{
	for (uint32_t i = 0; i < s->policy.ndev; i++)
		if (s->policy.device[i].uuid[0] && vgpu_uuid_equal(s->policy.device[i].uuid, uuid))
			return (int)i;
	int number = s->env.numbered ? vgpu_machine_number(&s->devices, uuid) : -1;
	if (s->env.numbered && number < 0) {
		snprintf(s->reason, sizeof s->reason,
		         "CUDA_DEVICE_MEMORY_LIMIT_<n>: NVML does not say which number %.63s has; use "
		         "CUDA_DEVICE_MEMORY_LIMIT",
		         uuid);
		close_for_good(s);
		return VGPU_NO_ROOM;
	}
	if (!vgpu_ledger_ready(s))
		return VGPU_NO_ROOM;
	int index = vgpu_ledger_claim_device(&s->ledger, uuid);
	if (index < 0) {
		vgpu_log(VGPU_LOG_ERROR, "ledger %.200s: no line for device %s, its allocations are refused",
		         s->ledger.path, uuid);
		return VGPU_NO_ROOM;
	}
	struct ptg_policy_device *device = &s->policy.device[index];
	uint64_t limit = vgpu_env_limit(&s->env, number);
	device->memory = limit ? limit : UINT64_MAX;
	device->context = s->env.context;
	snprintf(device->uuid, sizeof device->uuid, "%s", uuid);
	if (s->policy.ndev <= (uint32_t)index)
		s->policy.ndev = (uint32_t)index + 1;
	return index;
}

static int granted_index(const struct vgpu_state *s, const char *uuid)
{
	for (uint32_t i = 0; i < s->policy.ndev; i++)
		if (vgpu_uuid_equal(s->policy.device[i].uuid, uuid))
			return (int)i;
	return VGPU_NOT_GRANTED;
}

static void publish_devices(struct vgpu_state *s, const struct vgpu_devices *found)
{
	if (s->mapped || !s->good)
		return;
	s->devices = *found;
	memset(s->index_of, VGPU_NOT_GRANTED, sizeof s->index_of);
	for (int i = 0; i < found->count; i++) {
		int index = s->from_file ? granted_index(s, found->uuid[i]) : vgpu_env_device(s, found->uuid[i]);
		s->index_of[i] = (int8_t)index;
		if (index >= 0)
			s->ordinal_of[index] = (int8_t)i;
	}
	__atomic_store_n(&s->mapped, 1, __ATOMIC_RELEASE);
}

CUresult vgpu_map_devices(struct vgpu_state *s)
{
	struct vgpu_devices found;
	if (__builtin_expect(__atomic_load_n(&s->mapped, __ATOMIC_ACQUIRE), 1))
		return CUDA_SUCCESS;
	if (asking)
		return CUDA_ERROR_NOT_INITIALIZED;
	asking = true;
	CUresult error = vgpu_devices_gather(&found, !s->from_file && s->env.numbered);
	asking = false;
	if (error != CUDA_SUCCESS)
		return error;
	vgpu_lock(&s->lock);
	publish_devices(s, &found);
	bool mapped = s->mapped;
	vgpu_unlock(&s->lock);
	return mapped ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

int vgpu_device_by_uuid(const char *uuid)
{
	struct vgpu_state *s = vgpu_state();
	struct vgpu_devices found;
	if (!s || !vgpu_good(s))
		return VGPU_NOT_GRANTED;
	if (s->from_file)
		return granted_index(s, uuid);
	bool ask = s->env.numbered && !__atomic_load_n(&s->mapped, __ATOMIC_ACQUIRE) && !asking;
	if (ask) {
		asking = true;
		ask = vgpu_machine_gather(&found) == 0;
		asking = false;
	}
	vgpu_lock(&s->lock);
	if (ask && !s->mapped) {
		s->devices.machine_count = found.machine_count;
		memcpy(s->devices.machine, found.machine, sizeof found.machine);
	}
	int index = vgpu_env_device(s, uuid);
	vgpu_unlock(&s->lock);
	return index < 0 ? VGPU_NOT_GRANTED : index;
}
