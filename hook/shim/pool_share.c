/* pool_share.c: memory pools between processes: cuMemPoolExportToShareableHandle, cuMemPoolImportFromShareableHandle,
 * cuMemPoolExportPointer, cuMemPoolImportPointer.
 *
 * Who imports a block of a pool keeps the chunk around it, whatever its size, and the pool's own count does not show that
 * once its maker has freed the block or is dead. So there are two kinds of shares (share.c). The *pool's* has, from the
 * export of a block on, all that the pool has reserved; who imports a block holds it, so that a dead maker's pool stays
 * charged as a whole until the last block is given up. A *pin*, found by the bytes of the exported pointer, costs nothing
 * and says that the block is not free: importers need it, the maker holds it until the free. Where somebody else holds it
 * then, against the rule that importers free first, the chunk may leave the pool's count: all that the pool has is
 * charged to the pin once more, until they give it up.
 * So a block that is not free counts in its pool, and one that is free either is held by nobody or is charged by its pin.
 * What can go wrong: a pool of another container or of a process that is gone: what its blocks keep cannot be told,
 * refused; no free slot of the ledger for a pin; the pointer of a block that was freed.
 */
#include <stdlib.h>
#include <unistd.h>

#include "hooks.h"
#include "pool.h"

struct pin {
	struct pin *next;
	CUdeviceptr p;
	struct pool *pool;
	uint64_t most; /* bytes of the chunk that it lies in: what the pool had at the export */
	uint64_t block; /* the driver's number of it, which no other block ever has; 0: it does not say */
	uint64_t number; /* each has a greater one than those before */
	struct vgpu_share *share;
};

static uint32_t lock; /* process-private, never held across a driver call */
static struct pin *pins; /* also read without the lock: whether there is any */
static uint64_t last_number; /* of a pin */
static uint32_t ending; /* calls under way that may end a device's last context, and its blocks with it */

/* ---- export ------------------------------------------------------------------------------------------------------ */

static CUresult share_pool(struct pool *pool, int fd)
{
	if (pool == NULL || pool->managed || pool->free_of_charge)
		return CUDA_ERROR_NOT_SUPPORTED; /* cannot be metered */
	const struct vgpu_share *share = vgpu_pool_shared(pool);
	if (share == NULL)
		return CUDA_ERROR_OUT_OF_MEMORY;
	struct vgpu_share_key key = vgpu_share_key(share);
	return vgpu_share_mark(fd, &key) ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
}

CUresult hook_cuMemPoolExportToShareableHandle(void *handle_out, CUmemoryPool pool,
                                               CUmemAllocationHandleType handleType, unsigned long long flags)
{
	if (vgpu_mode() == VGPU_FREE)
		return real_cuMemPoolExportToShareableHandle(handle_out, pool, handleType, flags);
	struct pool *p = vgpu_pool_find(pool);
	CUresult error = real_cuMemPoolExportToShareableHandle(handle_out, pool, handleType, flags);
	if (error == CUDA_SUCCESS && handleType != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
		error = CUDA_ERROR_NOT_SUPPORTED; /* for other machines, whose importers nobody here sees */
	} else if (error == CUDA_SUCCESS) {
		int fd = *(int *)handle_out;
		error = share_pool(p, fd);
		if (error != CUDA_SUCCESS)
			close(fd);
	}
	vgpu_pool_leave(p);
	return error;
}

static struct vgpu_share_key key_of(const CUmemPoolPtrExportData *data)
{
	return vgpu_share_key_of_bytes(data, sizeof(*data));
}

static bool same(const struct vgpu_share *share, const struct vgpu_share_key *key)
{
	struct vgpu_share_key other = vgpu_share_key(share);
	return other.kind == key->kind && other.word[0] == key->word[0] && other.word[1] == key->word[1];
}

/* The block has a pin with this key; one is enough. */
static bool pinned(CUdeviceptr p, const struct vgpu_share_key *key)
{
	vgpu_lock(&lock);
	const struct pin *pin = pins;
	while (pin != NULL && (pin->p != p || !same(pin->share, key)))
		pin = pin->next;
	vgpu_unlock(&lock);
	return pin != NULL;
}

static uint64_t number_of_block(CUdeviceptr p)
{
	unsigned long long number = 0;
	return real_cuPointerGetAttribute(&number, CU_POINTER_ATTRIBUTE_BUFFER_ID, p) == CUDA_SUCCESS ? number : 0;
}

static CUresult add_pin(CUdeviceptr p, struct pool *pool, const CUmemPoolPtrExportData *data)
{
	uint64_t most = vgpu_pool_most(pool), block = number_of_block(p);
	struct vgpu_share_key key = key_of(data);
	if (pinned(p, &key))
		return CUDA_SUCCESS;
	struct pin *pin = malloc(sizeof(*pin));
	struct vgpu_share *share = pin != NULL ? vgpu_share_make(pool->device, 0, &key) : NULL;
	if (share == NULL) {
		free(pin);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	vgpu_lock(&lock);
	*pin = (struct pin){.next = pins,
	                    .p = p,
	                    .pool = pool,
	                    .most = most,
	                    .block = block,
	                    .number = ++last_number,
	                    .share = share};
	__atomic_store_n(&pins, pin, __ATOMIC_RELEASE);
	vgpu_unlock(&lock);
	return CUDA_SUCCESS;
}

/* The block is a pool's, and not taken out by a free that is under way. */
static bool lives(CUdeviceptr p, struct vgpu_block *b)
{
	if (!vgpu_block_take(p, b))
		return false;
	vgpu_block_restore(b);
	return b->kind == VGPU_ASYNC;
}

static CUresult share_block(CUdeviceptr p, const CUmemPoolPtrExportData *data)
{
	struct vgpu_block b;
	if (!lives(p, &b))
		return CUDA_ERROR_INVALID_VALUE;
	struct pool *pool = vgpu_pool_enter(&b);
	CUresult error = CUDA_ERROR_NOT_SUPPORTED;
	if (pool != NULL && !pool->managed && !pool->free_of_charge) {
		error = CUDA_ERROR_OUT_OF_MEMORY;
		if (vgpu_pool_shared(pool) != NULL) {
			vgpu_pool_lift(pool);
			error = add_pin(p, pool, data);
		}
		if (error == CUDA_SUCCESS && !lives(p, &b)) { /* another thread has freed it, and saw no pin */
			vgpu_pool_unpin(p);
			error = CUDA_ERROR_INVALID_VALUE;
		}
	}
	vgpu_pool_leave(pool);
	return error;
}

CUresult hook_cuMemPoolExportPointer(CUmemPoolPtrExportData *shareData_out, CUdeviceptr ptr)
{
	CUmemPoolPtrExportData data = {0};
	CUdeviceptr base = ptr;
	if (vgpu_mode() == VGPU_FREE || shareData_out == NULL)
		return real_cuMemPoolExportPointer(shareData_out, ptr);
	CUresult error = real_cuMemPoolExportPointer(&data, ptr);
	if (error == CUDA_SUCCESS)
		error = real_cuMemGetAddressRange_v2(&base, NULL, ptr);
	if (error == CUDA_SUCCESS)
		error = share_block(base, &data);
	if (error == CUDA_SUCCESS)
		*shareData_out = data;
	return error;
}

/* Takes those out that `gone` names; all of them before the driver may give their addresses again. */
static void unpin(bool (*gone)(const struct pin *, const void *), const void *what)
{
	struct pin *out = NULL;
	vgpu_lock(&lock);
	for (struct pin **link = &pins; *link != NULL;) {
		struct pin *pin = *link;
		if (!gone(pin, what)) {
			link = &pin->next;
			continue;
		}
		__atomic_store_n(link, pin->next, __ATOMIC_RELEASE);
		pin->next = out;
		out = pin;
	}
	vgpu_unlock(&lock);
	while (out != NULL) {
		struct pin *pin = out;
		out = pin->next;
		vgpu_share_abandon(pin->share, pin->pool->device, pin->most);
		free(pin);
	}
}

static bool at(const struct pin *pin, const void *p)
{
	return pin->p == *(const CUdeviceptr *)p;
}

void vgpu_pool_unpin(CUdeviceptr p)
{
	if (__atomic_load_n(&pins, __ATOMIC_ACQUIRE) != NULL)
		unpin(at, &p);
}

/* ---- contexts that end: all blocks of a device's pools go with its last one --------------------------------------- */

bool vgpu_pool_contexts_end(void)
{
	return __atomic_load_n(&ending, __ATOMIC_SEQ_CST) != 0;
}

void vgpu_pool_unpin_begin(void)
{
	__atomic_add_fetch(&ending, 1, __ATOMIC_SEQ_CST);
}

static bool of_pool(const struct pin *pin, const void *pool)
{
	return pin->pool == pool;
}

void vgpu_pool_unpin_all(struct pool *pool)
{
	if (__atomic_load_n(&pins, __ATOMIC_ACQUIRE) != NULL)
		unpin(of_pool, pool);
}

static bool is_number(const struct pin *pin, const void *number)
{
	return pin->number == *(const uint64_t *)number;
}

/* A copy of the pin after this number, of which only the numbers and the address are looked at; false: there is none. */
static bool pin_after(uint64_t number, struct pin *out)
{
	bool found = false;
	vgpu_lock(&lock);
	for (const struct pin *pin = pins; pin != NULL; pin = pin->next)
		if (pin->number > number && (!found || pin->number < out->number)) {
			*out = *pin;
			found = true;
		}
	vgpu_unlock(&lock);
	return found;
}

static bool vanished(const struct pin *pin)
{
	unsigned long long number = 0;
	CUresult error = real_cuPointerGetAttribute(&number, CU_POINTER_ATTRIBUTE_BUFFER_ID, pin->p);
	return error == CUDA_ERROR_INVALID_VALUE || (error == CUDA_SUCCESS && number != pin->block);
}

/* Another thread may take blocks from the pool in a new context meanwhile, at the same addresses, too: each is looked at. */
static void unpin_vanished(void)
{
	struct pin pin = {0};
	while (pin_after(pin.number, &pin))
		if (pin.block != 0 && vanished(&pin))
			unpin(is_number, &pin.number);
}

/* Where the driver gives no numbers: all of them, once nothing is used. */
static void unpin_unused(CUdevice device)
{
	for (struct pool *pool = vgpu_pool_first(device); pool != NULL; pool = vgpu_pool_next(pool, device)) {
		cuuint64_t used = 0;
		if (pool->own && (real_cuMemPoolGetAttribute(pool->handle, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used) !=
		                          CUDA_SUCCESS ||
		                  used == 0))
			vgpu_pool_unpin_all(pool);
	}
}

void vgpu_pool_unpin_end(CUdevice device)
{
	if (__atomic_load_n(&pins, __ATOMIC_ACQUIRE) != NULL) {
		unpin_vanished();
		unpin_unused(device);
	}
	__atomic_sub_fetch(&ending, 1, __ATOMIC_SEQ_CST);
}

/* ---- import ------------------------------------------------------------------------------------------------------ */

CUresult hook_cuMemPoolImportFromShareableHandle(CUmemoryPool *pool_out, void *handle,
                                                 CUmemAllocationHandleType handleType, unsigned long long flags)
{
	if (vgpu_mode() == VGPU_FREE || pool_out == NULL)
		return real_cuMemPoolImportFromShareableHandle(pool_out, handle, handleType, flags);
	struct vgpu_share_key key = {0};
	if (handleType == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
		key = vgpu_share_key_of((int)(intptr_t)handle);
	struct vgpu_share *share = vgpu_share_join(&key);
	CUmemoryPool h = NULL;
	CUresult error = real_cuMemPoolImportFromShareableHandle(&h, handle, handleType, flags);
	if (error == CUDA_SUCCESS) {
		if (share == NULL)
			error = CUDA_ERROR_NOT_SUPPORTED;
		else if (!vgpu_pool_adopt(h, &key))
			error = CUDA_ERROR_OUT_OF_MEMORY;
		if (error != CUDA_SUCCESS)
			real_cuMemPoolDestroy(h);
		else
			*pool_out = h;
	}
	vgpu_share_leave(share); /* a pool keeps nothing: its blocks do */
	return error;
}

/* Holds on the pin and on its pool; NULL: there is no such block, or not any more. */
static struct vgpu_share *hold(const struct pool *pool, const CUmemPoolPtrExportData *data)
{
	struct vgpu_share_key key = key_of(data);
	struct vgpu_share *whole = vgpu_share_join(&pool->key), *pin = vgpu_share_join(&key);
	if (whole != NULL && pin != NULL)
		return vgpu_share_both(pin, whole);
	vgpu_share_leave(whole);
	vgpu_share_leave(pin);
	return NULL;
}

static CUresult record(CUdeviceptr p, struct vgpu_share *share)
{
	struct vgpu_block b = {.p = p, .kind = VGPU_SHARED, .device = vgpu_device_of(p)}, old;
	size_t size = 0;
	if (real_cuMemGetAddressRange_v2(NULL, &size, p) == CUDA_SUCCESS)
		b.bytes = size;
	if (vgpu_block_take(p, &old)) { /* a driver that gives the same address again: held until we end */
		vgpu_block_restore(&old);
		return CUDA_SUCCESS;
	}
	vgpu_shared_put(p, share);
	if (vgpu_block_add(&b, 0) == 0)
		return CUDA_SUCCESS;
	real_cuMemFree_v2(p);
	vgpu_shared_end(p);
	return CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult import(CUdeviceptr *out, const struct pool *pool, CUmemPoolPtrExportData *data)
{
	struct vgpu_share *share = hold(pool, data);
	CUdeviceptr p = 0;
	if (share == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	CUresult error = real_cuMemPoolImportPointer(&p, pool->handle, data);
	if (error != CUDA_SUCCESS) {
		vgpu_share_leave(share);
		return error;
	}
	error = record(p, share);
	if (error == CUDA_SUCCESS)
		*out = p;
	return error;
}

CUresult hook_cuMemPoolImportPointer(CUdeviceptr *ptr_out, CUmemoryPool pool, CUmemPoolPtrExportData *shareData)
{
	if (vgpu_mode() == VGPU_FREE || ptr_out == NULL || shareData == NULL)
		return real_cuMemPoolImportPointer(ptr_out, pool, shareData);
	struct pool *p = vgpu_pool_find(pool);
	CUresult error = CUDA_ERROR_INVALID_VALUE;
	if (p != NULL && p->imported && !p->dead) {
		error = import(ptr_out, p, shareData);
	} else if (p == NULL || !p->dead) { /* the driver refuses it */
		CUdeviceptr unknown = 0;
		error = real_cuMemPoolImportPointer(&unknown, pool, shareData);
		if (error == CUDA_SUCCESS) {
			real_cuMemFree_v2(unknown);
			error = CUDA_ERROR_NOT_SUPPORTED;
		}
	}
	vgpu_pool_leave(p);
	return error;
}

void vgpu_pool_pins_forked(void)
{
	lock = ending = 0;
	pins = NULL;
}
