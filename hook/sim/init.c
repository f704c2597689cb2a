/* init.c: cuInit and the driver's version.
 *
 * Called by every program first. Decides once whether this process may use the simulated machine at all: not beside a
 * real driver (unless PARTAGE_SIM_FORCE is set), not without a usable machine file, not in the child of a process that
 * had initialised. After a failure the program may try again; what CUDA_VISIBLE_DEVICES says is frozen by the first
 * success, as in the real driver.
 */
#include <pthread.h>

#include "sim.h"
#include "sim_impl.h"
#include "visible.h"

enum { BEFORE, READY, FORKED };

static int state = BEFORE;
static pthread_mutex_t init_mutex = PTHREAD_MUTEX_INITIALIZER;

/* As with the real driver, a child of an initialised process has no driver any more, not even after cuInit. */
static void after_fork_in_child(void)
{
	if (state == READY)
		__atomic_store_n(&state, FORKED, __ATOMIC_RELEASE);
	pthread_mutex_init(&init_mutex, NULL);
}

bool sim_initialized(void)
{
	return __atomic_load_n(&state, __ATOMIC_ACQUIRE) == READY;
}

/* Under init_mutex. */
static CUresult initialize(void)
{
	static bool handler;

	if (sim_real_driver_refuses("cuInit"))
		return CUDA_ERROR_SYSTEM_DRIVER_MISMATCH;
	if (!handler)
		handler = pthread_atfork(NULL, NULL, after_fork_in_child) == 0;
	if (sim_machine_open() < 0 || sim_client_slot() < 0)
		return CUDA_ERROR_SYSTEM_NOT_READY;
	sim_visible_freeze();
	if (sim_visible_count() == 0)
		return CUDA_ERROR_NO_DEVICE;
	__atomic_store_n(&state, READY, __ATOMIC_RELEASE);
	return CUDA_SUCCESS;
}

CUresult sim_cuInit(unsigned int flags)
{
	CUresult result = CUDA_SUCCESS;

	if (flags)
		return CUDA_ERROR_INVALID_VALUE;
	if (sim_initialized())
		return CUDA_SUCCESS;
	pthread_mutex_lock(&init_mutex);
	if (state == FORKED)
		result = CUDA_ERROR_NOT_INITIALIZED;
	else if (state == BEFORE)
		result = initialize();
	pthread_mutex_unlock(&init_mutex);
	return result;
}

CUresult sim_cuDriverGetVersion(int *version)
{
	if (!version)
		return CUDA_ERROR_INVALID_VALUE;
	*version = sim_machine_open() == 0 && sim_machine->cuda_version ? (int)sim_machine->cuda_version : CUDA_VERSION;
	return CUDA_SUCCESS;
}
