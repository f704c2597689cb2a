/* bucket.c: what an account may use: device time saved, owed and used by weight, and the right that follows from it.
 *
 * Two buckets in ns of device time, filled at `cores` and at `ceiling` of the time that passes; work takes from them and
 * may run them into debt, so that a launch of 80 ms is repaid, not forgiven. Surplus counts as virtual time instead
 * (use divided by weight). Called by charge.c, choice.c, decide.c and arbiter.c; all of it is integer arithmetic whose
 * steps are bounded (ARB_STEP), so that nothing overflows in years.
 */
#include "arbiter_core.h"

static uint32_t clip(uint32_t value, uint32_t least, uint32_t most)
{
	return value < least ? least : value > most ? most : value;
}

static bool at_work(const struct arb_account *a)
{
	return a->turn.open || a->claim.wants || arb_in_flight(a);
}

/* Permille at which it repays what an audit found. */
static uint32_t repays_at(const struct arb_account *a)
{
	uint32_t part = 1000 / (uint32_t)a->device->accounts;

	return a->share.cores ? a->share.cores : part ? part : 1;
}

/* `rate` permille of `step` more, up to what may be saved. */
static int64_t filled(int64_t tokens, uint32_t rate, uint64_t step, uint64_t saved)
{
	int64_t cap = (int64_t)arb_most(saved * rate, ARB_QUANTUM * 1000);

	tokens += (int64_t)(step * rate);
	return tokens < cap ? tokens : cap;
}

void arb_refill(struct arb_account *a, uint64_t step)
{
	const uint32_t cores = a->share.cores;

	if (a->owed) {
		const uint64_t gain = step * repays_at(a) / 1000;

		a->owed -= arb_least(a->owed, gain);
		return;
	}
	if (cores)
		a->tokens = filled(a->tokens, cores, step, at_work(a) ? ARB_CAP_WAITING : ARB_CAP_IDLE);
	if (a->share.ceiling < 1000)
		a->ceiling_tokens = filled(a->ceiling_tokens, a->share.ceiling, step, ARB_CAP_IDLE);
	/* Who does nothing saves no virtual time, and stays comparable however long that lasts. */
	if (!at_work(a) && (int64_t)(a->device->vfloor - a->vtime) > 0)
		a->vtime = a->device->vfloor;
}

static int64_t drawn(int64_t tokens, uint64_t ns)
{
	const int64_t floor = -(int64_t)(ARB_DEBT * 1000);

	tokens -= (int64_t)(ns * 1000);
	return tokens > floor ? tokens : floor;
}

void arb_pay(struct arb_account *a, uint64_t ns)
{
	if (a->kind == ARB_RIGHT_GUARANTEED)
		a->tokens = drawn(a->tokens, ns);
	else
		a->vtime += ns * 1000 / a->share.weight;
	a->ceiling_tokens = drawn(a->ceiling_tokens, ns);
	a->spent += ns;
	a->turn.charged += ns;
}

void arb_set_share(struct arb_account *a, const struct arb_share *share)
{
	const uint32_t before = a->share.cores;
	struct arb_share *s = &a->share;

	*s = *share;
	s->cores = clip(s->cores, 0, 1000);
	s->ceiling = clip(s->ceiling, s->cores ? s->cores : 1, 1000);
	s->weight = clip(s->weight, 1, 10000);
	s->share_class = clip(s->share_class, PTG_CLASS_FIXED, PTG_CLASS_BEST_EFFORT);
	s->priority = clip(s->priority, 0, 2);
	/* What is saved stays the same span of waiting; what is owed stays the same device time. */
	if (before && a->tokens > 0)
		a->tokens = a->tokens * s->cores / before;
	if (s->cores && !before)
		a->tokens = 1;
}

/* What its buckets give it a right to. */
static enum arb_right entitled(const struct arb_account *a, uint64_t now)
{
	const struct arb_share *s = &a->share;

	if (a->owed || a->missed_until > now)
		return ARB_RIGHT_NONE;
	if (a->undrained && !a->joins) /* one that joins may be waiting for its like on another device */
		return ARB_RIGHT_NONE;
	if (s->share_class == PTG_CLASS_FIXED)
		return s->cores && a->tokens > 0 ? ARB_RIGHT_GUARANTEED : ARB_RIGHT_NONE;
	if (s->ceiling < 1000 && a->ceiling_tokens <= 0)
		return ARB_RIGHT_NONE;
	return s->cores && a->tokens > 0 ? ARB_RIGHT_GUARANTEED : ARB_RIGHT_SURPLUS;
}

void arb_judge(struct arb_account *a, uint64_t now)
{
	a->right = a->entitled = entitled(a, now);
	/* A turn by guarantee goes on to the end of its quantum, into debt. */
	if (a->turn.open && a->kind == ARB_RIGHT_GUARANTEED && a->spent < a->device->quantum && !a->owed)
		a->right = ARB_RIGHT_GUARANTEED;
}

/* When `tokens` are more than none, at `rate` permille. */
static uint64_t positive_at(int64_t tokens, uint32_t rate, uint64_t now)
{
	if (tokens > 0)
		return now;
	return rate ? now + (uint64_t)(-tokens) / rate + 1 : ARB_NEVER;
}

/* When it will have a right to a turn, if nothing is charged to it until then. */
uint64_t arb_has_right_at(const struct arb_account *a, uint64_t now)
{
	const struct arb_share *s = &a->share;
	uint64_t at = now;

	if (a->undrained)
		return ARB_NEVER;
	if (a->owed) /* its buckets are not filled meanwhile: it is asked again then */
		return now + a->owed * 1000 / repays_at(a) + 1;
	if (s->share_class == PTG_CLASS_FIXED)
		at = positive_at(a->tokens, s->cores, now);
	else if (s->ceiling < 1000)
		at = positive_at(a->ceiling_tokens, s->ceiling, now);
	return arb_most(at, a->missed_until);
}

/* Who becomes active starts at the least virtual time of those that are. */
void arb_raise_floor(struct arb_device_state *d)
{
	const struct arb_account *least = NULL;

	for (int i = 0; i < d->accounts; i++) {
		const struct arb_account *a = d->account[i];

		if (a->share.gated && a->share.share_class != PTG_CLASS_FIXED && at_work(a) && !a->undrained &&
		    !a->owed && (!least || (int64_t)(least->vtime - a->vtime) > 0))
			least = a;
	}
	if (least && (int64_t)(least->vtime - d->vfloor) > 0)
		d->vfloor = least->vtime;
}

/* Where all that compete by guarantee have been kept waiting for long, more was promised than hand-overs leave: all give
 * up the same span of waiting, else the caps would, and take from those alone who wait while others have their turn. */
void arb_level(struct arb_device_state *d)
{
	for (uint32_t priority = 0; priority <= 2; priority++) {
		int64_t least = INT64_MAX;
		int members = 0;

		for (int i = 0; i < d->accounts; i++) {
			const struct arb_account *a = d->account[i];

			if (!a->share.gated || !a->share.cores || a->share.priority != priority || !at_work(a) ||
			    a->undrained || a->owed)
				continue;
			members++;
			if (a->tokens / (int64_t)a->share.cores < least)
				least = a->tokens / (int64_t)a->share.cores;
		}
		if (members < 2 || least <= (int64_t)ARB_CAP_IDLE)
			continue;
		for (int i = 0; i < d->accounts; i++) {
			struct arb_account *a = d->account[i];

			if (a->share.gated && a->share.priority == priority && at_work(a) && !a->undrained && !a->owed)
				a->tokens -= (least - (int64_t)ARB_CAP_IDLE) * (int64_t)a->share.cores;
		}
	}
}

/* What each may use by its own bucket when no arbiter answers: the guarantees, and the rest by weight. */
void arb_set_fallbacks(struct arb_device_state *d)
{
	uint64_t cores = 0, weights = 0;

	for (int i = 0; i < d->accounts; i++) {
		const struct arb_share *s = &d->account[i]->share;

		cores += s->cores;
		weights += s->share_class == PTG_CLASS_FIXED ? 0 : s->weight;
	}
	for (int i = 0; i < d->accounts; i++) {
		struct arb_account *a = d->account[i];
		uint64_t rate = a->share.cores;

		if (a->share.share_class != PTG_CLASS_FIXED && cores < 1000)
			rate += (1000 - cores) * a->share.weight / weights;
		a->turn.fallback = clip((uint32_t)rate, 10, a->share.ceiling > 10 ? a->share.ceiling : 10);
	}
}
