/* The counting protocol against an oracle: random changes, each stopped at a random instruction as a kill would stop it,
 * and a counter that goes all the way round. */
#include "world.h"

#include <string.h>

static struct ptg_ledger ledger;
static uint64_t random_state = 88172645463325252u;

static uint32_t dice(uint32_t sides)
{
	random_state ^= random_state << 13;
	random_state ^= random_state >> 7;
	random_state ^= random_state << 17;
	return (uint32_t)(random_state % sides);
}

static uint64_t sum(unsigned device)
{
	uint64_t total = 0;
	ptg_complete(&ledger, device, ptg_load(&ledger.device[device].word));
	for (unsigned i = 0; i < PTG_SLOTS; i++)
		total += ptg_word_used(ledger.slot[i].device[device].done);
	return total;
}

static uint32_t used(unsigned device)
{
	return ptg_word_used(ledger.device[device].word);
}

/* The owner's change by hand, ended behind step `steps`: 0 nothing, 1 proposed, 2 committed but not completed, 3 completed
 * but not marked so. */
static bool stopped_change(unsigned device, unsigned slot, int32_t delta, int steps)
{
	uint64_t word = ledger.device[device].word;
	struct ptg_slot_device *line = &ledger.slot[slot].device[device];
	ptg_complete(&ledger, device, word);
	uint32_t seq = (ptg_word_seq(word) + 1) & PTG_SEQ_MASK;
	uint64_t after = ptg_word(ptg_word_used(word) + (uint32_t)delta, slot, seq);
	if (ptg_word_seq(line->done) == seq)
		line->done = ptg_word(ptg_word_used(line->done), 0, ptg_word_seq(word));
	if (ledger.device[device].completed == after)
		ledger.device[device].completed = word;
	if (steps >= 1)
		line->next = ptg_word(ptg_word_used(line->done) + (uint32_t)delta, 0, seq);
	if (steps >= 2)
		ledger.device[device].word = after;
	if (steps >= 3)
		line->done = line->next;
	return steps >= 2;
}

static void random_changes(void)
{
	enum { SLOTS = 12, DEVICES = 2, ROUNDS = 2000000 };
	static uint64_t model[DEVICES][SLOTS];
	for (int round = 0; round < ROUNDS; round++) {
		unsigned device = dice(DEVICES), slot = dice(SLOTS);
		uint32_t units = dice(1000);
		uint64_t *mine = &model[device][slot];
		uint64_t total = 0;
		for (unsigned i = 0; i < SLOTS; i++)
			total += model[device][i];
		struct ptg_bound bound = {.limit = UINT64_C(3000) * PTG_UNIT, .overhead = (int64_t)dice(3) - 1};
		switch (dice(4)) {
		case 0: {
			bool expected = ptg_used_bytes((uint32_t)total, bound.overhead) + (uint64_t)units * PTG_UNIT <=
			                bound.limit;
			bool got = ptg_add(&ledger, device, slot, units, &bound);
			CHECK(got == expected, "round %d: %u more on %llu: %d", round, units, (unsigned long long)total,
			      got);
			*mine += got ? units : 0;
			break;
		}
		case 1: {
			uint32_t taken = ptg_subtract(&ledger, device, slot, units);
			CHECK(taken == (units < *mine ? units : *mine), "round %d: took %u of %llu", round, taken,
			      (unsigned long long)*mine);
			*mine -= taken;
			break;
		}
		case 2:
			if (total + units < 100000 && stopped_change(device, slot, (int32_t)units, (int)dice(4)))
				*mine += units;
			break;
		case 3:
			if (*mine >= units && stopped_change(device, slot, -(int32_t)units, (int)dice(4)))
				*mine -= units;
			break;
		}
		total = 0;
		for (unsigned i = 0; i < SLOTS; i++)
			total += model[device][i];
		CHECK(used(device) == total, "round %d: the word says %u, the model %llu", round, used(device),
		      (unsigned long long)total);
		if (round % 64 == 0)
			for (unsigned i = 0; i < SLOTS; i++) {
				CHECK(sum(device) == total, "round %d: the slots' sum is not the word", round);
				CHECK(ptg_word_used(ledger.slot[i].device[device].done) == model[device][i],
				      "round %d: slot %u has %u, the model %llu", round, i,
				      ptg_word_used(ledger.slot[i].device[device].done),
				      (unsigned long long)model[device][i]);
			}
	}
}

/* A slot whose last change was exactly one turn of the counter ago must not take its old number for the new one's
 * completion. */
static void whole_turn(void)
{
	memset(&ledger, 0, sizeof ledger);
	CHECK(ptg_add(&ledger, 0, 5, 7, NULL), "add");
	uint32_t number = ptg_word_seq(ledger.device[0].word);
	for (uint32_t i = 0; i < PTG_SEQ_MASK; i++)
		CHECK(ptg_add(&ledger, 0, 6, i & 1, NULL), "add %u", i);
	CHECK(((ptg_word_seq(ledger.device[0].word) + 1) & PTG_SEQ_MASK) == number, "not a whole turn");
	uint32_t others = ptg_word_used(ledger.slot[6].device[0].done);
	CHECK(stopped_change(0, 5, 100, 2), "change");
	CHECK(ptg_add(&ledger, 0, 6, 1, NULL), "the next comer");
	CHECK(ptg_word_used(ledger.slot[5].device[0].done) == 107, "slot 5 has %u of 107",
	      ptg_word_used(ledger.slot[5].device[0].done));
	CHECK(sum(0) == used(0) && used(0) == 107 + others + 1, "word %u, slots %llu", used(0),
	      (unsigned long long)sum(0));
}

static void saturation(void)
{
	memset(&ledger, 0, sizeof ledger);
	CHECK(ptg_units(0) == 0 && ptg_units(1) == 1 && ptg_units(4096) == 1 && ptg_units(4097) == 2, "rounding up");
	CHECK(ptg_units(UINT64_MAX) == UINT32_MAX, "the most");
	CHECK(ptg_add(&ledger, 0, 1, UINT32_MAX - 5, NULL) && ptg_add(&ledger, 0, 2, 100, NULL), "no bound");
	CHECK(used(0) == UINT32_MAX && sum(0) == UINT32_MAX, "word %u, slots %llu", used(0),
	      (unsigned long long)sum(0));
	struct ptg_bound none = {.limit = UINT64_MAX};
	CHECK(!ptg_add(&ledger, 0, 3, 1, &none), "past what the word holds");
	CHECK(ptg_subtract(&ledger, 0, 2, UINT32_MAX) == 5, "no more than the slot has");
	ledger.device[0].word = ptg_word(3, 2, ptg_word_seq(ledger.device[0].word)); /* scribbled on */
	CHECK(ptg_subtract(&ledger, 0, 1, 1000) == 1000 && used(0) == 0, "below zero: %u", used(0));

	struct ptg_bound bound = {.limit = 10 * PTG_UNIT, .overhead = INT64_MAX};
	CHECK(!ptg_fits(0, 1, &bound), "an overhead past the limit");
	bound.overhead = INT64_MIN;
	CHECK(ptg_fits(9, 10, &bound) && !ptg_fits(9, 11, &bound), "an overhead below all that is used: used is 0");
	bound.overhead = -5 * PTG_UNIT;
	CHECK(ptg_fits(12, 3, &bound) && !ptg_fits(12, 4, &bound), "12 - 5 + 3 is 10");
	bound = (struct ptg_bound){.limit = PTG_UNIT, .first_free = true};
	CHECK(ptg_fits(0, 1000, &bound) && !ptg_fits(1, 1, &bound), "only the first is free");
}

int main(void)
{
	random_changes();
	whole_turn();
	saturation();
	return 0;
}
