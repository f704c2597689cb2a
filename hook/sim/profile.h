/* profile.h: the table of shipped machine profiles (generated from hook/sim/profiles by hook/gen/profiles.py) and how
 * one becomes a machine. Used by machine.c when it creates the machine file, and by tests.
 */
#ifndef PARTAGE_SIM_PROFILE_H
#define PARTAGE_SIM_PROFILE_H

#include "machine.h"

/* The machine that a program meets which asked for none. */
#define SIM_DEFAULT_PROFILE "h100-80g"

struct sim_profile {
	const char *name;
	const char *aliases; /* separated by blanks */
	const char *description;
	const char *driver;
	uint64_t seed; /* used where the machine has none of its own */
	uint32_t cuda_version;
	uint32_t ndev, ncosts, nmig, nswitches;
	const struct sim_device_model
	        *models; /* without uuid, serial and costs: those follow from the seed, and below */
	const struct sim_link *links;          /* ndev rows of ndev */
	const struct sim_cost *costs;
	const struct sim_mig_profile *mig;
	const char *const *switches;
};

extern const struct sim_profile sim_profiles[];
extern const unsigned sim_profile_count;

/* The profile of this name or alias, whatever its case; NULL if there is none. */
const struct sim_profile *sim_profile_find(const char *name);

/* Describe the machine by a profile: devices, links, versions, UUIDs. `m` must be zeroed; a seed that stands in it
 * already is kept (two machines of one profile then have different UUIDs). Leaves `magic` alone: the creator stores it
 * last. Returns 0, or -1 for an unknown name, after logging the known ones. */
int sim_profile_fill(struct sim_machine *m, const char *name);

/* UUID and serial of the device at `index`, which follow from the machine's seed alone; Python computes the same. */
void sim_profile_identity(struct sim_machine *m, uint32_t index);

#endif
