"""What the books answer: a placement, or why not; of one node, of all, and card by card.

Read by the extender, by preemption and resize, by `partage explain` and `partage simulate`. Texts are made when they
are asked for: most refusals are only counted. Cannot fail.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from partage.model.errors import ShareRefused
from partage.model.reasons import REASONS, Code, remedy
from partage.model.units import format_cores, format_memory

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from partage.model.grant import Mode
    from partage.model.need import Need


@dataclass(frozen=True, slots=True)
class PlacedCard:
    """One card of a container: memory in bytes, guaranteed cores in permille."""

    uuid: str
    index: int
    memory: int
    cores: int


@dataclass(frozen=True, slots=True)
class PlacedContainer:
    """What one container gets, in the order of its ordinals; `oversub`: the node promises more than its cards have."""

    name: str
    mode: Mode
    cards: tuple[PlacedCard, ...]
    oversub: bool = False


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a pod goes. `need`: of each card by UUID, for the pod's life; `seats`: device ids of each resource."""

    node: str
    containers: tuple[PlacedContainer, ...]
    need: Mapping[str, Need]
    seats: Mapping[str, int] = field(default_factory=dict)


_AMOUNTS: Final = {Code.CARD_MEMORY: format_memory, Code.CARD_CORES: format_cores}


@dataclass(frozen=True, slots=True)
class Unfit:
    """Why a node does not take a pod. `code` is what stands most in the way.

    `container`: the first that finds no place; `cards`: how many cards are refused for what, of `of` cards; `asked`
    and `there`: amounts in the unit of the code (bytes, permille, cards, seats), `there` on the best of them.
    """

    node: str
    code: Code
    container: str = ""
    cards: tuple[tuple[Code, int], ...] = ()
    of: int = 0
    asked: int = 0
    there: int = 0
    note: str = ""

    @property
    def text(self) -> str:
        """One line for `FailedNodes`: `3/8 CardInsufficientMemory, 5/8 CardInsufficientCore`."""
        return text_of(self.cards, self.of) if self.cards else str(self.code)

    @property
    def detail(self) -> str:
        """What is asked and what is there, for people."""
        if self.asked or self.there:
            show = _AMOUNTS.get(self.code, str)
            return f"{show(self.asked)} asked, {show(self.there)} there"
        return self.note or REASONS[self.code].meaning

    def error(self, subject: str) -> ShareRefused:
        """Return what is to be raised for the pod that messages call `subject`."""
        return ShareRefused(f"{subject} on node {self.node}", self.text, self.detail, remedy(self.code))


def text_of(cards: Iterable[tuple[Code, int]], of: int) -> str:
    """Return how many of `of` cards are refused for what, as HAMi says it."""
    return ", ".join(f"{count}/{of} {code}" for code, count in sorted(cards))


class Refused(Mapping[str, Unfit], ABC):
    """Node -> why it refuses. Everything that is said of one is worked out for those that are looked at only."""

    @abstractmethod
    def codes(self) -> Mapping[str, Code]:
        """Return the code of every node, which is quick."""

    @abstractmethod
    def texts(self) -> dict[str, str]:
        """Return the line of every node for `FailedNodes`, which is quick."""

    def nearest(self) -> Unfit | None:
        """Return the refusal that lacks least, as a part of what is asked; None: nothing is a matter of amounts."""
        return nearest_of(self.values())


class RefusedAlike(Refused):
    """All nodes refuse for what is not theirs, such as a quota."""

    def __init__(self, names: Iterable[str], code: Code, note: str) -> None:
        self._names = dict.fromkeys(names)
        self._code = code
        self._note = note

    def __getitem__(self, name: str) -> Unfit:
        if name not in self._names:
            raise KeyError(name)
        return Unfit(name, self._code, note=self._note)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def codes(self) -> Mapping[str, Code]:
        """Return the code of every node."""
        return dict.fromkeys(self._names, self._code)

    def texts(self) -> dict[str, str]:
        """Return the line of every node."""
        return dict.fromkeys(self._names, f"{self._code}: {self._note}")


@dataclass(frozen=True, slots=True)
class Filtered:
    """`fitting`: every node asked about that takes the pod, in the order of the question; `refused`: the others.

    Why a node refuses is worked out when it is looked at: to be read before the books change.
    """

    fitting: list[str]
    refused: Refused

    def counts(self) -> dict[Code, int]:
        """Return how many nodes are refused for what, most first; each node counts once."""
        return dict(_by_count(self.refused.codes().values()))


@dataclass(frozen=True, slots=True)
class CardVerdict:
    """One card beside what a container asks of it: bytes, permille and seats that are free; `code` None: it fits."""

    uuid: str
    index: int
    product: str
    code: Code | None
    free_memory: int
    free_cores: int
    free_seats: int
    pods: int
    note: str = ""


@dataclass(frozen=True, slots=True)
class NodeVerdict:
    """One node: a placement with the node's score, or why not; container -> its cards."""

    node: str
    placement: Placement | None
    unfit: Unfit | None
    score: int
    cards: Mapping[str, tuple[CardVerdict, ...]]


@dataclass(frozen=True, slots=True)
class Verdicts:
    """All nodes, those that fit first, the best of them first; then those that lack least."""

    nodes: tuple[NodeVerdict, ...]

    def counts(self) -> dict[Code, int]:
        """Return how many nodes are refused for what, most first."""
        return dict(count_codes(node.unfit for node in self.nodes))


def count_codes(unfits: Iterable[Unfit | None]) -> list[tuple[Code, int]]:
    """Return each code with how many nodes are refused for it, most first, then by the code."""
    return _by_count(unfit.code for unfit in unfits if unfit is not None)


def nearest_of(unfits: Iterable[Unfit]) -> Unfit | None:
    """Return the one that lacks least, as a part of what is asked; the first by name of several."""
    best: Unfit | None = None
    for unfit in sorted((unfit for unfit in unfits if unfit.asked > 0), key=lambda unfit: unfit.node):
        if best is None or unfit.there * best.asked > best.there * unfit.asked:
            best = unfit
    return best


def _by_count(codes: Iterable[Code]) -> list[tuple[Code, int]]:
    return sorted(Counter(codes).items(), key=lambda item: (-item[1], item[0]))
