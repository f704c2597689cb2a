/* gate_capture.c: streams that capture: what is launched into them does not run, so it neither waits nor counts.
 *
 * Hooks the calls that begin and end captures, whether this process is under a gate or not: a capture may have begun
 * before. While any stream captures, threads are given no launches in advance, and each launch asks for its own stream.
 * What can go wrong: a capture ends unseen, with its stream. Each launch then asks for ever after, and goes on. */
#include "gate_core.h"

static uint32_t captures; /* that have begun, as far as we know */
static uint32_t held; /* somebody makes a call that would end captures */

bool gate_any_capture(void)
{
	return __atomic_load_n(&captures, __ATOMIC_SEQ_CST) != 0;
}

static bool is_capturing(CUstream stream)
{
	CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
	return real_cuStreamIsCapturing(stream, &status) == CUDA_SUCCESS && status != CU_STREAM_CAPTURE_STATUS_NONE;
}

bool gate_capturing(CUstream stream)
{
	/* The NULL stream cannot capture, and asking for it is an error beside a blocking stream that does. */
	return gate_any_capture() && stream != NULL && stream != CU_STREAM_LEGACY && is_capturing(stream);
}

bool gate_hold_captures(void)
{
	__atomic_add_fetch(&held, 1, __ATOMIC_SEQ_CST);
	if (!gate_any_capture())
		return true;
	gate_release_captures();
	return false;
}

void gate_release_captures(void)
{
	__atomic_sub_fetch(&held, 1, __ATOMIC_SEQ_CST);
}

static void begin(void)
{
	__atomic_add_fetch(&captures, 1, __ATOMIC_SEQ_CST);
	__atomic_add_fetch(&vgpu_gate_epoch, 1, __ATOMIC_SEQ_CST);
	/* Whoever holds is inside one call that does not block. The bound is for a thread that was killed in it. */
	for (int i = 0; i < 10000 && __atomic_load_n(&held, __ATOMIC_SEQ_CST); i++)
		vgpu_pause_ns(20000);
}

static CUresult begun(CUresult result)
{
	if (result != CUDA_SUCCESS)
		__atomic_sub_fetch(&captures, 1, __ATOMIC_SEQ_CST);
	return result;
}

static CUresult ended(bool before, CUstream stream, CUresult result)
{
	if (before && !is_capturing(stream) && gate_any_capture())
		__atomic_sub_fetch(&captures, 1, __ATOMIC_SEQ_CST);
	return result;
}

static CUstream own(CUstream stream)
{
	return stream ? stream : CU_STREAM_PER_THREAD;
}

CUresult hook_cuStreamBeginCapture(CUstream hStream)
{
	begin();
	return begun(real_cuStreamBeginCapture(hStream));
}

CUresult hook_cuStreamBeginCapture_ptsz(CUstream hStream)
{
	begin();
	return begun(real_cuStreamBeginCapture_ptsz(hStream));
}

CUresult hook_cuStreamBeginCapture_v2(CUstream hStream, CUstreamCaptureMode mode)
{
	begin();
	return begun(real_cuStreamBeginCapture_v2(hStream, mode));
}

CUresult hook_cuStreamBeginCapture_v2_ptsz(CUstream hStream, CUstreamCaptureMode mode)
{
	begin();
	return begun(real_cuStreamBeginCapture_v2_ptsz(hStream, mode));
}

CUresult hook_cuStreamBeginCaptureToGraph(CUstream hStream, CUgraph hGraph, const CUgraphNode *dependencies,
                                          const CUgraphEdgeData *dependencyData, size_t numDependencies,
                                          CUstreamCaptureMode mode)
{
	begin();
	return begun(
	        real_cuStreamBeginCaptureToGraph(hStream, hGraph, dependencies, dependencyData, numDependencies, mode));
}

CUresult hook_cuStreamBeginCaptureToGraph_ptsz(CUstream hStream, CUgraph hGraph, const CUgraphNode *dependencies,
                                               const CUgraphEdgeData *dependencyData, size_t numDependencies,
                                               CUstreamCaptureMode mode)
{
	begin();
	return begun(real_cuStreamBeginCaptureToGraph_ptsz(hStream, hGraph, dependencies, dependencyData,
	                                                   numDependencies, mode));
}

CUresult hook_cuStreamEndCapture(CUstream hStream, CUgraph *phGraph)
{
	bool before = gate_any_capture() && is_capturing(hStream);
	return ended(before, hStream, real_cuStreamEndCapture(hStream, phGraph));
}

CUresult hook_cuStreamEndCapture_ptsz(CUstream hStream, CUgraph *phGraph)
{
	bool before = gate_any_capture() && is_capturing(own(hStream));
	return ended(before, own(hStream), real_cuStreamEndCapture_ptsz(hStream, phGraph));
}
