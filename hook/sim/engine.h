/* engine.h: queues and timelines of the simulated driver, inside one process.
 *
 * An *item* is one piece of queued work; a stream holds a FIFO of them. Each device has an *engine*: the streams of
 * this process that have items, one worker thread, and for each *unit* of the device (kernels, copies in, copies out)
 * the slice of its time that this process holds at the moment. Two clocks:
 * real time (sim_now) says when a thread may go on, and the device's *virtual timeline* says when work ran: an item is
 * ready at the latest of (its enqueue, the end of its predecessor, what it waits for), starts when its client is
 * granted the engine, and ends device_ns of granted time later. A thread that wakes late changes nothing on that line.
 *
 * One mutex guards all of it, for all devices: an event recorded on one device may release a stream on another.
 */
#ifndef PARTAGE_SIM_ENGINE_H
#define PARTAGE_SIM_ENGINE_H

#include <pthread.h>

#include "sim.h"

#define SIM_STREAM_ATTRIBUTES (CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN + 1)
#define SIM_PRIORITY_GREATEST (-5) /* as cuCtxGetStreamPriorityRange says; the least is 0 */

enum sim_item_kind {
	SIM_ITEM_WORK,   /* device_ns of engine time, then run() */
	SIM_ITEM_HOST,   /* run() on the host-function thread; the stream stands still meanwhile */
	SIM_ITEM_RECORD, /* completes one generation of an event */
	SIM_ITEM_WAIT,   /* waits for one generation of an event */
	SIM_ITEM_POLL    /* waits until poll() says so */
};

struct sim_item {
	struct sim_item *next;
	uint64_t seq;        /* order of enqueueing, over all streams of the process */
	uint64_t queued_ns;  /* real time of the enqueue */
	uint64_t left_ns;    /* engine time still needed */
	uint64_t meeting;    /* collective: what its partner is known by; 0 = none */
	uint64_t meet_by_ns; /* collective: end of patience, 0 = not begun */
	uint64_t generation; /* RECORD, WAIT */
	struct sim_stream_event *event;
	bool (*poll)(const void *arg);
	enum sim_item_kind kind;
	bool claimed;        /* some thread runs it now */
	struct sim_work work;
};

struct sim_stream {
	uint32_t tag;
	unsigned flags;
	int priority;
	uint64_t id;
	struct sim_context *context;
	uint64_t context_id;
	struct sim_green *green; /* the green context that it belongs to; NULL: none */
	bool reaped;             /* gone, and kept to be used again: some thread may still hold the pointer */
	uint64_t thread;         /* per-thread stream: whose; else 0 */
	struct sim_item *head, *tail;
	unsigned depth;          /* items queued */
	unsigned refs;           /* threads that look at it without being its items */
	bool legacy;             /* the context's NULL stream */
	bool barrier;            /* the context's, which is in order with all its streams; see event.c */
	bool lane;               /* carries part of one launch of a graph, however much that is */
	struct sim_captured *captured; /* capture.c: its part of a capture, under the graph mutex; NULL: none */
	bool destroyed;          /* goes when its last item has */
	bool active;             /* in the engine's list */
	bool running;            /* its head uses a unit of the device now */
	uint64_t last_ns;        /* virtual end of its latest item */
	uint64_t blocking_ns;    /* legacy only: latest end in any blocking stream of the context */
	uint64_t held_ns;        /* barrier only: until when its latest wait held up the context */
	CUlaunchAttributeValue attribute[SIM_STREAM_ATTRIBUTES]; /* what a program set, to be read back */
	struct sim_stream *next, *prev;             /* the context's streams */
	struct sim_stream *next_active, *prev_active; /* the engine's streams with items */
};

struct sim_stream_event {
	uint32_t tag;
	unsigned flags;
	int device;
	uint64_t context_id;
	uint64_t recorded;  /* generation of the last cuEventRecord; 0 = never */
	uint64_t completed; /* latest generation that has completed */
	uint64_t time_ns;   /* virtual time of that */
	unsigned refs;      /* items that name it, and the handle */
	unsigned waits;     /* items that wait for it */
	struct sim_captured *captured; /* capture.c: last recorded in a capture; NULL: not so */
	struct sim_shared_event *shared; /* event_share.c: of several processes; NULL: this one's alone */
};

extern pthread_mutex_t sim_engine_mutex;

/* What wakes a thread that sleeps in sim_engine_wait(): evaluated with the mutex held, after each completed item. */
struct sim_waiter {
	bool (*satisfied)(const struct sim_waiter *waiter);
	struct sim_stream *stream;
	struct sim_context *context;
	struct sim_stream_event *event;
	uint64_t mark; /* sequence number or generation */
	unsigned patient; /* it may sleep on until so many items of its stream have run; 0: not longer than it must */
	/* engine.c's own */
	struct sim_waiter *next, *prev;
	pthread_cond_t cond;
	bool done;
};

/* All with the mutex held. */
void sim_engine_wait(struct sim_waiter *waiter);
/* What is over by now has ended when this returns: the worker may sleep longer where nobody waits (wakeup.c). The mutex
 * may be let go meanwhile. */
void sim_engine_catch_up(int device);
uint64_t sim_engine_seq(void); /* of the item queued last */
bool sim_stream_drained(const struct sim_stream *stream, uint64_t seq);
void sim_event_put(struct sim_stream_event *event); /* drops a reference */
/* Ends it where it is destroyed and nobody needs it any more. A stream's memory is only ever used for streams: a thread
 * that looked one up while another destroyed its context finds it reaped. */
void sim_stream_reap(struct sim_stream *stream);
struct sim_stream *sim_stream_spare(void); /* a zeroed one; NULL: no memory */

struct sim_stream *sim_stream_barrier(struct sim_context *context); /* without the mutex; NULL: no memory */

/* A stream for one launch of a graph: non-blocking, without an end to its queue. It stays while it is open, then until
 * its last item has run. NULL: no memory. */
struct sim_stream *sim_lane_open(struct sim_context *context, int priority);
void sim_lane_close(struct sim_stream *lane);

/* What a graph's host function or memory operation (`empty`: one that does nothing) queues. */
void sim_host_item(struct sim_item *item, CUhostFn function, void *data);
CUresult sim_memop_item(const CUstreamBatchMemOpParams *param, struct sim_item *item, bool *empty);

/* Without the mutex. What `like` says is copied into a queued item; `wait` sleeps until it has run. */
CUresult sim_engine_submit(struct sim_stream *stream, const struct sim_item *like, bool wait);

/* meeting.c: have a collective on this device and its partner on another one met? With give_up it is taken off the
 * list. */
bool sim_meeting_met(uint64_t key, int device, uint64_t item, bool give_up);

#endif
