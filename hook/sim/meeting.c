/* meeting.c: collectives find their partner on another device, in this process or another.
 *
 * The first one to come leaves an entry in the machine file and looks again every SIM_SPIN_NS (timeline.h); the second
 * marks the entry and goes on, the first sees the mark, frees the entry and goes on. Entries of dead clients count for
 * nothing. Called by timeline.c. What can go wrong: the table is full; then the collective does not wait (logged).
 */
#include "engine.h"

static uint32_t generation_of(int slot)
{
	return __atomic_load_n(&sim_machine->client[slot].generation, __ATOMIC_ACQUIRE);
}

/* An entry that is only in the way: its client is dead, and its slot may be somebody else's by now. */
static void drop_if_dead(struct sim_meeting *entry, int self)
{
	if (entry->key && (entry->generation != generation_of(entry->slot) ||
	                   (entry->slot != self && !sim_client_alive(entry->slot))))
		entry->key = 0;
}

/* The entry left by this item when it came first. */
static struct sim_meeting *own_entry(int self, uint64_t item)
{
	for (int i = 0; i < SIM_MEETINGS; i++) {
		struct sim_meeting *entry = &sim_machine->meeting[i];
		if (entry->key && entry->slot == self && entry->item == item &&
		    entry->generation == generation_of(self))
			return entry;
	}
	return NULL;
}

static bool meet(uint64_t key, int device, uint64_t item, bool give_up)
{
	int self = sim_client_slot();
	struct sim_meeting *own = own_entry(self, item), *spare = NULL;
	if (own) {
		bool met = own->met;
		if (met || give_up)
			own->key = 0;
		return met;
	}
	for (int i = 0; i < SIM_MEETINGS; i++) {
		struct sim_meeting *entry = &sim_machine->meeting[i];
		drop_if_dead(entry, self);
		if (entry->key == key && !entry->met && entry->device != device) {
			entry->met = 1;
			return true;
		}
		if (!entry->key && !spare)
			spare = entry;
	}
	if (!spare) {
		sim_log("device %d: more than %d collectives wait for a partner; this one does not", device,
		        SIM_MEETINGS);
		return true;
	}
	if (!give_up)
		*spare = (struct sim_meeting){
		        .key = key, .item = item, .device = device, .slot = self, .generation = generation_of(self)};
	return false;
}

bool sim_meeting_met(uint64_t key, int device, uint64_t item, bool give_up)
{
	sim_lock(&sim_machine->meeting_lock);
	bool met = meet(key, device, item, give_up);
	sim_unlock(&sim_machine->meeting_lock);
	return met;
}
