/* green.c: green contexts: cuGreenCtxCreate, cuGreenCtxDestroy, cuCtxFromGreenCtx.
 *
 * A green context keeps the device's primary context alive and has queues of its own, so it is charged like one more
 * context while it lives, besides the estimate for the primary one. What is allocated while it is current lies in the
 * primary context and ends with that, not with the green context; so whoever asks for the current context is given the
 * primary one (vgpu_plain_context).
 * What can go wrong: it does not fit, CUDA_ERROR_OUT_OF_MEMORY and the driver is not called.
 */
#include <pthread.h>
#include <stdlib.h>

#include "hooks.h"
#include "memory.h"

struct green {
	CUgreenCtx handle;
	CUcontext as;      /* what cuCtxFromGreenCtx said; NULL: not asked yet */
	CUcontext primary;
	CUdevice device;
	uint64_t charged;
	struct green *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* process-private, never held across a driver call */
static struct green *greens;

static void add(struct green *g)
{
	pthread_mutex_lock(&lock);
	g->next = greens;
	__atomic_store_n(&greens, g, __ATOMIC_RELEASE);
	pthread_mutex_unlock(&lock);
}

/* Takes the record of a green context out, or the first of a device where the handle is NULL. */
static struct green *take(CUgreenCtx handle, CUdevice device)
{
	pthread_mutex_lock(&lock);
	struct green **g = &greens, *found;
	while (*g != NULL && (handle != NULL ? (*g)->handle != handle : (*g)->device != device))
		g = &(*g)->next;
	found = *g;
	if (found != NULL)
		__atomic_store_n(g, found->next, __ATOMIC_RELEASE);
	pthread_mutex_unlock(&lock);
	return found;
}

CUcontext vgpu_plain_context(CUcontext context)
{
	if (__atomic_load_n(&greens, __ATOMIC_ACQUIRE) == NULL)
		return context;
	pthread_mutex_lock(&lock);
	for (const struct green *g = greens; g != NULL; g = g->next)
		if (g->as == context && g->primary != NULL)
			context = g->primary;
	pthread_mutex_unlock(&lock);
	return context;
}

void vgpu_greens_settle(CUdevice device)
{
	pthread_mutex_lock(&lock);
	for (struct green *g = greens; g != NULL; g = g->next)
		if (g->device == device)
			g->charged = vgpu_lower_context(device, g->charged);
	pthread_mutex_unlock(&lock);
}

void vgpu_greens_drop(CUdevice device)
{
	for (struct green *g = take(NULL, device); g != NULL; g = take(NULL, device)) {
		vgpu_give_back_context(device, g->charged);
		free(g);
	}
}

/* Its handle: it is active, so this makes nothing. */
static CUcontext primary_of(CUdevice device)
{
	CUcontext primary = NULL;
	if (real_cuDevicePrimaryCtxRetain(&primary, device) != CUDA_SUCCESS)
		return NULL;
	real_cuDevicePrimaryCtxRelease_v2(device);
	return primary;
}

/* The primary context is charged; now the green one. */
static CUresult create(struct green *g, CUdevResourceDesc desc, unsigned int flags)
{
	CUresult error = vgpu_reserve_context(g->device, &g->charged);
	if (error != CUDA_SUCCESS && vgpu_reclaim(g->device))
		error = vgpu_reserve_context(g->device, &g->charged);
	if (error != CUDA_SUCCESS)
		return error;
	error = real_cuGreenCtxCreate(&g->handle, desc, g->device, flags);
	if (error == CUDA_SUCCESS)
		g->primary = primary_of(g->device);
	else
		vgpu_give_back_context(g->device, g->charged);
	return error;
}

CUresult hook_cuGreenCtxCreate(CUgreenCtx *phCtx, CUdevResourceDesc desc, CUdevice dev, unsigned int flags)
{
	if (vgpu_mode() == VGPU_FREE || phCtx == NULL || dev < 0 || dev >= VGPU_ORDINALS)
		return real_cuGreenCtxCreate(phCtx, desc, dev, flags);
	if (vgpu_hidden(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	vgpu_memory_watch_fork();
	CUresult error = vgpu_managed_join(dev);
	if (error == CUDA_SUCCESS)
		error = vgpu_primary_begin(dev);
	if (error != CUDA_SUCCESS)
		return vgpu_no_such_device(dev) ? real_cuGreenCtxCreate(phCtx, desc, dev, flags) : error;
	struct green *g = calloc(1, sizeof(*g));
	error = g != NULL ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
	if (g != NULL) {
		g->device = dev;
		error = create(g, desc, flags);
	}
	vgpu_primary_end(dev, error == CUDA_SUCCESS ? g->primary : NULL, error == CUDA_SUCCESS);
	if (error != CUDA_SUCCESS) {
		free(g);
		return error;
	}
	*phCtx = g->handle;
	uint64_t charged = g->charged;
	add(g);
	vgpu_context_charged(dev, charged);
	return CUDA_SUCCESS;
}

CUresult hook_cuGreenCtxDestroy(CUgreenCtx hCtx)
{
	struct green *g = vgpu_mode() == VGPU_FREE || hCtx == NULL ? NULL : take(hCtx, -1);
	uint64_t epoch = vgpu_blocks_epoch();
	CUresult error = real_cuGreenCtxDestroy(hCtx);
	if (g == NULL)
		return error;
	if (error != CUDA_SUCCESS) {
		add(g);
		return error;
	}
	vgpu_give_back_context(g->device, g->charged);
	vgpu_primary_less(g->device, epoch);
	free(g);
	return CUDA_SUCCESS;
}

CUresult hook_cuCtxFromGreenCtx(CUcontext *pContext, CUgreenCtx hCtx)
{
	CUresult error = real_cuCtxFromGreenCtx(pContext, hCtx);
	if (error != CUDA_SUCCESS || pContext == NULL || vgpu_mode() == VGPU_FREE)
		return error;
	pthread_mutex_lock(&lock);
	for (struct green *g = greens; g != NULL; g = g->next)
		if (g->handle == hCtx)
			g->as = *pContext;
	pthread_mutex_unlock(&lock);
	return CUDA_SUCCESS;
}

void vgpu_greens_forked(void)
{
	pthread_mutex_init(&lock, NULL);
	greens = NULL;
}
