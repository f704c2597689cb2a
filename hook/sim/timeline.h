/* timeline.h: a process's hold on the virtual timelines of a device; engine.c uses it with sim_engine_mutex held. */
#ifndef PARTAGE_SIM_TIMELINE_H
#define PARTAGE_SIM_TIMELINE_H

#include "engine.h"

#define SIM_SPIN_NS 100000 /* a collective that waits for its partner keeps the engine busy in steps of this length */

/* One unit of the device, as far as this process uses it. */
struct sim_unit {
	struct sim_stream *running; /* whose head uses it now */
	uint64_t run_ns;            /* for how long, from cursor_ns on */
	uint64_t cursor_ns;         /* the grant: [cursor_ns, until_ns) is ours and unused */
	uint64_t until_ns;
	uint64_t context_id;        /* for whose work the last time was taken */
};

struct sim_engine {
	int device;
	struct sim_stream *active; /* streams with items */
	struct sim_unit unit[SIM_UNITS];
	bool worker, host;         /* the threads exist ... */
	bool asleep, host_asleep;  /* ... and wait to be woken */
	uint64_t asleep_until;     /* when the worker wakes by itself */
	pthread_cond_t wake, host_wake;
};

uint64_t sim_slice_ns(int device);
/* Makes [cursor, until) of a unit non-empty and begin at or after `ready`, for work of this context: what is left of the
 * grant, else a new one of `amount`. Going from one context to another costs time of the compute unit, before it. */
void sim_timeline_take(struct sim_engine *engine, unsigned unit, uint64_t context_id, uint64_t ready, uint64_t amount);
/* Books run_ns from cursor_ns on as busy, and moves the cursor. */
void sim_timeline_used(struct sim_engine *engine, unsigned unit);
/* Gives back the unused end of the grant where nobody was granted anything after it. */
void sim_timeline_return(struct sim_engine *engine, unsigned unit);
/* A collective may go on: its partner came, or will not come. */
bool sim_meeting_over(struct sim_item *item, int device);

/* wakeup.c: when the worker, which has nothing left to do now, must look again: UINT64_MAX: when it is woken. */
uint64_t sim_engine_alarm(const struct sim_engine *engine, const struct sim_waiter *waiters);
/* engine.c: the stream's head could be begun now. */
bool sim_stream_runnable(const struct sim_engine *engine, const struct sim_stream *stream);

#endif
