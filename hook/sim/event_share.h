/* event_share.h: events between processes: what event.c asks of event_share.c. */
#ifndef PARTAGE_SIM_EVENT_SHARE_H
#define PARTAGE_SIM_EVENT_SHARE_H

#include "engine.h"

struct sim_shared_event; /* in memory that processes share */

/* event.c: of an event; and an event for one of another process's. */
struct sim_shared_event *sim_event_shared(CUevent event);
CUresult sim_event_open(CUevent *out, struct sim_shared_event *shared);

/* For an event made with CU_EVENT_INTERPROCESS; NULL: there is no room. */
struct sim_shared_event *sim_shared_event_new(void);
void sim_shared_event_drop(struct sim_shared_event *shared);
/* The stream was given a record of it: what it has to do when it has come so far. */
CUresult sim_shared_event_record(struct sim_shared_event *shared, struct sim_stream *stream);
uint64_t sim_shared_event_mark(const struct sim_shared_event *shared); /* the last record, of any process */
bool sim_shared_event_reached(struct sim_shared_event *shared, uint64_t mark);
void sim_shared_event_sleep(struct sim_shared_event *shared, uint64_t mark); /* until it is reached */
/* An item that waits for it in a stream. */
void sim_shared_event_item(struct sim_shared_event *shared, struct sim_item *item);

#endif
