/* swap.c: from the driver's own function to our hook, by pointer.
 *
 * Called by procaddr.c for what cuGetProcAddress answered. The map holds the address that the driver exports for each
 * hook, and the address that its cuGetProcAddress gives for each hooked (name, version, stream flag): nobody promises
 * that the two are the same, and so the version and the per-thread-stream variant are right without a rule of ours.
 * It is filled at the first question, by whoever comes: filling is idempotent (every thread puts the same pairs in the
 * same order, and the first value of a pointer stays), so there is no lock to hold while the driver is asked. What can
 * go wrong: no driver, then every pointer is answered with itself.
 */
#include "entry.h"
#include "hooks.h"
#include "shim.h"

/* At most half full: for each hook the driver's exported address and its own, and what cuGetProcAddress answers. */
#define SWAP_SLOTS 4096u
_Static_assert((VGPU_HOOKS * 2 + VGPU_PROCS) * 2 <= SWAP_SLOTS, "SWAP_SLOTS is too small for the hooks");

static struct {
	uintptr_t pointer;
	uint32_t hook; /* + 1 */
} map[SWAP_SLOTS];
static bool map_ready;
/* The driver may come back to an exported hook while it is asked: then this thread is already filling. */
static _Thread_local bool filling __attribute__((tls_model("initial-exec")));

static uint32_t place_of(uintptr_t pointer)
{
	return (uint32_t)(((uint64_t)pointer >> 2) * UINT64_C(0x9e3779b97f4a7c15) >> 40) % SWAP_SLOTS;
}

static void put(void *pointer, unsigned hook)
{
	for (uint32_t place = place_of((uintptr_t)pointer);; place = (place + 1) % SWAP_SLOTS) {
		uintptr_t taken = 0;
		if (__atomic_compare_exchange_n(&map[place].pointer, &taken, (uintptr_t)pointer, false,
		                                __ATOMIC_RELEASE, __ATOMIC_ACQUIRE) ||
		    taken == (uintptr_t)pointer) {
			uint32_t none = 0;
			__atomic_compare_exchange_n(&map[place].hook, &none, hook + 1, false, __ATOMIC_RELEASE,
			                            __ATOMIC_RELAXED);
			return;
		}
	}
}

static void put_exported(void)
{
	for (unsigned hook = 0; hook < VGPU_HOOKS; hook++) {
		if (vgpu_hook_name[hook][0] != 'c')
			continue;
		void *real = vgpu_real_fn(hook);
		if (real)
			put(real, hook);
		/* A driver that goes through its own exports answers with what is a hook already. */
		put(vgpu_hook_fn[hook], hook);
	}
}

typedef CUresult ask_v1(const char *, void **, int, cuuint64_t);
typedef CUresult ask_v2(const char *, void **, int, cuuint64_t, CUdriverProcAddressQueryResult *);

static void put_answers(void)
{
	ask_v2 *ask2 = (ask_v2 *)vgpu_real_cuda("cuGetProcAddress_v2");
	ask_v1 *ask1 = (ask_v1 *)vgpu_real_cuda("cuGetProcAddress");
	for (unsigned i = 0; i < VGPU_PROCS; i++) {
		const char *name = vgpu_hook_proc[i].name;
		int version = vgpu_hook_proc[i].version;
		cuuint64_t flags = (cuuint64_t)vgpu_hook_proc[i].flags;
		unsigned hook = vgpu_hook_proc[i].hook;
		CUdriverProcAddressQueryResult status;
		void *real = NULL;
		CUresult error = ask2   ? ask2(name, &real, version, flags, &status)
		                 : ask1 ? ask1(name, &real, version, flags)
		                        : CUDA_ERROR_NOT_FOUND;
		if (error != CUDA_SUCCESS || !real)
			continue;
		put(real, hook);
		/* A driver that gives a function only in this way. */
		if (!__atomic_load_n(&vgpu_real[hook], __ATOMIC_RELAXED))
			__atomic_store_n(&vgpu_real[hook], real, __ATOMIC_RELAXED);
	}
}

static bool fill(void)
{
	if (filling || !vgpu_real_cuda("cuInit"))
		return false;
	filling = true;
	put_exported();
	put_answers();
	filling = false;
	__atomic_store_n(&map_ready, true, __ATOMIC_RELEASE);
	return true;
}

bool vgpu_hook_of(void **pointer)
{
	if (!__atomic_load_n(&map_ready, __ATOMIC_ACQUIRE) && !fill())
		return true;
	for (uint32_t place = place_of((uintptr_t)*pointer);; place = (place + 1) % SWAP_SLOTS) {
		uintptr_t known = __atomic_load_n(&map[place].pointer, __ATOMIC_RELAXED);
		uint32_t hook = __atomic_load_n(&map[place].hook, __ATOMIC_ACQUIRE);
		if (known == (uintptr_t)*pointer && hook) {
			*pointer = vgpu_hook_fn[hook - 1];
			return true;
		}
		if (!known)
			return false;
	}
}

void *vgpu_swap(void *pointer)
{
	vgpu_hook_of(&pointer);
	return pointer;
}
