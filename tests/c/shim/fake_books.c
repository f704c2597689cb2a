/* fake_books.c: the books of fake_driver.h: what the driver holds and what is charged for it, under the one lock, with
 * the rule between them checked at every change. The shim's files find their ledger here; and which call fails next,
 * or meets a signal handler, is decided here, under the lock.
 */
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "fake_parts.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t limit, charged, physical, worst, peak, over_refunds;
static const char *failing, *interrupted;
static CUresult failing_with;
static void (*handler)(void);

static void rule(void)
{
	if (physical > charged && getenv("FAKE_TRAP"))
		__builtin_trap();
	if (physical > charged && physical - charged > worst)
		worst = physical - charged;
	if (physical > peak)
		peak = physical;
}

void fake_enter(void)
{
	if ((rand() & 3) == 0)
		sched_yield(); /* between the shim's bookkeeping and the driver's */
	pthread_mutex_lock(&lock);
}

void fake_leave(void)
{
	rule();
	pthread_mutex_unlock(&lock);
	if ((rand() & 3) == 0)
		sched_yield();
}

void fake_take(uint64_t bytes)
{
	physical += bytes;
}

void fake_drop(uint64_t bytes)
{
	physical -= bytes;
}

void fake_hold(int64_t bytes)
{
	fake_enter();
	physical += (uint64_t)bytes;
	fake_leave();
}

/* ---- calls that fail ---------------------------------------------------------------------------------------------- */

/* Called with the lock held. A handler that comes back lets the call go on. */
bool fake_fails_locked(const char *call, CUresult *error)
{
	if (interrupted != NULL && strcmp(interrupted, call) == 0) {
		interrupted = NULL;
		pthread_mutex_unlock(&lock);
		handler();
		pthread_mutex_lock(&lock);
	}
	if (failing == NULL || strcmp(failing, call) != 0)
		return false;
	failing = NULL;
	*error = failing_with;
	return true;
}

bool fake_fails(const char *call, CUresult *error)
{
	pthread_mutex_lock(&lock);
	bool is = fake_fails_locked(call, error);
	pthread_mutex_unlock(&lock);
	return is;
}

void fake_interrupt(const char *call, void (*by)(void))
{
	handler = by;
	interrupted = call;
}

void fake_fail_next(const char *call, CUresult error)
{
	failing = call;
	failing_with = error;
}

/* ---- the ledger -------------------------------------------------------------------------------------------------- */

enum vgpu_mode vgpu_mode(void)
{
	return VGPU_LIMITED;
}

unsigned vgpu_charged_devices(CUdevice device[64])
{
	device[0] = 0;
	return 1;
}

CUresult vgpu_reserve(CUdevice device, uint64_t bytes)
{
	(void)device;
	fake_enter();
	bytes = vgpu_round_up(bytes, PTG_UNIT);
	bool fits = bytes <= limit && charged <= limit - bytes;
	if (fits)
		charged += bytes;
	fake_leave();
	return fits ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

void vgpu_charge(CUdevice device, uint64_t bytes)
{
	(void)device;
	fake_enter();
	charged += vgpu_round_up(bytes, PTG_UNIT);
	fake_leave();
}

void vgpu_give_back(CUdevice device, uint64_t bytes)
{
	(void)device;
	fake_enter();
	bytes = vgpu_round_up(bytes, PTG_UNIT);
	if (bytes > charged) {
		over_refunds += bytes - charged;
		bytes = charged;
	}
	charged -= bytes;
	fake_leave();
}

CUresult vgpu_reserve_context(CUdevice device, uint64_t *bytes)
{
	*bytes = FAKE_CONTEXT;
	return vgpu_reserve(device, FAKE_CONTEXT);
}

void vgpu_give_back_context(CUdevice device, uint64_t bytes)
{
	vgpu_give_back(device, bytes);
}

uint64_t vgpu_settle_context(CUdevice device, uint64_t bytes, uint64_t card_used)
{
	(void)device;
	(void)card_used;
	return bytes;
}

uint32_t vgpu_policy_number(void)
{
	return 0;
}

uint64_t vgpu_context_estimate(CUdevice device)
{
	(void)device;
	return FAKE_CONTEXT;
}

uint64_t vgpu_lower_context(CUdevice device, uint64_t bytes)
{
	(void)device;
	return bytes;
}

void vgpu_ring(void)
{
}

bool vgpu_visible(CUdevice device)
{
	return device == 0;
}

CUdevice vgpu_current_device(CUresult *error)
{
	*error = CUDA_SUCCESS;
	return 0;
}

/* ---- what tests ask ---------------------------------------------------------------------------------------------- */

void fake_reset(uint64_t new_limit)
{
	limit = new_limit;
	physical = charged = worst = peak = over_refunds = 0;
}

static uint64_t read_locked(const uint64_t *word)
{
	pthread_mutex_lock(&lock);
	uint64_t value = *word;
	pthread_mutex_unlock(&lock);
	return value;
}

uint64_t fake_physical(void)
{
	return read_locked(&physical);
}

uint64_t fake_charged(void)
{
	return read_locked(&charged);
}

uint64_t fake_worst(void)
{
	return read_locked(&worst);
}

uint64_t fake_peak(void)
{
	return read_locked(&peak);
}

uint64_t fake_over_refunds(void)
{
	return read_locked(&over_refunds);
}
