/* Copies between host and device run on engines of their own, one a direction, beside kernels and each other; copies
 * within the device take the compute engine. All by the virtual timeline. */
#include "sim_test.h"

#define BYTES     ((size_t)50 << 20) /* 1.05 ms at 50 GB/s */
#define COPY_NS   (BYTES * 1000 / 50000)
#define KERNEL_NS UINT64_C(20000000)

enum { KERNEL, IN, OUT, WITHIN, IN_TOO, LANES };

static CUstream stream[LANES];
static CUevent go, end[LANES];

/* When the lane was over, from the moment on which all could begin. */
static uint64_t over(int lane)
{
	float ms;
	OK(cuEventElapsedTime(&ms, go, end[lane]));
	return (uint64_t)((double)ms * 1e6 + 0.5);
}

static void copy(int lane, CUdeviceptr *device, void *host)
{
	if (lane == IN || lane == IN_TOO)
		OK(cuMemcpyHtoDAsync(device[0], host, BYTES, stream[lane]));
	else if (lane == OUT)
		OK(cuMemcpyDtoHAsync(host, device[1], BYTES, stream[lane]));
	else
		OK(cuMemcpyDtoDAsync(device[0], device[1], BYTES, stream[lane]));
}

/* Everything is queued behind one event, which is behind a gate. */
static void run_all(CUfunction spin, CUdeviceptr *device, void *host)
{
	CUstream first;
	sem_t gate;
	OK(cuStreamCreate(&first, CU_STREAM_NON_BLOCKING));
	OK(cuEventCreate(&go, CU_EVENT_DEFAULT));
	test_gate_close(&gate, first);
	OK(cuEventRecord(go, first));
	for (int i = 0; i < LANES; i++) {
		OK(cuStreamCreate(&stream[i], CU_STREAM_NON_BLOCKING));
		OK(cuEventCreate(&end[i], CU_EVENT_DEFAULT));
		OK(cuStreamWaitEvent(stream[i], go, 0));
		if (i == KERNEL)
			test_spin(spin, stream[i], KERNEL_NS);
		else
			copy(i, device, host);
		OK(cuEventRecord(end[i], stream[i]));
	}
	test_gate_open(&gate);
	OK(cuCtxSynchronize());
}

static void ends_at(int lane, uint64_t expected, const char *what)
{
	uint64_t ns = over(lane);
	/* milliseconds as a float: good to a few ns */
	CHECK(ns + 10 > expected && ns < expected + 10, "%s ended after %lu ns, not %lu", what, ns, expected);
}

int main(void)
{
	CUdeviceptr device[2];
	void *host;
	test_context("h100-80g", 0);
	CUfunction spin = test_function("spin_ns");
	for (int i = 0; i < 2; i++)
		OK(cuMemAlloc(&device[i], BYTES));
	OK(cuMemAllocHost(&host, BYTES));
	struct sim_client_device *counters = test_counters(test_machine(), 0);
	run_all(spin, device, host);
	ends_at(KERNEL, KERNEL_NS, "the kernel");
	ends_at(IN, COPY_NS, "the copy to the device");
	ends_at(OUT, COPY_NS, "the copy to the host");
	ends_at(IN_TOO, 2 * COPY_NS, "the second copy to the device");
	ends_at(WITHIN, KERNEL_NS + COPY_NS, "the copy within the device");
	CHECK(counters->copy_ns[SIM_UNIT_COPY_IN] == 2 * COPY_NS, "copies to the device took %lu ns, not %lu",
	      counters->copy_ns[SIM_UNIT_COPY_IN], 2 * COPY_NS);
	CHECK(counters->copy_ns[SIM_UNIT_COPY_OUT] == COPY_NS, "copies to the host took %lu ns, not %lu",
	      counters->copy_ns[SIM_UNIT_COPY_OUT], COPY_NS);
	CHECK(counters->busy_ns == KERNEL_NS + COPY_NS, "the compute engine was busy for %lu ns, not %lu",
	      counters->busy_ns, KERNEL_NS + COPY_NS);
	return 0;
}
