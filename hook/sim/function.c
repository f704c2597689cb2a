/* function.c: functions: what programs ask of them and set on them.
 *
 * Registers, shared and local memory come from the image (PTX does not say: 32 registers are assumed). Called through
 * the entry layer, by library.c for kernels, and by launch.c to find what a handle means.
 */
#include "module.h"
#include "sim_impl.h"

#define REGISTERS_PER_BLOCK 65536
#define SHARED_DEFAULT      49152 /* what a kernel may use without asking for more */

struct sim_function *sim_function_of(CUfunction handle, struct sim_context *context, CUresult *error)
{
	*error = CUDA_SUCCESS;
	struct sim_function *function = (struct sim_function *)handle;
	if (!sim_handle_is(handle, SIM_TAG_FUNCTION)) {
		if (!sim_handle_is(handle, SIM_TAG_KERNEL)) {
			*error = CUDA_ERROR_INVALID_HANDLE;
			return NULL;
		}
		function = sim_kernel_function((struct sim_kernel *)handle, context, error);
		if (!function)
			return NULL;
	}
	if (function->module->context != context) {
		*error = CUDA_ERROR_INVALID_CONTEXT;
		return NULL;
	}
	return function;
}

int sim_shared_limit(int device, CUdevice_attribute attribute)
{
	int value = 0;
	for (CUdevice ordinal = 0; ordinal < sim_visible_count(); ordinal++)
		if (sim_physical(ordinal) == device &&
		    sim_cuDeviceGetAttribute(&value, attribute, ordinal) == CUDA_SUCCESS)
			return value;
	return SHARED_DEFAULT;
}

static int max_threads(const struct sim_kernel_image *kernel)
{
	uint32_t registers = kernel->registers ? (kernel->registers + 7) / 8 * 8 : 8;
	uint32_t most = REGISTERS_PER_BLOCK / registers / 32 * 32;
	most = most < 1024 ? most : 1024;
	return (int)(kernel->max_threads && kernel->max_threads < most ? kernel->max_threads : most);
}

static int default_of(const struct sim_image *image, const struct sim_kernel_image *kernel, int device,
                      CUfunction_attribute attribute)
{
	switch (attribute) {
	case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
		return max_threads(kernel);
	case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES:
		return (int)kernel->shared;
	case CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES:
		return (int)image->constants;
	case CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES:
		return (int)kernel->local;
	case CU_FUNC_ATTRIBUTE_NUM_REGS:
		return (int)kernel->registers;
	case CU_FUNC_ATTRIBUTE_PTX_VERSION:
		return image->sm;
	case CU_FUNC_ATTRIBUTE_BINARY_VERSION: /* PTX is compiled for the device it is loaded on */
		return image->ptx_version ? sim_compute_capability(device) : image->sm;
	case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
		return kernel->shared < SHARED_DEFAULT ? SHARED_DEFAULT - (int)kernel->shared : 0;
	case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
		return -1;
	case CU_FUNC_ATTRIBUTE_CLUSTER_SIZE_MUST_BE_SET:
		return kernel->cluster[0] != 0;
	case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH:
	case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT:
	case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH:
		return (int)kernel->cluster[attribute - CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH];
	default:
		return 0;
	}
}

int sim_kernel_attribute(const struct sim_image *image, const struct sim_kernel_image *kernel,
                         const struct sim_settings *settings, int device, CUfunction_attribute attribute,
                         CUresult *error)
{
	*error = (unsigned)attribute < CU_FUNC_ATTRIBUTE_MAX ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
	if (*error != CUDA_SUCCESS)
		return 0;
	return settings->set[attribute] ? settings->value[attribute] : default_of(image, kernel, device, attribute);
}

CUresult sim_kernel_set(const struct sim_kernel_image *kernel, struct sim_settings *settings, int device,
                        CUfunction_attribute attribute, int value)
{
	int most;
	switch (attribute) {
	case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
		most = sim_shared_limit(device, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN) -
		       (int)kernel->shared;
		if (value < 0 || value > most)
			return CUDA_ERROR_INVALID_VALUE;
		break;
	case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
		if (value < -1 || value > 100)
			return CUDA_ERROR_INVALID_VALUE;
		break;
	case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH:
	case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT:
	case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH:
	case CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED:
	case CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
	case CU_FUNC_ATTRIBUTE_SHARED_MEMORY_MODE:
		if (value < 0)
			return CUDA_ERROR_INVALID_VALUE;
		break;
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
	settings->value[attribute] = value;
	settings->set[attribute] = true;
	return CUDA_SUCCESS;
}

/* ---- entry points ------------------------------------------------------------------------------------------------ */

/* A function of any live context, or a kernel seen from the current one. */
static struct sim_function *function_of(CUfunction handle, CUresult *error)
{
	struct sim_context *context;
	*error = sim_require(&context);
	if (*error != CUDA_SUCCESS)
		return NULL;
	if (sim_handle_is(handle, SIM_TAG_FUNCTION))
		return (struct sim_function *)handle;
	return sim_function_of(handle, context, error);
}

CUresult sim_cuFuncGetAttribute(int *pi, CUfunction_attribute attrib, CUfunction hfunc)
{
	CUresult error;
	struct sim_function *function = function_of(hfunc, &error);
	if (!function)
		return error;
	if (!pi)
		return CUDA_ERROR_INVALID_VALUE;
	int value = sim_kernel_attribute(&function->module->image, function->image, function->settings,
	                                 function->module->context->device, attrib, &error);
	if (error == CUDA_SUCCESS)
		*pi = value;
	return error;
}

CUresult sim_cuFuncSetAttribute(CUfunction hfunc, CUfunction_attribute attrib, int value)
{
	CUresult error;
	struct sim_function *function = function_of(hfunc, &error);
	if (!function)
		return error;
	return sim_kernel_set(function->image, function->settings, function->module->context->device, attrib, value);
}

CUresult sim_cuFuncSetCacheConfig(CUfunction hfunc, CUfunc_cache config)
{
	CUresult error;
	if (!function_of(hfunc, &error))
		return error;
	return config <= CU_FUNC_CACHE_PREFER_EQUAL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE; /* a hint */
}

CUresult sim_cuFuncSetSharedMemConfig(CUfunction hfunc, CUsharedconfig config)
{
	CUresult error;
	if (!function_of(hfunc, &error))
		return error;
	return config <= CU_SHARED_MEM_CONFIG_EIGHT_BYTE_BANK_SIZE ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult sim_cuFuncGetModule(CUmodule *hmod, CUfunction hfunc)
{
	CUresult error;
	struct sim_function *function = function_of(hfunc, &error);
	if (!function)
		return error;
	if (!hmod)
		return CUDA_ERROR_INVALID_VALUE;
	*hmod = (CUmodule)function->module;
	return CUDA_SUCCESS;
}

CUresult sim_cuFuncGetName(const char **name, CUfunction hfunc)
{
	CUresult error;
	struct sim_function *function = function_of(hfunc, &error);
	if (!function)
		return error;
	if (!name)
		return CUDA_ERROR_INVALID_VALUE;
	*name = function->image->name;
	return CUDA_SUCCESS;
}

CUresult sim_cuFuncGetParamInfo(CUfunction func, size_t paramIndex, size_t *paramOffset, size_t *paramSize)
{
	CUresult error;
	struct sim_function *function = function_of(func, &error);
	if (!function)
		return error;
	if (!paramOffset || paramIndex >= function->image->nparams)
		return CUDA_ERROR_INVALID_VALUE;
	*paramOffset = function->image->params[paramIndex].offset;
	if (paramSize)
		*paramSize = function->image->params[paramIndex].size;
	return CUDA_SUCCESS;
}

CUresult sim_cuFuncGetParamCount(CUfunction func, size_t *paramCount)
{
	CUresult error;
	struct sim_function *function = function_of(func, &error);
	if (!function)
		return error;
	if (!paramCount)
		return CUDA_ERROR_INVALID_VALUE;
	*paramCount = function->image->nparams;
	return CUDA_SUCCESS;
}

CUresult sim_cuFuncIsLoaded(CUfunctionLoadingState *state, CUfunction function)
{
	CUresult error;
	if (!function_of(function, &error))
		return error;
	if (!state)
		return CUDA_ERROR_INVALID_VALUE;
	*state = CU_FUNCTION_LOADING_STATE_LOADED;
	return CUDA_SUCCESS;
}

CUresult sim_cuFuncLoad(CUfunction function)
{
	CUresult error;
	function_of(function, &error);
	return error;
}
