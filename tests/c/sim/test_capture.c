/* Stream capture: what a captured stream would have done, a launch of the graph does, byte for byte; other streams that
 * join by events; and the calls that a capture forbids, by mode and by thread.
 */
#include "sim_test.h"

#include <pthread.h>

#define N 65536

static CUfunction spin;
static unsigned char source[N];
static CUdeviceptr a, b, c;

static void count_up(void *data)
{
	++*(int *)data;
}

static CUstreamCaptureStatus status_of(CUstream stream)
{
	CUstreamCaptureStatus status;
	OK(cuStreamIsCapturing(stream, &status));
	return status;
}

/* Work of every kind, spread over two streams. */
static void work(CUstream stream, CUstream other, CUevent fork, CUevent join, int *calls, unsigned char *out)
{
	CUDA_MEMCPY2D rows = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
	                      .srcDevice = a,
	                      .srcXInBytes = 16,
	                      .srcPitch = 256,
	                      .dstMemoryType = CU_MEMORYTYPE_DEVICE,
	                      .dstDevice = b,
	                      .dstPitch = 512,
	                      .dstY = 1,
	                      .WidthInBytes = 100,
	                      .Height = 50};
	OK(cuMemcpyHtoDAsync(a, source, N, stream));
	OK(cuEventRecord(fork, stream));
	OK(cuStreamWaitEvent(other, fork, 0));
	OK(cuMemsetD16Async(b, 0x1234, N / 2, stream));
	test_spin(spin, stream, 1000);
	OK(cuMemcpy2DAsync(&rows, stream));
	OK(cuMemcpyDtoDAsync(c, a + N / 2, N / 2, other));
	OK(cuMemsetD2D8Async(c + N / 2, 128, 0x7e, 64, 100, other));
	OK(cuLaunchHostFunc(other, count_up, calls));
	OK(cuStreamWriteValue32(other, c, 0xabcdef, 0));
	OK(cuEventRecord(join, other));
	OK(cuStreamWaitEvent(stream, join, 0));
	OK(cuMemcpyDtoDAsync(b + N / 2, c, N / 4, stream));
	OK(cuMemcpyDtoHAsync(out, c, N, stream));
}

static void result_of(unsigned char *bytes)
{
	OK(cuMemcpyDtoH(bytes, a, N));
	OK(cuMemcpyDtoH(bytes + N, b, N));
	OK(cuMemcpyDtoH(bytes + 2 * N, c, N));
}

static void clear(void)
{
	OK(cuMemsetD8(a, 0, N));
	OK(cuMemsetD8(b, 0, N));
	OK(cuMemsetD8(c, 0, N));
}

static void equal_to_direct(CUstream stream, CUstream other)
{
	static unsigned char direct[3 * N], launched[3 * N], out[2][N];
	int calls = 0;
	CUevent fork, join;
	CUgraph graph;
	CUgraphExec exec;
	size_t nodes;
	OK(cuEventCreate(&fork, CU_EVENT_DISABLE_TIMING));
	OK(cuEventCreate(&join, CU_EVENT_DISABLE_TIMING));
	for (int i = 0; i < N; i++)
		source[i] = (unsigned char)(i * 31 + i / 256);
	clear();
	work(stream, other, fork, join, &calls, out[0]);
	OK(cuCtxSynchronize());
	result_of(direct);
	clear();
	CHECK(calls == 1, "%d calls", calls);
	OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
	CHECK(status_of(stream) == CU_STREAM_CAPTURE_STATUS_ACTIVE, "the stream does not capture");
	work(stream, other, fork, join, &calls, out[1]);
	CHECK(status_of(other) == CU_STREAM_CAPTURE_STATUS_ACTIVE, "the other stream did not join");
	OK(cuStreamEndCapture(stream, &graph));
	CHECK(status_of(stream) == CU_STREAM_CAPTURE_STATUS_NONE && status_of(other) == CU_STREAM_CAPTURE_STATUS_NONE,
	      "a stream still captures");
	result_of(launched);
	for (int i = 0; i < 3 * N; i++)
		CHECK(launched[i] == 0 && calls == 1, "capturing ran the work");
	OK(cuGraphGetNodes(graph, NULL, &nodes));
	CHECK(nodes == 10, "%zu nodes, not one for each call", nodes);
	OK(cuGraphInstantiate(&exec, graph, 0));
	for (int i = 0; i < 2; i++) {
		clear();
		OK(cuGraphLaunch(exec, stream));
		OK(cuStreamSynchronize(stream));
		result_of(launched);
		CHECK(memcmp(direct, launched, sizeof(direct)) == 0 && memcmp(out[0], out[1], N) == 0,
		      "launch %d left other bytes than the calls", i);
	}
	CHECK(calls == 3, "%d calls", calls);
	OK(cuGraphExecDestroy(exec));
	OK(cuGraphDestroy(graph));
}

/* C050: a thousand launches, and what a program may ask meanwhile. */
static void thousand(CUstream stream)
{
	CUgraph graph;
	size_t nodes, free_bytes, total;
	OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
	for (int i = 0; i < 1000; i++) {
		test_spin(spin, stream, 10);
		OK(cuMemGetInfo(&free_bytes, &total));
	}
	OK(cuStreamEndCapture(stream, &graph));
	OK(cuGraphGetNodes(graph, NULL, &nodes));
	CHECK(nodes == 1000, "%zu nodes", nodes);
	OK(cuGraphDestroy(graph));
}

static void questions(CUstream stream)
{
	CUgraph graph, inside, ended;
	CUgraphNode first, second;
	const CUgraphNode *nodes;
	const CUgraphEdgeData *data;
	cuuint64_t id, again;
	size_t count;
	CUstreamCaptureStatus status;
	OK(cuGraphCreate(&graph, 0));
	OK(cuGraphAddEmptyNode(&first, graph, NULL, 0));
	OK(cuStreamBeginCaptureToGraph(stream, graph, &first, NULL, 1, CU_STREAM_CAPTURE_MODE_RELAXED));
	GIVES(CUDA_ERROR_ILLEGAL_STATE, cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
	OK(cuStreamGetCaptureInfo(stream, &status, &id, &inside, &nodes, &data, &count));
	CHECK(status == CU_STREAM_CAPTURE_STATUS_ACTIVE && inside == graph && count == 1 && nodes[0] == first,
	      "status %d, %zu dependencies", status, count);
	GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphInstantiate(&(CUgraphExec){0}, graph, 0));
	test_spin(spin, stream, 10);
	OK(cuStreamGetCaptureInfo(stream, &status, &again, NULL, &nodes, NULL, &count));
	CHECK(again == id && count == 1 && nodes[0] != first, "the launch did not become the last node");
	second = nodes[0];
	OK(cuStreamUpdateCaptureDependencies(stream, &first, NULL, 1, CU_STREAM_ADD_CAPTURE_DEPENDENCIES));
	OK(cuStreamGetCaptureInfo(stream, &status, NULL, NULL, NULL, NULL, &count));
	CHECK(count == 2, "%zu dependencies", count);
	OK(cuStreamUpdateCaptureDependencies(stream, &first, NULL, 1, CU_STREAM_SET_CAPTURE_DEPENDENCIES));
	test_spin(spin, stream, 10);
	OK(cuStreamEndCapture(stream, &ended));
	CHECK(ended == graph, "another graph");
	OK(cuGraphNodeGetDependentNodes(first, NULL, NULL, &count));
	CHECK(count == 2, "%zu nodes come after the first", count);
	OK(cuGraphNodeGetDependentNodes(second, NULL, NULL, &count));
	CHECK(count == 0, "the second node has %zu dependents", count);
	GIVES(CUDA_ERROR_ILLEGAL_STATE,
	      cuStreamUpdateCaptureDependencies(stream, &first, NULL, 1, CU_STREAM_SET_CAPTURE_DEPENDENCIES));
	OK(cuGraphDestroy(graph));
}

/* A capture that was broken: nothing more is captured, and no graph comes of it. */
static void ends_invalid(CUstream stream)
{
	CUgraph graph = (CUgraph)&graph;
	CHECK(status_of(stream) == CU_STREAM_CAPTURE_STATUS_INVALIDATED, "status %d", status_of(stream));
	GIVES(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuMemsetD8Async(a, 0, N, stream));
	GIVES(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(stream, &graph));
	CHECK(!graph && status_of(stream) == CU_STREAM_CAPTURE_STATUS_NONE, "an invalid capture left something");
}

static void ends_well(CUstream stream)
{
	CUgraph graph;
	OK(cuStreamEndCapture(stream, &graph));
	OK(cuGraphDestroy(graph));
}

static void begin(CUstream stream, CUstreamCaptureMode mode)
{
	OK(cuStreamBeginCapture(stream, mode));
	test_spin(spin, stream, 10);
}

/* What conflicts with any capture, whatever its mode. */
static void conflicts(CUstream stream, CUstream blocking, CUstream other)
{
	CUevent event, old;
	CUcontext context;
	CUgraph graph;
	OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
	OK(cuEventCreate(&old, CU_EVENT_DISABLE_TIMING));
	OK(cuEventRecord(old, other));
	GIVES(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuStreamBeginCapture(NULL, CU_STREAM_CAPTURE_MODE_RELAXED));
	GIVES(CUDA_ERROR_ILLEGAL_STATE, cuStreamEndCapture(stream, &graph));
	begin(stream, CU_STREAM_CAPTURE_MODE_RELAXED);
	CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	OK(cuThreadExchangeStreamCaptureMode(&mode));
	GIVES(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuStreamSynchronize(stream));
	ends_invalid(stream);
	begin(stream, CU_STREAM_CAPTURE_MODE_RELAXED);
	GIVES(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuStreamQuery(stream));
	ends_invalid(stream);
	begin(stream, CU_STREAM_CAPTURE_MODE_RELAXED);
	GIVES(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuCtxSynchronize());
	ends_invalid(stream);
	OK(cuCtxGetCurrent(&context));
	begin(stream, CU_STREAM_CAPTURE_MODE_RELAXED);
	GIVES(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuCtxRecordEvent(context, event));
	ends_invalid(stream);
	begin(stream, CU_STREAM_CAPTURE_MODE_RELAXED);
	OK(cuEventRecord(event, stream));
	GIVES(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuCtxWaitEvent(context, event));
	ends_invalid(stream);
	begin(stream, CU_STREAM_CAPTURE_MODE_RELAXED);
	OK(cuEventRecord(event, stream));
	GIVES(CUDA_ERROR_CAPTURED_EVENT, cuEventQuery(event));
	ends_invalid(stream);
	/* also where the thread may not ask for any event: the old one is not the capture's */
	mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
	OK(cuThreadExchangeStreamCaptureMode(&mode));
	begin(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
	OK(cuEventRecord(event, stream));
	GIVES(CUDA_ERROR_CAPTURED_EVENT, cuEventQuery(event));
	ends_invalid(stream);
	begin(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
	GIVES(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuEventQuery(old));
	ends_invalid(stream);
	mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	OK(cuThreadExchangeStreamCaptureMode(&mode));
	GIVES(CUDA_ERROR_CAPTURED_EVENT, cuEventSynchronize(event));
	OK(cuEventRecord(event, stream));
	OK(cuEventSynchronize(event));
	begin(stream, CU_STREAM_CAPTURE_MODE_RELAXED);
	GIVES(CUDA_ERROR_STREAM_CAPTURE_ISOLATION, cuStreamWaitEvent(stream, old, 0));
	ends_invalid(stream);
	/* the NULL stream beside a blocking stream, and not beside another */
	begin(stream, CU_STREAM_CAPTURE_MODE_RELAXED);
	OK(cuMemsetD8Async(a, 1, N, NULL));
	ends_well(stream);
	begin(blocking, CU_STREAM_CAPTURE_MODE_RELAXED);
	CUstreamCaptureStatus status;
	GIVES(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, cuStreamIsCapturing(NULL, &status));
	CHECK(status_of(blocking) == CU_STREAM_CAPTURE_STATUS_ACTIVE, "asking ended the capture");
	GIVES(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, cuMemsetD8Async(a, 1, N, NULL));
	ends_invalid(blocking);
	/* two captures do not become one */
	begin(stream, CU_STREAM_CAPTURE_MODE_RELAXED);
	begin(other, CU_STREAM_CAPTURE_MODE_RELAXED);
	OK(cuEventRecord(event, stream));
	GIVES(CUDA_ERROR_STREAM_CAPTURE_MERGE, cuStreamWaitEvent(other, event, 0));
	ends_invalid(stream);
	ends_invalid(other);
	OK(cuThreadExchangeStreamCaptureMode(&mode));
	OK(cuEventDestroy(event));
	OK(cuEventDestroy(old));
}

static void joining(CUstream stream, CUstream other)
{
	CUevent event;
	CUgraph graph;
	OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
	begin(stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
	OK(cuEventRecord(event, stream));
	OK(cuStreamWaitEvent(other, event, 0));
	GIVES(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, cuStreamEndCapture(other, &graph));
	ends_invalid(stream);
	begin(stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
	OK(cuEventRecord(event, stream));
	OK(cuStreamWaitEvent(other, event, 0));
	test_spin(spin, other, 10);
	GIVES(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, cuStreamEndCapture(stream, &graph));
	CHECK(status_of(other) == CU_STREAM_CAPTURE_STATUS_NONE, "the other stream is still in the capture");
	/* a stream that is destroyed after it was joined leaves its part; before, that cannot be joined any more */
	CUstream third;
	for (int joined = 0; joined < 2; joined++) {
		OK(cuStreamCreate(&third, CU_STREAM_NON_BLOCKING));
		begin(stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
		OK(cuEventRecord(event, stream));
		OK(cuStreamWaitEvent(third, event, 0));
		test_spin(spin, third, 10);
		OK(cuEventRecord(event, third));
		if (joined)
			OK(cuStreamWaitEvent(stream, event, 0));
		OK(cuStreamDestroy(third));
		test_spin(spin, stream, 10);
		if (joined)
			ends_well(stream);
		else
			GIVES(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, cuStreamEndCapture(stream, &graph));
	}
	/* the stream in which it began takes the capture along */
	OK(cuStreamCreate(&third, CU_STREAM_NON_BLOCKING));
	begin(third, CU_STREAM_CAPTURE_MODE_GLOBAL);
	OK(cuEventRecord(event, third));
	OK(cuStreamWaitEvent(other, event, 0));
	OK(cuStreamDestroy(third));
	CHECK(status_of(other) == CU_STREAM_CAPTURE_STATUS_NONE, "the other stream is still in the capture");
	OK(cuEventDestroy(event));
}

/* Events across the border of the graph: external ones are nodes. */
static void external_events(CUstream stream, CUstream other)
{
	CUevent in, out;
	CUgraph graph;
	CUgraphExec exec;
	CUgraphNode nodes[3];
	CUgraphNodeType type[3];
	size_t count = 3;
	OK(cuEventCreate(&in, CU_EVENT_DISABLE_TIMING));
	OK(cuEventCreate(&out, CU_EVENT_DISABLE_TIMING));
	OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
	OK(cuStreamWaitEvent(stream, in, CU_EVENT_WAIT_EXTERNAL));
	OK(cuMemsetD8Async(a, 33, N, stream));
	OK(cuEventRecordWithFlags(out, stream, CU_EVENT_RECORD_EXTERNAL));
	OK(cuStreamEndCapture(stream, &graph));
	OK(cuGraphGetNodes(graph, nodes, &count));
	for (int i = 0; i < 3; i++)
		OK(cuGraphNodeGetType(nodes[i], &type[i]));
	CHECK(count == 3 && type[0] == CU_GRAPH_NODE_TYPE_WAIT_EVENT && type[2] == CU_GRAPH_NODE_TYPE_EVENT_RECORD,
	      "%zu nodes, of types %d %d %d", count, type[0], type[1], type[2]);
	OK(cuGraphInstantiate(&exec, graph, 0));
	OK(cuGraphLaunch(exec, stream));
	OK(cuStreamWaitEvent(other, out, 0));
	OK(cuMemcpyDtoDAsync(b, a, 1, other));
	OK(cuStreamSynchronize(other));
	unsigned char byte;
	OK(cuMemcpyDtoH(&byte, b, 1));
	CHECK(byte == 33, "the byte is %d", byte);
	OK(cuGraphExecDestroy(exec));
	OK(cuGraphDestroy(graph));
}

/* ---- modes ------------------------------------------------------------------------------------------------------------ */

struct attempt {
	CUcontext context;
	CUstreamCaptureMode mode; /* the thread's */
	CUresult result;
};

/* A call that no capture sees, by another thread. */
static void *allocate(void *arg)
{
	struct attempt *attempt = arg;
	CUdeviceptr p;
	OK(cuCtxSetCurrent(attempt->context));
	CUstreamCaptureMode mode = attempt->mode;
	OK(cuThreadExchangeStreamCaptureMode(&mode));
	attempt->result = cuMemAlloc(&p, 4096);
	if (attempt->result == CUDA_SUCCESS) {
		mode = CU_STREAM_CAPTURE_MODE_RELAXED;
		OK(cuThreadExchangeStreamCaptureMode(&mode));
		OK(cuMemFree(p));
	}
	return NULL;
}

static CUresult elsewhere(CUcontext context, CUstreamCaptureMode mode)
{
	struct attempt attempt = {context, mode, CUDA_SUCCESS};
	pthread_t thread;
	CHECK(pthread_create(&thread, NULL, allocate, &attempt) == 0, "no thread");
	pthread_join(thread, NULL);
	return attempt.result;
}

static void modes(CUcontext context, CUstream stream)
{
	static const CUstreamCaptureMode G = CU_STREAM_CAPTURE_MODE_GLOBAL, L = CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
	                                 R = CU_STREAM_CAPTURE_MODE_RELAXED;
	const struct {
		CUstreamCaptureMode capture, thread;
		bool own, other; /* may the capturing thread, another one? */
	} row[] = {{G, G, false, false}, {G, L, false, true}, {G, R, true, true}, {L, G, false, true},
	           {L, L, false, true},  {L, R, true, true},  {R, G, true, true}, {R, L, true, true}};
	CUdeviceptr p;
	for (unsigned i = 0; i < sizeof(row) / sizeof(row[0]); i++) {
		CUstreamCaptureMode mode = row[i].thread;
		CUresult unsafe = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
		OK(cuThreadExchangeStreamCaptureMode(&mode));
		begin(stream, row[i].capture);
		CUresult result = cuMemAlloc(&p, 4096);
		CHECK(result == (row[i].own ? CUDA_SUCCESS : unsafe), "row %u: own thread: %d", i, result);
		if (row[i].own) {
			ends_well(stream);
			OK(cuMemFree(p));
		} else {
			ends_invalid(stream);
		}
		begin(stream, row[i].capture);
		result = elsewhere(context, row[i].thread);
		CHECK(result == (row[i].other ? CUDA_SUCCESS : unsafe), "row %u: another thread: %d", i, result);
		if (row[i].other)
			ends_well(stream);
		else
			ends_invalid(stream);
		mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
		OK(cuThreadExchangeStreamCaptureMode(&mode));
	}
}

static void *end_elsewhere(void *arg)
{
	CUgraph graph;
	return (void *)(uintptr_t)cuStreamEndCapture(*(CUstream *)arg, &graph);
}

static void wrong_thread(CUstream stream)
{
	pthread_t thread;
	void *result;
	begin(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
	CHECK(pthread_create(&thread, NULL, end_elsewhere, &stream) == 0, "no thread");
	pthread_join(thread, &result);
	/* without a current context the handle means nothing; the thread has none */
	CHECK((CUresult)(uintptr_t)result == CUDA_ERROR_INVALID_CONTEXT, "result %d", (int)(uintptr_t)result);
	ends_well(stream);
}

static void *end_with_context(void *arg)
{
	void **args = arg;
	CUgraph graph;
	OK(cuCtxSetCurrent(args[0]));
	return (void *)(uintptr_t)cuStreamEndCapture(args[1], &graph);
}

static void other_thread_ends(CUcontext context, CUstream stream)
{
	pthread_t thread;
	void *result, *args[] = {context, stream};
	begin(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
	CHECK(pthread_create(&thread, NULL, end_with_context, args) == 0, "no thread");
	pthread_join(thread, &result);
	CHECK((CUresult)(uintptr_t)result == CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD, "result %d",
	      (int)(uintptr_t)result);
	ends_well(stream);
	begin(stream, CU_STREAM_CAPTURE_MODE_RELAXED);
	CHECK(pthread_create(&thread, NULL, end_with_context, args) == 0, "no thread");
	pthread_join(thread, &result);
	CHECK((CUresult)(uintptr_t)result == CUDA_SUCCESS, "result %d", (int)(uintptr_t)result);
}

/* A launch inside a capture becomes a child. */
static void nested(CUstream stream)
{
	CUgraph graph, outer;
	CUgraphExec exec, again;
	unsigned char byte;
	OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
	OK(cuMemsetD8Async(a, 44, N, stream));
	OK(cuStreamEndCapture(stream, &graph));
	OK(cuGraphInstantiate(&exec, graph, 0));
	OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
	OK(cuGraphLaunch(exec, stream));
	OK(cuMemcpyDtoDAsync(b, a, 1, stream));
	OK(cuStreamEndCapture(stream, &outer));
	OK(cuGraphInstantiate(&again, outer, 0));
	OK(cuMemsetD8(a, 0, N));
	OK(cuGraphLaunch(again, stream));
	OK(cuStreamSynchronize(stream));
	OK(cuMemcpyDtoH(&byte, b, 1));
	CHECK(byte == 44, "the byte is %d", byte);
}

int main(void)
{
	CUstream stream, other, blocking;
	CUcontext context = test_context("zero", 0);
	spin = test_function("spin_ns");
	OK(cuMemAlloc(&a, N));
	OK(cuMemAlloc(&b, N));
	OK(cuMemAlloc(&c, N));
	OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	OK(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
	OK(cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
	equal_to_direct(stream, other);
	thousand(stream);
	questions(stream);
	conflicts(stream, blocking, other);
	joining(stream, other);
	external_events(stream, other);
	modes(context, stream);
	wrong_thread(stream);
	other_thread_ends(context, stream);
	nested(stream);
	begin(stream, CU_STREAM_CAPTURE_MODE_GLOBAL); /* the context takes it along */
	OK(cuDevicePrimaryCtxRelease(0));
	return 0;
}
