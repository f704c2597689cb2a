/* nvml_device.h: what the nvml*.c files share: handles, checks at the door, and the numbers several of them need.
 *
 * A handle points into a static table, one entry for each entry of the machine file (cards and MIG instances), so that
 * a foreign pointer is an error and not a crash. Every function takes the handle through one of the three doors below
 * and so answers a lost device, a MIG handle where none is meant, and a missing result pointer, all in the same way.
 */
#ifndef PARTAGE_SIM_NVML_DEVICE_H
#define PARTAGE_SIM_NVML_DEVICE_H

#include <nvml.h>

#include "entry.h"
#include "sim.h"
#include "sim_impl.h" /* generated: the prototype of every sim_nvmlX */

#define NVML_NO_INSTANCE    0xffffffffu /* gpuInstanceId where there is no MIG */
#define NVML_WINDOW_BUCKETS 20       /* utilisation is that of the last second */

struct nvmlDevice_st {
	uint32_t index; /* in the machine file */
};

/* nvml_init.c */
bool sim_nvml_initialized(void);

/* nvml_identity.c: where a handle stands in the machine file; INVALID_ARGUMENT or GPU_IS_LOST. */
nvmlReturn_t nvml_find_any(nvmlDevice_t device, uint32_t *index);
nvmlReturn_t nvml_find_card(nvmlDevice_t device, uint32_t *index);     /* MIG instances: NOT_SUPPORTED */
nvmlReturn_t nvml_find_instance(nvmlDevice_t device, uint32_t *index); /* cards: NOT_SUPPORTED */

/* The doors. `out` is the result pointer of the call. They stand here so that a static analyser sees in every caller
 * that success means a pointer that may be written through. */
static inline nvmlReturn_t nvml_any(nvmlDevice_t device, const void *out, uint32_t *index)
{
	return out ? nvml_find_any(device, index) : NVML_ERROR_INVALID_ARGUMENT;
}

static inline nvmlReturn_t nvml_card(nvmlDevice_t device, const void *out, uint32_t *index)
{
	return out ? nvml_find_card(device, index) : NVML_ERROR_INVALID_ARGUMENT;
}

static inline nvmlReturn_t nvml_instance(nvmlDevice_t device, const void *out, uint32_t *index)
{
	return out ? nvml_find_instance(device, index) : NVML_ERROR_INVALID_ARGUMENT;
}

/* A getter that tells one value of entry `i` to whom the door lets through. */
#define NVML_GETTER(name, type, door, value)                                                                           \
	nvmlReturn_t sim_##name(nvmlDevice_t device, type *out)                                                        \
	{                                                                                                              \
		uint32_t i;                                                                                            \
		nvmlReturn_t result = door(device, out, &i);                                                           \
		if (result == NVML_SUCCESS)                                                                            \
			*out = (value);                                                                                \
		return result;                                                                                         \
	}

nvmlDevice_t nvml_handle(uint32_t index);
/* The n-th card, or the n-th MIG instance of `parent`; false where there are fewer. */
bool nvml_nth_card(uint32_t n, uint32_t *index);
bool nvml_nth_instance(uint32_t parent, uint32_t n, uint32_t *index);
uint32_t nvml_card_count(void);
/* Is the entry the card itself or one of its instances? */
bool nvml_belongs(uint32_t index, uint32_t card);
nvmlReturn_t nvml_text(char *out, unsigned length, const char *text); /* INSUFFICIENT_SIZE where it does not fit */
void nvml_pci(const char *bus_id, nvmlPciInfo_t *pci); /* address fields only */

/* nvml_usage.c */
int nvml_slots(void); /* client slots ever used: those below may be alive */
unsigned nvml_busy_percent(uint32_t card);                       /* all live clients, the last second */
unsigned nvml_client_percent(uint32_t client, uint32_t card);
uint64_t nvml_used(uint32_t index);                              /* bytes; for a card with its instances */

/* nvml_state.c */
unsigned nvml_power_mw(uint32_t card);
unsigned nvml_celsius(uint32_t card);
unsigned long long nvml_energy_mj(uint32_t card);

/* nvml_nvlink.c */
#define NVML_LINK_MBPS_UNKNOWN 0
unsigned nvml_link_count(uint32_t card);                         /* active NVLinks */
unsigned nvml_link_mbps(uint32_t card);                          /* one direction of one link */

#endif
