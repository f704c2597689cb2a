/* synchronise.c: the calls after which a stream-ordered pool may have given memory back to the card.
 *
 * Called by every program that waits for a stream, an event or a context. Without a look at the pool afterwards its
 * memory would stay charged to the share until this process allocates again, and a neighbour in the container would be
 * refused memory that nobody has. A process that never used a pool pays one load.
 */
#include "hooks.h"
#include "memory.h"

static CUresult looked(CUresult result)
{
	if (vgpu_mode() != VGPU_FREE)
		vgpu_pools_synchronised();
	return result;
}

CUresult hook_cuStreamSynchronize(CUstream hStream)
{
	return looked(real_cuStreamSynchronize(hStream));
}

CUresult hook_cuStreamSynchronize_ptsz(CUstream hStream)
{
	return looked(real_cuStreamSynchronize_ptsz(hStream));
}

CUresult hook_cuEventSynchronize(CUevent hEvent)
{
	return looked(real_cuEventSynchronize(hEvent));
}

CUresult hook_cuCtxSynchronize(void)
{
	return looked(real_cuCtxSynchronize());
}

CUresult hook_cuCtxSynchronize_v2(CUcontext ctx)
{
	return looked(real_cuCtxSynchronize_v2(ctx));
}
