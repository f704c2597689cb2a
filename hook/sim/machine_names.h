/* machine_names.h: the texts by which the machine file names a card, as numbers (machine_names.c). */
#ifndef PARTAGE_SIM_MACHINE_NAMES_H
#define PARTAGE_SIM_MACHINE_NAMES_H

#include <stdbool.h>

struct sim_pci {
	unsigned domain, bus, device, function;
};

/* [domain:]bus:device[.function], hexadecimal. False, and nothing written, where the text is anything else. */
bool sim_pci_parse(const char *text, struct sim_pci *pci);
/* The same device, whatever the function. */
bool sim_pci_same(const struct sim_pci *a, const struct sim_pci *b);
/* GPU-8-4-4-4-12 or MIG-8-4-4-4-12 hexadecimal digits; what is missing is zero. */
void sim_uuid_bytes(const char *text, unsigned char bytes[16]);

#endif
