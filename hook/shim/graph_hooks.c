/* graph_hooks.c: graphs that allocate: which executables do, and the calls that take or return their memory.
 *
 * Called by programs. A node that allocates takes an address and no memory; that comes when its executable is launched or
 * uploaded, which is where it is charged (graph_charge.c) and refused. So each executable is measured when it is made,
 * and those that allocate are kept in a table. A program none of whose graphs allocates pays one load per launch; others
 * one look into the table. What can go wrong: no host memory for a record; then the executable is not made
 * (CUDA_ERROR_OUT_OF_MEMORY). Frees need nothing here: memory of graphs stays reserved until it is trimmed.
 */
#include <stdlib.h>

#include "graphs.h"
#include "hooks.h"
#include "memory.h"

#define BUCKETS 256

struct part {
	CUdevice device;
	uint64_t bytes;
	bool taken; /* it was launched or uploaded */
};

struct record {
	struct record *next;
	CUgraphExec exec;
	unsigned count;
	struct part part[];
};

static struct record *table[BUCKETS];
static uint32_t lock;
static uint32_t records;   /* in the table */
static uint32_t allocates; /* some node of this process allocates */

void vgpu_graph_allocates(void)
{
	__atomic_store_n(&allocates, 1, __ATOMIC_RELAXED);
}

static struct record **bucket_of(CUgraphExec exec)
{
	return &table[(uintptr_t)exec * UINT64_C(0x9e3779b97f4a7c15) >> 56];
}

static void insert(struct record *r)
{
	vgpu_memory_watch_fork();
	vgpu_lock(&lock);
	struct record **bucket = bucket_of(r->exec);
	r->next = *bucket;
	*bucket = r;
	__atomic_store_n(&records, records + 1, __ATOMIC_RELAXED);
	vgpu_unlock(&lock);
}

/* Takes a record out, if there is one. */
static struct record *take(CUgraphExec exec)
{
	vgpu_lock(&lock);
	struct record **link = bucket_of(exec);
	while (*link != NULL && (*link)->exec != exec)
		link = &(*link)->next;
	struct record *r = *link;
	if (r != NULL) {
		*link = r->next;
		__atomic_store_n(&records, records - 1, __ATOMIC_RELAXED);
	}
	vgpu_unlock(&lock);
	return r;
}

static struct record *find_locked(CUgraphExec exec)
{
	struct record *r = *bucket_of(exec);
	while (r != NULL && r->exec != exec)
		r = r->next;
	return r;
}

/* ---- measuring --------------------------------------------------------------------------------------------------- */

struct demand {
	uint64_t bytes[VGPU_ORDINALS]; /* by device */
};

static CUresult add_allocation(CUgraphNode node, struct demand *d)
{
	CUDA_MEM_ALLOC_NODE_PARAMS params;
	CUresult error = real_cuGraphMemAllocNodeGetParams(node, &params);
	if (error != CUDA_SUCCESS)
		return error;
	CUmemLocation place = params.poolProps.location;
	if (place.type != CU_MEM_LOCATION_TYPE_DEVICE)
		return CUDA_SUCCESS; /* host memory */
	if (place.id < 0 || place.id >= VGPU_ORDINALS)
		return CUDA_ERROR_NOT_SUPPORTED;
	d->bytes[place.id] += vgpu_round_up(params.bytesize, VGPU_GRANULE);
	return CUDA_SUCCESS;
}

/* A graph that the driver does not know has no nodes: the driver says so itself. Bodies of conditionals may not
 * allocate. */
static CUresult measure(CUgraph graph, struct demand *d)
{
	size_t count = 0;
	CUgraphNodeType type;
	CUgraph child;
	if (real_cuGraphGetNodes(graph, NULL, &count) != CUDA_SUCCESS || count == 0)
		return CUDA_SUCCESS;
	CUgraphNode *nodes = malloc(count * sizeof(CUgraphNode));
	if (nodes == NULL)
		return CUDA_ERROR_OUT_OF_MEMORY;
	CUresult error = real_cuGraphGetNodes(graph, nodes, &count);
	for (size_t i = 0; i < count && error == CUDA_SUCCESS; i++) {
		error = real_cuGraphNodeGetType(nodes[i], &type);
		if (error == CUDA_SUCCESS && type == CU_GRAPH_NODE_TYPE_MEM_ALLOC)
			error = add_allocation(nodes[i], d);
		else if (error == CUDA_SUCCESS && type == CU_GRAPH_NODE_TYPE_GRAPH &&
		         real_cuGraphChildGraphNodeGetGraph(nodes[i], &child) == CUDA_SUCCESS)
			error = measure(child, d);
	}
	free(nodes);
	return error;
}

/* A record of what the graph allocates; *out stays NULL where that is nothing. */
static CUresult record_of(CUgraph graph, struct record **out)
{
	struct demand d = {{0}};
	unsigned count = 0;
	*out = NULL;
	if (!__atomic_load_n(&allocates, __ATOMIC_RELAXED))
		return CUDA_SUCCESS;
	CUresult error = measure(graph, &d);
	for (CUdevice i = 0; i < VGPU_ORDINALS; i++)
		count += d.bytes[i] != 0;
	if (error != CUDA_SUCCESS || count == 0)
		return error;
	struct record *r = calloc(1, sizeof(*r) + count * sizeof(r->part[0]));
	if (r == NULL)
		return CUDA_ERROR_OUT_OF_MEMORY;
	for (CUdevice i = 0; i < VGPU_ORDINALS; i++)
		if (d.bytes[i] != 0)
			r->part[r->count++] = (struct part){.device = i, .bytes = d.bytes[i]};
	*out = r;
	return CUDA_SUCCESS;
}

/* ---- taking memory ----------------------------------------------------------------------------------------------- */

/* One call under way: what it may take, by device. */
struct taking {
	unsigned count;
	struct {
		struct part part;
		bool first;
		struct vgpu_graph_call call;
	} on[VGPU_ORDINALS];
};

/* With the lock held, or of a record that nobody else has. */
static void begin(struct record *r, struct taking *t)
{
	t->count = r->count;
	for (unsigned i = 0; i < r->count; i++) {
		t->on[i].part = r->part[i];
		t->on[i].first = !r->part[i].taken;
		r->part[i].taken = true;
	}
}

static CUresult reserve(struct taking *t)
{
	CUresult error = CUDA_SUCCESS;
	unsigned i = 0;
	for (; i < t->count && error == CUDA_SUCCESS; i++)
		error = vgpu_graph_begin(t->on[i].part.device, t->on[i].part.bytes, t->on[i].first, &t->on[i].call);
	if (error == CUDA_SUCCESS)
		return CUDA_SUCCESS;
	for (unsigned k = 0; k + 1 < i; k++) { /* not the one that was refused */
		vgpu_graph_end(t->on[k].part.device, &t->on[k].call);
		if (t->on[k].first)
			vgpu_graph_forget(t->on[k].part.device, t->on[k].part.bytes, true);
	}
	return error;
}

/* The driver has answered. */
static void settle(struct taking *t, CUresult result)
{
	for (unsigned i = 0; i < t->count; i++) {
		vgpu_graph_end(t->on[i].part.device, &t->on[i].call);
		if (result != CUDA_SUCCESS && t->on[i].first)
			vgpu_graph_forget(t->on[i].part.device, t->on[i].part.bytes, true);
	}
}

/* It was never taken: the next attempt is the first again. */
static void untake(struct record *r, const struct taking *t)
{
	for (unsigned i = 0; r != NULL && i < r->count && i < t->count; i++)
		if (t->on[i].first)
			r->part[i].taken = false;
}

typedef CUresult launch_function(CUgraphExec, CUstream);

static CUresult launch_taking(launch_function *driver, CUgraphExec exec, CUstream stream)
{
	struct taking t;
	vgpu_lock(&lock);
	struct record *r = find_locked(exec);
	if (r != NULL)
		begin(r, &t);
	vgpu_unlock(&lock);
	if (r == NULL)
		return driver(exec, stream);
	CUresult error = reserve(&t);
	if (error == CUDA_SUCCESS) {
		error = driver(exec, stream);
		settle(&t, error);
	}
	if (error != CUDA_SUCCESS) {
		vgpu_lock(&lock);
		untake(find_locked(exec), &t);
		vgpu_unlock(&lock);
	}
	return error;
}

static inline CUresult launch(launch_function *driver, CUgraphExec exec, CUstream stream)
{
	if (__builtin_expect(__atomic_load_n(&records, __ATOMIC_RELAXED) == 0, 1))
		return driver(exec, stream);
	return launch_taking(driver, exec, stream);
}

CUresult hook_cuGraphLaunch(CUgraphExec hGraphExec, CUstream hStream)
{
	return launch(real_cuGraphLaunch, hGraphExec, hStream);
}

CUresult hook_cuGraphLaunch_ptsz(CUgraphExec hGraphExec, CUstream hStream)
{
	return launch(real_cuGraphLaunch_ptsz, hGraphExec, hStream);
}

CUresult hook_cuGraphUpload(CUgraphExec hGraphExec, CUstream hStream)
{
	return launch(real_cuGraphUpload, hGraphExec, hStream);
}

CUresult hook_cuGraphUpload_ptsz(CUgraphExec hGraphExec, CUstream hStream)
{
	return launch(real_cuGraphUpload_ptsz, hGraphExec, hStream);
}

/* ---- instantiation ----------------------------------------------------------------------------------------------- */

struct instantiation {
	CUgraph graph;
	CUgraphNode *bad;
	char *log;
	size_t log_size;
	unsigned long long flags;
	CUDA_GRAPH_INSTANTIATE_PARAMS *params;
};

typedef CUresult instantiate_function(CUgraphExec *, const struct instantiation *);

static CUresult driver_v1(CUgraphExec *exec, const struct instantiation *i)
{
	return real_cuGraphInstantiate(exec, i->graph, i->bad, i->log, i->log_size);
}

static CUresult driver_v2(CUgraphExec *exec, const struct instantiation *i)
{
	return real_cuGraphInstantiate_v2(exec, i->graph, i->bad, i->log, i->log_size);
}

static CUresult driver_flags(CUgraphExec *exec, const struct instantiation *i)
{
	return real_cuGraphInstantiateWithFlags(exec, i->graph, i->flags);
}

static CUresult driver_params(CUgraphExec *exec, const struct instantiation *i)
{
	return real_cuGraphInstantiateWithParams(exec, i->graph, i->params);
}

static CUresult driver_params_ptsz(CUgraphExec *exec, const struct instantiation *i)
{
	return real_cuGraphInstantiateWithParams_ptsz(exec, i->graph, i->params);
}

static CUresult instantiate(instantiate_function *driver, CUgraphExec *exec, const struct instantiation *i)
{
	struct taking t = {.count = 0};
	struct record *r = NULL;
	if (vgpu_mode() == VGPU_FREE || exec == NULL)
		return driver(exec, i);
	CUresult error = record_of(i->graph, &r);
	bool upload = r != NULL && i->params != NULL && (i->params->flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD);
	if (error == CUDA_SUCCESS && upload) {
		begin(r, &t);
		error = reserve(&t);
	}
	if (error != CUDA_SUCCESS) {
		free(r);
		return error;
	}
	error = driver(exec, i);
	settle(&t, error);
	if (error != CUDA_SUCCESS) {
		free(r);
	} else if (r != NULL) {
		r->exec = *exec;
		insert(r);
	}
	return error;
}

CUresult hook_cuGraphInstantiate(CUgraphExec *phGraphExec, CUgraph hGraph, CUgraphNode *phErrorNode, char *logBuffer,
                                 size_t bufferSize)
{
	return instantiate(
	        driver_v1, phGraphExec,
	        &(struct instantiation){.graph = hGraph, .bad = phErrorNode, .log = logBuffer, .log_size = bufferSize});
}

CUresult hook_cuGraphInstantiate_v2(CUgraphExec *phGraphExec, CUgraph hGraph, CUgraphNode *phErrorNode, char *logBuffer,
                                    size_t bufferSize)
{
	return instantiate(
	        driver_v2, phGraphExec,
	        &(struct instantiation){.graph = hGraph, .bad = phErrorNode, .log = logBuffer, .log_size = bufferSize});
}

CUresult hook_cuGraphInstantiateWithFlags(CUgraphExec *phGraphExec, CUgraph hGraph, unsigned long long flags)
{
	return instantiate(driver_flags, phGraphExec, &(struct instantiation){.graph = hGraph, .flags = flags});
}

CUresult hook_cuGraphInstantiateWithParams(CUgraphExec *phGraphExec, CUgraph hGraph,
                                           CUDA_GRAPH_INSTANTIATE_PARAMS *instantiateParams)
{
	return instantiate(driver_params, phGraphExec,
	                   &(struct instantiation){.graph = hGraph, .params = instantiateParams});
}

CUresult hook_cuGraphInstantiateWithParams_ptsz(CUgraphExec *phGraphExec, CUgraph hGraph,
                                                CUDA_GRAPH_INSTANTIATE_PARAMS *instantiateParams)
{
	return instantiate(driver_params_ptsz, phGraphExec,
	                   &(struct instantiation){.graph = hGraph, .params = instantiateParams});
}

/* The record goes before the driver may give the handle to another thread. */
CUresult hook_cuGraphExecDestroy(CUgraphExec hGraphExec)
{
	struct record *r = __atomic_load_n(&records, __ATOMIC_RELAXED) != 0 ? take(hGraphExec) : NULL;
	CUresult error = real_cuGraphExecDestroy(hGraphExec);
	if (r == NULL)
		return error;
	if (error != CUDA_SUCCESS) {
		insert(r);
		return error;
	}
	for (unsigned i = 0; i < r->count; i++)
		if (r->part[i].taken)
			vgpu_graph_forget(r->part[i].device, r->part[i].bytes, false);
	free(r);
	return CUDA_SUCCESS;
}

CUresult hook_cuDeviceGraphMemTrim(CUdevice device)
{
	if (vgpu_hidden(device))
		return CUDA_ERROR_INVALID_DEVICE;
	if (vgpu_mode() == VGPU_FREE || device < 0 || device >= VGPU_ORDINALS)
		return real_cuDeviceGraphMemTrim(device);
	return vgpu_graph_trim(device);
}

/* ---- nodes that allocate: only on devices that were granted -------------------------------------------------------- */

static bool is_hidden(const CUmemLocation *location)
{
	return location->type == CU_MEM_LOCATION_TYPE_DEVICE && vgpu_hidden(location->id);
}

/* Notes a node that allocates; CUDA_ERROR_INVALID_DEVICE where it names a device that does not exist here. */
static CUresult note_allocation(const CUmemPoolProps *props, const CUmemAccessDesc *access, size_t accesses)
{
	vgpu_graph_allocates();
	bool hidden = is_hidden(&props->location);
	for (size_t i = 0; access != NULL && i < accesses; i++)
		hidden = hidden || is_hidden(&access[i].location);
	return hidden ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}

static CUresult note(const CUgraphNodeParams *params)
{
	if (params == NULL || params->type != CU_GRAPH_NODE_TYPE_MEM_ALLOC)
		return CUDA_SUCCESS;
	return note_allocation(&params->alloc.poolProps, params->alloc.accessDescs, params->alloc.accessDescCount);
}

CUresult hook_cuGraphAddMemAllocNode(CUgraphNode *phGraphNode, CUgraph hGraph, const CUgraphNode *dependencies,
                                     size_t numDependencies, CUDA_MEM_ALLOC_NODE_PARAMS *nodeParams)
{
	CUresult error = nodeParams == NULL ? CUDA_SUCCESS
	                                    : note_allocation(&nodeParams->poolProps, nodeParams->accessDescs,
	                                                      nodeParams->accessDescCount);
	if (error != CUDA_SUCCESS)
		return error;
	return real_cuGraphAddMemAllocNode(phGraphNode, hGraph, dependencies, numDependencies, nodeParams);
}

CUresult hook_cuGraphAddNode(CUgraphNode *phGraphNode, CUgraph hGraph, const CUgraphNode *dependencies,
                             size_t numDependencies, CUgraphNodeParams *nodeParams)
{
	CUresult error = note(nodeParams);
	if (error != CUDA_SUCCESS)
		return error;
	return real_cuGraphAddNode(phGraphNode, hGraph, dependencies, numDependencies, nodeParams);
}

CUresult hook_cuGraphAddNode_v2(CUgraphNode *phGraphNode, CUgraph hGraph, const CUgraphNode *dependencies,
                                const CUgraphEdgeData *dependencyData, size_t numDependencies,
                                CUgraphNodeParams *nodeParams)
{
	CUresult error = note(nodeParams);
	if (error != CUDA_SUCCESS)
		return error;
	return real_cuGraphAddNode_v2(phGraphNode, hGraph, dependencies, dependencyData, numDependencies, nodeParams);
}

CUresult hook_cuGraphAddNode_v3(CUgraphNode *phGraphNode, CUgraph hGraph, const CUgraphNode *dependencies,
                                const CUgraphEdgeData *dependencyData, size_t numDependencies,
                                CUgraphNodeParams *nodeParams)
{
	CUresult error = note(nodeParams);
	if (error != CUDA_SUCCESS)
		return error;
	return real_cuGraphAddNode_v3(phGraphNode, hGraph, dependencies, dependencyData, numDependencies, nodeParams);
}

void vgpu_graph_forked(void)
{
	for (unsigned i = 0; i < BUCKETS; i++) /* records stay where they are: the child's heap may be in any state */
		table[i] = NULL;
	lock = 0;
	records = allocates = 0;
	vgpu_graph_charge_forked();
}
