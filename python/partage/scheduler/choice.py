"""Which of the cards that fit: the policy's words one after the other, each deciding between what is equal before it.

Called by `fits` for one container at a time. Use counts per card, so the best choice by use is found by sorting; links,
NUMA nodes and waste belong to the whole choice, so those that are equal by now are gone through, and the answer is kept
with the node's topology: nodes that are built alike share it. Choices are masks of places. Cannot fail.
"""

from __future__ import annotations

from itertools import islice
from math import comb
from typing import TYPE_CHECKING, Final

from partage.devices.masks import bits, subsets
from partage.scheduler.plan import Key

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from partage.devices.rules import Topology

MEMO_MAX: Final = 20_000  # entries kept of one topology
_TRIED_MAX: Final = 20_000  # choices gone through for one answer; C(16, 8) is 12,870


class Chooser:
    """One container's choice on one node. `uses`: of each card, by place, with this share on it; `numa`: of each."""

    def __init__(self, topology: Topology, uses: Sequence[int], numa: Sequence[int], empty: int) -> None:
        self._topology = topology
        self._uses = uses
        self._numa = numa
        self._empty = empty

    def best(self, cards: int, count: int, keys: Iterable[Key], *, joined: bool, one_numa: bool) -> int:
        """Return the best `count` of these cards; 0: no choice is joined, or on one NUMA node, as asked."""
        if cards.bit_count() < count:
            return 0
        pools = [cards]
        if one_numa and count > 1:
            pools = [pool for pool in by_numa(self._numa, cards) if pool.bit_count() >= count]
        keys = tuple(keys)
        found: list[tuple[list[int], int]] = []
        for pool in pools:
            family = self._family(pool, count, joined=joined)
            if family is not None:
                found.append(self._narrow(family, keys))
        if not found:
            return 0
        return max(found, key=lambda one: (one[0], _early(one[1])))[1]

    def _family(self, pool: int, count: int, *, joined: bool) -> _Family | None:
        if not joined or count == 1 or self._topology.is_joined(pool):
            return _Family(0, pool, count, None)
        key = ("joined", pool, count)
        masks = self._topology.memo.get(key)
        if masks is None:
            masks = tuple(islice(joined_subsets(self._topology, pool, count), _TRIED_MAX))
            remember(self._topology, key, masks)
        return _Family(0, pool, count, masks) if masks else None

    def _narrow(self, family: _Family, keys: tuple[Key, ...]) -> tuple[list[int], int]:
        """Return the values of all keys, the higher the better, and the choice that has them."""
        values = []
        for key in keys:
            if key in {Key.BINPACK, Key.SPREAD}:
                values.append(self._by_use(family, 1 if key is Key.BINPACK else -1))
            else:
                values.append(self._by_choice(family, key))
        return values, family.first()

    def _by_use(self, family: _Family, sign: int) -> int:
        uses = self._uses
        if family.masks is None:
            ranked = sorted(bits(family.ties), key=lambda at: -sign * uses[at])
            last = uses[ranked[family.count - 1]]
            for at in ranked[: family.count]:
                if uses[at] != last:
                    family.take(at)
            family.ties = sum(1 << at for at in bits(family.ties) if uses[at] == last)
            return sign * (sum(uses[at] for at in bits(family.taken)) + last * family.count)
        sums = [sum(uses[at] for at in bits(mask)) * sign for mask in family.masks]
        return family.keep(sums)

    def _by_choice(self, family: _Family, key: Key) -> int:
        if family.masks is None:
            is_open = family.ties.bit_count() > family.count
            if not is_open or self._is_alike(family, key) or family.size() > _TRIED_MAX:
                return self._value(family.first(), key)
            memo = (key, family.taken, family.ties, family.count, self._empty, self._numa_key(key))
            masks = self._topology.memo.get(memo)
            if masks is None:
                masks = self._best_of(family.all(), key)
                remember(self._topology, memo, masks)
            family.masks = masks
            return self._value(masks[0], key)
        if len(family.masks) == 1:
            return self._value(family.masks[0], key)
        return family.keep([self._value(mask, key) for mask in family.masks])

    def _best_of(self, masks: Iterable[int], key: Key) -> tuple[int, ...]:
        best: list[int] = []
        highest = None
        for mask in masks:
            value = self._value(mask, key)
            if highest is None or value > highest:
                highest, best = value, [mask]
            elif value == highest:
                best.append(mask)
        return tuple(best)

    def _value(self, mask: int, key: Key) -> int:
        if key is Key.LINKS:
            return self._topology.score(mask, self._empty)
        if key is Key.NUMA:
            return -len({self._numa[at] for at in bits(mask)})
        return -self._topology.waste(mask, self._empty)

    def _is_alike(self, family: _Family, key: Key) -> bool:
        cards = family.taken | family.ties
        if key is Key.LINKS:
            return self._topology.is_alike(cards, self._empty)
        return key is Key.NUMA and (
            family.taken.bit_count() + family.count == 1 or len({self._numa[at] for at in bits(cards)}) == 1
        )

    def _numa_key(self, key: Key) -> tuple[int, ...]:
        return tuple(self._numa) if key is Key.NUMA else ()


def by_numa(numa: Sequence[int], cards: int) -> list[int]:
    """Return the cards of each NUMA node."""
    pools: dict[int, int] = {}
    for at in bits(cards):
        pools[numa[at]] = pools.get(numa[at], 0) | 1 << at
    return list(pools.values())


def remember(topology: Topology, key: tuple[object, ...], found: tuple[int, ...]) -> None:
    """Keep with a topology what was worked out of it, and not more than there is room for: it lives for ever."""
    if len(topology.memo) >= MEMO_MAX:
        topology.memo.clear()
    topology.memo[key] = found


def joined_subsets(topology: Topology, cards: int, count: int) -> Iterator[int]:
    """Yield all choices of `count` of these cards that are joined, those with the lowest places first.

    Grown card by card: of many cards of which few are joined, nearly all choices are none and are never made.
    """
    places = list(bits(cards))
    others = {at: sum(1 << b for b in places if b > at and topology.is_joined(1 << at | 1 << b)) for at in places}

    def grow(chosen: int, candidates: int, left: int) -> Iterator[int]:
        if not left:
            yield chosen
        elif candidates.bit_count() >= left:
            for at in bits(candidates):
                yield from grow(chosen | 1 << at, candidates & others[at], left - 1)

    yield from grow(0, cards, count)


class _Family:
    """Choices that are equal by now: `taken` with any `count` of `ties`, or the `masks` that are left."""

    def __init__(self, taken: int, ties: int, count: int, masks: tuple[int, ...] | None) -> None:
        self.taken = taken
        self.ties = ties
        self.count = count
        self.masks = masks

    def take(self, at: int) -> None:
        """Every choice has this card."""
        self.taken |= 1 << at
        self.count -= 1

    def size(self) -> int:
        """Return how many choices there are."""
        return comb(self.ties.bit_count(), self.count) if self.masks is None else len(self.masks)

    def all(self) -> Iterator[int]:
        """Yield all choices."""
        return (self.taken | mask for mask in subsets(self.ties, self.count))

    def keep(self, values: list[int]) -> int:
        """Keep the choices with the highest value, and return it."""
        highest = max(values)
        self.masks = tuple(mask for mask, value in zip(self.masks or (), values, strict=True) if value == highest)
        return highest

    def first(self) -> int:
        """Return the choice with the lowest places."""
        if self.masks is not None:
            return max(self.masks, key=_early)
        mask = self.taken
        for _, at in zip(range(self.count), bits(self.ties), strict=False):
            mask |= 1 << at
        return mask


def _early(mask: int) -> tuple[int, ...]:
    """Order masks of equally many cards by their places, the lowest first."""
    return tuple(-at for at in bits(mask))
