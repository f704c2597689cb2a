/* timeline.h: a process's hold on the virtual timeline of a device; engine.c uses it with sim_engine_mutex held. */
#ifndef PARTAGE_SIM_TIMELINE_H
#define PARTAGE_SIM_TIMELINE_H

#include "engine.h"

#define SIM_SPIN_NS 100000 /* a collective that waits for its partner keeps the engine busy in steps of this length */

struct sim_engine {
	int device;
	struct sim_stream *active;  /* streams with items */
	struct sim_stream *running; /* whose head uses the engine now */
	uint64_t run_ns;            /* for how long, from cursor_ns on */
	uint64_t cursor_ns;         /* the grant: [cursor_ns, until_ns) is ours and unused */
	uint64_t until_ns;
	bool worker, host;          /* the threads exist ... */
	bool asleep, host_asleep;   /* ... and wait to be woken */
	pthread_cond_t wake, host_wake;
};

uint64_t sim_slice_ns(int device);
/* Makes [cursor, until) non-empty and begin at or after `ready`: what is left of the grant, else a new one of
 * `amount`. */
void sim_timeline_take(struct sim_engine *engine, uint64_t ready, uint64_t amount);
/* Books run_ns from cursor_ns on as busy, and moves the cursor. */
void sim_timeline_used(struct sim_engine *engine);
/* Gives back the unused end of the grant where nobody was granted anything after it. */
void sim_timeline_return(struct sim_engine *engine);
/* A collective may go on: its partner came, or will not come. */
bool sim_meeting_over(struct sim_item *item, int device);

#endif
