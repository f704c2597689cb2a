/* machine_clients.c: who is on the simulated machine, its locks, and how many bytes each holds.
 *
 * Called by every allocation (sim_account), by the engine (sim_lock) and by NVML (sim_client_alive, sim_device_used).
 * A client may be killed at any instruction, so: a slot is alive exactly while its OFD lock is held; a lock word names
 * slot and generation and may be taken over when that slot is dead or has a new tenant; every write of a client's
 * `memory` happens under that device's lock, and whoever takes a lock over counts again from the clients' own words.
 * What can go wrong: all slots taken (sim_client_slot is -1 and growth is refused), or the program closes our
 * descriptor: it counts as dead until it next asks about another client, and nothing hangs.
 */
#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "machine_local.h"

#define LOCK_WAITERS     UINT64_C(0x80000000)
#define LOCK_SLOT        UINT64_C(0x7fffffff)
#define LOCK_PATIENCE_NS 5000000 /* after this long a waiter asks whether the owner lives */
#define LOCK_SPINS       64
#define NO_SLOT          (LOCK_SLOT - 1) /* identity of a process without a slot: others may take its locks over */

static pthread_mutex_t slot_mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t fd_mutex = PTHREAD_MUTEX_INITIALIZER; /* taken inside slot_mutex */
static int own_fd = -1;
static int own_slot = -1;
static uint64_t own_identity; /* generation << 32 | slot + 1 */

static void after_fork_in_child(void)
{
	/* The child shares the parent's description and would keep its slot alive after its death. */
	if (own_fd >= 0 && sim_is_machine_file(own_fd))
		close(own_fd);
	own_fd = -1;
	own_slot = -1;
	own_identity = 0;
	pthread_mutex_init(&slot_mutex, NULL);
	pthread_mutex_init(&fd_mutex, NULL);
}

/* Under fd_mutex: opens it, for the first time or because the program closed it, and takes our slot's byte again. Where
 * somebody else has that slot by now we are dead to the others, and the next growth takes another one. */
static int open_fd(void)
{
	static bool handler;
	int slot = __atomic_load_n(&own_slot, __ATOMIC_ACQUIRE);

	if (!handler)
		handler = pthread_atfork(NULL, NULL, after_fork_in_child) == 0;
	int fd = sim_machine_reopen();
	if (fd >= 0 && slot >= 0 &&
	    (__atomic_load_n(&sim_machine->client[slot].generation, __ATOMIC_ACQUIRE) != own_identity >> 32 ||
	     !sim_byte_lock(fd, SIM_LOCK_CLIENT + slot, false)))
		__atomic_store_n(&own_slot, -1, __ATOMIC_RELEASE);
	else if (fd >= 0 && slot >= 0)
		sim_pid_announce(slot); /* the program closed that descriptor, too, unless it was very choosy */
	__atomic_store_n(&own_fd, fd, __ATOMIC_RELEASE);
	return fd;
}

/* Looked at before each use: under a foreign file's number everybody would look dead, and under none nobody ever. */
int sim_machine_fd(void)
{
	int fd = __atomic_load_n(&own_fd, __ATOMIC_ACQUIRE);

	if (fd >= 0 && sim_is_machine_file(fd))
		return fd;
	pthread_mutex_lock(&fd_mutex);
	if (own_fd == fd)
		open_fd();
	fd = own_fd;
	pthread_mutex_unlock(&fd_mutex);
	return fd;
}

/* Not our own slot: asked from our own description its lock looks free. */
static bool slot_alive(int slot)
{
	return __atomic_load_n(&sim_machine->client[slot].state, __ATOMIC_ACQUIRE) &&
	       !sim_byte_free(sim_machine_fd(), SIM_LOCK_CLIENT + slot);
}

/* ---- locks ------------------------------------------------------------------------------------------------------ */

static bool owner_dead(uint64_t word)
{
	uint64_t slot = (word & LOCK_SLOT) - 1;

	if (slot >= SIM_CLIENTS)
		return true;
	if (__atomic_load_n(&sim_machine->client[slot].generation, __ATOMIC_ACQUIRE) != (uint32_t)(word >> 32))
		return true;
	if ((int)slot == __atomic_load_n(&own_slot, __ATOMIC_ACQUIRE))
		return false;
	return sim_byte_free(sim_machine_fd(), SIM_LOCK_CLIENT + (long)slot);
}

static uint32_t *futex_word(uint64_t *word)
{
	return (uint32_t *)word + (__BYTE_ORDER__ == __ORDER_BIG_ENDIAN__);
}

static bool exchange_if(uint64_t *word, uint64_t from, uint64_t to)
{
	return __atomic_compare_exchange_n(word, &from, to, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
}

/* True where it was taken over from the dead: what it guards may be half-written. */
static bool lock_slowly(uint64_t *word, uint64_t self)
{
	const struct timespec patience = {.tv_nsec = LOCK_PATIENCE_NS};
	uint64_t ask_at = sim_now() + LOCK_PATIENCE_NS;

	for (;;) {
		uint64_t seen = __atomic_load_n(word, __ATOMIC_ACQUIRE);
		if (!seen) {
			if (exchange_if(word, 0, self | LOCK_WAITERS))
				return false;
			continue;
		}
		if (!(seen & LOCK_WAITERS)) {
			if (!exchange_if(word, seen, seen | LOCK_WAITERS))
				continue;
			seen |= LOCK_WAITERS;
		}
		syscall(SYS_futex, futex_word(word), FUTEX_WAIT, (uint32_t)seen, &patience, NULL, 0);
		if (sim_now() < ask_at) /* the clock, not the call's result: signals may end every wait early */
			continue;
		if (owner_dead(seen) && exchange_if(word, seen, self | LOCK_WAITERS))
			return true;
		ask_at = sim_now() + LOCK_PATIENCE_NS;
	}
}

static bool lock_as(uint64_t *word, uint64_t self)
{
	for (int i = 0; i < LOCK_SPINS; i++) {
		if (__atomic_load_n(word, __ATOMIC_RELAXED) == 0 && exchange_if(word, 0, self))
			return false;
	}
	int saved = errno;
	bool taken_over = lock_slowly(word, self);
	errno = saved;
	return taken_over;
}

/* Does nothing where the lock is no longer ours: it was taken over because we looked dead. */
static void unlock_as(uint64_t *word, uint64_t self)
{
	uint64_t seen;

	do {
		seen = __atomic_load_n(word, __ATOMIC_RELAXED);
		if ((seen & ~LOCK_WAITERS) != self)
			return;
	} while (!exchange_if(word, seen, 0));
	if (seen & LOCK_WAITERS)
		syscall(SYS_futex, futex_word(word), FUTEX_WAKE, 1, NULL, NULL, 0);
}

static uint64_t identity(void)
{
	return sim_client_slot() >= 0 ? own_identity : NO_SLOT;
}

void sim_lock(uint64_t *word)
{
	lock_as(word, identity());
}

void sim_unlock(uint64_t *word)
{
	unlock_as(word, identity());
}

/* ---- bytes, under the device's lock ----------------------------------------------------------------------------- */

static uint64_t *holder_word(struct sim_device_state *state, int slot)
{
	return &state->holders[slot / 64];
}

/* memory first: a client that dies between these stores is counted again by whoever takes the lock over. */
void sim_set_bytes(int device, int slot, uint64_t bytes)
{
	struct sim_device_state *state = &sim_machine->device[device];
	struct sim_client_device *held = &sim_machine->client[slot].device[device];
	uint64_t before = held->memory, bit = UINT64_C(1) << (slot % 64);

	__atomic_store_n(&held->memory, bytes, __ATOMIC_RELEASE);
	state->used += bytes - before;
	uint64_t holders = *holder_word(state, slot);
	__atomic_store_n(holder_word(state, slot), bytes ? holders | bit : holders & ~bit, __ATOMIC_RELEASE);
	if (state->used > state->peak)
		__atomic_store_n(&state->peak, state->used, __ATOMIC_RELEASE);
}

static void drop_bytes(int device, int slot)
{
	sim_shares_drop(device, slot);
	sim_machine->client[slot].device[device].own = 0;
	sim_set_bytes(device, slot, 0);
	sim_machine->client[slot].device[device].contexts = 0;
}

bool sim_slot_alive(int slot)
{
	return slot == own_slot || slot_alive(slot);
}

static int next_holder(const struct sim_device_state *state, int after)
{
	for (int slot = after + 1; slot < SIM_CLIENTS;) {
		uint64_t rest = __atomic_load_n(&state->holders[slot / 64], __ATOMIC_ACQUIRE) >> (slot % 64);
		if (rest)
			return slot + __builtin_ctzll(rest);
		slot = (slot / 64 + 1) * 64;
	}
	return -1;
}

static void drop_the_dead(int device)
{
	struct sim_device_state *state = &sim_machine->device[device];

	for (int slot = next_holder(state, -1); slot >= 0; slot = next_holder(state, slot)) {
		if (!sim_slot_alive(slot))
			drop_bytes(device, slot);
	}
}

static void lock_device(int device, uint64_t self)
{
	struct sim_device_state *state = &sim_machine->device[device];

	if (!lock_as(&state->lock, self))
		return;
	uint64_t sum = 0;
	for (int slot = 0; slot < SIM_CLIENTS; slot++) {
		struct sim_client_device *held = &sim_machine->client[slot].device[device];
		uint64_t bytes = held->own + sim_shares_paid(device, slot), bit = UINT64_C(1) << (slot % 64);
		if (held->memory != bytes) /* elsewhere a page of a client that never was would be made */
			__atomic_store_n(&held->memory, bytes, __ATOMIC_RELEASE);
		sum += bytes;
		*holder_word(state, slot) = bytes ? *holder_word(state, slot) | bit : *holder_word(state, slot) & ~bit;
	}
	state->used = sum;
	drop_the_dead(device);
}

static void unlock_device(int device, uint64_t self)
{
	unlock_as(&sim_machine->device[device].lock, self);
}

static uint64_t after(uint64_t bytes, int64_t delta)
{
	if (delta < 0)
		return bytes > (uint64_t)-delta ? bytes - (uint64_t)-delta : 0;
	return bytes + (uint64_t)delta;
}

void sim_device_lock(int device)
{
	lock_device(device, own_identity);
}

void sim_device_unlock(int device)
{
	unlock_device(device, own_identity);
}

/* A refusal and a record must be true of the living alone. */
bool sim_device_has_room(int device, uint64_t bytes)
{
	struct sim_device_state *state = &sim_machine->device[device];
	uint64_t limit = sim_machine->model[device].memory - sim_machine->model[device].reserved;

	if (bytes > limit)
		return false;
	if (state->used + bytes > limit || state->used + bytes > state->peak)
		drop_the_dead(device);
	return state->used + bytes <= limit;
}

int sim_account(int device, int64_t delta, bool context)
{
	int slot = sim_client_slot();

	if (slot < 0)
		return -1;
	sim_device_lock(device);
	if (delta > 0 && !sim_device_has_room(device, (uint64_t)delta)) {
		sim_device_unlock(device);
		return -1;
	}
	struct sim_client_device *held = &sim_machine->client[slot].device[device];
	if (context)
		held->contexts = after(held->contexts, delta);
	held->own = after(held->own, delta);
	sim_set_bytes(device, slot, after(held->memory, delta));
	sim_device_unlock(device);
	return 0;
}

void sim_count_context(int device, int change)
{
	int slot = sim_client_slot();

	if (slot >= 0)
		__atomic_add_fetch(&sim_machine->client[slot].device[device].ncontexts, (uint32_t)change,
		                   __ATOMIC_RELAXED);
}

uint64_t sim_device_used(int device)
{
	struct sim_device_state *state = &sim_machine->device[device];
	uint64_t sum = 0;

	if (__atomic_load_n(&own_slot, __ATOMIC_ACQUIRE) >= 0) {
		lock_device(device, own_identity);
		drop_the_dead(device);
		sum = state->used;
		unlock_device(device, own_identity);
		return sum;
	}
	/* A process that only looks (NVML) takes no slot: it adds up what the living say of themselves. */
	for (int slot = next_holder(state, -1); slot >= 0; slot = next_holder(state, slot)) {
		if (slot_alive(slot))
			sum += __atomic_load_n(&sim_machine->client[slot].device[device].memory, __ATOMIC_ACQUIRE);
	}
	return sum;
}

bool sim_client_alive(int slot)
{
	if (slot < 0 || slot >= SIM_CLIENTS)
		return false;
	int own = __atomic_load_n(&own_slot, __ATOMIC_ACQUIRE);
	if (slot == own || slot_alive(slot))
		return true;
	if (own < 0)
		return false;
	for (uint32_t device = 0; device < sim_machine->ndev; device++) {
		if (!__atomic_load_n(&sim_machine->client[slot].device[device].memory, __ATOMIC_ACQUIRE))
			continue;
		lock_device((int)device, own_identity);
		if (!slot_alive(slot)) /* again: it may have a new tenant by now */
			drop_bytes((int)device, slot);
		unlock_device((int)device, own_identity);
	}
	return false;
}

/* ---- slots ------------------------------------------------------------------------------------------------------ */

static uint64_t own_start_time(void)
{
	char text[1024];
	unsigned long long start = 0;
	FILE *file = fopen("/proc/self/stat", "re");

	if (!file)
		return 0;
	size_t n = fread(text, 1, sizeof text - 1, file);
	fclose(file);
	text[n] = 0;
	char *rest = strrchr(text, ')'); /* the name may contain anything, also ')' */
	for (int field = 2; rest && field < 22; field++) {
		rest = strchr(rest + 1, ' ');
	}
	if (rest)
		start = strtoull(rest, NULL, 10);
	return start;
}

static void describe_self(struct sim_client *client)
{
	struct stat st;

	client->pid = getpid();
	client->start_time = own_start_time();
	client->pid_ns = stat("/proc/self/ns/pid", &st) == 0 ? st.st_ino : 0;
	snprintf(client->name, sizeof client->name, "%s", program_invocation_short_name);
}

/* The slot's previous tenant is dead and its state 0, so that nobody counts its bytes while we clear them. */
static void move_in(int slot)
{
	struct sim_client *client = &sim_machine->client[slot];
	uint32_t generation = client->generation + 1;

	own_identity = (uint64_t)generation << 32 | (uint64_t)(slot + 1);
	__atomic_store_n(&client->generation, generation, __ATOMIC_RELEASE);
	for (uint32_t device = 0; device < sim_machine->ndev; device++) {
		lock_device((int)device, own_identity);
		drop_bytes((int)device, slot);
		unlock_device((int)device, own_identity);
	}
	memset(client->device, 0, sizeof client->device);
	client->calls = 0;
	describe_self(client);
	sim_pid_announce(slot);
	__atomic_store_n(&client->state, 1, __ATOMIC_RELEASE);
}

/* Under slot_mutex. Claims are serialised by SIM_LOCK_SETUP, which the kernel drops with its owner. */
static int claim(void)
{
	int fd = sim_machine_fd(), found = -1;

	if (fd < 0 || !sim_byte_lock(fd, SIM_LOCK_SETUP, true))
		return -1;
	for (int slot = 0; slot < SIM_CLIENTS && found < 0; slot++) {
		if (slot_alive(slot))
			continue;
		/* Before the lock: with it the previous tenant's bytes would look alive. */
		__atomic_store_n(&sim_machine->client[slot].state, 0, __ATOMIC_RELEASE);
		if (!sim_byte_lock(fd, SIM_LOCK_CLIENT + slot, false))
			continue;
		move_in(slot);
		found = slot;
	}
	sim_byte_unlock(fd, SIM_LOCK_SETUP);
	if (found < 0)
		sim_log("all %d client slots of the simulated machine are taken", SIM_CLIENTS);
	return found;
}

int sim_client_slot_held(void)
{
	return __atomic_load_n(&own_slot, __ATOMIC_ACQUIRE);
}

int sim_client_slot(void)
{
	int slot = __atomic_load_n(&own_slot, __ATOMIC_ACQUIRE);

	if (slot >= 0 || !sim_machine)
		return slot;
	pthread_mutex_lock(&slot_mutex);
	if (own_slot < 0)
		__atomic_store_n(&own_slot, claim(), __ATOMIC_RELEASE);
	slot = own_slot;
	pthread_mutex_unlock(&slot_mutex);
	return slot;
}
