/* nvml_topology.c: where devices sit: common ancestors, neighbours, peer access, CPUs and NUMA nodes.
 *
 * All of it follows from the link matrix and the NUMA nodes of the profile. Devices that NVLink connects have a PCIe
 * ancestor as well: their NUMA nodes say which.
 */
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "nvml_device.h"

static const unsigned levels[] = {
        [SIM_LINK_SYSTEM] = NVML_TOPOLOGY_SYSTEM,
        [SIM_LINK_NODE] = NVML_TOPOLOGY_NODE,
        [SIM_LINK_HOSTBRIDGE] = NVML_TOPOLOGY_HOSTBRIDGE,
        [SIM_LINK_SWITCH] = NVML_TOPOLOGY_SINGLE,
};

static unsigned ancestor(uint32_t a, uint32_t b)
{
	uint32_t kind = sim_machine->link[a][b].kind;
	if (a == b)
		return NVML_TOPOLOGY_INTERNAL;
	if (kind < sizeof(levels) / sizeof(*levels))
		return levels[kind];
	return sim_machine->model[a].numa == sim_machine->model[b].numa ? NVML_TOPOLOGY_NODE : NVML_TOPOLOGY_SYSTEM;
}

nvmlReturn_t sim_nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t device1, nvmlDevice_t device2,
                                                     nvmlGpuTopologyLevel_t *path)
{
	uint32_t a, b;
	nvmlReturn_t result = nvml_card(device1, path, &a);
	if (result == NVML_SUCCESS)
		result = nvml_card(device2, path, &b);
	if (result == NVML_SUCCESS)
		*path = ancestor(a, b);
	return result;
}

nvmlReturn_t sim_nvmlDeviceGetTopologyNearestGpus(nvmlDevice_t device, nvmlGpuTopologyLevel_t level,
                                                  unsigned int *count, nvmlDevice_t *list)
{
	uint32_t self, other;
	unsigned there = 0;
	nvmlReturn_t result = nvml_card(device, count, &self);
	if (result != NVML_SUCCESS)
		return result;
	for (uint32_t n = 0; nvml_nth_card(n, &other); n++) {
		if (other == self || ancestor(self, other) != (unsigned)level)
			continue;
		if (list && there < *count)
			list[there] = nvml_handle(other);
		there++;
	}
	if (!list || there < *count)
		*count = there;
	return NVML_SUCCESS;
}

nvmlReturn_t sim_nvmlDeviceOnSameBoard(nvmlDevice_t device1, nvmlDevice_t device2, int *same)
{
	uint32_t a, b;
	nvmlReturn_t result = nvml_card(device1, same, &a);
	if (result == NVML_SUCCESS)
		result = nvml_card(device2, same, &b);
	if (result == NVML_SUCCESS)
		*same = a == b;
	return result;
}

/* Peers read and write over NVLink or below one NUMA node's bridges; GeForce boards have no peer access. */
static nvmlGpuP2PStatus_t peer_status(uint32_t a, uint32_t b, nvmlGpuP2PCapsIndex_t capability)
{
	bool nvlink = sim_machine->link[a][b].kind >= SIM_LINK_NVLINK;
	bool bus = sim_machine->model[a].numa == sim_machine->model[b].numa;

	if (sim_machine->model[a].brand == NVML_BRAND_GEFORCE || sim_machine->model[b].brand == NVML_BRAND_GEFORCE)
		return NVML_P2P_STATUS_GPU_NOT_SUPPORTED;
	if (capability == NVML_P2P_CAPS_INDEX_NVLINK || capability == NVML_P2P_CAPS_INDEX_ATOMICS)
		return nvlink ? NVML_P2P_STATUS_OK : NVML_P2P_STATUS_NOT_SUPPORTED;
	if (capability == NVML_P2P_CAPS_INDEX_PCI)
		return bus ? NVML_P2P_STATUS_OK : NVML_P2P_STATUS_CHIPSET_NOT_SUPPORTED;
	return nvlink || bus ? NVML_P2P_STATUS_OK : NVML_P2P_STATUS_CHIPSET_NOT_SUPPORTED;
}

nvmlReturn_t sim_nvmlDeviceGetP2PStatus(nvmlDevice_t device1, nvmlDevice_t device2, nvmlGpuP2PCapsIndex_t capability,
                                        nvmlGpuP2PStatus_t *status)
{
	uint32_t a, b;
	nvmlReturn_t result = nvml_card(device1, status, &a);
	if (result == NVML_SUCCESS)
		result = nvml_card(device2, status, &b);
	if (result != NVML_SUCCESS)
		return result;
	if (a == b || (unsigned)capability > NVML_P2P_CAPS_INDEX_UNKNOWN)
		return NVML_ERROR_INVALID_ARGUMENT;
	*status = capability == NVML_P2P_CAPS_INDEX_UNKNOWN ? NVML_P2P_STATUS_UNKNOWN : peer_status(a, b, capability);
	return NVML_SUCCESS;
}

/* ---- CPUs ---------------------------------------------------------------------------------------------------------
 */

static unsigned node_count(void)
{
	unsigned nodes = 1;
	for (uint32_t i = 0; i < sim_machine->ndev; i++)
		if (sim_machine->model[i].numa >= nodes)
			nodes = sim_machine->model[i].numa + 1;
	return nodes;
}

/* The CPUs of a node as sysfs lists them (0-15,32-47). False where this machine has no such node. */
static bool real_node_cpus(unsigned node, unsigned words, unsigned long *set)
{
	char path[80], text[4096];
	snprintf(path, sizeof(path), "/sys/devices/system/node/node%u/cpulist", node);
	FILE *file = fopen(path, "re");
	if (!file)
		return false;
	char *at = fgets(text, sizeof(text), file);
	fclose(file);
	while (at && *at >= '0' && *at <= '9') {
		unsigned long first = strtoul(at, &at, 10), last = first;
		if (*at == '-')
			last = strtoul(at + 1, &at, 10);
		for (unsigned long cpu = first; cpu <= last && cpu / (8 * sizeof(*set)) < words; cpu++)
			set[cpu / (8 * sizeof(*set))] |= 1UL << cpu % (8 * sizeof(*set));
		at += *at == ',';
	}
	return true;
}

/* The profile's nodes may not be there on the machine that simulates: its CPUs are then cut into equal runs. */
static nvmlReturn_t cpu_set(nvmlDevice_t device, unsigned words, unsigned long *set, cpu_set_t *own)
{
	uint32_t card;
	cpu_set_t allowed;
	nvmlReturn_t result = nvml_any(device, words ? set : NULL, &card);
	if (result != NVML_SUCCESS)
		return result;
	unsigned node = sim_machine->model[card].numa, nodes = node_count(), seen = 0;
	memset(set, 0, words * sizeof(*set));
	if (nodes > 1 && own == NULL && real_node_cpus(nodes - 1, 0, NULL) && real_node_cpus(node, words, set))
		return NVML_SUCCESS;
	if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0)
		return NVML_ERROR_OPERATING_SYSTEM;
	unsigned all = (unsigned)CPU_COUNT(&allowed);
	for (unsigned cpu = 0; cpu < CPU_SETSIZE; cpu++) {
		if (!CPU_ISSET(cpu, &allowed))
			continue;
		/* Fewer CPUs than nodes: everybody may use all of them. */
		bool mine = all < nodes || seen * nodes / all == node;
		seen++;
		if (!mine)
			continue;
		if (own)
			CPU_SET(cpu, own);
		if (cpu / (8 * sizeof(*set)) < words)
			set[cpu / (8 * sizeof(*set))] |= 1UL << cpu % (8 * sizeof(*set));
	}
	return NVML_SUCCESS;
}

nvmlReturn_t sim_nvmlDeviceGetCpuAffinity(nvmlDevice_t device, unsigned int words, unsigned long *set)
{
	return cpu_set(device, words, set, NULL);
}

nvmlReturn_t sim_nvmlDeviceGetCpuAffinityWithinScope(nvmlDevice_t device, unsigned int words, unsigned long *set,
                                                     nvmlAffinityScope_t scope)
{
	if (scope != NVML_AFFINITY_SCOPE_NODE && scope != NVML_AFFINITY_SCOPE_SOCKET)
		return NVML_ERROR_INVALID_ARGUMENT;
	return cpu_set(device, words, set, NULL);
}

nvmlReturn_t sim_nvmlDeviceSetCpuAffinity(nvmlDevice_t device)
{
	unsigned long set[CPU_SETSIZE / (8 * sizeof(unsigned long))];
	cpu_set_t own;
	CPU_ZERO(&own);
	nvmlReturn_t result = cpu_set(device, sizeof(set) / sizeof(*set), set, &own);
	if (result != NVML_SUCCESS)
		return result;
	return sched_setaffinity(0, sizeof(own), &own) == 0 ? NVML_SUCCESS : NVML_ERROR_UNKNOWN;
}

nvmlReturn_t sim_nvmlDeviceClearCpuAffinity(nvmlDevice_t device)
{
	cpu_set_t all;
	uint32_t card;
	nvmlReturn_t result = nvml_card(device, device, &card);
	if (result != NVML_SUCCESS)
		return result;
	memset(&all, 0xff, sizeof(all));
	return sched_setaffinity(0, sizeof(all), &all) == 0 ? NVML_SUCCESS : NVML_ERROR_UNKNOWN;
}

nvmlReturn_t sim_nvmlDeviceGetMemoryAffinity(nvmlDevice_t device, unsigned int words, unsigned long *set,
                                             nvmlAffinityScope_t scope)
{
	uint32_t card;
	nvmlReturn_t result = nvml_any(device, words ? set : NULL, &card);
	if (result != NVML_SUCCESS)
		return result;
	if (scope != NVML_AFFINITY_SCOPE_NODE && scope != NVML_AFFINITY_SCOPE_SOCKET)
		return NVML_ERROR_INVALID_ARGUMENT;
	unsigned node = sim_machine->model[card].numa, bits = 8 * sizeof(*set);
	memset(set, 0, words * sizeof(*set));
	if (node / bits >= words)
		return NVML_ERROR_INSUFFICIENT_SIZE;
	set[node / bits] = 1UL << node % bits;
	return NVML_SUCCESS;
}

/* A NUMA node made of device memory: only boards whose memory the CPU addresses have one. */
nvmlReturn_t sim_nvmlDeviceGetNumaNodeId(nvmlDevice_t device, unsigned int *node)
{
	uint32_t card;
	nvmlReturn_t result = nvml_card(device, node, &card);
	return result == NVML_SUCCESS ? NVML_ERROR_NOT_SUPPORTED : result;
}

/* All CPUs belong to the sets of the cards of their node. */
nvmlReturn_t sim_nvmlSystemGetTopologyGpuSet(unsigned int cpu, unsigned int *count, nvmlDevice_t *list)
{
	unsigned long set[CPU_SETSIZE / (8 * sizeof(unsigned long))];
	unsigned there = 0, words = sizeof(set) / sizeof(*set);
	uint32_t card;

	if (!count || cpu >= CPU_SETSIZE)
		return NVML_ERROR_INVALID_ARGUMENT;
	for (uint32_t n = 0; nvml_nth_card(n, &card); n++) {
		if (cpu_set(nvml_handle(card), words, set, NULL) != NVML_SUCCESS)
			continue;
		if (!(set[cpu / (8 * sizeof(*set))] >> cpu % (8 * sizeof(*set)) & 1))
			continue;
		if (list && there < *count)
			list[there] = nvml_handle(card);
		there++;
	}
	if (!list || there < *count)
		*count = there;
	return NVML_SUCCESS;
}
