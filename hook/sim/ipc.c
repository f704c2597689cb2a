/* ipc.c: memory between processes by cuIpcGetMemHandle, cuIpcOpenMemHandle and cuIpcCloseMemHandle.
 *
 * Called by programs. A handle is 64 plain bytes that say where the block lies in the exporter's file (memory_share.h).
 * As on hardware the whole storage of the block is mapped (a small block's granule), and the importer gets a pointer to
 * the block. A handle may be opened several times in one context, which counts; not in the process that made it. What
 * can go wrong: memory of another kind, an exporter that is gone, a device that this process does not see.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "context.h"
#include "memory_share.h"
#include "sim_impl.h"
#include "visible.h"

#define IPC_MAGIC 0x49504331u /* "1CPI" */

struct ipc_handle {
	uint32_t magic;
	uint32_t device; /* physical */
	struct sim_file_place place;
	uint64_t share;
	uint32_t delta; /* of the block in its storage */
	uint32_t reserved;
	uint64_t size;
};
_Static_assert(sizeof(struct ipc_handle) <= sizeof(CUipcMemHandle), "a handle must fit");

/* One block of another process, open in a context. */
struct sim_ipc {
	struct sim_ipc *next;
	struct ipc_handle handle;
	struct sim_context *context;
	struct sim_import *import;
	unsigned count;
	CUdeviceptr p;
};

static struct sim_ipc *opened; /* under the memory mutex */

/* Under the memory mutex. */
static CUresult describe(const struct sim_block *block, struct ipc_handle *out)
{
	uint64_t granule = sim_machine->model[block->device].granule;
	uint64_t start = block->small ? block->range.start / granule * granule : block->range.start;
	uint64_t bytes = block->small ? granule : block->padded;

	*out = (struct ipc_handle){.magic = IPC_MAGIC,
	                           .device = (uint32_t)block->device,
	                           .delta = (uint32_t)(block->range.start - start),
	                           .size = block->range.size};
	if (!sim_arena_place(block->device, start, bytes, &out->place))
		return CUDA_ERROR_INVALID_VALUE;
	out->share = sim_extent_share(block->device, start, bytes);
	return out->share ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult sim_cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr p)
{
	struct sim_context *context;
	struct ipc_handle out;
	CUresult result = sim_require(&context);

	if (result != CUDA_SUCCESS)
		return result;
	if (!handle)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&sim_memory_mutex);
	struct sim_block *block = sim_block_at(p);
	result = block && block->kind == SIM_BLOCK_PLAIN ? describe(block, &out) : CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_unlock(&sim_memory_mutex);
	if (result == CUDA_SUCCESS) {
		memset(handle, 0, sizeof *handle);
		memcpy(handle, &out, sizeof out);
	}
	return result;
}

/* Under the memory mutex. */
static struct sim_ipc *find(const struct ipc_handle *handle)
{
	struct sim_ipc *ipc = opened;

	while (ipc && memcmp(&ipc->handle, handle, sizeof *handle) != 0)
		ipc = ipc->next;
	return ipc;
}

static CUresult check(const struct ipc_handle *handle, const struct sim_context *context)
{
	if (handle->magic != IPC_MAGIC || handle->device >= sim_machine->ndev || !handle->size)
		return CUDA_ERROR_INVALID_VALUE;
	if (handle->place.pid == getpid())
		return CUDA_ERROR_INVALID_CONTEXT; /* a process has its own memory already */
	if (sim_ordinal((int)handle->device) < 0)
		return CUDA_ERROR_INVALID_DEVICE;
	if (context->device != (int)handle->device && !sim_devices_peer(context->device, (int)handle->device))
		return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
	return CUDA_SUCCESS;
}

/* Under the memory mutex. */
static CUresult open_new(struct sim_context *context, const struct ipc_handle *handle, CUdeviceptr *out)
{
	struct sim_ipc *ipc = calloc(1, sizeof *ipc);
	struct sim_block *block = NULL;

	if (!ipc)
		return CUDA_ERROR_OUT_OF_MEMORY;
	ipc->import = sim_import_open(&handle->place, -1, (int)handle->device, handle->share);
	if (ipc->import)
		block = sim_block_add(SIM_BLOCK_IPC, (int)handle->device, context,
		                      sim_import_start(ipc->import) + handle->delta, handle->size);
	if (!block) {
		CUresult result = ipc->import ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_INVALID_VALUE;
		if (ipc->import)
			sim_import_close(ipc->import);
		free(ipc);
		return result;
	}
	block->padded = handle->size;
	block->ipc = ipc;
	ipc->handle = *handle;
	ipc->context = context;
	ipc->count = 1;
	ipc->p = block->range.start;
	ipc->next = opened;
	opened = ipc;
	*out = ipc->p;
	return CUDA_SUCCESS;
}

CUresult sim_cuIpcOpenMemHandle_v2(CUdeviceptr *out, CUipcMemHandle given, unsigned int flags)
{
	struct sim_context *context;
	struct ipc_handle handle;
	CUresult result = sim_require(&context);

	if (result != CUDA_SUCCESS)
		return result;
	if (!out || flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)
		return CUDA_ERROR_INVALID_VALUE;
	memcpy(&handle, &given, sizeof handle);
	result = check(&handle, context);
	if (result != CUDA_SUCCESS)
		return result;
	pthread_mutex_lock(&sim_memory_mutex);
	struct sim_ipc *ipc = find(&handle);
	if (!ipc) {
		result = open_new(context, &handle, out);
	} else if (ipc->context != context) {
		result = CUDA_ERROR_INVALID_CONTEXT; /* one context of a process may */
	} else {
		ipc->count++;
		*out = ipc->p;
	}
	pthread_mutex_unlock(&sim_memory_mutex);
	return result;
}

CUresult sim_cuIpcOpenMemHandle(CUdeviceptr *out, CUipcMemHandle given, unsigned int flags)
{
	return sim_cuIpcOpenMemHandle_v2(out, given, flags);
}

CUresult sim_cuIpcCloseMemHandle(CUdeviceptr p)
{
	struct sim_context *context;
	CUresult result = sim_require(&context);

	if (result != CUDA_SUCCESS)
		return result;
	pthread_mutex_lock(&sim_memory_mutex);
	struct sim_block *block = sim_block_from(p);
	bool ours = block && block->kind == SIM_BLOCK_IPC && block->ipc;
	bool last = ours && --block->ipc->count == 0;
	if (last)
		sim_block_remove(block);
	pthread_mutex_unlock(&sim_memory_mutex);
	if (!ours)
		return CUDA_ERROR_INVALID_VALUE;
	if (!last)
		return CUDA_SUCCESS;
	sim_context_wait(block->context); /* queued work may still use it */
	pthread_mutex_lock(&sim_memory_mutex);
	sim_block_release(block);
	pthread_mutex_unlock(&sim_memory_mutex);
	return CUDA_SUCCESS;
}

void sim_ipc_release(struct sim_ipc *ipc)
{
	struct sim_ipc **link = &opened;

	while (*link != ipc)
		link = &(*link)->next;
	*link = ipc->next;
	sim_import_close(ipc->import);
	free(ipc);
}
