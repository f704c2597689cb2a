/* Launches: what is refused, and how much engine time each kind takes, to the nanosecond. */
#include "sim_test.h"

static struct sim_client_device *counters;

static void takes_so_far(uint64_t expected, const char *what)
{
	static uint64_t before;
	uint64_t now = counters->busy_ns;
	CHECK(now - before == expected, "%s took %llu ns of the engine, not %llu", what,
	      (unsigned long long)(now - before), (unsigned long long)expected);
	before = now;
}

static void takes(uint64_t expected, const char *what)
{
	OK(cuCtxSynchronize());
	takes_so_far(expected, what);
}

static void durations(CUfunction spin, CUfunction plain, const struct sim_device_model *model)
{
	uint64_t ns = 123456, p = 0;
	uint32_t n = 1;
	void *spin_params[] = {&ns}, *plain_params[] = {&p, &n};
	size_t size = sizeof(ns);
	void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &ns, CU_LAUNCH_PARAM_BUFFER_SIZE, &size, CU_LAUNCH_PARAM_END};
	takes(0, "nothing");
	OK(cuLaunchKernel(spin, 1, 1, 1, 32, 1, 1, 0, NULL, spin_params, NULL));
	takes(123456, "a kernel whose argument is its duration");
	ns = 654321;
	OK(cuLaunchKernel(spin, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, extra));
	takes(654321, "the same through `extra`");
	unsigned wave = model->sms * model->blocks_per_sm;
	OK(cuLaunchKernel(plain, wave, 1, 1, 32, 1, 1, 0, NULL, plain_params, NULL));
	takes(13000, "one wave");
	OK(cuLaunchKernel(plain, wave, 2, 1, 32, 1, 1, 0, NULL, plain_params, NULL));
	takes(23000, "two waves");
	OK(cuLaunchKernel(plain, wave, 2, 1, 32, 1, 1, 0, NULL, plain_params, NULL));
	OK(cuLaunchKernel(plain, wave + 1, 1, 1, 32, 1, 1, 0, NULL, plain_params, NULL));
	takes(46000, "two waves twice");
	ns = 5000;
	CUlaunchConfig config = {
	        .gridDimX = 2, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 1, .blockDimY = 1, .blockDimZ = 1};
	OK(cuLaunchKernelEx(&config, spin, spin_params, NULL));
	OK(cuLaunchCooperativeKernel(spin, 1, 1, 1, 1, 1, 1, 0, NULL, spin_params));
	takes(10000, "an extended and a cooperative launch");
}

static void refusals(CUfunction spin, CUfunction nothing)
{
	uint64_t ns = 1;
	void *params[] = {&ns};
	size_t size = sizeof(ns);
	void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &ns, CU_LAUNCH_PARAM_BUFFER_SIZE, &size, CU_LAUNCH_PARAM_END};
	GIVES(CUDA_ERROR_INVALID_VALUE, cuLaunchKernel(spin, 0, 1, 1, 1, 1, 1, 0, NULL, params, NULL));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuLaunchKernel(spin, 1, 65536, 1, 1, 1, 1, 0, NULL, params, NULL));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuLaunchKernel(spin, 1, 1, 1, 1025, 1, 1, 0, NULL, params, NULL));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuLaunchKernel(spin, 1, 1, 1, 1, 1, 65, 0, NULL, params, NULL));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 49153, NULL, params, NULL));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, NULL, params, extra));
	GIVES(CUDA_ERROR_INVALID_HANDLE, cuLaunchKernel(NULL, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL));
	GIVES(CUDA_ERROR_INVALID_HANDLE, cuLaunchKernel((CUfunction)params, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL));
	GIVES(CUDA_ERROR_INVALID_HANDLE, cuLaunchKernel(nothing, 1, 1, 1, 1, 1, 1, 0, (CUstream)params, NULL, NULL));
	GIVES(CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE,
	      cuLaunchCooperativeKernel(spin, 132 * 32 + 1, 1, 1, 32, 1, 1, 0, NULL, params));
	CUlaunchAttribute attribute = {.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, .value.clusterDim = {9, 1, 1}};
	CUlaunchConfig config = {.gridDimX = 9,
	                         .gridDimY = 1,
	                         .gridDimZ = 1,
	                         .blockDimX = 1,
	                         .blockDimY = 1,
	                         .blockDimZ = 1,
	                         .attrs = &attribute,
	                         .numAttrs = 1};
	GIVES(CUDA_ERROR_INVALID_CLUSTER_SIZE, cuLaunchKernelEx(&config, nothing, NULL, NULL));
	takes(0, "refused launches");
	CUcontext context;
	OK(cuCtxPopCurrent(&context));
	GIVES(CUDA_ERROR_INVALID_CONTEXT, cuLaunchKernel(nothing, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
	OK(cuCtxPushCurrent(context));
}

static void occupancy(CUfunction nothing)
{
	int blocks, grid, block;
	OK(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, nothing, 128, 0));
	CHECK(blocks == 16, "128 threads: %d blocks on a multiprocessor of 2048 threads", blocks);
	OK(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, nothing, 32, 0));
	CHECK(blocks == 32, "32 threads: %d blocks where 32 fit at most", blocks);
	OK(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, nothing, 32, 40000));
	CHECK(blocks == 5, "with 40000 bytes each: %d blocks in 228 KiB", blocks);
	OK(cuOccupancyMaxPotentialBlockSize(&grid, &block, nothing, NULL, 0, 0));
	CHECK(block == 1024 && grid == 2 * 132, "block of %d, grid of %d", block, grid);
}

/* The queue is finite: a launch waits for room instead of failing. */
static void full_queue(CUfunction spin, unsigned depth)
{
	CUstream stream;
	uint64_t before = counters->busy_ns;
	OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	for (unsigned i = 0; i < depth + 500; i++)
		test_spin(spin, stream, 20000);
	uint64_t done = counters->busy_ns - before;
	CHECK(done >= 400 * 20000ull, "%u launches returned with %llu ns done: the queue of %u let all of them in",
	      depth + 500, (unsigned long long)done, depth);
	OK(cuStreamSynchronize(stream));
	takes((depth + 500) * 20000ull, "all of them");
	OK(cuStreamDestroy(stream));
}

/* Each stream has a queue of its own: one that is full holds up no other. */
static void queue_of_its_own(CUfunction spin, unsigned depth)
{
	CUstream full, other;
	sem_t gate;
	OK(cuStreamCreate(&full, CU_STREAM_NON_BLOCKING));
	OK(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
	test_gate_close(&gate, full);
	for (unsigned i = 1; i < depth; i++)
		test_spin(spin, full, 1000);
	test_spin(spin, other, 1000);
	OK(cuStreamSynchronize(other));
	takes_so_far(1000, "the launch beside a full queue");
	test_gate_open(&gate);
	OK(cuStreamSynchronize(full));
	takes((depth - 1) * 1000ull, "what stood in the full queue");
	OK(cuStreamDestroy(full));
	OK(cuStreamDestroy(other));
}

/* Set on the function, one by one, as in CUDA 3. */
static void old_manner(CUmodule module)
{
	CUfunction spin;
	uint64_t ns = 7000;
	OK(cuModuleGetFunction(&spin, module, "spin_ns"));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuLaunch(spin));
	OK(cuFuncSetBlockShape(spin, 8, 1, 1));
	OK(cuParamSetv(spin, 0, &ns, sizeof(ns)));
	OK(cuParamSetSize(spin, sizeof(ns)));
	OK(cuLaunch(spin));
	OK(cuLaunchGrid(spin, 4, 4));
	takes(14000, "two launches in the old manner");
	GIVES(CUDA_ERROR_INVALID_VALUE, cuParamSetv(spin, 4095, &ns, sizeof(ns)));
}

int main(void)
{
	test_context("h100-80g", 0);
	CUmodule module;
	CUfunction spin, plain, nothing;
	OK(cuModuleLoadData(&module, test_ptx));
	OK(cuModuleGetFunction(&spin, module, "spin_ns"));
	OK(cuModuleGetFunction(&plain, module, "plain"));
	OK(cuModuleGetFunction(&nothing, module, "nothing"));
	struct sim_machine *machine = test_machine();
	counters = test_counters(machine, 0);
	durations(spin, plain, &machine->model[0]);
	refusals(spin, nothing);
	occupancy(nothing);
	old_manner(module);
	full_queue(spin, machine->model[0].queue_depth);
	queue_of_its_own(spin, machine->model[0].queue_depth);
	CHECK(machine->device[0].engine_busy_ns == counters->busy_ns,
	      "the device was busy for %llu ns, its only client for %llu",
	      (unsigned long long)machine->device[0].engine_busy_ns, (unsigned long long)counters->busy_ns);
	return 0;
}
