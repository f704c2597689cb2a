/* deferred.c: blocks of ordinary memory that were freed in stream order, behind work that has not run yet.
 *
 * Called by the hooks of cuMemFreeAsync, for memory unmapped from arrays in stream order, by whoever is about to refuse an allocation, and by queries. Until the stream
 * has passed the free the driver still holds the memory, so the charge stays: an event behind the free tells when it
 * may go.
 * What can go wrong: no event can be had. Then the charge stays until the context is destroyed: too much, never too
 * little.
 */
#include <pthread.h>
#include <stdlib.h>

#include "hooks.h"
#include "memory.h"

struct deferred {
	struct vgpu_block block;
	void (*done)(void *what); /* instead of a block that is to be settled */
	void *what;
	CUcontext context; /* of the event */
	CUevent event;
	struct deferred *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct deferred *list;

static void push(struct deferred *d)
{
	pthread_mutex_lock(&lock);
	d->next = list;
	list = d;
	pthread_mutex_unlock(&lock);
}

static struct deferred *take_all(void)
{
	pthread_mutex_lock(&lock);
	struct deferred *all = list;
	list = NULL;
	pthread_mutex_unlock(&lock);
	return all;
}

/* An event behind everything queued on the stream so far, made in the stream's own context. */
static CUevent mark(CUstream stream, CUcontext *context)
{
	CUevent event = NULL;
	CUcontext old;
	if (real_cuStreamGetCtx(stream, context) != CUDA_SUCCESS && real_cuCtxGetCurrent(context) != CUDA_SUCCESS)
		return NULL;
	if (real_cuCtxPushCurrent_v2(*context) != CUDA_SUCCESS)
		return NULL;
	*context = vgpu_plain_context(*context); /* the stream's may be a green one: the block lies in the primary */
	if (real_cuEventCreate(&event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS)
		event = NULL;
	else if (real_cuEventRecord(event, stream) != CUDA_SUCCESS) {
		real_cuEventDestroy_v2(event);
		event = NULL;
	}
	real_cuCtxPopCurrent_v2(&old);
	return event;
}

static void finish(const struct deferred *d)
{
	if (d->done != NULL)
		d->done(d->what);
	else
		vgpu_block_settle(&d->block);
}

static void defer(const struct deferred *what, CUstream stream)
{
	CUstreamCaptureMode before = vgpu_relax();
	struct deferred *d = NULL;
	if (real_cuStreamQuery(stream) == CUDA_SUCCESS) {
		finish(what);
	} else if ((d = calloc(1, sizeof(*d))) != NULL) {
		*d = *what;
		d->event = mark(stream, &d->context);
		push(d);
	}
	vgpu_unrelax(before);
}

void vgpu_defer(const struct vgpu_block *block, CUstream stream)
{
	defer(&(struct deferred){.block = *block}, stream);
}

void vgpu_defer_done(CUdevice device, void (*done)(void *what), void *what, CUstream stream)
{
	defer(&(struct deferred){.block = {.device = device}, .done = done, .what = what}, stream);
}

bool vgpu_deferred_poll(CUdevice device)
{
	bool settled = vgpu_descriptors_poll();
	struct deferred *next;
	struct deferred *all = take_all();
	if (all == NULL)
		return settled;
	CUstreamCaptureMode before = vgpu_relax();
	for (struct deferred *d = all; d != NULL; d = next) {
		next = d->next;
		bool done =
		        d->block.device == device && d->event != NULL && real_cuEventQuery(d->event) == CUDA_SUCCESS;
		if (!done) {
			push(d);
			continue;
		}
		real_cuEventDestroy_v2(d->event);
		finish(d);
		free(d);
		settled = true;
	}
	vgpu_unrelax(before);
	return settled;
}

/* The context has been destroyed, and with it its events and, where they lay in it, the blocks. */
void vgpu_deferred_drop(CUcontext context)
{
	struct deferred *next;
	for (struct deferred *d = take_all(); d != NULL; d = next) {
		next = d->next;
		if (d->context == context)
			d->event = NULL;
		if (d->done != NULL ? d->context == context : d->block.context == context) {
			finish(d);
			free(d);
		} else {
			push(d);
		}
	}
}

void vgpu_deferred_forked(void)
{
	pthread_mutex_init(&lock, NULL);
	list = NULL;
}
