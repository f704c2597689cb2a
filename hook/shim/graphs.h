/* graphs.h: what graph_hooks.c and graph_charge.c share, and pool.c asks of them. */
#ifndef PARTAGE_SHIM_GRAPHS_H
#define PARTAGE_SHIM_GRAPHS_H

#include "shim.h"

/* ---- graph_charge.c ---------------------------------------------------------------------------------------------- */

/* By which bound on its growth a call goes on; see graph_charge.c. */
enum vgpu_graph_kind { VGPU_GRAPH_NONE, VGPU_GRAPH_PLAIN, VGPU_GRAPH_BOUNDED, VGPU_GRAPH_ALONE };
struct vgpu_graph_call {
	enum vgpu_graph_kind kind;
	uint64_t step; /* bytes reserved for it */
};

/* Before and after a call that may take memory for an executable which allocates these bytes on the device; `first`: it
 * never did before. CUDA_ERROR_OUT_OF_MEMORY: it may not, and nothing is charged. */
CUresult vgpu_graph_begin(CUdevice device, uint64_t bytes, bool first, struct vgpu_graph_call *call);
void vgpu_graph_end(CUdevice device, const struct vgpu_graph_call *call);
/* The executable is gone, or (`unused`) never took its memory after all. */
void vgpu_graph_forget(CUdevice device, uint64_t bytes, bool unused);
CUresult vgpu_graph_trim(CUdevice device);
bool vgpu_graph_yield(CUdevice device); /* trims what graphs keep unused, for other kinds of memory; true if any went */
bool vgpu_graph_reconcile(CUdevice device); /* reads again what graphs hold; true if memory was given back */
void vgpu_graph_charge_forked(void);

/* ---- graph_hooks.c ----------------------------------------------------------------------------------------------- */

void vgpu_graph_allocates(void); /* a node that allocates is about to be made */
void vgpu_graph_forked(void);

#endif
