/* nvml_processes.c: who uses a device: nvmlDeviceGet{Compute,Graphics,MPSCompute}RunningProcesses* and
 * nvmlDeviceGetRunningProcessDetailList.
 *
 * The driver's list names the whole machine's processes, with process ids of whatever namespace it likes. A container
 * sees its own, from its ledger, with what each has charged. They all compute: the graphics and MPS lists are empty.
 * The driver is asked first, for no entries at all, so that its own errors come back.
 */
#include <string.h>

#include "core.h"
#include "nvml_hooks.h"

/* Bytes charged by a slot, with its last change completed. */
static uint64_t charged(struct ptg_ledger *ledger, unsigned slot, int index)
{
	ptg_complete(ledger, (unsigned)index, ptg_load(&ledger->device[index].word));
	return (uint64_t)ptg_word_used(ptg_load(&ledger->slot[slot].device[index].done)) * PTG_UNIT;
}

static unsigned list_slots(struct ptg_ledger *ledger, int index, struct vgpu_process *out, unsigned room)
{
	struct vgpu_identity self;
	unsigned n = 0;
	vgpu_identify(&self);
	for (unsigned i = 0; i < PTG_SLOTS; i++) {
		struct ptg_slot *slot = &ledger->slot[i];
		if (__atomic_load_n(&slot->state, __ATOMIC_ACQUIRE) != PTG_SLOT_USED)
			continue;
		uint64_t bytes = charged(ledger, i, index);
		bool foreign = slot->pid_ns != 0 && self.pid_ns != 0 && slot->pid_ns != self.pid_ns;
		if (bytes == 0 || foreign) /* a process id of another namespace names nobody here */
			continue;
		if (n < room)
			out[n] = (struct vgpu_process){(unsigned)slot->pid, (unsigned)slot->host_pid, bytes};
		n++;
	}
	return n;
}

/* The watcher's correction belongs to the contexts: an equal part to each process, so that the sum is what is used. Where
 * less is used than was charged, each has its part of that. */
static void spread(struct vgpu_process *process, unsigned n, uint64_t used)
{
	uint64_t sum = 0;
	for (unsigned i = 0; i < n; i++)
		sum += process[i].bytes;
	for (unsigned i = 0; i < n && used > sum; i++) {
		uint64_t part = (used - sum) / (n - i);
		process[i].bytes += part;
		sum += part;
	}
	uint64_t before = 0, after = 0;
	for (unsigned i = 0; i < n && used < sum; i++) {
		before += process[i].bytes;
		uint64_t upto = (uint64_t)((unsigned __int128)before * used / sum);
		process[i].bytes = upto - after;
		after = upto;
	}
}

void vgpu_forget_dead(void)
{
	struct vgpu_state *s = vgpu_state();
	if (s == NULL)
		return;
	vgpu_lock(&s->lock);
	if (vgpu_ledger_ready(s))
		vgpu_slot_reclaim(&s->ledger, s->slot, PTG_SLOTS);
	vgpu_unlock(&s->lock);
}

unsigned vgpu_processes(int index, struct vgpu_process *out, unsigned room)
{
	struct vgpu_state *s = vgpu_state();
	unsigned n = 0;
	if (s == NULL || index < 0 || index >= PTG_DEVICES)
		return 0;
	vgpu_lock(&s->lock);
	if (vgpu_ledger_ready(s)) {
		vgpu_slot_reclaim(&s->ledger, s->slot, PTG_SLOTS);
		n = list_slots(s->ledger.map, index, out, room);
	}
	vgpu_unlock(&s->lock);
	if (n != 0 && n <= room) {
		/* A share that was made smaller than its use says that all of it is used, and so do its processes. */
		uint64_t used = vgpu_used_index(index), limit = vgpu_limit_index(index);
		spread(out, n, used < limit ? used : limit);
	}
	return n;
}

/* ---- one list, three layouts ------------------------------------------------------------------------------------- */

enum layout { V1, V2 };

/* The part of a card that a handle names; a whole card is in none. */
struct part {
	unsigned int gpu, compute;
};

static struct part part_of(nvmlDevice_t device)
{
	struct part part = {0xFFFFFFFF, 0xFFFFFFFF};
	if (real_nvmlDeviceGetGpuInstanceId(device, &part.gpu) != NVML_SUCCESS ||
	    real_nvmlDeviceGetComputeInstanceId(device, &part.compute) != NVML_SUCCESS)
		part = (struct part){0xFFFFFFFF, 0xFFFFFFFF};
	return part;
}

static void store(void *infos, unsigned at, enum layout layout, const struct vgpu_process *p, struct part part)
{
	if (layout == V1)
		((nvmlProcessInfo_v1_t *)infos)[at] = (nvmlProcessInfo_v1_t){.pid = p->pid, .usedGpuMemory = p->bytes};
	else
		((nvmlProcessInfo_v2_t *)infos)[at] = (nvmlProcessInfo_v2_t){.pid = p->pid,
		                                                             .usedGpuMemory = p->bytes,
		                                                             .gpuInstanceId = part.gpu,
		                                                             .computeInstanceId = part.compute};
}

/* The caller's array takes *count entries; more are there: how many, and INSUFFICIENT_SIZE. `index` -1: none. */
static nvmlReturn_t answer(nvmlDevice_t device, int index, unsigned int *count, void *infos, enum layout layout)
{
	struct vgpu_process process[PTG_SLOTS];
	unsigned n = index < 0 ? 0 : vgpu_processes(index, process, PTG_SLOTS);
	unsigned room = *count;
	if (infos == NULL && room != 0)
		return NVML_ERROR_INVALID_ARGUMENT;
	*count = n;
	if (n > room)
		return NVML_ERROR_INSUFFICIENT_SIZE;
	struct part part = part_of(device);
	for (unsigned i = 0; i < n; i++)
		store(infos, i, layout, &process[i], part);
	return NVML_SUCCESS;
}

/* Does the share answer? Not without a limit, without a place for the count, or where the driver's own answer to
 * `asked` (a call for no entries) is an error. */
static bool ours(nvmlDevice_t device, const unsigned int *count, nvmlReturn_t *asked, int *index)
{
	if (*asked == NVML_ERROR_INSUFFICIENT_SIZE)
		*asked = NVML_SUCCESS;
	if (*asked != NVML_SUCCESS || count == NULL)
		return false;
	*index = vgpu_nvml_index(device, asked);
	return *asked == NVML_SUCCESS;
}

#define RUNNING(name, type, layout, is_compute)                                                                        \
	nvmlReturn_t hook_##name(nvmlDevice_t device, unsigned int *infoCount, type *infos)                            \
	{                                                                                                              \
		if (vgpu_mode() == VGPU_FREE || infoCount == NULL)                                                     \
			return real_##name(device, infoCount, infos);                                                  \
		int index = -1;                                                                                        \
		nvmlReturn_t asked = real_##name(device, &(unsigned int){0}, NULL);                                    \
		if (!ours(device, infoCount, &asked, &index))                                                          \
			return asked;                                                                                  \
		return answer(device, (is_compute) ? index : -1, infoCount, infos, layout);                            \
	}

RUNNING(nvmlDeviceGetComputeRunningProcesses, nvmlProcessInfo_v1_t, V1, true)
RUNNING(nvmlDeviceGetComputeRunningProcesses_v2, nvmlProcessInfo_v2_t, V2, true)
RUNNING(nvmlDeviceGetComputeRunningProcesses_v3, nvmlProcessInfo_t, V2, true)
RUNNING(nvmlDeviceGetGraphicsRunningProcesses, nvmlProcessInfo_v1_t, V1, false)
RUNNING(nvmlDeviceGetGraphicsRunningProcesses_v2, nvmlProcessInfo_v2_t, V2, false)
RUNNING(nvmlDeviceGetGraphicsRunningProcesses_v3, nvmlProcessInfo_t, V2, false)
RUNNING(nvmlDeviceGetMPSComputeRunningProcesses, nvmlProcessInfo_v1_t, V1, false)
RUNNING(nvmlDeviceGetMPSComputeRunningProcesses_v2, nvmlProcessInfo_v2_t, V2, false)
RUNNING(nvmlDeviceGetMPSComputeRunningProcesses_v3, nvmlProcessInfo_t, V2, false)

nvmlReturn_t hook_nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device, nvmlProcessDetailList_t *plist)
{
	if (vgpu_mode() == VGPU_FREE || plist == NULL)
		return real_nvmlDeviceGetRunningProcessDetailList(device, plist);
	struct vgpu_process process[PTG_SLOTS];
	nvmlProcessDetailList_t probe = {.version = plist->version, .mode = plist->mode};
	nvmlReturn_t asked = real_nvmlDeviceGetRunningProcessDetailList(device, &probe);
	int index = -1;
	if (!ours(device, &probe.numProcArrayEntries, &asked, &index))
		return asked;
	bool all = plist->mode == NVML_PROCESS_MODE_COMPUTE || plist->mode == NVML_PROCESS_MODE_ALL;
	unsigned n = all && index >= 0 ? vgpu_processes(index, process, PTG_SLOTS) : 0,
	         room = plist->numProcArrayEntries;
	plist->numProcArrayEntries = n;
	if (n > room || (n != 0 && plist->procArray == NULL))
		return NVML_ERROR_INSUFFICIENT_SIZE;
	struct part part = part_of(device);
	for (unsigned i = 0; i < n; i++)
		plist->procArray[i] = (nvmlProcessDetail_v1_t){.pid = process[i].pid,
		                                               .usedGpuMemory = process[i].bytes,
		                                               .gpuInstanceId = part.gpu,
		                                               .computeInstanceId = part.compute};
	return NVML_SUCCESS;
}
