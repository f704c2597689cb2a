"""What is alike on many nodes is one object: kinds of cards, models of nodes, link matrices.

There are few of each, what is worked out of one is kept with it, and two are compared by being the same object. Each
lives as long as a node has it: a cluster whose nodes change for years keeps only what it has. Owned by the books, taken
and given back by the nodes' states. Cannot fail.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from partage.devices.rules import RULES
from partage.model.share import CORES_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from partage.devices.rules import Topology
    from partage.model.node_devices import DeviceLink, NodeDevices
    from partage.scheduler.cards import CardKind

K = TypeVar("K")
V = TypeVar("V")

Sizes = tuple[int, int, int]
Links = tuple[tuple[tuple["DeviceLink", ...], ...], tuple[str, ...]]  # and the vendor of each card


@dataclass(frozen=True, slots=True)
class Alike:
    """What a node has in common with others: its cards' kinds by place, their number as a model, links by vendor."""

    kinds: list[CardKind]
    model: int
    topologies: Mapping[str, Topology]


NO_CARDS: Final = Alike([], 0, {})


class _Shared(Generic[K, V]):
    """Value by key, each with how many have taken it."""

    def __init__(self, make: Callable[[K], V]) -> None:
        self._make = make
        self._kept: dict[K, tuple[V, list[int]]] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def take(self, key: K) -> V:
        """Return the one value of this key."""
        found = self._kept.get(key)
        if found is None:
            found = self._kept[key] = self._make(key), [0]
        found[1][0] += 1
        return found[0]

    def give_back(self, key: K) -> V | None:
        """Give back what was taken; return the value where nobody has it any more."""
        value, count = self._kept[key]
        count[0] -= 1
        if count[0]:
            return None
        del self._kept[key]
        return value

    def __iter__(self) -> Iterator[K]:
        return iter(self._kept)


class Kinds:
    """All that the nodes of one cluster have in common."""

    def __init__(self) -> None:
        self._kinds = _Shared["CardKind", "CardKind"](lambda kind: kind)
        self._models = _Shared[tuple[int, ...], int](lambda _: self._new_model())
        self._topologies = _Shared[Links, "dict[str, Topology]"](_topologies)
        self._last = NO_CARDS.model  # no number is used twice
        self._sizes: dict[int, dict[str, Sizes]] = {}  # of each model, by vendor

    def __len__(self) -> int:
        """How many kinds, models and link matrices there are."""
        return len(self._kinds) + len(self._models) + len(self._topologies)

    def take(self, kinds: Sequence[CardKind], devices: NodeDevices) -> Alike:
        """Return what a node with cards of these kinds has in common with others, until it gives it back."""
        own = [self._kinds.take(kind) for kind in kinds]
        return Alike(own, self._models.take(tuple(map(id, own))), self._topologies.take(_links(devices)))

    def give_back(self, kinds: Sequence[CardKind], devices: NodeDevices) -> None:
        """Give back what a node had, as it was taken; what no other node has is forgotten."""
        model = self._models.give_back(tuple(map(id, kinds)))
        if model is not None:
            del self._sizes[model]
        for kind in kinds:
            self._kinds.give_back(kind)
        self._topologies.give_back(_links(devices))

    def size(self, model: int, backend: str, kinds: Sequence[CardKind]) -> Sizes:
        """Return the seats, permille and bytes of all cards of one vendor on a node of this model."""
        known = self._sizes.get(model, {})  # somebody may still look at a node that is gone
        found = known.get(backend)
        if found is None:
            own = [kind for kind in kinds if kind.backend == backend]
            found = sum(kind.seats for kind in own), CORES_MAX * len(own), sum(kind.line for kind in own)
            known[backend] = found
        return found

    def sizes(self) -> set[int]:
        """Return the bytes that cards of these kinds carry."""
        return {kind.physical for kind in self._kinds}

    def _new_model(self) -> int:
        self._last += 1
        self._sizes[self._last] = {}
        return self._last


def _links(devices: NodeDevices) -> Links:
    return devices.links, tuple(card.backend for card in devices.devices)


def _topologies(key: Links) -> dict[str, Topology]:
    """Return backend -> what its rules make of a node's links."""
    links, backends = key
    return {
        backend: RULES[backend].topology(links, [place for place, name in enumerate(backends) if name == backend])
        for backend in sorted(set(backends) & RULES.keys())
    }
