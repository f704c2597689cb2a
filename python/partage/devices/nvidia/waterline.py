"""The water line: how much of a card's memory shares may add up to.

allocatable = floor((1 - buffer) * physical) - overhead. By default buffer is 0 and overhead what the card itself
reports with nobody on it, so that two halves of what is left fit; an administrator can set both, for the node or for
cards of a type: buffer 10 % and overhead 1,500 MiB make 72,228 of 81,920 MiB. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from partage.devices.nvidia.cards import RawCard

PERMILLE: Final = 1000


@dataclass(frozen=True, slots=True)
class WaterLine:
    """`buffer` in permille of the physical memory; `overhead` in bytes, None: what the card reports."""

    buffer: int = 0
    overhead: int | None = None

    def allocatable(self, physical: int, reported: int) -> int:
        """Return the bytes that shares may add up to; never below 0. `reported`: bytes taken with nobody on it."""
        overhead = reported if self.overhead is None else self.overhead
        return max(0, (PERMILLE - self.buffer) * physical // PERMILLE - overhead)


@dataclass(frozen=True, slots=True)
class WaterLines:
    """The node's water line, and those of types of cards: (part of a product name, line), the first that fits."""

    node: WaterLine = WaterLine()
    by_type: Sequence[tuple[str, WaterLine]] = ()

    def of(self, product: str) -> WaterLine:
        """Return the line for a card of this product."""
        return next((line for part, line in self.by_type if part.lower() in product.lower()), self.node)


class Overheads:
    """What each card reports with nobody on it: at least what its driver reserves, and the least that was ever seen.

    A process that has just ended may leave memory that is not given back yet; so a smaller figure replaces a larger
    one, never the other way, and what is promised of a card does not go up and down with its use.
    """

    def __init__(self) -> None:
        self._least: dict[str, int] = {}

    def of(self, card: RawCard) -> int:
        """Return the bytes that a card takes for itself, as far as it is known by now."""
        if card.idle:
            now = card.reserved + card.used
            self._least[card.uuid] = min(now, self._least.get(card.uuid, now))
        return self._least.get(card.uuid, card.reserved)
