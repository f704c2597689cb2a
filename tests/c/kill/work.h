/* work.h: one allocation and one free of each kind, for programs that are raced, traced and killed. */
#ifndef PARTAGE_TESTS_WORK_H
#define PARTAGE_TESTS_WORK_H

#include <cuda.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include "check.h"

enum work_kind {
	WORK_PLAIN,
	WORK_SMALL,
	WORK_MANAGED,
	WORK_PITCHED,
	WORK_ASYNC,
	WORK_VMM,
	WORK_GRAPH,
	WORK_GREEN,
	WORK_OWNPOOL,
	WORK_ARRAY,
	WORK_MIPMAP,
	WORK_IMPORT,
	WORK_SPARSE,
	WORK_EXPORTPOOL,
	WORK_MULTICAST,
	WORK_KINDS
};

static const char *const work_name[WORK_KINDS] = {"plain",  "small",  "managed", "pitched",    "async",
                                                  "vmm",    "graph",  "green",   "ownpool",    "array",
                                                  "mipmap", "import", "sparse",  "exportpool", "multicast"};

struct work {
	CUdeviceptr p;
	CUdeviceptr imported; /* the same block again */
	CUmemGenericAllocationHandle handle;
	CUgraph graph;
	CUgraphExec exec;
	CUgreenCtx green;
	CUmemoryPool pool, imported_pool;
	CUarray array;
	CUmipmappedArray mipmap;
	size_t bytes;
};

static inline enum work_kind work_kind(const char *name)
{
	for (int i = 0; i < WORK_KINDS; i++)
		if (strcmp(name, work_name[i]) == 0)
			return (enum work_kind)i;
	CHECK(0, "no kind %s", name);
	return WORK_PLAIN;
}

static inline void work_init(void)
{
	CUcontext context;
	CHECK(cuInit(0) == CUDA_SUCCESS, "cuInit");
	CHECK(cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS, "no context");
	CHECK(cuCtxSetCurrent(context) == CUDA_SUCCESS, "cuCtxSetCurrent");
}

static inline CUresult work_map(struct work *w)
{
	CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0},
	                          .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	CUresult result = cuMemAddressReserve(&w->p, w->bytes, 0, 0, 0);
	CHECK(result == CUDA_SUCCESS, "cuMemAddressReserve: %d", result);
	result = cuMemMap(w->p, w->bytes, 0, w->handle, 0);
	CHECK(result == CUDA_SUCCESS, "cuMemMap: %d", result);
	return cuMemSetAccess(w->p, w->bytes, &access, 1);
}

static inline CUresult work_end_graph(struct work *w, CUresult result)
{
	CHECK(cuGraphExecDestroy(w->exec) == CUDA_SUCCESS, "cuGraphExecDestroy");
	CHECK(cuGraphDestroy(w->graph) == CUDA_SUCCESS, "cuGraphDestroy");
	return result;
}

/* A graph that allocates, launched once. */
static inline CUresult work_launch(struct work *w)
{
	CUgraphNode node;
	CUDA_MEM_ALLOC_NODE_PARAMS params = {.bytesize = w->bytes};
	params.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
	params.poolProps.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	CHECK(cuGraphCreate(&w->graph, 0) == CUDA_SUCCESS, "cuGraphCreate");
	CHECK(cuGraphAddMemAllocNode(&node, w->graph, NULL, 0, &params) == CUDA_SUCCESS, "cuGraphAddMemAllocNode");
	w->p = params.dptr;
	CHECK(cuGraphInstantiateWithFlags(&w->exec, w->graph, 0) == CUDA_SUCCESS, "cuGraphInstantiateWithFlags");
	CUresult result = cuGraphLaunch(w->exec, NULL);
	return result == CUDA_SUCCESS ? result : work_end_graph(w, result);
}

/* A green context, which takes memory like any context, and a block beside it. */
static inline CUresult work_green(struct work *w)
{
	static CUdevResourceDesc desc;
	CUdevResource all;
	if (!desc) {
		CHECK(cuDeviceGetDevResource(0, &all, CU_DEV_RESOURCE_TYPE_SM) == CUDA_SUCCESS, "SMs");
		CHECK(cuDevResourceGenerateDesc(&desc, &all, 1) == CUDA_SUCCESS, "cuDevResourceGenerateDesc");
	}
	CUresult result = cuGreenCtxCreate(&w->green, desc, 0, 0);
	if (result != CUDA_SUCCESS)
		return result;
	result = cuMemAlloc(&w->p, w->bytes);
	if (result != CUDA_SUCCESS)
		CHECK(cuGreenCtxDestroy(w->green) == CUDA_SUCCESS, "cuGreenCtxDestroy");
	return result;
}

/* An allocation that is exported and imported again: two holds on what is charged once. */
static inline CUresult work_import(struct work *w)
{
	CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
	                            .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
	                            .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
	CUmemGenericAllocationHandle made;
	int fd;
	CUresult result = cuMemCreate(&made, w->bytes, &prop, 0);
	if (result != CUDA_SUCCESS)
		return result;
	CHECK(cuMemExportToShareableHandle(&fd, made, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0) == CUDA_SUCCESS,
	      "cuMemExportToShareableHandle");
	result = cuMemImportFromShareableHandle(&w->handle, (void *)(intptr_t)fd,
	                                        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
	CHECK(result == CUDA_SUCCESS, "cuMemImportFromShareableHandle: %d", result);
	close(fd);
	CHECK(cuMemRelease(made) == CUDA_SUCCESS, "cuMemRelease");
	return work_map(w);
}

/* A pool of its own for the block. */
static inline CUresult work_from_own(struct work *w)
{
	CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
	                        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
	CHECK(cuMemPoolCreate(&w->pool, &props) == CUDA_SUCCESS, "cuMemPoolCreate");
	CUresult result = cuMemAllocFromPoolAsync(&w->p, w->bytes, w->pool, NULL);
	if (result != CUDA_SUCCESS)
		CHECK(cuMemPoolDestroy(w->pool) == CUDA_SUCCESS, "cuMemPoolDestroy");
	return result;
}

static inline CUresult work_end_pool(struct work *w)
{
	CHECK(cuMemPoolDestroy(w->pool) == CUDA_SUCCESS, "cuMemPoolDestroy");
	CUresult result = cuMemFreeAsync(w->p, NULL);
	return result == CUDA_SUCCESS ? cuStreamSynchronize(NULL) : result;
}

/* A block of a pool, exported and imported again. */
static inline CUresult work_export_pool(struct work *w)
{
	CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
	                        .handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
	                        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
	CUmemPoolPtrExportData data;
	int fd;
	CHECK(cuMemPoolCreate(&w->pool, &props) == CUDA_SUCCESS, "cuMemPoolCreate");
	CUresult result = cuMemAllocFromPoolAsync(&w->p, w->bytes, w->pool, NULL);
	if (result != CUDA_SUCCESS) {
		CHECK(cuMemPoolDestroy(w->pool) == CUDA_SUCCESS, "cuMemPoolDestroy");
		return result;
	}
	result = cuMemPoolExportToShareableHandle(&fd, w->pool, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
	CHECK(result == CUDA_SUCCESS, "cuMemPoolExportToShareableHandle: %d", result);
	result = cuMemPoolExportPointer(&data, w->p);
	CHECK(result == CUDA_SUCCESS, "cuMemPoolExportPointer: %d", result);
	result = cuMemPoolImportFromShareableHandle(&w->imported_pool, (void *)(intptr_t)fd,
	                                            CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
	CHECK(result == CUDA_SUCCESS, "cuMemPoolImportFromShareableHandle: %d", result);
	close(fd);
	result = cuMemPoolImportPointer(&w->imported, w->imported_pool, &data);
	CHECK(result == CUDA_SUCCESS, "cuMemPoolImportPointer: %d", result);
	return result;
}

/* Half of them in the wrong order: for a moment more is charged. */
static inline CUresult work_end_export(struct work *w)
{
	bool first = w->bytes / ((size_t)2 << 20) % 2;
	CUresult result = first ? cuMemFree(w->imported) : CUDA_SUCCESS;
	CHECK(result == CUDA_SUCCESS, "cuMemFree: %d", result);
	result = work_end_pool(w);
	CHECK(result == CUDA_SUCCESS, "cuMemFreeAsync: %d", result);
	CHECK(cuMemPoolDestroy(w->imported_pool) == CUDA_SUCCESS, "cuMemPoolDestroy");
	return first ? CUDA_SUCCESS : cuMemFree(w->imported);
}

/* Rows of 16 KiB; a size that no array may have takes many layers. */
static inline CUresult work_array(struct work *w, unsigned levels)
{
	CUDA_ARRAY3D_DESCRIPTOR d = {
	        .Width = 4096, .Height = w->bytes >> 14, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 1};
	if (d.Height > 32768) {
		d.Depth = d.Height / 4096 + 1;
		d.Height = 4096;
		d.Flags = CUDA_ARRAY3D_LAYERED;
	}
	return levels ? cuMipmappedArrayCreate(&w->mipmap, &d, levels) : cuArray3DCreate(&w->array, &d);
}

/* A handle that only its place in a deferred array keeps. */
static inline CUresult work_map_array(struct work *w)
{
	CUDA_ARRAY3D_DESCRIPTOR d = {.Width = 256,
	                             .Height = 256,
	                             .Format = CU_AD_FORMAT_FLOAT,
	                             .NumChannels = 1,
	                             .Flags = CUDA_ARRAY3D_DEFERRED_MAPPING};
	CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
	                            .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0},
	                            .allocFlags = {.usage = CU_MEM_CREATE_USAGE_TILE_POOL}};
	CUarrayMapInfo info = {.resourceType = CU_RESOURCE_TYPE_ARRAY,
	                       .memOperationType = CU_MEM_OPERATION_TYPE_MAP,
	                       .memHandleType = CU_MEM_HANDLE_TYPE_GENERIC,
	                       .deviceBitMask = 1};
	CUresult result = cuMemCreate(&w->handle, w->bytes, &prop, 0);
	if (result != CUDA_SUCCESS)
		return result;
	CHECK(cuArray3DCreate(&w->array, &d) == CUDA_SUCCESS, "cuArray3DCreate");
	info.resource.array = w->array;
	info.memHandle.memHandle = w->handle;
	CHECK(cuMemMapArrayAsync(&info, 1, NULL) == CUDA_SUCCESS, "cuMemMapArrayAsync");
	return cuMemRelease(w->handle);
}

/* A handle that only the multicast object keeps that it is bound to, and which is mapped. */
static inline CUresult work_multicast(struct work *w)
{
	CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
	                            .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
	CUmulticastObjectProp team = {.numDevices = 1, .size = w->bytes};
	CUmemGenericAllocationHandle memory;
	CUresult result = cuMemCreate(&memory, w->bytes, &prop, 0);
	if (result != CUDA_SUCCESS)
		return result;
	result = cuMulticastCreate(&w->handle, &team);
	CHECK(result == CUDA_SUCCESS, "cuMulticastCreate: %d", result);
	CHECK(cuMulticastAddDevice(w->handle, 0) == CUDA_SUCCESS, "cuMulticastAddDevice");
	result = cuMulticastBindMem(w->handle, 0, memory, 0, w->bytes, 0);
	CHECK(result == CUDA_SUCCESS, "cuMulticastBindMem: %d", result);
	CHECK(cuMemRelease(memory) == CUDA_SUCCESS, "cuMemRelease");
	return work_map(w);
}

/* The driver's result; CUDA_ERROR_OUT_OF_MEMORY leaves nothing behind. */
static inline CUresult work_alloc(enum work_kind kind, struct work *w, size_t bytes)
{
	CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
	                            .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
	CUresult result;
	size_t pitch;
	w->bytes = bytes;
	switch (kind) {
	case WORK_PLAIN:
	case WORK_SMALL:
		return cuMemAlloc(&w->p, bytes);
	case WORK_MANAGED:
		return cuMemAllocManaged(&w->p, bytes, CU_MEM_ATTACH_GLOBAL);
	case WORK_PITCHED:
		return cuMemAllocPitch(&w->p, &pitch, 4000, (bytes + 4095) / 4096, 4);
	case WORK_ASYNC:
		return cuMemAllocAsync(&w->p, bytes, NULL);
	case WORK_VMM:
		result = cuMemCreate(&w->handle, bytes, &prop, 0);
		return result == CUDA_SUCCESS ? work_map(w) : result;
	case WORK_GRAPH:
		return work_launch(w);
	case WORK_GREEN:
		return work_green(w);
	case WORK_OWNPOOL:
		return work_from_own(w);
	case WORK_IMPORT:
		return work_import(w);
	case WORK_EXPORTPOOL:
		return work_export_pool(w);
	case WORK_ARRAY:
		return work_array(w, 0);
	case WORK_MIPMAP:
		return work_array(w, 3);
	case WORK_SPARSE:
		return work_map_array(w);
	case WORK_MULTICAST:
		return work_multicast(w);
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
}

static inline CUresult work_free(enum work_kind kind, struct work *w)
{
	CUresult result;
	switch (kind) {
	case WORK_ASYNC:
		result = cuMemFreeAsync(w->p, NULL);
		return result == CUDA_SUCCESS ? cuStreamSynchronize(NULL) : result;
	case WORK_OWNPOOL: /* destroyed first: it goes with the block */
		return work_end_pool(w);
	case WORK_EXPORTPOOL:
		return work_end_export(w);
	case WORK_VMM:
	case WORK_IMPORT:
	case WORK_MULTICAST:
		result = cuMemUnmap(w->p, w->bytes);
		if (result == CUDA_SUCCESS)
			result = cuMemRelease(w->handle);
		return result == CUDA_SUCCESS ? cuMemAddressFree(w->p, w->bytes) : result;
	case WORK_GRAPH: /* graphs keep their memory until it is trimmed */
		result = work_end_graph(w, cuMemFree(w->p));
		return result == CUDA_SUCCESS ? cuDeviceGraphMemTrim(0) : result;
	case WORK_GREEN:
		result = cuGreenCtxDestroy(w->green);
		return result == CUDA_SUCCESS ? cuMemFree(w->p) : result;
	case WORK_ARRAY:
	case WORK_SPARSE:
		return cuArrayDestroy(w->array);
	case WORK_MIPMAP:
		return cuMipmappedArrayDestroy(w->mipmap);
	default:
		return cuMemFree(w->p);
	}
}

/* Sizes that exercise the kind: 4 KiB steps below 1 MiB for small blocks, whole granules elsewhere. */
static inline size_t work_size(enum work_kind kind, unsigned random)
{
	return kind == WORK_SMALL ? (size_t)4096 * (1 + random % 255) : ((size_t)2 << 20) * (1 + random % 8);
}

#endif
