/* nvml_mig.c: Multi-Instance GPU: mode, instance profiles, GPU and compute instances, MIG device handles.
 *
 * How a card is cut stands in the machine file and does not change while it runs, so creating and destroying instances
 * is NOT_SUPPORTED. Each GPU instance has one compute instance that spans it.
 */
#include <stdio.h>
#include <string.h>

#include "nvml_device.h"

/* Handles are places in these tables; nothing is stored there. */
struct nvmlGpuInstance_st {
	char place;
};
struct nvmlComputeInstance_st {
	char place;
};

static struct nvmlGpuInstance_st gpu_instances[SIM_DEVICES];
static struct nvmlComputeInstance_st compute_instances[SIM_DEVICES];

static const struct sim_mig_profile *profile_of(uint32_t index)
{
	return &sim_machine->mig_profile[sim_machine->model[index].mig_profile % SIM_MIG_PROFILES];
}

/* A card that can be cut at all. */
static nvmlReturn_t capable_card(nvmlDevice_t device, const void *out, uint32_t *card)
{
	nvmlReturn_t result = nvml_card(device, out, card);
	return result == NVML_SUCCESS && !sim_machine->model[*card].mig_capable ? NVML_ERROR_NOT_SUPPORTED : result;
}

/* A card that is cut. */
static nvmlReturn_t cut_card(nvmlDevice_t device, const void *out, uint32_t *card)
{
	nvmlReturn_t result = nvml_card(device, out, card);
	return result == NVML_SUCCESS && sim_machine->model[*card].mig != SIM_MIG_CARD ? NVML_ERROR_NOT_SUPPORTED
	                                                                               : result;
}

nvmlReturn_t sim_nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *current, unsigned int *pending)
{
	uint32_t card;
	nvmlReturn_t result = capable_card(device, pending ? current : NULL, &card);
	if (result != NVML_SUCCESS)
		return result;
	*current = *pending =
	        sim_machine->model[card].mig == SIM_MIG_CARD ? NVML_DEVICE_MIG_ENABLE : NVML_DEVICE_MIG_DISABLE;
	return NVML_SUCCESS;
}

NVML_GETTER(nvmlDeviceGetMaxMigDeviceCount, unsigned int, nvml_card, sim_machine->model[i].mig_capable)
NVML_GETTER(nvmlDeviceIsMigDeviceHandle, unsigned int, nvml_any, sim_machine->model[i].mig == SIM_MIG_INSTANCE)

nvmlReturn_t sim_nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int n, nvmlDevice_t *instance)
{
	uint32_t card, index;
	nvmlReturn_t result = capable_card(device, instance, &card);
	if (result != NVML_SUCCESS)
		return result;
	if (n >= sim_machine->model[card].mig_capable)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (!nvml_nth_instance(card, n, &index))
		return NVML_ERROR_NOT_FOUND;
	*instance = nvml_handle(index);
	return NVML_SUCCESS;
}

NVML_GETTER(nvmlDeviceGetDeviceHandleFromMigDeviceHandle, nvmlDevice_t, nvml_instance,
            nvml_handle((uint32_t)sim_machine->model[i].parent))
NVML_GETTER(nvmlDeviceGetGpuInstanceId, unsigned int, nvml_instance, sim_machine->model[i].gpu_instance)
NVML_GETTER(nvmlDeviceGetComputeInstanceId, unsigned int, nvml_instance, sim_machine->model[i].compute_instance)

nvmlReturn_t sim_nvmlDeviceGetAttributes_v2(nvmlDevice_t device, nvmlDeviceAttributes_t *out)
{
	uint32_t index;
	nvmlReturn_t result = nvml_instance(device, out, &index);
	if (result != NVML_SUCCESS)
		return result;
	const struct sim_mig_profile *profile = profile_of(index);
	*out = (nvmlDeviceAttributes_t){
	        .multiprocessorCount = sim_machine->model[index].sms,
	        .sharedCopyEngineCount = profile->copy_engines,
	        .gpuInstanceSliceCount = profile->slices,
	        .computeInstanceSliceCount = profile->slices,
	        .memorySizeMB = sim_machine->model[index].memory >> 20,
	};
	return NVML_SUCCESS;
}

/* ---- GPU instance profiles ------------------------------------------------------------------------------------------
 */

/* By NVML_GPU_INSTANCE_PROFILE_* (kind) or by the id that such a profile has. */
static const struct sim_mig_profile *find_profile(unsigned number, bool by_id)
{
	for (uint32_t i = 0; i < sim_machine->nmig_profiles && i < SIM_MIG_PROFILES; i++) {
		const struct sim_mig_profile *profile = &sim_machine->mig_profile[i];
		if ((by_id ? profile->id : profile->kind) == number)
			return profile;
	}
	return NULL;
}

static nvmlReturn_t profile_at(nvmlDevice_t device, unsigned number, bool by_id, const void *out, uint32_t *card,
                               const struct sim_mig_profile **profile)
{
	nvmlReturn_t result = cut_card(device, out, card);
	if (result != NVML_SUCCESS)
		return result;
	if (!by_id && number >= NVML_GPU_INSTANCE_PROFILE_COUNT)
		return NVML_ERROR_INVALID_ARGUMENT;
	*profile = find_profile(number, by_id);
	return *profile ? NVML_SUCCESS : by_id ? NVML_ERROR_INVALID_ARGUMENT : NVML_ERROR_NOT_SUPPORTED;
}

static bool taken(uint32_t card, unsigned slice)
{
	uint32_t index;
	for (uint32_t n = 0; nvml_nth_instance(card, n, &index); n++) {
		unsigned start = sim_machine->model[index].mig_start;
		if (slice >= start && slice < start + profile_of(index)->memory_slices)
			return true;
	}
	return false;
}

static bool place_free(uint32_t card, unsigned start, unsigned slices)
{
	for (unsigned i = 0; i < slices; i++)
		if (taken(card, start + i))
			return false;
	return true;
}

/* How many instances of this profile fit on the card: cut as it is, or empty. Places of one profile may overlap. */
static unsigned room_for(uint32_t card, const struct sim_mig_profile *profile, bool empty)
{
	unsigned count = 0, next = 0, compute = 0;
	uint32_t index;

	for (uint32_t n = 0; !empty && nvml_nth_instance(card, n, &index); n++)
		compute += profile_of(index)->slices;
	for (unsigned i = 0; i < profile->nstarts && i < 8; i++) {
		unsigned start = profile->start[i];
		if (start < next || (!empty && !place_free(card, start, profile->memory_slices)))
			continue;
		if (compute + profile->slices > sim_machine->model[card].mig_capable)
			break;
		next = start + profile->memory_slices;
		compute += profile->slices;
		count++;
	}
	return count;
}

nvmlReturn_t sim_nvmlDeviceGetGpuInstanceProfileInfo(nvmlDevice_t device, unsigned int kind,
                                                     nvmlGpuInstanceProfileInfo_t *out)
{
	const struct sim_mig_profile *profile;
	uint32_t card;
	nvmlReturn_t result = profile_at(device, kind, false, out, &card, &profile);
	if (result != NVML_SUCCESS)
		return result;
	*out = (nvmlGpuInstanceProfileInfo_t){
	        .id = profile->id,
	        .sliceCount = profile->slices,
	        .instanceCount = room_for(card, profile, true),
	        .multiprocessorCount = profile->sms,
	        .copyEngineCount = profile->copy_engines,
	        .memorySizeMB = profile->memory >> 20,
	};
	return NVML_SUCCESS;
}

/* Version 2 and version 3 share all but the place of one word: the caller says which by `version`. */
static nvmlReturn_t profile_info(uint32_t card, const struct sim_mig_profile *profile,
                                 nvmlGpuInstanceProfileInfo_v2_t *out)
{
	nvmlGpuInstanceProfileInfo_v2_t two = {
	        .version = out->version,
	        .id = profile->id,
	        .sliceCount = profile->slices,
	        .instanceCount = room_for(card, profile, true),
	        .multiprocessorCount = profile->sms,
	        .copyEngineCount = profile->copy_engines,
	        .memorySizeMB = profile->memory >> 20,
	};
	snprintf(two.name, sizeof(two.name), "MIG %s", profile->name);
	if (out->version == nvmlGpuInstanceProfileInfo_v2) {
		*out = two;
		return NVML_SUCCESS;
	}
	if (out->version != nvmlGpuInstanceProfileInfo_v3)
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	nvmlGpuInstanceProfileInfo_v3_t three = {
	        .version = two.version,
	        .id = two.id,
	        .sliceCount = two.sliceCount,
	        .instanceCount = two.instanceCount,
	        .multiprocessorCount = two.multiprocessorCount,
	        .copyEngineCount = two.copyEngineCount,
	        .memorySizeMB = two.memorySizeMB,
	};
	memcpy(three.name, two.name, sizeof(three.name));
	memcpy((void *)out, &three, sizeof(three));
	return NVML_SUCCESS;
}

nvmlReturn_t sim_nvmlDeviceGetGpuInstanceProfileInfoV(nvmlDevice_t device, unsigned int kind,
                                                      nvmlGpuInstanceProfileInfo_v2_t *out)
{
	const struct sim_mig_profile *profile;
	uint32_t card;
	nvmlReturn_t result = profile_at(device, kind, false, out, &card, &profile);
	return result == NVML_SUCCESS ? profile_info(card, profile, out) : result;
}

nvmlReturn_t sim_nvmlDeviceGetGpuInstanceProfileInfoByIdV(nvmlDevice_t device, unsigned int id,
                                                          nvmlGpuInstanceProfileInfo_v2_t *out)
{
	const struct sim_mig_profile *profile;
	uint32_t card;
	nvmlReturn_t result = profile_at(device, id, true, out, &card, &profile);
	return result == NVML_SUCCESS ? profile_info(card, profile, out) : result;
}

nvmlReturn_t sim_nvmlDeviceGetGpuInstancePossiblePlacements_v2(nvmlDevice_t device, unsigned int id,
                                                               nvmlGpuInstancePlacement_t *places, unsigned int *count)
{
	const struct sim_mig_profile *profile;
	uint32_t card;
	nvmlReturn_t result = profile_at(device, id, true, count, &card, &profile);
	if (result != NVML_SUCCESS)
		return result;
	unsigned room = *count;
	*count = profile->nstarts;
	if (!places)
		return NVML_SUCCESS;
	if (room < profile->nstarts)
		return NVML_ERROR_INSUFFICIENT_SIZE;
	for (unsigned i = 0; i < profile->nstarts && i < 8; i++)
		places[i] = (nvmlGpuInstancePlacement_t){.start = profile->start[i], .size = profile->memory_slices};
	return NVML_SUCCESS;
}

nvmlReturn_t sim_nvmlDeviceGetGpuInstanceRemainingCapacity(nvmlDevice_t device, unsigned int id, unsigned int *count)
{
	const struct sim_mig_profile *profile;
	uint32_t card;
	nvmlReturn_t result = profile_at(device, id, true, count, &card, &profile);
	if (result == NVML_SUCCESS)
		*count = room_for(card, profile, false);
	return result;
}

/* ---- instances ------------------------------------------------------------------------------------------------------
 */

static bool gpu_instance_index(nvmlGpuInstance_t instance, uint32_t *index)
{
	if (instance < gpu_instances || instance >= gpu_instances + sim_machine->ndev)
		return false;
	*index = (uint32_t)(instance - gpu_instances);
	return sim_machine->model[*index].mig == SIM_MIG_INSTANCE;
}

nvmlReturn_t sim_nvmlDeviceGetGpuInstances(nvmlDevice_t device, unsigned int id, nvmlGpuInstance_t *list,
                                           unsigned int *count)
{
	const struct sim_mig_profile *profile;
	uint32_t card, index;
	nvmlReturn_t result = profile_at(device, id, true, list ? count : NULL, &card, &profile);
	if (result != NVML_SUCCESS)
		return result;
	*count = 0; /* the caller's array has room for all that the profile allows */
	for (uint32_t n = 0; nvml_nth_instance(card, n, &index); n++)
		if (profile_of(index) == profile)
			list[(*count)++] = &gpu_instances[index];
	return NVML_SUCCESS;
}

nvmlReturn_t sim_nvmlDeviceGetGpuInstanceById(nvmlDevice_t device, unsigned int id, nvmlGpuInstance_t *instance)
{
	uint32_t card, index;
	nvmlReturn_t result = cut_card(device, instance, &card);
	if (result != NVML_SUCCESS)
		return result;
	for (uint32_t n = 0; nvml_nth_instance(card, n, &index); n++) {
		if (sim_machine->model[index].gpu_instance != id)
			continue;
		*instance = &gpu_instances[index];
		return NVML_SUCCESS;
	}
	return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t sim_nvmlGpuInstanceGetInfo(nvmlGpuInstance_t instance, nvmlGpuInstanceInfo_t *info)
{
	uint32_t index;
	if (!info || !gpu_instance_index(instance, &index))
		return NVML_ERROR_INVALID_ARGUMENT;
	const struct sim_device_model *model = &sim_machine->model[index];
	*info = (nvmlGpuInstanceInfo_t){
	        .device = nvml_handle((uint32_t)model->parent),
	        .id = model->gpu_instance,
	        .profileId = profile_of(index)->id,
	        .placement = {.start = model->mig_start, .size = profile_of(index)->memory_slices},
	};
	return NVML_SUCCESS;
}

nvmlReturn_t sim_nvmlGpuInstanceGetComputeInstanceById(nvmlGpuInstance_t instance, unsigned int id,
                                                       nvmlComputeInstance_t *compute)
{
	uint32_t index;
	if (!compute || !gpu_instance_index(instance, &index))
		return NVML_ERROR_INVALID_ARGUMENT;
	if (sim_machine->model[index].compute_instance != id)
		return NVML_ERROR_NOT_FOUND;
	*compute = &compute_instances[index];
	return NVML_SUCCESS;
}

nvmlReturn_t sim_nvmlComputeInstanceGetInfo_v2(nvmlComputeInstance_t compute, nvmlComputeInstanceInfo_t *info)
{
	uint32_t index;
	if (!info || compute < compute_instances || compute >= compute_instances + sim_machine->ndev)
		return NVML_ERROR_INVALID_ARGUMENT;
	index = (uint32_t)(compute - compute_instances);
	const struct sim_device_model *model = &sim_machine->model[index];
	if (model->mig != SIM_MIG_INSTANCE)
		return NVML_ERROR_INVALID_ARGUMENT;
	*info = (nvmlComputeInstanceInfo_t){
	        .device = nvml_handle((uint32_t)model->parent),
	        .gpuInstance = &gpu_instances[index],
	        .id = model->compute_instance,
	        .profileId = profile_of(index)->kind,
	        .placement = {.start = 0, .size = profile_of(index)->slices},
	};
	return NVML_SUCCESS;
}
