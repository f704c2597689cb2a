/* C041, D20: how busy a device is, by process: only this container's own. A process of another container works beside us;
 * the driver's own list has both, ours has one.
 */
#include <nvml.h>
#include <signal.h>

#include "shim_test.h"

#define SAMPLES 64

static const char *const ptx = ".version 8.0\n.target sm_80\n.address_size 64\n"
                               ".visible .entry spin_ns(.param .u64 ns)\n{\nret;\n}\n";

/* Keeps the device busy for longer than this test takes. */
static void work(void)
{
	CUmodule module;
	CUfunction spin;
	uint64_t ns = 100000000;
	void *arguments[] = {&ns};
	OK(cuModuleLoadData(&module, ptx));
	OK(cuModuleGetFunction(&spin, module, "spin_ns"));
	for (int i = 0; i < 500; i++)
		OK(cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, NULL, arguments, NULL));
}

/* Until the driver has seen both of us at work. */
static void wait_for_driver(nvmlDevice_t device)
{
	unsigned int n = 0;
	while (n < 2)
		nvmlDeviceGetProcessUtilization(device, NULL, &n, 0);
}

int main(void)
{
	int ready[2], gate[2];
	char byte;
	nvmlDevice_t device;
	nvmlProcessUtilizationSample_t sample[SAMPLES];
	CHECK(pipe(ready) == 0 && pipe(gate) == 0, "pipes");
	pid_t stranger = fork();
	if (stranger == 0) {
		setenv("CUDA_DEVICE_MEMORY_LIMIT", "3g", 1);
		close(gate[1]);
		start(0);
		work();
		CHECK(write(ready[1], "x", 1) == 1, "ready");
		_exit(read(gate[0], &byte, 1) != 0);
	}
	CHECK(read(ready[0], &byte, 1) == 1, "the other process failed");
	start(0);
	work();
	CHECK(nvmlInit_v2() == NVML_SUCCESS && nvmlDeviceGetHandleByIndex_v2(0, &device) == NVML_SUCCESS, "NVML");
	unsigned int n = SAMPLES;
	wait_for_driver(device);
	nvmlReturn_t asked = nvmlDeviceGetProcessUtilization(device, sample, &n, 0);
	CHECK(asked == NVML_SUCCESS && n >= 1, "%u samples (%d)", n, (int)asked);
	for (unsigned i = 0; i < n; i++)
		CHECK((pid_t)sample[i].pid == getpid(), "a sample of process %u", sample[i].pid);
	kill(stranger, SIGKILL);
	waitpid(stranger, NULL, 0);
	_exit(0); /* without waiting for the work */
}
