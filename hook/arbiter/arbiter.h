/* arbiter.h: who gets the next turn. Policy only: no clock, no file, no futex, no thread; time is an argument.
 *
 * Driven by hook/arbiter/host.c (real time, ledgers, turns files) and by the tests and simulations in tests/c/arbiter (an
 * injected clock, hours in milliseconds), with the same object file. All times are ns of one clock that never goes back.
 *
 * Words: a *tenant* is one container; an *account* is a tenant on one device, with its share, its bucket of device time
 * (`tokens`, may be negative: debt) and what the tenant claims of itself. Per device at most one account is the *holder*
 * of the turn; while the holder has nothing in flight the device may be *lent* to others; an account whose turn was
 * closed and that still has work in flight is *draining*.
 *
 * The loop of whoever drives it: read the claims, then the clock; arb_claim() for what has changed, arb_decide(), then
 * publish every arb_turn() that differs from what was published (where `serial` has changed and both are open, the word
 * goes on by two). Where something was closed or became watched, read the claims again and go round without sleeping:
 * what a tenant did before it could see the change rings no bell. An account counts as drained only by an arb_claim()
 * after the arb_decide() that closed it, so its claim is given again then even where it is the same. Sleep until the
 * time that arb_decide() returned, or until a tenant rings.
 *
 * What it promises is written beside the constants in arbiter_core.h and held in tests/c/arbiter.
 */
#ifndef PARTAGE_ARBITER_H
#define PARTAGE_ARBITER_H

#include <stdbool.h>
#include <stdint.h>

#define ARB_DEVICES 64  /* of one machine */
#define ARB_TENANTS 256 /* of one machine */
#define ARB_NEVER   UINT64_MAX

struct arb; /* one machine */

/* From the policy: permille, weight 1-10000, PTG_CLASS_*, 0 (first) to 2. */
struct arb_share {
	uint32_t cores, ceiling, weight, share_class, priority;
	bool gated; /* false: launches without asking; its turn is always open and it is charged nothing */
};

/* What a tenant says of itself on a device, over all its processes; bounds-checked here, believed only to its own harm. */
struct arb_claim {
	bool wants;          /* a thread waits for the turn */
	bool busy;           /* work in flight, or a thread between gate and driver */
	bool degraded;       /* it has given us up and launches by its own bucket */
	uint64_t busy_since; /* where busy */
	uint64_t idle_since; /* end of the latest period in flight; 0: none yet */
	uint64_t flight; /* sum of the periods in flight that have ended; where it falls (a process went), nothing is
	                      * charged for that step; what is more than the time that passed counts as that time */
	uint64_t want_since; /* where it wants */
	uint64_t launches; /* so many in all, a few late; 0: not known */
	bool absurd; /* its maker says what cannot be: known to whoever read it, beside what can be seen from the above */
};

/* What is to be published of an account. */
struct arb_turn {
	bool open; /* may launch */
	bool watched; /* PTG_TURN_WATCHED */
	bool brief; /* PTG_TURN_SHORT */
	uint64_t serial; /* of this turn; +1 each time it opens */
	uint64_t deadline; /* where open */
	uint32_t outstanding_us;
	uint32_t fallback; /* permille */
	uint64_t charged; /* ns since the account was made */
};

/* What happened, for whoever logs or shows it. */
enum arb_event_kind {
	ARB_EVENT_UNDRAINED, /* a closed turn was not drained within the guard: others go on beside it */
	ARB_EVENT_LIAR, /* arb_audit() found more use than was charged */
	ARB_EVENT_ABSURD, /* a claim that cannot be: its maker is distrusted for a while */
};
struct arb_event {
	enum arb_event_kind kind;
	int tenant, device;
	uint64_t at, amount; /* ns */
};

struct arb *arb_new(void); /* NULL: no memory */
void arb_free(struct arb *arb);
/* Index of the device, which is added where it is new; -1: ARB_DEVICES are there. */
int arb_device(struct arb *arb, const char *uuid);
int arb_tenant(struct arb *arb); /* a new tenant; -1: ARB_TENANTS are there */
void arb_tenant_gone(struct arb *arb, uint64_t now, int tenant);
/* The account's share, from now on; NULL: it has none there any more. May change at any time, also while it holds. */
void arb_share(struct arb *arb, uint64_t now, int tenant, int device, const struct arb_share *share);
void arb_claim(struct arb *arb, uint64_t now, int tenant, int device, const struct arb_claim *claim);
/* The device was busy for `busy` ns more with the account's work than was charged to it (NVML): it repays. */
void arb_audit(struct arb *arb, uint64_t now, int tenant, int device, uint64_t busy);
/* Decide; returns when to be called again at the latest, ARB_NEVER where only a tenant can make something happen. */
uint64_t arb_decide(struct arb *arb, uint64_t now);
const struct arb_turn *arb_turn(const struct arb *arb, int tenant, int device); /* NULL: no account */
bool arb_event(struct arb *arb, struct arb_event *event); /* the oldest one not yet taken; false: none */

#endif
