/* The small rules of the policy core, one by one, without a simulated machine: when a turn opens and closes, what is asked
 * of the loop that drives it, what is published, what is refused, what it costs.
 */
#include <string.h>

#include "arbiter.h"
#include "check.h"
#include "partage/policy.h"

#define MS     UINT64_C(1000000)
#define SECOND UINT64_C(1000000000)

/* The core allocates by calloc() and frees by free(): counted by the linker's --wrap. */
static long allocations, living;
void *__real_calloc(size_t count, size_t size);
void __real_free(void *memory);
void *__wrap_calloc(size_t count, size_t size);
void __wrap_free(void *memory);

void *__wrap_calloc(size_t count, size_t size)
{
	allocations++;
	living++;
	return __real_calloc(count, size);
}

void __wrap_free(void *memory)
{
	living -= memory != NULL;
	__real_free(memory);
}

static const struct arb_share fixed_500 = {500, 500, 100, PTG_CLASS_FIXED, 1, true};
static const struct arb_share burst_500 = {500, 1000, 100, PTG_CLASS_BURST, 1, true};
static const struct arb_share best_effort = {0, 1000, 100, PTG_CLASS_BEST_EFFORT, 1, true};

struct world {
	struct arb *arb;
	uint64_t now, next;
	int device;
};

static struct world world_new(void)
{
	struct world w = {.arb = arb_new(), .now = SECOND};

	CHECK(w.arb, "no memory");
	w.device = arb_device(w.arb, "GPU-0");
	return w;
}

static int join(struct world *w, const struct arb_share *share)
{
	const int tenant = arb_tenant(w->arb);

	CHECK(tenant >= 0, "a tenant");
	arb_share(w->arb, w->now, tenant, w->device, share);
	return tenant;
}

static void claim(struct world *w, int tenant, bool wants, bool busy)
{
	const struct arb_turn *turn = arb_turn(w->arb, tenant, w->device);
	const struct arb_claim c = {.wants = wants,
	                            .busy = busy,
	                            .busy_since = busy ? w->now : 0,
	                            .idle_since = busy || !turn->serial ? 0 : w->now,
	                            .want_since = wants ? w->now : 0};

	arb_claim(w->arb, w->now, tenant, w->device, &c);
}

static void decide(struct world *w, uint64_t later)
{
	w->now += later;
	w->next = arb_decide(w->arb, w->now);
}

static bool is_open(const struct world *w, int tenant)
{
	return arb_turn(w->arb, tenant, w->device)->open;
}

static void opens_at_once(void)
{
	struct world w = world_new();
	const int t = join(&w, &fixed_500);

	decide(&w, MS);
	CHECK(!is_open(&w, t) && w.next == ARB_NEVER, "who wants nothing gets nothing, and nothing is to be done");
	claim(&w, t, true, false);
	decide(&w, 0);
	CHECK(is_open(&w, t) && arb_turn(w.arb, t, w.device)->serial == 1, "who wants a free device gets it at once");
	CHECK(!arb_turn(w.arb, t, w.device)->watched && !arb_turn(w.arb, t, w.device)->brief, "alone, undisturbed");
	CHECK(arb_turn(w.arb, t, w.device)->deadline > w.now, "with a deadline ahead");
	arb_free(w.arb);
}

/* A closed turn is drained by a claim that was read afterwards, and by no other. */
static void drains_by_a_later_claim(void)
{
	struct world w = world_new();
	const int a = join(&w, &fixed_500), b = join(&w, &fixed_500);

	claim(&w, a, true, false);
	decide(&w, 0);
	claim(&w, a, false, true);
	claim(&w, b, true, false);
	for (int i = 0; i < 100 && is_open(&w, a); i++)
		decide(&w, MS);
	CHECK(!is_open(&w, a) && !is_open(&w, b), "the turn ends, the next one waits for the drain");
	decide(&w, MS);
	CHECK(!is_open(&w, b), "an older claim drains nothing");
	claim(&w, a, false, true);
	decide(&w, MS);
	CHECK(!is_open(&w, b), "nor one that says busy");
	CHECK(arb_turn(w.arb, b, w.device)->charged == 0, "who waits is charged nothing");
	claim(&w, a, false, false);
	decide(&w, MS);
	CHECK(is_open(&w, b) && !is_open(&w, a), "drained: the next one is open");
	arb_free(w.arb);
}

static void guard(void)
{
	struct world w = world_new();
	const int a = join(&w, &burst_500), b = join(&w, &burst_500);
	struct arb_event event;
	uint64_t closed;

	claim(&w, a, true, false);
	decide(&w, 0);
	claim(&w, a, false, true);
	claim(&w, b, true, false);
	while (is_open(&w, a))
		decide(&w, MS);
	closed = w.now;
	for (claim(&w, a, true, true); !is_open(&w, b); decide(&w, MS))
		CHECK(w.now - closed <= 60 * MS, "others go on after the guard");
	CHECK(w.now - closed >= 50 * MS, "and not before: %.1f ms", (double)(w.now - closed) / 1e6);
	CHECK(arb_event(w.arb, &event) && event.kind == ARB_EVENT_UNDRAINED && event.tenant == a, "which is reported");
	CHECK(!arb_event(w.arb, &event), "once");
	claim(&w, b, false, false);
	for (int i = 0; i < 500; i++)
		decide(&w, 10 * MS);
	CHECK(!is_open(&w, a), "who is not drained gets nothing, also on a free device");
	claim(&w, a, true, false);
	decide(&w, MS);
	CHECK(is_open(&w, a), "until it is");
	arb_free(w.arb);
}

static void audit(void)
{
	struct world w = world_new();
	const int t = join(&w, &burst_500);
	const uint64_t start = w.now;
	struct arb_event event;

	arb_audit(w.arb, w.now, t, w.device, 100 * MS);
	CHECK(arb_event(w.arb, &event) && event.kind == ARB_EVENT_LIAR && event.amount == 100 * MS,
	      "a lie is reported");
	CHECK(arb_turn(w.arb, t, w.device)->charged == 100 * MS, "and charged");
	claim(&w, t, true, false);
	for (decide(&w, 0); !is_open(&w, t); decide(&w, w.next - w.now))
		CHECK(w.next > w.now && w.next != ARB_NEVER, "it is said when it will be repaid");
	CHECK(w.now - start >= 200 * MS && w.now - start < 210 * MS, "100 ms at 50 %% are repaid in 200 ms, not %.1f",
	      (double)(w.now - start) / 1e6);
	arb_free(w.arb);
}

static void published(void)
{
	struct world w = world_new();
	const struct arb_share first = {300, 300, 100, PTG_CLASS_FIXED, 0, true};
	const int p0 = join(&w, &first), a = join(&w, &burst_500), b = join(&w, &best_effort);
	uint32_t sum = 0;

	claim(&w, a, true, false);
	decide(&w, 0);
	CHECK(is_open(&w, a) && arb_turn(w.arb, a, w.device)->brief, "beside a P0 turns are SHORT");
	claim(&w, a, false, true);
	claim(&w, b, true, false);
	decide(&w, MS);
	CHECK(arb_turn(w.arb, a, w.device)->watched, "and watched where somebody waits");
	claim(&w, p0, true, false);
	decide(&w, MS);
	CHECK(!is_open(&w, a), "a P0 with a claim revokes at once");
	claim(&w, a, true, false);
	decide(&w, 0);
	CHECK(is_open(&w, p0) && !arb_turn(w.arb, p0, w.device)->brief, "and is not SHORT");
	for (int t = p0; t <= b; t++)
		sum += arb_turn(w.arb, t, w.device)->fallback;
	CHECK(arb_turn(w.arb, p0, w.device)->fallback == 300 && sum <= 1000 && sum >= 990,
	      "without an arbiter: guarantees and the rest by weight, %u permille in all", sum);
	arb_free(w.arb);
}

/* Nobody competes: the turn stays while it is used, and goes without a trace when it is not. */
static void alone(void)
{
	struct world w = world_new();
	const int t = join(&w, &burst_500);

	claim(&w, t, true, false);
	decide(&w, 0);
	claim(&w, t, false, true);
	for (int i = 0; i < 100; i++) {
		decide(&w, w.next == ARB_NEVER ? SECOND : w.next - w.now);
		CHECK(is_open(&w, t) && arb_turn(w.arb, t, w.device)->deadline > w.now, "a turn that is used goes on");
	}
	CHECK(arb_turn(w.arb, t, w.device)->serial == 1, "the same one");
	claim(&w, t, false, false);
	for (int i = 0; i < 20 && w.next != ARB_NEVER; i++) {
		decide(&w, w.next - w.now);
		claim(&w, t, false, false);
	}
	decide(&w, MS);
	CHECK(w.next == ARB_NEVER && !is_open(&w, t), "one that is not ends, and nobody wakes any more");
	arb_free(w.arb);
}

/* Whoever has a turn and does nothing keeps the device from nobody, for however short or long it has done nothing. */
static void idle_holder(void)
{
	for (uint64_t pause = MS; pause < 150 * MS; pause += MS) {
		struct world w = world_new();
		const int a = join(&w, &burst_500), b = join(&w, &burst_500);
		uint64_t until;

		claim(&w, a, true, false);
		decide(&w, 0);
		claim(&w, a, false, true);
		decide(&w, MS);
		claim(&w, a, false, false);
		decide(&w, 0);
		for (until = w.now + pause; w.next < until;)
			decide(&w, w.next - w.now);
		w.now = until;
		claim(&w, b, true, false);
		decide(&w, 0);
		if (!is_open(&w, a)) { /* closed: the claims are read again */
			claim(&w, a, false, false);
			decide(&w, 0);
		}
		CHECK(is_open(&w, b), "the device stands idle for %lu ms, and who wants it has to wait", pause / MS);
		arb_free(w.arb);
	}
}

static void ungated(void)
{
	struct world w = world_new();
	struct arb_share share = best_effort;
	int t, other;

	share.gated = false;
	t = join(&w, &share);
	CHECK(is_open(&w, t), "without a gate the turn is open");
	claim(&w, t, false, true);
	decide(&w, SECOND);
	CHECK(is_open(&w, t) && !arb_turn(w.arb, t, w.device)->charged && w.next == ARB_NEVER, "and costs nothing");
	other = join(&w, &fixed_500);
	share.gated = true;
	arb_share(w.arb, w.now, t, w.device, &share);
	CHECK(!is_open(&w, t), "gated: closed");
	claim(&w, other, true, false);
	decide(&w, 0);
	CHECK(!is_open(&w, other), "what it had queued drains first");
	claim(&w, t, true, false);
	decide(&w, MS);
	CHECK(is_open(&w, other) && !is_open(&w, t), "then the guaranteed one is open");
	arb_share(w.arb, w.now, other, w.device, NULL);
	CHECK(!arb_turn(w.arb, other, w.device), "an account that is gone has no turn");
	decide(&w, MS);
	CHECK(is_open(&w, t), "and its device is free");
	arb_free(w.arb);
}

static void limits(void)
{
	struct world w = world_new();
	char uuid[PTG_UUID_SIZE];
	const struct arb_claim c = {.wants = true};

	CHECK(arb_device(w.arb, "GPU-0") == w.device, "a known device");
	for (int i = 1; i < ARB_DEVICES; i++) {
		snprintf(uuid, sizeof(uuid), "GPU-%d", ARB_DEVICES - i);
		CHECK(arb_device(w.arb, uuid) == i, "device %d", i);
	}
	CHECK(arb_device(w.arb, "GPU-more") == -1, "no more devices");
	for (int i = 0; i < ARB_TENANTS; i++)
		CHECK(arb_tenant(w.arb) == i, "tenant %d", i);
	CHECK(arb_tenant(w.arb) == -1, "no more tenants");
	arb_tenant_gone(w.arb, w.now, 7);
	CHECK(arb_tenant(w.arb) == 7, "a free place is taken again");
	arb_share(w.arb, w.now, -1, 0, &fixed_500);
	arb_share(w.arb, w.now, 0, ARB_DEVICES, &fixed_500);
	arb_claim(w.arb, w.now, ARB_TENANTS, 0, &c);
	arb_audit(w.arb, w.now, 0, 0, SECOND);
	arb_tenant_gone(w.arb, w.now, -1);
	CHECK(!arb_turn(w.arb, 0, 0) && !arb_turn(w.arb, 0, -1), "nothing is there");
	decide(&w, MS);
	arb_free(w.arb);
}

/* Tenants that come, work and go leave nothing, and a decision allocates nothing. */
static void no_leak(void)
{
	struct world w = world_new();
	const int stays = join(&w, &best_effort);
	const long before = living;
	long made;

	for (int i = 0; i < 10000; i++) {
		const int t = join(&w, i & 1 ? &fixed_500 : &burst_500);

		made = allocations;
		claim(&w, stays, true, i & 2);
		claim(&w, t, true, i & 4);
		decide(&w, MS);
		claim(&w, t, i & 8, i & 16);
		decide(&w, MS);
		CHECK(allocations == made, "a decision allocates nothing");
		arb_tenant_gone(w.arb, w.now, t);
	}
	CHECK(living == before, "%ld blocks after 10,000 tenants, %ld before", living, before);
	arb_free(w.arb);
}

/* Two years of work of the least weight: virtual time wraps; who comes then is neither favoured nor starved. */
static void long_run(void)
{
	struct world w = world_new();
	struct arb_share light = best_effort;
	uint64_t charged[2];
	bool opened[2] = {true, true};
	int a, b;

	light.weight = 1;
	w.now = UINT64_C(1) << 62;
	a = join(&w, &light);
	b = join(&w, &light);
	claim(&w, a, true, false);
	decide(&w, 0);
	claim(&w, a, false, true);
	for (int i = 0; i < 6000000; i++) {
		decide(&w, 10 * SECOND);
		if (!is_open(&w, a)) { /* later than its deadline: it asks again */
			claim(&w, a, true, false);
			decide(&w, 0);
			claim(&w, a, false, true);
		}
	}
	CHECK(arb_turn(w.arb, a, w.device)->charged > UINT64_C(50000000) * SECOND, "%.0f s of work",
	      (double)arb_turn(w.arb, a, w.device)->charged / 1e9);
	for (int i = 0; i < 10; i++) /* steps as they are */
		decide(&w, MS);
	charged[0] = arb_turn(w.arb, a, w.device)->charged;
	for (int i = 0; i < 10000; i++) {
		const int t[2] = {a, b};

		for (int j = 0; j < 2; j++) {
			const bool open = is_open(&w, t[j]);

			if (open != opened[j])
				claim(&w, t[j], !open, open);
			opened[j] = open;
		}
		decide(&w, MS / 2);
	}
	charged[0] = arb_turn(w.arb, a, w.device)->charged - charged[0];
	charged[1] = arb_turn(w.arb, b, w.device)->charged;
	CHECK(charged[0] > SECOND && charged[1] > SECOND, "of 5 s: %.0f and %.0f ms", (double)charged[0] / 1e6,
	      (double)charged[1] / 1e6);
	arb_free(w.arb);
}

/* A claim with all its times: in flight since then (0: not), when the latest period ended, and how long all of them were. */
static void says(struct world *w, int tenant, uint64_t since, uint64_t idle, uint64_t flight)
{
	const struct arb_claim c = {.busy = since != 0, .busy_since = since, .idle_since = idle, .flight = flight};

	arb_claim(w->arb, w->now, tenant, w->device, &c);
}

/* Two have work in flight, and that of the first ends between two looks: it pays for it none the less, not the second. */
static void first_pays_to_its_end(void)
{
	struct world w = world_new();
	const int a = join(&w, &burst_500), b = join(&w, &burst_500);
	uint64_t began, paid;

	claim(&w, a, true, false);
	decide(&w, 0);
	began = w.now;
	says(&w, a, began, 0, 0);
	claim(&w, b, true, false);
	while (!is_open(&w, b)) { /* beyond the guard */
		decide(&w, MS);
		says(&w, a, began, 0, 0);
	}
	says(&w, b, w.now, 0, 0);
	decide(&w, MS / 5);
	paid = arb_turn(w.arb, b, w.device)->charged;
	w.now += MS * 3 / 5;
	says(&w, a, 0, w.now - MS / 10, w.now - MS / 10 - began);
	says(&w, b, w.now - MS * 4 / 5, 0, 0);
	decide(&w, 0);
	paid = arb_turn(w.arb, b, w.device)->charged - paid;
	CHECK(paid <= MS / 10, "who came second paid %.2f ms, 0.1 of which were its own", (double)paid / 1e6);
	arb_free(w.arb);
}

/* Two of 1 ms of work and 1 ms of pause, one after the other, are open beside each other: neither has to ring, and the loop
 * looks at them now and then, until a third comes. */
static void together(void)
{
	struct world w = world_new();
	const int t[3] = {join(&w, &best_effort), join(&w, &best_effort), join(&w, &best_effort)};
	uint64_t flight[2] = {0, 0}, idle[2] = {0, 0};

	for (int i = 0; i < 200; i++) {
		const int at = i < 20 ? i / 10 : i % 2; /* each alone first: so its pauses are seen */
		const uint64_t began = w.now;

		if (!is_open(&w, t[at]))
			claim(&w, t[at], true, false);
		decide(&w, 0);
		CHECK(is_open(&w, t[at]), "round %d: who wants a device that stands idle has it", i);
		says(&w, t[at], began, idle[at], flight[at]);
		decide(&w, 0);
		decide(&w, MS);
		flight[at] += MS;
		idle[at] = w.now;
		says(&w, t[at], 0, idle[at], flight[at]);
		decide(&w, 0);
		decide(&w, i < 20 ? MS : MS / 20);
	}
	for (int i = 0; i < 2; i++)
		CHECK(is_open(&w, t[i]) && !arb_turn(w.arb, t[i], w.device)->watched, "tenant %d rings for nobody", i);
	CHECK(w.next <= w.now + 4 * MS, "nobody rings, and nobody looks for %.1f ms", (double)(w.next - w.now) / 1e6);
	claim(&w, t[2], true, false);
	decide(&w, 0);
	for (int i = 0; i < 2; i++)
		CHECK(!is_open(&w, t[i]) || arb_turn(w.arb, t[i], w.device)->watched, "beside a third they ring");
	for (int i = 0; i < 50; i++) {
		for (int k = 0; k < 2; k++)
			says(&w, t[k], 0, idle[k], flight[k]);
		claim(&w, t[2], false, false);
		decide(&w, MS);
	}
	CHECK(w.next == ARB_NEVER || w.next > w.now + 2 * MS, "nobody is at work, and somebody looks all the same");
	arb_free(w.arb);
}

int main(void)
{
	opens_at_once();
	drains_by_a_later_claim();
	guard();
	audit();
	published();
	alone();
	idle_holder();
	ungated();
	first_pays_to_its_end();
	together();
	limits();
	no_leak();
	long_run();
	CHECK(living == 0, "%ld blocks are left", living);
	return 0;
}
