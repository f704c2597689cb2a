/* ctx.c: contexts: cuCtxCreate*, cuCtxDestroy*, cuCtx{Attach,Detach}, cuDevicePrimaryCtx{Retain,Release,Reset}*.
 *
 * A context takes device memory that the driver does not tell, so an estimate is charged while it lives: one for each
 * created context, and one for the primary context of a device while this process refers to it. When a context
 * ends, everything that was allocated in it ends too, and its blocks are settled.
 * What can go wrong: references are counted here after the driver has answered, so two threads that retain and release
 * at once may leave the charge in place a while longer than the context; never shorter.
 */
#include <pthread.h>
#include <stdlib.h>

#include "gate.h"
#include "hooks.h"
#include "memory.h"

struct context {
	CUcontext handle;
	CUdevice device;
	uint64_t charged;
	uint64_t libraries; /* charged for the variables of libraries that were loaded before it */
	uint32_t attached; /* usage count: where it falls to none, the context ends */
	struct context *next;
};

struct primary {
	CUcontext handle;
	uint64_t charged;    /* the estimate, 0 = none */
	bool estimated;      /* an estimate is in force (it may be 0 bytes) */
	bool settled;        /* and has been compared with the card */
	uint32_t references; /* by this process */
	uint32_t retaining;  /* calls under way */
	uint64_t retains;    /* calls that began so far */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* process-private, never held across a driver call */
static struct context *contexts;
static struct primary primaries[VGPU_ORDINALS];
static unsigned created[VGPU_ORDINALS]; /* contexts by device, without primary ones */
static uint64_t largest[VGPU_ORDINALS]; /* what a context there may be charged with, atomic */
static uint32_t
        settled[VGPU_ORDINALS]; /* 1 + number of the policy that they were settled by, atomic; 0: not since one came */

unsigned vgpu_contexts_created(CUdevice device)
{
	return __atomic_load_n(&created[device], __ATOMIC_SEQ_CST);
}

/* Bytes of the card in use by everybody: no context takes more, so a guess may be cut to it. */
static uint64_t card_used(CUcontext context)
{
	size_t card_free = 0, card_total = 0;
	CUcontext old;
	if (real_cuCtxPushCurrent_v2(context) != CUDA_SUCCESS)
		return UINT64_MAX;
	CUresult error = real_cuMemGetInfo_v2(&card_free, &card_total);
	real_cuCtxPopCurrent_v2(&old);
	return error == CUDA_SUCCESS && card_free <= card_total ? card_total - card_free : UINT64_MAX;
}

void vgpu_context_charged(CUdevice device, uint64_t charged)
{
	uint64_t before = __atomic_load_n(&largest[device], __ATOMIC_SEQ_CST);
	while (before < charged && !__atomic_compare_exchange_n(&largest[device], &before, charged, false,
	                                                        __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
		;
	__atomic_store_n(&settled[device], 0, __ATOMIC_SEQ_CST);
}

bool vgpu_contexts_settle(CUdevice device)
{
	if (device < 0 || device >= VGPU_ORDINALS || __atomic_load_n(&largest[device], __ATOMIC_RELAXED) == 0)
		return false;
	uint32_t number = vgpu_policy_number() + 1;
	if (__atomic_load_n(&settled[device], __ATOMIC_SEQ_CST) == number)
		return false;
	__atomic_store_n(&settled[device], number, __ATOMIC_SEQ_CST); /* first, for the same reason as below */
	uint64_t estimate = vgpu_context_estimate(device);
	if (estimate >= __atomic_load_n(&largest[device], __ATOMIC_SEQ_CST))
		return false;
	__atomic_store_n(&largest[device], estimate, __ATOMIC_SEQ_CST); /* first: one that comes now is not forgotten */
	pthread_mutex_lock(&lock);
	for (struct context *c = contexts; c != NULL; c = c->next)
		if (c->device == device)
			c->charged = vgpu_lower_context(device, c->charged);
	primaries[device].charged = vgpu_lower_context(device, primaries[device].charged);
	pthread_mutex_unlock(&lock);
	vgpu_greens_settle(device);
	return true;
}

/* The context and all that lay in it are gone. */
static void ended(CUcontext context, CUdevice device, uint64_t epoch)
{
	if (context != NULL) {
		vgpu_blocks_drop(context, epoch);
		vgpu_mapped_arrays_drop(context, epoch);
		vgpu_deferred_drop(context);
	}
	vgpu_pool_reconcile(device);
}

bool vgpu_no_such_device(CUdevice device)
{
	int any;
	return real_cuDeviceGetAttribute(&any, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device) ==
	       CUDA_ERROR_INVALID_DEVICE;
}

/* ---- created contexts -------------------------------------------------------------------------------------------- */

static void add(struct context *c)
{
	pthread_mutex_lock(&lock);
	c->next = contexts;
	contexts = c;
	pthread_mutex_unlock(&lock);
}

static struct context *take(CUcontext handle)
{
	pthread_mutex_lock(&lock);
	struct context **c = &contexts, *found;
	while (*c != NULL && (*c)->handle != handle)
		c = &(*c)->next;
	found = *c;
	if (found != NULL)
		*c = found->next;
	pthread_mutex_unlock(&lock);
	return found;
}

/* Everything a version of cuCtxCreate takes. */
struct creation {
	CUexecAffinityParam *affinity;
	int affinities;
	CUctxCreateParams *params;
	unsigned int flags;
	CUdevice device;
};

typedef CUresult create_function(CUcontext *, const struct creation *);

/* Charge the context itself and the variables that libraries will have in it. */
static CUresult charge(struct context *c)
{
	__atomic_fetch_add(&created[c->device], 1, __ATOMIC_SEQ_CST);
	c->libraries = vgpu_library_bytes();
	CUresult error = vgpu_managed_join(c->device);
	if (error == CUDA_SUCCESS)
		error = vgpu_reserve_context(c->device, &c->charged);
	if (error == CUDA_SUCCESS && c->libraries != 0) {
		error = vgpu_reserve_or_reclaim(c->device, c->libraries);
		if (error != CUDA_SUCCESS)
			vgpu_give_back_context(c->device, c->charged);
	}
	if (error != CUDA_SUCCESS)
		__atomic_fetch_sub(&created[c->device], 1, __ATOMIC_SEQ_CST);
	return error;
}

static void uncharge(const struct context *c)
{
	vgpu_give_back_context(c->device, c->charged);
	if (c->libraries != 0)
		vgpu_give_back(c->device, c->libraries);
	__atomic_fetch_sub(&created[c->device], 1, __ATOMIC_SEQ_CST);
}

static CUresult create(create_function *driver, CUcontext *out, const struct creation *how)
{
	if (vgpu_mode() == VGPU_FREE || out == NULL || how->device < 0 || how->device >= VGPU_ORDINALS)
		return driver(out, how);
	if (vgpu_hidden(how->device))
		return CUDA_ERROR_INVALID_DEVICE;
	struct context *c = calloc(1, sizeof(*c));
	if (c == NULL)
		return CUDA_ERROR_OUT_OF_MEMORY;
	c->device = how->device;
	c->attached = 1;
	vgpu_memory_watch_fork();
	CUresult error = charge(c);
	if (error != CUDA_SUCCESS) {
		if (vgpu_no_such_device(how->device))
			error = driver(&c->handle, how);
	} else {
		error = driver(&c->handle, how);
		if (error != CUDA_SUCCESS)
			uncharge(c);
	}
	if (error != CUDA_SUCCESS) {
		free(c);
		return error;
	}
	*out = c->handle;
	if (c->charged != 0)
		c->charged = vgpu_settle_context(how->device, c->charged, card_used(c->handle));
	uint64_t charged = c->charged;
	add(c);
	vgpu_context_charged(how->device, charged);
	return CUDA_SUCCESS;
}

static CUresult driver_v1(CUcontext *out, const struct creation *how)
{
	return real_cuCtxCreate(out, how->flags, how->device);
}

static CUresult driver_v2(CUcontext *out, const struct creation *how)
{
	return real_cuCtxCreate_v2(out, how->flags, how->device);
}

static CUresult driver_v3(CUcontext *out, const struct creation *how)
{
	return real_cuCtxCreate_v3(out, how->affinity, how->affinities, how->flags, how->device);
}

static CUresult driver_v4(CUcontext *out, const struct creation *how)
{
	return real_cuCtxCreate_v4(out, how->params, how->flags, how->device);
}

CUresult hook_cuCtxCreate(CUcontext *pctx, unsigned int flags, CUdevice dev)
{
	return create(driver_v1, pctx, &(struct creation){.flags = flags, .device = dev});
}

CUresult hook_cuCtxCreate_v2(CUcontext *pctx, unsigned int flags, CUdevice dev)
{
	return create(driver_v2, pctx, &(struct creation){.flags = flags, .device = dev});
}

CUresult hook_cuCtxCreate_v3(CUcontext *pctx, CUexecAffinityParam *paramsArray, int numParams, unsigned int flags,
                             CUdevice dev)
{
	return create(
	        driver_v3, pctx,
	        &(struct creation){.affinity = paramsArray, .affinities = numParams, .flags = flags, .device = dev});
}

CUresult hook_cuCtxCreate_v4(CUcontext *pctx, CUctxCreateParams *ctxCreateParams, unsigned int flags, CUdevice dev)
{
	return create(driver_v4, pctx, &(struct creation){.params = ctxCreateParams, .flags = flags, .device = dev});
}

static CUresult destroy(CUresult (*driver)(CUcontext), CUcontext ctx)
{
	if (vgpu_mode() == VGPU_FREE)
		return driver(ctx);
	struct context *c = take(ctx);
	uint64_t epoch = vgpu_blocks_epoch();
	vgpu_pool_unpin_begin();
	vgpu_gate_context_begin();
	CUresult error = driver(ctx);
	vgpu_gate_context_end(error == CUDA_SUCCESS ? ctx : NULL);
	vgpu_pool_unpin_end(c != NULL ? c->device : -1);
	if (c == NULL)
		return error;
	if (error != CUDA_SUCCESS) {
		add(c);
		return error;
	}
	ended(ctx, c->device, epoch);
	uncharge(c);
	free(c);
	return CUDA_SUCCESS;
}

CUresult hook_cuCtxDestroy(CUcontext ctx)
{
	return destroy(real_cuCtxDestroy, ctx);
}

CUresult hook_cuCtxDestroy_v2(CUcontext ctx)
{
	return destroy(real_cuCtxDestroy_v2, ctx);
}

/* Whether nobody is attached any more; false where we do not know the context. */
static bool attach(CUcontext handle, uint32_t change)
{
	pthread_mutex_lock(&lock);
	struct context *c = contexts;
	while (c != NULL && c->handle != handle)
		c = c->next;
	bool last = c != NULL && (c->attached += change) == 0;
	pthread_mutex_unlock(&lock);
	return last;
}

CUresult hook_cuCtxAttach(CUcontext *pctx, unsigned int flags)
{
	CUresult error = real_cuCtxAttach(pctx, flags);
	if (error == CUDA_SUCCESS && vgpu_mode() != VGPU_FREE)
		attach(*pctx, 1);
	return error;
}

CUresult hook_cuCtxDetach(CUcontext ctx)
{
	if (vgpu_mode() == VGPU_FREE)
		return real_cuCtxDetach(ctx);
	CUresult error = attach(ctx, -1u) ? destroy(real_cuCtxDetach, ctx) : real_cuCtxDetach(ctx);
	if (error != CUDA_SUCCESS)
		attach(ctx, 1);
	return error;
}

/* ---- primary contexts -------------------------------------------------------------------------------------------- */

/* One more call that retains: sees to it that the estimate is charged. */
CUresult vgpu_primary_begin(CUdevice device)
{
	struct primary *p = &primaries[device];
	CUresult error = CUDA_SUCCESS;
	pthread_mutex_lock(&lock);
	if (!p->estimated) {
		error = vgpu_reserve_context(device, &p->charged);
		p->estimated = error == CUDA_SUCCESS;
		p->settled = p->charged == 0;
	}
	if (error == CUDA_SUCCESS) {
		p->retaining++;
		p->retains++;
	}
	pthread_mutex_unlock(&lock);
	return error;
}

/* With the lock held: the estimate to give back when nobody refers to the context. */
static bool unused(struct primary *p, uint64_t *charged)
{
	if (!p->estimated || p->references != 0 || p->retaining != 0)
		return false;
	*charged = p->charged;
	p->estimated = false;
	p->charged = 0;
	return true;
}

void vgpu_primary_end(CUdevice device, CUcontext handle, bool retained)
{
	struct primary *p = &primaries[device];
	uint64_t charged = 0, used = UINT64_MAX;
	pthread_mutex_lock(&lock);
	bool settle = retained && !p->settled;
	pthread_mutex_unlock(&lock);
	if (settle)
		used = card_used(handle);
	pthread_mutex_lock(&lock);
	p->retaining--;
	if (retained) {
		p->references++;
		if (handle != NULL)
			p->handle = handle;
	}
	if (settle && !p->settled) {
		p->charged = vgpu_settle_context(device, p->charged, used);
		p->settled = true;
		vgpu_context_charged(device, p->charged);
	}
	unused(p, &charged);
	pthread_mutex_unlock(&lock);
	vgpu_give_back_context(device, charged);
}

CUresult hook_cuDevicePrimaryCtxRetain(CUcontext *pctx, CUdevice dev)
{
	if (vgpu_mode() == VGPU_FREE || pctx == NULL || dev < 0 || dev >= VGPU_ORDINALS)
		return real_cuDevicePrimaryCtxRetain(pctx, dev);
	if (vgpu_hidden(dev)) /* also makes the devices known, so that nothing is asked of the driver under the lock */
		return CUDA_ERROR_INVALID_DEVICE;
	vgpu_memory_watch_fork();
	CUresult error = vgpu_managed_join(dev);
	if (error == CUDA_SUCCESS)
		error = vgpu_primary_begin(dev);
	if (error != CUDA_SUCCESS)
		return vgpu_no_such_device(dev) ? real_cuDevicePrimaryCtxRetain(pctx, dev) : error;
	error = real_cuDevicePrimaryCtxRetain(pctx, dev);
	vgpu_primary_end(dev, error == CUDA_SUCCESS ? *pctx : NULL, error == CUDA_SUCCESS);
	return error;
}

static bool inactive(CUdevice device)
{
	unsigned int flags;
	int active = 1;
	return real_cuDevicePrimaryCtxGetState(device, &flags, &active) == CUDA_SUCCESS && !active;
}

/* The driver has taken a reference, or all (a reset: it may forget them or not, so its own word counts). */
static void less(CUdevice dev, uint64_t epoch, bool reset)
{
	struct primary *p = &primaries[dev];
	uint64_t charged = 0;
	pthread_mutex_lock(&lock);
	uint64_t retains = p->retains;
	pthread_mutex_unlock(&lock);
	bool dead = inactive(dev);
	pthread_mutex_lock(&lock);
	if (!reset && p->references != 0)
		p->references--;
	dead = dead && p->retains == retains && p->retaining == 0;
	if (dead)
		p->references = 0;
	CUcontext handle = p->handle;
	bool gone = unused(p, &charged);
	pthread_mutex_unlock(&lock);
	if (dead) /* green contexts do not outlive it, whoever released it once too often */
		vgpu_greens_drop(dev);
	if (gone || reset)
		ended(handle, dev, epoch);
	if (gone)
		vgpu_give_back_context(dev, charged);
}

void vgpu_primary_less(CUdevice device, uint64_t epoch)
{
	less(device, epoch, false);
}

static CUcontext primary_handle(CUdevice device)
{
	pthread_mutex_lock(&lock);
	CUcontext handle = primaries[device].handle;
	pthread_mutex_unlock(&lock);
	return handle;
}

static CUresult release(CUresult (*driver)(CUdevice), CUdevice dev, bool reset)
{
	if (vgpu_mode() == VGPU_FREE || dev < 0 || dev >= VGPU_ORDINALS)
		return driver(dev);
	if (vgpu_hidden(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	uint64_t epoch = vgpu_blocks_epoch();
	vgpu_pool_unpin_begin();
	vgpu_gate_context_begin();
	CUresult error = driver(dev);
	vgpu_gate_context_end(error == CUDA_SUCCESS && (reset || inactive(dev)) ? primary_handle(dev) : NULL);
	vgpu_pool_unpin_end(dev);
	if (error == CUDA_SUCCESS)
		less(dev, epoch, reset);
	return error;
}

CUresult hook_cuDevicePrimaryCtxRelease(CUdevice dev)
{
	return release(real_cuDevicePrimaryCtxRelease, dev, false);
}

CUresult hook_cuDevicePrimaryCtxRelease_v2(CUdevice dev)
{
	return release(real_cuDevicePrimaryCtxRelease_v2, dev, false);
}

CUresult hook_cuDevicePrimaryCtxReset(CUdevice dev)
{
	return release(real_cuDevicePrimaryCtxReset, dev, true);
}

CUresult hook_cuDevicePrimaryCtxReset_v2(CUdevice dev)
{
	return release(real_cuDevicePrimaryCtxReset_v2, dev, true);
}

void vgpu_contexts_forked(void)
{
	pthread_mutex_init(&lock, NULL);
	contexts = NULL;
	vgpu_greens_forked();
	for (CUdevice d = 0; d < VGPU_ORDINALS; d++) {
		primaries[d] = (struct primary){0};
		created[d] = 0;
		largest[d] = 0;
		settled[d] = 0;
	}
}
