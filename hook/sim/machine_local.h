/* machine_local.h: what the files machine*.c share. Nobody else includes it. */
#ifndef PARTAGE_SIM_MACHINE_LOCAL_H
#define PARTAGE_SIM_MACHINE_LOCAL_H

#include <stdbool.h>

#include "sim.h"

/* Another open description of the machine file, for OFD locks only; -1 with a reason in the log. Never the one that is
 * mapped: a mapping keeps its description, and with it its locks, alive in forked children. */
int sim_machine_reopen(void);
/* The file of this name beside the machine file, for reading; made where it is missing. -1 with a reason in the log. */
int sim_machine_open_beside(const char *name);

bool sim_is_machine_file(
        int fd); /* false: the program closed it, and may have opened something else under its number */

bool sim_byte_lock(int fd, long byte, bool wait); /* exclusive; false: held by another, or an error */
void sim_byte_unlock(int fd, long byte);
bool sim_byte_free(int fd, long byte); /* nobody else's description holds it */

/* machine_clients.c: the device's lock and, under it, bytes. */
void sim_device_lock(int device);
void sim_device_unlock(int device);
bool sim_device_has_room(int device, uint64_t bytes); /* after dropping the dead where that decides it */
void sim_set_bytes(int device, int slot, uint64_t bytes); /* a client's `memory`, and the sums that follow from it */
bool sim_slot_alive(int slot); /* our own too */

/* machine_pids.c: lets the kernel know that this process is the client of a slot. Called before the slot is used. */
void sim_pid_announce(int slot);

/* machine_shares.c, under the device's lock */
uint64_t sim_shares_paid(int device, int slot);
void sim_shares_drop(int device, int slot); /* a client is gone: what it paid is passed on */

#endif
