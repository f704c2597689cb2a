"""What a pod takes of a namespace's quotas: per key, the amount of one card times the cards, for the whole pod.

Used by the quota book's feeders and by `partage explain`. Containers that do not run at once do not add up (init
containers, sidecars: `model/need.py`). A part of a card is charged as that part of the memory the card physically has,
so it is known only with the card: before that, of a card of the size that the caller names. Cannot fail.
"""

from __future__ import annotations

from collections import defaultdict
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple, Protocol

from partage.model.need import Need, need_of
from partage.model.share import CORES_MAX
from partage.scheduler.quota.meters import METERS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from partage.model.ask import ContainerAsk, Shape
    from partage.model.grant import Grant
    from partage.model.need import Role
    from partage.scheduler.answers import Placement


class CardSize(Protocol):
    """A card's memory in bytes: what it carries, and what percentages of it mean."""

    @property
    def physical(self) -> int:
        """What the card carries."""

    @property
    def allocatable(self) -> int:
        """What shares are made of."""


class _Taken(NamedTuple):
    """One container's part of one card."""

    backend: str
    uuid: str
    memory: int
    cores: int


Charge = tuple[tuple[str, int], ...]  # key -> bytes, permille or cards; sorted, nothing that is 0
_Part = tuple["Role", str, str, Need]  # backend and resource


@lru_cache(maxsize=4096)
def asked_charge(shape: Shape, *, physical: int = 0) -> Charge:
    """Return the charge of an ask on cards of `physical` bytes; 0: nothing is charged for parts of cards yet."""
    return _charge(
        (
            one.role,
            one.backend,
            one.resource,
            Need(one.cards * _memory(one, physical), one.cards * one.cores, one.cards),
        )
        for one in shape.containers
    )


def granted_charge(
    grant: Grant, order: Iterable[tuple[str, Role]], shape: Shape | None, card: Callable[[str], CardSize | None]
) -> Charge:
    """Return the charge of a granted pod.

    `order`: its containers; `shape`: what it asked, None where nobody can read it; `card`: a device by UUID, None where
    it is not there any more. What was resized since is charged as it is now.
    """
    taken = {
        name: [_Taken(one.backend, one.uuid, one.counted, one.cores) for one in part.shares]
        for name, part in grant.containers.items()
    }
    return _taken_charge(taken, order, shape, card)


def placed_charge(placement: Placement, shape: Shape, card: Callable[[str], CardSize | None]) -> Charge:
    """Return the charge of a pod of this shape with these cards: the same as that of the grant it will have."""
    backends = {one.name: one.backend for one in shape.containers}
    taken = {
        part.name: [_Taken(backends.get(part.name, ""), one.uuid, one.memory, one.cores) for one in part.cards]
        for part in placement.containers
    }
    return _taken_charge(taken, shape.order, shape, card)


def _taken_charge(
    taken: Mapping[str, Sequence[_Taken]],
    order: Iterable[tuple[str, Role]],
    shape: Shape | None,
    card: Callable[[str], CardSize | None],
) -> Charge:
    asks = {one.name: one for one in shape.containers} if shape else {}
    parts: list[_Part] = []
    for name, role in order:
        ask = asks.get(name)
        sums: dict[tuple[str, str], Need] = {}
        for one in taken.get(name, ()):
            pair = (one.backend, ask.resource if ask else "")
            need = Need(_taken_memory(one.memory, ask, card(one.uuid)), one.cores, 1)
            sums[pair] = sums.get(pair, Need()) + need
        parts += [(role, *pair, need) for pair, need in sums.items()]
    return _charge(parts)


def _memory(ask: ContainerAsk, physical: int) -> int:
    if ask.memory is not None:
        return ask.memory
    if ask.profile:  # a slice has its own size, which only its card tells
        return 0
    return physical * (CORES_MAX if ask.percent is None else ask.percent) // CORES_MAX


def _taken_memory(memory: int, ask: ContainerAsk | None, card: CardSize | None) -> int:
    """Return the bytes of one share: those of the card's physical memory where it still is the part that was asked."""
    if ask is None or card is None or ask.memory is not None or ask.profile:
        return memory
    percent = CORES_MAX if ask.percent is None else ask.percent
    charged = card.physical * percent // CORES_MAX
    return charged if memory in {card.allocatable * percent // CORES_MAX, charged} else memory


def _charge(parts: Iterable[_Part]) -> Charge:
    """Add up what runs at once, for each pair of backend and resource, and give it to the keys that count it."""
    pairs: dict[str, tuple[str, str]] = {}
    containers: list[tuple[Role, dict[str, Need]]] = []
    for role, backend, resource, need in parts:
        pairs[f"{backend} {resource}"] = (backend, resource)
        containers.append((role, {f"{backend} {resource}": need}))
    charge: defaultdict[str, int] = defaultdict(int)
    for name, need in need_of(containers).items():
        amounts = {"memory": need.memory, "cores": need.cores, "cards": need.seats}
        for meter in METERS:
            if meter.counts(*pairs[name]):
                charge[meter.key] += amounts[meter.kind]
    return tuple(sorted((key, amount) for key, amount in charge.items() if amount))
