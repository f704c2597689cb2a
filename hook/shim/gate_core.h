/* gate_core.h: what the files of the gate share (gate.c, gate_turn.c, gate_peers.c, gate_marks.c, gate_told.c,
 * gate_flight.c, gate_helper.c, gate_capture.c).
 *
 * Words: a launch is *inside* from the gate to the driver's return. A *mark* is an event that the launching thread has
 * recorded behind its launch. A *tail* is what one thread has launched behind its latest mark. *In flight* is what is
 * inside, marked and not known to be over, or in a tail. A *period* lasts from the first of it to the last; the slot's
 * line in the ledger says `busy_ns` as long.
 *
 * All of it lies on pages that a fork's child gets zeroed, under one lock of the process, which is never held across a
 * call of the driver or a sleep. Estimates: each kind of work has a running mean of the time per launch; marks and tails
 * are worth their launches times what that is now. */
#ifndef PARTAGE_SHIM_GATE_CORE_H
#define PARTAGE_SHIM_GATE_CORE_H

#include "core.h"
#include "gate.h"
#include "hooks.h"
#include "memory.h"

#define GATE_THREADS 1024 /* more threads than that launch without being given any */
#define GATE_MARKS   256
#define GATE_SPARES  (2 * GATE_MARKS)

#define GATE_LONG_NS   200000 /* launches of so much are marked each: recording costs a stream about a 500th of it */
#define GATE_SPAN_NS   400000 /* a mark for so much work of shorter ones */
#define GATE_EVERY     1024 /* most launches under one mark */
#define GATE_FLIGHT_NS 5000000 /* most work of the container in flight, unless the turn says otherwise */
#define GATE_SHORT_NS  1000000 /* the same while PTG_TURN_SHORT */
#define GATE_LAZY_NS   1000000 /* so long a pause belongs to a period where nobody watches */
#define GATE_GUARD_NS  50000000 /* beyond twice its estimate: work that does not end */
#define GATE_POLL_NS   50000 /* least time between two looks at marks that are overdue */
#define GATE_TICK_NS   1000000

struct gate_mark {
	uint64_t seq; /* of the process */
	CUcontext context; /* of the event */
	CUevent event;
	CUstream stream;
	uint64_t first_ns; /* when the first of its launches began */
	uint64_t open_ns; /* when it was last seen not to be over; 0: never */
	int device;
	uint32_t launches[VGPU_WORKS]; /* that it stands for; none: work that nobody counted */
	uint64_t unknown_ns; /* estimate of that */
	bool over;
};

struct gate_spare {
	CUcontext context;
	CUevent event;
};

struct gate_device {
	struct ptg_slot_turn *line; /* in the ledger; its writer is this process alone */
	const struct ptg_turn *turn;
	uint64_t *bucket; /* PTG_BUCKET_NS */
	struct ptg_ledger_device *common; /* to all processes of the container; NULL: none */
	uint64_t busy_ns; /* 0: no period */
	uint64_t known_ns; /* when something was last known to be over */
	uint64_t seen_ns; /* when the latest mark that is over ended, as far as is known */
	uint64_t charged_ns; /* until when the bucket has paid */
	uint64_t flight_ns, waited_ns, waits, launches; /* what stands in the line */
	uint64_t unknown_ns; /* sum over the marks */
	uint64_t loose_at; /* when a tail was given up last */
	uint64_t loosened; /* how many launches they were, ever */
	uint64_t over; /* marks that are over */
	uint64_t mean_ns[VGPU_WORKS]; /* of one launch; 0: none was seen yet */
	uint64_t peers_at; /* when `peers` was counted */
	uint64_t past_ns; /* periods of others that began before were waited for long enough */
	uint64_t part_ns; /* worth of what was launched in this period */
	uint64_t launched_ns; /* when it last launched by the slow way */
	uint64_t want_ns;
	uint32_t queued[VGPU_WORKS]; /* launches under marks */
	uint32_t loose[VGPU_WORKS]; /* launches of tails that were given up since the latest mark */
	uint32_t peers; /* processes of the container with work in flight, this one too */
	uint32_t marks;
	uint32_t inside;
	uint32_t want;
	uint32_t policy; /* sequence of the policy when a launch was last seen here */
	bool met; /* under the gate since then */
	bool degraded;
	bool leaving; /* another process of the container may begin before this one's period has ended */
	bool stuck; /* something in flight did not end in time, nothing has since: launches find room without it ending */
	uint32_t let, doubled; /* how many may now, how many the latest time */
};

struct gate {
	uint32_t lock;
	uint32_t ready;
	uint32_t ndev;
	bool barrier; /* membarrier works: launches may be given in advance */
	const struct ptg_turns *turns; /* NULL: none */
	uint32_t *bell; /* NULL: none */
	uint32_t high; /* thread blocks from here on were never used */
	uint32_t threads; /* used ones */
	uint32_t frozen; /* calls under way that may end a context */
	uint32_t asking; /* somebody asks the driver about marks; futex */
	uint64_t asking_ns; /* since when */
	uint32_t progress; /* futex: +1 when marks were found over */
	uint32_t sleepers; /* on it */
	uint64_t seq; /* of the mark recorded last */
	uint64_t asked_ns; /* when marks were last asked about */
	/* gate_helper.c */
	uint32_t helper; /* HELPER_* */
	uint32_t helper_bell; /* futex */
	uint64_t helper_at; /* when it looks next */
	uint64_t helper_tried;
	struct gate_device device[PTG_DEVICES];
	struct ptg_slot_turn line[PTG_DEVICES]; /* of a process without a slot */
	uint64_t bucket[PTG_DEVICES];
	unsigned count; /* marks */
	unsigned spares;
	struct gate_mark mark[GATE_MARKS]; /* oldest first */
	struct gate_spare spare[GATE_SPARES];
	struct vgpu_gate_thread thread[GATE_THREADS];
};

/* ---- gate.c ---------------------------------------------------------------------------------------------------------- */

/* NULL: this process is under no gate. Sets up. */
struct gate *gate_get(void);
struct gate *gate_there(void); /* NULL also where it is not set up yet */

static inline bool gate_gated(int device)
{
	return __atomic_load_n(vgpu_gate_at, __ATOMIC_ACQUIRE) >> device & 1;
}

/* ---- gate_turn.c: may it launch, and waiting; with the lock held, which waiting gives back meanwhile ------------------- */

struct gate_wait {
	uint32_t word; /* the turn's, when it was looked at */
	uint64_t want_ns; /* waits for the turn, since */
	uint64_t room_ns; /* waits for room, or the bucket, no longer than until then; 0: it did not have to */
	uint64_t over; /* marks that were over then */
	uint64_t sleep_ns; /* at most so long now */
	enum vgpu_work work; /* that waits */
	bool room; /* that is what it waits for now */
	bool let; /* it waits for the bucket no longer: what is in flight does not end */
	uint64_t peers_ns; /* nothing of another process has ended since; 0: it did not have to wait for one */
	uint64_t ask_after; /* so long after that: whether those that it waits for live */
	uint32_t peer_bell; /* as it was then */
	bool peers; /* it waits for other processes of the container now */
	bool spared; /* it has not rung, since another process of the container has */
	bool behind; /* has had its part, or had its last one later: first those that wait already */
	bool let_pass; /* it has done so in this turn */
	bool free; /* not under the gate any more */
};
/* False: gate_wait(), then again. */
bool gate_may_launch(struct gate *g, int device, struct gate_wait *wait);
void gate_wait(struct gate *g, int device, struct gate_wait *wait);
void gate_waited(struct gate *g, int device, struct gate_wait *wait);
void gate_want(struct gate_device *d, int change, uint64_t now);
void gate_pay(struct gate *g, int device, uint64_t now); /* the private bucket, for the period so far */
uint64_t gate_bound(const struct gate *g, int device);
bool gate_urgent(const struct gate_device *d); /* somebody waits to hear that this process is idle */
void gate_ring(struct gate *g);

/* ---- gate_peers.c: processes of one container; with the lock held, which sleeping gives back meanwhile ---------------- */

uint32_t gate_peers(struct gate *g, int device,
                    uint64_t now); /* that have work in flight, this one too; a little old */
/* Another process of the container spares this one a ring: for the arbiter the container has work in flight, or waits,
 * whatever this one does. Asked behind the store of the own line, with full fences: of two that end at once the later sees
 * that the other has ended, and of two that begin or ask at once the earlier does not let the other spare it. */
bool gate_peers_began(const struct gate *g, int device, uint64_t now); /* before this one */
bool gate_peers_go_on(const struct gate *g, int device, uint64_t now);
bool gate_peers_asked(const struct gate *g, int device, uint64_t now); /* before this one */
bool gate_peers_wait(const struct gate_device *d, uint64_t now); /* others wait until this one has nothing in flight */
void gate_peers_ended(struct gate_device *d, uint64_t now); /* it has nothing */
void gate_peers_leave(struct gate *g, int device, uint64_t now); /* it has little, where that is so */
uint64_t gate_peers_look_at(struct gate *g, int device, uint64_t now); /* when that may be so */
/* It may not begin a period: enough others are in one. gate_peers_sleep(), then again. */
bool gate_peers_full(struct gate *g, int device, struct gate_wait *wait, uint64_t now);
bool gate_peers_before(const struct gate *g, int device); /* the same, of one just begun */
bool gate_peers_next(const struct gate *g, int device, const struct gate_wait *wait,
                     uint64_t now); /* has had its part */

/* Somebody waits to hear that this process has nothing in flight. */
static inline bool gate_awaited(const struct gate_device *d, uint64_t now)
{
	return gate_urgent(d) || gate_peers_wait(d, now);
}

void gate_peers_sleep(struct gate *g, int device, struct gate_wait *wait);

/* ---- gate_flight.c: what is in flight; with the lock held ------------------------------------------------------------ */

void gate_begin(struct gate *g, int device, uint64_t now);
uint64_t gate_in_flight(struct gate *g, int device); /* ns, estimate; 0: nothing */
uint64_t gate_mean(const struct gate_device *d, enum vgpu_work work);
uint32_t gate_every(const struct gate_device *d); /* launches under one mark */
/* What the thread launched without a look is taken into its tail; one on another stream or device is given up. */
void gate_take_stock(struct gate *g, struct vgpu_gate_thread *t, int device, CUstream stream, uint64_t now);
void gate_give_up(struct gate *g, struct vgpu_gate_thread *t, uint64_t now);
/* Launches that no mark of their own will lie behind: the next mark on the device stands for them too, near enough. */
void gate_loosen(struct gate_device *d, enum vgpu_work work, uint32_t launches, uint64_t now);
uint64_t gate_worth(const struct gate_device *d, const uint32_t launches[VGPU_WORKS]); /* ns */
/* Ends the period where nothing is in flight. `self`: the caller's, NULL in the helper. */
bool gate_settle(struct gate *g, int device, const struct vgpu_gate_thread *self, uint64_t now);
void gate_withdraw(struct gate *g, int device); /* a period that just began, and nothing was launched */

/* ---- gate_marks.c ----------------------------------------------------------------------------------------------------- */

/* Without the lock: an event behind what was launched; false: there is none. */
bool gate_record(struct gate *g, CUstream stream, struct gate_mark *mark);
bool gate_record_all(struct gate *g, struct gate_mark *mark); /* behind all that the current context was given */
/* With the lock. */
void gate_push(struct gate *g, const struct gate_mark *mark);
bool gate_ask(struct gate *g); /* asks the driver, without the lock meanwhile; true: some are over */
void gate_sweep(struct gate *g, uint64_t now); /* takes out marks that are over */
uint64_t gate_next_over(const struct gate *g, int device); /* when the oldest mark is expected to be over */
/* When to look at what is expected to be over at some time: earlier than that, too, at growing distances, since what ended
 * long ago and is found on time teaches nothing. Never far apart: who looks at a long kernel only when it is expected to
 * end learns that it ends then. */
static inline uint64_t gate_look_at(const struct gate_device *d, uint64_t expected, uint64_t now)
{
	uint64_t since = now > d->seen_ns ? now - d->seen_ns : 0;
	uint64_t apart = since < GATE_POLL_NS ? GATE_POLL_NS : since > GATE_TICK_NS ? GATE_TICK_NS : since;
	return expected > now + GATE_POLL_NS && expected < now + apart ? expected : now + apart;
}

/* ---- gate_helper.c ------------------------------------------------------------------------------------------------------ */

void gate_helper_need(struct gate *g, uint64_t at); /* with the lock: it has to look by then */

/* ---- gate_capture.c ----------------------------------------------------------------------------------------------------- */

bool gate_capturing(CUstream stream);
bool gate_any_capture(void);
/* Nobody begins to capture between these two; false: somebody captures already. */
bool gate_hold_captures(void);
void gate_release_captures(void);

/* ---- system calls: not points of cancellation ---------------------------------------------------------------------------- */

void gate_sleep(const uint32_t *word, uint32_t value, uint64_t ns, bool shared);

#endif
