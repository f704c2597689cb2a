/* green_resource.c: SMs and workqueues as resources: asking for them, splitting them, describing a green context by them.
 *
 * Called by programs. A resource says which SMs it has in the part of CUdevResource that is the driver's own, so groups
 * of one split are disjoint, and only groups of one split go into one descriptor. By compute capability: 9.0 and up
 * partitions in groups of 8 that are scheduled together, older devices in pairs (8.x at least 4). What can go wrong is
 * what cuda.h says: the wrong type, a count that the rules forbid, more than there is.
 */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "context.h"
#include "green.h"
#include "sim_impl.h"
#include "visible.h"

#define SMS_MAGIC 0x534d5331u

static uint32_t last_split;

_Static_assert(sizeof(struct sim_sms) <= sizeof((CUdevResource){0}._internal_padding), "the driver's own part");

/* ---- sets of SMs --------------------------------------------------------------------------------------------------- */

static unsigned count_of(const struct sim_sms *sms)
{
	unsigned count = 0;
	for (int i = 0; i < SIM_SM_WORDS; i++)
		count += (unsigned)__builtin_popcountll(sms->bits[i]);
	return count;
}

/* Moves the first `count` SMs of one set to another, which is empty. */
static void move(struct sim_sms *from, struct sim_sms *to, unsigned count)
{
	memset(to->bits, 0, sizeof(to->bits));
	for (int i = 0; i < SIM_SM_WORDS * 64 && count; i++) {
		uint64_t bit = UINT64_C(1) << i % 64;
		if (!(from->bits[i / 64] & bit))
			continue;
		from->bits[i / 64] &= ~bit;
		to->bits[i / 64] |= bit;
		count--;
	}
}

static bool is_hopper(int device)
{
	return sim_machine->model[device].cc_major >= 9;
}

static unsigned alignment(int device)
{
	return is_hopper(device) ? 8 : 2;
}

static unsigned smallest(int device)
{
	return is_hopper(device) ? 8 : sim_machine->model[device].cc_major == 8 ? 4 : 2;
}

void sim_device_sms(int device, struct sim_sms *sms)
{
	unsigned count = sim_machine->model[device].sms;
	*sms = (struct sim_sms){.magic = SMS_MAGIC, .device = device, .align = alignment(device)};
	for (unsigned i = 0; i < count && i < SIM_SM_WORDS * 64; i++)
		sms->bits[i / 64] |= UINT64_C(1) << i % 64;
}

/* ---- as programs see them ------------------------------------------------------------------------------------------ */

/* A resource with no SMs is none. */
static void write_sms(CUdevResource *resource, const struct sim_sms *sms, unsigned flags)
{
	memset(resource, 0, sizeof(*resource));
	if (!count_of(sms))
		return;
	resource->type = CU_DEV_RESOURCE_TYPE_SM;
	memcpy(resource->_internal_padding, sms, sizeof(*sms));
	resource->sm.smCount = count_of(sms);
	resource->sm.minSmPartitionSize = smallest(sms->device);
	resource->sm.smCoscheduledAlignment = sms->align;
	resource->sm.flags = flags;
}

static CUresult read_sms(const CUdevResource *resource, struct sim_sms *sms)
{
	if (!resource)
		return CUDA_ERROR_INVALID_VALUE;
	if (resource->type != CU_DEV_RESOURCE_TYPE_SM)
		return CUDA_ERROR_INVALID_RESOURCE_TYPE;
	memcpy(sms, resource->_internal_padding, sizeof(*sms));
	if (sms->magic != SMS_MAGIC || sms->device < 0 || sms->device >= (int)sim_machine->ndev)
		return CUDA_ERROR_INVALID_VALUE;
	return CUDA_SUCCESS;
}

/* As many hardware queues as CUDA_DEVICE_MAX_CONNECTIONS says: 8, or 1 to 32. */
void sim_device_workqueues(int device, CUdevWorkqueueConfigResource *workqueues)
{
	const char *text = getenv("CUDA_DEVICE_MAX_CONNECTIONS");
	long wanted = text ? strtol(text, NULL, 10) : 8;
	*workqueues = (CUdevWorkqueueConfigResource){.device = sim_ordinal(device),
	                                             .wqConcurrencyLimit = (unsigned)(wanted < 1    ? 8
	                                                                              : wanted > 32 ? 32
	                                                                                            : wanted),
	                                             .sharingScope = CU_WORKQUEUE_SCOPE_DEVICE_CTX};
}

static CUresult get(CUdevResource *resource, CUdevResourceType type, const struct sim_sms *sms,
                    const CUdevWorkqueueConfigResource *workqueues, uint64_t owner)
{
	if (!resource)
		return CUDA_ERROR_INVALID_VALUE;
	if (type == CU_DEV_RESOURCE_TYPE_SM) {
		write_sms(resource, sms, 0);
		return CUDA_SUCCESS;
	}
	if (type != CU_DEV_RESOURCE_TYPE_WORKQUEUE_CONFIG && (type != CU_DEV_RESOURCE_TYPE_WORKQUEUE || !owner))
		return CUDA_ERROR_INVALID_RESOURCE_TYPE;
	memset(resource, 0, sizeof(*resource));
	resource->type = type;
	memcpy(resource->_internal_padding, sms, sizeof(*sms));
	if (type == CU_DEV_RESOURCE_TYPE_WORKQUEUE_CONFIG)
		resource->wqConfig = *workqueues;
	else
		memcpy(resource->wq.reserved, &owner, sizeof(owner));
	return CUDA_SUCCESS;
}

CUresult sim_cuDeviceGetDevResource(CUdevice ordinal, CUdevResource *resource, CUdevResourceType type)
{
	struct sim_sms sms;
	CUdevWorkqueueConfigResource workqueues;
	int device;
	CUresult result = sim_device_of(ordinal, &device);
	if (result != CUDA_SUCCESS)
		return result;
	sim_device_sms(device, &sms);
	sim_device_workqueues(device, &workqueues);
	return get(resource, type, &sms, &workqueues, 0);
}

static CUresult get_green(struct sim_green *green, CUdevResource *resource, CUdevResourceType type)
{
	if (!sim_green_alive(green))
		return CUDA_ERROR_INVALID_CONTEXT;
	return get(resource, type, &green->sms, &green->workqueues, UINT64_C(1) << 32 | green->id);
}

CUresult sim_cuCtxGetDevResource(CUcontext hCtx, CUdevResource *resource, CUdevResourceType type)
{
	struct sim_sms sms;
	CUdevWorkqueueConfigResource workqueues;
	if (!sim_initialized())
		return CUDA_ERROR_NOT_INITIALIZED;
	struct sim_green *green = sim_green_of(hCtx);
	if (!hCtx && sim_thread.depth)
		green = sim_thread.green[sim_thread.depth - 1];
	if (green)
		return get_green(green, resource, type);
	struct sim_context *context = sim_context_of(hCtx);
	if (!context)
		return CUDA_ERROR_INVALID_CONTEXT;
	sim_device_sms(context->device, &sms);
	sim_device_workqueues(context->device, &workqueues);
	return get(resource, type, &sms, &workqueues, context->id);
}

CUresult sim_cuGreenCtxGetDevResource(CUgreenCtx hCtx, CUdevResource *resource, CUdevResourceType type)
{
	if (!sim_initialized())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!sim_handle_is(hCtx, SIM_TAG_GREEN))
		return CUDA_ERROR_INVALID_CONTEXT;
	return get_green((struct sim_green *)hCtx, resource, type);
}

CUresult sim_cuStreamGetDevResource(CUstream hStream, CUdevResource *resource, CUdevResourceType type)
{
	struct sim_sms sms;
	CUresult error;
	struct sim_stream *stream = sim_stream_of(hStream, &error);
	if (!stream)
		return error;
	if (type != CU_DEV_RESOURCE_TYPE_SM)
		return CUDA_ERROR_INVALID_RESOURCE_TYPE;
	if (stream->green)
		sms = stream->green->sms;
	else
		sim_device_sms(stream->context->device, &sms);
	return get(resource, type, &sms, NULL, 0);
}

/* ---- splitting ------------------------------------------------------------------------------------------------------ */

static unsigned round_up(unsigned count, unsigned unit)
{
	return (count + unit - 1) / unit * unit;
}

/* SMs of one group of a split by count; 0: the flags are wrong for this device. */
static unsigned group_size(int device, unsigned flags, unsigned least, unsigned *align)
{
	unsigned most = smallest(device);
	*align = alignment(device);
	if (flags & CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING)
		most = *align = 2;
	if (flags & CU_DEV_SM_RESOURCE_SPLIT_MAX_POTENTIAL_CLUSTER_SIZE) {
		if (!is_hopper(device))
			return 0;
		most = *align = 16; /* the largest cluster */
	}
	return round_up(least > most ? least : most, *align);
}

CUresult sim_cuDevSmResourceSplitByCount(CUdevResource *result, unsigned int *nbGroups, const CUdevResource *input,
                                         CUdevResource *remainder, unsigned int flags, unsigned int minCount)
{
	struct sim_sms rest, group;
	const unsigned both =
	        CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING | CU_DEV_SM_RESOURCE_SPLIT_MAX_POTENTIAL_CLUSTER_SIZE;
	if (!sim_initialized())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!nbGroups)
		return CUDA_ERROR_INVALID_VALUE;
	CUresult error = read_sms(input, &rest);
	if (error != CUDA_SUCCESS)
		return error;
	if (minCount > count_of(&rest) || (flags & ~both) || flags == both || (result && !*nbGroups))
		return CUDA_ERROR_INVALID_VALUE;
	if (rest.split)
		return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
	unsigned align, size = group_size(rest.device, flags, minCount, &align);
	if (!size)
		return CUDA_ERROR_INVALID_VALUE;
	unsigned possible = count_of(&rest) / size;
	if (!possible)
		return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
	if (!result) {
		*nbGroups = possible;
		return CUDA_SUCCESS;
	}
	rest.split = __atomic_add_fetch(&last_split, 1, __ATOMIC_RELAXED);
	rest.align = align;
	*nbGroups = *nbGroups < possible ? *nbGroups : possible;
	for (unsigned i = 0; i < *nbGroups; i++) {
		group = rest;
		move(&rest, &group, size);
		write_sms(&result[i], &group, 0);
	}
	if (remainder)
		write_sms(remainder, &rest, 0);
	return CUDA_SUCCESS;
}

/* Whether a group of a split may be asked for so. */
static CUresult check_group(const CU_DEV_SM_RESOURCE_GROUP_PARAMS *group, unsigned together, int device, unsigned total)
{
	const unsigned locality = CU_DEV_SM_RESOURCE_GROUP_LOCALITY_DOMAIN_ID,
	               supplemental = CU_DEV_SM_RESOURCE_GROUP_LOCALITY_DOMAIN_SUPPLEMENTAL_SMS;
	for (size_t i = 0; i < sizeof(group->reserved) / sizeof(group->reserved[0]); i++)
		if (group->reserved[i])
			return CUDA_ERROR_INVALID_VALUE;
	if ((group->flags & ~(CU_DEV_SM_RESOURCE_GROUP_BACKFILL | locality | supplemental)) ||
	    ((group->flags & supplemental) && !(group->flags & locality)))
		return CUDA_ERROR_INVALID_VALUE;
	if ((group->flags & locality) && group->localityDomainId != CU_DEV_SM_RESOURCE_GROUP_LOCALITY_DOMAIN_ID_ANY &&
	    group->localityDomainId != 0) /* there is one */
		return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
	if (together % 2 || together > (is_hopper(device) ? 32u : 2u) || group->smCount > total || group->smCount % 2 ||
	    group->preferredCoscheduledSmCount % together)
		return CUDA_ERROR_INVALID_VALUE;
	if (group->coscheduledSmCount && group->smCount % together &&
	    !(group->flags & CU_DEV_SM_RESOURCE_GROUP_BACKFILL))
		return CUDA_ERROR_INVALID_VALUE;
	return CUDA_SUCCESS;
}

/* Takes one group out of the rest; fills in its count where it was to be found out. */
static CUresult split_off(struct sim_sms *rest, struct sim_sms *group, CU_DEV_SM_RESOURCE_GROUP_PARAMS *params,
                          bool real)
{
	unsigned together = params->coscheduledSmCount ? params->coscheduledSmCount : alignment(rest->device);
	unsigned left = count_of(rest);
	bool backfill = params->flags & CU_DEV_SM_RESOURCE_GROUP_BACKFILL;
	unsigned most = left / together * together;
	if (backfill && most)
		most = left;
	unsigned count = params->smCount ? params->smCount : most / 2 * 2;
	if (count > left || (!backfill && round_up(count, together) > left && count % together) ||
	    (real && count < together) || (params->smCount && most < together))
		return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
	*group = *rest;
	group->align = together;
	move(rest, group, count);
	params->smCount = count;
	return CUDA_SUCCESS;
}

CUresult sim_cuDevSmResourceSplit(CUdevResource *result, unsigned int nbGroups, const CUdevResource *input,
                                  CUdevResource *remainder, unsigned int flags,
                                  CU_DEV_SM_RESOURCE_GROUP_PARAMS *groupParams)
{
	struct sim_sms rest, group;
	if (!sim_initialized())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!nbGroups || !groupParams || flags)
		return CUDA_ERROR_INVALID_VALUE;
	CUresult error = read_sms(input, &rest);
	if (error != CUDA_SUCCESS)
		return error;
	unsigned total = count_of(&rest);
	for (unsigned i = 0; i < nbGroups; i++) {
		unsigned together = groupParams[i].coscheduledSmCount;
		error = check_group(&groupParams[i], together ? together : alignment(rest.device), rest.device, total);
		if (error != CUDA_SUCCESS)
			return error;
	}
	if (rest.split)
		return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
	rest.split = __atomic_add_fetch(&last_split, 1, __ATOMIC_RELAXED);
	for (unsigned i = 0; i < nbGroups; i++) {
		error = split_off(&rest, &group, &groupParams[i], result != NULL);
		if (error != CUDA_SUCCESS)
			return error;
		if (result)
			write_sms(&result[i], &group, groupParams[i].flags);
	}
	if (remainder)
		write_sms(remainder, &rest, 0);
	return CUDA_SUCCESS;
}

/* ---- descriptors ---------------------------------------------------------------------------------------------------- */

/* What the resources have in common so far, and one more. */
static CUresult add(struct sim_resource_desc *desc, bool *have_sms, const CUdevResource *resource)
{
	struct sim_sms sms;
	memcpy(&sms, resource->_internal_padding, sizeof(sms));
	if (resource->type == CU_DEV_RESOURCE_TYPE_SM) {
		CUresult error = read_sms(resource, &sms);
		if (error != CUDA_SUCCESS)
			return error;
		if (*have_sms && (!sms.split || sms.split != desc->sms.split || sms.align != desc->sms.align ||
		                  sms.device != desc->sms.device))
			return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
		if (!*have_sms)
			desc->sms = sms;
		for (int i = 0; i < SIM_SM_WORDS; i++)
			desc->sms.bits[i] |= sms.bits[i];
		*have_sms = true;
	} else if (resource->type == CU_DEV_RESOURCE_TYPE_WORKQUEUE_CONFIG) {
		desc->workqueues = resource->wqConfig;
	} else if (resource->type != CU_DEV_RESOURCE_TYPE_WORKQUEUE) {
		return CUDA_ERROR_INVALID_RESOURCE_TYPE;
	}
	return CUDA_SUCCESS;
}

/* The device that a resource came from; -1: from none. */
static int device_of(const CUdevResource *resource)
{
	struct sim_sms sms;
	memcpy(&sms, resource->_internal_padding, sizeof(sms));
	if (sms.magic == SMS_MAGIC && sms.device >= 0 && sms.device < (int)sim_machine->ndev)
		return sms.device;
	return resource->type == CU_DEV_RESOURCE_TYPE_WORKQUEUE_CONFIG ? sim_physical(resource->wqConfig.device) : -1;
}

CUresult sim_cuDevResourceGenerateDesc(CUdevResourceDesc *phDesc, CUdevResource *resources, unsigned int nbResources)
{
	struct sim_resource_desc made = {.tag = SIM_TAG_RESOURCE_DESC};
	bool have_sms = false;
	if (!sim_initialized())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!phDesc || !resources || !nbResources)
		return CUDA_ERROR_INVALID_VALUE;
	int device = device_of(&resources[0]);
	if (device < 0)
		return resources[0].type == CU_DEV_RESOURCE_TYPE_INVALID ? CUDA_ERROR_INVALID_RESOURCE_TYPE
		                                                         : CUDA_ERROR_INVALID_VALUE;
	sim_device_workqueues(device, &made.workqueues);
	for (unsigned i = 0; i < nbResources; i++) {
		CUresult error = add(&made, &have_sms, &resources[i]);
		if (error == CUDA_SUCCESS && device_of(&resources[i]) != device)
			error = CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
		if (error != CUDA_SUCCESS)
			return error;
	}
	if (!have_sms)
		sim_device_sms(device, &made.sms);
	struct sim_resource_desc *desc = malloc(sizeof(*desc)); /* stays valid while the process lives */
	if (!desc)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*desc = made;
	sim_handle_add(desc, SIM_TAG_RESOURCE_DESC);
	*phDesc = (CUdevResourceDesc)desc;
	return CUDA_SUCCESS;
}
