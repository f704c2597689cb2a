/* context.c: a context's life, primary and created, and which one is current in a thread.
 *
 * Called by nearly every other entry point through sim_require(). Context structures are never freed: a thread may have
 * a destroyed context on its stack, and must learn CUDA_ERROR_CONTEXT_IS_DESTROYED from it. A context takes
 * model.context bytes and model.context_ms of time. What can go wrong: no memory left on the card for one more.
 */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "context.h"
#include "green.h"
#include "sim_impl.h"
#include "visible.h"

#define STACK_DEPTH (int)(sizeof((struct sim_thread){0}.stack) / sizeof(struct sim_context *))

/* Guards a device's primary context and the number of contexts on it. */
static struct {
	pthread_mutex_t mutex;
	struct sim_context *primary;
	unsigned retained;
	unsigned contexts;
} devices[SIM_DEVICES] = {[0 ... SIM_DEVICES - 1] = {.mutex = PTHREAD_MUTEX_INITIALIZER}};

static uint64_t next_id;

/* ---- making and ending ------------------------------------------------------------------------------------------ */

static struct sim_context *new_context(int device, unsigned flags, bool primary)
{
	struct sim_context *context = calloc(1, sizeof *context);

	if (!context)
		return NULL;
	context->tag = SIM_TAG_CONTEXT;
	context->device = device;
	context->ordinal = sim_ordinal(device);
	context->primary = primary;
	context->flags = flags;
	context->api_version = 3020;
	return context;
}

static void sleep_ms(uint32_t ms)
{
	uint64_t until = sim_now() + (uint64_t)ms * 1000000;
	struct timespec t = {.tv_sec = (time_t)(until / 1000000000), .tv_nsec = (long)(until % 1000000000)};

	while (ms && clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR)
		;
}

/* The profile's, or what an armed "slow-context" fault says. */
static uint32_t creation_ms(int device)
{
	uint32_t ms = sim_machine->model[device].context_ms,
	         n = __atomic_load_n(&sim_machine->faults, __ATOMIC_ACQUIRE);

	for (uint32_t i = 0; i < n && i < SIM_FAULTS; i++) {
		struct sim_fault *fault = &sim_machine->fault[i];
		if (!__atomic_load_n(&fault->active, __ATOMIC_ACQUIRE) ||
		    strncmp(fault->call, "slow-context", sizeof fault->call) != 0 ||
		    (fault->device >= 0 && fault->device != device))
			continue;
		__atomic_add_fetch(&fault->seen, 1, __ATOMIC_RELAXED);
		ms = (uint32_t)fault->code;
	}
	return ms;
}

static CUresult open_context(struct sim_context *context)
{
	const struct sim_device_model *model = &sim_machine->model[context->device];

	if (sim_account(context->device, (int64_t)model->context, true) < 0)
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (!context->memory) /* a primary context keeps it over its lives */
		context->memory = sim_memory_space_new();
	if (!context->memory) {
		sim_account(context->device, -(int64_t)model->context, true);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	sleep_ms(creation_ms(context->device));
	context->id = __atomic_add_fetch(&next_id, 1, __ATOMIC_RELAXED);
	context->error = 0;
	sim_limits_init(context);
	sim_streams_init(context);
	__atomic_store_n(&context->alive, true, __ATOMIC_RELEASE);
	return CUDA_SUCCESS;
}

/* The caller made sure that only it does this, and holds the device's mutex only for a primary context. */
static void close_context(struct sim_context *context)
{
	__atomic_store_n(&context->alive, false, __ATOMIC_RELEASE);
	sim_streams_destroy(context);
	sim_modules_destroy(context);
	sim_arrays_destroy(context);
	sim_externals_destroy(context);
	sim_memory_space_free(context);
	sim_account(context->device, -(int64_t)sim_machine->model[context->device].context, true);
}

static void count_context(int device, int change)
{
	devices[device].contexts += (unsigned)change;
	sim_count_context(device, change);
	if (devices[device].contexts == 0)
		sim_pools_close(device);
}

/* ---- what is current -------------------------------------------------------------------------------------------- */

/* The entry of this thread's stack names a context that lives, by a green context that does where there is one. */
static bool is_usable(int entry)
{
	const struct sim_green *green = sim_thread.green[entry];

	return __atomic_load_n(&sim_thread.stack[entry]->alive, __ATOMIC_ACQUIRE) && (!green || sim_green_alive(green));
}

struct sim_context *sim_current(void)
{
	if (!sim_initialized() || sim_thread.depth == 0)
		return NULL;
	return is_usable(sim_thread.depth - 1) ? sim_thread.stack[sim_thread.depth - 1] : NULL;
}

CUresult sim_require(struct sim_context **context)
{
	if (!sim_initialized())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (sim_thread.depth == 0)
		return CUDA_ERROR_INVALID_CONTEXT;
	*context = sim_thread.stack[sim_thread.depth - 1];
	if (!is_usable(sim_thread.depth - 1))
		return CUDA_ERROR_CONTEXT_IS_DESTROYED;
	return sim_context_error(*context);
}

struct sim_context *sim_context_of(CUcontext handle)
{
	struct sim_context *context = (struct sim_context *)handle;

	if (!handle)
		return sim_current();
	struct sim_green *green = sim_green_of(handle);
	if (green)
		return sim_green_alive(green) ? green->primary : NULL;
	if (!sim_handle_is(handle, SIM_TAG_CONTEXT) || !__atomic_load_n(&context->alive, __ATOMIC_ACQUIRE))
		return NULL;
	return context;
}

static CUresult push(struct sim_context *context, struct sim_green *green)
{
	if (sim_thread.depth == STACK_DEPTH)
		return CUDA_ERROR_INVALID_CONTEXT;
	sim_thread.green[sim_thread.depth] = green;
	sim_thread.stack[sim_thread.depth++] = context;
	return CUDA_SUCCESS;
}

/* The handle of an entry of this thread's stack. */
static CUcontext handle_at(int entry)
{
	struct sim_green *green = sim_thread.green[entry];

	return green ? (CUcontext)&green->context : (CUcontext)sim_thread.stack[entry];
}

CUresult sim_cuCtxPushCurrent_v2(CUcontext handle)
{
	if (!sim_initialized())
		return CUDA_ERROR_NOT_INITIALIZED;
	struct sim_context *context = handle ? sim_context_of(handle) : NULL;
	return context ? push(context, sim_green_of(handle)) : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult sim_cuCtxPopCurrent_v2(CUcontext *out)
{
	if (!sim_initialized())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (sim_thread.depth == 0)
		return CUDA_ERROR_INVALID_CONTEXT;
	sim_thread.depth--;
	if (out)
		*out = handle_at(sim_thread.depth);
	return CUDA_SUCCESS;
}

CUresult sim_cuCtxSetCurrent(CUcontext handle)
{
	if (!sim_initialized())
		return CUDA_ERROR_NOT_INITIALIZED;
	struct sim_context *context = handle ? sim_context_of(handle) : NULL;
	if (handle && !context)
		return CUDA_ERROR_INVALID_CONTEXT;
	if (sim_thread.depth > 0)
		sim_thread.depth--;
	return context ? push(context, sim_green_of(handle)) : CUDA_SUCCESS;
}

CUresult sim_cuCtxGetCurrent(CUcontext *out)
{
	if (!sim_initialized())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	*out = sim_thread.depth ? handle_at(sim_thread.depth - 1) : NULL;
	return CUDA_SUCCESS;
}

CUresult sim_cuCtxPushCurrent(CUcontext handle)
{
	return sim_cuCtxPushCurrent_v2(handle);
}

CUresult sim_cuCtxPopCurrent(CUcontext *out)
{
	return sim_cuCtxPopCurrent_v2(out);
}

/* ---- primary contexts ------------------------------------------------------------------------------------------- */

bool sim_context_flags_valid(unsigned flags)
{
	unsigned schedule = flags & CU_CTX_SCHED_MASK;

	return !(flags & ~(unsigned)CU_CTX_FLAGS_MASK) &&
	       (schedule <= CU_CTX_SCHED_YIELD || schedule == CU_CTX_BLOCKING_SYNC);
}

/* Under the device's mutex. */
static struct sim_context *primary_of(int device)
{
	if (!devices[device].primary) {
		struct sim_context *context = new_context(device, 0, true);
		if (context)
			sim_handle_add(context, SIM_TAG_CONTEXT);
		devices[device].primary = context;
	}
	return devices[device].primary;
}

struct sim_context *sim_primary(int device)
{
	pthread_mutex_lock(&devices[device].mutex);
	struct sim_context *context = primary_of(device);
	pthread_mutex_unlock(&devices[device].mutex);
	return context;
}

static CUresult retain_primary(int device, struct sim_context **out)
{
	struct sim_context *context = primary_of(device);

	if (!context)
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (!context->alive) {
		CUresult result = open_context(context);
		if (result != CUDA_SUCCESS)
			return result;
		count_context(device, 1);
	}
	devices[device].retained++;
	*out = context;
	return CUDA_SUCCESS;
}

CUresult sim_primary_retain(int device, struct sim_context **context)
{
	pthread_mutex_lock(&devices[device].mutex);
	CUresult result = retain_primary(device, context);
	pthread_mutex_unlock(&devices[device].mutex);
	return result;
}

CUresult sim_cuDevicePrimaryCtxRetain(CUcontext *out, CUdevice ordinal)
{
	int device;
	CUresult result = sim_device_of(ordinal, &device);

	if (result != CUDA_SUCCESS)
		return result;
	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	if (__atomic_load_n(&sim_machine->device[device].lost, __ATOMIC_ACQUIRE))
		return SIM_ERROR_LOST;
	struct sim_context *context;
	result = sim_primary_retain(device, &context);
	if (result == CUDA_SUCCESS)
		*out = (CUcontext)context;
	return result;
}

/* Under the device's mutex. */
static void close_primary(int device)
{
	devices[device].retained = 0;
	if (!devices[device].primary || !devices[device].primary->alive)
		return;
	sim_greens_close(devices[device].primary);
	close_context(devices[device].primary);
	count_context(device, -1);
}

void sim_primary_release(struct sim_context *context, uint64_t id)
{
	int device = context->device;

	pthread_mutex_lock(&devices[device].mutex);
	if (context->alive && context->id == id && devices[device].retained) {
		devices[device].retained--;
		if (devices[device].retained == 0)
			close_primary(device);
	}
	pthread_mutex_unlock(&devices[device].mutex);
}

CUresult sim_cuDevicePrimaryCtxRelease_v2(CUdevice ordinal)
{
	int device;
	CUresult result = sim_device_of(ordinal, &device);

	if (result != CUDA_SUCCESS)
		return result;
	pthread_mutex_lock(&devices[device].mutex);
	if (devices[device].retained == 0)
		result = CUDA_ERROR_INVALID_CONTEXT;
	else if (--devices[device].retained == 0)
		close_primary(device);
	pthread_mutex_unlock(&devices[device].mutex);
	return result;
}

CUresult sim_cuDevicePrimaryCtxReset_v2(CUdevice ordinal)
{
	int device;
	CUresult result = sim_device_of(ordinal, &device);

	if (result != CUDA_SUCCESS)
		return result;
	pthread_mutex_lock(&devices[device].mutex);
	close_primary(device);
	pthread_mutex_unlock(&devices[device].mutex);
	return CUDA_SUCCESS;
}

CUresult sim_cuDevicePrimaryCtxSetFlags_v2(CUdevice ordinal, unsigned int flags)
{
	int device;
	CUresult result = sim_device_of(ordinal, &device);

	if (result != CUDA_SUCCESS)
		return result;
	if (!sim_context_flags_valid(flags))
		return CUDA_ERROR_INVALID_VALUE;
	struct sim_context *context = sim_primary(device);
	if (!context)
		return CUDA_ERROR_OUT_OF_MEMORY;
	context->flags = flags;
	return CUDA_SUCCESS;
}

CUresult sim_cuDevicePrimaryCtxGetState(CUdevice ordinal, unsigned int *flags, int *active)
{
	int device;
	CUresult result = sim_device_of(ordinal, &device);

	if (result != CUDA_SUCCESS)
		return result;
	if (!flags || !active)
		return CUDA_ERROR_INVALID_VALUE;
	struct sim_context *context = sim_primary(device);
	if (!context)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*flags = context->flags;
	*active = __atomic_load_n(&context->alive, __ATOMIC_ACQUIRE);
	return CUDA_SUCCESS;
}

CUresult sim_cuDevicePrimaryCtxRelease(CUdevice ordinal)
{
	return sim_cuDevicePrimaryCtxRelease_v2(ordinal);
}

CUresult sim_cuDevicePrimaryCtxReset(CUdevice ordinal)
{
	return sim_cuDevicePrimaryCtxReset_v2(ordinal);
}

CUresult sim_cuDevicePrimaryCtxSetFlags(CUdevice ordinal, unsigned int flags)
{
	return sim_cuDevicePrimaryCtxSetFlags_v2(ordinal, flags);
}

/* ---- created contexts ------------------------------------------------------------------------------------------- */

static CUresult create(CUcontext *out, unsigned flags, CUdevice ordinal, unsigned api_version)
{
	int device;
	CUresult result = sim_device_of(ordinal, &device);

	if (result != CUDA_SUCCESS)
		return result;
	if (!out || !sim_context_flags_valid(flags))
		return CUDA_ERROR_INVALID_VALUE;
	if (__atomic_load_n(&sim_machine->device[device].lost, __ATOMIC_ACQUIRE))
		return SIM_ERROR_LOST;
	if (sim_thread.depth == STACK_DEPTH)
		return CUDA_ERROR_INVALID_CONTEXT;
	struct sim_context *context = new_context(device, flags, false);
	if (!context)
		return CUDA_ERROR_OUT_OF_MEMORY;
	context->api_version = api_version;
	context->attached = 1;
	result = open_context(context);
	if (result != CUDA_SUCCESS) {
		free(context);
		return result;
	}
	pthread_mutex_lock(&devices[device].mutex);
	count_context(device, 1);
	pthread_mutex_unlock(&devices[device].mutex);
	sim_handle_add(context, SIM_TAG_CONTEXT);
	*out = (CUcontext)context;
	return push(context, NULL);
}

CUresult sim_cuCtxCreate(CUcontext *out, unsigned int flags, CUdevice device)
{
	return create(out, flags, device, 3010);
}

CUresult sim_cuCtxCreate_v2(CUcontext *out, unsigned int flags, CUdevice device)
{
	return create(out, flags, device, 3020);
}

CUresult sim_cuCtxCreate_v3(CUcontext *out, CUexecAffinityParam *params, int count, unsigned int flags, CUdevice device)
{
	if (count || params)
		return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
	return create(out, flags, device, 3020);
}

CUresult sim_cuCtxCreate_v4(CUcontext *out, CUctxCreateParams *params, unsigned int flags, CUdevice device)
{
	if (params && params->cigParams)
		return CUDA_ERROR_NOT_SUPPORTED;
	return sim_cuCtxCreate_v3(out, params ? params->execAffinityParams : NULL,
	                          params ? params->numExecAffinityParams : 0, flags, device);
}

static CUresult destroy(struct sim_context *context)
{
	int device = context->device;
	bool was_alive = true;

	if (!__atomic_compare_exchange_n(&context->alive, &was_alive, false, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
		return CUDA_ERROR_INVALID_CONTEXT; /* another thread was first */
	sim_handle_drop(context);
	if (sim_thread.depth && sim_thread.stack[sim_thread.depth - 1] == context)
		sim_thread.depth--;
	close_context(context);
	pthread_mutex_lock(&devices[device].mutex);
	count_context(device, -1);
	pthread_mutex_unlock(&devices[device].mutex);
	return CUDA_SUCCESS;
}

CUresult sim_cuCtxDestroy_v2(CUcontext handle)
{
	if (!sim_initialized())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!handle)
		return CUDA_ERROR_INVALID_VALUE;
	struct sim_context *context = sim_context_of(handle);
	if (!context || context->primary)
		return CUDA_ERROR_INVALID_CONTEXT;
	return destroy(context);
}

CUresult sim_cuCtxDestroy(CUcontext handle)
{
	return sim_cuCtxDestroy_v2(handle);
}

CUresult sim_cuCtxAttach(CUcontext *out, unsigned int flags)
{
	struct sim_context *context;
	CUresult result = sim_require(&context);

	if (result != CUDA_SUCCESS)
		return result;
	if (!out || flags)
		return CUDA_ERROR_INVALID_VALUE;
	__atomic_add_fetch(&context->attached, 1, __ATOMIC_ACQ_REL);
	*out = (CUcontext)context;
	return CUDA_SUCCESS;
}

CUresult sim_cuCtxDetach(CUcontext handle)
{
	if (!sim_initialized())
		return CUDA_ERROR_NOT_INITIALIZED;
	struct sim_context *context = handle ? sim_context_of(handle) : NULL;
	if (!context || context->primary)
		return CUDA_ERROR_INVALID_CONTEXT;
	return __atomic_sub_fetch(&context->attached, 1, __ATOMIC_ACQ_REL) ? CUDA_SUCCESS : destroy(context);
}
