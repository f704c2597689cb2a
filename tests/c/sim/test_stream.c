/* Streams: their life, what they answer about themselves, and the order in which their work runs. */
#include "sim_test.h"

static int trace[64];
static int traced;

static void note(void *arg)
{
	trace[traced++] = (int)(intptr_t)arg;
}

static void mark(CUstream stream, int what)
{
	OK(cuLaunchHostFunc(stream, note, (void *)(intptr_t)what));
}

static void callback(CUstream stream, CUresult status, void *data)
{
	CHECK(status == CUDA_SUCCESS, "callback got status %d", status);
	*(CUstream *)data = stream;
}

static void life(CUcontext context)
{
	CUstream stream, strict;
	CUcontext of;
	CUdevice device;
	unsigned flags;
	int priority;
	unsigned long long id, other;
	OK(cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, -3));
	OK(cuStreamCreateWithPriority(&strict, CU_STREAM_DEFAULT, -100));
	OK(cuStreamGetFlags(stream, &flags));
	CHECK(flags == CU_STREAM_NON_BLOCKING, "flags %u", flags);
	OK(cuStreamGetPriority(stream, &priority));
	CHECK(priority == -3, "priority %d", priority);
	OK(cuStreamGetPriority(strict, &priority));
	CHECK(priority == -5, "a priority beyond the range is clamped, got %d", priority);
	OK(cuStreamGetCtx(stream, &of));
	OK(cuStreamGetDevice(stream, &device));
	CHECK(of == context && device == 0, "context %p, device %d", (void *)of, device);
	OK(cuStreamGetId(stream, &id));
	OK(cuStreamGetId(strict, &other));
	CHECK(id != other, "two streams with id %llu", id);
	CUstreamAttrValue value = {.syncPolicy = CU_SYNC_POLICY_SPIN};
	OK(cuStreamSetAttribute(stream, CU_STREAM_ATTRIBUTE_SYNCHRONIZATION_POLICY, &value));
	OK(cuStreamCopyAttributes(strict, stream));
	memset(&value, 0, sizeof(value));
	OK(cuStreamGetAttribute(strict, CU_STREAM_ATTRIBUTE_SYNCHRONIZATION_POLICY, &value));
	CHECK(value.syncPolicy == CU_SYNC_POLICY_SPIN, "policy %d was not copied", value.syncPolicy);
	OK(cuStreamDestroy(strict));
	OK(cuStreamDestroy(stream));
	GIVES(CUDA_ERROR_INVALID_HANDLE, cuStreamQuery(stream));
	GIVES(CUDA_ERROR_INVALID_HANDLE, cuStreamDestroy(stream));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuStreamCreate(&stream, 8));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuStreamCreate(NULL, 0));
}

/* The NULL stream runs in order with blocking streams, and not with the others. */
static void null_stream(CUfunction spin)
{
	CUstream blocking, free_running;
	sem_t gate;
	OK(cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
	OK(cuStreamCreate(&free_running, CU_STREAM_NON_BLOCKING));
	traced = 0;
	test_gate_close(&gate, blocking);
	test_spin(spin, NULL, 1000);
	test_spin(spin, blocking, 1000);
	test_spin(spin, free_running, 1000);
	OK(cuStreamSynchronize(free_running));
	GIVES(CUDA_ERROR_NOT_READY, cuStreamQuery(blocking));
	GIVES(CUDA_ERROR_NOT_READY, cuStreamQuery(NULL));
	test_gate_open(&gate);
	OK(cuCtxSynchronize());
	OK(cuStreamQuery(NULL));
	mark(blocking, 1);
	mark(NULL, 2);
	mark(blocking, 3);
	mark(CU_STREAM_PER_THREAD, 4);
	mark(CU_STREAM_LEGACY, 5);
	OK(cuStreamSynchronize(NULL));
	for (int i = 0; i < 5; i++)
		CHECK(i == 3 || trace[i] == i + 1 || i == 2, "place %d ran %d", i, trace[i]);
	CHECK(traced == 5 && trace[4] == 5, "the NULL stream ran before the per-thread stream's earlier work");
	OK(cuStreamDestroy(blocking));
	OK(cuStreamDestroy(free_running));
}

/* Work goes on after the stream was destroyed; cuCtxSynchronize waits for it. */
static void destroyed_with_work(void)
{
	CUstream stream;
	sem_t gate;
	traced = 0;
	OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	test_gate_close(&gate, stream);
	mark(stream, 7);
	OK(cuStreamDestroy(stream));
	GIVES(CUDA_ERROR_INVALID_HANDLE, cuStreamSynchronize(stream));
	CHECK(traced == 0, "work ran past a closed gate");
	test_gate_open(&gate);
	OK(cuCtxSynchronize());
	CHECK(traced == 1 && trace[0] == 7, "%d marks, the first %d", traced, trace[0]);
}

static void events_between_streams(void)
{
	CUstream first, second;
	CUevent event;
	sem_t gate;
	traced = 0;
	OK(cuStreamCreate(&first, CU_STREAM_NON_BLOCKING));
	OK(cuStreamCreate(&second, CU_STREAM_NON_BLOCKING));
	OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
	test_gate_close(&gate, first);
	mark(first, 1);
	OK(cuEventRecord(event, first));
	OK(cuStreamWaitEvent(second, event, 0));
	mark(second, 2);
	OK(cuEventDestroy(event)); /* still used by the queues */
	GIVES(CUDA_ERROR_NOT_READY, cuStreamQuery(second));
	test_gate_open(&gate);
	OK(cuStreamSynchronize(second));
	CHECK(traced == 2 && trace[0] == 1 && trace[1] == 2, "%d marks: %d, %d", traced, trace[0], trace[1]);
	OK(cuStreamDestroy(first));
	OK(cuStreamDestroy(second));
}

static void callbacks(void)
{
	CUstream stream, seen = NULL;
	OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	OK(cuStreamAddCallback(stream, callback, &seen, 0));
	OK(cuStreamSynchronize(stream));
	CHECK(seen == stream, "callback saw stream %p, not %p", (void *)seen, (void *)stream);
	GIVES(CUDA_ERROR_INVALID_VALUE, cuStreamAddCallback(stream, callback, &seen, 1));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuLaunchHostFunc(stream, NULL, NULL));
	OK(cuStreamDestroy(stream));
}

static void capture_is_none(void)
{
	CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_ACTIVE;
	CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	OK(cuStreamIsCapturing(NULL, &status));
	CHECK(status == CU_STREAM_CAPTURE_STATUS_NONE, "status %d", status);
	OK(cuThreadExchangeStreamCaptureMode(&mode));
	CHECK(mode == CU_STREAM_CAPTURE_MODE_GLOBAL, "a thread begins with mode %d", mode);
	OK(cuThreadExchangeStreamCaptureMode(&mode));
	CHECK(mode == CU_STREAM_CAPTURE_MODE_RELAXED, "the mode was not kept: %d", mode);
}

int main(void)
{
	CUstream stream;
	setenv("PARTAGE_SIM", "zero", 1);
	OK(cuInit(0));
	GIVES(CUDA_ERROR_INVALID_CONTEXT, cuStreamCreate(&stream, 0));
	GIVES(CUDA_ERROR_INVALID_CONTEXT, cuStreamSynchronize(NULL));
	CUcontext context = test_context(NULL, 0);
	CUfunction spin = test_function("spin_ns");
	life(context);
	null_stream(spin);
	destroyed_with_work();
	events_between_streams();
	callbacks();
	capture_is_none();
	return 0;
}
