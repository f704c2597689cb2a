"""Which hand-overs this process minted for which ids: needed only where kubelet's checkpoint cannot be read.

In memory alone. After a restart of the agent nothing is known, so such a request is then refused as ambiguous.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


class Minted:
    """Names by ids, with the moment of their making. Bounded by what is forgotten when a hand-over is removed."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._made: dict[str, tuple[frozenset[str], float]] = {}

    def add(self, name: str, ids: Iterable[str]) -> None:
        """Remember a name that `Allocate` has just answered with."""
        self._made[name] = (frozenset(ids), self._now())

    def for_ids(self, ids: frozenset[str]) -> list[str]:
        """Return the names minted for exactly these ids."""
        return [name for name, (held, _) in self._made.items() if held == ids]

    def is_young(self, name: str, seconds: float) -> bool:
        """Whether a name was minted less than `seconds` ago: kubelet may not have written it down yet."""
        return name in self._made and self._now() - self._made[name][1] < seconds

    def age(self, name: str) -> float:
        """Return the seconds since a name was minted; endless where that is not known."""
        return self._now() - self._made[name][1] if name in self._made else math.inf

    def forget(self, name: str) -> None:
        """Forget a hand-over that was removed."""
        self._made.pop(name, None)
