/* gate.h: whether a launch may go to the driver now.
 *
 * The generated entries of the launch calls (hook/gen/emit_stubs.py) load the word behind `vgpu_gate_at` and go on to the
 * driver while it is 0. Else their C functions come here, before and after the driver's. */
#ifndef PARTAGE_SHIM_GATE_H
#define PARTAGE_SHIM_GATE_H

#include <cuda.h>
#include <stdint.h>

/* Never NULL. The word has one bit per device index of the policy, 1 = launches there wait for turns, and may lie in a
 * mapping that somebody else writes: a process that nobody gates loads two words per launch and writes none. Points to a
 * word that is always 0 until this process is under a gate, and again in a fork's child. */
extern const uint32_t *vgpu_gate_at;

/* One launch between the gate and the driver's return. */
struct vgpu_launch {
	uint64_t *entries; /* where it is counted; NULL: not at all */
};

/* The driver may be called, and vgpu_gate_leave() is due then; else the error that the program gets. */
CUresult vgpu_gate_enter(struct vgpu_launch *launch, CUstream stream);
void vgpu_gate_leave(struct vgpu_launch *launch);

#endif
