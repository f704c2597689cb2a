/* external_semaphore.c: external semaphores: cuImportExternalSemaphore, cuSignalExternalSemaphoresAsync,
 * cuWaitExternalSemaphoresAsync, cuDestroyExternalSemaphore.
 *
 * Called by programs. The simulated machine has no other API that makes semaphores, so a descriptor of any file will do:
 * the first eight bytes of the file are the semaphore, for everybody who maps it. An opaque one is signalled (1) or not
 * (0), and a wait resets it; a timeline has a value that waits are compared with. A wait is looked at by the device's
 * worker every 100 us. What can go wrong: a file that is too short or cannot be mapped, parameters that are for other
 * types of semaphore. Not simulated: semaphores of other systems and libraries, nodes of graphs.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine.h"
#include "sim_impl.h"

struct semaphore {
	uint32_t tag;
	bool timeline;
	unsigned references; /* the handle, and items that are queued */
	uint64_t *word;
};

/* The argument of an item. */
struct operation {
	struct semaphore *semaphore;
	uint64_t value;
};

static void put(struct semaphore *semaphore)
{
	if (__atomic_sub_fetch(&semaphore->references, 1, __ATOMIC_ACQ_REL) != 0)
		return;
	munmap(semaphore->word, sizeof *semaphore->word);
	free(semaphore);
}

/* ---- handles ---------------------------------------------------------------------------------------------------- */

static CUresult import(struct semaphore *semaphore, int fd)
{
	struct stat status;

	if (fstat(fd, &status) < 0 || !S_ISREG(status.st_mode) || status.st_size < (off_t)sizeof *semaphore->word)
		return CUDA_ERROR_INVALID_HANDLE;
	semaphore->word = mmap(NULL, sizeof *semaphore->word, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	return semaphore->word != MAP_FAILED ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
}

CUresult sim_cuImportExternalSemaphore(CUexternalSemaphore *out, const CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC *desc)
{
	if (!sim_initialized())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!out || !desc || desc->flags)
		return CUDA_ERROR_INVALID_VALUE;
	if (desc->type != CU_EXTERNAL_SEMAPHORE_HANDLE_TYPE_OPAQUE_FD &&
	    desc->type != CU_EXTERNAL_SEMAPHORE_HANDLE_TYPE_TIMELINE_SEMAPHORE_FD)
		return CUDA_ERROR_NOT_SUPPORTED;
	struct semaphore *semaphore = calloc(1, sizeof *semaphore);
	if (!semaphore)
		return CUDA_ERROR_OUT_OF_MEMORY;
	CUresult result = import(semaphore, desc->handle.fd);
	if (result != CUDA_SUCCESS) {
		free(semaphore);
		return result;
	}
	close(desc->handle.fd); /* it is the driver's from now on */
	semaphore->tag = SIM_TAG_SEMAPHORE;
	semaphore->timeline = desc->type == CU_EXTERNAL_SEMAPHORE_HANDLE_TYPE_TIMELINE_SEMAPHORE_FD;
	semaphore->references = 1;
	sim_handle_add(semaphore, SIM_TAG_SEMAPHORE);
	*out = (CUexternalSemaphore)semaphore;
	return CUDA_SUCCESS;
}

CUresult sim_cuDestroyExternalSemaphore(CUexternalSemaphore handle)
{
	struct semaphore *semaphore = (struct semaphore *)handle;

	if (!sim_initialized())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!sim_handle_is(semaphore, SIM_TAG_SEMAPHORE) || !sim_handle_drop(semaphore))
		return CUDA_ERROR_INVALID_HANDLE;
	put(semaphore);
	return CUDA_SUCCESS;
}

/* ---- in streams ------------------------------------------------------------------------------------------------- */

static void run_signal(void *arg)
{
	struct operation operation;

	memcpy(&operation, arg, sizeof operation);
	__atomic_store_n(operation.semaphore->word, operation.semaphore->timeline ? operation.value : 1,
	                 __ATOMIC_RELEASE);
	put(operation.semaphore);
}

/* Asked until it says yes, which is the last time that the item knows the semaphore. */
static bool poll_wait(const void *arg)
{
	struct operation operation;
	uint64_t signalled = 1;

	memcpy(&operation, arg, sizeof operation);
	uint64_t *word = operation.semaphore->word;
	bool there = operation.semaphore->timeline ? __atomic_load_n(word, __ATOMIC_ACQUIRE) >= operation.value
	                                           : __atomic_compare_exchange_n(word, &signalled, 0, false,
	                                                                         __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
	if (there)
		put(operation.semaphore);
	return there;
}

static CUresult submit(struct sim_stream *stream, CUexternalSemaphore handle, uint64_t value, bool wait)
{
	struct operation operation = {(struct semaphore *)handle, value};
	struct sim_item item = {.kind = wait ? SIM_ITEM_POLL : SIM_ITEM_WORK, .poll = poll_wait};

	item.work.run = wait ? NULL : run_signal;
	item.work.arg_size = sizeof operation;
	memcpy(item.work.arg, &operation, sizeof operation);
	__atomic_add_fetch(&operation.semaphore->references, 1, __ATOMIC_RELAXED);
	CUresult result = sim_engine_submit(stream, &item, false);
	if (result != CUDA_SUCCESS)
		put(operation.semaphore);
	return result;
}

/* What is asked of one semaphore: parameters of signals and of waits name it alike. */
struct wish {
	unsigned flags;
	uint64_t value;
};

static struct wish wish_of(const void *params, unsigned i, bool wait)
{
	const CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS *signals = params;
	const CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS *waits = params;

	return wait ? (struct wish){waits[i].flags, waits[i].params.fence.value}
	            : (struct wish){signals[i].flags, signals[i].params.fence.value};
}

static CUresult check(const CUexternalSemaphore *handle, const void *params, unsigned count, bool wait)
{
	if (!count || !handle || !params)
		return CUDA_ERROR_INVALID_VALUE;
	for (unsigned i = 0; i < count; i++)
		if (!sim_handle_is(handle[i], SIM_TAG_SEMAPHORE))
			return CUDA_ERROR_INVALID_HANDLE;
	for (unsigned i = 0; i < count; i++)
		if (wish_of(params, i, wait).flags)
			return CUDA_ERROR_INVALID_VALUE;
	return CUDA_SUCCESS;
}

static CUresult submit_all(const CUexternalSemaphore *handle, const void *params, unsigned count, CUstream stream,
                           bool wait)
{
	CUresult result;
	struct sim_stream *target = sim_stream_of(stream, &result);

	if (!target)
		return result;
	result = check(handle, params, count, wait);
	for (unsigned i = 0; i < count && result == CUDA_SUCCESS; i++)
		result = submit(target, handle[i], wish_of(params, i, wait).value, wait);
	return result;
}

CUresult sim_cuSignalExternalSemaphoresAsync(const CUexternalSemaphore *handle,
                                             const CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS *params, unsigned int count,
                                             CUstream stream)
{
	return submit_all(handle, params, count, stream, false);
}

CUresult sim_cuWaitExternalSemaphoresAsync(const CUexternalSemaphore *handle,
                                           const CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS *params, unsigned int count,
                                           CUstream stream)
{
	return submit_all(handle, params, count, stream, true);
}
