/* surfaces.h: every place where a program reads how much memory a device has, uses and has left, as one table, and what
 * each must say: total = min(limit, card), used = min(charged + overhead, total), free = min(total - used, free on the
 * card); of a share that may be more than the card (oversubscribed) the card counts for nothing, and of one that is
 * closed nothing is free. The truth is read from the policy, the ledger and the machine file, past the library. Used by tests of a share
 * with one device or several; every failure ends the test with the surface's name and the numbers.
 */
#ifndef PARTAGE_TESTS_SURFACES_H
#define PARTAGE_TESTS_SURFACES_H

#include <nvml.h>

#include "grant.h"

#define NOT_TOLD UINT64_MAX

struct numbers {
	uint64_t total, used, free; /* bytes; NOT_TOLD: this surface does not say */
};

/* One device of the share, as this process reaches it. */
struct place {
	const struct ptg_policy *policy; /* mapped */
	const struct ptg_ledger *ledger;
	unsigned index; /* in both */
	int device; /* of the machine */
	CUdevice ordinal; /* -1: the driver is not asked */
	CUcontext context; /* its primary one; NULL: none */
	nvmlDevice_t handle;
	struct numbers truth;
};

static inline uint64_t smaller(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

/* What is free on the card for everybody: of a card in parts, the part. The dead have nothing, noticed or not. */
static inline uint64_t card_free(int device)
{
	const struct sim_device_model *model = &machine()->model[device];
	uint64_t taken = 0;
	for (int i = 0; i < SIM_CLIENTS; i++)
		if (machine()->client[i].state && kill(machine()->client[i].pid, 0) == 0)
			taken += machine()->client[i].device[device].memory;
	return model->memory - model->reserved - smaller(taken, model->memory - model->reserved);
}

static inline struct numbers truth_of(const struct place *p)
{
	const struct ptg_policy_device *granted = &p->policy->device[p->index];
	int64_t used = (int64_t)((p->ledger->device[p->index].word >> PTG_USED_SHIFT) * PTG_UNIT) + granted->overhead;
	struct numbers truth;
	bool beyond = p->policy->flags & PTG_FLAG_OVERSUBSCRIBED;
	truth.total = beyond ? granted->memory : smaller(granted->memory, machine()->model[p->device].memory);
	truth.used = smaller(used > 0 ? (uint64_t)used : 0, truth.total);
	truth.free = smaller(truth.total - truth.used, beyond ? UINT64_MAX : card_free(p->device));
	if (p->policy->state != PTG_STATE_OPEN)
		truth.free = 0;
	return truth;
}

/* ---- the surfaces: false where this one does not exist here -------------------------------------------------------- */

static inline bool cuda_info(struct place *p, struct numbers *n)
{
	size_t free_bytes, total;
	CUcontext old;
	if (p->context == NULL)
		return false;
	OK(cuCtxPushCurrent_v2(p->context));
	OK(cuMemGetInfo_v2(&free_bytes, &total));
	OK(cuCtxPopCurrent_v2(&old));
	*n = (struct numbers){total, NOT_TOLD, free_bytes};
	return true;
}

/* The old form has 32 bits: what does not fit is said as the most that does. */
static inline bool cuda_info_old(struct place *p, struct numbers *n)
{
	unsigned free_bytes, total;
	CUcontext old;
	if (p->context == NULL)
		return false;
	OK(cuCtxPushCurrent_v2(p->context));
	OK(cuMemGetInfo(&free_bytes, &total));
	OK(cuCtxPopCurrent_v2(&old));
	CHECK(free_bytes == smaller(p->truth.free, UINT32_MAX) && total == smaller(p->truth.total, UINT32_MAX),
	      "cuMemGetInfo: %u of %u bytes free", free_bytes, total);
	*n = (struct numbers){NOT_TOLD, NOT_TOLD, NOT_TOLD};
	return true;
}

static inline bool cuda_total(struct place *p, struct numbers *n)
{
	size_t total;
	if (p->ordinal < 0)
		return false;
	OK(cuDeviceTotalMem_v2(&total, p->ordinal));
	*n = (struct numbers){total, NOT_TOLD, NOT_TOLD};
	return true;
}

static inline bool cuda_total_old(struct place *p, struct numbers *n)
{
	unsigned total;
	if (p->ordinal < 0)
		return false;
	OK(cuDeviceTotalMem(&total, p->ordinal));
	CHECK(total == smaller(p->truth.total, UINT32_MAX), "cuDeviceTotalMem: %u bytes", total);
	*n = (struct numbers){NOT_TOLD, NOT_TOLD, NOT_TOLD};
	return true;
}

/* Graphs and pools of this process take part of what is used, and use no more than they keep. */
static inline bool cuda_kept(struct place *p, struct numbers *n)
{
	static const CUgraphMem_attribute graph[] = {CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT,
	                                             CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT};
	static const CUmemPool_attribute pooled[] = {CU_MEMPOOL_ATTR_USED_MEM_CURRENT,
	                                             CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT};
	cuuint64_t used, kept, pool_used, pool_kept;
	CUmemoryPool pool;
	if (p->context == NULL)
		return false;
	OK(cuDeviceGetGraphMemAttribute(p->ordinal, graph[0], &used));
	OK(cuDeviceGetGraphMemAttribute(p->ordinal, graph[1], &kept));
	OK(cuDeviceGetDefaultMemPool(&pool, p->ordinal));
	OK(cuMemPoolGetAttribute(pool, pooled[0], &pool_used));
	OK(cuMemPoolGetAttribute(pool, pooled[1], &pool_kept));
	uint64_t charged = (p->ledger->device[p->index].word >> PTG_USED_SHIFT) * PTG_UNIT;
	CHECK(used <= kept && pool_used <= pool_kept && kept + pool_kept <= charged,
	      "graphs use %lu of %lu bytes, the pool %lu of %lu; charged are %lu", (unsigned long)used,
	      (unsigned long)kept, (unsigned long)pool_used, (unsigned long)pool_kept, (unsigned long)charged);
	*n = (struct numbers){NOT_TOLD, NOT_TOLD, NOT_TOLD};
	return true;
}

static inline bool nvml_info(struct place *p, struct numbers *n)
{
	nvmlMemory_t memory;
	CHECK(nvmlDeviceGetMemoryInfo(p->handle, &memory) == NVML_SUCCESS, "nvmlDeviceGetMemoryInfo");
	*n = (struct numbers){memory.total, memory.used, memory.free};
	return true;
}

static inline bool nvml_info_v2(struct place *p, struct numbers *n)
{
	nvmlMemory_v2_t memory = {.version = nvmlMemory_v2};
	CHECK(nvmlDeviceGetMemoryInfo_v2(p->handle, &memory) == NVML_SUCCESS, "nvmlDeviceGetMemoryInfo_v2");
	CHECK(memory.reserved == 0, "%llu bytes are reserved", memory.reserved);
	*n = (struct numbers){memory.total, memory.used, memory.free};
	return true;
}

/* A window onto the share's memory: no larger than such a card's would be, and no more of it used than of the share. */
static inline bool nvml_bar1(struct place *p, struct numbers *n)
{
	nvmlBAR1Memory_t window;
	nvmlReturn_t error = nvmlDeviceGetBAR1MemoryInfo(p->handle, &window);
	if (error == NVML_ERROR_NOT_SUPPORTED)
		return false;
	CHECK(error == NVML_SUCCESS, "nvmlDeviceGetBAR1MemoryInfo: %d", (int)error);
	CHECK(window.bar1Used + window.bar1Free == window.bar1Total && window.bar1Total <= 2 * p->truth.total &&
	              window.bar1Used <= p->truth.used,
	      "%llu used and %llu free of %llu bytes of a share of %lu, %lu used", window.bar1Used, window.bar1Free,
	      window.bar1Total, (unsigned long)p->truth.total, (unsigned long)p->truth.used);
	*n = (struct numbers){NOT_TOLD, NOT_TOLD, NOT_TOLD};
	return true;
}

/* Of a part of a card, NVML also tells the size among its attributes. */
static inline bool nvml_attributes(struct place *p, struct numbers *n)
{
	nvmlDeviceAttributes_t attributes;
	nvmlReturn_t error = nvmlDeviceGetAttributes_v2(p->handle, &attributes);
	if (error != NVML_SUCCESS)
		return false;
	CHECK(attributes.memorySizeMB == p->truth.total / MIB, "an instance of %llu MiB", attributes.memorySizeMB);
	*n = (struct numbers){NOT_TOLD, NOT_TOLD, NOT_TOLD};
	return true;
}

/* ---- lists of processes --------------------------------------------------------------------------------------------- */

#define MOST_PROCESSES 64

static inline bool charged_to_anybody(const struct place *p)
{
	for (int i = 0; i < PTG_SLOTS; i++)
		if (p->ledger->slot[i].state == PTG_SLOT_USED &&
		    p->ledger->slot[i].device[p->index].done >> PTG_USED_SHIFT != 0)
			return true;
	return false;
}

/* A process of this container, as far as its ledger knows. */
static inline bool is_of_this_share(const struct place *p, unsigned pid)
{
	for (int i = 0; i < PTG_SLOTS; i++)
		if (p->ledger->slot[i].state == PTG_SLOT_USED && (unsigned)p->ledger->slot[i].pid == pid)
			return true;
	return false;
}

static inline void one_process(const struct place *p, unsigned pid, uint64_t bytes, unsigned instance,
                               struct numbers *n)
{
	unsigned id;
	bool part = nvmlDeviceGetGpuInstanceId(p->handle, &id) == NVML_SUCCESS;
	CHECK(is_of_this_share(p, pid), "process %u of somebody else, with %lu bytes", pid, (unsigned long)bytes);
	CHECK(bytes <= p->truth.total, "process %u has %lu bytes of %lu", pid, (unsigned long)bytes,
	      (unsigned long)p->truth.total);
	CHECK(instance == (part ? id : 0xFFFFFFFF) || instance == 0xFFFFFFFE, "process %u is in instance %u", pid,
	      instance);
	n->used += bytes;
}

static inline bool total_of_list(struct place *p, struct numbers *n, unsigned count)
{
	n->total = n->free = NOT_TOLD;
	CHECK(charged_to_anybody(p) == (count != 0), "%u processes are listed", count);
	if (count == 0)
		n->used = NOT_TOLD;
	return true;
}

#define LIST(function, call, type, instance_of)                                                                        \
	static inline bool function(struct place *p, struct numbers *n)                                                \
	{                                                                                                              \
		type list[MOST_PROCESSES];                                                                             \
		unsigned count = MOST_PROCESSES;                                                                       \
		nvmlReturn_t error = call(p->handle, &count, list);                                                    \
		CHECK(error == NVML_SUCCESS, "%s: %d", #call, (int)error);                                             \
		*n = (struct numbers){0, 0, 0};                                                                        \
		for (unsigned i = 0; i < count; i++)                                                                   \
			one_process(p, list[i].pid, list[i].usedGpuMemory, instance_of, n);                            \
		return total_of_list(p, n, count);                                                                     \
	}
LIST(nvml_list_v1, nvmlDeviceGetComputeRunningProcesses, nvmlProcessInfo_v1_t, 0xFFFFFFFE) /* has no such field */
LIST(nvml_list_v2, nvmlDeviceGetComputeRunningProcesses_v2, nvmlProcessInfo_v2_t, list[i].gpuInstanceId)
LIST(nvml_list_v3, nvmlDeviceGetComputeRunningProcesses_v3, nvmlProcessInfo_t, list[i].gpuInstanceId)

static inline bool nvml_details(struct place *p, struct numbers *n)
{
	nvmlProcessDetail_v1_t entry[MOST_PROCESSES];
	nvmlProcessDetailList_t list = {.version = nvmlProcessDetailList_v1,
	                                .mode = NVML_PROCESS_MODE_COMPUTE,
	                                .numProcArrayEntries = MOST_PROCESSES,
	                                .procArray = entry};
	nvmlReturn_t error = nvmlDeviceGetRunningProcessDetailList(p->handle, &list);
	if (error == NVML_ERROR_NOT_SUPPORTED)
		return false;
	CHECK(error == NVML_SUCCESS, "nvmlDeviceGetRunningProcessDetailList: %d", (int)error);
	*n = (struct numbers){0, 0, 0};
	for (unsigned i = 0; i < list.numProcArrayEntries; i++)
		one_process(p, entry[i].pid, entry[i].usedGpuMemory, entry[i].gpuInstanceId, n);
	return total_of_list(p, n, list.numProcArrayEntries);
}

/* Nobody draws here, and nobody uses MPS. */
static inline bool nvml_other_lists(struct place *p, struct numbers *n)
{
	static nvmlReturn_t (*const call[])(nvmlDevice_t, unsigned *, nvmlProcessInfo_t *) = {
	        nvmlDeviceGetGraphicsRunningProcesses_v3, nvmlDeviceGetMPSComputeRunningProcesses_v3};
	for (unsigned i = 0; i < 2; i++) {
		nvmlProcessInfo_t list[MOST_PROCESSES];
		unsigned count = MOST_PROCESSES;
		nvmlReturn_t error = call[i](p->handle, &count, list);
		CHECK(error == NVML_SUCCESS ? count == 0 : error == NVML_ERROR_NOT_SUPPORTED, "list %u: %d, %u entries",
		      i, (int)error, count);
	}
	*n = (struct numbers){NOT_TOLD, NOT_TOLD, NOT_TOLD};
	return true;
}

/* Whoever is said to keep the device busy is of this share. */
static inline bool nvml_utilisation(struct place *p, struct numbers *n)
{
	nvmlProcessUtilizationSample_t sample[MOST_PROCESSES];
	unsigned count = MOST_PROCESSES;
	nvmlReturn_t error = nvmlDeviceGetProcessUtilization(p->handle, sample, &count, 0);
	for (unsigned i = 0; error == NVML_SUCCESS && i < count; i++)
		CHECK(is_of_this_share(p, sample[i].pid), "process %u of somebody else", sample[i].pid);
	*n = (struct numbers){NOT_TOLD, NOT_TOLD, NOT_TOLD};
	return true;
}

/* ---- all of them ------------------------------------------------------------------------------------------------------ */

static const struct surface {
	const char *name;
	bool (*look)(struct place *p, struct numbers *n);
} surfaces[] = {
        {"cuMemGetInfo_v2", cuda_info},
        {"cuMemGetInfo", cuda_info_old},
        {"cuDeviceTotalMem_v2", cuda_total},
        {"cuDeviceTotalMem", cuda_total_old},
        {"attributes of graphs and pools", cuda_kept},
        {"nvmlDeviceGetMemoryInfo", nvml_info},
        {"nvmlDeviceGetMemoryInfo_v2", nvml_info_v2},
        {"nvmlDeviceGetBAR1MemoryInfo", nvml_bar1},
        {"nvmlDeviceGetAttributes_v2", nvml_attributes},
        {"nvmlDeviceGetComputeRunningProcesses", nvml_list_v1},
        {"nvmlDeviceGetComputeRunningProcesses_v2", nvml_list_v2},
        {"nvmlDeviceGetComputeRunningProcesses_v3", nvml_list_v3},
        {"nvmlDeviceGetRunningProcessDetailList", nvml_details},
        {"lists of graphics and MPS", nvml_other_lists},
        {"nvmlDeviceGetProcessUtilization", nvml_utilisation},
};
#define SURFACES (sizeof(surfaces) / sizeof(surfaces[0]))

static inline void must_be(uint64_t told, uint64_t true_one, const char *what, const char *surface, const char *when)
{
	CHECK(told == NOT_TOLD || told == true_one, "%s: %s says %s %lu, it is %lu", when, surface, what,
	      (unsigned long)told, (unsigned long)true_one);
}

/* Walks them for one device; counts in `seen` how often each could be asked. */
static inline void walk(struct place *p, const char *when, unsigned seen[SURFACES])
{
	struct numbers n;
	nvml_info(p, &n); /* what this process freed in the meantime is noticed when it asks */
	for (unsigned i = 0; i < SURFACES; i++) {
		p->truth = truth_of(p);
		if (!surfaces[i].look(p, &n))
			continue;
		seen[i]++;
		must_be(n.total, p->truth.total, "total", surfaces[i].name, when);
		must_be(n.used, p->truth.used, "used", surfaces[i].name, when);
		must_be(n.free, p->truth.free, "free", surfaces[i].name, when);
	}
}

#endif
