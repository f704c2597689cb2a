/* blocks.c: what this process has allocated, by address, and what each block costs.
 *
 * Called by mem.c and pool.c around every allocation and free. 64 shards, each with its own lock and two open-addressed
 * tables in memory of our own (mmap, so that no allocator of the program is entered): blocks by address, and
 * *granules*, the 2 MiB-aligned ranges in which small blocks lie, by number. A shard is chosen by the granule, so that
 * a small block and its granule are under one lock, which is taken once per allocation and twice per free.
 *
 * Cost: a block of 2 MiB and more costs its size rounded up to 2 MiB. Smaller ones cost 2 MiB per granule they touch,
 * once, however many lie in it. One that is alone in its granule takes the granule along when it is taken out, so that
 * its free enters the shard once; others may move in meanwhile, and pay for themselves. Blocks of a pool cost nothing here: the pool is charged as a whole (pool.c). Managed
 * blocks cost that on several devices (managed.c), so their granules are counted apart.
 * What can go wrong: no host memory for a table. Then the caller frees the block again and refuses.
 */
#include <errno.h>
#include <stdatomic.h>
#include <sys/mman.h>

#include "memory.h"
#include "share.h"

#define SHARD_BITS    5
#define SHARDS        (1u << SHARD_BITS)
#define FIRST_ENTRIES 64u
#define GRANULE_SHIFT 21

/* 24 bytes, since a free of one block among 100,000 costs what the caches miss. */
struct entry {
	uint64_t key;   /* address of a block, or number of a granule; 0 = empty */
	uint64_t where; /* context:48 | device:8 | kind:8 */
	uint64_t what;  /* bytes:44 | epoch:20; of a granule: blocks in it */
};
#define EPOCH_BITS 20
#define EPOCH_MASK ((UINT64_C(1) << EPOCH_BITS) - 1)

struct table {
	struct entry *entry;
	uint32_t size; /* a power of two, or 0 */
	uint32_t used;
};

struct shard {
	_Alignas(64) uint32_t lock;
	struct table blocks, granules;
};

static struct shard shards[SHARDS];
static _Atomic uint64_t epoch = 1;

static uint64_t mix(uint64_t key)
{
	key *= UINT64_C(0x9e3779b97f4a7c15);
	return key ^ (key >> 32);
}

static struct shard *shard_of(uint64_t granule)
{
	return &shards[mix(granule) >> (64 - SHARD_BITS)];
}

/* ---- an open-addressed table with linear probing ----------------------------------------------------------------- */

static uint32_t home(const struct table *t, uint64_t key)
{
	return (uint32_t)mix(key) & (t->size - 1);
}

/* The entry of a key, or the empty one where it belongs; the table is not empty and has room. */
static struct entry *probe(const struct table *t, uint64_t key)
{
	uint32_t i = home(t, key);
	while (t->entry[i].key != key && t->entry[i].key != 0)
		i = (i + 1) & (t->size - 1);
	return &t->entry[i];
}

static struct entry *find(const struct table *t, uint64_t key)
{
	if (t->size == 0)
		return NULL;
	struct entry *e = probe(t, key);
	return e->key != 0 ? e : NULL;
}

static bool grow(struct table *t)
{
	struct table larger = {.size = t->size ? t->size * 2 : FIRST_ENTRIES, .used = t->used};
	int saved = errno;
	void *memory = mmap(NULL, larger.size * sizeof(struct entry), PROT_READ | PROT_WRITE,
	                    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	errno = saved;
	if (memory == MAP_FAILED)
		return false;
	larger.entry = memory;
	for (uint32_t i = 0; i < t->size; i++)
		if (t->entry[i].key != 0)
			*probe(&larger, t->entry[i].key) = t->entry[i];
	if (t->size != 0)
		munmap(t->entry, t->size * sizeof(struct entry));
	*t = larger;
	return true;
}

/* The entry of a key, made where there is none (then .what is 0); NULL without host memory. At most 3/4 are used. */
static struct entry *obtain(struct table *t, uint64_t key)
{
	if (t->used >= t->size / 4 * 3 && !grow(t))
		return NULL;
	struct entry *e = probe(t, key);
	if (e->key == 0) {
		*e = (struct entry){.key = key};
		t->used++;
	}
	return e;
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

/* ---- entries and blocks ------------------------------------------------------------------------------------------ */

static uint64_t where_of(CUcontext context, CUdevice device, enum vgpu_kind kind)
{
	return (uint64_t)(uintptr_t)context << 16 | (uint64_t)(device & 0xff) << 8 | (uint64_t)kind;
}

static void fill(struct entry *e, const struct vgpu_block *b)
{
	e->where = where_of(b->context, b->device, b->kind);
	e->what = b->bytes << EPOCH_BITS | (atomic_load_explicit(&epoch, memory_order_relaxed) & EPOCH_MASK);
}

static struct vgpu_block block_of(const struct entry *e)
{
	return (struct vgpu_block){.p = e->key,
	                           .bytes = e->what >> EPOCH_BITS,
	                           .device = (CUdevice)(e->where >> 8 & 0xff),
	                           .kind = (enum vgpu_kind)(e->where & 0xff),
	                           .context = (CUcontext)(uintptr_t)(e->where >> 16)};
}

static uint64_t first_granule(const struct vgpu_block *b)
{
	return b->p >> GRANULE_SHIFT;
}

static uint64_t last_granule(const struct vgpu_block *b)
{
	return (b->p + (b->bytes ? b->bytes - 1 : 0)) >> GRANULE_SHIFT;
}

static bool counts_granules(const struct vgpu_block *b)
{
	return b->kind != VGPU_ASYNC && b->kind != VGPU_EXACT && b->kind != VGPU_SHARED && b->bytes < VGPU_GRANULE;
}

/* The key of a granule's entry: numbers have 43 bits. */
static uint64_t granule_key(const struct vgpu_block *b, uint64_t granule)
{
	return granule | (b->kind == VGPU_MANAGED ? UINT64_C(1) << 62 : 0);
}

/* What a block costs that is not counted by granules. */
static uint64_t whole_cost(const struct vgpu_block *b)
{
	return b->kind == VGPU_EXACT ? b->bytes : vgpu_round_up(b->bytes, VGPU_GRANULE);
}

/* One more block in a granule, with its shard's lock held: bytes that it newly costs, UINT64_MAX without host
 * memory. */
static uint64_t granule_enter(struct shard *s, uint64_t granule)
{
	struct entry *e = obtain(&s->granules, granule);
	if (e == NULL)
		return UINT64_MAX;
	return e->what++ == 0 ? VGPU_GRANULE : 0;
}

/* One block less: bytes that nobody costs any more. */
static uint64_t granule_leave(struct shard *s, uint64_t granule)
{
	struct entry *e = find(&s->granules, granule);
	if (e == NULL || --e->what != 0)
		return 0;
	erase(&s->granules, e);
	return VGPU_GRANULE;
}

/* What lies in further granules than the first: those a small block reaches into. */
static uint64_t enter_rest(const struct vgpu_block *b)
{
	if (!counts_granules(b) || last_granule(b) == first_granule(b))
		return 0;
	struct shard *s = shard_of(last_granule(b));
	vgpu_lock(&s->lock);
	uint64_t cost = granule_enter(s, granule_key(b, last_granule(b)));
	vgpu_unlock(&s->lock);
	return cost;
}

static uint64_t leave_rest(const struct vgpu_block *b)
{
	if (!counts_granules(b) || last_granule(b) == first_granule(b))
		return 0;
	struct shard *s = shard_of(last_granule(b));
	vgpu_lock(&s->lock);
	uint64_t freed = granule_leave(s, granule_key(b, last_granule(b)));
	vgpu_unlock(&s->lock);
	return freed;
}

/* The block is gone: gives back what nothing else costs. */
static void uncharge(const struct vgpu_block *b)
{
	if (b->kind == VGPU_ASYNC)
		return;
	if (b->kind == VGPU_SHARED) {
		vgpu_shared_end(b->p);
		return;
	}
	uint64_t freed = b->carried != 0 ? b->carried : whole_cost(b);
	if (b->carried == 0 && counts_granules(b)) {
		struct shard *s = shard_of(first_granule(b));
		vgpu_lock(&s->lock);
		freed = granule_leave(s, granule_key(b, first_granule(b)));
		vgpu_unlock(&s->lock);
		freed += leave_rest(b);
	}
	if (freed != 0)
		vgpu_give_back_for(b, freed);
}

/* ---- recording --------------------------------------------------------------------------------------------------- */

/* Records a block and enters its first granule: bytes that it newly costs, UINT64_MAX without host memory and nothing
 * is recorded. Where the address is recorded already `stale` is what it replaced: a block that went without our
 * knowing, since the driver has given its address again. */
static uint64_t record(const struct vgpu_block *b, struct vgpu_block *stale)
{
	struct shard *s = shard_of(first_granule(b));
	uint64_t cost = 0;
	vgpu_lock(&s->lock);
	if (counts_granules(b))
		cost = granule_enter(s, granule_key(b, first_granule(b)));
	struct entry *e = cost != UINT64_MAX ? obtain(&s->blocks, b->p) : NULL;
	if (e == NULL) {
		if (cost != UINT64_MAX && counts_granules(b))
			granule_leave(s, granule_key(b, first_granule(b)));
		cost = UINT64_MAX;
	} else {
		if (e->what != 0)
			*stale = block_of(e);
		fill(e, b);
	}
	vgpu_unlock(&s->lock);
	return cost;
}

uint64_t vgpu_first_reservation(uint64_t bytes)
{
	return bytes < VGPU_GRANULE ? VGPU_GRANULE : vgpu_round_up(bytes, VGPU_GRANULE);
}

/* The most that a block may cost. */
static uint64_t most_of(const struct vgpu_block *b)
{
	if (b->kind == VGPU_ASYNC || b->kind == VGPU_SHARED)
		return 0;
	return counts_granules(b) ? (last_granule(b) - first_granule(b) + 1) * VGPU_GRANULE : whole_cost(b);
}

int vgpu_block_add(const struct vgpu_block *b, uint64_t reserved)
{
	struct vgpu_block stale = {0};
	uint64_t most = most_of(b);
	vgpu_memory_watch_fork();
	/* What is missing is reserved before a granule is entered: whoever enters second relies on its being paid
	 * for. */
	if (most > reserved && vgpu_reserve_for(b, most - reserved) != CUDA_SUCCESS) {
		vgpu_give_back_for(b, reserved);
		return -1;
	}
	reserved = most > reserved ? most : reserved;
	uint64_t rest = enter_rest(b), first = rest != UINT64_MAX ? record(b, &stale) : UINT64_MAX;
	if (first == UINT64_MAX) {
		uint64_t left = rest != UINT64_MAX ? leave_rest(b) : 0;
		vgpu_give_back_for(b, reserved + left - (rest != UINT64_MAX ? rest : 0));
		return -1;
	}
	uint64_t need = counts_granules(b) ? first + rest : most;
	if (need < reserved)
		vgpu_give_back_for(b, reserved - need);
	if (stale.p != 0)
		uncharge(&stale);
	return 0;
}

/* With the shard's lock held, for a block that is being taken out: nobody else pays less because it is there. Where there
 * are others in the granule it has to stay until the driver has freed the block: whoever leaves last gives it back. */
static uint64_t take_granule(struct shard *s, const struct vgpu_block *b)
{
	if (!counts_granules(b) || last_granule(b) != first_granule(b))
		return 0;
	struct entry *e = find(&s->granules, granule_key(b, first_granule(b)));
	if (e == NULL || e->what != 1)
		return 0;
	erase(&s->granules, e);
	return VGPU_GRANULE;
}

bool vgpu_block_take(CUdeviceptr p, struct vgpu_block *out)
{
	struct shard *s = shard_of(p >> GRANULE_SHIFT);
	vgpu_lock(&s->lock);
	struct entry *e = p ? find(&s->blocks, p) : NULL;
	if (e != NULL) {
		*out = block_of(e);
		erase(&s->blocks, e);
		out->carried = take_granule(s, out);
	}
	vgpu_unlock(&s->lock);
	return e != NULL;
}

/* The entry was taken a moment ago, so there is room for it. Where the address has an entry again, the driver has given it
 * to another thread: the block that was to be freed is gone already (the program freed it twice), the other one lives. */
void vgpu_block_restore(const struct vgpu_block *b)
{
	struct shard *s = shard_of(first_granule(b));
	vgpu_lock(&s->lock);
	struct entry *e = obtain(&s->blocks, b->p);
	bool gone = e == NULL || e->what != 0, paid = false;
	if (!gone) {
		fill(e, b);
		/* Somebody may have moved into the granule, and pays for it. */
		paid = b->carried != 0 && granule_enter(s, granule_key(b, first_granule(b))) == 0;
	}
	vgpu_unlock(&s->lock);
	if (gone && e != NULL)
		uncharge(b);
	else if (paid)
		vgpu_give_back_for(b, b->carried);
}

void vgpu_block_settle(const struct vgpu_block *b)
{
	uncharge(b);
}

/* ---- contexts that end ------------------------------------------------------------------------------------------- */

uint64_t vgpu_blocks_epoch(void)
{
	return atomic_fetch_add(&epoch, 1);
}

static bool recorded_before(const struct entry *e, uint64_t limit)
{
	return ((limit - e->what) & EPOCH_MASK) <= EPOCH_MASK / 2;
}

/* Takes up to `room` blocks of the context out of a shard. */
static unsigned collect(struct shard *s, CUcontext context, uint64_t before, struct vgpu_block *out, unsigned room)
{
	unsigned n = 0;
	vgpu_lock(&s->lock);
	for (uint32_t i = 0; i < s->blocks.size && n < room;) {
		struct entry *e = &s->blocks.entry[i];
		if (e->key == 0 || e->where >> 16 != where_of(context, 0, 0) >> 16 || !recorded_before(e, before)) {
			i++;
			continue;
		}
		out[n++] = block_of(e);
		erase(&s->blocks, e); /* another entry may stand here now: look again */
	}
	vgpu_unlock(&s->lock);
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
	*t = (struct table){0};
}

void vgpu_blocks_forked(void)
{
	for (unsigned i = 0; i < SHARDS; i++) {
		shards[i].lock = 0;
		forget(&shards[i].blocks);
		forget(&shards[i].granules);
	}
}
