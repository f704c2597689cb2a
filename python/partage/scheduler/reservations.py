"""What was promised to pods that are not bound yet, and until when.

Made by `prioritize` (or by `filter` where one node fits), given back when time is up, when the pod is bound, or when
it is gone. One that is being bound does not expire: its outcome is not known before the watch tells. Times are the
caller's, in seconds; no clock here. Cannot fail.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from partage.model.ask import PodAsk
    from partage.scheduler.answers import Placement


@dataclass(frozen=True, slots=True)
class Reservation:
    """One promise. `until`: when it is given back; `is_binding`: its grant was handed out, so time does not end it.

    `stamp`: of the node with this promise on it.
    """

    ask: PodAsk
    placement: Placement
    until: float
    is_binding: bool = False
    stamp: int = -1

    @property
    def node(self) -> str:
        """Where."""
        return self.placement.node

    def holds(self, ask: PodAsk, node: str, stamp: int) -> bool:
        """Whether nothing has happened to the node since the same was promised there: the same fits there still."""
        return self.stamp == stamp and self.node == node and self.ask == ask


class Reservations:
    """Reservation by the pod's UID."""

    def __init__(self) -> None:
        self._by_uid: dict[str, Reservation] = {}

    def __len__(self) -> int:
        return len(self._by_uid)

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_uid)

    def get(self, uid: str) -> Reservation | None:
        """Return the pod's, or None."""
        return self._by_uid.get(uid)

    def put(self, reservation: Reservation) -> None:
        """Keep it, in place of an earlier one of the same pod."""
        self._by_uid[reservation.ask.uid] = reservation

    def pop(self, uid: str) -> Reservation | None:
        """Forget the pod's and return it."""
        return self._by_uid.pop(uid, None)

    def bind(self, uid: str) -> None:
        """Keep the pod's until it is given back by name."""
        self._by_uid[uid] = replace(self._by_uid[uid], is_binding=True)

    def expired(self, now: float) -> list[str]:
        """Return the pods whose time is up."""
        return [uid for uid, held in self._by_uid.items() if held.until <= now and not held.is_binding]
