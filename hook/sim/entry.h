/* entry.h: what the generated public functions of both simulated libraries call around our code.
 *
 * entry.c stands in libcuda.so.1 and in libnvidia-ml.so.1; the generated sim_cuda_entry.c and sim_nvml_entry.c give it
 * the names, counters and state of their library.
 */
#ifndef PARTAGE_SIM_ENTRY_H
#define PARTAGE_SIM_ENTRY_H

#include <stdbool.h>
#include <stdint.h>

/* generated, one set per library */
extern const char *const sim_call_name[];
extern const unsigned sim_calls;
extern uint64_t sim_call_count[]; /* calls of this process so far, atomic */
extern const int sim_entry_not_ready; /* the library's "not initialised" */
bool sim_entry_ready(void);
int sim_entry_device(void); /* physical index of the current device, -1 if none */
void sim_entry_failed(unsigned call, int result); /* for the library's own log */
void sim_entry_idle(void); /* the last thread has left */

/* flags of an entry point */
#define SIM_EARLY 1 /* answered before initialisation */
#define SIM_OPENS 2 /* opens the machine first, so that a fault armed there can fail it */

/* Count the call and decide whether it is answered here: true, and *result is set, before initialisation or by an
 * injected fault. */
bool sim_enter(unsigned call, unsigned flags, int *result);
/* Whether a fault strikes the call that this thread is in because it asks about this device: NVML, where the device is an
 * argument. The code then answers with *result. */
bool sim_fault_on(int device, int *result);
/* Threads between the two. */
unsigned sim_entry_inside(void);
/* Trace the call; returns result. */
int sim_leave(unsigned call, int result);
/* Whether a fault says that a symbol does not exist (drop:NAME). */
bool sim_dropped(const char *symbol);

#endif
