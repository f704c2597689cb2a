"""A node's cards and who has what of them: the state on which everything is decided.

Kept by the books, read by `fits`. What does not change with use is a `CardKind`, shared by all cards that are alike;
what does is four lists of numbers by the card's place on the node. Free amounts go below zero where more was promised
than there is (two schedulers, a card that shrank): nothing new fits then. Integers only; cannot fail.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import compress
from typing import TYPE_CHECKING, Final

from partage.model.need import Need
from partage.model.reasons import Code
from partage.model.share import CORES_MAX
from partage.scheduler.kinds import NO_CARDS

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from partage.devices.rules import Topology
    from partage.model.grant import Mode
    from partage.model.node_devices import NodeDevice
    from partage.model.share import ShareClass
    from partage.scheduler.facts import NodeFacts
    from partage.scheduler.kinds import Kinds

SCALE: Final = 1 << 20
SAFE_MODE: Final = "safe mode: "  # before the UIDs under which its cards are counted
_TOKEN: Final = re.compile(r"[a-z0-9]+")
_SIZE: Final = re.compile(r"([0-9]+)gb")


@dataclass(frozen=True, slots=True, weakref_slot=True)
class CardKind:
    """What a card is. Memory in bytes: `line` is what shares may add up to, `allocatable` what percentages mean.

    `closed`: why it takes nothing new whoever asks; `tokens`: the words of its product name.
    """

    backend: str
    product: str
    mode: Mode
    physical: int
    allocatable: int
    line: int
    seats: int
    index: int
    numa: int
    qos: ShareClass | None
    closed: Code | None
    tokens: frozenset[str] = field(compare=False)


def tokens_of(text: str) -> frozenset[str]:
    """Return the words of a product name or of a wish for one, in lower case: `A100-80GB` -> a100, 80gb, 80."""
    words = _TOKEN.findall(text.lower())
    return frozenset([*words, *(size[1] for word in words if (size := _SIZE.fullmatch(word)))])


def kind_of(card: NodeDevice, oversub: int, cordoned: Collection[str]) -> CardKind:
    """Return what a card of a node's annotation is; `oversub` in permille."""
    closed = None
    if not card.health:
        closed = Code.CARD_NOT_HEALTHY
    elif card.uuid in cordoned:
        closed = Code.CARD_CORDONED
    return CardKind(
        card.backend,
        card.kind,
        card.mode,
        card.physical,
        card.memory,
        card.memory * oversub // CORES_MAX,
        card.seats,
        card.index,
        card.numa,
        card.qos or None,
        closed,
        tokens_of(f"{card.backend} {card.kind}"),
    )


@dataclass(frozen=True, slots=True)
class PodUse:
    """What one pod has of a node. `order`: of two that cannot both hold the smaller keeps its cards.

    `reserved`: promised by these books and not yet bound; `closes`: cards of which it has something and nobody can
    tell how much, for the reason in `trouble`.
    """

    subject: str
    order: tuple[int, int, str]
    need: Mapping[str, Need]
    seats: Mapping[str, int]
    reserved: bool = False
    closes: frozenset[str] = frozenset()
    trouble: str = ""
    priority: int = 0


@dataclass(frozen=True, slots=True)
class NodeUse:
    """What is used of all cards of one vendor on a node, as parts of `SCALE`: seats, cores, memory, their sum."""

    seats: int
    cores: int
    memory: int
    sum: int


class NodeState:
    """One node: facts, the pods on it, and what is free of each card by its place in the annotation."""

    __slots__ = (
        "closed",
        "cores",
        "empty_mask",
        "facts",
        "kinds",
        "memory",
        "model",
        "name",
        "place",
        "pods",
        "seats",
        "seats_used",
        "shared",
        "stamp",
        "tenants",
        "topologies",
        "uses",
        "uuids",
    )

    def __init__(self, name: str, shared: Kinds) -> None:
        self.name = name
        self.shared = shared
        self.facts: NodeFacts | None = None
        self.stamp = 0  # another one after each change
        self.pods: dict[str, PodUse] = {}
        self.kinds: list[CardKind] = []
        self.model = NO_CARDS.model
        self.uuids: list[str] = []
        self.place: dict[str, int] = {}
        self.topologies: Mapping[str, Topology] = {}
        self.memory: list[int] = []
        self.cores: list[int] = []
        self.seats: list[int] = []
        self.tenants: list[int] = []
        self.closed: dict[str, str] = {}
        self.seats_used: dict[str, int] = {}
        self.uses: dict[str, NodeUse] = {}  # by vendor; this and the next until something changes
        self.empty_mask = -1

    def set_facts(self, facts: NodeFacts | None) -> None:
        """Take over what is known of the node now; None, which is the last that it is told: it is gone."""
        before = None if self.facts is None else self.facts.devices
        devices = None if facts is None else facts.devices
        had, alike = self.kinds, NO_CARDS
        if facts is not None and devices is not None:
            kinds = [kind_of(card, devices.oversub, facts.cordoned) for card in devices.devices]
            alike = self.shared.take(kinds, devices)
        if before is not None:  # after the new ones are taken: what is the same stays
            self.shared.give_back(had, before)
        self.facts = facts
        self.kinds, self.topologies, self.model = alike.kinds, alike.topologies, alike.model
        self.uuids = [] if devices is None else [card.uuid for card in devices.devices]
        self.place = {uuid: place for place, uuid in enumerate(self.uuids)}
        self.recount()

    def recount(self) -> None:
        """Add everything up anew."""
        self.stamp += 1
        self.memory = [kind.line for kind in self.kinds]
        self.cores = [CORES_MAX] * len(self.kinds)
        self.seats = [kind.seats for kind in self.kinds]
        self.tenants = [0] * len(self.kinds)
        self.closed = {}
        self.seats_used = {}
        self.uses.clear()
        self.empty_mask = -1
        for use in (*self.pods.values(), *self.given().values()):
            self._count(use, 1)

    def add(self, uid: str, use: PodUse) -> None:
        """Count a pod, in place of what was counted for it."""
        before = self.pods.get(uid)
        if before is not None:
            self.remove(uid)
        self.pods[uid] = use
        self._count(use, 1)

    def remove(self, uid: str) -> None:
        """Give back what a pod has; nothing where it has nothing."""
        use = self.pods.pop(uid, None)
        if use is None:
            return
        if use.closes:
            self.recount()  # another pod may close the same card
        else:
            self._count(use, -1)

    def _count(self, use: PodUse, sign: int) -> None:
        self.stamp += 1
        self.uses.clear()
        self.empty_mask = -1
        for uuid, need in use.need.items():
            at = self.place.get(uuid)
            if at is not None:
                self.memory[at] -= sign * need.memory
                self.cores[at] -= sign * need.cores
                self.seats[at] -= sign * need.seats
                self.tenants[at] += sign
        for resource, seats in use.seats.items():
            left = self.seats_used.get(resource, 0) + sign * seats
            if left:
                self.seats_used[resource] = left
            else:
                self.seats_used.pop(resource, None)
        for uuid in use.closes:
            self.closed[uuid] = min(use.trouble, self.closed.get(uuid, use.trouble))

    def given(self) -> dict[str, PodUse]:
        """Return what the agent gave in whole-card safe mode, which no grant tells."""
        devices = None if self.facts is None else self.facts.devices
        if devices is None or not devices.safe:
            return {}
        physical = {card.uuid: card.physical for card in devices.devices}
        return {
            f"{SAFE_MODE}{given.pod}": PodUse(
                subject=f"{SAFE_MODE}{given.pod}",
                order=(1 << 62, 0, given.pod),
                need={uuid: Need(physical.get(uuid, 0), CORES_MAX, 1) for uuid in given.uuids},
                seats={},
            )
            for given in devices.safe
        }

    def without(self, uids: Collection[str]) -> NodeState:
        """Return the node as it would be without these pods; the node itself where none of them is on it."""
        if not any(uid in self.pods for uid in uids):
            return self
        copy = NodeState(self.name, self.shared)
        copy.facts, copy.kinds, copy.uuids = self.facts, self.kinds, self.uuids
        copy.model = self.model
        copy.place, copy.topologies = self.place, self.topologies
        copy.memory, copy.cores, copy.seats = self.memory[:], self.cores[:], self.seats[:]
        copy.tenants, copy.closed = self.tenants[:], dict(self.closed)
        copy.seats_used, copy.pods = dict(self.seats_used), dict(self.pods)
        for uid in uids:
            copy.remove(uid)
        return copy

    def use(self, backend: str) -> NodeUse:
        """Return what is used of all cards of one vendor."""
        found = self.uses.get(backend)
        if found is None:
            free: list[Iterable[int]] = [self.seats, self.cores, self.memory]
            own = [kind.backend == backend for kind in self.kinds]
            if not all(own):
                free = [compress(amounts, own) for amounts in free]
            left = map(sum, free)
            used = [
                (there - left) * SCALE // (there or 1) for there, left in zip(self.sizes(backend), left, strict=True)
            ]
            found = self.uses[backend] = NodeUse(used[0], used[1], used[2], sum(used))
        return found

    def sizes(self, backend: str) -> tuple[int, int, int]:
        """Return the seats, permille and bytes of all cards of one vendor."""
        return self.shared.size(self.model, backend, self.kinds)

    @property
    def empty(self) -> int:
        """Return the cards, as a mask of places, that are well and on which nobody is."""
        if self.empty_mask < 0:
            self.empty_mask = sum(
                1 << at for at, kind in enumerate(self.kinds) if not self.tenants[at] and kind.closed is None
            )
        return self.empty_mask
