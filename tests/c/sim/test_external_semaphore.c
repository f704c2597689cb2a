/* External semaphores. We test: a wait holds up its stream and no other until the semaphore is signalled, by a stream or
 * by the other side; an opaque one is reset by the wait, a timeline compares its value; a semaphore may be destroyed
 * while its signal is queued; wrong handles and types are refused, and leave the descriptor the program's. */
#include <fcntl.h>

#include "memory_test.h"

struct side {
	int fd;
	uint64_t *word; /* as the other side has it mapped */
	CUexternalSemaphore semaphore;
};

static struct side make(CUexternalSemaphoreHandleType type)
{
	struct side side;
	CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC desc = {.type = type};
	side.fd = memfd_create("semaphore", MFD_CLOEXEC);
	CHECK(side.fd >= 0 && ftruncate(side.fd, 8) == 0, "a file");
	side.word = mmap(NULL, 8, PROT_READ | PROT_WRITE, MAP_SHARED, side.fd, 0);
	CHECK(side.word != MAP_FAILED, "mmap");
	desc.handle.fd = side.fd;
	OK(cuImportExternalSemaphore(&side.semaphore, &desc));
	CHECK(fcntl(side.fd, F_GETFD) < 0, "the descriptor is the driver's now");
	return side;
}

static uint64_t word(const struct side *side)
{
	return __atomic_load_n(side->word, __ATOMIC_ACQUIRE);
}

static void opaque(CUstream first, CUstream second)
{
	struct side side = make(CU_EXTERNAL_SEMAPHORE_HANDLE_TYPE_OPAQUE_FD);
	CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS wait = {0};
	CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS signal = {0};
	OK(cuWaitExternalSemaphoresAsync(&side.semaphore, &wait, 1, first));
	GIVES(CUDA_ERROR_NOT_READY, cuStreamQuery(first));
	OK(cuStreamSynchronize(second));
	OK(cuSignalExternalSemaphoresAsync(&side.semaphore, &signal, 1, second));
	OK(cuStreamSynchronize(first));
	CHECK(word(&side) == 0, "the wait resets it: %lu", (unsigned long)word(&side));
	OK(cuWaitExternalSemaphoresAsync(&side.semaphore, &wait, 1, first));
	GIVES(CUDA_ERROR_NOT_READY, cuStreamQuery(first));
	__atomic_store_n(side.word, 1, __ATOMIC_RELEASE); /* the other side signals */
	OK(cuStreamSynchronize(first));
	CHECK(word(&side) == 0, "and again: %lu", (unsigned long)word(&side));
	OK(cuDestroyExternalSemaphore(side.semaphore));
	GIVES(CUDA_ERROR_INVALID_HANDLE, cuDestroyExternalSemaphore(side.semaphore));
	GIVES(CUDA_ERROR_INVALID_HANDLE, cuSignalExternalSemaphoresAsync(&side.semaphore, &signal, 1, second));
}

static void timeline(CUstream first, CUstream second)
{
	struct side side[2] = {make(CU_EXTERNAL_SEMAPHORE_HANDLE_TYPE_TIMELINE_SEMAPHORE_FD),
	                       make(CU_EXTERNAL_SEMAPHORE_HANDLE_TYPE_TIMELINE_SEMAPHORE_FD)};
	CUexternalSemaphore both[2] = {side[0].semaphore, side[1].semaphore};
	CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS wait[2] = {{.params.fence.value = 7}, {.params.fence.value = 3}};
	CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS signal = {.params.fence.value = 6};
	OK(cuWaitExternalSemaphoresAsync(both, wait, 2, first));
	OK(cuSignalExternalSemaphoresAsync(&both[0], &signal, 1, second));
	OK(cuSignalExternalSemaphoresAsync(&both[1], &signal, 1, second));
	OK(cuStreamSynchronize(second));
	CHECK(word(&side[0]) == 6 && word(&side[1]) == 6, "signalled");
	GIVES(CUDA_ERROR_NOT_READY, cuStreamQuery(first)); /* 6 is less than 7 */
	signal.params.fence.value = 8;
	OK(cuSignalExternalSemaphoresAsync(&both[0], &signal, 1, second));
	OK(cuStreamSynchronize(first));
	CHECK(word(&side[0]) == 8, "a wait leaves the value: %lu", (unsigned long)word(&side[0]));
	signal.params.fence.value = 9;
	OK(cuSignalExternalSemaphoresAsync(&both[1], &signal, 1, second));
	OK(cuDestroyExternalSemaphore(both[1]));
	OK(cuDestroyExternalSemaphore(both[0]));
	OK(cuStreamSynchronize(second));
	CHECK(word(&side[1]) == 9, "signalled although destroyed meanwhile");
}

static void wrong_calls(CUstream stream)
{
	CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC desc = {.type = CU_EXTERNAL_SEMAPHORE_HANDLE_TYPE_NVSCISYNC};
	CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS signal = {.flags = 1};
	CUexternalSemaphore semaphore;
	GIVES(CUDA_ERROR_NOT_SUPPORTED, cuImportExternalSemaphore(&semaphore, &desc));
	desc.type = CU_EXTERNAL_SEMAPHORE_HANDLE_TYPE_OPAQUE_FD;
	desc.handle.fd = memfd_create("empty", MFD_CLOEXEC);
	GIVES(CUDA_ERROR_INVALID_HANDLE, cuImportExternalSemaphore(&semaphore, &desc));
	CHECK(close(desc.handle.fd) == 0, "still the program's");
	struct side side = make(CU_EXTERNAL_SEMAPHORE_HANDLE_TYPE_OPAQUE_FD);
	GIVES(CUDA_ERROR_INVALID_VALUE, cuSignalExternalSemaphoresAsync(&side.semaphore, &signal, 1, stream));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuSignalExternalSemaphoresAsync(&side.semaphore, NULL, 1, stream));
	OK(cuDestroyExternalSemaphore(side.semaphore));
}

int main(void)
{
	CUstream stream[2];
	start();
	for (int i = 0; i < 2; i++)
		OK(cuStreamCreate(&stream[i], CU_STREAM_NON_BLOCKING));
	opaque(stream[0], stream[1]);
	timeline(stream[0], stream[1]);
	wrong_calls(stream[0]);
	return 0;
}
