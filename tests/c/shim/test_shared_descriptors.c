/* C004: a descriptor of exported memory keeps it on the device, although nobody has imported it and its maker has let go
 * of it: as long as it is open anywhere, as a copy, in another process or under way to one, the memory stays charged, and
 * the limit cannot be passed by exporting memory and dropping it. Once it is closed, all is given back. A descriptor that
 * outlives its maker costs nothing until it is imported, and then the importer pays.
 */
#include <signal.h>
#include <sys/prctl.h>

#include "pass_fd.h"
#include "shim_test.h"

#define BYTES (3 * GIB)

static CUdeviceptr map(CUmemGenericAllocationHandle handle)
{
	CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE},
	                          .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	CUdeviceptr p;
	OK(cuMemAddressReserve(&p, BYTES, 0, 0, 0));
	OK(cuMemMap(p, BYTES, 0, handle, 0));
	OK(cuMemSetAccess(p, BYTES, &access, 1));
	return p;
}

static void unmap(CUdeviceptr p, CUmemGenericAllocationHandle handle)
{
	OK(cuMemUnmap(p, BYTES));
	OK(cuMemAddressFree(p, BYTES));
	OK(cuMemRelease(handle));
}

/* Memory that only the descriptor keeps. */
static int make(void)
{
	CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
	                            .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
	                            .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
	CUmemGenericAllocationHandle handle;
	int fd, other;
	OK(cuMemCreate(&handle, BYTES, &prop, 0));
	CUdeviceptr p = map(handle);
	OK(cuMemsetD8_v2(p, 13, MIB));
	OK(cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
	OK(cuMemExportToShareableHandle(&other, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
	unmap(p, handle);
	close(other); /* exported twice: either keeps it */
	return fd;
}

static void expect(uint64_t bytes, const char *when)
{
	CUdeviceptr p;
	IS(cuMemAlloc_v2(&p, 4 * GIB - bytes + 1), CUDA_ERROR_OUT_OF_MEMORY); /* the dead are looked for */
	uint64_t charged = used();
	CHECK(charged == bytes && held(0) == bytes, "%s: charged %lu, held %lu, should be %lu", when,
	      (unsigned long)charged, (unsigned long)held(0), (unsigned long)bytes);
	OK(cuMemAlloc_v2(&p, 4 * GIB - bytes));
	OK(cuMemFree_v2(p));
}

static void import_from(int fd)
{
	CUmemGenericAllocationHandle handle;
	unsigned char byte = 0;
	OK(cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
	CUdeviceptr p = map(handle);
	OK(cuMemcpyDtoH_v2(&byte, p + MIB - 1, 1));
	CHECK(byte == 13, "the same memory: %u", byte);
	expect(BYTES, "imported");
	unmap(p, handle);
}

/* The library needs one of its own, and takes no number that the program would get. */
static void numbers(void)
{
	close(make()); /* the driver has what it needs */
	OK(cuCtxSynchronize()); /* and the library nothing */
	int first = dup(STDERR_FILENO), second = dup(STDERR_FILENO);
	close(first);
	close(second);
	int fd = make(), next = dup(STDERR_FILENO);
	CHECK(fd == first && next == second, "%d and %d, not %d and %d", fd, next, first, second);
	close(fd);
	close(next);
}

static void copies(void)
{
	int line[2], fd = make();
	CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, line) == 0, "socketpair");
	expect(BYTES, "the descriptor is open");
	int copy = dup(fd);
	close(fd);
	expect(BYTES, "a copy is open");
	send_fd(line[0], copy);
	close(copy);
	expect(BYTES, "it is under way");
	fd = receive_fd(line[1]);
	import_from(fd);
	expect(BYTES, "nobody has imported it any more");
	close(fd);
	expect(0, "it is closed");
	close(line[0]);
	close(line[1]);
}

static void another_process(void)
{
	int fd = make(), line[2];
	CHECK(pipe(line) == 0, "pipe");
	pid_t child = fork();
	CHECK(child >= 0, "fork");
	if (child == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		tell(line[1]);
		pause();
	}
	hear(line[0]);
	close(fd);
	expect(BYTES, "a child has it");
	end_maker(child);
	expect(0, "it is dead");
}

/* Closed behind the library's back, and no call between: the next allocation finds it. */
static void found_by_an_allocation(void)
{
	CUdeviceptr p;
	close(make());
	OK(cuMemAlloc_v2(&p, 4 * GIB));
	OK(cuMemFree_v2(p));
}

static int line_of_maker[2];

static void maker(void)
{
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	hear(line_of_maker[0]);
	start(0);
	int fd = make();
	send_fd(line_of_maker[0], fd);
	hear(line_of_maker[0]);
	close(fd);
	OK(cuCtxSynchronize());
	tell(line_of_maker[0]);
	pause();
}

static int ask_for_one(int line)
{
	tell(line);
	return receive_fd(line);
}

/* To find that it is closed, its maker need not allocate or ask; the other process sees the charge. */
static void found_by_a_synchronisation(int line)
{
	int fd = ask_for_one(line);
	CHECK(used() == BYTES, "kept: %lu", (unsigned long)used());
	close(fd);
	tell(line);
	hear(line);
	CHECK(used() == 0, "given back: %lu", (unsigned long)used());
}

/* Its maker is killed. */
static void outlived(pid_t child, int line)
{
	int fd = ask_for_one(line);
	start(0);
	uint64_t charged = used();
	CHECK(charged == BYTES && held(0) == BYTES, "its maker keeps it charged: %lu", (unsigned long)charged);
	end_maker(child);
	expect(0, "its maker is dead");
	import_from(fd);
	close(fd);
	expect(0, "given up");
}

int main(void)
{
	pid_t child[2];
	int line[2];
	for (int i = 0; i < 2; i++) { /* before this process has a context */
		child[i] = begin_maker(line_of_maker, maker);
		line[i] = line_of_maker[1];
	}
	outlived(child[0], line[0]);
	found_by_a_synchronisation(line[1]);
	end_maker(child[1]);
	numbers();
	copies();
	another_process();
	found_by_an_allocation();
	return 0;
}
