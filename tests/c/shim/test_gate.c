/* The entries of the launch calls: every argument arrives as it was given, in registers and on the stack, whether the
 * gate is open, the driver's function is not looked up yet, the gate is shut, or the thread has been given launches; what
 * the driver answers is what the program gets; a driver that lacks a call says so. The entries are the library's own, the driver and the gate are this file's. */
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "check.h"
#include "gate.h"
#include "hooks.h"

#define KERNEL    ((CUfunction)0x1111)
#define STREAM    ((CUstream)0x2222)
#define ARGUMENTS ((void **)0x3333)
#define EXTRA     ((void **)0x4444)

static uint32_t word;
const uint32_t *vgpu_gate_at = &word;
void *vgpu_real[VGPU_REALS];

static bool lacking, aligned;
static CUresult answered;
static unsigned looked_up, called, hooked, entered, left;
static CUstream stream_seen;

static struct vgpu_gate_thread thread;
__thread struct vgpu_gate_thread *vgpu_gate_self __attribute__((tls_model("initial-exec"))) = &thread;
uint32_t vgpu_gate_epoch;

void vgpu_gate_enter(struct vgpu_launch *launch)
{
	launch->begun_ns = 77;
	entered++;
	stream_seen = launch->stream;
	thread.entered = 0;
}

void vgpu_gate_leave(struct vgpu_launch *launch, CUresult result)
{
	CHECK(launch->begun_ns == 77, "not the launch that entered");
	answered = result;
	left++;
}

void vgpu_gate_enter_list(struct vgpu_launch *launch, const CUDA_LAUNCH_PARAMS *list, unsigned count)
{
	CHECK(list == NULL && count == 0, "another list");
	vgpu_gate_enter(launch);
}

void vgpu_gate_leave_list(struct vgpu_launch *launch, unsigned count, CUresult result)
{
	CHECK(count == 0, "another list");
	vgpu_gate_leave(launch, result);
}

/* ---- the driver ------------------------------------------------------------------------------------------------------ */

static CUresult kernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                       unsigned shared, CUstream stream, void **arguments, void **extra)
{
	CHECK(f == KERNEL && gx == 1 && gy == 2 && gz == 3 && bx == 4 && by == 5 && bz == 6 && shared == 7 &&
	              stream == STREAM && arguments == ARGUMENTS && extra == EXTRA,
	      "%p %u %u %u %u %u %u %u %p %p %p", (void *)f, gx, gy, gz, bx, by, bz, shared, (void *)stream,
	      (void *)arguments, (void *)extra);
	aligned = (uintptr_t)__builtin_frame_address(0) % 16 == 0;
	called++;
	return CUDA_ERROR_ALREADY_MAPPED; /* an answer that nobody else gives */
}

static CUresult kernel_ex(const CUlaunchConfig *config, CUfunction f, void **arguments, void **extra)
{
	CHECK(config->gridDimX == 9 && f == KERNEL && arguments == ARGUMENTS && extra == EXTRA, "Ex");
	called++;
	return CUDA_ERROR_ALREADY_MAPPED;
}

static CUresult grid(CUfunction f, int width, int height)
{
	CHECK(f == KERNEL && width == 3 && height == 4, "%d x %d", width, height);
	called++;
	return CUDA_ERROR_ALREADY_MAPPED;
}

void *vgpu_real_fn(unsigned index)
{
	looked_up++;
	if (lacking)
		return NULL;
	void *function = index == VGPU_INDEX_cuLaunchKernel || index == VGPU_INDEX_cuLaunchKernel_ptsz ? (void *)kernel
	                 : index == VGPU_INDEX_cuLaunchKernelEx ? (void *)kernel_ex
	                 : index == VGPU_INDEX_cuLaunchGrid     ? (void *)grid
	                                                        : NULL;
	vgpu_real[index] = function;
	return function;
}

CUresult hook_cuGraphLaunch(CUgraphExec exec, CUstream stream)
{
	CHECK(exec == (CUgraphExec)0x5555 && stream == STREAM, "graph");
	hooked++;
	return CUDA_ERROR_ALREADY_MAPPED;
}

CUresult hook_cuGraphLaunch_ptsz(CUgraphExec exec, CUstream stream)
{
	return hook_cuGraphLaunch(exec, stream);
}

/* ---- the program ----------------------------------------------------------------------------------------------------- */

static CUresult launch_kernel(void)
{
	return stub_cuLaunchKernel(KERNEL, 1, 2, 3, 4, 5, 6, 7, STREAM, ARGUMENTS, EXTRA);
}

static void forget(void)
{
	memset(vgpu_real, 0, sizeof vgpu_real);
	word = 0;
	lacking = false;
	looked_up = called = hooked = entered = left = 0;
	stream_seen = NULL;
}

static void open_gate(void)
{
	forget();
	CHECK(launch_kernel() == CUDA_ERROR_ALREADY_MAPPED, "the driver's answer");
	CHECK(looked_up == 1 && called == 1, "the first launch looks the function up: %u, %u", looked_up, called);
	aligned = false;
	CHECK(launch_kernel() == CUDA_ERROR_ALREADY_MAPPED && called == 2, "the second one");
	CHECK(looked_up == 1 && entered == 1 && left == 1, "it goes straight to the driver: %u, %u", looked_up,
	      entered);
	CHECK(aligned, "the driver's stack is not aligned");
	CUlaunchConfig config = {.gridDimX = 9, .hStream = STREAM};
	for (unsigned i = 0; i < 2; i++) {
		CHECK(stub_cuLaunchKernelEx(&config, KERNEL, ARGUMENTS, EXTRA) == CUDA_ERROR_ALREADY_MAPPED, "Ex");
		CHECK(stub_cuLaunchGrid(KERNEL, 3, 4) == CUDA_ERROR_ALREADY_MAPPED, "grid");
		CHECK(stub_cuGraphLaunch((CUgraphExec)0x5555, STREAM) == CUDA_ERROR_ALREADY_MAPPED, "graph");
	}
	CHECK(called == 6 && hooked == 2, "%u, %u", called, hooked);
}

static void shut_gate(void)
{
	forget();
	launch_kernel();
	word = 1u << 31; /* any device */
	entered = left = 0;
	CHECK(launch_kernel() == CUDA_ERROR_ALREADY_MAPPED && called == 2, "through the gate");
	CHECK(entered == 1 && left == 1 && stream_seen == STREAM, "%u, %u, %p", entered, left, (void *)stream_seen);
	CUlaunchConfig config = {.gridDimX = 9, .hStream = (CUstream)0x77};
	CHECK(stub_cuLaunchKernelEx(&config, KERNEL, ARGUMENTS, EXTRA) == CUDA_ERROR_ALREADY_MAPPED, "Ex");
	CHECK(stream_seen == (CUstream)0x77, "the configuration names the stream: %p", (void *)stream_seen);
	CHECK(stub_cuGraphLaunch((CUgraphExec)0x5555, STREAM) == CUDA_ERROR_ALREADY_MAPPED, "graph");
	CHECK(entered == 3 && left == 3 && stream_seen == STREAM, "%u, %u", entered, left);
	CHECK(answered == CUDA_ERROR_ALREADY_MAPPED, "the gate hears what the driver answered: %d", (int)answered);
	word = 0;
	CHECK(launch_kernel() == CUDA_ERROR_ALREADY_MAPPED && entered == 3, "open again");
}

/* Launches that the thread may make without a further look: on one stream, while nothing has changed. */
static void given(void)
{
	static uint32_t turn = 5;
	CUlaunchConfig config = {.gridDimX = 9, .hStream = STREAM};
	forget();
	launch_kernel();
	stub_cuLaunchKernelEx(&config, KERNEL, ARGUMENTS, EXTRA);
	word = 1;
	entered = left = called = 0;
	thread = (struct vgpu_gate_thread){
	        .left = 3, .stream = STREAM, .own = STREAM, .word = &turn, .seen = 5, .epoch = vgpu_gate_epoch};
	aligned = false;
	CHECK(launch_kernel() == CUDA_ERROR_ALREADY_MAPPED && called == 1 && aligned, "the first of three");
	CHECK(entered == 0 && thread.left == 2 && thread.entered == 0, "%u, %u left", entered, thread.left);
	CHECK(stub_cuLaunchKernelEx(&config, KERNEL, ARGUMENTS, EXTRA) == CUDA_ERROR_ALREADY_MAPPED, "Ex");
	CHECK(entered == 0 && thread.left == 1, "%u, %u left", entered, thread.left);
	config.hStream = NULL;
	CHECK(stub_cuLaunchKernelEx(&config, KERNEL, ARGUMENTS, EXTRA) == CUDA_ERROR_ALREADY_MAPPED, "Ex");
	CHECK(entered == 1 && thread.left == 1, "another stream: %u, %u left", entered, thread.left);
	stub_cuLaunchKernel_ptsz(KERNEL, 1, 2, 3, 4, 5, 6, 7, STREAM, ARGUMENTS, EXTRA);
	CHECK(entered == 2 && thread.left == 1, "not looked up yet: %u, %u left", entered, thread.left);
	turn++;
	CHECK(launch_kernel() == CUDA_ERROR_ALREADY_MAPPED && entered == 3, "the turn has changed: %u", entered);
	turn--;
	vgpu_gate_epoch++;
	CHECK(launch_kernel() == CUDA_ERROR_ALREADY_MAPPED && entered == 4, "another epoch: %u", entered);
	thread.epoch++;
	CHECK(launch_kernel() == CUDA_ERROR_ALREADY_MAPPED && entered == 4 && thread.left == 0, "the last: %u",
	      entered);
	CHECK(launch_kernel() == CUDA_ERROR_ALREADY_MAPPED && entered == 5, "none is left: %u", entered);
	memset(&thread, 0, sizeof thread);
}

/* Where the driver has no such call. */
static void no_function(void)
{
	forget();
	lacking = true;
	CHECK(launch_kernel() == CUDA_ERROR_NOT_FOUND, "the launch of nobody");
	CHECK(stub_cuLaunchCooperativeKernelMultiDevice(NULL, 0, 0) == CUDA_ERROR_NOT_FOUND, "an old call");
	lacking = false;
	CHECK(launch_kernel() == CUDA_ERROR_ALREADY_MAPPED, "a driver that comes later is found");
}

int main(void)
{
	open_gate();
	shut_gate();
	given();
	no_function();
	CHECK((void *)stub_cuLaunchKernel == (void *)cuLaunchKernel, "the exported address is another one");
	return 0;
}
