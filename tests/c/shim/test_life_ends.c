/* The last moment of a process, wherever it comes: exit() by a signal handler before every instruction that the library
 * executes in an allocation and a free, exit() and _exit() by a thread while others are inside of hooked calls, by a
 * callback of the driver, exec by a thread, a main thread that leaves first, and a thousand threads that come and go.
 * Nobody hangs or faults, the code is the one that was given, and everything is to be had afterwards.
 */
#include <pthread.h>

#include "life.h"
#include "steps.h"

#define WATCHDOG_S 60 /* stands for "hangs" */

/* ---- exit() anywhere ---------------------------------------------------------------------------------------------------- */

#define POINTS STEPS_POINTS(60)

/* Allocation and free, and a refusal. */
static void work(void)
{
	CUdeviceptr p, q;
	CUresult given = cuMemAlloc_v2(&p, 3 * MIB), freed = cuMemFree_v2(p), refused = cuMemAlloc_v2(&q, 5 * GIB);
	CHECK(given == CUDA_SUCCESS && freed == CUDA_SUCCESS && refused == CUDA_ERROR_OUT_OF_MEMORY, "%d, %d, %d",
	      given, freed, refused);
}

static void leave(void)
{
	exit(7);
}

static unsigned stepped(unsigned last)
{
	start(0);
	work(); /* symbols are resolved, the slot is taken */
	return steps_run(work, last, leave);
}

static unsigned *counted; /* shared */

static void count_steps(void)
{
	*counted = stepped(0);
}

static void exit_anywhere(void)
{
	if (!steps_possible) {
		NOTE("exit() anywhere: no single steps on this processor");
		return;
	}
	counted = mmap(NULL, sizeof(*counted), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(counted != MAP_FAILED, "mmap");
	scene("count steps", count_steps);
	CHECK(*counted > 100, "the library executes only %u instructions", *counted);
	unsigned stride = *counted / POINTS + 1;
	for (unsigned last = 1; last <= *counted; last += stride) {
		pid_t pid = fork();
		CHECK(pid >= 0, "fork");
		if (pid == 0) {
			alarm(WATCHDOG_S);
			stepped(last);
			_exit(8);
		}
		life_wait("exit from a signal handler", pid, 7);
	}
	NOTE("exit() before every %u. of %u instructions", stride, *counted);
}

/* ---- threads -------------------------------------------------------------------------------------------------------------- */

static CUcontext shared_context;
static uint64_t rounds;

static void *busy(void *unused)
{
	CUdeviceptr p;
	size_t f, t;
	(void)unused;
	OK(cuCtxSetCurrent(shared_context));
	for (;;) {
		if (cuMemAlloc_v2(&p, 4 * MIB) == CUDA_SUCCESS)
			cuMemFree_v2(p);
		if (cuMemAllocAsync(&p, 4096, NULL) == CUDA_SUCCESS)
			cuMemFreeAsync(p, NULL);
		cuMemGetInfo_v2(&f, &t);
		__atomic_add_fetch(&rounds, 1, __ATOMIC_RELAXED);
	}
	return NULL;
}

/* Memory in hand, and three threads that are in some hooked call at any time. */
static void crowd(void)
{
	pthread_t thread;
	shared_context = start(0);
	life_take(GIB);
	for (int i = 0; i < 3; i++)
		CHECK(pthread_create(&thread, NULL, busy, NULL) == 0, "thread");
	while (__atomic_load_n(&rounds, __ATOMIC_RELAXED) < 30)
		;
}

static void *leaves_by_exit(void *unused)
{
	(void)unused;
	exit(7);
}

static void *leaves_at_once(void *unused)
{
	(void)unused;
	_exit(7);
}

static void *leaves_quickly(void *unused)
{
	(void)unused;
	quick_exit(7);
}

static void *becomes_another(void *unused)
{
	(void)unused;
	execl("/bin/sh", "sh", "-c", "exit 7", (char *)NULL);
	return NULL;
}

static void by_thread(void *(*way)(void *))
{
	pthread_t thread;
	crowd();
	CHECK(pthread_create(&thread, NULL, way, NULL) == 0, "thread");
	pthread_join(thread, NULL);
}

static void thread_exit(void)
{
	by_thread(leaves_by_exit);
}

static void thread_exit_at_once(void)
{
	by_thread(leaves_at_once);
}

static void thread_quick_exit(void)
{
	by_thread(leaves_quickly);
}

static void thread_exec(void)
{
	by_thread(becomes_another);
}

static void *goes_on(void *unused)
{
	(void)unused;
	OK(cuCtxSetCurrent(shared_context));
	for (int i = 0; i < 200; i++)
		OK(cuMemFree_v2(life_take(MIB)));
	CHECK(life_charged_by(getpid()) == GIB, "charged %lu", (unsigned long)life_charged_by(getpid()));
	exit(7);
}

static void main_thread_first(void)
{
	pthread_t thread;
	shared_context = start(0);
	life_take(GIB);
	CHECK(pthread_create(&thread, NULL, goes_on, NULL) == 0, "thread");
	pthread_exit(NULL);
}

static void CUDA_CB exits_in_callback(void *unused)
{
	(void)unused;
	exit(7);
}

static void CUDA_CB exits_at_once_in_callback(void *unused)
{
	(void)unused;
	_exit(7);
}

static void callback_exit(void)
{
	crowd();
	OK(cuLaunchHostFunc(NULL, exits_in_callback, NULL));
	pause();
}

static void callback_exit_at_once(void)
{
	crowd();
	OK(cuLaunchHostFunc(NULL, exits_at_once_in_callback, NULL));
	pause();
}

static void *short_life(void *kept)
{
	OK(cuCtxSetCurrent(shared_context));
	*(CUdeviceptr *)kept = life_take(MIB);
	return NULL;
}

/* What threads leave behind when they end belongs to the process. */
static void many_threads(void)
{
	static CUdeviceptr kept[1000];
	shared_context = start(0);
	for (int i = 0; i < 1000; i += 8) {
		pthread_t thread[8];
		for (int k = 0; k < 8; k++)
			CHECK(pthread_create(&thread[k], NULL, short_life, &kept[i + k]) == 0, "thread");
		for (int k = 0; k < 8; k++)
			CHECK(pthread_join(thread[k], NULL) == 0, "join");
	}
	CHECK(life_charged() == held(0), "charged %lu, held %lu", (unsigned long)life_charged(),
	      (unsigned long)held(0));
	for (int i = 0; i < 1000; i++)
		OK(cuMemFree_v2(kept[i]));
	CHECK(life_charged() == 0 && life_slots() == 1, "charged %lu in %u slots", (unsigned long)life_charged(),
	      life_slots());
	exit(7);
}

static void ends_with_seven(const char *what, void (*body)(void), int times)
{
	for (int i = 0; i < times; i++) {
		pid_t pid = fork();
		CHECK(pid >= 0, "fork");
		if (pid == 0) {
			alarm(WATCHDOG_S);
			body();
			_exit(8);
		}
		life_wait(what, pid, 7);
	}
	scene("afterwards", life_all_free);
}

int main(void)
{
	life_begin();
	exit_anywhere();
	scene("afterwards", life_all_free);
	ends_with_seven("exit() by a thread", thread_exit, 20);
	ends_with_seven("_exit() by a thread", thread_exit_at_once, 20);
	ends_with_seven("quick_exit() by a thread", thread_quick_exit, 5);
	ends_with_seven("exec by a thread", thread_exec, 20);
	ends_with_seven("the main thread leaves first", main_thread_first, 5);
	ends_with_seven("exit() in a callback", callback_exit, 10);
	ends_with_seven("_exit() in a callback", callback_exit_at_once, 10);
	ends_with_seven("a thousand threads", many_threads, 1);
	CHECK(peak() <= LIFE_LIMIT, "%lu bytes were held", (unsigned long)peak());
	return 0;
}
