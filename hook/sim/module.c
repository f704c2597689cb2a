/* module.c: modules: loading, unloading, finding functions and variables.
 *
 * A module takes model.module bytes of the device and real device memory for each variable, so that copies to and from
 * variables work. Called through the entry layer, by library.c, and by context.c at a context's end. What can go
 * wrong: images that are damaged or for another device (module_image.h), names that do not exist
 * (CUDA_ERROR_NOT_FOUND), a full card (CUDA_ERROR_OUT_OF_MEMORY; nothing is left behind).
 */
#include "module.h"
#include "retire.h"

#include <errno.h>
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim_impl.h"

static pthread_mutex_t lists = PTHREAD_MUTEX_INITIALIZER; /* the modules of every context */

int sim_compute_capability(int device)
{
	return (int)(sim_machine->model[device].cc_major * 10 + sim_machine->model[device].cc_minor);
}

/* ---- making and ending ------------------------------------------------------------------------------------------- */

static const struct sim_cost *cost_of(int device, const char *name)
{
	const struct sim_device_model *model = &sim_machine->model[device];
	for (uint32_t i = 0; i < model->ncosts && i < SIM_COSTS; i++)
		if (fnmatch(model->cost[i].pattern, name, 0) == 0)
			return &model->cost[i];
	return NULL;
}

/* FNV-1a; never 0. */
static uint64_t name_key(const char *name)
{
	uint64_t key = UINT64_C(0xcbf29ce484222325);
	for (; *name; name++)
		key = (key ^ (unsigned char)*name) * UINT64_C(0x100000001b3);
	return key | 1;
}

static CUresult make_functions(struct sim_module *module)
{
	module->functions = calloc(module->image.nkernels + 1, sizeof(*module->functions));
	if (!module->functions)
		return CUDA_ERROR_OUT_OF_MEMORY;
	for (unsigned i = 0; i < module->image.nkernels; i++) {
		struct sim_function *function = &module->functions[i];
		function->tag = SIM_TAG_FUNCTION;
		function->module = module;
		function->image = &module->image.kernels[i];
		function->settings = &function->own;
		function->cost = cost_of(module->context->device, function->image->name);
		if (function->cost && function->cost->collective)
			function->meeting = name_key(function->image->name);
		sim_handle_add(function, SIM_TAG_FUNCTION);
	}
	return CUDA_SUCCESS;
}

static CUresult make_variables(struct sim_module *module)
{
	module->variables = calloc(module->image.nvariables + 1, sizeof(*module->variables));
	module->references = calloc(module->image.nvariables + 1, sizeof(*module->references));
	if (!module->variables || !module->references)
		return CUDA_ERROR_OUT_OF_MEMORY;
	for (unsigned i = 0; i < module->image.nvariables; i++) {
		const struct sim_variable *variable = &module->image.variables[i];
		if (variable->external || !variable->size)
			continue;
		CUresult error = sim_memory_take(module->context, variable->size, &module->variables[i]);
		if (error != CUDA_SUCCESS)
			return error;
		if (variable->init_size)
			memcpy((void *)module->variables[i], variable->init, variable->init_size);
		if (variable->texture || variable->surface) {
			module->references[i] = sim_module_ref_new(variable->surface);
			if (!module->references[i])
				return CUDA_ERROR_OUT_OF_MEMORY;
		}
	}
	return CUDA_SUCCESS;
}

static CUresult check_resolved(const struct sim_image *image, struct sim_jit_log *log)
{
	const char *missing = sim_image_unresolved(image);
	if (!missing)
		return CUDA_SUCCESS;
	sim_jit_say(log, "ptxas fatal   : Unresolved extern function '%s'", missing);
	return CUDA_ERROR_INVALID_PTX;
}

static void enlist(struct sim_module *module)
{
	pthread_mutex_lock(&lists);
	module->next = module->context->modules;
	if (module->next)
		module->next->prev = module;
	module->context->modules = module;
	if (module->library) {
		module->next_of_library = module->library->modules;
		module->library->modules = module;
	}
	pthread_mutex_unlock(&lists);
}

static void delist(struct sim_module *module)
{
	pthread_mutex_lock(&lists);
	if (module->prev)
		module->prev->next = module->next;
	else if (module->context->modules == module)
		module->context->modules = module->next;
	if (module->next)
		module->next->prev = module->prev;
	for (struct sim_module **link = module->library ? &module->library->modules : NULL; link && *link;
	     link = &(*link)->next_of_library)
		if (*link == module) {
			*link = module->next_of_library;
			break;
		}
	pthread_mutex_unlock(&lists);
}

struct sim_module *sim_module_of_library(struct sim_library *library, const struct sim_context *context)
{
	pthread_mutex_lock(&lists);
	struct sim_module *module = library->modules;
	while (module && context && module->context != context)
		module = module->next_of_library;
	pthread_mutex_unlock(&lists);
	return module;
}

/* What a thread that launches one of its functions at this moment may still read. */
static void forget(void *arg)
{
	struct sim_module *module = arg;

	for (unsigned i = 0; module->functions && i < module->image.nkernels; i++)
		free(module->functions[i].old);
	free(module->functions);
	free(module->variables);
	free(module->references);
	sim_image_free(&module->image);
	free(module);
}

static void release(struct sim_module *module)
{
	for (unsigned i = 0; module->functions && i < module->image.nkernels; i++)
		sim_handle_drop(&module->functions[i]);
	for (unsigned i = 0; module->variables && i < module->image.nvariables; i++)
		if (module->variables[i])
			sim_memory_put(module->context, module->variables[i]);
	for (unsigned i = 0; module->references && i < module->image.nvariables; i++)
		sim_module_ref_free(module->references[i]);
	sim_retire(forget, module);
}

struct sim_module *sim_module_new(struct sim_context *context, struct sim_library *library, const void *code,
                                  size_t size, struct sim_jit_log *log, CUresult *error)
{
	struct sim_module *module = calloc(1, sizeof(*module));
	*error = CUDA_ERROR_OUT_OF_MEMORY;
	if (!module)
		return NULL;
	module->tag = SIM_TAG_MODULE;
	module->context = context;
	module->library = library;
	*error = sim_image_read(&module->image, code, size, sim_compute_capability(context->device), log);
	if (*error == CUDA_SUCCESS)
		*error = check_resolved(&module->image, log);
	int64_t bytes = (int64_t)sim_machine->model[context->device].module;
	bool counted = *error == CUDA_SUCCESS && sim_account(context->device, bytes, true) == 0;
	if (*error == CUDA_SUCCESS && !counted)
		*error = CUDA_ERROR_OUT_OF_MEMORY;
	if (*error == CUDA_SUCCESS)
		*error = make_functions(module);
	if (*error == CUDA_SUCCESS)
		*error = make_variables(module);
	if (*error != CUDA_SUCCESS) {
		if (counted)
			sim_account(context->device, -bytes, true);
		release(module);
		return NULL;
	}
	enlist(module);
	sim_handle_add(module, SIM_TAG_MODULE);
	return module;
}

void sim_module_free(struct sim_module *module)
{
	sim_handle_drop(module);
	delist(module);
	sim_account(module->context->device, -(int64_t)sim_machine->model[module->context->device].module, true);
	release(module);
}

void sim_modules_destroy(struct sim_context *context)
{
	while (context->modules)
		sim_module_free(context->modules);
}

/* ---- finding ----------------------------------------------------------------------------------------------------- */

struct sim_function *sim_module_function(struct sim_module *module, const char *name)
{
	for (unsigned i = 0; i < module->image.nkernels; i++)
		if (!strcmp(module->image.kernels[i].name, name))
			return &module->functions[i];
	return NULL;
}

CUresult sim_module_variable(struct sim_module *module, const char *name, bool managed, CUdeviceptr *out, size_t *bytes)
{
	for (unsigned i = 0; i < module->image.nvariables; i++) {
		const struct sim_variable *variable = &module->image.variables[i];
		if (!module->variables[i] || (managed && !variable->managed) || strcmp(variable->name, name) != 0)
			continue;
		if (out)
			*out = module->variables[i];
		if (bytes)
			*bytes = variable->size;
		return CUDA_SUCCESS;
	}
	return CUDA_ERROR_NOT_FOUND;
}

static CUresult file_error(void)
{
	return errno == ENOENT || errno == ENOTDIR ? CUDA_ERROR_FILE_NOT_FOUND : CUDA_ERROR_OPERATING_SYSTEM;
}

CUresult sim_read_file(const char *path, void **data, size_t *size)
{
	FILE *file = fopen(path, "rbe");
	if (!file)
		return file_error();
	CUresult error = CUDA_ERROR_OPERATING_SYSTEM;
	long end = fseek(file, 0, SEEK_END) == 0 ? ftell(file) : -1;
	char *all =
	        end >= 0 && fseek(file, 0, SEEK_SET) == 0 ? calloc(1, (size_t)end + 1) : NULL; /* text ends with 0 */
	if (all && fread(all, 1, (size_t)end, file) == (size_t)end) {
		*data = all;
		*size = (size_t)end;
		error = CUDA_SUCCESS;
	} else {
		free(all);
	}
	fclose(file);
	return error;
}

/* ---- entry points ------------------------------------------------------------------------------------------------ */

static struct sim_module *module_of(CUmodule handle, CUresult *error)
{
	struct sim_context *context;
	*error = sim_require(&context);
	if (*error != CUDA_SUCCESS)
		return NULL;
	if (sim_handle_is(handle, SIM_TAG_MODULE))
		return (struct sim_module *)handle;
	*error = CUDA_ERROR_INVALID_HANDLE;
	return NULL;
}

static CUresult load(CUmodule *out, const void *image, size_t size, unsigned n, CUjit_option *options, void **values)
{
	struct sim_context *context;
	CUresult error = sim_require(&context);
	if (error != CUDA_SUCCESS)
		return error;
	if (!out || !image)
		return CUDA_ERROR_INVALID_VALUE;
	struct sim_jit jit;
	error = sim_jit_begin(&jit, n, options, values);
	if (error != CUDA_SUCCESS)
		return error;
	struct sim_module *module = sim_module_new(context, NULL, image, size, &jit.log, &error);
	if (module)
		*out = (CUmodule)module;
	return sim_jit_end(&jit, error);
}

CUresult sim_cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned int numOptions, CUjit_option *options,
                                void **optionValues)
{
	return load(module, image, SIZE_MAX, numOptions, options, optionValues);
}

CUresult sim_cuModuleLoadData(CUmodule *module, const void *image)
{
	return load(module, image, SIZE_MAX, 0, NULL, NULL);
}

CUresult sim_cuModuleLoadFatBinary(CUmodule *module, const void *fatCubin)
{
	return load(module, fatCubin, SIZE_MAX, 0, NULL, NULL);
}

CUresult sim_cuModuleLoad(CUmodule *module, const char *fname)
{
	struct sim_context *context;
	CUresult error = sim_require(&context);
	if (error != CUDA_SUCCESS)
		return error;
	if (!module || !fname)
		return CUDA_ERROR_INVALID_VALUE;
	void *data;
	size_t size;
	error = sim_read_file(fname, &data, &size);
	if (error != CUDA_SUCCESS)
		return error;
	error = size ? load(module, data, size, 0, NULL, NULL) : CUDA_ERROR_INVALID_IMAGE;
	free(data);
	return error;
}

CUresult sim_cuModuleUnload(CUmodule hmod)
{
	CUresult error;
	struct sim_module *module = module_of(hmod, &error);
	if (!module)
		return error;
	if (module->library)
		return CUDA_ERROR_NOT_PERMITTED; /* it goes with cuLibraryUnload */
	error = sim_context_wait(module->context);
	sim_module_free(module);
	return error;
}

CUresult sim_cuModuleGetLoadingMode(CUmoduleLoadingMode *mode)
{
	if (!mode)
		return CUDA_ERROR_INVALID_VALUE;
	const char *wish = getenv("CUDA_MODULE_LOADING");
	*mode = wish && !strcmp(wish, "EAGER") ? CU_MODULE_EAGER_LOADING : CU_MODULE_LAZY_LOADING;
	return CUDA_SUCCESS;
}

CUresult sim_cuModuleGetFunction(CUfunction *hfunc, CUmodule hmod, const char *name)
{
	CUresult error;
	struct sim_module *module = module_of(hmod, &error);
	if (!module)
		return error;
	if (!hfunc || !name || !*name)
		return CUDA_ERROR_INVALID_VALUE;
	struct sim_function *function = sim_module_function(module, name);
	if (!function)
		return CUDA_ERROR_NOT_FOUND;
	*hfunc = (CUfunction)function;
	return CUDA_SUCCESS;
}

CUresult sim_cuModuleGetFunctionCount(unsigned int *count, CUmodule mod)
{
	CUresult error;
	struct sim_module *module = module_of(mod, &error);
	if (!module)
		return error;
	if (!count)
		return CUDA_ERROR_INVALID_VALUE;
	*count = module->image.nkernels;
	return CUDA_SUCCESS;
}

CUresult sim_cuModuleEnumerateFunctions(CUfunction *functions, unsigned int numFunctions, CUmodule mod)
{
	CUresult error;
	struct sim_module *module = module_of(mod, &error);
	if (!module)
		return error;
	if (!functions || !numFunctions)
		return CUDA_ERROR_INVALID_VALUE;
	for (unsigned i = 0; i < numFunctions && i < module->image.nkernels; i++)
		functions[i] = (CUfunction)&module->functions[i];
	return CUDA_SUCCESS;
}

CUresult sim_cuModuleGetGlobal_v2(CUdeviceptr *dptr, size_t *bytes, CUmodule hmod, const char *name)
{
	CUresult error;
	struct sim_module *module = module_of(hmod, &error);
	if (!module)
		return error;
	if (!name || (!dptr && !bytes))
		return CUDA_ERROR_INVALID_VALUE;
	return sim_module_variable(module, name, false, dptr, bytes);
}

static CUresult find_reference(CUmodule hmod, const char *name, bool surface, void **out)
{
	CUresult error;
	struct sim_module *module = module_of(hmod, &error);
	if (!module)
		return error;
	if (!out || !name)
		return CUDA_ERROR_INVALID_VALUE;
	for (unsigned i = 0; i < module->image.nvariables; i++) {
		const struct sim_variable *variable = &module->image.variables[i];
		if (!module->references[i] || variable->surface != surface || strcmp(variable->name, name) != 0)
			continue;
		*out = module->references[i];
		return CUDA_SUCCESS;
	}
	return CUDA_ERROR_NOT_FOUND;
}

CUresult sim_cuModuleGetTexRef(CUtexref *ref, CUmodule hmod, const char *name)
{
	return find_reference(hmod, name, false, (void **)ref);
}

CUresult sim_cuModuleGetSurfRef(CUsurfref *ref, CUmodule hmod, const char *name)
{
	return find_reference(hmod, name, true, (void **)ref);
}

/* The old form has 32 bits for an address, and a variable lies where it lies. */
CUresult sim_cuModuleGetGlobal(CUdeviceptr_v1 *dptr, unsigned int *bytes, CUmodule hmod, const char *name)
{
	CUdeviceptr p = 0;
	size_t size = 0;
	CUresult error = sim_cuModuleGetGlobal_v2(dptr ? &p : NULL, bytes ? &size : NULL, hmod, name);
	if (error != CUDA_SUCCESS)
		return error;
	if (p > UINT32_MAX || size > UINT32_MAX)
		return CUDA_ERROR_INVALID_VALUE;
	if (dptr)
		*dptr = (CUdeviceptr_v1)p;
	if (bytes)
		*bytes = (unsigned)size;
	return CUDA_SUCCESS;
}
