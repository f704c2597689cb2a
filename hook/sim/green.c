/* green.c: the life of green contexts, and what they tell about themselves.
 *
 * Called by programs, and by context.c where a primary context ends under its green ones. What can go wrong: no memory on
 * the card for one more (CUDA_ERROR_OUT_OF_MEMORY), a descriptor of another device, a green context that is gone; its
 * streams answer CUDA_ERROR_STREAM_DETACHED then.
 */
#include "green.h"

#include <stdlib.h>

#include "capture.h"
#include "context.h"
#include "sim_impl.h"
#include "visible.h"

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* guards the list */
static struct sim_green *greens;                          /* live ones */
static uint64_t last_id;

static struct sim_green *green_of(CUgreenCtx handle)
{
	return sim_handle_is(handle, SIM_TAG_GREEN) ? (struct sim_green *)handle : NULL;
}

struct sim_green *sim_green_of(CUcontext handle)
{
	if (!sim_handle_is(handle, SIM_TAG_GREEN_CONTEXT))
		return NULL;
	return (struct sim_green *)((char *)handle - offsetof(struct sim_green, context));
}

bool sim_green_alive(const struct sim_green *green)
{
	return __atomic_load_n(&green->alive, __ATOMIC_ACQUIRE);
}

unsigned sim_green_sms(const struct sim_green *green)
{
	unsigned count = 0;
	for (int i = 0; i < SIM_SM_WORDS; i++)
		count += (unsigned)__builtin_popcountll(green->sms.bits[i]);
	return count;
}

static CUresult live(CUgreenCtx handle, struct sim_green **green)
{
	if (!sim_initialized())
		return CUDA_ERROR_NOT_INITIALIZED;
	*green = green_of(handle);
	if (!*green)
		return CUDA_ERROR_INVALID_CONTEXT;
	return sim_green_alive(*green) ? CUDA_SUCCESS : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

/* ---- making and ending ------------------------------------------------------------------------------------------ */

static CUresult open_green(struct sim_green *green, int device, bool own_stream)
{
	struct sim_context *primary;
	CUresult result = sim_primary_retain(device, &primary);
	if (result != CUDA_SUCCESS)
		return result;
	green->primary = primary;
	green->primary_id = primary->id;
	green->id = __atomic_add_fetch(&last_id, 1, __ATOMIC_RELAXED);
	if (sim_account(device, (int64_t)sim_machine->model[device].context, true) < 0) {
		sim_primary_release(primary, primary->id);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	green->own = own_stream ? sim_green_stream_new(green, CU_STREAM_NON_BLOCKING, 0) : NULL;
	if (own_stream && !green->own) {
		sim_account(device, -(int64_t)sim_machine->model[device].context, true);
		sim_primary_release(primary, primary->id);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	pthread_mutex_lock(&mutex);
	green->next = greens;
	greens = green;
	__atomic_store_n(&green->alive, true, __ATOMIC_RELEASE);
	pthread_mutex_unlock(&mutex);
	return CUDA_SUCCESS;
}

/* With the mutex held; false: another thread was first. */
static bool unlink_green(struct sim_green *green)
{
	struct sim_green **link = &greens;
	while (*link && *link != green)
		link = &(*link)->next;
	if (!*link)
		return false;
	*link = green->next;
	__atomic_store_n(&green->alive, false, __ATOMIC_RELEASE);
	return true;
}

/* It is off the list: nobody else ends it. Programs still hold its streams, which have no context any more. */
static void end_green(struct sim_green *green)
{
	struct sim_context *primary = green->primary;
	pthread_mutex_lock(&sim_engine_mutex);
	unsigned count = 0;
	for (const struct sim_stream *stream = primary->streams; stream; stream = stream->next)
		count += stream->green == green;
	struct sim_stream **held = count ? calloc(count, sizeof(*held)) : NULL;
	unsigned n = 0;
	for (struct sim_stream *stream = primary->streams; held && stream; stream = stream->next)
		if (stream->green == green)
			(held[n++] = stream)->refs++;
	pthread_mutex_unlock(&sim_engine_mutex);
	for (unsigned i = 0; i < n; i++)
		sim_capture_forbids(held[i]);
	pthread_mutex_lock(&sim_engine_mutex);
	for (unsigned i = 0; i < n; i++) {
		held[i]->refs--;
		sim_stream_reap(held[i]);
	}
	pthread_mutex_unlock(&sim_engine_mutex);
	free(held);
	if (green->own)
		sim_stream_drop(green->own);
	if (green->order)
		sim_lane_close(green->order);
	green->own = green->order = NULL;
	sim_account(primary->device, -(int64_t)sim_machine->model[primary->device].context, true);
}

void sim_greens_close(struct sim_context *primary)
{
	for (;;) {
		pthread_mutex_lock(&mutex);
		struct sim_green *green = greens;
		while (green && green->primary != primary)
			green = green->next;
		if (green)
			unlink_green(green);
		pthread_mutex_unlock(&mutex);
		if (!green)
			return;
		end_green(green);
	}
}

CUresult sim_cuGreenCtxCreate(CUgreenCtx *phCtx, CUdevResourceDesc desc, CUdevice dev, unsigned int flags)
{
	int device;
	CUresult result = sim_device_of(dev, &device);
	if (result != CUDA_SUCCESS)
		return result;
	if (!phCtx || !sim_handle_is(desc, SIM_TAG_RESOURCE_DESC) || (flags & ~(unsigned)CU_GREEN_CTX_DEFAULT_STREAM))
		return CUDA_ERROR_INVALID_VALUE;
	const struct sim_resource_desc *wanted = (const struct sim_resource_desc *)desc;
	if (wanted->sms.device != device)
		return CUDA_ERROR_INVALID_VALUE;
	if (__atomic_load_n(&sim_machine->device[device].lost, __ATOMIC_ACQUIRE))
		return SIM_ERROR_LOST;
	struct sim_green *green = calloc(1, sizeof(*green));
	if (!green)
		return CUDA_ERROR_OUT_OF_MEMORY;
	green->tag = SIM_TAG_GREEN;
	green->sms = wanted->sms;
	green->sms.split = 0; /* what it has may be split again */
	green->workqueues = wanted->workqueues;
	result = open_green(green, device, flags & CU_GREEN_CTX_DEFAULT_STREAM);
	if (result != CUDA_SUCCESS) {
		free(green);
		return result;
	}
	sim_handle_add(green, SIM_TAG_GREEN);
	sim_handle_add(&green->context, SIM_TAG_GREEN_CONTEXT);
	*phCtx = (CUgreenCtx)green;
	return CUDA_SUCCESS;
}

CUresult sim_cuGreenCtxDestroy(CUgreenCtx hCtx)
{
	struct sim_green *green;
	CUresult result = live(hCtx, &green);
	if (result != CUDA_SUCCESS)
		return result;
	pthread_mutex_lock(&mutex);
	bool own = unlink_green(green);
	pthread_mutex_unlock(&mutex);
	if (!own)
		return CUDA_ERROR_CONTEXT_IS_DESTROYED;
	end_green(green);
	sim_primary_release(green->primary, green->primary_id);
	return CUDA_SUCCESS;
}

/* ---- what it is --------------------------------------------------------------------------------------------------- */

CUresult sim_cuCtxFromGreenCtx(CUcontext *pContext, CUgreenCtx hCtx)
{
	struct sim_green *green;
	CUresult result = live(hCtx, &green);
	if (result != CUDA_SUCCESS)
		return result == CUDA_ERROR_CONTEXT_IS_DESTROYED ? CUDA_ERROR_INVALID_CONTEXT : result;
	if (!pContext)
		return CUDA_ERROR_INVALID_VALUE;
	*pContext = (CUcontext)&green->context;
	return CUDA_SUCCESS;
}

CUresult sim_cuGreenCtxGetId(CUgreenCtx greenCtx, unsigned long long *greenCtxId)
{
	struct sim_green *green = NULL;
	CUresult result = CUDA_SUCCESS;
	if (!sim_initialized())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (greenCtx)
		result = live(greenCtx, &green);
	else if (sim_thread.depth)
		green = sim_thread.green[sim_thread.depth - 1];
	if (result == CUDA_SUCCESS && !green)
		result = CUDA_ERROR_INVALID_CONTEXT;
	if (result == CUDA_SUCCESS && !sim_green_alive(green))
		result = CUDA_ERROR_CONTEXT_IS_DESTROYED;
	if (result != CUDA_SUCCESS)
		return result;
	if (!greenCtxId)
		return CUDA_ERROR_INVALID_VALUE;
	*greenCtxId = green->id;
	return CUDA_SUCCESS;
}

CUresult sim_cuGreenCtxStreamCreate(CUstream *phStream, CUgreenCtx greenCtx, unsigned int flags, int priority)
{
	struct sim_green *green;
	CUresult result = live(greenCtx, &green);
	if (result != CUDA_SUCCESS)
		return CUDA_ERROR_INVALID_CONTEXT == result || CUDA_ERROR_NOT_INITIALIZED == result
		               ? result
			       : CUDA_ERROR_INVALID_CONTEXT;
	if (!phStream || flags != CU_STREAM_NON_BLOCKING)
		return CUDA_ERROR_INVALID_VALUE;
	result = sim_context_error(green->primary);
	if (result != CUDA_SUCCESS)
		return result;
	struct sim_stream *stream = sim_green_stream_new(green, flags, priority);
	if (!stream)
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = sim_green_join(stream);
	if (result != CUDA_SUCCESS) {
		sim_stream_drop(stream);
		return result;
	}
	sim_handle_add(stream, SIM_TAG_STREAM);
	*phStream = (CUstream)stream;
	return CUDA_SUCCESS;
}
