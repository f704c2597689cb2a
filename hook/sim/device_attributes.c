/* device_attributes.c: cuDeviceGetAttribute and the older cuDeviceGetProperties.
 *
 * Called by programs, often for a hundred attributes at start. Three sorts: the same on every device (a table; what it
 * does not name is 0, so a feature that the simulator lacks is not announced), from the profile, and from the compute
 * capability. An attribute beyond those of the header is CUDA_ERROR_INVALID_VALUE.
 */
#include <stddef.h>

#include "context.h"
#include "multicast.h"
#include "sim_impl.h"
#include "visible.h"

static const int fixed[CU_DEVICE_ATTRIBUTE_MAX] = {
        [CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK] = 1024,
        [CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X] = 1024,
        [CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y] = 1024,
        [CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z] = 64,
        [CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X] = 2147483647,
        [CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y] = 65535,
        [CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z] = 65535,
        [CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK] = 49152,
        [CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY] = 65536,
        [CU_DEVICE_ATTRIBUTE_WARP_SIZE] = 32,
        [CU_DEVICE_ATTRIBUTE_MAX_PITCH] = 2147483647,
        [CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK] = 65536,
        [CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT] = 512,
        [CU_DEVICE_ATTRIBUTE_SPARSE_CUDA_ARRAY_SUPPORTED] = 1,
        [CU_DEVICE_ATTRIBUTE_DEFERRED_MAPPING_CUDA_ARRAY_SUPPORTED] = 1,
        [CU_DEVICE_ATTRIBUTE_GPU_OVERLAP] = 1,
        [CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY] = 1,
        [CU_DEVICE_ATTRIBUTE_COMPUTE_MODE] = CU_COMPUTEMODE_DEFAULT,
        [CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_WIDTH] = 131072,
        [CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_WIDTH] = 131072,
        [CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_HEIGHT] = 65536,
        [CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_WIDTH] = 16384,
        [CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_HEIGHT] = 16384,
        [CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_DEPTH] = 16384,
        [CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LAYERED_WIDTH] = 32768,
        [CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LAYERED_HEIGHT] = 32768,
        [CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LAYERED_LAYERS] = 2048,
        [CU_DEVICE_ATTRIBUTE_SURFACE_ALIGNMENT] = 512,
        [CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS] = 1,
        [CU_DEVICE_ATTRIBUTE_TCC_DRIVER] = 0,
        [CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING] = 1,
        [CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_LAYERED_WIDTH] = 32768,
        [CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_LAYERED_LAYERS] = 2048,
        [CU_DEVICE_ATTRIBUTE_CAN_TEX2D_GATHER] = 1,
        [CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_GATHER_WIDTH] = 32768,
        [CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_GATHER_HEIGHT] = 32768,
        [CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_WIDTH_ALTERNATE] = 8192,
        [CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_HEIGHT_ALTERNATE] = 8192,
        [CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_DEPTH_ALTERNATE] = 32768,
        [CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT] = 32,
        [CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURECUBEMAP_WIDTH] = 32768,
        [CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURECUBEMAP_LAYERED_WIDTH] = 32768,
        [CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURECUBEMAP_LAYERED_LAYERS] = 2046,
        [CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE1D_WIDTH] = 32768,
        [CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE2D_WIDTH] = 131072,
        [CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE2D_HEIGHT] = 65536,
        [CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE3D_WIDTH] = 16384,
        [CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE3D_HEIGHT] = 16384,
        [CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE3D_DEPTH] = 16384,
        [CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE1D_LAYERED_WIDTH] = 32768,
        [CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE1D_LAYERED_LAYERS] = 2048,
        [CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE2D_LAYERED_WIDTH] = 32768,
        [CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE2D_LAYERED_HEIGHT] = 32768,
        [CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE2D_LAYERED_LAYERS] = 2048,
        [CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACECUBEMAP_WIDTH] = 32768,
        [CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACECUBEMAP_LAYERED_WIDTH] = 32768,
        [CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACECUBEMAP_LAYERED_LAYERS] = 2046,
        [CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_LINEAR_WIDTH] = 268435456,
        [CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LINEAR_WIDTH] = 131072,
        [CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LINEAR_HEIGHT] = 65000,
        [CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LINEAR_PITCH] = 2097120,
        [CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_MIPMAPPED_WIDTH] = 32768,
        [CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_MIPMAPPED_HEIGHT] = 32768,
        [CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_MIPMAPPED_WIDTH] = 32768,
        [CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED] = 1,
        [CU_DEVICE_ATTRIBUTE_GLOBAL_L1_CACHE_SUPPORTED] = 1,
        [CU_DEVICE_ATTRIBUTE_LOCAL_L1_CACHE_SUPPORTED] = 1,
        [CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR] = 65536,
        [CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY] = 1,
        [CU_DEVICE_ATTRIBUTE_MULTI_GPU_BOARD] = 0,
        [CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS] = 1,
        [CU_DEVICE_ATTRIBUTE_COMPUTE_PREEMPTION_SUPPORTED] = 1,
        [CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM] = 1,
        [CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH] = 1,
        [CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED] = 1,
        [CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED] = 1,
        [CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED] = 1,
        [CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED] = 1,
        [CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED] = 1,
        [CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES] = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
        [CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS] = 1,
        [CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR] = 1,
        [CU_DEVICE_ATTRIBUTE_NUMA_CONFIG] = CU_DEVICE_NUMA_CONFIG_NONE,
        [CU_DEVICE_ATTRIBUTE_NUMA_ID] = -1,
        [CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED] = 1,
        [CU_DEVICE_ATTRIBUTE_UNIFIED_FUNCTION_POINTERS] = 1,
        [CU_DEVICE_ATTRIBUTE_HOST_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED] = 1,
        [CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED] = 1,
        [CU_DEVICE_ATTRIBUTE_LOCALITY_DOMAIN_COUNT] = 1,
};

/* What differs by compute capability; a device takes the last row that is not above its own. */
static const struct capability {
	uint32_t major, minor;
	int shared_per_sm;
	int shared_optin;
	int shared_reserved;
	int double_ratio;
	int sync_domains;
} capabilities[] = {
        {0, 0, 49152, 49152, 0, 32, 1},       {7, 0, 98304, 98304, 0, 2, 1},       {7, 5, 65536, 65536, 0, 32, 1},
        {8, 0, 167936, 166912, 1024, 2, 1},   {8, 6, 102400, 101376, 1024, 64, 1}, {8, 7, 167936, 166912, 1024, 32, 1},
        {8, 9, 102400, 101376, 1024, 64, 1},  {9, 0, 233472, 232448, 1024, 2, 4},  {10, 0, 233472, 232448, 1024, 2, 4},
        {12, 0, 102400, 101376, 1024, 64, 1},
};

static const struct capability *capability_of(const struct sim_device_model *model)
{
	const struct capability *found = &capabilities[0];

	for (size_t i = 1; i < sizeof capabilities / sizeof capabilities[0]; i++) {
		const struct capability *row = &capabilities[i];
		if (row->major < model->cc_major || (row->major == model->cc_major && row->minor <= model->cc_minor))
			found = row;
	}
	return found;
}

/* False: not an attribute of this sort. */
static bool by_capability(const struct sim_device_model *model, CUdevice_attribute attribute, int *value)
{
	const struct capability *capability = capability_of(model);

	switch (attribute) {
	case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR:
		*value = capability->shared_per_sm;
		return true;
	case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN:
		*value = capability->shared_optin;
		return true;
	case CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK:
		*value = capability->shared_reserved;
		return true;
	case CU_DEVICE_ATTRIBUTE_SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO:
		*value = capability->double_ratio;
		return true;
	case CU_DEVICE_ATTRIBUTE_MEM_SYNC_DOMAIN_COUNT:
		*value = capability->sync_domains;
		return true;
	case CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT:
		*value = capability->double_ratio == 2 ? 3 : 2;
		return true;
	case CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH:
		*value = model->cc_major >= 9;
		return true;
	case CU_DEVICE_ATTRIBUTE_MAX_PERSISTING_L2_CACHE_SIZE:
		*value = model->cc_major >= 8 ? (int)(model->l2_bytes / 8 * 5) : 0;
		return true;
	case CU_DEVICE_ATTRIBUTE_MAX_ACCESS_POLICY_WINDOW_SIZE:
		*value = model->cc_major >= 8 ? 134213632 : 0;
		return true;
	default:
		return false;
	}
}

static bool by_place(int device, CUdevice_attribute attribute, int *value)
{
	unsigned domain = 0, bus = 0, slot = 0;

	sim_device_place(device, &domain, &bus, &slot);
	switch (attribute) {
	case CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID:
		*value = (int)domain;
		return true;
	case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID:
		*value = (int)bus;
		return true;
	case CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID:
		*value = (int)slot;
		return true;
	case CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED:
		*value = sim_multicast_supported(device);
		return true;
	case CU_DEVICE_ATTRIBUTE_MULTI_GPU_BOARD_GROUP_ID:
		*value = device;
		return true;
	default:
		return false;
	}
}

static bool by_profile(const struct sim_device_model *model, CUdevice_attribute attribute, int *value)
{
	switch (attribute) {
	case CU_DEVICE_ATTRIBUTE_CLOCK_RATE:
		*value = (int)model->clock_khz;
		return true;
	case CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE:
		*value = (int)model->memory_clock_khz;
		return true;
	case CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH:
		*value = (int)model->bus_width;
		return true;
	case CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE:
		*value = (int)model->l2_bytes;
		return true;
	case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
	case CU_DEVICE_ATTRIBUTE_LOCALITY_DOMAIN_MULTIPROCESSOR_COUNT:
		*value = (int)model->sms;
		return true;
	case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR:
		*value = (int)model->threads_per_sm;
		return true;
	case CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR:
		*value = (int)model->blocks_per_sm;
		return true;
	case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
		*value = (int)model->cc_major;
		return true;
	case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
		*value = (int)model->cc_minor;
		return true;
	case CU_DEVICE_ATTRIBUTE_ECC_ENABLED:
		*value = model->ecc != 0;
		return true;
	case CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID:
		*value = (int)model->numa;
		return true;
	case CU_DEVICE_ATTRIBUTE_GPU_PCI_DEVICE_ID:
		*value = (int)model->pci_device_id;
		return true;
	case CU_DEVICE_ATTRIBUTE_GPU_PCI_SUBSYSTEM_ID:
		*value = (int)model->pci_subsystem_id;
		return true;
	default:
		return false;
	}
}

static int attribute_of(int device, CUdevice_attribute attribute)
{
	const struct sim_device_model *model = &sim_machine->model[device];
	int value = fixed[attribute];

	if (!by_profile(model, attribute, &value) && !by_capability(model, attribute, &value))
		by_place(device, attribute, &value);
	return value;
}

CUresult sim_cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice ordinal)
{
	int device;
	CUresult result = sim_device_of(ordinal, &device);

	if (result != CUDA_SUCCESS)
		return result;
	if (!value || (int)attribute < 1 || attribute >= CU_DEVICE_ATTRIBUTE_MAX)
		return CUDA_ERROR_INVALID_VALUE;
	*value = attribute_of(device, attribute);
	return CUDA_SUCCESS;
}

CUresult sim_cuDeviceGetProperties(CUdevprop *properties, CUdevice ordinal)
{
	int device;
	CUresult result = sim_device_of(ordinal, &device);

	if (result != CUDA_SUCCESS)
		return result;
	if (!properties)
		return CUDA_ERROR_INVALID_VALUE;
	for (int i = 0; i < 3; i++) {
		properties->maxThreadsDim[i] = fixed[CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X + i];
		properties->maxGridSize[i] = fixed[CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X + i];
	}
	properties->maxThreadsPerBlock = fixed[CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK];
	properties->sharedMemPerBlock = fixed[CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK];
	properties->totalConstantMemory = fixed[CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY];
	properties->SIMDWidth = fixed[CU_DEVICE_ATTRIBUTE_WARP_SIZE];
	properties->memPitch = fixed[CU_DEVICE_ATTRIBUTE_MAX_PITCH];
	properties->regsPerBlock = fixed[CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK];
	properties->clockRate = (int)sim_machine->model[device].clock_khz;
	properties->textureAlign = fixed[CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT];
	return CUDA_SUCCESS;
}
