/* C031: libraries that use the driver in their constructors, loaded from four threads in four processes at once, while other
 * threads allocate and look names up: everybody gets through, and the memory is charged.
 *
 * constructor LIBRARY: each thread loads a copy of its own, so that each has a constructor to run. */
#include "entry_test.h"

#include <cuda.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/wait.h>

enum { PROCESSES = 4, LOADERS = 4, ALLOCATORS = 2 };

static char copies[LOADERS][4200];
static atomic_bool stop;
static pthread_barrier_t start;
static void *driver;

static void copy_library(const char *path, int index)
{
	struct stat status;
	snprintf(copies[index], sizeof copies[index], "%.4000s/late%d.so", getenv("TEST_SCRATCH"), index);
	int from = open(path, O_RDONLY | O_CLOEXEC);
	int to = open(copies[index], O_WRONLY | O_CREAT | O_CLOEXEC, 0755);
	CHECK(from >= 0 && to >= 0 && fstat(from, &status) == 0, "cannot copy %s", path);
	for (off_t left = status.st_size; left > 0;) {
		ssize_t done = sendfile(to, from, NULL, (size_t)left);
		CHECK(done > 0, "copying %s stops", path);
		left -= done;
	}
	close(from);
	close(to);
}

static void *load(void *copy)
{
	pthread_barrier_wait(&start);
	void *library = dlopen(copy, RTLD_NOW | RTLD_LOCAL);
	CHECK(library, "%s", dlerror());
	const int *state = dlsym(library, "late_library_state");
	CHECK(state && *state == 1, "the constructor of %s failed at step %d", (char *)copy, state ? *state : 0);
	return NULL;
}

static void *allocate(void *context)
{
	__typeof__(&cuMemAlloc_v2) alloc = (__typeof__(&cuMemAlloc_v2))dlsym(driver, "cuMemAlloc_v2");
	__typeof__(&cuMemFree_v2) release = (__typeof__(&cuMemFree_v2))dlsym(driver, "cuMemFree_v2");
	__typeof__(&cuCtxSetCurrent) set_current = (__typeof__(&cuCtxSetCurrent))dlsym(driver, "cuCtxSetCurrent");
	CHECK(set_current(context) == CUDA_SUCCESS, "no current context");
	pthread_barrier_wait(&start);
	while (!stop) {
		CUdeviceptr pointer;
		CUresult result = alloc(&pointer, 1 << 20);
		CHECK(result == CUDA_SUCCESS, "allocating beside a constructor: %d", result);
		result = release(pointer);
		CHECK(result == CUDA_SUCCESS, "freeing beside a constructor: %d", result);
		CHECK(is_hook(dlsym(driver, "cuMemAlloc_v2")), "a look-up beside a constructor missed the hook");
	}
	return NULL;
}

static CUcontext open_driver(void)
{
	CUcontext context;
	driver = dlopen("libcuda.so.1", RTLD_NOW);
	CHECK(driver, "%s", dlerror());
	__typeof__(&cuInit) init = (__typeof__(&cuInit))dlsym(driver, "cuInit");
	__typeof__(&cuDevicePrimaryCtxRetain) retain =
	        (__typeof__(&cuDevicePrimaryCtxRetain))dlsym(driver, "cuDevicePrimaryCtxRetain");
	CUresult result = init(0);
	CHECK(result == CUDA_SUCCESS, "cuInit: %d", result);
	result = retain(&context, 0);
	CHECK(result == CUDA_SUCCESS, "cuDevicePrimaryCtxRetain: %d", result);
	return context;
}

/* What the constructors keep, 4 MiB each, is in the books of the share, where there is one. */
static void check_charged(CUcontext context)
{
	__typeof__(&cuMemGetInfo_v2) get_info = (__typeof__(&cuMemGetInfo_v2))dlsym(driver, "cuMemGetInfo_v2");
	__typeof__(&cuCtxSetCurrent) set_current = (__typeof__(&cuCtxSetCurrent))dlsym(driver, "cuCtxSetCurrent");
	size_t left, total;
	CHECK(set_current(context) == CUDA_SUCCESS && get_info(&left, &total) == CUDA_SUCCESS, "memory information");
	CHECK(total - left >= (size_t)LOADERS << 22, "%d constructors keep 4 MiB each, %zu bytes are in use", LOADERS,
	      total - left);
	CHECK(!getenv("CUDA_DEVICE_MEMORY_LIMIT") || total == (size_t)8 << 30, "the total of 8 GiB is %zu", total);
}

static void run_process(void)
{
	pthread_t loaders[LOADERS], allocators[ALLOCATORS];
	CUcontext context = open_driver();
	pthread_barrier_init(&start, NULL, LOADERS + ALLOCATORS);
	for (int i = 0; i < ALLOCATORS; i++)
		pthread_create(&allocators[i], NULL, allocate, context);
	for (int i = 0; i < LOADERS; i++)
		pthread_create(&loaders[i], NULL, load, copies[i]);
	for (int i = 0; i < LOADERS; i++)
		pthread_join(loaders[i], NULL);
	stop = true;
	for (int i = 0; i < ALLOCATORS; i++)
		pthread_join(allocators[i], NULL);
	check_charged(context);
}

int main(int argc, char **argv)
{
	CHECK(argc == 2, "usage: constructor LIBRARY");
	for (int i = 0; i < LOADERS; i++)
		copy_library(argv[1], i);
	for (int i = 0; i < PROCESSES; i++) {
		if (fork() == 0) {
			alarm(60); /* a hang must not outlive the test */
			run_process();
			_exit(0);
		}
	}
	for (int i = 0; i < PROCESSES; i++) {
		int status = 0;
		wait(&status);
		CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "a process ended with status %x%s",
		      (unsigned)status, WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM ? " (it hung)" : "");
	}
	return 0;
}
