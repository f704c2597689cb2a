/* green.h: green contexts (green.c, green_event.c) and the device resources that they are made from (green_resource.c).
 *
 * A green context is the device's primary context with a part of its SMs: memory and code are the primary's, streams know
 * which green context they belong to, and kernels in them have only its SMs. It keeps the primary context alive, and
 * takes as much memory of its own as a context does (its queues). Structures are never freed, like contexts: a thread may
 * have a destroyed one current.
 */
#ifndef PARTAGE_SIM_GREEN_H
#define PARTAGE_SIM_GREEN_H

#include "engine.h"

#define SIM_SM_WORDS 9 /* of 64 SMs each */

/* The SMs of a resource, in the part of CUdevResource that is the driver's own. */
struct sim_sms {
	uint32_t magic;
	int32_t device; /* physical index */
	uint32_t split; /* number of the split that made it; 0: as a device or context has them */
	uint32_t align;
	uint64_t bits[SIM_SM_WORDS];
};

struct sim_green {
	uint32_t tag;
	bool alive;
	struct sim_context *primary;
	uint64_t primary_id; /* of the life of the primary context that it belongs to */
	uint64_t id;
	struct sim_sms sms;
	CUdevWorkqueueConfigResource workqueues;
	struct sim_stream *own; /* CU_GREEN_CTX_DEFAULT_STREAM; NULL: the primary context's */
	struct sim_stream *order; /* green_event.c: what all its streams wait for; made when first needed */
	struct sim_green *next; /* of the same process */
	char context; /* its address is what cuCtxFromGreenCtx gives */
};

bool sim_green_alive(const struct sim_green *green);
struct sim_green *sim_green_of(CUcontext handle); /* from cuCtxFromGreenCtx, live or not; NULL: some other context */
/* The primary context is about to end, whoever still needs it. */
void sim_greens_close(struct sim_context *primary);
unsigned sim_green_sms(const struct sim_green *green); /* how many */

/* green_event.c: a stream that was just made in a green context waits for what the context waits for. */
CUresult sim_green_join(struct sim_stream *stream);

/* green_resource.c: what a descriptor says. */
struct sim_resource_desc {
	uint32_t tag;
	struct sim_sms sms;
	CUdevWorkqueueConfigResource workqueues;
};
void sim_device_sms(int device, struct sim_sms *sms);
void sim_device_workqueues(int device, CUdevWorkqueueConfigResource *workqueues);

/* stream.c: for a green context. */
struct sim_stream *sim_green_stream_new(struct sim_green *green, unsigned flags, int priority);
void sim_stream_drop(struct sim_stream *stream); /* one without a handle */
/* context.c: what cuDevicePrimaryCtxRetain does, and the release of it, where the context still has this life. */
CUresult sim_primary_retain(int device, struct sim_context **context);
void sim_primary_release(struct sim_context *context, uint64_t id);

#endif
