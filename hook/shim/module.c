/* module.c: the variables of loaded code: cuModuleLoad*, cuModuleUnload, cuLibraryLoad*, cuLibraryUnload.
 *
 * Called by programs that load PTX, cubins and fatbins. A variable in global memory may be as large as the card, and
 * cuModuleGetGlobal hands it out like any allocation, so what an image declares (image.c) is reserved before the driver
 * loads it. A module belongs to the current context and ends with it. A library belongs to none: it has its variables
 * once in every context that uses it, and which ones those will be nobody knows, so it is charged on every device once for
 * the primary context and once for each created one (ctx.c adds those that come later).
 * Files are looked at here and read once more by the driver.
 * The code itself is overhead that only the card knows: while it is loaded a granule is reserved, so that none comes into a
 * full share, and afterwards whoever watches is rung for, who sees what it took.
 * What can go wrong: an image that does not fit, CUDA_ERROR_OUT_OF_MEMORY; no host memory for a record, the same.
 */
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "core.h"
#include "hooks.h"
#include "image.h"
#include "memory.h"

#define FILE_MOST (INT64_C(1) << 32)

/* ---- what an image costs ----------------------------------------------------------------------------------------- */

/* Small ones share granules of the driver's own, which are overhead. */
static uint64_t cost_of(const void *image, size_t size)
{
	uint64_t bytes = vgpu_image_variables(image, size);
	return vgpu_round_up(bytes, bytes < VGPU_GRANULE ? PTG_UNIT : VGPU_GRANULE);
}

/* 0 where the driver is to say what is wrong with the file. */
static uint64_t cost_of_file(const char *path)
{
	struct stat st;
	int fd = path != NULL ? vgpu_open(AT_FDCWD, path, O_RDONLY | O_NONBLOCK, 0) : -1;
	if (fd < 0)
		return 0;
	char *all = vgpu_fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_size > 0 && st.st_size < FILE_MOST
	                    ? malloc((size_t)st.st_size)
	                    : NULL;
	uint64_t cost = 0;
	ssize_t n = all != NULL ? vgpu_pread(fd, all, (size_t)st.st_size, 0) : 0;
	if (n > 0)
		cost = cost_of(all, (size_t)n);
	free(all);
	vgpu_close(fd);
	return cost;
}

/* ---- modules ----------------------------------------------------------------------------------------------------- */

/* A module's handle is a pointer of the driver's; an odd address is none, and limit.c's keys are of contexts. */
static CUdeviceptr key_of(CUmodule module)
{
	return (CUdeviceptr)(uintptr_t)module + 15;
}

/* Everything a way of loading a module takes. */
struct loading {
	const char *path;
	const void *image;
	unsigned int count;
	CUjit_option *options;
	void **values;
};

typedef CUresult load_function(CUmodule *, const struct loading *);

static CUresult load(load_function *driver, CUmodule *out, uint64_t cost, const struct loading *how)
{
	struct vgpu_block block = {.bytes = cost, .kind = VGPU_EXACT};
	CUmodule module = NULL;
	if (vgpu_mode() == VGPU_FREE || out == NULL || vgpu_place(&block.device, &block.context) != CUDA_SUCCESS)
		return driver(out, how);
	uint64_t code = cost < VGPU_GRANULE ? VGPU_GRANULE - cost : 0; /* large variables have granules of their own */
	CUresult error = vgpu_reserve_or_reclaim(block.device, cost + code);
	if (error != CUDA_SUCCESS)
		return error;
	error = driver(&module, how);
	vgpu_give_back(block.device, error == CUDA_SUCCESS ? code : cost + code);
	if (error != CUDA_SUCCESS)
		return error;
	vgpu_ring();
	block.p = key_of(module);
	if (cost != 0 && vgpu_block_add(&block, cost) != 0) {
		real_cuModuleUnload(module);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*out = module;
	return CUDA_SUCCESS;
}

static CUresult driver_file(CUmodule *out, const struct loading *how)
{
	return real_cuModuleLoad(out, how->path);
}

static CUresult driver_data(CUmodule *out, const struct loading *how)
{
	return real_cuModuleLoadData(out, how->image);
}

static CUresult driver_data_ex(CUmodule *out, const struct loading *how)
{
	return real_cuModuleLoadDataEx(out, how->image, how->count, how->options, how->values);
}

static CUresult driver_fatbin(CUmodule *out, const struct loading *how)
{
	return real_cuModuleLoadFatBinary(out, how->image);
}

CUresult hook_cuModuleLoad(CUmodule *module, const char *fname)
{
	uint64_t cost = vgpu_mode() == VGPU_FREE ? 0 : cost_of_file(fname);
	return load(driver_file, module, cost, &(struct loading){.path = fname});
}

CUresult hook_cuModuleLoadData(CUmodule *module, const void *image)
{
	uint64_t cost = vgpu_mode() == VGPU_FREE ? 0 : cost_of(image, SIZE_MAX);
	return load(driver_data, module, cost, &(struct loading){.image = image});
}

CUresult hook_cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned int numOptions, CUjit_option *options,
                                 void **optionValues)
{
	uint64_t cost = vgpu_mode() == VGPU_FREE ? 0 : cost_of(image, SIZE_MAX);
	return load(driver_data_ex, module, cost,
	            &(struct loading){.image = image, .count = numOptions, .options = options, .values = optionValues});
}

CUresult hook_cuModuleLoadFatBinary(CUmodule *module, const void *fatCubin)
{
	uint64_t cost = vgpu_mode() == VGPU_FREE ? 0 : cost_of(fatCubin, SIZE_MAX);
	return load(driver_fatbin, module, cost, &(struct loading){.image = fatCubin});
}

CUresult hook_cuModuleUnload(CUmodule hmod)
{
	struct vgpu_block block;
	if (vgpu_mode() == VGPU_FREE || !vgpu_block_take(key_of(hmod), &block))
		return real_cuModuleUnload(hmod);
	CUresult error = real_cuModuleUnload(hmod);
	if (error == CUDA_SUCCESS)
		vgpu_block_settle(&block);
	else
		vgpu_block_restore(&block);
	return error;
}

/* ---- libraries --------------------------------------------------------------------------------------------------- */

struct library {
	CUlibrary handle;
	uint64_t bytes; /* in one context */
	uint64_t charged[VGPU_ORDINALS];
	struct library *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* process-private, never held across a driver call */
static struct library *libraries;
static uint64_t all_bytes; /* of those that are loaded or being loaded */

uint64_t vgpu_library_bytes(void)
{
	return __atomic_load_n(&all_bytes, __ATOMIC_SEQ_CST);
}

static void uncharge(struct library *l)
{
	for (CUdevice d = 0; d < VGPU_ORDINALS; d++)
		if (l->charged[d] != 0)
			vgpu_give_back(d, l->charged[d]);
	__atomic_fetch_sub(&all_bytes, l->bytes, __ATOMIC_SEQ_CST);
	free(l);
}

/* The sum is raised before contexts are counted, and a context is counted before the sum is read: one sees the other. */
static CUresult charge(struct library *l, uint64_t cost)
{
	CUdevice device[VGPU_ORDINALS];
	if (cost > (UINT64_C(1) << 44)) /* more than any card has; keeps the sum below from wrapping */
		return CUDA_ERROR_OUT_OF_MEMORY;
	l->bytes = cost;
	__atomic_fetch_add(&all_bytes, cost, __ATOMIC_SEQ_CST);
	unsigned count = vgpu_charged_devices(device);
	for (unsigned i = 0; i < count; i++) {
		uint64_t bytes = cost * (1 + vgpu_contexts_created(device[i]));
		CUresult error = vgpu_reserve_or_reclaim(device[i], bytes);
		if (error != CUDA_SUCCESS)
			return error;
		l->charged[device[i]] = bytes;
	}
	return count != 0 ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

struct library_loading {
	const char *path; /* or NULL */
	const void *code;
	CUjit_option *jit_options;
	void **jit_values;
	unsigned int jit_count;
	CUlibraryOption *options;
	void **values;
	unsigned int count;
};

static CUresult library_driver(CUlibrary *out, const struct library_loading *how)
{
	if (how->path != NULL)
		return real_cuLibraryLoadFromFile(out, how->path, how->jit_options, how->jit_values, how->jit_count,
		                                  how->options, how->values, how->count);
	return real_cuLibraryLoadData(out, how->code, how->jit_options, how->jit_values, how->jit_count, how->options,
	                              how->values, how->count);
}

static CUresult library_load(CUlibrary *out, uint64_t cost, const struct library_loading *how)
{
	int count;
	if (cost == 0 || out == NULL || real_cuDeviceGetCount(&count) != CUDA_SUCCESS)
		return library_driver(out, how);
	struct library *l = calloc(1, sizeof(*l));
	if (l == NULL)
		return CUDA_ERROR_OUT_OF_MEMORY;
	vgpu_memory_watch_fork();
	CUresult error = charge(l, cost);
	if (error == CUDA_SUCCESS)
		error = library_driver(&l->handle, how);
	if (error != CUDA_SUCCESS) {
		uncharge(l);
		return error;
	}
	*out = l->handle;
	vgpu_ring();
	pthread_mutex_lock(&lock);
	l->next = libraries;
	libraries = l;
	pthread_mutex_unlock(&lock);
	return CUDA_SUCCESS;
}

CUresult hook_cuLibraryLoadData(CUlibrary *library, const void *code, CUjit_option *jitOptions, void **jitOptionsValues,
                                unsigned int numJitOptions, CUlibraryOption *libraryOptions, void **libraryOptionValues,
                                unsigned int numLibraryOptions)
{
	uint64_t cost = vgpu_mode() == VGPU_FREE ? 0 : cost_of(code, SIZE_MAX);
	return library_load(library, cost,
	                    &(struct library_loading){NULL, code, jitOptions, jitOptionsValues, numJitOptions,
	                                              libraryOptions, libraryOptionValues, numLibraryOptions});
}

CUresult hook_cuLibraryLoadFromFile(CUlibrary *library, const char *fileName, CUjit_option *jitOptions,
                                    void **jitOptionsValues, unsigned int numJitOptions,
                                    CUlibraryOption *libraryOptions, void **libraryOptionValues,
                                    unsigned int numLibraryOptions)
{
	if (vgpu_mode() == VGPU_FREE || fileName == NULL)
		return real_cuLibraryLoadFromFile(library, fileName, jitOptions, jitOptionsValues, numJitOptions,
		                                  libraryOptions, libraryOptionValues, numLibraryOptions);
	return library_load(library, cost_of_file(fileName),
	                    &(struct library_loading){fileName, NULL, jitOptions, jitOptionsValues, numJitOptions,
	                                              libraryOptions, libraryOptionValues, numLibraryOptions});
}

static struct library *take_library(CUlibrary handle)
{
	pthread_mutex_lock(&lock);
	struct library **l = &libraries, *found;
	while (*l != NULL && (*l)->handle != handle)
		l = &(*l)->next;
	found = *l;
	if (found != NULL)
		*l = found->next;
	pthread_mutex_unlock(&lock);
	return found;
}

CUresult hook_cuLibraryUnload(CUlibrary library)
{
	struct library *l = vgpu_mode() == VGPU_FREE ? NULL : take_library(library);
	CUresult error = real_cuLibraryUnload(library);
	if (l != NULL && error == CUDA_SUCCESS)
		uncharge(l);
	else if (l != NULL) {
		pthread_mutex_lock(&lock);
		l->next = libraries;
		libraries = l;
		pthread_mutex_unlock(&lock);
	}
	return error;
}

void vgpu_libraries_forked(void)
{
	pthread_mutex_init(&lock, NULL);
	libraries = NULL;
	all_bytes = 0;
}
