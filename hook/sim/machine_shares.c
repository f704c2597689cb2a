/* machine_shares.c: physical memory that several processes hold: exported allocation handles (struct sim_share).
 *
 * Called by vmm_share.c (make, join, leave) and by machine_clients.c when a client is gone. The card counts a share
 * once, as long as anybody holds it: in the bytes of its payer, and of another holder after that. A client may be
 * killed at any instruction in here: whoever takes the device's lock over counts everybody again from `own` and from
 * this table, which each step leaves true. What can go wrong: the table is full (the memory is then its maker's alone,
 * as if nobody else held it).
 */
#include <string.h>

#include "machine_local.h"

static struct sim_share *share_of(int device, uint64_t id)
{
	struct sim_device_state *state = &sim_machine->device[device];

	for (uint32_t i = 0; i < state->nshares && i < SIM_SHARES; i++) {
		if (state->share[i].id == id)
			return &state->share[i];
	}
	return NULL;
}

static bool holds(const struct sim_share *share, int slot)
{
	return share->holders[slot / 64] >> (slot % 64) & 1;
}

static void hold(struct sim_share *share, int slot, bool whether)
{
	uint64_t bit = UINT64_C(1) << (slot % 64);

	if (whether)
		share->holders[slot / 64] |= bit;
	else
		share->holders[slot / 64] &= ~bit;
}

/* A new entry, held and paid by this process; NULL: the table is full. Its id is stored last. */
static struct sim_share *new_share(int device, int slot, uint64_t id, uint64_t bytes)
{
	struct sim_device_state *state = &sim_machine->device[device];
	struct sim_share *share = share_of(device, 0);

	if (!share) {
		if (state->nshares >= SIM_SHARES)
			return NULL;
		share = &state->share[state->nshares];
		share->id = 0;
		state->nshares++;
	}
	share->bytes = bytes;
	share->payer = slot;
	memset(share->holders, 0, sizeof share->holders);
	hold(share, slot, true);
	__atomic_store_n(&share->id, id, __ATOMIC_RELEASE);
	return share;
}

uint64_t sim_share_make(int device, uint64_t bytes)
{
	uint64_t id = __atomic_add_fetch(&sim_machine->share_id, 1, __ATOMIC_RELAXED);
	int slot = sim_client_slot();

	if (slot < 0)
		return 0;
	sim_device_lock(device);
	struct sim_client_device *held = &sim_machine->client[slot].device[device];
	if (new_share(device, slot, id, bytes))
		held->own = held->own > bytes ? held->own - bytes : 0;
	else
		id = 0;
	sim_device_unlock(device);
	if (!id)
		sim_log("device %d: %d exported handles are held at once; one more is counted for its maker only",
		        device, SIM_SHARES);
	return id;
}

int sim_share_join(int device, uint64_t id, uint64_t bytes)
{
	int slot = sim_client_slot(), result = 0;

	if (slot < 0)
		return -1;
	sim_device_lock(device);
	struct sim_share *share = share_of(device, id);
	if (share) {
		hold(share, slot, true);
	} else if (!bytes || !sim_device_has_room(device, bytes)) {
		result = -1;
	} else if (new_share(device, slot, id, bytes)) { /* only the descriptor kept it: its holders are gone */
		sim_set_bytes(device, slot, sim_machine->client[slot].device[device].memory + bytes);
	}
	sim_device_unlock(device);
	return result;
}

/* The share loses a holder. Its bytes move on to a living one; where there is none, the share ends. */
static void let_go(int device, struct sim_share *share, int slot)
{
	struct sim_client *client = sim_machine->client;

	hold(share, slot, false);
	if (share->payer != slot)
		return;
	for (int heir = 0; heir < SIM_CLIENTS; heir++) {
		if (!holds(share, heir) || !sim_slot_alive(heir))
			continue;
		share->payer = heir;
		sim_set_bytes(device, slot, client[slot].device[device].own + sim_shares_paid(device, slot));
		sim_set_bytes(device, heir, client[heir].device[device].own + sim_shares_paid(device, heir));
		return;
	}
	share->id = 0;
	sim_set_bytes(device, slot, client[slot].device[device].own + sim_shares_paid(device, slot));
}

bool sim_share_leave(int device, uint64_t id)
{
	int slot = sim_client_slot();
	bool last = false;

	if (slot < 0)
		return false;
	sim_device_lock(device);
	struct sim_share *share = share_of(device, id);
	if (share && holds(share, slot)) {
		let_go(device, share, slot);
		last = share->id == 0;
	}
	sim_device_unlock(device);
	return last;
}

uint64_t sim_shares_paid(int device, int slot)
{
	const struct sim_device_state *state = &sim_machine->device[device];
	uint64_t bytes = 0;

	for (uint32_t i = 0; i < state->nshares && i < SIM_SHARES; i++)
		bytes += state->share[i].id && state->share[i].payer == slot ? state->share[i].bytes : 0;
	return bytes;
}

void sim_shares_drop(int device, int slot)
{
	struct sim_device_state *state = &sim_machine->device[device];

	for (uint32_t i = 0; i < state->nshares && i < SIM_SHARES; i++) {
		if (state->share[i].id && holds(&state->share[i], slot))
			let_go(device, &state->share[i], slot);
	}
}
