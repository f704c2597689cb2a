/* fake_driver.c: see fake_driver.h. Plain memory: small blocks are packed into 2 MiB granules, large ones take whole
 * ones. Pool: 32 MiB chunks of 1 MiB units, first fit from a random place, frees wait for the stream. VMM: handles and
 * mappings.
 */
#include "fake_driver.h"
#include "gate.h"
#include "pool.h"
#include "share.h"

#include <pthread.h>
#include <sched.h>
#include <string.h>

#define GRANULES  4096
#define PAGE      UINT64_C(4096)
#define PAGES     512
#define BASE      UINT64_C(0x7f0000000000)
#define POOL_BASE UINT64_C(0x7e0000000000)
#define CHUNKS    256
#define UNITS     32 /* of 1 MiB in a chunk */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t limit, charged, physical, worst, peak, over_refunds, keep, pitch_unit = 512;

static void rule(void)
{
	if (physical > charged && getenv("FAKE_TRAP"))
		__builtin_trap();
	if (physical > charged && physical - charged > worst)
		worst = physical - charged;
	if (physical > peak)
		peak = physical;
}

static void enter(void)
{
	if ((rand() & 3) == 0)
		sched_yield(); /* between the shim's bookkeeping and the driver's */
	pthread_mutex_lock(&lock);
}

static void leave(void)
{
	rule();
	pthread_mutex_unlock(&lock);
	if ((rand() & 3) == 0)
		sched_yield();
}

/* ---- the ledger -------------------------------------------------------------------------------------------------- */

enum vgpu_mode vgpu_mode(void)
{
	return VGPU_LIMITED;
}

unsigned vgpu_charged_devices(CUdevice device[64])
{
	device[0] = 0;
	return 1;
}

CUresult vgpu_reserve(CUdevice device, uint64_t bytes)
{
	(void)device;
	enter();
	bytes = vgpu_round_up(bytes, PTG_UNIT);
	bool fits = bytes <= limit && charged <= limit - bytes;
	if (fits)
		charged += bytes;
	leave();
	return fits ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

void vgpu_charge(CUdevice device, uint64_t bytes)
{
	(void)device;
	enter();
	charged += vgpu_round_up(bytes, PTG_UNIT);
	leave();
}

void vgpu_give_back(CUdevice device, uint64_t bytes)
{
	(void)device;
	enter();
	bytes = vgpu_round_up(bytes, PTG_UNIT);
	if (bytes > charged) {
		over_refunds += bytes - charged;
		bytes = charged;
	}
	charged -= bytes;
	leave();
}

CUresult vgpu_reserve_context(CUdevice device, uint64_t *bytes)
{
	*bytes = FAKE_CONTEXT;
	return vgpu_reserve(device, FAKE_CONTEXT);
}

void vgpu_give_back_context(CUdevice device, uint64_t bytes)
{
	vgpu_give_back(device, bytes);
}

uint64_t vgpu_settle_context(CUdevice device, uint64_t bytes, uint64_t card_used)
{
	(void)device;
	(void)card_used;
	return bytes;
}

uint32_t vgpu_policy_number(void)
{
	return 0;
}

uint64_t vgpu_context_estimate(CUdevice device)
{
	(void)device;
	return FAKE_CONTEXT;
}

uint64_t vgpu_lower_context(CUdevice device, uint64_t bytes)
{
	(void)device;
	return bytes;
}

void vgpu_ring(void)
{
}

bool vgpu_visible(CUdevice device)
{
	return device == 0;
}

CUdevice vgpu_current_device(CUresult *error)
{
	*error = CUDA_SUCCESS;
	return 0;
}

/* ---- plain memory ------------------------------------------------------------------------------------------------ */

static struct {
	uint16_t used; /* pages, of a granule with small blocks */
	uint16_t large; /* granules of the large block that begins here */
	bool taken;
	uint16_t page[PAGES]; /* pages of the block that begins here; UINT16_MAX inside one */
} granule[GRANULES];

static CUdeviceptr place_large(uint64_t bytes)
{
	uint64_t n = (bytes + VGPU_GRANULE - 1) / VGPU_GRANULE, run = 0;
	for (uint64_t i = 0; i < GRANULES; i++) {
		run = granule[i].taken ? 0 : run + 1;
		if (run < n)
			continue;
		for (uint64_t k = i + 1 - n; k <= i; k++)
			granule[k].taken = true;
		granule[i + 1 - n].large = (uint16_t)n;
		physical += n * VGPU_GRANULE;
		return BASE + (i + 1 - n) * VGPU_GRANULE;
	}
	return 0;
}

static bool place_in(uint64_t g, unsigned n, unsigned *at)
{
	for (unsigned i = 0, run = 0; i < PAGES; i++) {
		run = granule[g].page[i] ? 0 : run + 1;
		if (run == n) {
			*at = i + 1 - n;
			return true;
		}
	}
	return false;
}

static CUdeviceptr place_small(uint64_t bytes)
{
	unsigned n = (unsigned)((bytes + PAGE - 1) / PAGE), at = 0;
	uint64_t found = GRANULES;
	for (uint64_t g = 0; g < GRANULES && found == GRANULES; g++)
		if (granule[g].taken && granule[g].large == 0 && granule[g].used != 0 && place_in(g, n, &at))
			found = g;
	for (uint64_t g = 0; g < GRANULES && found == GRANULES; g++)
		if (!granule[g].taken) {
			found = g;
			at = 0;
			granule[g].taken = true;
			physical += VGPU_GRANULE;
		}
	granule[found].used += n;
	for (unsigned i = 0; i < n; i++)
		granule[found].page[at + i] = i ? UINT16_MAX : (uint16_t)n;
	return BASE + found * VGPU_GRANULE + at * PAGE;
}

static CUresult free_plain(CUdeviceptr p)
{
	uint64_t g = (p - BASE) / VGPU_GRANULE;
	unsigned at = (unsigned)((p - BASE) % VGPU_GRANULE / PAGE);
	if (p < BASE || g >= GRANULES || !granule[g].taken)
		return CUDA_ERROR_INVALID_VALUE;
	if (granule[g].large != 0) {
		unsigned n = granule[g].large;
		granule[g].large = 0;
		for (unsigned k = 0; k < n; k++)
			granule[g + k].taken = false;
		physical -= n * VGPU_GRANULE;
		return CUDA_SUCCESS;
	}
	unsigned n = granule[g].page[at];
	if (n == 0 || n == UINT16_MAX)
		return CUDA_ERROR_INVALID_VALUE;
	memset(&granule[g].page[at], 0, n * sizeof(uint16_t));
	granule[g].used -= n;
	if (granule[g].used == 0) {
		granule[g].taken = false;
		physical -= VGPU_GRANULE;
	}
	return CUDA_SUCCESS;
}

/* ---- the pool ---------------------------------------------------------------------------------------------------- */

enum { UNIT_FREE, UNIT_USED, UNIT_PENDING };
static struct {
	uint8_t state, stream;
	uint16_t length; /* of the block that begins here */
} unit[CHUNKS * UNITS];
static bool reserved[CHUNKS];

static uint64_t pool_reserved(void)
{
	uint64_t n = 0;
	for (unsigned c = 0; c < CHUNKS; c++)
		n += reserved[c] ? UNITS * MIB : 0;
	return n;
}

static int run_of(unsigned n, unsigned stream, bool fresh)
{
	unsigned begin = (unsigned)rand() % (CHUNKS * UNITS), run = 0;
	for (unsigned k = 0; k < 2 * CHUNKS * UNITS; k++) {
		unsigned i = (begin + k) % (CHUNKS * UNITS);
		bool usable =
		        fresh ? !reserved[i / UNITS]
			      : reserved[i / UNITS] && (unit[i].state == UNIT_FREE ||
			                                (unit[i].state == UNIT_PENDING && unit[i].stream == stream));
		run = i == 0 || !usable || (fresh && run == 0 && i % UNITS != 0)
		              ? (usable && (!fresh || i % UNITS == 0))
		              : run + 1;
		if (run == n)
			return (int)(i + 1 - n);
	}
	return -1;
}

static CUdeviceptr place_async(uint64_t bytes, unsigned stream)
{
	unsigned n = (unsigned)((bytes + MIB - 1) / MIB);
	int at = run_of(n, stream, false);
	if (at < 0 && (at = run_of((n + UNITS - 1) / UNITS * UNITS, stream, true)) >= 0)
		for (unsigned c = (unsigned)at / UNITS; c <= ((unsigned)at + n - 1) / UNITS; c++) {
			reserved[c] = true;
			physical += UNITS * MIB;
		}
	if (at < 0)
		return 0;
	for (unsigned i = 0; i < n; i++)
		unit[(unsigned)at + i].state = UNIT_USED;
	unit[at].length = (uint16_t)n;
	return POOL_BASE + (unsigned)at * MIB;
}

static CUresult free_async(CUdeviceptr p, unsigned stream, bool now)
{
	uint64_t at = (p - POOL_BASE) / MIB;
	if (p < POOL_BASE || at >= CHUNKS * UNITS || unit[at].state != UNIT_USED || unit[at].length == 0)
		return CUDA_ERROR_INVALID_VALUE;
	for (unsigned i = 0; i < unit[at].length; i++) {
		unit[at + i].state = now ? UNIT_FREE : UNIT_PENDING;
		unit[at + i].stream = (uint8_t)stream;
	}
	unit[at].length = 0;
	return CUDA_SUCCESS;
}

static void release_unused(uint64_t least)
{
	for (unsigned c = 0; c < CHUNKS && pool_reserved() > least; c++) {
		bool unused = reserved[c];
		for (unsigned i = 0; i < UNITS && unused; i++)
			unused = unit[c * UNITS + i].state == UNIT_FREE;
		if (unused) {
			reserved[c] = false;
			physical -= UNITS * MIB;
		}
	}
}

void fake_sync(void)
{
	enter();
	for (unsigned i = 0; i < CHUNKS * UNITS; i++)
		if (unit[i].state == UNIT_PENDING)
			unit[i].state = UNIT_FREE;
	release_unused(keep);
	leave();
}

/* ---- virtual memory ---------------------------------------------------------------------------------------------- */

#define HANDLES 256
static struct {
	unsigned handles, maps;
	uint64_t bytes;
} object[HANDLES];
static struct {
	CUdeviceptr at;
	uint64_t bytes;
	unsigned object;
} mapping[HANDLES];

static void object_maybe_free(unsigned i)
{
	if (object[i].handles + object[i].maps == 0) {
		physical -= object[i].bytes;
		object[i].bytes = 0;
	}
}

/* ---- entry points ------------------------------------------------------------------------------------------------ */

static const char *failing;
static CUresult failing_with;

static const char *interrupted;
static void (*handler)(void);

/* Called with the lock held. A handler that comes back lets the call go on. */
static bool fails(const char *call, CUresult *error)
{
	if (interrupted != NULL && strcmp(interrupted, call) == 0) {
		interrupted = NULL;
		pthread_mutex_unlock(&lock);
		handler();
		pthread_mutex_lock(&lock);
	}
	if (failing == NULL || strcmp(failing, call) != 0)
		return false;
	failing = NULL;
	*error = failing_with;
	return true;
}

static CUresult fake_cuMemAlloc_v2(CUdeviceptr *p, size_t n)
{
	CUresult error = CUDA_SUCCESS;
	enter();
	if (!fails("cuMemAlloc_v2", &error)) {
		*p = n < VGPU_GRANULE ? place_small(n) : place_large(n);
		error = *p ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
	}
	leave();
	return error;
}

static CUresult fake_cuMemAllocManaged(CUdeviceptr *p, size_t n, unsigned int flags)
{
	(void)flags;
	return fake_cuMemAlloc_v2(p, n);
}

static CUresult fake_cuMemAllocPitch_v2(CUdeviceptr *p, size_t *pitch, size_t w, size_t h, unsigned int element)
{
	(void)element;
	*pitch = vgpu_round_up(w, pitch_unit);
	return fake_cuMemAlloc_v2(p, *pitch * h);
}

static CUresult fake_cuMemFree_v2(CUdeviceptr p)
{
	CUresult error;
	enter();
	if (!fails("cuMemFree_v2", &error))
		error = p < BASE ? free_async(p, 0, true) : free_plain(p);
	leave();
	return error;
}

static CUresult fake_cuMemAllocAsync(CUdeviceptr *p, size_t n, CUstream stream)
{
	CUresult error = CUDA_SUCCESS;
	enter();
	if (!fails("cuMemAllocAsync", &error)) {
		*p = place_async(n, (unsigned)(uintptr_t)stream);
		error = *p ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
	}
	leave();
	return error;
}

static CUresult fake_cuMemFreeAsync(CUdeviceptr p, CUstream stream)
{
	enter();
	CUresult error = p < BASE ? free_async(p, (unsigned)(uintptr_t)stream, false) : free_plain(p);
	leave();
	return error;
}

static CUresult fake_cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value)
{
	(void)pool;
	CUresult error = CUDA_SUCCESS;
	enter();
	if (!fails("cuMemPoolGetAttribute", &error))
		*(cuuint64_t *)value = attribute == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD ? keep : pool_reserved();
	leave();
	return error;
}

static CUresult fake_cuMemPoolTrimTo(CUmemoryPool pool, size_t least)
{
	(void)pool;
	enter();
	release_unused(least);
	leave();
	return CUDA_SUCCESS;
}

static CUresult fake_pool(CUmemoryPool *pool, CUdevice device)
{
	(void)device;
	*pool = (CUmemoryPool)(uintptr_t)0x1000;
	return CUDA_SUCCESS;
}

static CUresult fake_cuMemCreate(CUmemGenericAllocationHandle *h, size_t n, const CUmemAllocationProp *prop,
                                 unsigned long long flags)
{
	(void)prop;
	(void)flags;
	CUresult error = CUDA_SUCCESS;
	enter();
	if (!fails("cuMemCreate", &error)) {
		error = CUDA_ERROR_OUT_OF_MEMORY;
		for (unsigned i = 0; i < HANDLES && error != CUDA_SUCCESS; i++)
			if (object[i].bytes == 0) {
				object[i].bytes = n;
				object[i].handles = 1;
				physical += n;
				*h = i + 1;
				error = CUDA_SUCCESS;
			}
	}
	leave();
	return error;
}

static CUresult fake_cuMemRelease(CUmemGenericAllocationHandle h)
{
	CUresult error = CUDA_ERROR_INVALID_VALUE;
	if (fake_multicast_release(h))
		return CUDA_SUCCESS;
	enter();
	if (!fails("cuMemRelease", &error) && h >= 1 && h <= HANDLES && object[h - 1].handles != 0) {
		object[h - 1].handles--;
		object_maybe_free((unsigned)h - 1);
		error = CUDA_SUCCESS;
	}
	leave();
	return error;
}

static CUresult fake_cuMemMap(CUdeviceptr p, size_t n, size_t offset, CUmemGenericAllocationHandle h,
                              unsigned long long flags)
{
	(void)offset;
	(void)flags;
	CUresult error = CUDA_ERROR_INVALID_VALUE;
	enter();
	for (unsigned i = 0; i < HANDLES && h >= 1 && h <= HANDLES && object[h - 1].handles != 0; i++)
		if (mapping[i].bytes == 0) {
			mapping[i].at = p;
			mapping[i].bytes = n;
			mapping[i].object = (unsigned)h - 1;
			object[h - 1].maps++;
			error = CUDA_SUCCESS;
			break;
		}
	leave();
	return error;
}

bool fake_mapped(CUmemGenericAllocationHandle h, int change)
{
	enter();
	bool there = h >= 1 && h <= HANDLES && (change < 0 || object[h - 1].handles != 0);
	if (there) {
		object[h - 1].maps += (unsigned)change;
		object_maybe_free((unsigned)h - 1);
	}
	leave();
	return there;
}

static CUresult fake_cuMemUnmap(CUdeviceptr p, size_t n)
{
	CUresult error = CUDA_ERROR_INVALID_VALUE;
	enter();
	for (unsigned i = 0; i < HANDLES; i++)
		if (mapping[i].bytes != 0 && mapping[i].at >= p && mapping[i].at < p + n) {
			mapping[i].bytes = 0;
			object[mapping[i].object].maps--;
			object_maybe_free(mapping[i].object);
			error = CUDA_SUCCESS;
		}
	leave();
	return error;
}

static CUresult fake_cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *h, void *address)
{
	CUresult error = CUDA_ERROR_INVALID_VALUE;
	enter();
	for (unsigned i = 0; i < HANDLES; i++)
		if (mapping[i].bytes != 0 && (CUdeviceptr)(uintptr_t)address - mapping[i].at < mapping[i].bytes) {
			object[mapping[i].object].handles++;
			*h = mapping[i].object + 1;
			error = CUDA_SUCCESS;
		}
	leave();
	return error;
}

static unsigned primary_references;

static CUresult fake_cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
	(void)device;
	CUresult error = CUDA_SUCCESS;
	enter();
	if (!fails("cuDevicePrimaryCtxRetain", &error)) {
		if (primary_references++ == 0)
			physical += FAKE_CONTEXT;
		*context = (CUcontext)(uintptr_t)0x2000;
	}
	leave();
	return error;
}

static CUresult fake_cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
	(void)device;
	CUresult error = CUDA_ERROR_INVALID_CONTEXT;
	enter();
	if (primary_references != 0) {
		if (--primary_references == 0)
			physical -= FAKE_CONTEXT;
		error = CUDA_SUCCESS;
	}
	leave();
	return error;
}

/* Not the primary one: that comes and goes, and what lies in it would go with it. */
static CUresult fake_cuCtxGetCurrent(CUcontext *context)
{
	*context = (CUcontext)(uintptr_t)0x3000;
	return CUDA_SUCCESS;
}

static CUresult fake_stream_device(CUstream stream, CUdevice *device)
{
	(void)stream;
	*device = 0;
	return CUDA_SUCCESS;
}

static CUresult fake_stream_id(CUstream stream, unsigned long long *id)
{
	*id = (uintptr_t)stream;
	return CUDA_SUCCESS;
}

static bool busy;

static CUresult fake_stream_query(CUstream stream)
{
	(void)stream;
	return busy ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}

static CUresult fake_stream_context(CUstream stream, CUcontext *context)
{
	(void)stream;
	return fake_cuCtxGetCurrent(context);
}

static CUresult fake_push(CUcontext context)
{
	(void)context;
	return CUDA_SUCCESS;
}

static CUresult fake_event_create(CUevent *event, unsigned int flags)
{
	(void)flags;
	*event = (CUevent)(uintptr_t)0x4000;
	return CUDA_SUCCESS;
}

static CUresult fake_event_record(CUevent event, CUstream stream)
{
	(void)event;
	(void)stream;
	return CUDA_SUCCESS;
}

static CUresult fake_event(CUevent event)
{
	(void)event;
	return busy ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}

/* The heap of kernels takes what the limit says, from a default of 8 MiB on, of which the context's estimate holds all. */
static size_t heap = 8 << 20;

static CUresult fake_cuCtxSetLimit(CUlimit which, size_t value)
{
	CUresult error = CUDA_SUCCESS;
	(void)which;
	enter();
	if (!fails("cuCtxSetLimit", &error)) {
		physical = physical - heap + value;
		heap = value;
	}
	leave();
	return error;
}

static CUresult fake_cuCtxGetLimit(size_t *value, CUlimit which)
{
	(void)which;
	*value = heap;
	return CUDA_SUCCESS;
}

void fake_hold(int64_t bytes)
{
	enter();
	physical += (uint64_t)bytes;
	leave();
}

bool fake_fails(const char *call, CUresult *error)
{
	pthread_mutex_lock(&lock);
	bool is = fails(call, error);
	pthread_mutex_unlock(&lock);
	return is;
}

void *vgpu_real[VGPU_REALS];

#define CASE(name, function)                                                                                           \
	case VGPU_INDEX_##name:                                                                                        \
		return (void *)function

void *vgpu_real_fn(unsigned index)
{
	switch (index) {
		CASE(cuMemAlloc_v2, fake_cuMemAlloc_v2);
		CASE(cuMemAllocManaged, fake_cuMemAllocManaged);
		CASE(cuMemAllocPitch_v2, fake_cuMemAllocPitch_v2);
		CASE(cuMemFree_v2, fake_cuMemFree_v2);
		CASE(cuMemAllocAsync, fake_cuMemAllocAsync);
		CASE(cuMemFreeAsync, fake_cuMemFreeAsync);
		CASE(cuMemPoolGetAttribute, fake_cuMemPoolGetAttribute);
		CASE(cuMemPoolTrimTo, fake_cuMemPoolTrimTo);
		CASE(cuDeviceGetDefaultMemPool, fake_pool);
		CASE(cuDeviceGetMemPool, fake_pool);
		CASE(cuMemCreate, fake_cuMemCreate);
		CASE(cuMemRelease, fake_cuMemRelease);
		CASE(cuMemMap, fake_cuMemMap);
		CASE(cuMemUnmap, fake_cuMemUnmap);
		CASE(cuMemRetainAllocationHandle, fake_cuMemRetainAllocationHandle);
		CASE(cuMulticastCreate, fake_cuMulticastCreate);
		CASE(cuMulticastBindMem_v2, fake_cuMulticastBindMem_v2);
		CASE(cuMulticastUnbind, fake_cuMulticastUnbind);
		CASE(cuDevicePrimaryCtxRetain, fake_cuDevicePrimaryCtxRetain);
		CASE(cuDevicePrimaryCtxRelease_v2, fake_cuDevicePrimaryCtxRelease_v2);
		CASE(cuArrayCreate_v2, fake_cuArrayCreate_v2);
		CASE(cuArray3DCreate_v2, fake_cuArray3DCreate_v2);
		CASE(cuArrayDestroy, fake_cuArrayDestroy);
		CASE(cuArrayGetMemoryRequirements, fake_cuArrayGetMemoryRequirements);
		CASE(cuMemMapArrayAsync, fake_cuMemMapArrayAsync);
		CASE(cuMipmappedArrayCreate, fake_cuMipmappedArrayCreate);
		CASE(cuMipmappedArrayDestroy, fake_cuMipmappedArrayDestroy);
		CASE(cuMipmappedArrayGetMemoryRequirements, fake_cuMipmappedArrayGetMemoryRequirements);
		CASE(cuCtxGetCurrent, fake_cuCtxGetCurrent);
		CASE(cuCtxSetLimit, fake_cuCtxSetLimit);
		CASE(cuCtxGetLimit, fake_cuCtxGetLimit);
		CASE(cuStreamGetDevice, fake_stream_device);
		CASE(cuStreamGetId, fake_stream_id);
		CASE(cuStreamQuery, fake_stream_query);
		CASE(cuStreamGetCtx, fake_stream_context);
		CASE(cuCtxPushCurrent_v2, fake_push);
		CASE(cuCtxPopCurrent_v2, fake_cuCtxGetCurrent);
		CASE(cuEventCreate, fake_event_create);
		CASE(cuEventRecord, fake_event_record);
		CASE(cuEventQuery, fake_event);
		CASE(cuEventDestroy_v2, fake_event);
	default:
		return NULL;
	}
}

/* ---- what tests ask ---------------------------------------------------------------------------------------------- */

void fake_reset(uint64_t new_limit)
{
	limit = new_limit;
	physical = charged = worst = peak = over_refunds = 0;
}

static uint64_t read_locked(const uint64_t *word)
{
	pthread_mutex_lock(&lock);
	uint64_t value = *word;
	pthread_mutex_unlock(&lock);
	return value;
}

uint64_t fake_physical(void)
{
	return read_locked(&physical);
}

uint64_t fake_charged(void)
{
	return read_locked(&charged);
}

uint64_t fake_worst(void)
{
	return read_locked(&worst);
}

uint64_t fake_peak(void)
{
	return read_locked(&peak);
}

uint64_t fake_over_refunds(void)
{
	return read_locked(&over_refunds);
}

void fake_keep(uint64_t bytes)
{
	keep = bytes;
}

void fake_pitch(uint64_t unit)
{
	pitch_unit = unit;
}

void fake_busy(bool is)
{
	busy = is;
}

void fake_interrupt(const char *call, void (*by)(void))
{
	handler = by;
	interrupted = call;
}

void fake_fail_next(const char *call, CUresult error)
{
	failing = call;
	failing_with = error;
}

/* ---- nothing is shared with other processes: what is exported stays charged to its maker ---------------------------- */

struct vgpu_share_key vgpu_share_key_of_bytes(const void *bytes, size_t count)
{
	(void)bytes;
	return (struct vgpu_share_key){1, {count, 0}};
}

struct vgpu_share_key vgpu_share_new_key(void)
{
	return (struct vgpu_share_key){0};
}

bool vgpu_share_mark(int fd, const struct vgpu_share_key *key)
{
	return fd < 0 && key->kind;
}

struct vgpu_share_key vgpu_share_key_of(int fd)
{
	return (struct vgpu_share_key){0, {(uint64_t)fd, 0}};
}

struct vgpu_share *vgpu_share_make(CUdevice device, uint64_t bytes, const struct vgpu_share_key *key)
{
	(void)device, (void)bytes, (void)key;
	return NULL;
}

struct vgpu_share *vgpu_share_join(const struct vgpu_share_key *key)
{
	(void)key;
	return NULL;
}

void vgpu_share_leave(struct vgpu_share *share)
{
	(void)share;
}

struct vgpu_share_key vgpu_share_key(const struct vgpu_share *share)
{
	(void)share;
	return (struct vgpu_share_key){0};
}

void vgpu_shared_put(CUdeviceptr p, struct vgpu_share *share)
{
	(void)p, (void)share;
}

void vgpu_shared_put_other(CUdeviceptr p, void (*end)(void *), void *argument)
{
	(void)p, (void)end, (void)argument;
}

void vgpu_shared_end(CUdeviceptr p)
{
	(void)p;
}

void vgpu_share_move(const struct vgpu_share *share, CUdevice device, uint64_t bytes)
{
	(void)share, (void)device, (void)bytes;
}

void vgpu_share_lower(const struct vgpu_share *share, CUdevice device, uint64_t bytes)
{
	(void)share, (void)device, (void)bytes;
}

/* No pool is exported here. */
void vgpu_pool_unpin(CUdeviceptr p)
{
	(void)p;
}

void vgpu_pool_unpin_all(struct pool *pool)
{
	(void)pool;
}

void vgpu_pool_unpin_begin(void)
{
}

void vgpu_pool_unpin_end(CUdevice device)
{
	(void)device;
}

bool vgpu_pool_contexts_end(void)
{
	return false;
}

void vgpu_pool_pins_forked(void)
{
}

void vgpu_shares_forked(void)
{
}

/* ---- the gate: nobody is under one here ------------------------------------------------------------------------------- */

void vgpu_gate_context_begin(void)
{
}

void vgpu_gate_context_end(CUcontext gone)
{
	(void)gone;
}
