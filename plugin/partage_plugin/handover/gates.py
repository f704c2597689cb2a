"""Who has to take turns, on all cards of the node: the rule of `partage.run.gates`, kept in memory.

Asked whenever a hand-over is opened, changed or closed; only policies in which something changes are written, so that
the hundredth container costs as much as the first. What can go wrong: a policy that cannot be written (whoever hands it
over hears of it and lets nobody in; one that runs keeps the gates it had until `mend` could write them, for which the
agent asks every second), a ledger that its tenant spoilt (the arbiter sees the change later).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import structlog

from partage.model import LedgerError, PolicyError
from partage.run.gates import demands
from partage.shm import Policy, PolicyDevice, PolicyFile, ring_turn_bell

if TYPE_CHECKING:
    from collections.abc import Iterable

    from partage.run.handover import HandOver

_WHOLE_CARD = 1000  # permille

log = structlog.get_logger("partage.gates")


class Gates:
    """The open policies by hand-over name. Used from one thread."""

    def __init__(self) -> None:
        self._there: dict[str, tuple[HandOver, PolicyFile, Policy]] = {}
        self._on: dict[str, set[str]] = {}  # card -> hand-overs
        self._demanding: Counter[str] = Counter()  # card -> how many of them ask the others to take turns
        self._behind: dict[str, PolicyError] = {}  # whose gates could not be written, and why

    @property
    def behind(self) -> int:
        """How many hand-overs have other gates than they should."""
        return len(self._behind)

    def put(self, entry: HandOver, file: PolicyFile, policy: Policy) -> PolicyError | None:
        """Take a hand-over up, or its changed policy, and let it and its neighbours take turns or not.

        Return why its own gates could not be written; None where they stand.
        """
        touched = self._take_out(entry.name)
        self._there[entry.name] = (entry, file, policy)
        for share in policy.devices:
            self._on.setdefault(share.uuid, set()).add(entry.name)
            self._demanding[share.uuid] += demands(share)
            touched.add(share.uuid)
        self._decide(touched)
        return self._behind.get(entry.name)

    def drop(self, name: str) -> None:
        """Take a hand-over out; its neighbours may be free again."""
        self._decide(self._take_out(name))

    def gated(self, share: PolicyDevice) -> bool:
        """Whether the tenant of this share, which is among those counted, takes turns there."""
        others = self._demanding[share.uuid] - demands(share)
        return share.ceiling < _WHOLE_CARD or others > 0

    def _take_out(self, name: str) -> set[str]:
        before = self._there.pop(name, None)
        self._behind.pop(name, None)
        if before is None:
            return set()
        for share in before[2].devices:
            self._on[share.uuid].discard(name)
            self._demanding[share.uuid] -= demands(share)
        return {share.uuid for share in before[2].devices}

    def mend(self) -> None:
        """Try again what could not be written."""
        for name in list(self._behind):
            self._write(name)

    def _decide(self, uuids: Iterable[str]) -> None:
        for name in {name for uuid in uuids for name in self._on.get(uuid, ())}:
            self._write(name)

    def _write(self, name: str) -> None:
        """Bring one policy up to who takes turns now."""
        entry, file, policy = self._there[name]
        if all(share.gated == self.gated(share) for share in policy.devices):
            self._behind.pop(name, None)
            return
        try:
            changed = file.update(self._with_gates)
        except PolicyError as error:
            if name not in self._behind:
                log.error("a container's gates cannot be written; tried again", hand_over=name, error=str(error))
            self._behind[name] = error
            return
        if self._behind.pop(name, None) is not None:
            log.info("a container's gates stand again", hand_over=name)
        self._there[name] = (entry, file, changed)
        try:
            ring_turn_bell(entry.ledger_path)
        except LedgerError as error:
            log.info("an arbiter is not told at once", error=str(error))

    def _with_gates(self, policy: Policy) -> Policy:
        devices = tuple(replace(share, gated=self.gated(share)) for share in policy.devices)
        return replace(policy, devices=devices)
