/* share.c: memory that several processes of the container hold, charged once and for as long as any of them does.
 *
 * Called by the hooks of whatever exports or imports. What is exported moves from its maker's slot of the ledger to a
 * slot of its own, which no process owns: everybody who holds the memory holds a *read* lock on that slot's byte (an
 * open file description kept by a small mapping, as a process's own slot is kept). So the kernel counts the holders,
 * whatever kills them, and the slot is dead, to be given back like any other, when none is left. An importer finds the
 * slot by its key: a hash of the bytes of a cuIpc handle; of a descriptor, the process and the signal number that the
 * exporter wrote into it with F_SETOWN and F_SETSIG, which travel with it and which the driver does not use. There are
 * 64 such numbers: where two exports of a process have the same, the importer holds both.
 *
 * Memory whose maker is in no slot of this ledger is the importer's to pay in full: see ipc.c and vmm.c.
 * What can go wrong: no free slot, no descriptor: then what is exported stays charged to its maker, and an importer pays
 * once more. Being killed at any instruction leaves a slot that is dead or never was taken.
 */
#include "share.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "core.h"

#define HOLD_BYTES 4096 /* of the ledger, mapped to keep the description */
#define TAGS       64

struct vgpu_share {
	struct vgpu_share *next; /* of the same key */
	uint32_t slot;
	void *hold;
	struct vgpu_share_key key;
};

/* ---- keys -------------------------------------------------------------------------------------------------------- */

struct vgpu_share_key vgpu_share_key_of_bytes(const void *bytes, size_t count)
{
	struct vgpu_share_key key = {PTG_SHARE_BYTES, {UINT64_C(0xcbf29ce484222325), UINT64_C(0x9ae16a3b2f90404f)}};
	const unsigned char *at = bytes;
	for (size_t i = 0; i < count; i++) {
		key.word[0] = (key.word[0] ^ at[i]) * UINT64_C(0x100000001b3);
		key.word[1] = (key.word[1] + at[i]) * UINT64_C(0x9e3779b97f4a7c15);
		key.word[1] ^= key.word[1] >> 29;
	}
	return key;
}

struct vgpu_share_key vgpu_share_new_key(void)
{
	static uint32_t exports;
	uint32_t tag = __atomic_fetch_add(&exports, 1, __ATOMIC_RELAXED) % TAGS + 1;
	return (struct vgpu_share_key){PTG_SHARE_DESCRIPTOR, {(uint64_t)(uint32_t)getpid(), tag}};
}

bool vgpu_share_mark(int fd, const struct vgpu_share_key *key)
{
	return key->kind == PTG_SHARE_DESCRIPTOR && syscall(SYS_fcntl, fd, F_SETOWN, (long)key->word[0]) == 0 &&
	       syscall(SYS_fcntl, fd, F_SETSIG, (long)key->word[1]) == 0;
}

struct vgpu_share_key vgpu_share_key_of(int fd)
{
	struct f_owner_ex owner = {0};
	struct vgpu_share_key key = {0};
	long tag = syscall(SYS_fcntl, fd, F_GETSIG, 0L);
	if (tag <= 0 || syscall(SYS_fcntl, fd, F_GETOWN_EX, &owner) != 0 || owner.type != F_OWNER_PID || owner.pid <= 0)
		return key;
	return (struct vgpu_share_key){PTG_SHARE_DESCRIPTOR, {(uint64_t)(uint32_t)owner.pid, (uint64_t)tag}};
}

/* ---- slots that no process owns ---------------------------------------------------------------------------------- */

static bool is_of(const struct ptg_slot *slot, const struct vgpu_share_key *key, uint64_t pid_ns)
{
	return __atomic_load_n(&slot->state, __ATOMIC_ACQUIRE) == PTG_SLOT_SHARED && slot->share_kind == key->kind &&
	       slot->share_key[0] == key->word[0] && slot->share_key[1] == key->word[1] &&
	       (key->kind != PTG_SHARE_DESCRIPTOR || slot->share_ns == pid_ns);
}

/* A page of the ledger mapped through this description keeps its locks. Not inherited by a fork's child, which would keep
 * them after our death. */
static void *keep(int fd)
{
	void *hold = mmap(NULL, HOLD_BYTES, PROT_READ, MAP_SHARED, fd, 0);
	if (hold == MAP_FAILED)
		return NULL;
	if (madvise(hold, HOLD_BYTES, MADV_DONTFORK) == 0)
		return hold;
	munmap(hold, HOLD_BYTES);
	return NULL;
}

/* With the state's lock held. The slot's byte is locked by `fd` alone. */
static bool charge_slot(struct vgpu_state *s, uint32_t index, int device, uint64_t bytes,
                        const struct vgpu_share_key *key)
{
	struct vgpu_identity self;
	vgpu_identify(&self);
	struct ptg_slot *slot = &s->ledger.map->slot[index];
	if (key->kind == PTG_SHARE_DESCRIPTOR && self.pid_ns == 0)
		return false; /* nobody could tell whose it is */
	slot->share_kind = key->kind;
	slot->share_key[0] = key->word[0];
	slot->share_key[1] = key->word[1];
	slot->share_ns = self.pid_ns;
	vgpu_slot_make_shared(&s->ledger, index);
	/* First there, then away here: for a moment too much is charged, never too little. */
	ptg_add(s->ledger.map, (unsigned)device, index, ptg_units(bytes), NULL);
	ptg_subtract(s->ledger.map, (unsigned)device, s->slot, ptg_units(bytes));
	return true;
}

/* With the state's lock held: the hold on a new slot; NULL: there is none, and nothing has changed. */
static void *take_slot(struct vgpu_state *s, int device, uint64_t bytes, const struct vgpu_share_key *key,
                       uint32_t *index)
{
	int fd = vgpu_ledger_open_again(&s->ledger);
	void *hold = NULL;
	if (fd < 0)
		return NULL;
	*index = vgpu_slot_lock_free(&s->ledger, fd);
	if (*index != VGPU_NO_SLOT)
		hold = keep(fd);
	if (hold != NULL && !charge_slot(s, *index, device, bytes, key)) {
		munmap(hold, HOLD_BYTES);
		hold = NULL;
	}
	if (hold != NULL)
		vgpu_byte_lock_shared(fd, *index); /* instead of the lock that it is taken by */
	vgpu_close(fd);
	return hold;
}

struct vgpu_share *vgpu_share_make(CUdevice device, uint64_t bytes, const struct vgpu_share_key *key)
{
	struct vgpu_state *s = vgpu_state();
	int saved = errno, index = s ? vgpu_index_of(device) : -1;
	struct vgpu_share *share = index >= 0 ? calloc(1, sizeof(*share)) : NULL;
	if (share == NULL)
		return NULL;
	share->key = *key;
	vgpu_lock(&s->lock);
	if (s->mode == VGPU_LIMITED && vgpu_slot_ready(s))
		share->hold = take_slot(s, index, bytes, key, &share->slot);
	vgpu_unlock(&s->lock);
	if (share->hold == NULL) {
		free(share);
		share = NULL;
	}
	errno = saved;
	return share;
}

/* With the state's lock held. */
static void *hold_slot(struct vgpu_state *s, uint32_t index, const struct vgpu_share_key *key, uint64_t pid_ns)
{
	int fd = vgpu_ledger_open_again(&s->ledger);
	void *hold = NULL;
	if (fd < 0)
		return NULL;
	if (vgpu_byte_lock_shared(fd, index) == 0 && is_of(&s->ledger.map->slot[index], key, pid_ns))
		hold = keep(fd);
	vgpu_close(fd);
	return hold;
}

struct vgpu_share *vgpu_share_join(const struct vgpu_share_key *key)
{
	struct vgpu_state *s = vgpu_state();
	struct vgpu_share *all = NULL;
	struct vgpu_identity self;
	int saved = errno;
	if (s == NULL || key->kind == 0)
		return NULL;
	vgpu_identify(&self);
	vgpu_lock(&s->lock);
	for (uint32_t i = 0; vgpu_ledger_ready(s) && i < vgpu_slot_high(s->ledger.map); i++) {
		if (!is_of(&s->ledger.map->slot[i], key, self.pid_ns))
			continue;
		struct vgpu_share *share = calloc(1, sizeof(*share));
		if (share == NULL)
			continue;
		*share = (struct vgpu_share){.next = all, .slot = i, .key = *key};
		share->hold = hold_slot(s, i, key, self.pid_ns);
		if (share->hold != NULL)
			all = share;
		else
			free(share);
	}
	vgpu_unlock(&s->lock);
	errno = saved;
	return all;
}

void vgpu_share_leave(struct vgpu_share *share)
{
	struct vgpu_state *s = vgpu_state();
	struct vgpu_share *next;
	int saved = errno;
	for (; share != NULL; share = next) {
		next = share->next;
		if (share->hold != NULL)
			munmap(share->hold, HOLD_BYTES);
		if (s != NULL) {
			vgpu_lock(&s->lock);
			if (vgpu_ledger_ready(s))
				vgpu_slot_reclaim_one(&s->ledger, share->slot);
			vgpu_unlock(&s->lock);
		}
		free(share);
	}
	errno = saved;
}

struct vgpu_share_key vgpu_share_key(const struct vgpu_share *share)
{
	return share->key;
}

struct vgpu_share *vgpu_share_both(struct vgpu_share *one, struct vgpu_share *other)
{
	struct vgpu_share *end = one;
	while (end->next != NULL)
		end = end->next;
	end->next = other;
	return one;
}

/* ---- what the maker charges later -------------------------------------------------------------------------------- */

void vgpu_share_move(const struct vgpu_share *share, CUdevice device, uint64_t bytes)
{
	struct vgpu_state *s = vgpu_state();
	int index = s ? vgpu_index_of(device) : -1;
	if (index < 0)
		return;
	vgpu_lock(&s->lock);
	if (vgpu_slot_ready(s)) {
		ptg_add(s->ledger.map, (unsigned)index, share->slot, ptg_units(bytes), NULL);
		ptg_subtract(s->ledger.map, (unsigned)index, s->slot, ptg_units(bytes));
	}
	vgpu_unlock(&s->lock);
}

void vgpu_share_lower(const struct vgpu_share *share, CUdevice device, uint64_t bytes)
{
	struct vgpu_state *s = vgpu_state();
	int index = s ? vgpu_index_of(device) : -1;
	if (index < 0)
		return;
	vgpu_lock(&s->lock);
	if (vgpu_ledger_ready(s))
		ptg_subtract(s->ledger.map, (unsigned)index, share->slot, ptg_units(bytes));
	vgpu_unlock(&s->lock);
}

/* With the state's lock held. `fd` is another description: whether we are alone shows when our own lock is gone. Who comes
 * between finds the slot as it was; who comes later finds none. */
static void abandon(struct vgpu_state *s, struct vgpu_share *share, int fd, unsigned device, uint64_t bytes)
{
	struct vgpu_identity self;
	vgpu_identify(&self);
	if (fd >= 0) {
		munmap(share->hold, HOLD_BYTES);
		share->hold = NULL;
		if (vgpu_slot_reclaim_by(&s->ledger, fd, share->slot))
			return;
		if (vgpu_byte_lock_shared(fd, share->slot) != 0 ||
		    !is_of(&s->ledger.map->slot[share->slot], &share->key, self.pid_ns))
			return; /* they have gone, and somebody has taken the slot or is about to */
	}
	ptg_add(s->ledger.map, device, share->slot, ptg_units(bytes), NULL);
}

void vgpu_share_abandon(struct vgpu_share *share, CUdevice device, uint64_t bytes)
{
	struct vgpu_state *s = vgpu_state();
	int saved = errno, index = s ? vgpu_index_of(device) : -1;
	if (index >= 0) {
		vgpu_lock(&s->lock);
		int fd = vgpu_ledger_ready(s) ? vgpu_ledger_open_again(&s->ledger) : -1;
		if (vgpu_ledger_ready(s))
			abandon(s, share, fd, (unsigned)index, bytes);
		if (fd >= 0)
			vgpu_close(fd);
		vgpu_unlock(&s->lock);
	}
	vgpu_share_leave(share);
	errno = saved;
}

/* ---- blocks ------------------------------------------------------------------------------------------------------ */

struct shared {
	struct shared *next;
	CUdeviceptr p;
	void (*end)(void *); /* of the argument, when the block is gone */
	void *argument;
};

static uint32_t lock; /* process-private */
static struct shared *shared;

static void leave(void *share)
{
	vgpu_share_leave(share);
}

void vgpu_shared_put(CUdeviceptr p, struct vgpu_share *share)
{
	vgpu_shared_put_other(p, leave, share);
}

void vgpu_shared_put_other(CUdeviceptr p, void (*end)(void *), void *argument)
{
	struct shared *one = malloc(sizeof(*one));
	if (one == NULL)
		return; /* it stays held until the process ends: too much, never too little */
	vgpu_lock(&lock);
	*one = (struct shared){shared, p, end, argument};
	shared = one;
	vgpu_unlock(&lock);
}

void vgpu_shared_end(CUdeviceptr p)
{
	vgpu_lock(&lock);
	struct shared **link = &shared;
	while (*link != NULL && (*link)->p != p)
		link = &(*link)->next;
	struct shared *one = *link;
	if (one != NULL)
		*link = one->next;
	vgpu_unlock(&lock);
	if (one != NULL)
		one->end(one->argument);
	free(one);
}

void vgpu_shares_forked(void)
{
	lock = 0;
	shared = NULL;
}
