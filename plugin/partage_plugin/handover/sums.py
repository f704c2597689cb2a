"""The last line of defence: the grants of a card are added up before another container starts on it.

Cards are promised in one place only, the scheduler's books; this catches a leader that was frozen past its term and
whatever else promised a card twice. Of grants that cannot hold together the later one, by (term, bind time, uid), is
refused; what runs already is never taken away, so an earlier one that comes late waits for it. Pure: no file, no time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from partage.model import format_cores, format_memory
from partage_plugin.refusal import Refused

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from partage.devices.backend import Card
    from partage.model.need import Need

OVERPROMISED: Final = "CardOverpromised"
UNKNOWN: Final = "CardUseUnknown"
_WHOLE_CARD: Final = 1000  # permille


@dataclass(frozen=True, slots=True)
class Promise:
    """What one pod's grant takes of each card.

    `held`: a container of it was handed over; `whole`: cards that one of its containers has to itself, so that the
    water line is not for them;
    `unknown`: it has something of each card and nobody can tell how much.
    """

    order: tuple[int, int, str]
    pod: str
    need: Mapping[str, Need]
    held: bool = False
    whole: frozenset[str] = frozenset()
    unknown: bool = False


def check_sums(
    wanted: Promise, others: Iterable[Promise], cards: Mapping[str, Card], *, oversub: int = _WHOLE_CARD
) -> None:
    """Raise Refused where the cards cannot keep `wanted` beside the promises before it and those that run already.

    One that runs itself is held to the latter only: an earlier one that waits for its end must not stop its restart.
    `oversub`: permille of the allocatable memory that an administrator lets promises add up to.
    """
    beside = [other for other in others if other.held or (other.order < wanted.order and not wanted.held)]
    for uuid, need in wanted.need.items():
        card = cards.get(uuid)
        if card is None:
            continue  # nothing of it can be handed over: the container that wants it is refused
        there = [other for other in beside if uuid in other.need]
        _check_known(wanted, uuid, there)
        total = sum((other.need[uuid] for other in there), need)
        room = card.physical if uuid in wanted.whole and not there else card.allocatable * oversub // _WHOLE_CARD
        if total.memory <= room and total.cores <= _WHOLE_CARD:
            continue
        who = ", ".join(sorted(other.pod for other in there)) or "nobody else"
        if total.memory > room:
            value = f"{format_memory(need.memory)} asked, {format_memory(total.memory)} with all that is promised"
            limit = f"{format_memory(room)} can be promised of it"
        else:
            value = f"{format_cores(need.cores)} asked, {format_cores(total.cores)} with all that is promised"
            limit = f"{format_cores(_WHOLE_CARD)} can be promised of it"
        step = f"delete this pod, or wait for one of these to end: {who}"
        raise Refused(OVERPROMISED, (f"card {uuid} for {wanted.pod}", value, limit, step))


def _check_known(wanted: Promise, uuid: str, there: Iterable[Promise]) -> None:
    """Raise Refused where one has something of the card and nobody can tell how much; what runs goes on beside it."""
    who = ", ".join(sorted(other.pod for other in there if other.unknown))
    if who and not wanted.held:
        limit = "a share is given only where all that is promised of a card is known"
        step = f"see the events of these pods, and delete them or wait for their end: {who}"
        raise Refused(UNKNOWN, (f"card {uuid} for {wanted.pod}", "what pods have of it cannot be told", limit, step))
