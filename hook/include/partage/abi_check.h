/* abi_check.h: compile-time proof that the shared structures lie where every reader expects them.
 * Included once by each C library that maps them; never by cffi. */
#ifndef PARTAGE_ABI_CHECK_H
#define PARTAGE_ABI_CHECK_H

#include <assert.h>
#include <stddef.h>

#include "partage/ledger.h"
#include "partage/policy.h"
#include "partage/turns.h"

_Static_assert(offsetof(struct ptg_policy, seq) == 16, "policy.seq");
_Static_assert(offsetof(struct ptg_policy, generation) == 24, "policy.generation");
_Static_assert(offsetof(struct ptg_policy, ndev) == 52, "policy.ndev");
_Static_assert(offsetof(struct ptg_policy, gated) == 56, "policy.gated");
_Static_assert(offsetof(struct ptg_policy, device) == 64, "policy.device");
_Static_assert(sizeof(struct ptg_policy_device) == 128, "policy device");
_Static_assert(offsetof(struct ptg_policy_device, turn) == 104, "policy device.turn");
_Static_assert(offsetof(struct ptg_policy_device, audit_ns) == 120, "policy device.audit_ns");
_Static_assert(sizeof(struct ptg_policy) == 64 + 16 * 128, "policy");
_Static_assert(sizeof(struct ptg_turn) == 64, "turn");
_Static_assert(sizeof(struct ptg_turns) == 64 + 16 * 64, "turns");
_Static_assert(offsetof(struct ptg_ledger, doorbell) == 64, "ledger.doorbell");
_Static_assert(offsetof(struct ptg_ledger, turn_bell) == 128, "ledger.turn_bell");
_Static_assert(offsetof(struct ptg_ledger, reclaimed) == 192, "ledger.reclaimed");
_Static_assert(offsetof(struct ptg_ledger, hint) == 196, "ledger.hint");
_Static_assert(offsetof(struct ptg_ledger, high) == 200, "ledger.high");
_Static_assert(offsetof(struct ptg_ledger, uuid) == 1024, "ledger.uuid");
_Static_assert(offsetof(struct ptg_ledger, device) == 4096, "ledger.device");
_Static_assert(sizeof(struct ptg_ledger_device) == 128, "ledger device");
_Static_assert(offsetof(struct ptg_ledger, slot) == 8192, "ledger.slot");
_Static_assert(sizeof(struct ptg_slot) == 1024, "slot");
_Static_assert(sizeof(struct ptg_slot_turn) == 64, "slot turn");
_Static_assert(offsetof(struct ptg_ledger, turn) == 8192 + 1024 * 1024, "ledger.turn");
_Static_assert(sizeof(struct ptg_ledger) == 8192 + 1024 * 1024 + 16 * 1024 * 64, "ledger");

#endif
