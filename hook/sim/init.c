/* init.c: cuInit and the driver's version.
 *
 * Called by every program first. Decides once whether this process may use the simulated machine at all: not beside a
 * real driver (unless PARTAGE_SIM_FORCE is set), not without a usable machine file, not in the child of a process that
 * had initialised. After a failure the program may try again; what CUDA_VISIBLE_DEVICES says is frozen by the first
 * success, as in the real driver.
 */
#include <pthread.h>
#include <sys/mman.h>

#include "sim.h"
#include "sim_impl.h"
#include "visible.h"

static pthread_mutex_t init_mutex = PTHREAD_MUTEX_INITIALIZER;

/* 1 in the process that initialised. On a page that the kernel hands to children zeroed: as with the real driver, a child
 * of an initialised process has no driver any more, not even after cuInit, and not even where it was made by a clone that
 * runs no handlers. */
static uint32_t *ready;

static void after_fork_in_child(void)
{
	if (ready)
		__atomic_store_n(ready, 0, __ATOMIC_RELEASE); /* for kernels before 4.14 */
	pthread_mutex_init(&init_mutex, NULL);
}

bool sim_initialized(void)
{
	const uint32_t *word = __atomic_load_n(&ready, __ATOMIC_ACQUIRE);
	return word && __atomic_load_n(word, __ATOMIC_ACQUIRE);
}

static bool is_child(void)
{
	const uint32_t *word = __atomic_load_n(&ready, __ATOMIC_ACQUIRE);
	return word && !__atomic_load_n(word, __ATOMIC_ACQUIRE);
}

static int set_ready(void)
{
	uint32_t *page = mmap(NULL, sizeof *page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (page == MAP_FAILED)
		return -1;
	madvise(page, sizeof *page, MADV_WIPEONFORK);
	*page = 1;
	__atomic_store_n(&ready, page, __ATOMIC_RELEASE);
	return 0;
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
	sim_nodes_look();
	sim_visible_freeze();
	if (!sim_nodes_control() || sim_visible_count() == 0)
		return CUDA_ERROR_NO_DEVICE;
	if (!sim_nodes_memory())
		return CUDA_ERROR_UNKNOWN; /* the cards are there, but not /dev/nvidia-uvm */
	return set_ready() == 0 ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult sim_cuInit(unsigned int flags)
{
	CUresult result = CUDA_SUCCESS;

	if (flags)
		return CUDA_ERROR_INVALID_VALUE;
	if (sim_initialized())
		return CUDA_SUCCESS;
	if (is_child())
		return CUDA_ERROR_NOT_INITIALIZED;
	pthread_mutex_lock(&init_mutex);
	if (!sim_initialized())
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
