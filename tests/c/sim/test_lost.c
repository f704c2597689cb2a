/* A device that falls off the bus: nobody waits for its work, every call says so, the other device goes on. */
#include "sim_test.h"

int main(void)
{
	CUcontext other, context;
	CUevent event;
	CUstream stream;
	context = test_context("zero2", 0);
	CUfunction spin = test_function("spin_ns");
	other = test_context(NULL, 1);
	CUfunction elsewhere = test_function("spin_ns");
	struct sim_machine *machine = test_machine();
	OK(cuCtxSetCurrent(context));
	OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	OK(cuEventCreate(&event, 0));
	test_spin(spin, stream, UINT64_C(3600000000000)); /* an hour */
	OK(cuEventRecord(event, stream));
	__atomic_store_n(&machine->device[0].lost, 1, __ATOMIC_RELAXED);
	GIVES(CUDA_ERROR_UNKNOWN, cuStreamSynchronize(stream));
	GIVES(CUDA_ERROR_UNKNOWN, cuEventSynchronize(event));
	GIVES(CUDA_ERROR_UNKNOWN, cuEventQuery(event));
	GIVES(CUDA_ERROR_UNKNOWN, cuStreamQuery(stream));
	uint64_t ns = 1;
	void *params[] = {&ns};
	GIVES(CUDA_ERROR_UNKNOWN, cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL));
	GIVES(CUDA_ERROR_UNKNOWN, cuCtxSynchronize());
	OK(cuCtxSetCurrent(other));
	test_spin(elsewhere, NULL, 1000);
	OK(cuCtxSynchronize());
	return 0;
}
