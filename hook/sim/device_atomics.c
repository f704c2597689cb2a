/* device_atomics.c: which atomic operations a link carries: cuDeviceGet{Host,P2P}AtomicCapabilities.
 *
 * Called by programs. NVLink carries what the memory itself can do; PCI Express, to the host or to a peer, carries none of
 * them natively. What can go wrong: an unknown operation, a device that is none, or is its own peer.
 */
#include "context.h"
#include "sim_impl.h"
#include "visible.h"

#define SCALARS (CU_ATOMIC_CAPABILITY_SCALAR_32 | CU_ATOMIC_CAPABILITY_SCALAR_64)
#define BOTH    (CU_ATOMIC_CAPABILITY_SIGNED | CU_ATOMIC_CAPABILITY_UNSIGNED)

static const unsigned nvlink[CU_ATOMIC_OPERATION_MAX] = {
        [CU_ATOMIC_OPERATION_INTEGER_ADD] = BOTH | CU_ATOMIC_CAPABILITY_REDUCTION | SCALARS,
        [CU_ATOMIC_OPERATION_INTEGER_MIN] = BOTH | CU_ATOMIC_CAPABILITY_REDUCTION | SCALARS,
        [CU_ATOMIC_OPERATION_INTEGER_MAX] = BOTH | CU_ATOMIC_CAPABILITY_REDUCTION | SCALARS,
        [CU_ATOMIC_OPERATION_INTEGER_INCREMENT] =
                CU_ATOMIC_CAPABILITY_UNSIGNED | CU_ATOMIC_CAPABILITY_REDUCTION | CU_ATOMIC_CAPABILITY_SCALAR_32,
        [CU_ATOMIC_OPERATION_INTEGER_DECREMENT] =
                CU_ATOMIC_CAPABILITY_UNSIGNED | CU_ATOMIC_CAPABILITY_REDUCTION | CU_ATOMIC_CAPABILITY_SCALAR_32,
        [CU_ATOMIC_OPERATION_AND] = CU_ATOMIC_CAPABILITY_UNSIGNED | CU_ATOMIC_CAPABILITY_REDUCTION | SCALARS,
        [CU_ATOMIC_OPERATION_OR] = CU_ATOMIC_CAPABILITY_UNSIGNED | CU_ATOMIC_CAPABILITY_REDUCTION | SCALARS,
        [CU_ATOMIC_OPERATION_XOR] = CU_ATOMIC_CAPABILITY_UNSIGNED | CU_ATOMIC_CAPABILITY_REDUCTION | SCALARS,
        [CU_ATOMIC_OPERATION_EXCHANGE] = CU_ATOMIC_CAPABILITY_UNSIGNED | SCALARS,
        [CU_ATOMIC_OPERATION_CAS] = CU_ATOMIC_CAPABILITY_UNSIGNED | SCALARS,
        [CU_ATOMIC_OPERATION_FLOAT_ADD] = CU_ATOMIC_CAPABILITY_SIGNED | CU_ATOMIC_CAPABILITY_REDUCTION | SCALARS,
};

static CUresult tell(unsigned *capabilities, const CUatomicOperation *operations, unsigned count, bool linked)
{
	if (!capabilities || !operations || !count)
		return CUDA_ERROR_INVALID_VALUE;
	for (unsigned i = 0; i < count; i++)
		if ((unsigned)operations[i] >= CU_ATOMIC_OPERATION_MAX)
			return CUDA_ERROR_INVALID_VALUE;
	for (unsigned i = 0; i < count; i++)
		capabilities[i] = linked ? nvlink[operations[i]] : 0;
	return CUDA_SUCCESS;
}

CUresult sim_cuDeviceGetHostAtomicCapabilities(unsigned int *capabilities, const CUatomicOperation *operations,
                                               unsigned int count, CUdevice ordinal)
{
	int device;
	CUresult result = sim_device_of(ordinal, &device);
	return result == CUDA_SUCCESS ? tell(capabilities, operations, count, false) : result;
}

CUresult sim_cuDeviceGetP2PAtomicCapabilities(unsigned int *capabilities, const CUatomicOperation *operations,
                                              unsigned int count, CUdevice from, CUdevice to)
{
	int device, other;
	CUresult result = sim_device_of(from, &device);
	if (result == CUDA_SUCCESS)
		result = sim_device_of(to, &other);
	if (result != CUDA_SUCCESS)
		return result;
	if (device == other)
		return CUDA_ERROR_INVALID_DEVICE;
	return tell(capabilities, operations, count,
	            sim_devices_peer(device, other) && sim_machine->link[device][other].kind >= SIM_LINK_NVLINK);
}
