/* K05, C032: ways to end. Workers that are told to terminate in the middle of a call end by that signal; exit() from any
 * thread, exit handlers and destructors that still call the driver, and a main thread that leaves first end with the code
 * that was given; nobody faults or hangs, nothing is granted past the limit on the way out, and every slot is given back.
 */
#include <pthread.h>

#include "grant.h"

#define WORKERS 50
#define AT_ONCE 10

static uint64_t *progress; /* shared, one each */

static void work_for_ever(uint64_t *done)
{
	CUdeviceptr p, q;
	size_t f, t;
	for (;;) {
		CUresult error = cuMemAlloc_v2(&p, 4 * MIB);
		if (error == CUDA_SUCCESS)
			cuMemFree_v2(p);
		if (cuMemAllocAsync(&q, 4096, NULL) == CUDA_SUCCESS)
			cuMemFreeAsync(q, NULL);
		cuMemGetInfo_v2(&f, &t);
		__atomic_add_fetch(done, 1, __ATOMIC_RELAXED);
	}
}

static void batch(unsigned first)
{
	pid_t pid[AT_ONCE];
	for (unsigned i = 0; i < AT_ONCE; i++) {
		pid[i] = fork();
		CHECK(pid[i] >= 0, "fork");
		if (pid[i] == 0) {
			start(0);
			work_for_ever(&progress[first + i]);
		}
	}
	for (unsigned i = 0; i < AT_ONCE; i++) {
		int status;
		while (__atomic_load_n(&progress[first + i], __ATOMIC_RELAXED) < (first + i) % 13)
			CHECK(waitpid(pid[i], NULL, WNOHANG) == 0, "worker %u ended by itself", first + i);
		kill(pid[i], SIGTERM);
		CHECK(waitpid(pid[i], &status, 0) == pid[i], "wait");
		CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM, "worker %u ended with status 0x%x", first + i,
		      status);
	}
}

/* ---- threads ------------------------------------------------------------------------------------------------------ */

static CUcontext shared_context;

static void *busy(void *done)
{
	OK(cuCtxSetCurrent(shared_context));
	work_for_ever(done);
	return NULL;
}

static void *leaves(void *done)
{
	while (__atomic_load_n((uint64_t *)done, __ATOMIC_RELAXED) < 20)
		;
	exit(7);
}

static void exit_from_a_thread(void)
{
	static uint64_t done;
	pthread_t thread;
	shared_context = start(0);
	for (int i = 0; i < 3; i++)
		pthread_create(&thread, NULL, busy, &done);
	pthread_create(&thread, NULL, leaves, &done);
	pthread_join(thread, NULL);
}

static void *last_one(void *unused)
{
	CUdeviceptr p;
	(void)unused;
	OK(cuCtxSetCurrent(shared_context));
	for (int i = 0; i < 100; i++) {
		OK(cuMemAlloc_v2(&p, MIB));
		OK(cuMemFree_v2(p));
	}
	exit(7);
}

static void main_thread_first(void)
{
	pthread_t thread;
	shared_context = start(0);
	pthread_create(&thread, NULL, last_one, NULL);
	pthread_exit(NULL);
}

/* ---- handlers ----------------------------------------------------------------------------------------------------- */

static CUdeviceptr left_over;
static bool late; /* this process wants its handlers to look */

static void still_limited(void)
{
	CUdeviceptr p = 0;
	size_t f = 0, t = 0;
	if (!late)
		return;
	CUresult error = cuMemAlloc_v2(&p, 5 * GIB);
	if (error == CUDA_SUCCESS || p != 0)
		_exit(99); /* granted past the limit */
	if (cuMemGetInfo_v2(&f, &t) == CUDA_SUCCESS && f > t)
		_exit(98);
	if (cuMemAlloc_v2(&p, 4096) == CUDA_SUCCESS && cuMemFree_v2(p) != CUDA_SUCCESS)
		_exit(97);
}

static void frees_what_is_left(void)
{
	still_limited();
	if (left_over != 0 && cuMemFree_v2(left_over) != CUDA_SUCCESS)
		_exit(96);
	left_over = 0;
}

/* After all handlers, and after the library's own if it has any. */
__attribute__((destructor)) static void at_the_very_end(void)
{
	still_limited();
}

static void handlers(void)
{
	late = true;
	atexit(frees_what_is_left); /* registered before the library has done anything */
	start(0);
	OK(cuMemAlloc_v2(&left_over, GIB));
	atexit(still_limited);
	exit(7);
}

static void without_release(void)
{
	late = true;
	start(0);
	OK(cuMemAlloc_v2(&left_over, GIB));
	exit(7);
}

static void released_first(void)
{
	late = true;
	start(0);
	OK(cuMemAlloc_v2(&left_over, GIB));
	OK(cuDevicePrimaryCtxReset_v2(0));
	exit(7);
}

static void ends_with(const char *what, void (*body)(void), int expected)
{
	for (int i = 0; i < 10; i++) {
		int status;
		pid_t pid = fork();
		CHECK(pid >= 0, "fork");
		if (pid == 0) {
			alarm(60);
			body();
			_exit(95);
		}
		CHECK(waitpid(pid, &status, 0) == pid, "wait");
		CHECK(WIFEXITED(status) && WEXITSTATUS(status) == expected, "%s: status 0x%x", what, status);
	}
}

static void nothing_is_left(void)
{
	CUdeviceptr p;
	start(0);
	OK(cuMemAlloc_v2(&p, 4 * GIB));
	CHECK(held(0) == 4 * GIB, "somebody else holds %lu", (unsigned long)held(0));
	struct ptg_ledger *ledger = share_map(grant_path("share", "ledger"), sizeof(*ledger));
	unsigned slots = 0;
	for (int i = 0; i < PTG_SLOTS; i++)
		slots += ledger->slot[i].state == PTG_SLOT_USED;
	CHECK(slots == 1, "%u slots are taken", slots);
}

int main(void)
{
	unsetenv("CUDA_DEVICE_MEMORY_LIMIT");
	progress = mmap(NULL, WORKERS * sizeof(*progress), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(progress != MAP_FAILED, "mmap");
	scene("make the machine", touch);
	grant("share", &(struct granted){0, 4 * GIB}, 1);
	for (unsigned first = 0; first < WORKERS; first += AT_ONCE)
		batch(first);
	ends_with("exit() from a thread", exit_from_a_thread, 7);
	ends_with("the main thread leaves first", main_thread_first, 7);
	ends_with("exit handlers", handlers, 7);
	ends_with("nothing released", without_release, 7);
	ends_with("context reset before", released_first, 7);
	scene("afterwards", nothing_is_left);
	CHECK(peak() <= 4 * GIB, "%lu bytes were held", (unsigned long)peak());
	return 0;
}
