/* logs.h: the driver's own log of errors. */
#ifndef PARTAGE_SIM_LOGS_H
#define PARTAGE_SIM_LOGS_H

#include "sim.h"

/* A call of the driver has failed; called by the entry layer with no lock held. */
void sim_logs_note(const char *call, int result);

#endif
