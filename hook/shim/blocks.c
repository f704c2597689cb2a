/* blocks.c: what this process has allocated, by address, and what each block costs.
 *
 * Called by mem.c and pool.c around every allocation and free. 64 shards, each with its own lock and two open-addressed
 * tables in memory of our own (mmap, so that no allocator of the program is entered): blocks by address, and *granules*,
 * the 2 MiB-aligned ranges in which small blocks lie, by number. A shard is chosen by the granule, so that a small block
 * and its granule are under one lock.
 *
 * Cost: a block of 2 MiB and more costs its size rounded up to 2 MiB. Smaller ones cost 2 MiB per granule they touch,
 * once, however many lie in it. Blocks of a pool cost nothing here: the pool is charged as a whole (pool.c).
 * What can go wrong: no host memory for a table. Then the caller frees the block again and refuses.
 */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>

#include "memory.h"

#define SHARD_BITS 6
#define SHARDS (1u << SHARD_BITS)
#define FIRST_ENTRIES 128u
#define GRANULE_SHIFT 21

struct entry {
	uint64_t key; /* address of a block, or number of a granule; 0 = empty */
	uint64_t bytes; /* of a granule: blocks in it */
	CUcontext context;
	uint32_t epoch;
	int16_t device;
	uint16_t kind;
};

struct table {
	struct entry *entry;
	uint32_t size; /* a power of two, or 0 */
	uint32_t used;
};

struct shard {
	_Alignas(64) pthread_mutex_t lock;
	struct table blocks, granules;
};

static struct shard shards[SHARDS] = { [0 ... SHARDS - 1] = { .lock = PTHREAD_MUTEX_INITIALIZER } };
static _Atomic uint32_t epoch = 1;

static uint64_t mix(uint64_t key)
{
	key *= UINT64_C(0x9e3779b97f4a7c15);
	return key ^ (key >> 32);
}

static struct shard *shard_of(uint64_t granule)
{
	return &shards[mix(granule) >> (64 - SHARD_BITS)];
}

/* ---- an open-addressed table with linear probing ---------------------------------------------------------------------- */

static uint32_t home(const struct table *t, uint64_t key)
{
	return (uint32_t)mix(key) & (t->size - 1);
}

static struct entry *find(const struct table *t, uint64_t key)
{
	if (t->size == 0)
		return NULL;
	for (uint32_t i = home(t, key);; i = (i + 1) & (t->size - 1)) {
		if (t->entry[i].key == key)
			return &t->entry[i];
		if (t->entry[i].key == 0)
			return NULL;
	}
}

static void place(struct table *t, const struct entry *e)
{
	uint32_t i = home(t, e->key);
	while (t->entry[i].key != 0)
		i = (i + 1) & (t->size - 1);
	t->entry[i] = *e;
	t->used++;
}

static bool make_room(struct table *t)
{
	if (t->size != 0 && t->used < t->size / 2)
		return true;
	struct table larger = { .size = t->size ? t->size * 2 : FIRST_ENTRIES };
	int saved = errno;
	void *memory = mmap(NULL, larger.size * sizeof(struct entry), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
	                    -1, 0);
	errno = saved;
	if (memory == MAP_FAILED)
		return false;
	larger.entry = memory;
	for (uint32_t i = 0; i < t->size; i++)
		if (t->entry[i].key != 0)
			place(&larger, &t->entry[i]);
	if (t->size != 0)
		munmap(t->entry, t->size * sizeof(struct entry));
	*t = larger;
	return true;
}

/* Removes an entry and moves up those behind it that may stand nearer to their home. */
static void erase(struct table *t, struct entry *e)
{
	uint32_t mask = t->size - 1, hole = (uint32_t)(e - t->entry);
	for (uint32_t i = (hole + 1) & mask; t->entry[i].key != 0; i = (i + 1) & mask) {
		uint32_t distance = (i - home(t, t->entry[i].key)) & mask;
		if (distance >= ((i - hole) & mask)) {
			t->entry[hole] = t->entry[i];
			hole = i;
		}
	}
	t->entry[hole].key = 0;
	t->used--;
}

/* ---- granules ------------------------------------------------------------------------------------------------------------ */

static uint64_t first_granule(const struct vgpu_block *b)
{
	return b->p >> GRANULE_SHIFT;
}

static uint64_t last_granule(const struct vgpu_block *b)
{
	return (b->p + (b->bytes ? b->bytes - 1 : 0)) >> GRANULE_SHIFT;
}

static bool is_small(const struct vgpu_block *b)
{
	return b->bytes < VGPU_GRANULE;
}

/* One more block in a granule: 1 if it is the first (to be charged), 0 if not, -1 without host memory. */
static int granule_enter(uint64_t granule)
{
	struct shard *s = shard_of(granule);
	int result = 0;
	pthread_mutex_lock(&s->lock);
	struct entry *e = find(&s->granules, granule);
	if (e != NULL) {
		e->bytes++;
	} else if (make_room(&s->granules)) {
		place(&s->granules, &(struct entry){ .key = granule, .bytes = 1 });
		result = 1;
	} else {
		result = -1;
	}
	pthread_mutex_unlock(&s->lock);
	return result;
}

/* One block less: true if it was the last, and the granule's charge is to be given back. */
static bool granule_leave(uint64_t granule)
{
	struct shard *s = shard_of(granule);
	bool last = false;
	pthread_mutex_lock(&s->lock);
	struct entry *e = find(&s->granules, granule);
	if (e != NULL && --e->bytes == 0) {
		erase(&s->granules, e);
		last = true;
	}
	pthread_mutex_unlock(&s->lock);
	return last;
}

static struct vgpu_block block_of(const struct entry *e)
{
	return (struct vgpu_block){ .p = e->key,
		                    .bytes = e->bytes,
		                    .device = e->device,
		                    .kind = (enum vgpu_kind)e->kind,
		                    .context = e->context };
}

static void uncharge(const struct vgpu_block *b)
{
	uint64_t bytes = 0;
	if (b->kind == VGPU_ASYNC)
		return;
	if (!is_small(b)) {
		bytes = vgpu_round_up(b->bytes, VGPU_GRANULE);
	} else {
		for (uint64_t g = first_granule(b); g <= last_granule(b); g++)
			bytes += granule_leave(g) ? VGPU_GRANULE : 0;
	}
	if (bytes != 0)
		vgpu_give_back(b->device, bytes);
}

/* Enters the block's granules: how many bytes they newly cost, or UINT64_MAX without host memory and none is entered
 * (`left`: what leaving them again has set free). */
static uint64_t enter_granules(const struct vgpu_block *b, uint64_t *left)
{
	uint64_t need = 0;
	for (uint64_t g = first_granule(b); g <= last_granule(b); g++) {
		int entered = granule_enter(g);
		if (entered < 0) {
			for (uint64_t h = first_granule(b); h < g; h++)
				*left += granule_leave(h) ? VGPU_GRANULE : 0;
			*left = *left > need ? *left - need : 0;
			return UINT64_MAX;
		}
		need += entered ? VGPU_GRANULE : 0;
	}
	return need;
}

/* Turns the caller's reservation into the block's cost. 0, or -1 and nothing of it is kept. What is missing is reserved
 * before a granule is entered: whoever enters second relies on its being paid for. */
static int charge(const struct vgpu_block *b, uint64_t reserved)
{
	bool small = is_small(b);
	uint64_t most = small ? (last_granule(b) - first_granule(b) + 1) * VGPU_GRANULE : vgpu_round_up(b->bytes, VGPU_GRANULE);
	if (most > reserved) {
		if (vgpu_reserve_or_reclaim(b->device, most - reserved) != CUDA_SUCCESS) {
			vgpu_give_back(b->device, reserved);
			return -1;
		}
		reserved = most;
	}
	uint64_t left = 0, need = small ? enter_granules(b, &left) : most;
	if (need == UINT64_MAX) {
		vgpu_give_back(b->device, reserved + left);
		return -1;
	}
	if (need < reserved)
		vgpu_give_back(b->device, reserved - need);
	return 0;
}

/* ---- what others call ---------------------------------------------------------------------------------------------------- */

uint64_t vgpu_first_reservation(uint64_t bytes)
{
	return bytes < VGPU_GRANULE ? VGPU_GRANULE : vgpu_round_up(bytes, VGPU_GRANULE);
}

/* Records a block; where the address is recorded already `stale` says what it replaced: a block that went without our
 * knowing, since the driver has given its address again. */
static bool insert(const struct vgpu_block *b, struct vgpu_block *stale)
{
	struct shard *s = shard_of(first_granule(b));
	struct entry e = { .key = b->p,
		           .bytes = b->bytes,
		           .context = b->context,
		           .epoch = atomic_load(&epoch),
		           .device = (int16_t)b->device,
		           .kind = (uint16_t)b->kind };
	pthread_mutex_lock(&s->lock);
	struct entry *old = find(&s->blocks, b->p);
	bool room = old != NULL || make_room(&s->blocks);
	if (old != NULL) {
		*stale = block_of(old);
		*old = e;
	} else if (room) {
		place(&s->blocks, &e);
	}
	pthread_mutex_unlock(&s->lock);
	return room;
}

int vgpu_block_add(const struct vgpu_block *block, uint64_t reserved)
{
	vgpu_memory_watch_fork();
	if (block->kind != VGPU_ASYNC && charge(block, reserved) < 0)
		return -1;
	struct vgpu_block stale = { 0 };
	if (!insert(block, &stale)) {
		uncharge(block);
		return -1;
	}
	if (stale.p != 0)
		uncharge(&stale);
	return 0;
}

bool vgpu_block_take(CUdeviceptr p, struct vgpu_block *out)
{
	struct shard *s = shard_of(p >> GRANULE_SHIFT);
	pthread_mutex_lock(&s->lock);
	struct entry *e = p ? find(&s->blocks, p) : NULL;
	if (e != NULL) {
		*out = block_of(e);
		erase(&s->blocks, e);
	}
	pthread_mutex_unlock(&s->lock);
	return e != NULL;
}

/* The entry was taken a moment ago, so there is room for it. */
void vgpu_block_restore(const struct vgpu_block *b)
{
	struct vgpu_block other = { 0 };
	insert(b, &other);
	if (other.p != 0)
		uncharge(&other);
}

void vgpu_block_settle(const struct vgpu_block *b)
{
	uncharge(b);
}

uint64_t vgpu_blocks_epoch(void)
{
	return atomic_fetch_add(&epoch, 1);
}

/* Takes up to `room` blocks of the context out of a shard. */
static unsigned collect(struct shard *s, CUcontext context, uint64_t before, struct vgpu_block *out, unsigned room)
{
	unsigned n = 0;
	pthread_mutex_lock(&s->lock);
	for (uint32_t i = 0; i < s->blocks.size && n < room;) {
		struct entry *e = &s->blocks.entry[i];
		if (e->key == 0 || e->context != context || e->epoch > before) {
			i++;
			continue;
		}
		out[n++] = block_of(e);
		erase(&s->blocks, e); /* another entry may stand here now: look again */
	}
	pthread_mutex_unlock(&s->lock);
	return n;
}

void vgpu_blocks_drop(CUcontext context, uint64_t before)
{
	struct vgpu_block gone[128];
	for (unsigned i = 0; i < SHARDS; i++) {
		unsigned n;
		do {
			n = collect(&shards[i], context, before, gone, 128);
			for (unsigned k = 0; k < n; k++)
				uncharge(&gone[k]);
		} while (n == 128);
	}
}

static void forget(struct table *t)
{
	if (t->size != 0)
		munmap(t->entry, t->size * sizeof(struct entry));
	*t = (struct table){ 0 };
}

void vgpu_blocks_forked(void)
{
	for (unsigned i = 0; i < SHARDS; i++) {
		pthread_mutex_init(&shards[i].lock, NULL);
		forget(&shards[i].blocks);
		forget(&shards[i].granules);
	}
}
