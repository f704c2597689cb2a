"""How NVIDIA's cards are linked, as a number: who is joined by NVLink, which choice is good, what it breaks.

Cards joined by NVLink, directly or by way of others, make a group. A choice that leaves a piece of an unused group
behind damages it by the size of that piece. Score in thousandths: 1,000 for a choice in which each card is joined with
each other one, up to 10 for the lanes between them, minus the damage. So a group of just the right size goes before a
larger one, a single card comes from no group or from the smallest, and more lanes go before fewer. Pure; cannot fail.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from partage.devices.masks import bits

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from partage.model.grant import Mode
    from partage.model.node_devices import DeviceLink

# Points of a pair: an NVLink counts 100 and at most 18 of them count; without any, what lies between counts.
_LANE: Final = 100
_LANES_MAX: Final = 18
_POINTS: Final = {"board": 60, "switch": 50, "multiswitch": 40, "bridge": 30, "node": 20, "system": 10}
_NEAR: Final = 60  # cards with NVLinks between them
_PAIR_MAX: Final = _NEAR + _LANE * _LANES_MAX
_NVLINKS: Final = frozenset({"nvlink", "nvswitch"})
_JOINED: Final = 1_000_000
_LANES: Final = 10_000
_DAMAGE: Final = 1_000
_BLOCKS: Final = (2, 4, 8)
_GROUPS_MAX: Final = 20_000  # kept of one matrix, which lives for ever


class NvidiaRules:
    """Shares of cards that the library holds; a whole card is one of those with nobody else on it."""

    def mode(self, card: Mode, wanted: Mode | None, *, whole: bool) -> Mode | None:
        """Return the mode of a share on a card of this mode, None where it does not serve it."""
        if card == "shim" and wanted in {None, "shim"}:
            return "whole" if whole and wanted is None else "shim"
        return "whole" if whole and card in {"shim", "whole"} and wanted in {None, "whole"} else None

    def topology(self, links: Sequence[Sequence[DeviceLink]], places: Sequence[int]) -> NvidiaTopology:
        """Return what the links between the cards at these places mean."""
        return NvidiaTopology(links, places)


class NvidiaTopology:
    """One matrix of links. Cards are masks of places."""

    def __init__(self, links: Sequence[Sequence[DeviceLink]], places: Sequence[int]) -> None:
        self.memo: dict[tuple[object, ...], tuple[int, ...]] = {}
        self._points = {(a, b): _points(links[a][b]) for a in places for b in places if a != b}
        self._joined = {a: 1 << a | sum(1 << b for b in places if b != a and _is_nvlink(links[a][b])) for a in places}
        self._groups: dict[int, tuple[int, ...]] = {}

    def is_joined(self, chosen: int) -> bool:
        """Whether each of these cards has NVLinks to each other one."""
        return all(chosen & ~self._joined[at] == 0 for at in bits(chosen))

    def score(self, chosen: int, empty: int) -> int:
        """Return how good a choice is, in thousandths; `empty`: cards that are well and that nobody uses."""
        at = list(bits(chosen))
        pairs = len(at) * (len(at) - 1) // 2
        score = -_DAMAGE * self._damage(chosen, empty)
        if pairs:
            points = sum(self._points[a, b] for place, a in enumerate(at) for b in at[:place])
            score += _LANES * points // (pairs * _PAIR_MAX) + (_JOINED if self.is_joined(chosen) else 0)
        return score

    def is_alike(self, cards: int, empty: int) -> bool:
        """Whether all choices of equally many of these cards have the same score."""
        at = list(bits(cards))
        if len({self._points[a, b] for place, a in enumerate(at) for b in at[:place]}) > 1:
            return False
        if not cards & empty:
            return True
        groups = self._groups_of(empty)
        return any(cards & ~group == 0 for group in groups) or (
            cards & ~empty == 0 and all(group.bit_count() == 1 for group in groups if group & cards)
        )

    def waste(self, chosen: int, empty: int) -> int:
        """Return the size of the aligned blocks of 2, 4, 8 unused cards that a choice takes a part of."""
        waste = 0
        for size in _BLOCKS:
            block = (1 << size) - 1
            while block <= empty:
                taken = chosen & block
                if taken and taken != block and empty & block == block:
                    waste += size
                block <<= size
        return waste

    def _damage(self, chosen: int, empty: int) -> int:
        damage = 0
        for group in self._groups_of(empty):
            taken = (group & chosen).bit_count()
            if taken:
                damage += group.bit_count() - taken
        return damage

    def _groups_of(self, cards: int) -> tuple[int, ...]:
        """Return the groups that NVLink makes of these cards."""
        found = self._groups.get(cards)
        if found is None:
            if len(self._groups) >= _GROUPS_MAX:
                self._groups.clear()
            found = self._groups[cards] = tuple(self._grow(cards))
        return found

    def _grow(self, cards: int) -> Iterator[int]:
        left = cards
        while left:
            group, edge = 0, left & -left
            while edge:
                group |= edge
                reach = 0
                for at in bits(edge):
                    reach |= self._joined.get(at, 1 << at)
                edge = reach & cards & ~group
            yield group
            left &= ~group


def _is_nvlink(link: DeviceLink) -> bool:
    return link.lanes > 0 and link.kind in _NVLINKS


def _points(link: DeviceLink) -> int:
    if _is_nvlink(link):
        return _NEAR + _LANE * min(link.lanes, _LANES_MAX)
    return _POINTS.get(str(link.kind), _POINTS["system"])
