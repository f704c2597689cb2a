/* nvml_nvlink.c: NVLinks one by one: state, remote end, version, capabilities, counters; and the fabric.
 *
 * The profile says how many lanes join two cards. Links are numbered in the order of the peers they lead to; behind
 * NVSwitches all of a card's links end at switches, spread evenly over them.
 */
#include <string.h>

#include "nvml_device.h"

/* The peer card a link leads to, or SIM_DEVICES where it leads to a switch; false where there is no such link. */
static bool link_end(uint32_t card, unsigned link, uint32_t *peer)
{
	unsigned switched = 0;

	if (sim_machine->model[card].nvlink_version == 0)
		return false;
	for (uint32_t other = 0; other < sim_machine->ndev; other++) {
		const struct sim_link *l = &sim_machine->link[card][other];
		if (l->kind == SIM_LINK_NVSWITCH && l->lanes > switched)
			switched = l->lanes;
		if (l->kind != SIM_LINK_NVLINK)
			continue;
		if (link < l->lanes) {
			*peer = other;
			return true;
		}
		link -= l->lanes;
	}
	*peer = SIM_DEVICES;
	return link < switched;
}

unsigned nvml_link_count(uint32_t card)
{
	uint32_t peer;
	unsigned count = 0;
	while (count < NVML_NVLINK_MAX_LINKS && link_end(card, count, &peer))
		count++;
	return count;
}

unsigned nvml_link_mbps(uint32_t card)
{
	static const unsigned by_version[] = {0, 19703, 25781, 25781, 26562, 53125};
	unsigned version = sim_machine->model[card].nvlink_version;
	return version < sizeof(by_version) / sizeof(*by_version) ? by_version[version] : NVML_LINK_MBPS_UNKNOWN;
}

/* A board without NVLink: NOT_SUPPORTED; a link beyond what any board has: INVALID_ARGUMENT; an unused one: inactive.
 */
static nvmlReturn_t link_of(nvmlDevice_t device, unsigned link, const void *out, uint32_t *card, bool *active,
                            uint32_t *peer)
{
	nvmlReturn_t result = nvml_card(device, out, card);
	if (result != NVML_SUCCESS)
		return result;
	if (sim_machine->model[*card].nvlink_version == 0)
		return NVML_ERROR_NOT_SUPPORTED;
	if (link >= NVML_NVLINK_MAX_LINKS)
		return NVML_ERROR_INVALID_ARGUMENT;
	*active = link_end(*card, link, peer);
	return NVML_SUCCESS;
}

static nvmlReturn_t active_link(nvmlDevice_t device, unsigned link, const void *out, uint32_t *card, uint32_t *peer)
{
	bool active;
	nvmlReturn_t result = link_of(device, link, out, card, &active, peer);
	return result == NVML_SUCCESS && !active ? NVML_ERROR_NOT_SUPPORTED : result;
}

nvmlReturn_t sim_nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned int link, nvmlEnableState_t *state)
{
	uint32_t card, peer;
	bool active;
	nvmlReturn_t result = link_of(device, link, state, &card, &active, &peer);
	if (result == NVML_SUCCESS)
		*state = active ? NVML_FEATURE_ENABLED : NVML_FEATURE_DISABLED;
	return result;
}

nvmlReturn_t sim_nvmlDeviceGetNvLinkVersion(nvmlDevice_t device, unsigned int link, unsigned int *version)
{
	uint32_t card, peer;
	nvmlReturn_t result = active_link(device, link, version, &card, &peer);
	if (result == NVML_SUCCESS)
		*version = sim_machine->model[card].nvlink_version;
	return result;
}

nvmlReturn_t sim_nvmlDeviceGetNvLinkCapability(nvmlDevice_t device, unsigned int link,
                                               nvmlNvLinkCapability_t capability, unsigned int *value)
{
	uint32_t card, peer;
	nvmlReturn_t result = active_link(device, link, value, &card, &peer);
	if (result != NVML_SUCCESS)
		return result;
	if ((unsigned)capability >= NVML_NVLINK_CAP_COUNT)
		return NVML_ERROR_INVALID_ARGUMENT;
	/* Peer and system memory access and atomics; no SLI, always valid. */
	*value = capability != NVML_NVLINK_CAP_SLI_BRIDGE;
	return NVML_SUCCESS;
}

nvmlReturn_t sim_nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t device, unsigned int link, nvmlPciInfo_t *pci)
{
	uint32_t card, peer;
	nvmlReturn_t result = active_link(device, link, pci, &card, &peer);
	if (result != NVML_SUCCESS)
		return result;
	if (peer == SIM_DEVICES && sim_machine->nswitches == 0)
		return NVML_ERROR_NOT_SUPPORTED; /* the profile does not say where the switches sit */
	if (peer == SIM_DEVICES) {
		nvml_pci(sim_machine->switch_pci[link % sim_machine->nswitches], pci);
		return NVML_SUCCESS;
	}
	nvml_pci(sim_machine->model[peer].pci, pci);
	pci->pciDeviceId = sim_machine->model[peer].pci_device_id;
	pci->pciSubSystemId = sim_machine->model[peer].pci_subsystem_id;
	return NVML_SUCCESS;
}

/* The older structure ends before busId, as in nvmlDeviceGetPciInfo_v2. */
nvmlReturn_t sim_nvmlDeviceGetNvLinkRemotePciInfo(nvmlDevice_t device, unsigned int link, nvmlPciInfo_t *out)
{
	nvmlPciInfo_t pci;
	nvmlReturn_t result = sim_nvmlDeviceGetNvLinkRemotePciInfo_v2(device, link, out ? &pci : NULL);
	if (result == NVML_SUCCESS)
		memcpy(out, &pci, offsetof(nvmlPciInfo_t, busId));
	return result;
}

nvmlReturn_t sim_nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t device, unsigned int link,
                                                     nvmlIntNvLinkDeviceType_t *type)
{
	uint32_t card, peer;
	nvmlReturn_t result = active_link(device, link, type, &card, &peer);
	if (result == NVML_SUCCESS)
		*type = peer == SIM_DEVICES ? NVML_NVLINK_DEVICE_TYPE_SWITCH : NVML_NVLINK_DEVICE_TYPE_GPU;
	return result;
}

nvmlReturn_t sim_nvmlDeviceGetNvLinkErrorCounter(nvmlDevice_t device, unsigned int link,
                                                 nvmlNvLinkErrorCounter_t counter, unsigned long long *value)
{
	uint32_t card, peer;
	nvmlReturn_t result = active_link(device, link, value, &card, &peer);
	if (result != NVML_SUCCESS)
		return result;
	if ((unsigned)counter >= NVML_NVLINK_ERROR_COUNT)
		return NVML_ERROR_INVALID_ARGUMENT;
	*value = 0;
	return NVML_SUCCESS;
}

/* ---- fabric: cards behind NVSwitches of one board are one complete, healthy clique
 * ------------------------------------ */

static bool switched(uint32_t card)
{
	for (uint32_t other = 0; other < sim_machine->ndev; other++)
		if (sim_machine->link[card][other].kind == SIM_LINK_NVSWITCH)
			return true;
	return false;
}

nvmlReturn_t sim_nvmlDeviceGetGpuFabricInfo(nvmlDevice_t device, nvmlGpuFabricInfo_t *info)
{
	uint32_t card;
	nvmlReturn_t result = nvml_card(device, info, &card);
	if (result != NVML_SUCCESS)
		return result;
	memset(info, 0, sizeof(*info));
	info->status = NVML_SUCCESS;
	info->state = switched(card) ? NVML_GPU_FABRIC_STATE_COMPLETED : NVML_GPU_FABRIC_STATE_NOT_SUPPORTED;
	return NVML_SUCCESS;
}

/* Version 2 is the beginning of version 3, which adds the summary. */
nvmlReturn_t sim_nvmlDeviceGetGpuFabricInfoV(nvmlDevice_t device, nvmlGpuFabricInfoV_t *info)
{
	nvmlGpuFabricInfo_t base;
	nvmlReturn_t result = sim_nvmlDeviceGetGpuFabricInfo(device, info ? &base : NULL);
	if (result != NVML_SUCCESS)
		return result;
	if (info->version != nvmlGpuFabricInfo_v2 && info->version != nvmlGpuFabricInfo_v3)
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	memcpy(info->clusterUuid, base.clusterUuid, sizeof(info->clusterUuid));
	info->status = base.status;
	info->cliqueId = base.cliqueId;
	info->state = base.state;
	info->healthMask = 0;
	if (info->version == nvmlGpuFabricInfo_v3)
		info->healthSummary = switched(device->index) ? NVML_GPU_FABRIC_HEALTH_SUMMARY_HEALTHY
		                                              : NVML_GPU_FABRIC_HEALTH_SUMMARY_NOT_SUPPORTED;
	return NVML_SUCCESS;
}
