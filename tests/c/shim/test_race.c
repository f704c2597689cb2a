/* D6, K02: 16 processes race for one limit of 4 GiB, one kind of memory at a time. What the driver holds never passes
 * the limit, at any step; afterwards one process alone goes on to the limit, less one granule of its kind.
 * Argument: the kind. On a machine whose contexts take memory (PARTAGE_CONTEXT_MEMORY says how much) the processes
 * whose context does not fit are refused it and leave.
 */
#include "shim_test.h"

#define LIMIT     (4 * GIB)
#define PROCESSES 16
#define LIVE      8192
#define ROUNDS    300

static const char *kind;
static bool racing; /* and not alone */
static unsigned *refusals; /* of all processes, shared */

struct held_block {
	const char *kind;
	CUdeviceptr p;
	CUmemGenericAllocationHandle handle;
	CUgraph graph;
	CUgraphExec exec;
	CUgreenCtx green;
	CUmemoryPool pool;
	CUdeviceptr imported; /* the same block again */
	CUarray array;
	CUmipmappedArray mipmap;
	size_t size;
};

static CUresult create_mapped(struct held_block *b, size_t size)
{
	CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED};
	prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	b->size = (size + GRANULE - 1) / GRANULE * GRANULE;
	CUresult error = cuMemCreate(&b->handle, b->size, &prop, 0);
	if (error != CUDA_SUCCESS)
		return error;
	OK(cuMemAddressReserve(&b->p, b->size, 0, 0, 0));
	OK(cuMemMap(b->p, b->size, 0, b->handle, 0));
	OK(cuMemRelease(b->handle)); /* the mapping keeps it */
	return CUDA_SUCCESS;
}

/* A graph that allocates: half of them free again by themselves. The memory stays with the graphs. */
static CUresult launch_graph(struct held_block *b, size_t size)
{
	CUgraphNode node, free_node;
	CUDA_MEM_ALLOC_NODE_PARAMS params = {.bytesize = size};
	params.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
	params.poolProps.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	OK(cuGraphCreate(&b->graph, 0));
	OK(cuGraphAddMemAllocNode(&node, b->graph, NULL, 0, &params));
	b->p = params.dptr;
	if (racing && size % 2)
		OK(cuGraphAddMemFreeNode(&free_node, b->graph, &node, 1, b->p));
	OK(cuGraphInstantiateWithFlags(&b->exec, b->graph, 0));
	CUresult error = cuGraphLaunch(b->exec, NULL);
	if (error != CUDA_SUCCESS) {
		OK(cuGraphExecDestroy(b->exec));
		OK(cuGraphDestroy(b->graph));
	}
	return error;
}

static void drop_graph(struct held_block *b)
{
	CUresult error = cuMemFreeAsync(b->p, NULL);
	CHECK(error == (b->size % 2 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS), "free of a graph's memory: %d", error);
	OK(cuGraphExecDestroy(b->exec));
	OK(cuGraphDestroy(b->graph));
	if (b->size % 3 == 0)
		OK(cuDeviceGraphMemTrim(0));
}

/* A green context takes as much as any context here, and comes with a block of its own. */
static CUresult create_green(struct held_block *b, size_t size)
{
	static CUdevResourceDesc desc;
	CUdevResource all;
	if (desc == NULL) {
		OK(cuDeviceGetDevResource(0, &all, CU_DEV_RESOURCE_TYPE_SM));
		OK(cuDevResourceGenerateDesc(&desc, &all, 1));
	}
	CUresult error = size % 5 == 0 ? cuGreenCtxCreate(&b->green, desc, 0, 0) : CUDA_SUCCESS;
	if (error != CUDA_SUCCESS)
		return error;
	error = cuMemAlloc_v2(&b->p, size);
	if (error != CUDA_SUCCESS && b->green != NULL)
		OK(cuGreenCtxDestroy(b->green));
	return error;
}

/* A pool of the process's own, or one for this block that is destroyed while the block lives; half of them keep all. */
static CUresult get_from_own(struct held_block *b, size_t size)
{
	static CUmemoryPool kept[2];
	CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED};
	cuuint64_t all = UINT64_MAX;
	props.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	CUmemoryPool *pool = size % 3 ? &kept[size % 2] : &b->pool;
	if (*pool == NULL)
		OK(cuMemPoolCreate(pool, &props));
	if (pool == &kept[0])
		OK(cuMemPoolSetAttribute(*pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &all));
	CUresult error = cuMemAllocFromPoolAsync(&b->p, size, *pool, NULL);
	if (b->pool != NULL)
		OK(cuMemPoolDestroy(b->pool));
	return error;
}

/* Rows of 4096 floats, or of bytes for small ones; a mip-map takes a third more. */
static CUresult create_array(struct held_block *b, size_t size, bool mipmap)
{
	CUDA_ARRAY3D_DESCRIPTOR d = {
	        .Width = 4096, .Height = size >> 14 ? size >> 14 : 0, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 1};
	CUDA_ARRAY_DESCRIPTOR flat = {d.Width, d.Height, d.Format, d.NumChannels};
	if (mipmap)
		return cuMipmappedArrayCreate(&b->mipmap, &d, racing ? 1 + size % 5 : 1);
	return size % 2 ? cuArray3DCreate_v2(&b->array, &d) : cuArrayCreate_v2(&b->array, &flat);
}

/* An array that has no memory of its own: a handle is mapped into it and released, and lives as long as it is mapped. */
static CUresult create_deferred(struct held_block *b, size_t size)
{
	CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED};
	CUDA_ARRAY3D_DESCRIPTOR d = {
	        .Width = 256, .Height = 256, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 1, .Flags = 0};
	CUarrayMapInfo info = {.resourceType = CU_RESOURCE_TYPE_ARRAY,
	                       .memOperationType = CU_MEM_OPERATION_TYPE_MAP,
	                       .memHandleType = CU_MEM_HANDLE_TYPE_GENERIC,
	                       .deviceBitMask = 1};
	d.Flags = size % 2 ? CUDA_ARRAY3D_DEFERRED_MAPPING : CUDA_ARRAY3D_SPARSE; /* a tile, or all of it */
	prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	prop.allocFlags.usage = CU_MEM_CREATE_USAGE_TILE_POOL;
	info.subresource.sparseLevel.extentWidth = info.subresource.sparseLevel.extentHeight = 128;
	info.subresource.sparseLevel.extentDepth = 1;
	CUresult error = cuMemCreate(&b->handle, (size + GRANULE - 1) / GRANULE * GRANULE, &prop, 0);
	if (error != CUDA_SUCCESS)
		return error;
	OK(cuArray3DCreate_v2(&b->array, &d));
	info.resource.array = b->array;
	info.memHandle.memHandle = b->handle;
	OK(cuMemMapArrayAsync(&info, 1, NULL));
	OK(cuMemRelease(b->handle));
	return CUDA_SUCCESS;
}

/* Memory that was handed to another process and back, so to speak: charged to the container, not to its maker. */
static CUresult import(struct held_block *b, size_t size)
{
	CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
	                            .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR};
	CUmemGenericAllocationHandle made;
	int fd;
	prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	b->size = (size + GRANULE - 1) / GRANULE * GRANULE;
	CUresult error = cuMemCreate(&made, b->size, &prop, 0);
	if (error != CUDA_SUCCESS)
		return error;
	OK(cuMemExportToShareableHandle(&fd, made, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
	OK(cuMemImportFromShareableHandle(&b->handle, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
	close(fd);
	OK(cuMemAddressReserve(&b->p, b->size, 0, 0, 0));
	OK(cuMemMap(b->p, b->size, 0, b->handle, 0));
	OK(cuMemRelease(b->handle));
	OK(cuMemRelease(made));
	return CUDA_SUCCESS;
}

/* A block of an exported pool, imported again. */
static CUresult export_from_pool(struct held_block *b, size_t size)
{
	static CUmemoryPool pool, imported;
	CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
	                        .handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR};
	CUmemPoolPtrExportData data;
	int fd;
	props.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	if (pool == NULL) {
		OK(cuMemPoolCreate(&pool, &props));
		OK(cuMemPoolExportToShareableHandle(&fd, pool, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
		OK(cuMemPoolImportFromShareableHandle(&imported, (void *)(intptr_t)fd,
		                                      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
		close(fd);
	}
	CUresult error = cuMemAllocFromPoolAsync(&b->p, size, pool, NULL);
	if (error != CUDA_SUCCESS)
		return error;
	OK(cuMemPoolExportPointer(&data, b->p));
	OK(cuMemPoolImportPointer(&b->imported, imported, &data));
	return CUDA_SUCCESS;
}

/* Memory that only the multicast object keeps: while it is mapped itself. Every third was unbound once, while
 * its own handle kept it. */
static CUresult create_multicast(struct held_block *b, size_t size)
{
	CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED};
	CUmulticastObjectProp team = {.numDevices = 1};
	CUmemGenericAllocationHandle memory;
	prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	b->size = team.size = (size + GRANULE - 1) / GRANULE * GRANULE;
	CUresult error = cuMemCreate(&memory, b->size, &prop, 0);
	if (error != CUDA_SUCCESS)
		return error;
	OK(cuMulticastCreate(&b->handle, &team));
	OK(cuMulticastAddDevice(b->handle, 0));
	OK(cuMulticastBindMem_v2(b->handle, 0, 0, memory, 0, b->size, 0));
	if (size % 3 == 0) {
		OK(cuMulticastUnbind(b->handle, 0, 0, b->size));
		OK(cuMulticastBindMem(b->handle, 0, memory, 0, b->size, 0));
	}
	OK(cuMemRelease(memory));
	OK(cuMemAddressReserve(&b->p, b->size, 0, 0, 0));
	OK(cuMemMap(b->p, b->size, 0, b->handle, 0));
	OK(cuMemRelease(b->handle));
	return CUDA_SUCCESS;
}

/* One kind, or a kind for each block. */
static const char *kind_of(size_t size)
{
	static const char *const all[] = {"plain", "managed", "pitched", "async",  "pool",  "vmm",
	                                  "graph", "ownpool", "array",   "mipmap", "sparse"};
	return strcmp(kind, "mixed") == 0 ? all[size / 7 % 11] : kind;
}

static CUresult get(struct held_block *b, size_t size)
{
	size_t pitch;
	const char *own = kind_of(size);
	*b = (struct held_block){.size = size, .kind = own};
	if (strcmp(own, "managed") == 0)
		return cuMemAllocManaged(&b->p, size, CU_MEM_ATTACH_GLOBAL);
	if (strcmp(own, "pitched") == 0)
		return cuMemAllocPitch_v2(&b->p, &pitch, 3600 + size % 400, (size + 4095) / 4096, 4);
	if (strcmp(own, "async") == 0)
		return cuMemAllocAsync(&b->p, size, NULL);
	if (strcmp(own, "pool") == 0) {
		CUmemoryPool pool;
		OK(cuDeviceGetDefaultMemPool(&pool, 0));
		return cuMemAllocFromPoolAsync(&b->p, size, pool, NULL);
	}
	if (strcmp(own, "ownpool") == 0)
		return get_from_own(b, size);
	if (strcmp(own, "exportpool") == 0)
		return export_from_pool(b, size);
	if (strcmp(own, "import") == 0)
		return import(b, size);
	if (strcmp(own, "vmm") == 0)
		return create_mapped(b, size);
	if (strcmp(own, "multicast") == 0)
		return create_multicast(b, size);
	if (strcmp(own, "graph") == 0)
		return launch_graph(b, size);
	if (strcmp(own, "green") == 0)
		return create_green(b, size);
	if (strcmp(own, "sparse") == 0)
		return create_deferred(b, size);
	if (strcmp(own, "array") == 0 || strcmp(own, "mipmap") == 0)
		return create_array(b, size, strcmp(own, "mipmap") == 0);
	return cuMemAlloc_v2(&b->p, size);
}

static void put(struct held_block *b)
{
	if (strcmp(b->kind, "vmm") == 0 || strcmp(b->kind, "import") == 0 || strcmp(b->kind, "multicast") == 0) {
		OK(cuMemUnmap(b->p, b->size));
		OK(cuMemAddressFree(b->p, b->size));
	} else if (strcmp(b->kind, "graph") == 0) {
		drop_graph(b);
	} else if (strcmp(b->kind, "array") == 0 || strcmp(b->kind, "sparse") == 0) {
		OK(cuArrayDestroy(b->array));
	} else if (strcmp(b->kind, "mipmap") == 0) {
		OK(cuMipmappedArrayDestroy(b->mipmap));
	} else if (strcmp(b->kind, "async") == 0 || strstr(b->kind, "pool") != NULL) {
		bool late = b->size % 4 == 0; /* against the rule: for a while more is charged */
		if (b->imported != 0 && !late)
			OK(cuMemFree_v2(b->imported));
		OK(cuMemFreeAsync(b->p, NULL));
		if (b->imported != 0 && late)
			OK(cuMemFree_v2(b->imported));
	} else {
		if (b->green != NULL)
			OK(cuGreenCtxDestroy(b->green));
		OK(cuMemFree_v2(b->p));
	}
	b->p = 0;
}

static size_t random_size(unsigned *seed)
{
	unsigned r = (unsigned)rand_r(seed);
	if (strcmp(kind, "small") == 0)
		return 4096 + r % (MIB - 4096);
	return r % 3 == 0 ? 1 + r % (8 * MIB) : MIB * (1 + r % 200);
}

/* Only the container's first context is sure to be had. */
static bool try_start(void)
{
	CUcontext context;
	OK(cuInit(0));
	CUresult error = cuDevicePrimaryCtxRetain(&context, 0);
	CHECK(error == CUDA_SUCCESS || error == CUDA_ERROR_OUT_OF_MEMORY, "retain: error %d", (int)error);
	if (error == CUDA_SUCCESS)
		OK(cuCtxSetCurrent(context));
	return error == CUDA_SUCCESS;
}

static void racer(struct crew *crew, unsigned index)
{
	static struct held_block block[LIVE];
	unsigned seed = index + 1, live = 0, refused = 0;
	bool started = try_start();
	racing = true;
	crew_wait(crew);
	if (!started)
		_exit(0);
	for (unsigned i = 0; i < ROUNDS * (strcmp(kind, "small") == 0 ? 20 : 1); i++) {
		if (live == LIVE || (live != 0 && rand_r(&seed) % 3 == 0)) {
			unsigned at = (unsigned)rand_r(&seed) % live;
			put(&block[at]);
			block[at] = block[--live];
			continue;
		}
		CUresult error = get(&block[live], random_size(&seed));
		CHECK(error == CUDA_SUCCESS || error == CUDA_ERROR_OUT_OF_MEMORY, "%s: error %d", kind, (int)error);
		if (error == CUDA_SUCCESS) {
			live++;
		} else {
			refused++;
			for (unsigned n = live / 2; live > n;) /* the program frees and goes on */
				put(&block[--live]);
			if (rand_r(&seed) % 2)
				OK(cuCtxSynchronize());
		}
	}
	__atomic_add_fetch(refusals, refused, __ATOMIC_RELAXED);
	OK(cuCtxSynchronize());
}

/* After the race one process takes all that is left, in steps that halve. */
static void survivor(struct crew *crew, unsigned index)
{
	struct held_block b;
	bool pooled = strcmp(kind, "async") == 0 || strstr(kind, "pool") != NULL || strcmp(kind, "graph") == 0 ||
	              strcmp(kind, "mixed") == 0;
	uint64_t least = pooled ? POOL_GRANULE : GRANULE, step = 512 * MIB;
	(void)index;
	start(0);
	crew_wait(crew);
	while (step >= least) {
		CUresult error = get(&b, step);
		CHECK(error == CUDA_SUCCESS || error == CUDA_ERROR_OUT_OF_MEMORY, "%s: error %d", kind, (int)error);
		if (error != CUDA_SUCCESS)
			step /= 2;
	}
	CHECK(held(0) > LIMIT - least, "%s: stopped at %lu of %lu bytes, one granule is %lu", kind,
	      (unsigned long)held(0), (unsigned long)LIMIT, (unsigned long)least);
}

int main(int argc, char **argv)
{
	struct crew crew;
	kind = argc > 1 ? argv[1] : "plain";
	refusals = mmap(NULL, sizeof(*refusals), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(refusals != MAP_FAILED, "mmap");
	crew_start(&crew, PROCESSES, racer);
	crew_join(&crew);
	CHECK(*refusals != 0, "%s: nothing was ever refused: no race", kind);
	uint64_t most = peak();
	CHECK(most <= LIMIT, "%s: %lu bytes held of a limit of %lu", kind, (unsigned long)most, (unsigned long)LIMIT);
	CHECK(most > LIMIT / 2, "%s: only %lu bytes were ever held", kind, (unsigned long)most);
	crew_start(&crew, 1, survivor);
	crew_join(&crew);
	CHECK(peak() <= LIMIT, "%s: %lu bytes held of a limit of %lu", kind, (unsigned long)peak(),
	      (unsigned long)LIMIT);
	NOTE("%s: %u processes held at most %lu of %lu MiB", kind, PROCESSES, (unsigned long)(most / MIB),
	     (unsigned long)(LIMIT / MIB));
	return 0;
}
