"""Seats: the device ids that kubelet counts. They say how many shares a node can take, not which card or whose.

`<card uuid>::<n>`, at most 63 characters. Seats are fungible, so a card that fails withdraws as many *free* ids as it
has free seats, its own first: what runs keeps its ids, whatever card they are named after. That card may be none that
is known any more (it did not come back from a reboot, it has fewer seats now): kubelet starts nothing again whose ids
are not listed, so they are, and as many free ones are withdrawn. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from partage.devices.backend import Card

ID_MAX: Final = 63  # characters, by kubelet
_SEPARATOR: Final = "::"


@dataclass(frozen=True, slots=True)
class Seat:
    """One id as it is told to kubelet; `numa`: -1 for no promise."""

    id: str
    healthy: bool
    numa: int = -1


def seat_id(uuid: str, number: int) -> str:
    """Return the id of a card's seat."""
    return f"{uuid}{_SEPARATOR}{number}"


def card_of(seat: str) -> str:
    """Return the UUID of the card that a seat is named after."""
    return seat.partition(_SEPARATOR)[0]


def seats(
    cards: Iterable[Card],
    granted_on: Mapping[str, int],
    taken: Collection[str],
    kept: Collection[str] = (),
    *,
    tells_numa: bool = True,
) -> tuple[Seat, ...]:
    """Return all seats of the cards. `granted_on`: card -> shares handed over; `taken`: ids that containers hold.

    `kept`: those of them that are listed even where they are named after no seat of these cards.

    NUMA is promised only where it cannot be wrong (a seat does not say which card it will be), and where it is wanted;
    of all seats then: kubelet's topology policies start no container again whose ids alone say nothing.
    """
    cards = list(cards)
    ids = {card.uuid: [seat_id(card.uuid, number) for number in range(card.seats)] for card in cards}
    free = [seat for own in ids.values() for seat in own if seat not in taken]
    known = {seat for own in ids.values() for seat in own}
    strays = sorted(set(kept) - known)
    withdrawn = set(free[max(0, len(free) - len(strays)) :])
    for card in cards:
        if card.healthy:
            continue
        count = max(0, card.seats - granted_on.get(card.uuid, 0))
        own_first = sorted(
            (seat for seat in free if seat not in withdrawn), key=lambda seat: card_of(seat) != card.uuid
        )
        withdrawn.update(own_first[:count])
    nodes = {card.numa for card in cards}
    numa = nodes.pop() if tells_numa and len(nodes) == 1 else -1
    listed = [Seat(seat, seat not in withdrawn, numa) for own in ids.values() for seat in own]
    return (*listed, *(Seat(seat, healthy=True, numa=numa) for seat in strays))


def preferred(
    available: Sequence[str], must_include: Sequence[str], size: int, cards: Sequence[str] | None
) -> list[str]:
    """Return `size` ids of the available ones: those that must be in it, then one on each of `cards`, then any.

    `cards`: where the one pod that can be meant was planned; None where that is not known.
    """
    chosen = list(dict.fromkeys(must_include))[:size]
    rest = sorted(set(available) - set(chosen))
    missing = list(cards or ())
    for seat in chosen:
        if card_of(seat) in missing:
            missing.remove(card_of(seat))
    for uuid in missing:
        found = next((seat for seat in rest if card_of(seat) == uuid), None)
        if found is not None and len(chosen) < size:
            chosen.append(found)
            rest.remove(found)
    return [*chosen, *rest[: size - len(chosen)]]
