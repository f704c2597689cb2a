/* gate.h: whether a launch may go to the driver now.
 *
 * The generated entries of the launch calls (hook/gen/emit_stubs.py) load the word behind `vgpu_gate_at` and go on to the
 * driver while it is 0. Else their C functions come here. A thread that holds a turn has been given a number of launches
 * that it may make without a further look: its entry says in a flag of its own that it is between gate and driver, compares
 * what it saw with what is there, and counts down; no clock, no atomic instruction, no lock. All else is the slow way,
 * vgpu_gate_enter() (gate.c). Large copies and fills take the slow way each time (gate_copy.c). */
#ifndef PARTAGE_SHIM_GATE_H
#define PARTAGE_SHIM_GATE_H

#include <cuda.h>
#include <stdbool.h>
#include <stdint.h>

#define VGPU_HIDDEN __attribute__((visibility("hidden")))

extern VGPU_HIDDEN const uint32_t *vgpu_gate_at; /* setup.c; see core.h */

/* Counts up when what threads were given no longer holds: this process has told the arbiter that it is idle, or a stream
 * begins to capture. */
extern VGPU_HIDDEN uint32_t vgpu_gate_epoch;

/* What one thread was given. Lies on pages that are never freed while the process lives, and are zero in a fork's child;
 * the first line is the thread's own way, the second belongs to the gate's lock. */
struct vgpu_gate_thread {
	uint32_t entered; /* 1: between gate and driver, or on the way; read by others after a membarrier */
	uint32_t left; /* launches that it may still make */
	CUstream stream; /* all of them on this one, as most calls name it */
	const uint32_t *word; /* the turn's, */
	uint32_t seen; /* as it was, */
	uint32_t epoch; /* and the epoch */
	CUstream own; /* the same as `stream`, as calls for per-thread streams name it */
	uint64_t reserved[3];
	uint32_t used; /* some living thread's */
	int32_t device; /* index of the launches below */
	uint32_t granted; /* `left` was that when it was given */
	uint32_t since; /* launches on `stream` without a mark behind them, besides granted - left */
	uint32_t unmarked; /* the same on any stream */
	uint32_t inside; /* 1 + device: in the driver by the slow way */
	uint32_t waiting; /* 1 + device: counted in `want` */
	uint32_t tail_seen; /* unmarked launches when somebody looked */
	uint64_t tail_at; /* since when they are that many */
} __attribute__((aligned(64)));

/* The calling thread's; one that nobody owns before its first slow way. */
extern VGPU_HIDDEN __thread struct vgpu_gate_thread *vgpu_gate_self __attribute__((tls_model("initial-exec")));

/* A launch that was made without a further look has returned. */
static inline void vgpu_gate_passed(void)
{
	__atomic_store_n(&vgpu_gate_self->entered, 0, __ATOMIC_RELEASE);
}

enum vgpu_work { VGPU_WORK_KERNEL, VGPU_WORK_GRAPH, VGPU_WORK_COPY, VGPU_WORKS };

/* One launch on the slow way. The caller fills in the first two. */
struct vgpu_launch {
	CUstream stream; /* as an explicit handle: CU_STREAM_PER_THREAD, not NULL, in a call for per-thread streams */
	enum vgpu_work work;
	int device; /* index in policy and ledger; below 0: it is not under the gate */
	uint32_t word; /* of the turn, as it was seen */
	bool mark; /* an event is due behind it */
	uint64_t begun_ns;
};

/* Waits where it has to. The driver may be called then, and after it vgpu_gate_leave() with its answer. */
void vgpu_gate_enter(struct vgpu_launch *launch);
void vgpu_gate_leave(struct vgpu_launch *launch, CUresult result);
/* One launch on several devices: turns of all of them, in the order of the list. */
void vgpu_gate_enter_list(struct vgpu_launch *launch, const CUDA_LAUNCH_PARAMS *list, unsigned count);
void vgpu_gate_leave_list(struct vgpu_launch *launch, unsigned count, CUresult result);
#define VGPU_LAUNCH_DEVICES 16

/* gate_copy.c: whether a copy or fill of so many bytes has to wait for a turn. */
bool vgpu_gate_large(uint64_t bytes);
bool vgpu_gate_between(CUdeviceptr dst, CUdeviceptr src, uint64_t bytes); /* of unknown sides */
bool vgpu_gate_box(CUmemorytype to, CUdeviceptr dst, CUmemorytype from, CUdeviceptr src, uint64_t bytes);
bool vgpu_gate_batch(const CUdeviceptr *dst, const CUdeviceptr *src, const size_t *bytes, size_t count);
bool vgpu_gate_boxes(const CUDA_MEMCPY3D_BATCH_OP *op, size_t count);

/* ---- what the rest of the library tells the gate --------------------------------------------------------------------- */

/* Devices on which this process has, or may have, work in flight under the gate: bit by index. */
extern VGPU_HIDDEN uint32_t vgpu_gate_busy;

/* Work that was queued before the ticket was drawn is over. */
enum vgpu_over {
	VGPU_OVER_SOME, /* some of it: the marks tell */
	VGPU_OVER_STREAM, /* on this stream */
	VGPU_OVER_CONTEXT, /* in the current context */
};
struct vgpu_ticket {
	uint64_t mark; /* 0: nothing is in flight */
	uint64_t loose;
};
void vgpu_gate_draw(struct vgpu_ticket *ticket);
void vgpu_gate_over(const struct vgpu_ticket *ticket, enum vgpu_over what, CUstream stream);

static inline struct vgpu_ticket vgpu_gate_ticket(void)
{
	struct vgpu_ticket ticket = {0};

	if (__builtin_expect(__atomic_load_n(&vgpu_gate_busy, __ATOMIC_RELAXED) != 0, 0))
		vgpu_gate_draw(&ticket);
	return ticket;
}

static inline void vgpu_gate_told(const struct vgpu_ticket *ticket, enum vgpu_over what, CUstream stream)
{
	if (__builtin_expect(ticket->mark != 0, 0))
		vgpu_gate_over(ticket, what, stream);
}

/* Around a call of the driver that may end a context: nobody asks about its events meanwhile. Then those of `gone`, not
 * NULL, are forgotten. */
void vgpu_gate_context_begin(void);
void vgpu_gate_context_end(CUcontext gone);

#endif
