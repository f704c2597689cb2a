/* pool_share.c: memory pools between processes, as POSIX file descriptors, and single blocks of them.
 *
 * Called by programs. An exported pool is a new open description of the arena's file whose position is a page behind the
 * arena that says which pool it is. A block is named by where it lies in that file; what is shared is the chunk around
 * it (memory_share.h). What can go wrong: a pool that was made without handle types, a descriptor that is none of ours, a
 * block that is no longer there.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "context.h"
#include "memory_share.h"
#include "pool.h"
#include "sim_impl.h"
#include "visible.h"

#define POOL_MAGIC UINT64_C(0x314c4f4f504d4953) /* "SIMPOOL1" */
#define PAGE       4096

/* What stands in a pool's page. */
struct pool_head {
	uint64_t magic, id;
	uint32_t device; /* physical */
	uint32_t reserved;
	CUmemPoolProps props;
};

struct pool_pointer {
	uint64_t pool; /* id */
	uint64_t share;
	uint64_t offset, bytes; /* of the chunk in the file */
	uint64_t delta, size; /* of the block in the chunk */
};
_Static_assert(sizeof(struct pool_pointer) <= sizeof(CUmemPoolPtrExportData), "a pointer must fit");

/* ---- pools ------------------------------------------------------------------------------------------------------- */

/* Under the memory mutex. */
static int reopen(struct sim_pool *pool)
{
	static uint64_t pages;
	struct pool_head head = {.magic = POOL_MAGIC, .device = (uint32_t)pool->device, .props = pool->props};
	struct sim_file_place place;
	char path[64];
	uint64_t start;

	if (!sim_arena_start(pool->device, &start) || !sim_arena_place(pool->device, start, PAGE, &place))
		return -1;
	if (!pool->share_id) {
		pool->share_id = __atomic_add_fetch(&sim_machine->share_id, 1, __ATOMIC_RELAXED);
		pool->share_page = sim_arena_spare(pool->device) + PAGE * pages++;
	}
	head.id = pool->share_id;
	if (pwrite(place.fd, &head, sizeof head, (off_t)pool->share_page) != (ssize_t)sizeof head)
		return -1;
	snprintf(path, sizeof path, "/proc/self/fd/%d", (int)place.fd);
	int fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd >= 0 && lseek(fd, (off_t)pool->share_page, SEEK_SET) < 0) {
		close(fd);
		fd = -1;
	}
	return fd;
}

CUresult sim_cuMemPoolExportToShareableHandle(void *out, CUmemoryPool handle, CUmemAllocationHandleType type,
                                              unsigned long long flags)
{
	struct sim_pool *pool = sim_pool_of(handle);

	if (!sim_initialized())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!out || flags || !pool || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || pool->imported ||
	    !(pool->props.handleTypes & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) || pool->device < 0)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&sim_memory_mutex);
	int fd = reopen(pool);
	pthread_mutex_unlock(&sim_memory_mutex);
	if (fd < 0)
		return CUDA_ERROR_OPERATING_SYSTEM;
	*(int *)out = fd;
	return CUDA_SUCCESS;
}

static bool read_head(int fd, struct pool_head *head)
{
	off_t at = lseek(fd, 0, SEEK_CUR);

	return at >= 0 && pread(fd, head, sizeof *head, at) == (ssize_t)sizeof *head && head->magic == POOL_MAGIC &&
	       head->device < sim_machine->ndev;
}

CUresult sim_cuMemPoolImportFromShareableHandle(CUmemoryPool *out, void *os_handle, CUmemAllocationHandleType type,
                                                unsigned long long flags)
{
	int given = (int)(intptr_t)os_handle;
	struct pool_head head;

	if (!sim_initialized())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!out || flags || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || !read_head(given, &head))
		return CUDA_ERROR_INVALID_VALUE;
	if (sim_ordinal((int)head.device) < 0)
		return CUDA_ERROR_INVALID_DEVICE;
	struct sim_pool *pool = calloc(1, sizeof *pool);
	if (!pool)
		return CUDA_ERROR_OUT_OF_MEMORY;
	pool->import_fd = fcntl(given, F_DUPFD_CLOEXEC, 0); /* the program closes its own */
	if (pool->import_fd < 0) {
		free(pool);
		return CUDA_ERROR_OPERATING_SYSTEM;
	}
	pool->device = (int)head.device;
	pool->props = head.props;
	pool->props.location.id = sim_ordinal(pool->device);
	pool->own = pool->imported = true;
	pool->share_id = head.id;
	sim_pool_add(pool);
	*out = (CUmemoryPool)pool;
	return CUDA_SUCCESS;
}

/* ---- blocks ------------------------------------------------------------------------------------------------------ */

/* Under the memory mutex. */
static CUresult describe(CUdeviceptr p, struct pool_pointer *out)
{
	struct sim_block *block = sim_block_at(p);
	struct sim_file_place place;
	uint64_t start, bytes;

	if (!block || block->kind != SIM_BLOCK_POOL || !block->pool->share_id ||
	    !sim_pool_chunk(block->pool, block->range.start, &start, &bytes) ||
	    !sim_arena_place(block->device, start, bytes, &place))
		return CUDA_ERROR_INVALID_VALUE;
	*out = (struct pool_pointer){.pool = block->pool->share_id,
	                             .share = sim_extent_share(block->device, start, bytes),
	                             .offset = place.offset,
	                             .bytes = bytes,
	                             .delta = block->range.start - start,
	                             .size = block->range.size};
	return out->share ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult sim_cuMemPoolExportPointer(CUmemPoolPtrExportData *out, CUdeviceptr p)
{
	struct pool_pointer pointer;

	if (!sim_initialized())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&sim_memory_mutex);
	CUresult result = describe(p, &pointer);
	pthread_mutex_unlock(&sim_memory_mutex);
	if (result == CUDA_SUCCESS) {
		memset(out, 0, sizeof *out);
		memcpy(out, &pointer, sizeof pointer);
	}
	return result;
}

/* Under the memory mutex. */
static CUresult import(struct sim_pool *pool, const struct pool_pointer *pointer, CUdeviceptr *out)
{
	struct sim_file_place place = {.offset = pointer->offset, .bytes = pointer->bytes};
	struct sim_import *import = sim_import_open(&place, pool->import_fd, pool->device, pointer->share);

	if (!import)
		return CUDA_ERROR_INVALID_VALUE;
	uint64_t start = sim_import_start(import) + pointer->delta;
	struct sim_block *block = sim_block_add(SIM_BLOCK_IPC, pool->device, NULL, start, pointer->size);
	if (!block) {
		sim_import_close(import);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	block->padded = pointer->size;
	block->import = import;
	*out = start;
	return CUDA_SUCCESS;
}

CUresult sim_cuMemPoolImportPointer(CUdeviceptr *out, CUmemoryPool handle, CUmemPoolPtrExportData *data)
{
	struct pool_pointer pointer;
	struct sim_pool *pool = sim_pool_of(handle);

	if (!sim_initialized())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!out || !data || !pool || !pool->imported)
		return CUDA_ERROR_INVALID_VALUE;
	memcpy(&pointer, data, sizeof pointer);
	if (pointer.pool != pool->share_id || !pointer.size || pointer.delta > pointer.bytes ||
	    pointer.size > pointer.bytes - pointer.delta)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&sim_memory_mutex);
	CUresult result = import(pool, &pointer, out);
	pthread_mutex_unlock(&sim_memory_mutex);
	return result;
}
