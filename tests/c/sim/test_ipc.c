/* Memory between processes: cuIpc handles of plain blocks, large and small, and blocks of exported pools. We test: both
 * sides see the same bytes, the card counts each once, while anybody holds it, also when its maker has freed it or is
 * dead; a handle opened twice counts; what cannot be shared is refused; a stale handle does not open. */
#include <sys/prctl.h>

#include "memory_test.h"
#include "pass_fd.h"

#define POOL_GRANULE (32 * MIB)

struct message {
	CUipcMemHandle large, small;
	CUmemPoolPtrExportData pointer;
	CUipcEventHandle event;
};

static int to_child[2], to_parent[2], sockets[2];
static struct message message;

/* Bytes that all processes hold on device 0. */
static uint64_t on_card(void)
{
	size_t free_now, total;

	OK(cuMemGetInfo(&free_now, &total));
	return usable() - free_now;
}

static unsigned first_byte(CUdeviceptr p)
{
	unsigned char byte;

	OK(cuMemcpyDtoH(&byte, p, 1));
	return byte;
}

static int gate[2];

static void CUDA_CB hold(void *unused)
{
	(void)unused;
	hear(gate[0]);
}

/* Records an event that the other side waits for. */
static void recorder(int unused)
{
	CUstream stream;
	CUevent event, plain;
	CUdeviceptr p;

	(void)unused;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	start();
	OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	OK(cuEventCreate(&plain, CU_EVENT_DISABLE_TIMING));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuIpcGetEventHandle(&message.event, plain));
	OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS));
	OK(cuIpcGetEventHandle(&message.event, event));
	GIVES(CUDA_ERROR_INVALID_CONTEXT, cuIpcOpenEventHandle(&plain, message.event));
	OK(cuMemAlloc(&p, GRANULE));
	OK(cuIpcGetMemHandle(&message.large, p));
	for (int round = 0; round < 2; round++) {
		OK(cuLaunchHostFunc(stream, hold, NULL));
		OK(cuMemsetD8Async(p, (unsigned char)(7 + round), GRANULE, stream));
		OK(cuEventRecord(event, stream));
		GIVES(CUDA_ERROR_NOT_READY, cuEventQuery(event));
		CHECK(write(to_child[1], &message, sizeof message) == sizeof message, "message");
		hear(to_parent[0]);
		if (round == 1)
			raise(SIGKILL); /* with the record outstanding */
		tell(gate[1]);
		OK(cuEventSynchronize(event));
	}
}

static void waiter(int child)
{
	CUstream stream;
	CUevent event = NULL;
	CUdeviceptr p = 0;
	unsigned char *byte;

	start();
	OK(cuMemHostAlloc((void **)&byte, 4096, 0));
	OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	for (int round = 0; round < 2; round++) {
		CHECK(read(to_child[0], &message, sizeof message) == sizeof message, "message");
		if (round == 0) {
			OK(cuIpcOpenEventHandle(&event, message.event));
			OK(cuIpcOpenMemHandle(&p, message.large, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
		}
		*byte = 0;
		GIVES(CUDA_ERROR_NOT_READY, cuEventQuery(event));
		OK(cuStreamWaitEvent(stream, event, 0));
		OK(cuMemcpyDtoHAsync(byte, p, 1, stream));
		GIVES(CUDA_ERROR_NOT_READY, cuStreamQuery(stream));
		tell(to_parent[1]);
		OK(cuEventSynchronize(event));
		OK(cuStreamSynchronize(stream));
		CHECK(round == 1 || *byte == 7, "after the event the bytes are there: %u", *byte);
	}
	OK(cuEventQuery(event)); /* the dead record nothing more */
	OK(cuEventDestroy(event));
	OK(cuIpcCloseMemHandle(p));
	CHECK(waitpid(child, NULL, 0) == child, "waitpid");
}

/* Exports, waits, frees, waits, dies. */
static void exporter(int unused)
{
	CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
	                        .handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
	                        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
	CUdeviceptr large, small, pooled, managed;
	CUmemoryPool pool;
	CUipcMemHandle handle;
	int fd;

	(void)unused;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	start();
	OK(cuMemAlloc(&large, 100 * MIB));
	OK(cuMemAlloc(&small, 1000));
	OK(cuMemAllocManaged(&managed, MIB, CU_MEM_ATTACH_GLOBAL));
	OK(cuMemPoolCreate(&pool, &props));
	OK(cuMemAllocFromPoolAsync(&pooled, 3 * MIB, pool, NULL));
	OK(cuMemsetD8(large, 11, 100 * MIB));
	OK(cuMemsetD8(small, 22, 1000));
	OK(cuMemsetD8(pooled, 33, 3 * MIB));
	OK(cuCtxSynchronize());
	uint64_t before = held();
	OK(cuIpcGetMemHandle(&message.large, large));
	OK(cuIpcGetMemHandle(&handle, large + MIB));
	CHECK(memcmp(&handle, &message.large, sizeof handle) == 0, "one block, one handle");
	OK(cuIpcGetMemHandle(&message.small, small));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuIpcGetMemHandle(&handle, managed));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuIpcGetMemHandle(&handle, pooled));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemPoolExportPointer(&message.pointer, pooled));
	GIVES(CUDA_ERROR_INVALID_CONTEXT, cuIpcOpenMemHandle(&managed, message.large, 1));
	OK(cuMemPoolExportToShareableHandle(&fd, pool, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
	OK(cuMemPoolExportPointer(&message.pointer, pooled));
	CHECK(held() == before, "sharing costs nothing: %lu", held() - before);
	CHECK(write(to_child[1], &message, sizeof message) == sizeof message, "message");
	send_fd(sockets[0], fd);
	close(fd);
	hear(to_parent[0]); /* opened, and written to */
	CHECK(first_byte(large) == 44 && first_byte(small) == 55 && first_byte(pooled) == 66, "%u, %u, %u: the other's",
	      first_byte(large), first_byte(small), first_byte(pooled));
	OK(cuMemFree(large));
	CHECK(held() == before - 100 * MIB, "freed here: %lu of %lu", held(), before);
	tell(to_child[1]);
	hear(to_parent[0]);
	raise(SIGKILL);
}

static void importer(int child)
{
	CUdeviceptr large, again, small, pooled, base;
	CUmemoryPool pool;
	size_t size;

	CHECK(read(to_child[0], &message, sizeof message) == sizeof message, "message");
	start();
	uint64_t before = held(), card = on_card();
	OK(cuIpcOpenMemHandle(&large, message.large, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
	OK(cuIpcOpenMemHandle(&again, message.large, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
	CHECK(again == large, "the same pointer again");
	OK(cuIpcOpenMemHandle(&small, message.small, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuIpcOpenMemHandle(&again, message.small, 0));
	int fd = receive_fd(sockets[1]);
	OK(cuMemPoolImportFromShareableHandle(&pool, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
	                                      0));
	close(fd);
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemAllocFromPoolAsync(&again, MIB, pool, NULL));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuDeviceSetMemPool(0, pool));
	OK(cuMemPoolImportPointer(&pooled, pool, &message.pointer));
	CHECK(held() == before && on_card() == card, "imports cost nothing: %lu, %lu", held() - before,
	      on_card() - card);
	OK(cuMemGetAddressRange(&base, &size, large + MIB));
	CHECK(base == large && size == 100 * MIB, "%zu bytes", size);
	CHECK(first_byte(large + 100 * MIB - 1) == 11 && first_byte(small) == 22 && first_byte(pooled) == 33,
	      "bytes %u, %u, %u", first_byte(large + 100 * MIB - 1), first_byte(small), first_byte(pooled));
	OK(cuMemsetD8(large, 44, 100 * MIB));
	OK(cuMemsetD8(small, 55, 1000));
	OK(cuMemsetD8(pooled, 66, 3 * MIB));
	OK(cuCtxSynchronize());
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemFree(large));
	tell(to_parent[1]);
	hear(to_child[0]); /* its maker has freed it */
	CHECK(held() == before + 100 * MIB && on_card() == card, "ours now: %lu, %lu", held() - before,
	      on_card() - card);
	OK(cuIpcCloseMemHandle(large));
	CHECK(first_byte(large) == 44, "opened twice");
	OK(cuIpcCloseMemHandle(large));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuIpcCloseMemHandle(large));
	CHECK(held() == before && on_card() == card - 100 * MIB, "gone: %lu, %lu", held() - before, on_card() - card);
	GIVES(CUDA_ERROR_INVALID_VALUE, cuIpcOpenMemHandle(&large, message.large, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
	tell(to_parent[1]);
	CHECK(waitpid(child, NULL, 0) == child, "waitpid");
	CHECK(on_card() == held(), "the dead hold nothing: %lu, %lu", on_card(), held());
	CHECK(held() == before + GRANULE + POOL_GRANULE, "a small block's granule, a pool's: %lu", held() - before);
	CHECK(first_byte(small) == 55 && first_byte(pooled) == 66, "the memory lives on");
	OK(cuIpcCloseMemHandle(small));
	OK(cuMemFreeAsync(pooled, NULL));
	OK(cuStreamSynchronize(NULL));
	OK(cuMemPoolDestroy(pool));
	CHECK(held() == before, "all gone: %lu", held() - before);
}

int main(int argc, char **argv)
{
	CHECK(pipe(to_child) == 0 && pipe(to_parent) == 0 && socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) == 0,
	      "pipes");
	CHECK(pipe(gate) == 0, "pipe");
	(void)argv;
	if (argc > 1)
		waiter(start_child(recorder, 0));
	else
		importer(start_child(exporter, 0));
	return 0;
}
