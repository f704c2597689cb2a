/* vmm_share.c: allocation handles between processes, as POSIX file descriptors.
 *
 * Called by programs. An exported descriptor is a new open description of the store's memfd whose position is the
 * handle's offset; the page in front of the handle says what it is. So an importer really maps the same memory. The
 * card counts it once, as long as any process holds it (machine_shares.c), and its place is not used again. A descriptor
 * that is open anywhere keeps the memory: it is locked, and its maker looks for the lock before it frees, when it is asked
 * for free memory and when there is none. Not simulated: descriptors that outlive their maker, which keep only the
 * bytes and count again once they are imported. What can go wrong: no /proc (the memfd cannot be opened anew), a descriptor that is no exported handle.
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

/* ---- what descriptors keep --------------------------------------------------------------------------------------- */

static struct sim_allocation *kept; /* also read without the mutex: whether there is any */

/* Of the store: descriptions of it that were exported have a lock where their handle lies. */
static struct flock lock_of(uint64_t offset, short type)
{
	return (struct flock){.l_type = type, .l_whence = SEEK_SET, .l_start = (off_t)offset, .l_len = 1};
}

static bool is_open(const struct sim_allocation *allocation)
{
	struct flock lock = lock_of(allocation->offset, F_WRLCK);

	return fcntl(allocation->fd, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

bool sim_shared_keep(struct sim_allocation *allocation)
{
	if (!allocation->exported || allocation->imported || !is_open(allocation))
		return false;
	allocation->next_kept = kept;
	__atomic_store_n(&kept, allocation, __ATOMIC_RELEASE);
	return true;
}

bool sim_shared_poll(void)
{
	struct sim_allocation *all = kept, *next;
	bool any = false;

	__atomic_store_n(&kept, NULL, __ATOMIC_RELEASE);
	for (; all; all = next) {
		next = all->next_kept;
		any |= !is_open(all);
		sim_allocation_put(all);
	}
	return any;
}

void sim_shared_look(void)
{
	if (!__atomic_load_n(&kept, __ATOMIC_ACQUIRE))
		return;
	pthread_mutex_lock(&sim_memory_mutex);
	sim_shared_poll();
	pthread_mutex_unlock(&sim_memory_mutex);
}

/* ---- export and import ------------------------------------------------------------------------------------------- */

static int open_again(int fd)
{
	char path[64];

	snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
	return open(path, O_RDWR | O_CLOEXEC);
}

static int reopen_store(const struct sim_allocation *allocation)
{
	struct shared_head head = {.magic = SHARED_MAGIC,
	                           .size = allocation->size,
	                           .granule = allocation->granule,
	                           .share = allocation->share,
	                           .prop = allocation->prop};

	if (allocation->device >= 0)
		memcpy(head.uuid, sim_machine->model[allocation->device].uuid, sizeof head.uuid);
	if (pwrite(allocation->fd, &head, sizeof head, (off_t)allocation->offset - PAGE) != (ssize_t)sizeof head)
		return -1;
	int fd = open_again(allocation->fd);
	struct flock lock = lock_of(allocation->offset, F_RDLCK);
	if (fd >= 0 && (lseek(fd, (off_t)allocation->offset, SEEK_SET) < 0 || fcntl(fd, F_OFD_SETLK, &lock) < 0)) {
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
	allocation->fd = open_again(given); /* the program closes its own, and what it gave keeps nothing for us */
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
