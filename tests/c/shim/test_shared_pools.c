/* C004: blocks of exported pools, where what an importer keeps is more than the block, or differs from what the maker's
 * pool says. A block keeps the chunk around it: after the maker has freed it, against the rule, and trimmed; after the
 * maker's contexts are gone; after the maker was killed. The pointer of a block that was freed imports nothing. What is
 * charged never is less than what the device holds, and all is given back when nobody holds it.
 */
#include <signal.h>
#include <sys/prctl.h>

#include "pass_fd.h"
#include "shim_test.h"
#include "steps.h"

#define CHUNK (2 * GIB)

struct message {
	CUmemPoolPtrExportData pointer[2];
};

static const CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                     .handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                     .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
static int line[2]; /* maker, this process */

/* ---- the maker --------------------------------------------------------------------------------------------------- */

/* Two small blocks in a chunk that was taken for a large one. */
static CUmemoryPool make(CUdeviceptr p[2])
{
	struct message m;
	CUmemoryPool pool;
	CUdeviceptr large;
	cuuint64_t all = UINT64_MAX;
	int fd;
	OK(cuMemPoolCreate(&pool, &props));
	OK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &all));
	OK(cuMemAllocFromPoolAsync(&large, CHUNK, pool, NULL));
	OK(cuMemFreeAsync(large, NULL));
	OK(cuStreamSynchronize(NULL));
	for (int i = 0; i < 2; i++) {
		OK(cuMemAllocFromPoolAsync(&p[i], MIB, pool, NULL));
		OK(cuMemsetD8_v2(p[i], (unsigned char)(20 + i), MIB));
	}
	OK(cuStreamSynchronize(NULL));
	CHECK(used() == CHUNK, "one chunk: %lu", (unsigned long)used());
	OK(cuMemPoolExportToShareableHandle(&fd, pool, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
	for (int i = 0; i < 2; i++)
		OK(cuMemPoolExportPointer(&m.pointer[i], p[i]));
	CHECK(used() == CHUNK, "exports cost nothing: %lu", (unsigned long)used());
	send_fd(line[0], fd);
	close(fd);
	CHECK(write(line[0], &m, sizeof m) == sizeof m, "write");
	return pool;
}

static void release(CUmemoryPool pool, CUdeviceptr p)
{
	OK(cuMemFreeAsync(p, NULL));
	OK(cuStreamSynchronize(NULL));
	OK(cuMemPoolTrimTo(pool, 0));
}

/* ---- a reset, and between the driver's answer and the library's account of it an allocation in a new context ------ */

static CUmemoryPool again_from;

static bool was_reset(void)
{
	return partage_sim_calls("cuDevicePrimaryCtxReset_v2") != 0;
}

static void reset(void)
{
	OK(cuDevicePrimaryCtxReset_v2(0));
}

/* Two blocks, where those of the old context were. */
static void allocate_anew(void)
{
	CUcontext context;
	CUdeviceptr p;
	OK(cuDevicePrimaryCtxRetain(&context, 0));
	OK(cuCtxSetCurrent(context));
	for (int i = 0; i < 2; i++)
		OK(cuMemAllocFromPoolAsync(&p, MIB, again_from, NULL));
}

static void reset_with_a_neighbour(CUmemoryPool pool)
{
	again_from = pool;
	steps.ready = was_reset;
	steps_run(reset, 0, allocate_anew);
}

/* Obeys: 0 and 1 free a block and trim, d destroys the pool, r resets the device, b too, while it is used anew. */
static void maker(void)
{
	CUdeviceptr p[2];
	char what;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	CHECK(read(line[0], &what, 1) == 1, "go");
	start(0);
	CUmemoryPool pool = make(p);
	while (read(line[0], &what, 1) == 1) {
		if (what == '0' || what == '1')
			release(pool, p[what - '0']);
		if (what == 'd')
			OK(cuMemPoolDestroy(pool));
		if (what == 'r')
			reset();
		if (what == 'b')
			reset_with_a_neighbour(pool);
		tell(line[0]);
	}
	_exit(0);
}

/* ---- this side --------------------------------------------------------------------------------------------------- */

static void ask(char what)
{
	CHECK(write(line[1], &what, 1) == 1, "the maker is gone");
	hear(line[1]);
}

static CUmemoryPool receive(struct message *m)
{
	CUmemoryPool pool;
	CHECK(write(line[1], "g", 1) == 1, "go");
	int fd = receive_fd(line[1]);
	CHECK(read(line[1], m, sizeof *m) == sizeof *m, "read");
	start(0);
	OK(cuMemPoolImportFromShareableHandle(&pool, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
	                                      0));
	close(fd);
	return pool;
}

static CUdeviceptr import(CUmemoryPool pool, struct message *m, int i)
{
	unsigned char byte = 0;
	CUdeviceptr p;
	OK(cuMemPoolImportPointer(&p, pool, &m->pointer[i]));
	OK(cuMemcpyDtoH_v2(&byte, p, 1));
	CHECK(byte == 20 + i, "the same memory: %u", byte);
	return p;
}

/* After the dead have been looked for. `exact`: no more is charged than is held. */
static void expect(uint64_t bytes, bool exact, const char *when)
{
	CUdeviceptr p;
	IS(cuMemAlloc_v2(&p, 5 * GIB), CUDA_ERROR_OUT_OF_MEMORY);
	uint64_t charged = used(); /* the driver, too, looks for the dead */
	CHECK(held(0) == bytes, "%s: held %lu, should be %lu", when, (unsigned long)held(0), (unsigned long)bytes);
	CHECK(charged >= bytes && (charged == bytes || !exact), "%s: charged %lu, held %lu", when,
	      (unsigned long)charged, (unsigned long)bytes);
}

static void give_up(CUdeviceptr p)
{
	OK(cuMemFree_v2(p));
}

/* The rule: the importer frees first. Never more is charged than is held. */
static void in_order(pid_t child)
{
	struct message m;
	CUmemoryPool pool = receive(&m);
	CUdeviceptr p = import(pool, &m, 0), again = import(pool, &m, 0);
	expect(CHUNK, true, "imported twice");
	give_up(p);
	give_up(again);
	ask('0');
	expect(CHUNK, true, "another block lives in the chunk");
	IS(cuMemPoolImportPointer(&p, pool, &m.pointer[0]), CUDA_ERROR_INVALID_VALUE);
	p = import(pool, &m, 1);
	give_up(p);
	ask('1');
	expect(0, true, "all is free");
	IS(cuMemPoolImportPointer(&p, pool, &m.pointer[1]), CUDA_ERROR_INVALID_VALUE);
	ask('d');
	OK(cuMemPoolDestroy(pool));
	end_maker(child);
	expect(0, true, "the maker is dead");
}

/* `how`: the maker frees (f), destroys its pool, too (d), resets its device (r), or is killed (k). */
static void out_of_order(pid_t child, char how)
{
	struct message m;
	CUmemoryPool pool = receive(&m);
	CUdeviceptr p = import(pool, &m, 0);
	if (how == 'k') {
		end_maker(child);
	} else if (how == 'r') {
		ask('r');
	} else {
		ask('0');
		ask('1');
		if (how == 'd')
			ask('d');
	}
	expect(CHUNK, true, "the importer keeps the chunk");
	CUdeviceptr more;
	IS(cuMemAlloc_v2(&more, 3 * GIB), CUDA_ERROR_OUT_OF_MEMORY);
	if (how != 'k') /* of a dead maker everything stays charged that the chunk's holder keeps alive */
		IS(cuMemPoolImportPointer(&more, pool, &m.pointer[1]), CUDA_ERROR_INVALID_VALUE);
	OK(cuMemPoolDestroy(pool)); /* the block outlives it */
	expect(CHUNK, true, "the block keeps it");
	give_up(p);
	expect(0, true, "nobody holds it");
	if (how != 'k')
		end_maker(child);
	expect(0, true, "the maker is dead");
}

static void reset_between(pid_t child)
{
	struct message m;
	CUmemoryPool pool = receive(&m);
	CUdeviceptr p = import(pool, &m, 0), more;
	ask('b');
	expect(CHUNK + POOL_GRANULE, false, "the importer keeps the chunk, the maker has a new one");
	IS(cuMemPoolImportPointer(&more, pool, &m.pointer[1]), CUDA_ERROR_INVALID_VALUE);
	give_up(p);
	expect(POOL_GRANULE, true, "the new one is left");
	end_maker(child);
	expect(0, true, "the maker is dead");
}

/* The importer is killed: the kernel gives its holds up. */
static void importer_killed(pid_t child)
{
	struct message m;
	int pipes[2];
	CHECK(pipe(pipes) == 0, "pipe");
	pid_t importer = fork();
	CHECK(importer >= 0, "fork");
	if (importer == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		import(receive(&m), &m, 1);
		tell(pipes[1]);
		pause();
	}
	hear(pipes[0]);
	end_maker(importer);
	start(0);
	expect(CHUNK, true, "the maker has it");
	ask('0');
	ask('1');
	expect(0, true, "all is free");
	end_maker(child);
}

int main(int argc, char **argv)
{
	const char *how = argc > 1 ? argv[1] : "order";
	if (strcmp(how, "between") == 0 && !steps_possible)
		SKIP("code cannot be run by single steps here");
	pid_t child = begin_maker(line, maker);
	if (strcmp(how, "order") == 0)
		in_order(child);
	else if (strcmp(how, "between") == 0)
		reset_between(child);
	else if (strcmp(how, "importer") == 0)
		importer_killed(child);
	else
		out_of_order(child, how[0]);
	return 0;
}
