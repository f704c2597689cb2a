"""Pods for which nobody may go now, and when room is planned for them again.

A disruption budget is the cluster's word at this moment: it may allow more when a pod has become ready elsewhere. So
a pod whose plan one has refused is planned for again after a wait that doubles each time, and a pod for which there was
no plan at all as soon as some budget allows more; never twice within `APART_S`, whatever budgets do. Owned by the
evictor, which looks every few seconds who is due. Bounded by `KNOWN_MAX`; whom that leaves out kube-scheduler brings
again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from partage.kube import Clock
    from partage.model.ask import PodAsk
    from partage.model.pod import PodView

APART_S: Final = 5.0
WAIT_S: Final = 5.0  # the first
WAIT_MAX_S: Final = 300.0
KNOWN_MAX: Final = 1000

Wanted = tuple["PodView", "PodAsk", tuple[str, ...] | None]  # who wants room, and on which nodes; None: on any


@dataclass(slots=True)
class _Waiting:
    wanted: Wanted
    tried_at: float
    due: float = math.inf
    refusals: int = 0


class Later:
    """All such pods of one term; owned by one event loop."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiting: dict[str, _Waiting] = {}

    def refused(self, wanted: Wanted) -> float:
        """Take note that a budget kept a victim from going; return for how many seconds that is not tried again."""
        waiting = self._note(wanted)
        waiting.refusals += 1
        wait = min(WAIT_S * 2.0 ** (waiting.refusals - 1), WAIT_MAX_S)
        waiting.due = waiting.tried_at + wait
        return wait

    def in_vain(self, wanted: Wanted) -> None:
        """Take note that there is no plan for a pod; where one was refused before, its time stays."""
        self._note(wanted)

    def put_off(self, wanted: Wanted) -> None:
        """Take note that one like this pod was planned for in vain a moment ago; what is new since is seen once."""
        if wanted[1].uid not in self._waiting:
            self._note(wanted).due = self._clock.now() + APART_S

    def _note(self, wanted: Wanted) -> _Waiting:
        uid, now = wanted[1].uid, self._clock.now()
        waiting = self._waiting.get(uid) or _Waiting(wanted, now)
        waiting.wanted, waiting.tried_at = wanted, now
        if len(self._waiting) < KNOWN_MAX:
            self._waiting.setdefault(uid, waiting)
        return waiting

    def forget(self, uid: str) -> None:
        """Forget a pod that has its place, or is gone."""
        self._waiting.pop(uid, None)

    def budget_grew(self) -> None:
        """Take note that some budget allows more than before."""
        for waiting in self._waiting.values():
            waiting.due = min(waiting.due, waiting.tried_at + APART_S)

    def take_due(self) -> list[Wanted]:
        """Return who is to be planned for now; each once."""
        now, found = self._clock.now(), []
        for waiting in self._waiting.values():
            if waiting.due <= now:
                waiting.due = math.inf
                found.append(waiting.wanted)
        return found
