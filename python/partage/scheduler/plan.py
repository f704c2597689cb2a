"""A shape made ready for the search: each container's demands as numbers, and the order in which places are looked for.

Made once per shape and kept with it; read by `fits`. What depends on the kind of a card alone (type, mode, index, how
much a percentage is) is worked out once for each kind, and kept as long as the kind is. Cannot fail.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final
from weakref import ReferenceType, ref

from partage.devices.rules import RULES
from partage.model.grant import GRANT_BYTES_MAX
from partage.model.need import Need, Role, need_of
from partage.model.reasons import Code
from partage.model.share import CORES_MAX, times_of
from partage.scheduler.cards import tokens_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from partage.model.ask import CardPolicy, ContainerAsk, NodePolicy, Shape, Wishes
    from partage.model.grant import Mode
    from partage.scheduler.cards import CardKind


#: Containers of one pod that may ask for shares: the search for more would keep everybody else waiting.
ASKING_MAX: Final = 16


class Key(enum.Enum):
    """By what one choice of cards goes before another."""

    BINPACK = "binpack"
    SPREAD = "spread"
    LINKS = "topology-aware"
    NUMA = "numa"
    WASTE = "waste"


@dataclass(frozen=True, slots=True)
class Defaults:
    """What applies where a pod says nothing: HAMi's own."""

    node_policy: NodePolicy = "binpack"
    card_policies: tuple[CardPolicy, ...] = ("spread",)


@dataclass(frozen=True, slots=True)
class OnKind:
    """What a container's share is on cards of one kind; `code`: why they do not serve it. Memory in bytes."""

    code: Code | None
    memory: int
    mode: Mode


@dataclass(frozen=True, slots=True)
class Want:
    """One container. `cores`: guarantee in permille; `alone`: no other pod and no other share beside it."""

    name: str
    role: Role
    backend: str
    count: int
    cores: int
    alone: bool


class Plan:
    """A shape's demands. `running`: places in `wants` of sidecars and apps, the hardest first; `inits`: of the rest."""

    def __init__(self, shape: Shape, defaults: Defaults) -> None:
        self.shape = shape
        self.wants = [_want(ask) for ask in shape.containers]
        self.running = sorted(
            (at for at, want in enumerate(self.wants) if want.role is not Role.INIT), key=self._easiness
        )
        self.inits = sorted((at for at, want in enumerate(self.wants) if want.role is Role.INIT), key=self._easiness)
        self.sidecars_before = {
            at: [before for before in range(at) if self.wants[before].role is Role.SIDECAR] for at in self.inits
        }
        sidecars = [want for want in self.wants if want.role is Role.SIDECAR]
        #: No two of its containers are ever on a card at the same time, wherever they go: each is by itself.
        self.is_apart = len(self.running) < 2 and not (sidecars and self.inits)
        #: Running containers of one card each, and init containers that are by themselves.
        self.is_singles = all(self.wants[at].count == 1 for at in self.running) and not (sidecars and self.inits)
        self.seats = seats_of(shape)
        self.too_large = _too_large(shape)
        wishes = shape.wishes
        self.node_policy = wishes.node_policy or defaults.node_policy
        words = wishes.card_policies or defaults.card_policies
        self.is_mutex = "mutex" in words
        self.is_joined = wishes.nvlink == "required"
        self.is_one_numa = wishes.one_numa_node
        self.asks_links = wishes.nvlink is not None or "topology-aware" in words
        self.is_many = any(want.count > 1 for want in self.wants)
        self.backends = tuple(dict.fromkeys(want.backend for want in self.wants))
        self.keys = _keys(words, is_linked=wishes.nvlink is not None)
        self.weights = _weights(wishes)
        self._types = [tokens_of(text) for text in wishes.types]
        self._no_types = [tokens_of(text) for text in wishes.no_types]
        self._kinds: dict[int, tuple[ReferenceType[CardKind], list[OnKind]]] = {}

    def on(self, kind: CardKind) -> list[OnKind]:
        """Return what each container's share is on cards of this kind."""
        found = self._kinds.get(id(kind))
        if found is None:  # forgotten with the kind, so that its id stays its own
            forget = partial(_forget, ref(self), id(kind))
            found = self._kinds[id(kind)] = ref(kind, forget), [self._on(ask, kind) for ask in self.shape.containers]
        return found[1]

    def forget(self, kind: int) -> None:
        """Take note that the kind of this id is gone."""
        self._kinds.pop(kind, None)

    def amounts(self, kind: CardKind | None, place: int) -> tuple[int, int, int]:
        """Return the slots, cores and memory of one container on cards of this kind, for scores."""
        want = self.wants[place]
        memory = 0 if kind is None else want.count * self.on(kind)[place].memory
        return want.count, want.count * want.cores, memory

    def _easiness(self, at: int) -> tuple[int, int, int, int, int]:
        want, ask = self.wants[at], self.shape.containers[at]
        memory = ask.memory or (ask.percent or CORES_MAX) << 40
        return -want.alone, -want.count, -memory, -want.cores, at

    def _on(self, ask: ContainerAsk, kind: CardKind) -> OnKind:
        cores, _ = times_of(ask.share_class, ask.cores)
        whole = ask.is_whole and cores == CORES_MAX
        rules = RULES.get(ask.backend)
        mode = None if rules is None else rules.mode(kind.mode, ask.mode, whole=whole)
        code = self._refusal(ask, kind, mode)
        if mode == "whole":
            memory = kind.physical
        elif ask.is_whole:
            memory = kind.allocatable
        elif ask.percent is not None:
            memory = kind.allocatable * ask.percent // CORES_MAX
        else:
            memory = ask.memory or 0
        return OnKind(code, max(1, memory), mode or "shim")

    def _refusal(self, ask: ContainerAsk, kind: CardKind, mode: Mode | None) -> Code | None:
        wishes = self.shape.wishes
        if kind.closed is not None:
            return kind.closed
        wanted = not self._types or any(words and words <= kind.tokens for words in self._types)
        if not wanted or any(words and words <= kind.tokens for words in self._no_types):
            return Code.CARD_TYPE
        if mode is None or ask.profile:
            return Code.CARD_MODE
        if (wishes.indexes and kind.index not in wishes.indexes) or kind.index in wishes.no_indexes:
            return Code.CARD_INDEX
        if wishes.card_at_most is not None and kind.physical > wishes.card_at_most:
            return Code.QUOTA
        return None


def _forget(plan: ReferenceType[Plan], kind: int, _: ReferenceType[CardKind]) -> None:
    found = plan()
    if found is not None:
        found.forget(kind)


def seats_of(shape: Shape) -> Mapping[str, int]:
    """Return resource -> how many device ids kubelet holds for a pod of this shape."""
    asked = ((ask.role, {ask.resource: Need(seats=ask.cards)}) for ask in shape.containers)
    return {resource: need.seats for resource, need in need_of(asked).items()}


def _too_large(shape: Shape) -> str:
    """Return why no node could be given such a pod, empty: it is not too large."""
    length = _GRANT + sum(_CONTAINER + len(ask.name) + ask.cards * _SHARE for ask in shape.containers)
    if len(shape.containers) > ASKING_MAX:
        return f"{len(shape.containers)} containers ask for shares, at most {ASKING_MAX} may"
    if length > GRANT_BYTES_MAX:
        return f"a record of up to {length} bytes, at most {GRANT_BYTES_MAX} may be"
    return ""


def _want(ask: ContainerAsk) -> Want:
    cores, _ = times_of(ask.share_class, ask.cores)
    return Want(ask.name, ask.role, ask.backend, ask.cards, cores, cores == CORES_MAX)


# How long a grant's text may get: its own fields, a container's without its name, a share's with the longest UUID.
_GRANT: Final = 512
_CONTAINER: Final = 96
_SHARE: Final = 256

_WORDS: Final = {
    "binpack": Key.BINPACK,
    "spread": Key.SPREAD,
    "numa": Key.NUMA,
    "topology-aware": Key.LINKS,
}


def _keys(words: tuple[CardPolicy, ...], *, is_linked: bool) -> tuple[Key, ...]:
    """Return the chain: what is asked of links, the policy's words, then links and NUMA between what is equal."""
    asked = (Key.LINKS,) if is_linked else ()
    named = tuple(_WORDS[word] for word in words if word in _WORDS)
    return tuple(dict.fromkeys((*asked, *named, Key.LINKS, Key.NUMA, Key.WASTE)))


def _weights(wishes: Wishes) -> tuple[int, int, int]:
    """Return what share slots, cores and memory count in a card's use."""
    given = dict(wishes.weights)
    return (given.get("slot", 0), given.get("core", 0), given.get("memory", 0)) if given else (1, 1, 1)
