/* vmm_share.c: allocation handles between processes, as POSIX file descriptors.
 *
 * Called by programs. An exported descriptor is a new open description of the store's memfd whose position is the
 * handle's offset; the page in front of the handle says what it is. So an importer really maps the same memory. The
 * card counts it once, as long as any process holds it (machine_shares.c), and its place is not used again. What can go
 * wrong: no /proc (the memfd cannot be opened anew), a descriptor that is no exported handle.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "sim_impl.h"
#include "visible.h"
#include "vmm.h"

#define SHARED_MAGIC UINT64_C(0x444e484d4d565450) /* "PTVMMHND" */
#define PAGE         4096

/* What stands in the page in front of an exported handle. */
struct shared_head {
	uint64_t magic;
	uint64_t size, granule, share;
	char uuid[64]; /* of the device; empty: on the host */
	CUmemAllocationProp prop;
};

/* ---- this process's holds on shares, under the memory mutex ------------------------------------------------------ */

static struct sim_allocation *shared;

/* The process's holds on a share count as one. */
static bool held_here(uint64_t share)
{
	const struct sim_allocation *other = shared;

	while (other && other->share != share)
		other = other->next_shared;
	return other;
}

static void remember(struct sim_allocation *allocation, uint64_t share)
{
	allocation->share = share;
	allocation->next_shared = shared;
	shared = allocation;
}

bool sim_shared_put(struct sim_allocation *allocation)
{
	struct sim_allocation **link = &shared;

	while (*link != allocation)
		link = &(*link)->next_shared;
	*link = allocation->next_shared;
	return !held_here(allocation->share) && sim_share_leave(allocation->device, allocation->share);
}

/* Before its first export. */
static void make_shared(struct sim_allocation *allocation)
{
	uint64_t share = allocation->device >= 0 ? sim_share_make(allocation->device, allocation->size) : 0;

	if (share)
		remember(allocation, share);
}

static CUresult join(struct sim_allocation *allocation, uint64_t share)
{
	CUresult result = CUDA_SUCCESS;

	if (allocation->device < 0 || !share)
		return CUDA_SUCCESS;
	pthread_mutex_lock(&sim_memory_mutex);
	if (!held_here(share) && sim_share_join(allocation->device, share, allocation->size) < 0)
		result = CUDA_ERROR_OUT_OF_MEMORY;
	else
		remember(allocation, share);
	pthread_mutex_unlock(&sim_memory_mutex);
	return result;
}

/* ---- export and import ------------------------------------------------------------------------------------------- */

static int reopen_store(const struct sim_allocation *allocation)
{
	char path[64];
	struct shared_head head = {.magic = SHARED_MAGIC,
	                           .size = allocation->size,
	                           .granule = allocation->granule,
	                           .share = allocation->share,
	                           .prop = allocation->prop};

	if (allocation->device >= 0)
		memcpy(head.uuid, sim_machine->model[allocation->device].uuid, sizeof head.uuid);
	if (pwrite(allocation->fd, &head, sizeof head, (off_t)allocation->offset - PAGE) != (ssize_t)sizeof head)
		return -1;
	snprintf(path, sizeof path, "/proc/self/fd/%d", allocation->fd);
	int fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd >= 0 && lseek(fd, (off_t)allocation->offset, SEEK_SET) < 0) {
		close(fd);
		fd = -1;
	}
	return fd;
}

CUresult sim_cuMemExportToShareableHandle(void *out, CUmemGenericAllocationHandle handle,
                                          CUmemAllocationHandleType type, unsigned long long flags)
{
	CUresult result = CUDA_ERROR_INVALID_VALUE;

	if (!sim_initialized())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!out || flags || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&sim_memory_mutex);
	struct sim_allocation *allocation = sim_allocation_from(handle);
	if (allocation && (allocation->prop.requestedHandleTypes & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)) {
		if (!allocation->exported && !allocation->imported)
			make_shared(allocation);
		int fd = reopen_store(allocation);
		result = fd < 0 ? CUDA_ERROR_OPERATING_SYSTEM : CUDA_SUCCESS;
		allocation->exported = true;
		if (fd >= 0)
			*(int *)out = fd;
	}
	pthread_mutex_unlock(&sim_memory_mutex);
	return result;
}

/* False: not an exported handle, or one of a device that this machine lacks. */
static bool read_head(int fd, struct sim_allocation *allocation, uint64_t *share)
{
	struct shared_head head;
	struct stat st;
	off_t offset = lseek(fd, 0, SEEK_CUR);

	if (offset < PAGE || fstat(fd, &st) < 0 || pread(fd, &head, sizeof head, offset - PAGE) != (ssize_t)sizeof head)
		return false;
	if (head.magic != SHARED_MAGIC || !head.granule || head.size % head.granule || offset > st.st_size ||
	    head.size > (uint64_t)(st.st_size - offset))
		return false;
	allocation->offset = (uint64_t)offset;
	allocation->size = head.size;
	allocation->granule = head.granule;
	allocation->prop = head.prop;
	*share = head.share;
	allocation->device = -1;
	head.uuid[sizeof head.uuid - 1] = 0;
	for (int i = 0; i < sim_visible_count() && *head.uuid; i++) {
		if (!strcmp(sim_machine->model[sim_physical(i)].uuid, head.uuid)) {
			allocation->device = sim_physical(i);
			allocation->prop.location.id = i;
		}
	}
	return !*head.uuid || allocation->device >= 0;
}

CUresult sim_cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *out, void *os_handle,
                                            CUmemAllocationHandleType type)
{
	if (!sim_initialized())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!out || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
		return CUDA_ERROR_INVALID_VALUE;
	struct sim_allocation *allocation = calloc(1, sizeof *allocation);
	if (!allocation)
		return CUDA_ERROR_OUT_OF_MEMORY;
	int given = (int)(intptr_t)os_handle;
	uint64_t share = 0;
	if (!read_head(given, allocation, &share)) {
		free(allocation);
		return CUDA_ERROR_INVALID_VALUE;
	}
	allocation->imported = true;
	allocation->fd = fcntl(given, F_DUPFD_CLOEXEC, 0); /* the program closes its own */
	if (allocation->fd < 0) {
		free(allocation);
		return CUDA_ERROR_OPERATING_SYSTEM;
	}
	CUresult result = join(allocation, share);
	if (result == CUDA_SUCCESS)
		return sim_allocation_publish(allocation, out);
	close(allocation->fd);
	free(allocation);
	return result;
}
