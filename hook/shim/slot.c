/* slot.c: takes this process's place in the ledger and gives back those of the dead.
 *
 * Called by setup.c (first charge), by charge.c (before a refusal) and at exit, always with the process's own lock held:
 * two threads that lock a byte through one description would both get it.
 * What can go wrong: all slots are taken by the living; the lock cannot be kept. The process then has no slot and its
 * allocations are refused. Being killed at any instruction leaves a slot that the next comer finds free or dead. */
#include "core.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static uint32_t state_of(const struct ptg_slot *slot)
{
	return __atomic_load_n(&slot->state, __ATOMIC_ACQUIRE);
}

/* Whether it is charged for somebody. A state that nobody writes is a scribbled ledger's, and so is what the slot says it
 * holds: to give that back would lower the count. */
static bool is_taken(const struct ptg_slot *slot)
{
	uint32_t state = state_of(slot);
	return state == PTG_SLOT_USED || state == PTG_SLOT_SHARED;
}

/* How far up slots have ever been taken. */
uint32_t vgpu_slot_high(const struct ptg_ledger *map)
{
	uint32_t high = __atomic_load_n(&map->high, __ATOMIC_ACQUIRE);
	return high < PTG_SLOTS ? high : PTG_SLOTS;
}

static void raise_high(struct ptg_ledger *map, uint32_t high)
{
	uint32_t seen = __atomic_load_n(&map->high, __ATOMIC_RELAXED);
	while (seen < high &&
	       !__atomic_compare_exchange_n(&map->high, &seen, high, false, __ATOMIC_RELEASE, __ATOMIC_RELAXED))
		;
}

/* Free slots are taken from below, so that a sweep has few lines to read. */
static void lower_hint(struct ptg_ledger *map, uint32_t index)
{
	uint32_t seen = __atomic_load_n(&map->hint, __ATOMIC_RELAXED);
	while (seen > index &&
	       !__atomic_compare_exchange_n(&map->hint, &seen, index, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
		;
}

/* The slot's lock is ours. */
static void empty(struct ptg_ledger *map, uint32_t index)
{
	for (unsigned device = 0; device < PTG_DEVICES; device++) {
		ptg_subtract(map, device, index, PTG_UNITS_MAX);
		map->slot[index].device[device].context = 0;
		map->slot[index].device[device].refused = 0;
	}
	ptg_turn_clear(map, index);
}

/* ---- the dead ------------------------------------------------------------------------------------------------------- */

/* With the lock in hand: a process that keeps none because of a kernel or library we do not know still counts as alive
 * where we can see it with the ledger in its address space. After exec it has not: the image that was charged is gone,
 * whatever the process does now. */
static bool owner_gone(const struct ptg_ledger *map, const struct ptg_slot *slot, const struct vgpu_identity *self)
{
	int32_t pid = slot->pid;
	if (slot->start_time == 0 || slot->pid_ns == 0 || slot->pid_ns != self->pid_ns)
		return true;
	if (pid == self->pid && slot->start_time == self->start_time)
		return true; /* this process before exec */
	return !vgpu_process_alive(pid, slot->start_time) || !vgpu_process_maps(pid, map);
}

static void free_slot(struct ptg_ledger *map, uint32_t index)
{
	empty(map, index);
	__atomic_store_n(&map->slot[index].state, PTG_SLOT_FREE, __ATOMIC_RELEASE);
	__atomic_add_fetch(&map->reclaimed, 1, __ATOMIC_RELAXED);
	lower_hint(map, index);
}

enum seen { ALIVE, FREED, NOBODY };
#define GOING_WAITS 50 /* in one sweep: who is gone and whose lock somebody keeps for good holds nobody up for long */
#define GOING_NS    100000
#define GOING_EVERY 100000000 /* ns between two sweeps that ask: who is refused again and again need not pay for it */

static enum seen reclaim_one(struct ptg_ledger *map, int fd, uint32_t index, struct vgpu_identity *self)
{
	struct ptg_slot *slot = &map->slot[index];
	enum seen seen = NOBODY;
	if (!is_taken(slot))
		return NOBODY;
	if (vgpu_byte_lock(fd, index) != 0)
		return ALIVE;
	if (self->pid == 0)
		vgpu_identify(self);
	if (is_taken(slot)) {
		seen = owner_gone(map, slot, self) ? FREED : ALIVE;
		if (seen == FREED)
			free_slot(map, index);
	}
	vgpu_byte_unlock(fd, index);
	return seen;
}

/* Whether a slot whose lock is held is a dead process's all the same: a peer is giving it back this moment, or the kernel
 * still has what was mapped. Only pids of our own namespace tell. */
static bool is_going(const struct ptg_ledger *map, uint32_t own, uint32_t index)
{
	const struct ptg_slot *slot = &map->slot[index];
	if (own >= PTG_SLOTS || state_of(slot) != PTG_SLOT_USED || slot->pid <= 0 ||
	    slot->pid_ns != map->slot[own].pid_ns)
		return false;
	int saved = errno;
	bool gone = syscall(SYS_kill, (long)slot->pid, 0L) != 0 && errno == ESRCH;
	errno = saved;
	return gone;
}

/* Whether this sweep asks for those that are going, at its first slot that is held. */
static bool asks_for_going(void)
{
	static uint64_t asked_at;
	uint64_t now = vgpu_now_ns();
	if (now - __atomic_load_n(&asked_at, __ATOMIC_RELAXED) < GOING_EVERY)
		return false;
	__atomic_store_n(&asked_at, now, __ATOMIC_RELAXED);
	return true;
}

unsigned vgpu_slot_reclaim(struct vgpu_ledger *ledger, uint32_t own, unsigned most_alive)
{
	struct vgpu_identity self = {0};
	unsigned freed = 0, alive = 0, waits = 0;
	bool asks = false;
	int fd = vgpu_ledger_fd(ledger);
	for (uint32_t i = 0; fd >= 0 && i < vgpu_slot_high(ledger->map) && alive < most_alive; i++) {
		if (i == own)
			continue;
		enum seen seen = reclaim_one(ledger->map, fd, i, &self);
		if (seen == ALIVE && alive == 0 && own < PTG_SLOTS)
			asks = asks_for_going();
		/* Its memory is there in a moment: who asks for it is not refused for that. */
		while (seen == ALIVE && asks && waits < GOING_WAITS && is_going(ledger->map, own, i)) {
			waits++;
			vgpu_pause_ns(GOING_NS);
			seen = reclaim_one(ledger->map, fd, i, &self);
		}
		alive += seen == ALIVE;
		freed += seen == FREED;
	}
	return freed;
}

void vgpu_slot_reclaim_one(struct vgpu_ledger *ledger, uint32_t index)
{
	int fd = vgpu_ledger_fd(ledger);
	if (fd >= 0)
		vgpu_slot_reclaim_by(ledger, fd, index);
}

bool vgpu_slot_reclaim_by(struct vgpu_ledger *ledger, int fd, uint32_t index)
{
	struct vgpu_identity self = {0};
	return reclaim_one(ledger->map, fd, index, &self) != ALIVE;
}

void vgpu_slot_forget_former(struct vgpu_ledger *ledger)
{
	struct vgpu_identity self = {0};
	int32_t pid = vgpu_pid();
	int fd = -1;
	for (uint32_t i = 0; i < vgpu_slot_high(ledger->map); i++) {
		const struct ptg_slot *slot = &ledger->map->slot[i];
		if (slot->pid != pid || state_of(slot) != PTG_SLOT_USED)
			continue;
		fd = fd < 0 ? vgpu_ledger_fd(ledger) : fd;
		if (fd >= 0)
			reclaim_one(ledger->map, fd, i, &self);
	}
}

bool vgpu_slot_any_other(struct vgpu_ledger *ledger, uint32_t own)
{
	for (uint32_t i = 0; i < vgpu_slot_high(ledger->map); i++)
		if (i != own && is_taken(&ledger->map->slot[i]))
			return true;
	return false;
}

/* ---- the living ------------------------------------------------------------------------------------------------------ */

static void write_identity(struct ptg_slot *slot, const struct vgpu_identity *self)
{
	slot->pid = self->pid;
	slot->host_pid = 0;
	slot->start_time = self->start_time;
	slot->pid_ns = self->pid_ns;
	memcpy(slot->name, self->name, sizeof slot->name);
	__atomic_add_fetch(&slot->generation, 1, __ATOMIC_RELAXED);
}

/* 1: taken; 0: somebody else's; -1: the lock cannot be kept. */
static int try_slot(struct vgpu_ledger *ledger, uint32_t index, const struct vgpu_identity *self)
{
	struct ptg_slot *slot = &ledger->map->slot[index];
	if (state_of(slot) != PTG_SLOT_FREE)
		return 0;
	if (vgpu_ledger_hold(ledger, index) != 0)
		return errno == EAGAIN || errno == EACCES ? 0 : -1;
	if (state_of(slot) != PTG_SLOT_FREE) {
		/* Taken and left by somebody who died between our two looks. */
		vgpu_ledger_let_go(ledger);
		return 0;
	}
	empty(ledger->map, index);
	write_identity(slot, self);
	raise_high(ledger->map, index + 1);
	__atomic_store_n(&slot->state, PTG_SLOT_USED, __ATOMIC_RELEASE);
	__atomic_store_n(&ledger->map->hint, index + 1, __ATOMIC_RELAXED);
	return 1;
}

static uint32_t search(struct vgpu_ledger *ledger, const struct vgpu_identity *self, char reason[VGPU_REASON_MAX])
{
	uint32_t hint = __atomic_load_n(&ledger->map->hint, __ATOMIC_RELAXED);
	for (uint32_t i = 0; i < PTG_SLOTS; i++) {
		uint32_t index = (hint + i) % PTG_SLOTS;
		int taken = try_slot(ledger, index, self);
		if (taken > 0)
			return index;
		if (taken < 0) {
			snprintf(reason, VGPU_REASON_MAX, "ledger %.200s: slot %u cannot be locked: %s", ledger->path,
			         index, strerror(errno));
			return VGPU_NO_SLOT;
		}
	}
	snprintf(reason, VGPU_REASON_MAX, "ledger %.200s: all %d slots are taken by living processes; end some of them",
	         ledger->path, PTG_SLOTS);
	return VGPU_NO_SLOT;
}

uint32_t vgpu_slot_take(struct vgpu_ledger *ledger, char reason[VGPU_REASON_MAX])
{
	struct vgpu_identity self;
	vgpu_identify(&self);
	/* A restarted container starts with the charges of its former life gone. The bound keeps the start short where a
	 * thousand processes live. */
	vgpu_slot_forget_former(ledger);
	vgpu_slot_reclaim(ledger, VGPU_NO_SLOT, 32);
	uint32_t index = search(ledger, &self, reason);
	if (index == VGPU_NO_SLOT && vgpu_slot_reclaim(ledger, VGPU_NO_SLOT, UINT_MAX) > 0)
		index = search(ledger, &self, reason);
	if (index != VGPU_NO_SLOT) {
		__atomic_add_fetch(&ledger->map->doorbell, 1, __ATOMIC_RELEASE);
		vgpu_futex_wake(&ledger->map->doorbell, INT_MAX);
	}
	return index;
}

/* ---- what no process owns ------------------------------------------------------------------------------------------- */

uint32_t vgpu_slot_lock_free(struct vgpu_ledger *ledger, int fd)
{
	uint32_t hint = __atomic_load_n(&ledger->map->hint, __ATOMIC_RELAXED);
	for (uint32_t i = 0; i < PTG_SLOTS; i++) {
		uint32_t index = (hint + i) % PTG_SLOTS;
		const struct ptg_slot *slot = &ledger->map->slot[index];
		if (state_of(slot) != PTG_SLOT_FREE || vgpu_byte_lock(fd, index) != 0)
			continue;
		if (state_of(slot) == PTG_SLOT_FREE)
			return index;
		vgpu_byte_unlock(fd, index);
	}
	return VGPU_NO_SLOT;
}

void vgpu_slot_make_shared(struct vgpu_ledger *ledger, uint32_t index)
{
	static const struct vgpu_identity nobody = {.name = "shared"};
	struct ptg_slot *slot = &ledger->map->slot[index];
	empty(ledger->map, index);
	write_identity(slot, &nobody);
	raise_high(ledger->map, index + 1);
	__atomic_store_n(&slot->state, PTG_SLOT_SHARED, __ATOMIC_RELEASE);
	__atomic_store_n(&ledger->map->hint, index + 1, __ATOMIC_RELAXED);
}
