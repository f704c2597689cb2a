/* synchronise.c: the calls after which work is known to be over, and a stream-ordered pool may have given memory back.
 *
 * Called by every program that waits for a stream, an event or a context, or asks whether it would have to. Without a look
 * at the pool afterwards its memory would stay charged to the share until this process allocates again, and a neighbour in
 * the container would be refused memory that nobody has. The gate learns here, without asking the driver, that what was
 * launched is over. A process that never used a pool and is under no gate pays two loads.
 */
#include "gate.h"
#include "hooks.h"
#include "memory.h"

static void looked(void)
{
	if (vgpu_mode() != VGPU_FREE)
		vgpu_pools_synchronised();
}

static CUstream own(CUstream stream)
{
	return stream ? stream : CU_STREAM_PER_THREAD;
}

CUresult hook_cuStreamSynchronize(CUstream hStream)
{
	struct vgpu_ticket ticket = vgpu_gate_ticket();
	CUresult result = real_cuStreamSynchronize(hStream);
	if (result == CUDA_SUCCESS)
		vgpu_gate_told(&ticket, VGPU_OVER_STREAM, hStream);
	looked();
	return result;
}

CUresult hook_cuStreamSynchronize_ptsz(CUstream hStream)
{
	struct vgpu_ticket ticket = vgpu_gate_ticket();
	CUresult result = real_cuStreamSynchronize_ptsz(hStream);
	if (result == CUDA_SUCCESS)
		vgpu_gate_told(&ticket, VGPU_OVER_STREAM, own(hStream));
	looked();
	return result;
}

CUresult hook_cuStreamQuery(CUstream hStream)
{
	struct vgpu_ticket ticket = vgpu_gate_ticket();
	CUresult result = real_cuStreamQuery(hStream);
	if (result == CUDA_SUCCESS)
		vgpu_gate_told(&ticket, VGPU_OVER_STREAM, hStream);
	return result;
}

CUresult hook_cuStreamQuery_ptsz(CUstream hStream)
{
	struct vgpu_ticket ticket = vgpu_gate_ticket();
	CUresult result = real_cuStreamQuery_ptsz(hStream);
	if (result == CUDA_SUCCESS)
		vgpu_gate_told(&ticket, VGPU_OVER_STREAM, own(hStream));
	return result;
}

CUresult hook_cuEventSynchronize(CUevent hEvent)
{
	struct vgpu_ticket ticket = vgpu_gate_ticket();
	CUresult result = real_cuEventSynchronize(hEvent);
	if (result == CUDA_SUCCESS)
		vgpu_gate_told(&ticket, VGPU_OVER_SOME, NULL);
	looked();
	return result;
}

CUresult hook_cuEventQuery(CUevent hEvent)
{
	struct vgpu_ticket ticket = vgpu_gate_ticket();
	CUresult result = real_cuEventQuery(hEvent);
	if (result == CUDA_SUCCESS)
		vgpu_gate_told(&ticket, VGPU_OVER_SOME, NULL);
	return result;
}

CUresult hook_cuCtxSynchronize(void)
{
	struct vgpu_ticket ticket = vgpu_gate_ticket();
	CUresult result = real_cuCtxSynchronize();
	if (result == CUDA_SUCCESS)
		vgpu_gate_told(&ticket, VGPU_OVER_CONTEXT, NULL);
	looked();
	return result;
}

/* Of any context: the marks tell. */
CUresult hook_cuCtxSynchronize_v2(CUcontext ctx)
{
	struct vgpu_ticket ticket = vgpu_gate_ticket();
	CUresult result = real_cuCtxSynchronize_v2(ctx);
	if (result == CUDA_SUCCESS)
		vgpu_gate_told(&ticket, VGPU_OVER_SOME, NULL);
	looked();
	return result;
}
