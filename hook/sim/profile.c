/* profile.c: turns a shipped profile into the description part of a machine file.
 *
 * machine.c calls sim_profile_fill() under its setup lock; nothing here touches the state part. What can go wrong: an
 * unknown name, which is answered with -1 and one log line naming the profiles there are.
 */
#include "profile.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "sim.h"

static bool has_alias(const char *aliases, const char *name)
{
	size_t length = strlen(name);
	for (const char *at = aliases; at && *at; at += strcspn(at, " "), at += *at == ' ')
		if (strcspn(at, " ") == length && strncasecmp(at, name, length) == 0)
			return true;
	return false;
}

const struct sim_profile *sim_profile_find(const char *name)
{
	for (unsigned i = 0; i < sim_profile_count; i++)
		if (strcasecmp(sim_profiles[i].name, name) == 0 || has_alias(sim_profiles[i].aliases, name))
			return &sim_profiles[i];
	return NULL;
}

/* splitmix64's output function: any two seeds or indices give unrelated numbers. */
static uint64_t mix(uint64_t x)
{
	x += UINT64_C(0x9e3779b97f4a7c15);
	x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
	return x ^ (x >> 31);
}

void sim_profile_identity(struct sim_machine *m, uint32_t index)
{
	struct sim_device_model *model = &m->model[index];
	uint64_t high = mix(mix(m->seed) + index), low = mix(high);

	high = (high & ~UINT64_C(0xf000)) | UINT64_C(0x4000); /* version 4, as random UUIDs say it */
	low = (low & ~(UINT64_C(3) << 62)) | (UINT64_C(2) << 62);
	snprintf(model->uuid, sizeof(model->uuid), "%s-%08x-%04x-%04x-%04x-%012llx",
	         model->mig == SIM_MIG_INSTANCE ? "MIG" : "GPU", (unsigned)(high >> 32),
	         (unsigned)(high >> 16) & 0xffff, (unsigned)high & 0xffff, (unsigned)(low >> 48),
	         (unsigned long long)(low & UINT64_C(0xffffffffffff)));
	/* An instance is part of its card, and the serial number is the board's. */
	uint32_t board = model->mig == SIM_MIG_INSTANCE ? (uint32_t)model->parent : index;
	snprintf(model->serial, sizeof(model->serial), "1%012llu",
	         (unsigned long long)(mix(mix(~m->seed) + board) % UINT64_C(1000000000000)));
}

static void log_unknown(const char *name)
{
	char known[512] = "";
	size_t used = 0;
	for (unsigned i = 0; i < sim_profile_count && used < sizeof(known); i++)
		used += (size_t)snprintf(known + used, sizeof(known) - used, "%s%s", i ? ", " : "",
		                         sim_profiles[i].name);
	sim_log("unknown machine profile \"%s\" (PARTAGE_SIM): known are %s; `partage sim create` takes any TOML file",
	        name, known);
}

int sim_profile_fill(struct sim_machine *m, const char *name)
{
	const struct sim_profile *profile = sim_profile_find(name);
	if (!profile) {
		log_unknown(name);
		return -1;
	}
	m->ndev = profile->ndev;
	m->cuda_version = profile->cuda_version;
	if (!m->seed)
		m->seed = profile->seed;
	snprintf(m->profile, sizeof(m->profile), "%s", profile->name);
	snprintf(m->driver, sizeof(m->driver), "%s", profile->driver);
	for (uint32_t i = 0; i < m->ndev; i++) {
		m->model[i] = profile->models[i];
		m->model[i].ncosts = profile->ncosts;
		if (profile->ncosts)
			memcpy(m->model[i].cost, profile->costs, profile->ncosts * sizeof(*profile->costs));
		memcpy(m->link[i], profile->links + (size_t)i * m->ndev, m->ndev * sizeof(struct sim_link));
		sim_profile_identity(m, i);
	}
	m->nmig_profiles = profile->nmig;
	if (profile->nmig)
		memcpy(m->mig_profile, profile->mig, profile->nmig * sizeof(*profile->mig));
	m->nswitches = profile->nswitches;
	for (uint32_t i = 0; i < m->nswitches; i++)
		snprintf(m->switch_pci[i], sizeof(m->switch_pci[i]), "%s", profile->switches[i]);
	return 0;
}
