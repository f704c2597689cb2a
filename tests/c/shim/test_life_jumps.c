/* A signal handler that jumps out of a driver call, as runtimes do to cancel work: the call never comes back to the
 * library. No lock of ours is held there, so the same thread and others go on; what the call had reserved, or meant to
 * free, stays charged: never less than the driver holds. A handler that allocates itself and returns changes nothing.
 */
#include <pthread.h>
#include <setjmp.h>
#include <sys/wait.h>

#include "fake_driver.h"

#define WATCHDOG_S 60 /* stands for "hangs" */

static sigjmp_buf back;

static void jumps(void)
{
	siglongjmp(back, 1);
}

static void allocates(void)
{
	CUdeviceptr p;
	CHECK(hook_cuMemAlloc_v2(&p, 3 * MIB) == CUDA_SUCCESS && hook_cuMemFree_v2(p) == CUDA_SUCCESS, "in a handler");
}

static CUdeviceptr block;
static CUmemGenericAllocationHandle handle;

static CUresult make_handle(CUmemGenericAllocationHandle *out)
{
	CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED};
	prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	return hook_cuMemCreate(out, 4 * MIB, &prop, 0);
}

static void alloc_plain(void)
{
	hook_cuMemAlloc_v2(&(CUdeviceptr){0}, 5 * MIB);
}

static void alloc_on_stream(void)
{
	hook_cuMemAllocAsync(&(CUdeviceptr){0}, 5 * MIB, (CUstream)16);
}

static void create(void)
{
	make_handle(&(CUmemGenericAllocationHandle){0});
}

static void retain(void)
{
	CUcontext context;
	hook_cuDevicePrimaryCtxRetain(&context, 0);
}

static void free_plain(void)
{
	hook_cuMemFree_v2(block);
}

static void release(void)
{
	hook_cuMemRelease(handle);
}

static void *everything(void *unused)
{
	CUdeviceptr p;
	CUmemGenericAllocationHandle h;
	(void)unused;
	for (int i = 0; i < 20; i++) {
		CHECK(hook_cuMemAlloc_v2(&p, 5 * MIB) == CUDA_SUCCESS, "alloc");
		CHECK(hook_cuMemFree_v2(p) == CUDA_SUCCESS, "free");
		CHECK(hook_cuMemAllocAsync(&p, 5 * MIB, (CUstream)16) == CUDA_SUCCESS, "alloc on a stream");
		CHECK(hook_cuMemFreeAsync(p, (CUstream)16) == CUDA_SUCCESS, "free on a stream");
		CHECK(make_handle(&h) == CUDA_SUCCESS && hook_cuMemRelease(h) == CUDA_SUCCESS, "handle");
	}
	return NULL;
}

static void interrupted(const char *call, void (*body)(void), void (*by)(void))
{
	pthread_t thread;
	fake_reset(1024 * MIB);
	CHECK(hook_cuMemAlloc_v2(&block, 5 * MIB) == CUDA_SUCCESS && make_handle(&handle) == CUDA_SUCCESS, "begin");
	alarm(WATCHDOG_S);
	fake_interrupt(call, by);
	if (sigsetjmp(back, 1) == 0)
		body();
	everything(NULL);
	CHECK(pthread_create(&thread, NULL, everything, NULL) == 0, "thread");
	pthread_join(thread, NULL);
	alarm(0);
	fake_sync();
	CHECK(fake_charged() >= fake_physical(), "%s: charged %lu, held %lu", call, (unsigned long)fake_charged(),
	      (unsigned long)fake_physical());
	CHECK(fake_worst() == 0 && fake_over_refunds() == 0, "%s: %lu bytes too few, %lu given back too much", call,
	      (unsigned long)fake_worst(), (unsigned long)fake_over_refunds());
}

/* Fake and tables begin anew each time. */
static void in_child(const char *call, void (*body)(void), void (*by)(void))
{
	int status;
	pid_t pid = fork();
	CHECK(pid >= 0, "fork");
	if (pid == 0) {
		interrupted(call, body, by);
		_exit(0);
	}
	CHECK(waitpid(pid, &status, 0) == pid && status == 0, "%s: status 0x%x", call, status);
}

int main(void)
{
	static const struct {
		const char *call;
		void (*body)(void);
	} parts[] = {{"cuMemAlloc_v2", alloc_plain},
	             {"cuMemAllocAsync", alloc_on_stream},
	             {"cuMemCreate", create},
	             {"cuDevicePrimaryCtxRetain", retain},
	             {"cuMemFree_v2", free_plain},
	             {"cuMemRelease", release},
	             {"cuMemPoolGetAttribute", alloc_on_stream}};
	for (size_t i = 0; i < sizeof(parts) / sizeof(*parts); i++) {
		in_child(parts[i].call, parts[i].body, allocates);
		in_child(parts[i].call, parts[i].body, jumps);
	}
	return 0;
}
