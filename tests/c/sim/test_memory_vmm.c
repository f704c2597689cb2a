/* Virtual memory management. We test: two mappings of one handle are one memory, a mapping without access cannot be
 * touched, the card counts a handle until it is released and unmapped, host handles count nothing, wrong ranges are
 * refused, thousands of handles need no descriptors, a handle goes to another process as a descriptor. */
#include <setjmp.h>
#include <sys/socket.h>

#include "memory_test.h"
#include "pass_fd.h"

static uint64_t before;
static CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                   .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
static const CUmemAccessDesc read_write = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0},
                                           .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
static sigjmp_buf landing;

static void on_fault(int signal)
{
	siglongjmp(landing, signal);
}

static bool touchable(CUdeviceptr p)
{
	struct sigaction action = {.sa_handler = on_fault}, old;
	bool touched = false;

	sigaction(SIGSEGV, &action, &old);
	if (sigsetjmp(landing, 1) == 0) {
		(void)*(volatile char *)(uintptr_t)p;
		touched = true;
	}
	sigaction(SIGSEGV, &old, NULL);
	return touched;
}

static void aliasing(void)
{
	CUmemGenericAllocationHandle handle, again;
	CUdeviceptr p, q;
	char text[6] = {0};
	unsigned long long flags;

	OK(cuMemAddressReserve(&p, 8 * MIB, 0, 0, 0));
	OK(cuMemAddressReserve(&q, 8 * MIB, 0, 0, 0));
	CHECK(held() == before, "addresses cost nothing: %lu", held() - before);
	OK(cuMemCreate(&handle, 4 * MIB, &prop, 0));
	CHECK(held() == before + 4 * MIB, "a handle costs its size: %lu", held() - before);
	OK(cuMemMap(p, 4 * MIB, 0, handle, 0));
	OK(cuMemMap(q + 2 * MIB, 4 * MIB, 0, handle, 0));
	CHECK(!touchable(p), "no access was set");
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpyHtoD(p, "hello", 6));
	OK(cuMemSetAccess(p, 4 * MIB, &read_write, 1));
	OK(cuMemSetAccess(q + 2 * MIB, 4 * MIB, &read_write, 1));
	OK(cuMemGetAccess(&flags, &read_write.location, p));
	CHECK(flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE, "access %llu", flags);
	OK(cuMemcpyHtoD(p + 3 * MIB, "hello", 6));
	OK(cuMemcpyDtoH(text, q + 5 * MIB, 6));
	CHECK(!strcmp(text, "hello"), "the other mapping says '%s'", text);
	OK(cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)(p + MIB)));
	CHECK(again == handle, "the same handle");
	OK(cuMemRelease(handle));
	OK(cuMemRelease(handle));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemRelease(handle));
	CHECK(held() == before + 4 * MIB, "released but mapped: %lu", held() - before);
	OK(cuMemUnmap(p, 4 * MIB));
	CHECK(held() == before + 4 * MIB, "mapped once more: %lu", held() - before);
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemAddressFree(q, 8 * MIB));
	OK(cuMemUnmap(q + 2 * MIB, 4 * MIB));
	CHECK(held() == before, "gone: %lu", held() - before);
	CHECK(!touchable(p), "unmapped");
	OK(cuMemAddressFree(p, 8 * MIB));
	OK(cuMemAddressFree(q, 8 * MIB));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemAddressFree(q, 8 * MIB));
}

static void fresh_is_zero(void)
{
	CUmemGenericAllocationHandle handle;
	CUdeviceptr p;
	char byte;

	OK(cuMemAddressReserve(&p, 2 * MIB, 0, 0, 0));
	for (int round = 0; round < 3; round++) {
		OK(cuMemCreate(&handle, 2 * MIB, &prop, 0));
		OK(cuMemMap(p, 2 * MIB, 0, handle, 0));
		OK(cuMemSetAccess(p, 2 * MIB, &read_write, 1));
		OK(cuMemcpyDtoH(&byte, p + MIB, 1));
		CHECK(byte == 0, "round %d: %d", round, byte);
		OK(cuMemsetD8(p, 7, 2 * MIB));
		OK(cuMemUnmap(p, 2 * MIB));
		OK(cuMemRelease(handle));
	}
	OK(cuMemAddressFree(p, 2 * MIB));
}

static void wrong_calls(void)
{
	CUmemAllocationProp host = prop, other = prop;
	CUmemGenericAllocationHandle handle;
	CUdeviceptr p, hint;
	size_t granularity;

	OK(cuMemGetAllocationGranularity(&granularity, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
	CHECK(granularity == GRANULE, "granularity %zu", granularity);
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemCreate(&handle, MIB, &prop, 0));
	GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuMemCreate(&handle, 100 * GIB, &prop, 0));
	other.location.id = 9;
	GIVES(CUDA_ERROR_INVALID_DEVICE, cuMemCreate(&handle, GRANULE, &other, 0));
	OK(cuMemCreate(&handle, 2 * GRANULE, &prop, 0));
	OK(cuMemAddressReserve(&p, 4 * GRANULE, 0, 0, 0));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemMap(p, 4 * GRANULE, 0, handle, 0));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemMap(p + 3 * GRANULE, 2 * GRANULE, 0, handle, 0));
	OK(cuMemMap(p, 2 * GRANULE, 0, handle, 0));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemMap(p + GRANULE, 2 * GRANULE, 0, handle, 0));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemUnmap(p, GRANULE));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemFree(p));
	OK(cuMemUnmap(p, 2 * GRANULE));
	OK(cuMemRelease(handle));
	OK(cuMemAddressFree(p, 4 * GRANULE));
	OK(cuMemAddressReserve(&hint, 4 * GRANULE, 0, p, 0));
	CHECK(hint == p, "a free address is given where asked: %llx, asked %llx", hint, p);
	OK(cuMemAddressFree(hint, 4 * GRANULE));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemAddressReserve(&hint, 100, 0, 0, 0));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemAddressReserve(&hint, GRANULE, 3, 0, 0));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemAddressReserve(&hint, GRANULE, 0, 100, 0));
	OK(cuMemAddressReserve(&hint, 3 * 4096, 0, 0, 0)); /* pages of the host are enough */
	OK(cuMemAddressFree(hint, 3 * 4096));
	host.location.type = CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT;
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemCreate(&handle, GRANULE, &host, 0));
	host.location.type = CU_MEM_LOCATION_TYPE_HOST;
	host.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemCreate(&handle, GRANULE, &host, 0));
	host.requestedHandleTypes = CU_MEM_HANDLE_TYPE_NONE;
	OK(cuMemCreate(&handle, GRANULE, &host, 0));
	CHECK(held() == before, "host memory does not count: %lu", held() - before);
	OK(cuMemRelease(handle));
}

/* What PyTorch's expandable segments do. */
static void thousands(void)
{
	enum { HANDLES = 3000 };
	static CUmemGenericAllocationHandle handle[HANDLES];
	CUdeviceptr p;
	int fd = dup(0);

	close(fd);
	OK(cuMemAddressReserve(&p, HANDLES * 20 * MIB, 0, 0, 0));
	for (int i = 0; i < HANDLES; i++) {
		OK(cuMemCreate(&handle[i], 20 * MIB, &prop, 0));
		OK(cuMemMap(p + (uint64_t)i * 20 * MIB, 20 * MIB, 0, handle[i], 0));
	}
	OK(cuMemSetAccess(p, HANDLES * 20 * MIB, &read_write, 1));
	CHECK(held() == before + HANDLES * 20 * MIB, "%lu", held() - before);
	OK(cuMemcpyHtoD(p + 20 * MIB - 3, "across", 6)); /* two adjacent mappings are one range */
	int next = dup(0);
	CHECK(next <= fd + 1, "descriptor %d after %d handles, %d before", next, HANDLES, fd);
	close(next);
	OK(cuMemUnmap(p, HANDLES * 20 * MIB));
	for (int i = 0; i < HANDLES; i++)
		OK(cuMemRelease(handle[i]));
	CHECK(held() == before, "%lu left", held() - before);
	OK(cuMemAddressFree(p, HANDLES * 20 * MIB));
}

static CUdeviceptr map_whole(CUmemGenericAllocationHandle handle, size_t size)
{
	CUdeviceptr p;

	OK(cuMemAddressReserve(&p, size, 0, 0, 0));
	OK(cuMemMap(p, size, 0, handle, 0));
	OK(cuMemSetAccess(p, size, &read_write, 1));
	return p;
}

static int ends[2];

static void importer(int unused)
{
	CUmemGenericAllocationHandle handle;
	CUmemAllocationProp told;
	char text[6];

	(void)unused;
	close(ends[0]);
	int fd = receive_fd(ends[1]);
	start();
	uint64_t own = held();
	GIVES(CUDA_ERROR_INVALID_VALUE,
	      cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)0, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
	OK(cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
	close(fd);
	CHECK(held() == own, "what another made counts for the other: %lu", held() - own);
	OK(cuMemGetAllocationPropertiesFromHandle(&told, handle));
	CHECK(told.location.id == 0, "device %d", told.location.id);
	CUdeviceptr p = map_whole(handle, 2 * GRANULE);
	OK(cuMemcpyDtoH(text, p + GRANULE, 6));
	CHECK(!strcmp(text, "there"), "the importer reads '%s'", text);
	OK(cuMemcpyHtoD(p, "back", 5));
	CHECK(write(ends[1], "x", 1) == 1, "tell");
}

static void sharing(pid_t child)
{
	CUmemGenericAllocationHandle handle;
	char text[5], byte;
	int fd;

	OK(cuMemCreate(&handle, 2 * GRANULE, &prop, 0));
	GIVES(CUDA_ERROR_INVALID_VALUE,
	      cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
	OK(cuMemRelease(handle));
	prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
	OK(cuMemCreate(&handle, 2 * GRANULE, &prop, 0));
	CUdeviceptr p = map_whole(handle, 2 * GRANULE);
	OK(cuMemcpyHtoD(p + GRANULE, "there", 6));
	OK(cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
	send_fd(ends[0], fd);
	close(fd);
	close(ends[1]);
	CHECK(read(ends[0], &byte, 1) == 1, "the importer is done");
	OK(cuMemcpyDtoH(text, p, 5));
	CHECK(!strcmp(text, "back"), "the exporter reads '%s'", text);
	end_child(child);
}

int main(void)
{
	CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0, "socketpair");
	pid_t child = start_child(importer, 0);
	start();
	before = held();
	aliasing();
	fresh_is_zero();
	wrong_calls();
	thousands();
	sharing(child);
	return 0;
}
