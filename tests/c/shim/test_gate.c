/* The entries of the launch calls: every argument arrives as it was given, in registers and on the stack, whether the
 * gate is open, the driver's function is not looked up yet, or the gate is shut; what the gate answers is what the program
 * gets; a driver that lacks a call says so. The entries are the library's own, the driver and the gate are this file's. */
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

static bool lacking, shut, aligned;
static unsigned looked_up, called, hooked, entered, left;
static CUstream stream_seen;

CUresult vgpu_gate_enter(struct vgpu_launch *launch, CUstream stream)
{
	static uint64_t entries;
	launch->entries = &entries;
	entered++;
	stream_seen = stream;
	return shut ? CUDA_ERROR_LAUNCH_TIMEOUT : CUDA_SUCCESS;
}

void vgpu_gate_leave(struct vgpu_launch *launch)
{
	CHECK(launch->entries != NULL, "not the launch that entered");
	left++;
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
	void *function = index == VGPU_INDEX_cuLaunchKernel     ? (void *)kernel
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
	lacking = shut = false;
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
	shut = true;
	CHECK(launch_kernel() == CUDA_ERROR_LAUNCH_TIMEOUT, "the gate's answer");
	CHECK(called == 3 && left == 3, "the driver was called, or a launch that never was left: %u, %u", called, left);
	word = 0;
	CHECK(launch_kernel() == CUDA_ERROR_ALREADY_MAPPED && entered == 4, "open again");
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
	no_function();
	CHECK((void *)stub_cuLaunchKernel == (void *)cuLaunchKernel, "the exported address is another one");
	return 0;
}
