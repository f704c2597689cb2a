/* Events: times are those of the virtual timeline, exact to the nanosecond; each record begins anew. */
#include <math.h>

#include "sim_test.h"

static CUevent event_new(unsigned flags)
{
	CUevent event;
	OK(cuEventCreate(&event, flags));
	return event;
}

static float between(CUevent start, CUevent end)
{
	float ms = -1;
	OK(cuEventElapsedTime(&ms, start, end));
	return ms;
}

/* Everything is queued behind a gate, hence runs back to back on the timeline. */
static void exact_times(CUfunction spin)
{
	CUstream stream;
	sem_t gate;
	CUevent e[4];
	for (int i = 0; i < 4; i++)
		e[i] = event_new(CU_EVENT_DEFAULT);
	OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	test_gate_close(&gate, stream);
	OK(cuEventRecord(e[0], stream));
	test_spin(spin, stream, 2000000);
	OK(cuEventRecord(e[1], stream));
	for (int i = 0; i < 300; i++)
		test_spin(spin, stream, 10000);
	OK(cuEventRecord(e[2], stream));
	OK(cuEventRecord(e[3], stream));
	float ms;
	GIVES(CUDA_ERROR_NOT_READY, cuEventElapsedTime(&ms, e[0], e[1]));
	GIVES(CUDA_ERROR_NOT_READY, cuEventQuery(e[0]));
	test_gate_open(&gate);
	OK(cuEventSynchronize(e[3]));
	OK(cuEventQuery(e[3]));
	CHECK(fabsf(between(e[0], e[1]) - 2.0f) < 1e-4f, "a kernel of 2 ms took %f ms", between(e[0], e[1]));
	CHECK(fabsf(between(e[1], e[2]) - 3.0f) < 1e-4f, "300 kernels of 10 us took %f ms", between(e[1], e[2]));
	CHECK(between(e[2], e[3]) == 0.0f, "nothing took %f ms", between(e[2], e[3]));
	CHECK(fabsf(between(e[2], e[0]) + 5.0f) < 1e-4f, "backwards: %f ms", between(e[2], e[0]));
	for (int i = 0; i < 4; i++)
		OK(cuEventDestroy(e[i]));
	OK(cuStreamDestroy(stream));
}

/* Two streams of one process share the engine: their kernels do not overlap. */
static void one_engine(CUfunction spin)
{
	CUstream stream[2];
	sem_t gate;
	CUevent start = event_new(0), end[2] = {event_new(0), event_new(0)};
	for (int i = 0; i < 2; i++)
		OK(cuStreamCreate(&stream[i], CU_STREAM_NON_BLOCKING));
	test_gate_close(&gate, stream[0]);
	OK(cuEventRecord(start, stream[0]));
	OK(cuStreamWaitEvent(stream[1], start, 0));
	for (int i = 0; i < 2; i++) {
		test_spin(spin, stream[i], 3000000);
		OK(cuEventRecord(end[i], stream[i]));
	}
	test_gate_open(&gate);
	OK(cuCtxSynchronize());
	float first = between(start, end[0]), second = between(start, end[1]);
	CHECK(fabsf(fminf(first, second) - 3) < 1e-4f && fabsf(fmaxf(first, second) - 6) < 1e-4f,
	      "two kernels of 3 ms were done after %f and %f ms", first, second);
	for (int i = 0; i < 2; i++)
		OK(cuStreamDestroy(stream[i]));
}

static void errors(void)
{
	CUevent plain = event_new(CU_EVENT_DISABLE_TIMING), timed = event_new(0), gone = event_new(0);
	float ms;
	OK(cuEventQuery(timed)); /* never recorded: nothing to wait for */
	OK(cuEventSynchronize(timed));
	GIVES(CUDA_ERROR_INVALID_HANDLE, cuEventElapsedTime(&ms, timed, timed));
	OK(cuEventRecord(plain, NULL));
	OK(cuEventRecord(timed, NULL));
	GIVES(CUDA_ERROR_INVALID_HANDLE, cuEventElapsedTime(&ms, plain, timed));
	OK(cuEventDestroy(gone));
	GIVES(CUDA_ERROR_INVALID_HANDLE, cuEventDestroy(gone));
	GIVES(CUDA_ERROR_INVALID_HANDLE, cuEventRecord(gone, NULL));
	GIVES(CUDA_ERROR_INVALID_HANDLE, cuStreamWaitEvent(NULL, gone, 0));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuEventCreate(&gone, CU_EVENT_INTERPROCESS));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuEventCreate(&gone, 0x100));
}

/* A second record makes the event wait again, and its time the later one. */
static void again(CUfunction spin)
{
	CUstream stream;
	sem_t gate;
	CUevent first = event_new(0), event = event_new(0);
	OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	OK(cuEventRecord(event, stream));
	OK(cuEventQuery(event));
	test_gate_close(&gate, stream);
	OK(cuEventRecord(first, stream));
	test_spin(spin, stream, 500000);
	OK(cuEventRecord(event, stream));
	GIVES(CUDA_ERROR_NOT_READY, cuEventQuery(event));
	test_gate_open(&gate);
	OK(cuEventSynchronize(event));
	CHECK(fabsf(between(first, event) - 0.5f) < 1e-4f, "recorded again: %f ms", between(first, event));
	OK(cuStreamDestroy(stream));
}

/* cuCtxRecordEvent takes in what every stream of the context has been given, and nothing later; cuCtxWaitEvent holds up
 * what they are given afterwards, and nothing earlier. */
static void whole_context(CUcontext context, CUfunction spin)
{
	CUstream stream[2];
	sem_t gate;
	CUevent start = event_new(0), all = event_new(0), before = event_new(0), after = event_new(0);
	for (int i = 0; i < 2; i++)
		OK(cuStreamCreate(&stream[i], CU_STREAM_NON_BLOCKING));
	test_gate_close(&gate, stream[0]);
	OK(cuEventRecord(start, stream[0]));
	test_spin(spin, stream[0], 1000000);
	test_spin(spin, stream[1], 2000000);
	OK(cuCtxRecordEvent(context, all));
	OK(cuEventRecord(before, stream[1]));
	OK(cuCtxWaitEvent(context, all));
	OK(cuEventRecord(after, NULL)); /* idle until now, and held up all the same */
	OK(cuEventSynchronize(before));
	GIVES(CUDA_ERROR_NOT_READY, cuEventQuery(all));
	GIVES(CUDA_ERROR_NOT_READY, cuEventQuery(after));
	GIVES(CUDA_ERROR_NOT_READY, cuStreamQuery(NULL));
	test_gate_open(&gate);
	OK(cuEventSynchronize(after));
	OK(cuEventQuery(all));
	CHECK(between(start, all) >= 1.0f && between(all, after) >= 0.0f, "%f ms, then %f ms", between(start, all),
	      between(all, after));
	for (int i = 0; i < 2; i++)
		OK(cuStreamDestroy(stream[i]));
	GIVES(CUDA_ERROR_INVALID_CONTEXT, cuCtxRecordEvent((CUcontext)&gate, all));
	GIVES(CUDA_ERROR_INVALID_HANDLE, cuCtxWaitEvent(context, (CUevent)&gate));
	CUcontext other;
	OK(cuCtxCreate(&other, NULL, 0, 0));
	GIVES(CUDA_ERROR_INVALID_HANDLE, cuCtxRecordEvent(other, all)); /* an event of another context */
	OK(cuCtxWaitEvent(other, all));
	OK(cuCtxSynchronize());
	OK(cuCtxDestroy(other));
}

int main(void)
{
	CUcontext context = test_context("zero", 0);
	CUfunction spin = test_function("spin_ns");
	exact_times(spin);
	one_engine(spin);
	errors();
	again(spin);
	whole_context(context, spin);
	return 0;
}
