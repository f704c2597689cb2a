/* multicast.h: multicast objects, as vmm.c and the code that stores into device memory meet them. */
#ifndef PARTAGE_SIM_MULTICAST_H
#define PARTAGE_SIM_MULTICAST_H

#include "vmm.h"

struct sim_multicast; /* what an allocation handle has that is such an object */

/* Can this device be in a team: is it behind an NVSwitch, and of a kind that can? */
bool sim_multicast_supported(int device);
/* Something was written to device memory: what a multicast mapping got, every memory bound to it gets. Without the
 * memory mutex; costs a look at a word where there are no such objects. */
void sim_multicast_stored(uint64_t p, uint64_t n);

/* Under the memory mutex: waits until all devices are in the team; false: the object is gone. */
bool sim_multicast_wait(struct sim_allocation *object);
void sim_multicast_changed(void); /* those that wait look again */
void sim_multicast_end(struct sim_multicast *team); /* lets go of what is bound */

#endif
