/* machine_local.h: what machine.c and machine_clients.c share. Nobody else includes it. */
#ifndef PARTAGE_SIM_MACHINE_LOCAL_H
#define PARTAGE_SIM_MACHINE_LOCAL_H

#include <stdbool.h>

#include "sim.h"

/* Another open description of the machine file, for OFD locks only; -1 with a reason in the log. Never the one that is
 * mapped: a mapping keeps its description, and with it its locks, alive in forked children. */
int sim_machine_reopen(void);

bool sim_byte_lock(int fd, long byte, bool wait); /* exclusive; false: held by another, or an error */
void sim_byte_unlock(int fd, long byte);
bool sim_byte_free(int fd, long byte); /* nobody else's description holds it */

#endif
