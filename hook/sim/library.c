/* library.c: libraries and kernels: code without a context, loaded into each context where it is first used.
 *
 * The code is copied, unless the program promises to keep it. Names are read for one device at loading time; other
 * devices get theirs when the module is made. Called through the entry layer and by function.c (a kernel may be
 * launched in place of a function). What can go wrong: as in module.c, at the first use as well as at loading.
 */
#include <stdlib.h>
#include <string.h>

#include "module.h"
#include "retire.h"
#include "sim_impl.h"

static pthread_mutex_t libraries = PTHREAD_MUTEX_INITIALIZER; /* loading into contexts */

static struct sim_library *library_of(CUlibrary handle)
{
	return sim_handle_is(handle, SIM_TAG_LIBRARY) ? (struct sim_library *)handle : NULL;
}

static struct sim_kernel *kernel_of(CUkernel handle)
{
	return sim_handle_is(handle, SIM_TAG_KERNEL) ? (struct sim_kernel *)handle : NULL;
}

/* ---- use in a context -------------------------------------------------------------------------------------------- */

static void share_settings(struct sim_module *module, struct sim_library *library)
{
	for (unsigned i = 0; i < module->image.nkernels; i++)
		for (unsigned j = 0; j < library->image.nkernels; j++)
			if (!strcmp(module->image.kernels[i].name, library->image.kernels[j].name))
				module->functions[i].settings = &library->kernels[j].settings[module->context->device];
}

struct sim_module *sim_library_module(struct sim_library *library, struct sim_context *context, CUresult *error)
{
	*error = CUDA_SUCCESS;
	pthread_mutex_lock(&libraries);
	struct sim_module *module = sim_module_of_library(library, context);
	if (!module) {
		struct sim_jit_log log = {.length = 0};
		module = sim_module_new(context, library, library->code, library->size, &log, error);
		if (module)
			share_settings(module, library);
		else
			sim_log("library does not load on device %d: error %d, %s", context->device, *error, log.text);
	}
	pthread_mutex_unlock(&libraries);
	return module;
}

struct sim_function *sim_kernel_function(struct sim_kernel *kernel, struct sim_context *context, CUresult *error)
{
	struct sim_module *module = sim_library_module(kernel->library, context, error);
	if (!module)
		return NULL;
	struct sim_function *function = sim_module_function(module, kernel->library->image.kernels[kernel->index].name);
	if (!function)
		*error = CUDA_ERROR_NOT_FOUND;
	return function;
}

/* ---- loading ----------------------------------------------------------------------------------------------------- */

static CUresult make_kernels(struct sim_library *library)
{
	library->kernels = calloc(library->image.nkernels + 1, sizeof(*library->kernels));
	if (!library->kernels)
		return CUDA_ERROR_OUT_OF_MEMORY;
	for (unsigned i = 0; i < library->image.nkernels; i++) {
		library->kernels[i].tag = SIM_TAG_KERNEL;
		library->kernels[i].library = library;
		library->kernels[i].index = i;
		sim_handle_add(&library->kernels[i], SIM_TAG_KERNEL);
	}
	return CUDA_SUCCESS;
}

/* What a thread that looks at one of its kernels at this moment may still read. */
static void forget(void *arg)
{
	struct sim_library *library = arg;

	free(library->kernels);
	free(library->code);
	sim_image_free(&library->image);
	free(library);
}

static void library_free(struct sim_library *library)
{
	for (unsigned i = 0; library->kernels && i < library->image.nkernels; i++)
		sim_handle_drop(&library->kernels[i]);
	sim_retire(forget, library);
}

static CUresult library_new(struct sim_library **out, const void *code, size_t size, struct sim_jit_log *log)
{
	struct sim_context *context = sim_current();
	int device = context ? context->device : sim_physical(0);
	if (device < 0)
		return CUDA_ERROR_NO_DEVICE;
	struct sim_library *library = calloc(1, sizeof(*library));
	if (!library)
		return CUDA_ERROR_OUT_OF_MEMORY;
	library->tag = SIM_TAG_LIBRARY;
	library->size = size;
	library->code = malloc(size + 1);
	CUresult error = CUDA_ERROR_OUT_OF_MEMORY;
	if (library->code) {
		memcpy(library->code, code, size);
		((char *)library->code)[size] = '\0';
		error = sim_image_read(&library->image, library->code, size, sim_compute_capability(device), log);
	}
	if (error == CUDA_SUCCESS)
		error = make_kernels(library);
	if (error != CUDA_SUCCESS) {
		library_free(library);
		return error;
	}
	sim_handle_add(library, SIM_TAG_LIBRARY);
	*out = library;
	return CUDA_SUCCESS;
}

static CUresult load(CUlibrary *out, const void *code, size_t size, unsigned njit, CUjit_option *jit_options,
                     void **jit_values, unsigned n, CUlibraryOption *options)
{
	if (!sim_initialized())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!out || !code || (n && !options))
		return CUDA_ERROR_INVALID_VALUE;
	for (unsigned i = 0; i < n; i++)
		if (options[i] >= CU_LIBRARY_NUM_OPTIONS)
			return CUDA_ERROR_INVALID_VALUE;
	struct sim_jit jit;
	CUresult error = sim_jit_begin(&jit, njit, jit_options, jit_values);
	if (error != CUDA_SUCCESS)
		return error;
	if (size == SIZE_MAX)
		code = sim_image_whole(code, &size);
	struct sim_library *library = NULL;
	error = code ? library_new(&library, code, size, &jit.log) : CUDA_ERROR_INVALID_IMAGE;
	CUmoduleLoadingMode mode;
	if (library && sim_current() && sim_cuModuleGetLoadingMode(&mode) == CUDA_SUCCESS &&
	    mode == CU_MODULE_EAGER_LOADING)
		sim_library_module(library, sim_current(), &error);
	if (error == CUDA_SUCCESS)
		*out = (CUlibrary)library;
	else if (library)
		sim_cuLibraryUnload((CUlibrary)library);
	return sim_jit_end(&jit, error);
}

CUresult sim_cuLibraryLoadData(CUlibrary *library, const void *code, CUjit_option *jitOptions, void **jitOptionsValues,
                               unsigned int numJitOptions, CUlibraryOption *libraryOptions, void **libraryOptionValues,
                               unsigned int numLibraryOptions)
{
	(void)libraryOptionValues;
	return load(library, code, SIZE_MAX, numJitOptions, jitOptions, jitOptionsValues, numLibraryOptions,
	            libraryOptions);
}

CUresult sim_cuLibraryLoadFromFile(CUlibrary *library, const char *fileName, CUjit_option *jitOptions,
                                   void **jitOptionsValues, unsigned int numJitOptions, CUlibraryOption *libraryOptions,
                                   void **libraryOptionValues, unsigned int numLibraryOptions)
{
	(void)libraryOptionValues;
	if (!library || !fileName)
		return CUDA_ERROR_INVALID_VALUE;
	void *data;
	size_t size;
	CUresult error = sim_read_file(fileName, &data, &size);
	if (error != CUDA_SUCCESS)
		return error;
	error = load(library, data, size, numJitOptions, jitOptions, jitOptionsValues, numLibraryOptions,
	             libraryOptions);
	free(data);
	return error;
}

CUresult sim_cuLibraryUnload(CUlibrary handle)
{
	struct sim_library *library = library_of(handle);
	if (!library)
		return sim_initialized() ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_NOT_INITIALIZED;
	sim_handle_drop(library);
	struct sim_module *module;
	while ((module = sim_module_of_library(library, NULL)))
		sim_module_free(module);
	library_free(library);
	return CUDA_SUCCESS;
}

/* ---- what is in a library ---------------------------------------------------------------------------------------- */

CUresult sim_cuLibraryGetKernel(CUkernel *pKernel, CUlibrary handle, const char *name)
{
	struct sim_library *library = library_of(handle);
	if (!library)
		return CUDA_ERROR_INVALID_HANDLE;
	if (!pKernel || !name)
		return CUDA_ERROR_INVALID_VALUE;
	for (unsigned i = 0; i < library->image.nkernels; i++)
		if (!strcmp(library->image.kernels[i].name, name)) {
			*pKernel = (CUkernel)&library->kernels[i];
			return CUDA_SUCCESS;
		}
	return CUDA_ERROR_NOT_FOUND;
}

CUresult sim_cuLibraryGetKernelCount(unsigned int *count, CUlibrary lib)
{
	struct sim_library *library = library_of(lib);
	if (!library)
		return CUDA_ERROR_INVALID_HANDLE;
	if (!count)
		return CUDA_ERROR_INVALID_VALUE;
	*count = library->image.nkernels;
	return CUDA_SUCCESS;
}

CUresult sim_cuLibraryEnumerateKernels(CUkernel *kernels, unsigned int numKernels, CUlibrary lib)
{
	struct sim_library *library = library_of(lib);
	if (!library)
		return CUDA_ERROR_INVALID_HANDLE;
	if (!kernels || !numKernels)
		return CUDA_ERROR_INVALID_VALUE;
	for (unsigned i = 0; i < numKernels && i < library->image.nkernels; i++)
		kernels[i] = (CUkernel)&library->kernels[i];
	return CUDA_SUCCESS;
}

/* The library's module in the current context. */
static struct sim_module *current_module(CUlibrary handle, CUresult *error)
{
	struct sim_library *library = library_of(handle);
	struct sim_context *context;
	*error = CUDA_ERROR_INVALID_HANDLE;
	if (!library)
		return NULL;
	*error = sim_require(&context);
	return *error == CUDA_SUCCESS ? sim_library_module(library, context, error) : NULL;
}

CUresult sim_cuLibraryGetModule(CUmodule *pMod, CUlibrary library)
{
	CUresult error;
	if (!pMod)
		return CUDA_ERROR_INVALID_VALUE;
	struct sim_module *module = current_module(library, &error);
	if (module)
		*pMod = (CUmodule)module;
	return error;
}

static CUresult library_variable(CUlibrary library, const char *name, bool managed, CUdeviceptr *dptr, size_t *bytes)
{
	CUresult error;
	if (!name || (!dptr && !bytes))
		return CUDA_ERROR_INVALID_VALUE;
	struct sim_module *module = current_module(library, &error);
	return module ? sim_module_variable(module, name, managed, dptr, bytes) : error;
}

CUresult sim_cuLibraryGetGlobal(CUdeviceptr *dptr, size_t *bytes, CUlibrary library, const char *name)
{
	return library_variable(library, name, false, dptr, bytes);
}

CUresult sim_cuLibraryGetManaged(CUdeviceptr *dptr, size_t *bytes, CUlibrary library, const char *name)
{
	return library_variable(library, name, true, dptr, bytes);
}

/* Unified functions are those that host and device call by one pointer; no image that is read here has any. */
CUresult sim_cuLibraryGetUnifiedFunction(void **fptr, CUlibrary library, const char *symbol)
{
	if (!library_of(library))
		return CUDA_ERROR_INVALID_HANDLE;
	return fptr && symbol ? CUDA_ERROR_NOT_FOUND : CUDA_ERROR_INVALID_VALUE;
}

/* ---- kernels ----------------------------------------------------------------------------------------------------- */

static const struct sim_kernel_image *image_of(const struct sim_kernel *kernel)
{
	return &kernel->library->image.kernels[kernel->index];
}

CUresult sim_cuKernelGetFunction(CUfunction *pFunc, CUkernel handle)
{
	struct sim_kernel *kernel = kernel_of(handle);
	if (!kernel)
		return CUDA_ERROR_INVALID_HANDLE;
	if (!pFunc)
		return CUDA_ERROR_INVALID_VALUE;
	struct sim_context *context;
	CUresult error = sim_require(&context);
	if (error != CUDA_SUCCESS)
		return error;
	struct sim_function *function = sim_kernel_function(kernel, context, &error);
	if (function)
		*pFunc = (CUfunction)function;
	return error;
}

CUresult sim_cuKernelGetLibrary(CUlibrary *pLib, CUkernel handle)
{
	struct sim_kernel *kernel = kernel_of(handle);
	if (!kernel)
		return CUDA_ERROR_INVALID_HANDLE;
	if (!pLib)
		return CUDA_ERROR_INVALID_VALUE;
	*pLib = (CUlibrary)kernel->library;
	return CUDA_SUCCESS;
}

CUresult sim_cuKernelGetName(const char **name, CUkernel hfunc)
{
	struct sim_kernel *kernel = kernel_of(hfunc);
	if (!kernel)
		return CUDA_ERROR_INVALID_HANDLE;
	if (!name)
		return CUDA_ERROR_INVALID_VALUE;
	*name = image_of(kernel)->name;
	return CUDA_SUCCESS;
}

CUresult sim_cuKernelGetParamInfo(CUkernel handle, size_t paramIndex, size_t *paramOffset, size_t *paramSize)
{
	struct sim_kernel *kernel = kernel_of(handle);
	if (!kernel)
		return CUDA_ERROR_INVALID_HANDLE;
	const struct sim_kernel_image *image = image_of(kernel);
	if (!paramOffset || paramIndex >= image->nparams)
		return CUDA_ERROR_INVALID_VALUE;
	*paramOffset = image->params[paramIndex].offset;
	if (paramSize)
		*paramSize = image->params[paramIndex].size;
	return CUDA_SUCCESS;
}

CUresult sim_cuKernelGetParamCount(CUkernel handle, size_t *paramCount)
{
	struct sim_kernel *kernel = kernel_of(handle);
	if (!kernel)
		return CUDA_ERROR_INVALID_HANDLE;
	if (!paramCount)
		return CUDA_ERROR_INVALID_VALUE;
	*paramCount = image_of(kernel)->nparams;
	return CUDA_SUCCESS;
}

CUresult sim_cuKernelGetAttribute(int *pi, CUfunction_attribute attrib, CUkernel handle, CUdevice dev)
{
	struct sim_kernel *kernel = kernel_of(handle);
	if (!kernel)
		return CUDA_ERROR_INVALID_HANDLE;
	int device = sim_physical(dev);
	if (device < 0)
		return CUDA_ERROR_INVALID_DEVICE;
	if (!pi)
		return CUDA_ERROR_INVALID_VALUE;
	CUresult error;
	int value = sim_kernel_attribute(&kernel->library->image, image_of(kernel), &kernel->settings[device], device,
	                                 attrib, &error);
	if (error == CUDA_SUCCESS)
		*pi = value;
	return error;
}

CUresult sim_cuKernelSetAttribute(CUfunction_attribute attrib, int val, CUkernel handle, CUdevice dev)
{
	struct sim_kernel *kernel = kernel_of(handle);
	if (!kernel)
		return CUDA_ERROR_INVALID_HANDLE;
	int device = sim_physical(dev);
	if (device < 0)
		return CUDA_ERROR_INVALID_DEVICE;
	return sim_kernel_set(image_of(kernel), &kernel->settings[device], device, attrib, val);
}

CUresult sim_cuKernelSetCacheConfig(CUkernel kernel, CUfunc_cache config, CUdevice dev)
{
	if (!kernel_of(kernel))
		return CUDA_ERROR_INVALID_HANDLE;
	if (sim_physical(dev) < 0)
		return CUDA_ERROR_INVALID_DEVICE;
	return config <= CU_FUNC_CACHE_PREFER_EQUAL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE; /* a hint */
}
