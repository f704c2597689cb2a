/* Topology and NVLink: what a device plugin reads to score pairs of devices. */
#include <sched.h>

#include "nvml_test.h"

static unsigned ancestor(unsigned a, unsigned b)
{
	nvmlGpuTopologyLevel_t level;
	OK(nvmlDeviceGetTopologyCommonAncestor(device_at(a), device_at(b), &level));
	return level;
}

static nvmlGpuP2PStatus_t peers(unsigned a, unsigned b, nvmlGpuP2PCapsIndex_t capability)
{
	nvmlGpuP2PStatus_t status;
	OK(nvmlDeviceGetP2PStatus(device_at(a), device_at(b), capability, &status));
	return status;
}

static unsigned links_between(unsigned a, unsigned b)
{
	nvmlPciInfo_t there, end;
	nvmlEnableState_t state;
	unsigned links = 0;
	OK(nvmlDeviceGetPciInfo_v3(device_at(b), &there));
	for (unsigned link = 0; link < NVML_NVLINK_MAX_LINKS; link++) {
		OK(nvmlDeviceGetNvLinkState(device_at(a), link, &state));
		if (state != NVML_FEATURE_ENABLED)
			continue;
		OK(nvmlDeviceGetNvLinkRemotePciInfo_v2(device_at(a), link, &end));
		links += strcmp(end.busId, there.busId) == 0;
	}
	return links;
}

static void two_pairs(void)
{
	nvmlDevice_t near[4];
	nvmlPciInfo_t pci;
	unsigned count = 4, value;

	CHECK(ancestor(0, 0) == NVML_TOPOLOGY_INTERNAL && ancestor(0, 1) == NVML_TOPOLOGY_NODE &&
	              ancestor(0, 2) == NVML_TOPOLOGY_SYSTEM,
	      "%u %u", ancestor(0, 1), ancestor(0, 2));
	for (unsigned a = 0; a < 4; a++)
		for (unsigned b = 0; b < 4; b++)
			if (a != b)
				CHECK(links_between(a, b) == (a / 2 == b / 2 ? 12 : 0), "%u links %u-%u",
				      links_between(a, b), a, b);
	CHECK(peers(0, 1, NVML_P2P_CAPS_INDEX_NVLINK) == NVML_P2P_STATUS_OK, "pair");
	CHECK(peers(0, 2, NVML_P2P_CAPS_INDEX_NVLINK) == NVML_P2P_STATUS_NOT_SUPPORTED, "other pair");
	CHECK(peers(0, 2, NVML_P2P_CAPS_INDEX_READ) == NVML_P2P_STATUS_CHIPSET_NOT_SUPPORTED, "other node");
	OK(nvmlDeviceGetTopologyNearestGpus(device_at(0), NVML_TOPOLOGY_SYSTEM, &count, near));
	CHECK(count == 2 && near[0] == device_at(2) && near[1] == device_at(3), "%u across the system", count);
	OK(nvmlDeviceGetNvLinkCapability(device_at(0), 0, NVML_NVLINK_CAP_P2P_SUPPORTED, &value));
	CHECK(value == 1, "peer access over link 0");
	OK(nvmlDeviceGetNvLinkVersion(device_at(0), 11, &value));
	CHECK(value == 3, "version %u", value);
	GIVES(NVML_ERROR_NOT_SUPPORTED, nvmlDeviceGetNvLinkVersion(device_at(0), 12, &value));
	GIVES(NVML_ERROR_INVALID_ARGUMENT,
	      nvmlDeviceGetNvLinkRemotePciInfo_v2(device_at(0), NVML_NVLINK_MAX_LINKS, &pci));
}

static void all_through_switches(void)
{
	nvmlIntNvLinkDeviceType_t type;
	nvmlGpuFabricInfoV_t fabric = {.version = nvmlGpuFabricInfo_v3};
	nvmlPciInfo_t pci, gpu;
	unsigned buses = 0;

	for (unsigned link = 0; link < 18; link++) {
		OK(nvmlDeviceGetNvLinkRemoteDeviceType(device_at(5), link, &type));
		CHECK(type == NVML_NVLINK_DEVICE_TYPE_SWITCH, "link %u leads to %d", link, (int)type);
		OK(nvmlDeviceGetNvLinkRemotePciInfo_v2(device_at(5), link, &pci));
		buses |= 1u << pci.bus;
		for (unsigned other = 0; other < 8; other++) {
			OK(nvmlDeviceGetPciInfo_v3(device_at(other), &gpu));
			CHECK(strcmp(gpu.busId, pci.busId) != 0, "link %u ends at a GPU", link);
		}
	}
	CHECK(buses == (1u << 5 | 1u << 6 | 1u << 7 | 1u << 8), "switches at %#x", buses);
	CHECK(peers(0, 7, NVML_P2P_CAPS_INDEX_NVLINK) == NVML_P2P_STATUS_OK, "any pair");
	CHECK(peers(0, 7, NVML_P2P_CAPS_INDEX_UNKNOWN) == NVML_P2P_STATUS_UNKNOWN, "what nobody knows");
	OK(nvmlDeviceGetGpuFabricInfoV(device_at(0), &fabric));
	CHECK(fabric.state == NVML_GPU_FABRIC_STATE_COMPLETED && fabric.status == NVML_SUCCESS, "fabric %u",
	      fabric.state);
}

/* Every CPU this process may use belongs to some card's set, and the sets of cards of one node are equal. */
static void cpu_sets(void)
{
	unsigned long set[8][CPU_SETSIZE / 64], all[CPU_SETSIZE / 64] = {0};
	cpu_set_t allowed;
	for (unsigned i = 0; i < 8; i++) {
		OK(nvmlDeviceGetCpuAffinity(device_at(i), CPU_SETSIZE / 64, set[i]));
		CHECK(memcmp(set[i], set[i / 4 * 4], sizeof(set[i])) == 0, "cards %u and %u share a node", i,
		      i / 4 * 4);
		for (unsigned w = 0; w < CPU_SETSIZE / 64; w++)
			all[w] |= set[i][w];
	}
	CHECK(sched_getaffinity(0, sizeof(allowed), &allowed) == 0, "own affinity");
	for (unsigned cpu = 0; cpu < CPU_SETSIZE; cpu++)
		CHECK(!CPU_ISSET(cpu, &allowed) || all[cpu / 64] >> cpu % 64 & 1, "CPU %u is near no card", cpu);
	unsigned long nodes;
	OK(nvmlDeviceGetMemoryAffinity(device_at(6), 1, &nodes, NVML_AFFINITY_SCOPE_NODE));
	CHECK(nodes == 2, "nodes %#lx", nodes);
}

static void without_nvlink(void)
{
	nvmlEnableState_t state;
	unsigned node;
	GIVES(NVML_ERROR_NOT_SUPPORTED, nvmlDeviceGetNvLinkState(device_at(0), 0, &state));
	GIVES(NVML_ERROR_NOT_SUPPORTED, nvmlDeviceGetNumaNodeId(device_at(0), &node)); /* its memory is no node */
}

/* PCIe alone: cards behind one switch are nearer to each other than those across the NUMA nodes. */
static void behind_pcie_switches(void)
{
	nvmlDevice_t near[4];
	nvmlPciInfo_t pci[4];
	unsigned long nodes;
	unsigned count = 4;

	without_nvlink();
	CHECK(ancestor(0, 1) == NVML_TOPOLOGY_SINGLE && ancestor(1, 2) == NVML_TOPOLOGY_SYSTEM, "%u %u", ancestor(0, 1),
	      ancestor(1, 2));
	OK(nvmlDeviceGetTopologyNearestGpus(device_at(2), NVML_TOPOLOGY_SINGLE, &count, near));
	CHECK(count == 1 && near[0] == device_at(3), "%u behind the switch", count);
	CHECK(peers(2, 3, NVML_P2P_CAPS_INDEX_READ) == NVML_P2P_STATUS_OK &&
	              peers(2, 3, NVML_P2P_CAPS_INDEX_NVLINK) == NVML_P2P_STATUS_NOT_SUPPORTED &&
	              peers(0, 3, NVML_P2P_CAPS_INDEX_READ) == NVML_P2P_STATUS_CHIPSET_NOT_SUPPORTED,
	      "peer access goes through the switch only");
	for (unsigned i = 0; i < 4; i++) {
		OK(nvmlDeviceGetMemoryAffinity(device_at(i), 1, &nodes, NVML_AFFINITY_SCOPE_NODE));
		CHECK(nodes == 1ul << i / 2, "card %u is near nodes %#lx", i, nodes);
		OK(nvmlDeviceGetPciInfo_v3(device_at(i), &pci[i]));
		for (unsigned j = 0; j < i; j++)
			CHECK(strcmp(pci[i].busId, pci[j].busId) != 0, "cards %u and %u at %s", i, j, pci[i].busId);
	}
}

int main(void)
{
	run_on("4xa100-pcie", two_pairs);
	run_on("8xh100", all_through_switches);
	run_on("8xh100", cpu_sets);
	run_on("v100", without_nvlink);
	run_on("4xl40s", behind_pcie_switches);
	return 0;
}
