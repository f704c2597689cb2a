"""Sets of a node's cards as masks: bit 3 is the card at place 3 of the node's annotation. Cannot fail."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


def bits(mask: int) -> Iterator[int]:
    """Yield the places in a mask, lowest first."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def subsets(cards: int, count: int) -> Iterator[int]:
    """Yield all choices of `count` of these cards, those with the lowest places first."""
    return (sum(chosen) for chosen in combinations([1 << at for at in bits(cards)], count))
