/* C004: memory that one process exports and another imports (argument: ipc, vmm,
 * external: as external memory, or pool: a block of an exported pool). In one container it is charged once,
 * for as long as anybody holds it, whoever frees it or is killed first; a container that imports what another made pays
 * for it in full, and is refused what does not fit; a pool, of which it cannot be told, is refused at all. So nobody gets past a limit by giving memory away and dying.
 */
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>

#include "pass_fd.h"
#include "shim_test.h"

#define BYTES (3 * GIB)

struct held {
	CUdeviceptr p;
	CUmemGenericAllocationHandle handle;
	CUipcMemHandle ipc;
	CUexternalMemory object;
	CUmipmappedArray mipmap; /* of it, beside the buffer */
	CUmemoryPool pool;
	CUmemPoolPtrExportData pointer;
};

static bool vmm; /* the maker exports a handle by descriptor */
static bool pool;
static bool external; /* the taker imports that as external memory */
static int line[2]; /* maker, taker */

static void map(struct held *h)
{
	CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE},
	                          .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	OK(cuMemAddressReserve(&h->p, BYTES, 0, 0, 0));
	OK(cuMemMap(h->p, BYTES, 0, h->handle, 0));
	OK(cuMemSetAccess(h->p, BYTES, &access, 1));
}

static void unmap(struct held *h)
{
	OK(cuMemUnmap(h->p, BYTES));
	OK(cuMemAddressFree(h->p, BYTES));
	OK(cuMemRelease(h->handle));
}

static void make(struct held *h)
{
	CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
	                            .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
	                            .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
	CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
	                        .handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
	                        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
	if (pool) {
		OK(cuMemPoolCreate(&h->pool, &props));
		OK(cuMemAllocFromPoolAsync(&h->p, BYTES, h->pool, NULL));
	} else if (vmm) {
		OK(cuMemCreate(&h->handle, BYTES, &prop, 0));
		map(h);
	} else {
		OK(cuMemAlloc_v2(&h->p, BYTES));
	}
	OK(cuMemsetD8_v2(h->p + BYTES / 2, 11, 1));
	OK(cuCtxSynchronize());
}

static void give(struct held *h)
{
	int fd;
	if (pool) {
		OK(cuMemPoolExportToShareableHandle(&fd, h->pool, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
		OK(cuMemPoolExportPointer(&h->pointer, h->p));
		send_fd(line[0], fd);
		close(fd);
		CHECK(write(line[0], &h->pointer, sizeof h->pointer) == sizeof h->pointer, "write");
	} else if (vmm) {
		OK(cuMemExportToShareableHandle(&fd, h->handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
		send_fd(line[0], fd);
		close(fd);
	} else {
		OK(cuIpcGetMemHandle(&h->ipc, h->p));
		CHECK(write(line[0], &h->ipc, sizeof h->ipc) == sizeof h->ipc, "write");
	}
}

static void map_external(struct held *h)
{
	CUDA_EXTERNAL_MEMORY_BUFFER_DESC buffer = {.size = BYTES};
	CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC mipmap = {
	        .offset = GIB,
	        .arrayDesc = {.Width = 1000, .Height = 1000, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 4},
	        .numLevels = 4};
	OK(cuExternalMemoryGetMappedBuffer(&h->p, h->object, &buffer));
	OK(cuExternalMemoryGetMappedMipmappedArray(&h->mipmap, h->object, &mipmap));
}

static CUresult take_external(struct held *h)
{
	CUDA_EXTERNAL_MEMORY_HANDLE_DESC desc = {.type = CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD, .size = BYTES};
	desc.handle.fd = receive_fd(line[1]);
	CUresult error = cuImportExternalMemory(&h->object, &desc);
	if (error != CUDA_SUCCESS) {
		close(desc.handle.fd); /* else it is the driver's */
		return error;
	}
	map_external(h);
	return CUDA_SUCCESS;
}

static CUresult take_pool(struct held *h)
{
	int fd = receive_fd(line[1]);
	CHECK(read(line[1], &h->pointer, sizeof h->pointer) == sizeof h->pointer, "read");
	CUresult error = cuMemPoolImportFromShareableHandle(&h->pool, (void *)(intptr_t)fd,
	                                                    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
	close(fd);
	return error == CUDA_SUCCESS ? cuMemPoolImportPointer(&h->p, h->pool, &h->pointer) : error;
}

static CUresult take(struct held *h)
{
	unsigned char byte = 0;
	if (pool) {
		CUresult error = take_pool(h);
		if (error != CUDA_SUCCESS)
			return error;
	} else if (external) {
		CUresult error = take_external(h);
		if (error != CUDA_SUCCESS)
			return error;
	} else if (vmm) {
		int fd = receive_fd(line[1]);
		CUresult error = cuMemImportFromShareableHandle(&h->handle, (void *)(intptr_t)fd,
		                                                CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
		close(fd);
		if (error != CUDA_SUCCESS)
			return error;
		map(h);
	} else {
		CHECK(read(line[1], &h->ipc, sizeof h->ipc) == sizeof h->ipc, "read");
		CUresult error = cuIpcOpenMemHandle_v2(&h->p, h->ipc, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
		if (error != CUDA_SUCCESS)
			return error;
	}
	OK(cuMemcpyDtoH_v2(&byte, h->p + BYTES / 2, 1));
	CHECK(byte == 11, "the same memory: %u", byte);
	return CUDA_SUCCESS;
}

static void let_go(struct held *h)
{
	if (external) { /* the buffer outlives the object, and is freed as any memory */
		OK(cuDestroyExternalMemory(h->object));
		CHECK(held(0) >= BYTES && used() >= BYTES, "the buffer keeps it: held %lu", (unsigned long)held(0));
		OK(cuMemFree_v2(h->p));
		CHECK(held(0) >= BYTES && used() >= BYTES, "the mip-map, too: held %lu", (unsigned long)held(0));
		OK(cuMipmappedArrayDestroy(h->mipmap));
	} else if (vmm) {
		unmap(h);
	} else if (pool) {
		OK(cuMemFreeAsync(h->p, NULL));
		OK(cuStreamSynchronize(NULL));
		OK(cuMemPoolDestroy(h->pool));
	} else {
		OK(cuIpcCloseMemHandle(h->p));
	}
}

static void maker_frees(struct held *h)
{
	if (pool) {
		OK(cuMemFreeAsync(h->p, NULL));
		OK(cuStreamSynchronize(NULL));
		OK(cuMemPoolDestroy(h->pool));
	} else if (vmm) {
		unmap(h);
	} else {
		OK(cuMemFree_v2(h->p));
	}
}

/* What is charged, after the dead have been looked for, is what is held. */
static void expect(uint64_t bytes, const char *when)
{
	CUdeviceptr p;
	IS(cuMemAlloc_v2(&p, 5 * GIB), CUDA_ERROR_OUT_OF_MEMORY);
	CHECK(used() == bytes, "%s: charged %lu, should be %lu", when, (unsigned long)used(), (unsigned long)bytes);
	CHECK(held(0) == bytes, "%s: held %lu, should be %lu", when, (unsigned long)held(0), (unsigned long)bytes);
}

/* Gives, and again after it was killed or has freed, as the other says. */
static void maker(void)
{
	struct held h = {0};
	char what;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	while (read(line[0], &what, 1) == 1) {
		if (what == 'm') { /* a context does not survive a fork: only now */
			start(0);
			make(&h);
			tell(line[0]);
		}
		if (what == 'g')
			give(&h);
		if (what == 'f') {
			maker_frees(&h);
			tell(line[0]);
		}
	}
	_exit(0);
}

static void ask(char what)
{
	CHECK(write(line[1], &what, 1) == 1, "the maker is gone");
	if (what != 'g')
		hear(line[1]);
}

static void ask_for_one(void)
{
	ask('m');
	ask('g');
}

static void end(pid_t child)
{
	end_maker(child);
	close(line[1]);
}

static void cannot_pass(const char *when)
{
	CUdeviceptr p;
	IS(cuMemAlloc_v2(&p, 2 * GIB), CUDA_ERROR_OUT_OF_MEMORY);
	OK(cuMemAlloc_v2(&p, GIB));
	expect(4 * GIB, when);
	OK(cuMemFree_v2(p));
}

static void one_container(void)
{
	struct held h = {0}, twice = {0};
	pid_t child[3];
	int to[3];
	for (int i = 0; i < 3; i++) { /* all before this process has a context */
		child[i] = begin_maker(line, maker);
		to[i] = line[1];
	}
	line[1] = to[0];
	ask_for_one();
	start(0);
	OK(take(&h));
	expect(BYTES, "imported");
	cannot_pass("beside what is shared");
	ask('g');
	OK(take(&twice));
	expect(BYTES, "imported twice");
	let_go(&h);
	if (vmm || pool || twice.p != h.p) /* cuIpc gives the same address, and counts */
		expect(BYTES, "one of two given up");
	let_go(&twice);
	expect(BYTES, "given up");
	end(child[0]);
	expect(0, "its maker is dead");
	for (int killed = 0; killed < 2; killed++) {
		line[1] = to[1 + killed];
		ask_for_one();
		OK(take(&h));
		if (killed)
			end(child[2]);
		else
			ask('f');
		expect(BYTES, killed ? "its maker was killed" : "its maker has freed it");
		cannot_pass("beside what is left");
		let_go(&h);
		expect(0, "nobody holds it");
	}
	line[1] = to[1];
	end(child[1]);
}

/* Another limit, another ledger: this process is another container. */
static void two_containers(const char *limit, bool fits)
{
	struct held h = {0};
	CUdeviceptr p;
	pid_t child = begin_maker(line, maker);
	ask_for_one();
	setenv("CUDA_DEVICE_MEMORY_LIMIT", limit, 1);
	start(0);
	CHECK(used() == 0, "a container of its own: %lu", (unsigned long)used());
	if (pool) {
		IS(take(&h), CUDA_ERROR_NOT_SUPPORTED);
		CHECK(used() == 0, "nothing is paid: %lu", (unsigned long)used());
		end(child);
		return;
	}
	IS(take(&h), fits ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY);
	CHECK(used() == (fits ? BYTES : 0), "paid here: %lu", (unsigned long)used());
	CHECK(held(0) == BYTES, "there once: %lu", (unsigned long)held(0));
	if (fits) {
		IS(cuMemAlloc_v2(&p, 3 * GIB), CUDA_ERROR_OUT_OF_MEMORY);
		end(child);
		CHECK(used() == BYTES, "and when its maker is dead: %lu", (unsigned long)used());
		let_go(&h);
	} else {
		end(child);
	}
	CHECK(used() == 0, "nothing is left: %lu", (unsigned long)used());
}

static void in_child(void (*body)(const char *, bool), const char *limit, bool fits)
{
	int status;
	pid_t child = fork();
	CHECK(child >= 0, "fork");
	if (child == 0) {
		body(limit, fits);
		_exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child && status == 0, "status %#x", status);
}

static void one(const char *limit, bool fits)
{
	(void)limit, (void)fits;
	one_container();
}

/* What is mapped of external memory ends with the context. */
static void mapped_in_a_context(const char *limit, bool fits)
{
	struct held h = {0};
	CUcontext context;
	(void)limit, (void)fits;
	pid_t child = begin_maker(line, maker);
	ask_for_one();
	start(0);
	OK(cuCtxCreate_v2(&context, 0, 0));
	OK(take(&h));
	OK(cuDestroyExternalMemory(h.object));
	ask('f');
	expect(BYTES, "mapped");
	OK(cuCtxDestroy_v2(context));
	start(0);
	expect(0, "the context is gone");
	end(child);
}

int main(int argc, char **argv)
{
	external = argc > 1 && strcmp(argv[1], "external") == 0;
	vmm = external || (argc > 1 && strcmp(argv[1], "vmm") == 0);
	pool = argc > 1 && strcmp(argv[1], "pool") == 0;
	in_child(one, NULL, true);
	if (external)
		in_child(mapped_in_a_context, NULL, true);
	in_child(two_containers, "5g", true);
	in_child(two_containers, "2g", false);
	return 0;
}
