"""Who has to take turns: decided for all programs of the cards together, whenever one comes, goes, or is resized.

A program takes turns on a card (is *gated*) where its own ceiling is below the whole card, or where another program on
the card has a guarantee or such a ceiling: one that takes no turns would take the guarantee away. All others launch
without asking, at no cost. The decision stands in each policy, and the arbiter is told by the ledger's bell.
Callers hold the registry's lock. What can go wrong: a policy that cannot be read (what it promises is unknown, so its
neighbours are gated, with a warning) or a ledger that its tenant spoilt (the arbiter sees it when it looks next).
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING

import structlog

from partage.model import LedgerError, PolicyError
from partage.run import handover
from partage.shm import Policy, PolicyDevice, PolicyFile, ring_turn_bell

if TYPE_CHECKING:
    from pathlib import Path

    from partage.run.handover import HandOver

_WHOLE_CARD = 1000  # permille

log = structlog.get_logger("partage.gates")


def demands(share: PolicyDevice) -> bool:
    """Whether others on the card have to take turns beside this share."""
    return share.cores > 0 or share.ceiling < _WHOLE_CARD


def gated(policy: Policy, others: list[Policy]) -> Policy:
    """Return `policy` with each device gated as the shares of `others` and its own ask for."""
    beside = {share.uuid for other in others for share in other.devices if demands(share)}
    return replace(
        policy,
        devices=tuple(
            replace(share, gated=share.ceiling < _WHOLE_CARD or share.uuid in beside) for share in policy.devices
        ),
    )


def decide(root: Path) -> bool:
    """Write who takes turns into the policies of all living hand-overs; return whether anybody does."""
    policies: dict[Path, Policy] = {}
    unknown = False
    entries = handover.living([root])
    for entry in entries:
        try:
            policies[entry.path] = entry.policy()
        except PolicyError as error:
            if not entry.policy_path.exists():
                continue  # it has just ended
            log.warning("what a neighbour was promised is unknown: all others take turns", error=str(error))
            unknown = True
    anybody = False
    for entry in entries:
        if entry.path not in policies:
            continue
        others = [policy for path, policy in policies.items() if path != entry.path]
        anybody |= _apply(entry, others, unknown=unknown)
    return anybody


def _apply(entry: HandOver, others: list[Policy], *, unknown: bool) -> bool:
    """Write one hand-over's gates and ring its bell; return whether it takes turns anywhere."""

    def change(policy: Policy) -> Policy:
        if unknown:
            return replace(policy, devices=tuple(replace(share, gated=True) for share in policy.devices))
        return gated(policy, others)

    try:
        with contextlib.closing(PolicyFile.open(entry.policy_path)) as file:
            policy = file.update(change)
    except PolicyError as error:
        if entry.policy_path.exists():
            log.warning("a program's gates cannot be written", error=str(error))
        return False
    try:
        ring_turn_bell(entry.ledger_path)
    except LedgerError as error:
        log.info("an arbiter is not told at once", error=str(error))
    return any(share.gated for share in policy.devices)
