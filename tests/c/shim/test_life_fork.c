/* Forks of a process with live memory and contexts, and daemons. A child can use nothing of its parent's driver, whatever
 * it tries, by fork and by a raw clone that runs no handlers; the parent's charge is counted once all the while, also
 * when it dies before its children. A daemon (two forks, a session of its own, every descriptor closed by a loop or by
 * close_range) that comes to the driver afterwards is charged like any other; one that closes all descriptors while it
 * holds memory keeps its slot, and its memory counts.
 */
#include <pthread.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include "life.h"

static int report = -1; /* where a daemon writes to, kept by itself */

static void say(uint64_t number)
{
	CHECK(write(report, &number, sizeof(number)) == sizeof(number), "report");
}

static uint64_t hear(int from)
{
	uint64_t number;
	CHECK(read(from, &number, sizeof(number)) == sizeof(number), "no report");
	return number;
}

/* ---- children of a process that uses the driver -------------------------------------------------------------------- */

/* Everything fails and nothing faults; no number of the parent's changes. */
static void try_everything(CUdeviceptr of_parent, CUcontext context)
{
	CUdeviceptr p = 0;
	CUstream stream;
	size_t f, t;
	char byte;
	CHECK(cuMemAlloc_v2(&p, MIB) != CUDA_SUCCESS, "memory in the parent's context");
	CHECK(cuMemAllocAsync(&p, MIB, NULL) != CUDA_SUCCESS, "memory of the parent's pool");
	CHECK(cuMemFree_v2(of_parent) != CUDA_SUCCESS, "the parent's block is freed");
	CHECK(cuMemFreeAsync(of_parent, NULL) != CUDA_SUCCESS, "the parent's block is freed on a stream");
	CHECK(cuMemcpyDtoH_v2(&byte, of_parent, 1) != CUDA_SUCCESS, "the parent's block is read");
	CHECK(cuStreamCreate(&stream, 0) != CUDA_SUCCESS, "a stream");
	CHECK(cuMemGetInfo_v2(&f, &t) != CUDA_SUCCESS, "numbers of the parent's context");
	CHECK(cuCtxSetCurrent(context) != CUDA_SUCCESS, "the parent's context is current");
	CHECK(cuCtxDestroy_v2(context) != CUDA_SUCCESS, "the parent's context is destroyed");
	CHECK(cuDevicePrimaryCtxReset_v2(0) != CUDA_SUCCESS, "the parent's context is reset");
	CHECK(cuInit(0) == CUDA_ERROR_NOT_INITIALIZED, "the driver works in a forked child");
}

static pid_t raw_clone(void)
{
	return (pid_t)syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL);
}

static void child_of(pid_t (*way)(void), CUdeviceptr of_parent, CUcontext context)
{
	pid_t pid = way();
	if (pid == 0) {
		alarm(60);
		try_everything(of_parent, context);
		_exit(0);
	}
	life_wait("a child", pid, 0);
	CHECK(life_charged() == GIB && life_charged_by(getpid()) == GIB, "charged: all %lu, the parent %lu",
	      (unsigned long)life_charged(), (unsigned long)life_charged_by(getpid()));
	CHECK(used() == GIB && held(0) == GIB, "used %lu, on the card %lu", (unsigned long)used(),
	      (unsigned long)held(0));
}

static void children(void)
{
	CUcontext context = start(0);
	CUdeviceptr kept = life_take(GIB);
	for (int i = 0; i < 5; i++) {
		child_of(fork, kept, context);
		child_of(raw_clone, kept, context);
	}
	unsigned char sample = 0;
	OK(cuMemsetD8_v2(kept, 0x5a, 16));
	OK(cuMemcpyDtoH_v2(&sample, kept, 1));
	CHECK(sample == 0x5a, "the parent's memory reads %x", sample);
	OK(cuMemFree_v2(kept));
	CHECK(used() == 0 && held(0) == 0, "used %lu, on the card %lu", (unsigned long)used(), (unsigned long)held(0));
}

/* The parent dies, its children live on with copies of all it had: its charge is not theirs to keep. */
static void orphans_by(pid_t (*way)(void), void (*then)(void))
{
	int to_us[2], to_them[2];
	CHECK(pipe(to_us) == 0 && pipe(to_them) == 0, "pipe");
	report = to_us[1];
	pid_t parent = fork();
	CHECK(parent >= 0, "fork");
	if (parent == 0) {
		close(to_us[0]);
		start(0);
		life_take(3 * GIB);
		for (int i = 0; i < 4; i++)
			if (way() == 0) {
				char byte;
				close(to_them[1]);
				say(1);
				_exit(read(to_them[0], &byte, 1) != 0);
			}
		say(1);
		pause();
	}
	for (int i = 0; i < 5; i++)
		hear(to_us[0]);
	kill(parent, SIGKILL);
	CHECK(waitpid(parent, NULL, 0) == parent, "wait");
	scene("after the parent", then);
	close(to_us[1]);
	close(to_them[0]);
	close(to_them[1]);
	while (read(to_us[0], &(char){0}, 1) > 0)
		;
}

static void orphans(void)
{
	orphans_by(fork, life_all_free);
}

static void all_to_be_had(void)
{
	start(0);
	life_take(LIFE_LIMIT);
	CHECK(life_charged() == LIFE_LIMIT && life_slots() == 1, "%lu charged in %u slots",
	      (unsigned long)life_charged(), life_slots());
}

/* Where no handler ran the driver's own descriptor is in the child, and with it what is on the card: the ledger only. */
static void raw_orphans(void)
{
	orphans_by(raw_clone, all_to_be_had);
}

/* Thousands of forks beside threads that allocate: the child never hangs in what it interrupted. */
static bool stop;

static void *busy(void *context)
{
	CUdeviceptr p;
	OK(cuCtxSetCurrent(context));
	while (!__atomic_load_n(&stop, __ATOMIC_RELAXED)) {
		OK(cuMemAlloc_v2(&p, MIB));
		OK(cuMemFree_v2(p));
		OK(cuMemAllocAsync(&p, MIB, NULL));
		OK(cuMemFreeAsync(p, NULL));
	}
	return NULL;
}

static void interrupted(void)
{
	pthread_t thread[2];
	CUcontext context = start(0);
	CUdeviceptr kept = life_take(GIB);
	for (int i = 0; i < 2; i++)
		CHECK(pthread_create(&thread[i], NULL, busy, context) == 0, "thread");
	for (int i = 0; i < 200; i++) {
		pid_t pid = fork();
		if (pid == 0) {
			CUdeviceptr p;
			alarm(60);
			CHECK(cuMemAlloc_v2(&p, MIB) != CUDA_SUCCESS, "memory");
			CHECK(cuMemFree_v2(kept) != CUDA_SUCCESS, "free");
			_exit(0);
		}
		life_wait("a child of busy threads", pid, 0);
	}
	__atomic_store_n(&stop, true, __ATOMIC_RELAXED);
	for (int i = 0; i < 2; i++)
		pthread_join(thread[i], NULL);
	CHECK(life_charged_by(getpid()) >= GIB, "charged %lu", (unsigned long)life_charged_by(getpid()));
}

/* ---- daemons -------------------------------------------------------------------------------------------------------------- */

enum closing { BY_LOOP, BY_RANGE };

/* All but the one that it talks through. */
static void close_all(enum closing how)
{
	struct rlimit limit;
	CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0, "getrlimit");
	int kept = dup2(report, 3);
	CHECK(kept == 3, "dup2");
	report = kept;
	close(0);
	close(1);
	if (how == BY_LOOP)
		for (int fd = 4; fd < (int)(limit.rlim_cur < 65536 ? limit.rlim_cur : 65536); fd++)
			close(fd);
	else
		syscall(SYS_close_range, 4, ~0U, 0);
}

static void daemon_of(enum closing how, void (*body)(enum closing))
{
	int to_us[2];
	CHECK(pipe(to_us) == 0, "pipe");
	report = to_us[1];
	CHECK(prctl(PR_SET_CHILD_SUBREAPER, 1) == 0, "the daemon would be somebody else's to wait for");
	pid_t pid = fork();
	CHECK(pid >= 0, "fork");
	if (pid == 0) {
		CHECK(setsid() > 0, "setsid");
		pid = fork();
		if (pid == 0) {
			CHECK(chdir("/") == 0, "chdir");
			body(how);
			say((uint64_t)getpid());
			pause();
		}
		_exit(pid < 0);
	}
	life_wait("the first fork", pid, 0);
	close(to_us[1]);
	pid_t other = (pid_t)hear(to_us[0]);
	close(to_us[0]);
	CHECK(life_charged_by(other) == GIB, "the daemon is charged %lu", (unsigned long)life_charged_by(other));
	/* Its slot must last: whoever comes looks for the dead before it is refused. */
	start(0);
	IS(cuMemAlloc_v2(&(CUdeviceptr){0}, 3 * GIB + 1), CUDA_ERROR_OUT_OF_MEMORY);
	OK(cuMemFree_v2(life_take(3 * GIB)));
	CHECK(life_charged_by(other) == GIB, "the daemon is charged %lu", (unsigned long)life_charged_by(other));
	kill(other, SIGKILL);
	CHECK(waitpid(other, NULL, 0) == other, "wait for the daemon");
	OK(cuMemFree_v2(life_take(LIFE_LIMIT)));
}

static void comes_late(enum closing how)
{
	close_all(how);
	start(0);
	life_take(GIB);
}

static void closes_while_it_holds(enum closing how)
{
	start(0);
	life_take(512 * MIB);
	IS(cuMemAlloc_v2(&(CUdeviceptr){0}, LIFE_LIMIT), CUDA_ERROR_OUT_OF_MEMORY);
	close_all(how);
	OK(cuMemFree_v2(life_take(256 * MIB)));
	IS(cuMemAlloc_v2(&(CUdeviceptr){0}, LIFE_LIMIT), CUDA_ERROR_OUT_OF_MEMORY);
	life_take(512 * MIB);
}

static void late_by_loop(void)
{
	daemon_of(BY_LOOP, comes_late);
}

static void late_by_range(void)
{
	daemon_of(BY_RANGE, comes_late);
}

static void holding_by_loop(void)
{
	daemon_of(BY_LOOP, closes_while_it_holds);
}

static void holding_by_range(void)
{
	daemon_of(BY_RANGE, closes_while_it_holds);
}

int main(void)
{
	life_begin();
	scene("children", children);
	scene("orphans", orphans);
	scene("forks beside busy threads", interrupted);
	scene("a daemon that closed all in a loop", late_by_loop);
	scene("a daemon that closed all at once", late_by_range);
	scene("a daemon that closes all, and holds memory", holding_by_loop);
	scene("a daemon that closes all at once, and holds memory", holding_by_range);
	scene("afterwards", life_all_free);
	CHECK(peak() <= LIFE_LIMIT, "%lu bytes were held", (unsigned long)peak());
	scene("orphans of a raw clone", raw_orphans);
	scene("after them", life_all_free);
	return 0;
}
