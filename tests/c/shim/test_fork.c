/* D23, K03, C020: a child that was forked after its parent allocated begins with nothing of its own: what the parent holds
 * stays charged once, the child's frees of the parent's addresses are the driver's business, and its end gives back its
 * own.
 */
#include "shim_test.h"

static void child(CUdeviceptr of_parent)
{
	CUdeviceptr p;
	CUcontext context;
	CUresult error = cuMemFree_v2(of_parent);
	CHECK(error != CUDA_SUCCESS, "the parent's block was freed by the child");
	error = cuInit(0);
	if (error != CUDA_SUCCESS)
		_exit(0); /* a driver that a forked child cannot use: nothing more to see */
	OK(cuDevicePrimaryCtxRetain(&context, 0));
	OK(cuCtxSetCurrent(context));
	CHECK(used() == 100 * MIB, "the child sees %lu", (unsigned long)used());
	OK(cuMemAlloc_v2(&p, GIB));
	CHECK(used() == GIB + 100 * MIB, "the child sees %lu", (unsigned long)used());
	CHECK(cuMemFree_v2(of_parent) != CUDA_SUCCESS || of_parent == p, "the parent's block was freed by the child");
	_exit(0);
}

int main(void)
{
	CUdeviceptr p;
	start(0);
	OK(cuMemAlloc_v2(&p, 100 * MIB));
	for (int i = 0; i < 10; i++) {
		int status;
		pid_t pid = fork();
		if (pid == 0)
			child(p);
		CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0, "child: 0x%x",
		      status);
		CUdeviceptr rest; /* all but the parent's can be had: a dead child is reclaimed before a refusal */
		OK(cuMemAlloc_v2(&rest, 4 * GIB - 100 * MIB));
		OK(cuMemFree_v2(rest));
		CHECK(used() == 100 * MIB, "child %d is gone: charged %lu", i, (unsigned long)used());
	}
	OK(cuMemFree_v2(p));
	CHECK(used() == 0, "charged %lu", (unsigned long)used());
	return 0;
}
