/* K09: a tenant and its own ledger. The file is the tenant's to write, so what it does there may harm its own processes and
 * nobody else: whatever bytes it scribbles, its programs end without a fault or a hang; a program beside it with another
 * ledger notices nothing. And what is not promised is written down: a tenant that sets its own count back gets more than
 * its share (SECURITY.md: detected from outside), and one that cuts its own file off may die of it.
 */
#include <signal.h>

#include "grant.h"

static unsigned round;

static int ledger_fd(const char *name)
{
	int fd = open(grant_path(name, "ledger"), O_RDWR | O_CLOEXEC);
	CHECK(fd >= 0, "the ledger of %s cannot be opened", name);
	return fd;
}

static void scribble_once(int fd, unsigned *seed)
{
	unsigned char bytes[64];
	for (unsigned i = 0; i < sizeof(bytes); i++)
		bytes[i] = rand_r(seed) % 3 ? 0xff : (unsigned char)rand_r(seed);
	/* Half of it into the header and the devices' lines. */
	off_t at = rand_r(seed) % 2 ? rand_r(seed) % 8192
	                            : rand_r(seed) % (off_t)(sizeof(struct ptg_ledger) - sizeof(bytes));
	CHECK(pwrite(fd, bytes, 1 + (size_t)rand_r(seed) % sizeof(bytes), at) > 0, "scribbling");
}

static void scribble(void)
{
	CUdeviceptr held_blocks[8], p;
	size_t free_bytes, total;
	unsigned seed = round;
	alarm(60); /* a hang is a failure, not a wait */
	start(0);
	for (unsigned i = 0; i < 8; i++)
		OK(cuMemAlloc_v2(&held_blocks[i], (i + 1) * MIB));
	int fd = ledger_fd("scribbled");
	for (unsigned i = 0; i < 150; i++) {
		scribble_once(fd, &seed);
		CUresult error = cuMemAlloc_v2(&p, 1 + (size_t)rand_r(&seed) % (8 * MIB));
		CHECK(error == CUDA_SUCCESS || error == CUDA_ERROR_OUT_OF_MEMORY, "error %d", (int)error);
		if (error == CUDA_SUCCESS)
			OK(cuMemFree_v2(p));
		OK(cuMemGetInfo_v2(&free_bytes, &total));
		CHECK(free_bytes <= total, "free %zu of %zu", free_bytes, total);
	}
	for (unsigned i = 0; i < 8; i++)
		OK(cuMemFree_v2(held_blocks[i]));
	exit(0); /* with the library's own end */
}

static void next_process(void)
{
	CUdeviceptr p;
	alarm(60);
	start(0);
	CUresult error = cuMemAlloc_v2(&p, MIB);
	CHECK(error == CUDA_SUCCESS || error == CUDA_ERROR_OUT_OF_MEMORY, "after scribbling: error %d", (int)error);
}

/* Another tenant of the same card; its share is in a directory of its own. */
static void neighbour(void)
{
	CUdeviceptr p;
	start(0);
	OK(cuMemAlloc_v2(&p, GIB));
	CHECK(used() == GIB, "the neighbour has used %lu", (unsigned long)used());
	IS(cuMemAlloc_v2(&(CUdeviceptr){0}, 1), CUDA_ERROR_OUT_OF_MEMORY);
}

static void sets_its_count_back(void)
{
	CUdeviceptr p;
	start(0);
	OK(cuMemAlloc_v2(&p, GIB));
	IS(cuMemAlloc_v2(&p, MIB), CUDA_ERROR_OUT_OF_MEMORY);
	uint64_t none = 0;
	int fd = ledger_fd("forged");
	CHECK(pwrite(fd, &none, sizeof(none), offsetof(struct ptg_ledger, device)) == sizeof(none), "forging");
	OK(cuMemAlloc_v2(&p, MIB)); /* bypass, as documented */
	CHECK(held(0) > GIB, "held %lu: no bypass", (unsigned long)held(0));
}

static void cuts_it_off(void)
{
	CUdeviceptr p;
	int status;
	pid_t pid = fork();
	if (pid == 0) {
		alarm(60);
		start(0);
		OK(cuMemAlloc_v2(&p, MIB));
		CHECK(truncate(grant_path("cut", "ledger"), 0) == 0, "truncate");
		cuMemAlloc_v2(&p, MIB);
		_exit(0);
	}
	CHECK(waitpid(pid, &status, 0) == pid, "wait");
	CHECK((WIFEXITED(status) && WEXITSTATUS(status) == 0) || (WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS),
	      "status 0x%x: neither alive nor dead of SIGBUS", status);
}

int main(void)
{
	const struct granted first[] = {{0, GIB}};
	unsetenv("CUDA_DEVICE_MEMORY_LIMIT");
	scene("make the machine", touch);
	grant("scribbled", first, 1);
	for (round = 1; round <= 60; round++) {
		CHECK(truncate(grant_path("scribbled", "ledger"), 0) == 0, "an empty ledger");
		scene("scribble", scribble);
		scene("the next process", next_process);
	}
	grant("neighbour", first, 1);
	scene("a neighbour", neighbour);
	grant("cut", first, 1);
	cuts_it_off();
	grant("forged", first, 1);
	scene("a count set back", sets_its_count_back);
	return 0;
}
