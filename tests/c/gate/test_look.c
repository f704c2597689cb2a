/* When work in flight is looked at again: often enough that a kernel which is shorter than it was is found to be over soon
 * after it is, and seldom enough that looking costs little. No driver, no clock. */
#include "check.h"
#include "gate_core.h"

#define MS UINT64_C(1000000)

static const struct gate_device began = {.seen_ns = 1000 * MS};

/* Looks until a kernel of `ns` is over of which `expected` ns are expected; returns how late that is noticed. */
static uint64_t late(uint64_t expected, uint64_t ns, unsigned *looks)
{
	uint64_t now = began.seen_ns;
	for (*looks = 0; now < began.seen_ns + ns; ++*looks) {
		uint64_t next = gate_look_at(&began, began.seen_ns + expected, now);
		CHECK(next >= now + GATE_POLL_NS, "looked at again after %llu ns", (unsigned long long)(next - now));
		now = next;
	}
	return now - began.seen_ns - ns;
}

int main(void)
{
	static const uint64_t kernel[] = {10000, 200000, MS, 5 * MS, 20 * MS, 80 * MS, 3000 * MS};
	enum { KERNELS = sizeof(kernel) / sizeof(kernel[0]) };
	unsigned looks;
	for (unsigned i = 0; i < KERNELS; i++)
		for (unsigned k = 0; k < KERNELS; k++) {
			uint64_t after = late(kernel[i], kernel[k], &looks);
			CHECK(after <= GATE_TICK_NS && (after <= kernel[k] || after <= GATE_POLL_NS),
			      "%llu us, %llu expected: noticed %llu us late", (unsigned long long)kernel[k] / 1000,
			      (unsigned long long)kernel[i] / 1000, (unsigned long long)after / 1000);
			CHECK(looks <= 8 + kernel[k] / GATE_TICK_NS, "%llu us, %llu expected: %u looks",
			      (unsigned long long)kernel[k] / 1000, (unsigned long long)kernel[i] / 1000, looks);
		}
	for (unsigned i = 0; i < KERNELS; i++)
		CHECK(late(kernel[i], kernel[i], &looks) <= GATE_POLL_NS, "%llu us, as expected: not noticed on time",
		      (unsigned long long)kernel[i] / 1000);
	return 0;
}
