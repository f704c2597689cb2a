/* arbiter_core.h: what the files of the policy core share: accounts, devices, the constants and what they promise.
 *
 * For hook/arbiter/{arbiter,bucket,charge,choice,turn,lend,decide,credence}.c alone. Nothing here allocates but arb_new() and
 * arb_share(). Time only goes forward: arb_decide() and the rest take an earlier `now` for the latest one.
 *
 * Promises, with L the longest of the launches, or of the work kept in flight (5 ms), on the device:
 * - A waiting account with a guarantee has its turn within (20 ms + L) / guarantee, for what it owes after its own last
 *   turn, + 26 ms + L for each account there + ARB_CAP_IDLE for what others have saved; higher priorities go before.
 * - Surplus goes by priority, then by virtual time: a waiting account of equal priority has its part by weight.
 * - A guarantee g is kept over any second of a device whose tenants all launch without end: 0.95 g less 26 ms + 2 L.
 * - A ceiling is kept over any window w: ceiling (w + ARB_CAP_IDLE) + 56 ms + L; who was kept waiting by a higher priority
 *   may catch up on ARB_CAP_WAITING instead.
 * - Charges add up to the time in which the device was busy, but for the gates' delays. Whose work a device does while
 *   several have some in flight can only be guessed from outside: there up to a slice is charged to the wrong one.
 * - A tenant of several devices never stands still for ever: at most ARB_STUCK and a round of turns.
 */
#ifndef PARTAGE_ARBITER_CORE_H
#define PARTAGE_ARBITER_CORE_H

#include <stddef.h>

#include "arbiter.h"
#include "partage/policy.h"

#define ARB_MS          UINT64_C(1000000)
#define ARB_QUANTUM     (10 * ARB_MS)  /* device time of one turn */
#define ARB_QUANTUM_FEW (20 * ARB_MS)  /* where at most two compete: fewer hand-overs, and nobody waits longer */
#define ARB_QUANTUM_BACK                                                                                               \
	(5 * ARB_MS) /* where a guaranteed one waits that comes back from a pause: it has little to do */
#define ARB_QUANTUM_AWAY (1 * ARB_MS) /* the same where that pause was long: it costs a hand-over that seldom */
#define ARB_AWAY         (10 * ARB_MS)  /* such a pause is at least this long */
#define ARB_AWAY_LAST    (100 * ARB_MS) /* for so long others keep little in flight, for it may come back */
#define ARB_AWAY_US      2000           /* so little: one launch of 1 ms behind another */
#define ARB_PAUSE        (2 * ARB_MS) /* such a pause is at least this long */
#define ARB_GUARD        (50 * ARB_MS)  /* a closed turn that is not drained after this is left to drain alone */
#define ARB_GUARD_LIAR   (8 * ARB_MS) /* the same for one that is distrusted */
#define ARB_DISTRUST     (1000 * ARB_MS) /* for so long after a claim that cannot be */
#define ARB_STALE        (300 * ARB_MS) /* work in flight this long after its closing is no longer believed */
#define ARB_STUCK        (1000 * ARB_MS) /* and after this nothing is kept waiting for its end */
#define ARB_CAP_IDLE     (200 * ARB_MS) /* an idle account saves its share of this much time */
#define ARB_CAP_WAITING  (1000 * ARB_MS) /* one that is kept waiting, of this much */
#define ARB_DEBT         (2000 * ARB_MS) /* most device time that is owed, before an audit */
#define ARB_RECENT       (20 * ARB_MS)  /* who had work in flight this lately will soon have more */
#define ARB_DEADLINE     (100 * ARB_MS) /* a turn's deadline is at most this far off, and moved on half-way */
#define ARB_GRACE        (2 * ARB_MS)   /* from opening to the first launch: a waiter has to wake */
#define ARB_GAP_SHORT    (200000)       /* ns: a pause shorter than a hand-over there and back cannot be lent */
#define ARB_GAP_CHECK    (2 * ARB_MS)  /* how often a holder of short pauses is looked at */
#define ARB_TOGETHER     (4 * ARB_MS)  /* and those that are open together: their buckets move slowly */
#define ARB_SPAN                                                                                                       \
	(3 * ARB_MS) /* whose work comes in pieces no longer than this, between pauses, may run beside its like */
#define ARB_ROOM   1100 /* permille: those that would use no more than this together get on without turns */
#define ARB_SLICE  (1 * ARB_MS) /* a device works on what came first for about this long after others came */
#define ARB_MISSED (20 * ARB_MS)  /* who did not use its turn is passed over for this long, doubled each time */
#define ARB_GANG   (1000 * ARB_MS) /* devices that a tenant used within this are given to it together */
#define ARB_REPORT (10000 * ARB_MS) /* an account with kernels longer than the guard is reported once in this */
#define ARB_HELP   (6 * ARB_MS) /* who drains for longer than this on one device may need a launch on another */
#define ARB_HELPS  4 /* so many, each time it is closed */
#define ARB_SOON   (100000)       /* ns: arb_decide() asks to be called no sooner than this */
#define ARB_STEP   (10000 * ARB_MS) /* more time than this at once is taken as this: no overflow */
#define ARB_EVENTS 64

enum arb_right { ARB_RIGHT_NONE, ARB_RIGHT_SURPLUS, ARB_RIGHT_GUARANTEED };
enum arb_role {
	ARB_CLOSED,
	ARB_BORROWER, /* open while the holder has nothing in flight */
	ARB_RESERVED, /* the device is kept for it until all devices of its gang are */
	ARB_HOLDER,
};

struct arb_account {
	int tenant;
	struct arb_tenant_state *owner;
	struct arb_device_state *device;
	struct arb_share share;
	struct arb_claim claim;
	struct arb_turn turn;
	/* bucket: ns times 1000, so that a permille of a ns is not lost */
	int64_t tokens, ceiling_tokens;
	uint64_t owed;  /* ns found by an audit; repaid from the share before there is another turn */
	uint64_t vtime; /* surplus used by weight; compared by difference */
	enum arb_right right; /* at the latest decision */
	enum arb_right entitled; /* the same, but for the quantum that it is in */
	enum arb_right kind;  /* of its turn: which bucket pays */
	enum arb_role role, closed_role;
	bool met;       /* a claim has come */
	bool fresh;     /* a claim has come since the closing */
	bool draining;  /* closed, work in flight */
	bool undrained; /* beyond the guard: gets nothing until it is drained */
	bool used;      /* had work in flight in this turn */
	bool gang;      /* its turn is one with its tenant's others */
	bool recent;    /* had work in flight within ARB_RECENT */
	bool helps;     /* open for one launch, for which its tenant's work on another device may be waiting */
	int helped;     /* how often since it was closed */
	bool joins;     /* asks because its tenant asks for another device of its gang */
	uint64_t opened_at, closed_at, began_at; /* began_at: of the quantum */
	uint64_t spent;    /* device time in this quantum */
	uint64_t seen;     /* of the claim's time in flight, up to the latest settlement */
	uint64_t gap;      /* ns: moving average of its pauses while open */
	uint64_t span; /* ns: moving average of the device time between two pauses */
	uint64_t span_from; /* turn.charged when the present period in flight began */
	bool span_seen; /* and it was watched from then on */
	uint64_t launches_from; /* claim.launches then */
	uint64_t launch; /* ns: moving average of the device time of a launch; 0: not known */
	uint64_t closed_charged; /* turn.charged when it was closed */
	uint64_t missed_until;
	uint64_t reported_at; /* as undrained */
	uint64_t claimed_at; /* when the claim came */
	uint64_t lied_at; /* when it last claimed what cannot be; 0: never */
	unsigned missed;
	uint64_t from, to; /* in flight within the step being settled */
	uint64_t since; /* when that period in flight began */
	bool flying; /* it had not ended at the end of the latest step */
	bool whole; /* and it is one piece */
};

struct arb_device_state {
	char uuid[PTG_UUID_SIZE];
	int index; /* what arb_device() returned */
	struct arb_account *account[ARB_TENANTS];
	int accounts;
	struct arb_account *holder;
	uint64_t settled_at;
	uint64_t vfloor; /* least virtual time of those at work: who comes starts there */
	uint32_t first_priority; /* the least number among the gated */
	uint64_t quantum;
	int active; /* gated accounts that want, are busy or were lately */
	uint32_t demand; /* permille: what those that are active would use alone */
	int waiting; /* that want and are not open */
	bool together; /* all that are at work are open, and none of them has to say when it begins or ends */
};

struct arb_tenant_state {
	bool used;
	struct arb_account *account[ARB_DEVICES]; /* by arb_device() */
	uint64_t gang; /* devices, by rank in UUID order, on which it works, worked or waits; set by each decision */
	uint64_t helped_at; /* when a launch was last let through to help its others */
	bool wants;    /* on any of them */
	bool drains;   /* on any */
};

struct arb {
	uint64_t now;
	uint64_t decided_at, resumed_at; /* latest decision; the latest one that had been long in coming */
	struct arb_device_state *device[ARB_DEVICES]; /* by arb_device() */
	struct arb_device_state *order[ARB_DEVICES];  /* by UUID */
	int devices;
	struct arb_tenant_state tenant[ARB_TENANTS];
	struct arb_event event[ARB_EVENTS];
	unsigned event_first, event_count;
};

static inline uint64_t arb_least(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

static inline uint64_t arb_most(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

static inline uint64_t arb_average(uint64_t old, uint64_t next)
{
	return old ? (7 * old + next) / 8 : next;
}

/* From `since` to `now`, 0 where that lies ahead. */
static inline uint64_t arb_since(uint64_t now, uint64_t since)
{
	return now > since ? now - since : 0;
}

/* Its work in flight waits for something that does not come by itself: nobody waits for it any more. */
static inline bool arb_stuck(const struct arb *arb, const struct arb_account *a)
{
	return !a->turn.open && (a->draining || a->undrained) && arb->now - a->closed_at > ARB_STUCK;
}

static inline bool arb_several(const struct arb_tenant_state *t)
{
	return (t->gang & (t->gang - 1)) != 0;
}

/* How long others wait for a closed turn to drain. */
static inline uint64_t arb_guard(const struct arb *arb, const struct arb_account *a)
{
	return a->lied_at && arb->now - a->lied_at < ARB_DISTRUST ? ARB_GUARD_LIAR : ARB_GUARD;
}

static inline bool arb_in_flight(const struct arb_account *a)
{
	return a->turn.open ? a->claim.busy : a->draining || a->undrained;
}

/* How many others are at work, wait, or were at work a moment ago. */
static inline int arb_rivals(const struct arb_account *a)
{
	return a->device->active - (a->recent || a->claim.wants);
}

/* credence.c */
void arb_check_claim(struct arb *arb, struct arb_account *a, const struct arb_claim *c, uint64_t now);
bool arb_distrusted(const struct arb_account *a, uint64_t now);
/* bucket.c */
void arb_refill(struct arb_account *a, uint64_t step);
void arb_pay(struct arb_account *a, uint64_t ns);
void arb_set_share(struct arb_account *a, const struct arb_share *share);
void arb_judge(struct arb_account *a, uint64_t now);
uint64_t arb_has_right_at(const struct arb_account *a, uint64_t now);
void arb_raise_floor(struct arb_device_state *d);
void arb_level(struct arb_device_state *d);
void arb_set_fallbacks(struct arb_device_state *d);
/* charge.c */
void arb_settle(struct arb_device_state *d, uint64_t now);
/* choice.c */
bool arb_before(const struct arb_account *a, const struct arb_account *b);
struct arb_account *arb_choose(struct arb *arb, struct arb_device_state *d);
bool arb_gang_kept(struct arb *arb, const struct arb_tenant_state *t, const struct arb_device_state *but);
uint32_t arb_demand(const struct arb_account *a);
bool arb_companions(const struct arb_account *a, const struct arb_account *b);
/* turn.c */
void arb_open(struct arb_account *a, enum arb_role role, uint64_t now);
void arb_close(struct arb_account *a, uint64_t now);
void arb_begin_quantum(struct arb_account *a, uint64_t now);
void arb_drain(struct arb *arb, struct arb_device_state *d, uint64_t now);
bool arb_pausing(const struct arb_account *a, uint64_t now);
void arb_turns(struct arb *arb, struct arb_device_state *d, uint64_t now);
void arb_start_turns(struct arb *arb, struct arb_device_state *d, uint64_t now);
/* lend.c */
void arb_lend(struct arb *arb, struct arb_device_state *d, uint64_t now);
/* arbiter.c */
void arb_report(struct arb *arb, enum arb_event_kind kind, const struct arb_account *a, uint64_t amount);

#endif
