/* fake_multicast.c: the multicast objects of fake_driver.h: they take nothing, one memory may be bound to each, as a
 * whole, and their handles are handed out again at once. They are not mapped.
 */
#include <pthread.h>

#include "fake_parts.h"

#define OBJECTS 256
#define FIRST   4096 /* above the handles of memory */

static struct {
	bool taken;
	CUmemGenericAllocationHandle bound; /* 0: nothing */
} object[OBJECTS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

CUresult fake_cuMulticastCreate(CUmemGenericAllocationHandle *h, const CUmulticastObjectProp *prop)
{
	CUresult error = CUDA_ERROR_OUT_OF_MEMORY;
	(void)prop;
	pthread_mutex_lock(&lock);
	for (unsigned i = 0; i < OBJECTS && error != CUDA_SUCCESS; i++)
		if (!object[i].taken) {
			object[i].taken = true;
			*h = FIRST + i;
			error = CUDA_SUCCESS;
		}
	pthread_mutex_unlock(&lock);
	return error;
}

static bool is_object(CUmemGenericAllocationHandle h)
{
	return h >= FIRST && h < FIRST + OBJECTS && object[h - FIRST].taken;
}

CUresult fake_cuMulticastBindMem_v2(CUmemGenericAllocationHandle h, CUdevice device, size_t offset,
                                    CUmemGenericAllocationHandle memory, size_t memory_offset, size_t size,
                                    unsigned long long flags)
{
	CUresult error = CUDA_ERROR_INVALID_VALUE;
	(void)device, (void)offset, (void)memory_offset, (void)size, (void)flags;
	if (fake_fails("cuMulticastBindMem_v2", &error))
		return error;
	pthread_mutex_lock(&lock);
	if (is_object(h) && object[h - FIRST].bound == 0 && fake_mapped(memory, 1)) {
		object[h - FIRST].bound = memory;
		error = CUDA_SUCCESS;
	}
	pthread_mutex_unlock(&lock);
	return error;
}

/* With the lock held. */
static bool let_go(CUmemGenericAllocationHandle h)
{
	CUmemGenericAllocationHandle memory = object[h - FIRST].bound;
	object[h - FIRST].bound = 0;
	return memory != 0 && fake_mapped(memory, -1);
}

CUresult fake_cuMulticastUnbind(CUmemGenericAllocationHandle h, CUdevice device, size_t offset, size_t size)
{
	(void)device, (void)offset, (void)size;
	pthread_mutex_lock(&lock);
	bool unbound = is_object(h) && let_go(h);
	pthread_mutex_unlock(&lock);
	return unbound ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

bool fake_multicast_release(CUmemGenericAllocationHandle h)
{
	pthread_mutex_lock(&lock);
	bool is = is_object(h);
	if (is) {
		let_go(h);
		object[h - FIRST].taken = false;
	}
	pthread_mutex_unlock(&lock);
	return is;
}
