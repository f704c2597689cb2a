/* vmm_share.c: allocation handles between processes, as POSIX file descriptors.
 *
 * Called by programs. An exported descriptor is a new open description of the store's memfd whose position is the
 * handle's offset; the page in front of the handle says what it is. So an importer really maps the same memory. The
 * memory counts for the process that made it, also while others map it, and its place is not used again. What can go
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
	uint64_t size, granule;
	char uuid[64]; /* of the device; empty: on the host */
	CUmemAllocationProp prop;
};

static int reopen_store(const struct sim_allocation *allocation)
{
	char path[64];
	struct shared_head head = {.magic = SHARED_MAGIC,
	                           .size = allocation->size,
	                           .granule = allocation->granule,
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
		int fd = reopen_store(allocation);
		result = fd < 0 ? CUDA_ERROR_OPERATING_SYSTEM : CUDA_SUCCESS;
		if (fd >= 0) {
			allocation->exported = true;
			*(int *)out = fd;
		}
	}
	pthread_mutex_unlock(&sim_memory_mutex);
	return result;
}

/* False: not an exported handle, or one of a device that this machine lacks. */
static bool read_head(int fd, struct sim_allocation *allocation)
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
	if (!read_head(given, allocation)) {
		free(allocation);
		return CUDA_ERROR_INVALID_VALUE;
	}
	allocation->imported = true;
	allocation->fd = fcntl(given, F_DUPFD_CLOEXEC, 0); /* the program closes its own */
	if (allocation->fd < 0) {
		free(allocation);
		return CUDA_ERROR_OPERATING_SYSTEM;
	}
	return sim_allocation_publish(allocation, out);
}
