"""All containers of a pod on one node together: the policy's choice for each, else any that works.

First each container takes what the policy likes best of what the ones before it leave, the hardest first: that is the
answer for nearly every pod. Where that leads nowhere, choices are gone through until one works or none is left, cards
that are alike tried once; a pod for which that takes too long is refused with a code of its own. Init containers run
after each other and before the apps, so each is held to the sidecars before it only, and goes where the pod has cards
anyway. Called by `fits`; cannot fail.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from partage.devices.masks import bits, subsets
from partage.model.need import Role
from partage.model.reasons import Code
from partage.model.share import CORES_MAX
from partage.scheduler.answers import Unfit
from partage.scheduler.choice import Chooser, by_numa, joined_subsets

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from partage.scheduler.cards import NodeState
    from partage.scheduler.plan import OnKind, Plan

_STEPS: Final = 400
_USE_SCALE: Final = 1 << 20


class Search:
    """One question. `on`: card -> container -> its share there; `allowed`: container -> cards that take it alone."""

    def __init__(self, node: NodeState, plan: Plan, on: Sequence[Sequence[OnKind]], allowed: Sequence[int]) -> None:
        self._node = node
        self._plan = plan
        self._on = on
        self._allowed = allowed
        self._numa = [kind.numa for kind in node.kinds]
        self._steps = 0
        self._failed: set[object] = set()
        self._chosen: list[int] = []

    def run(self) -> list[list[int]] | Unfit:
        """Return container -> its cards' places in the order of ordinals, or why there is no such choice."""
        plan = self._plan
        for place, want in enumerate(plan.wants):
            code = self._set_refusal(place, want.count)
            if code is not None:
                return Unfit(self._node.name, code, want.name, asked=want.count)
        chosen = self._by_policy()
        if chosen is None and len(plan.wants) > 1:
            chosen = self._any()
        if chosen is None:
            code = Code.SEARCH if self._steps > _STEPS else Code.TOGETHER
            return Unfit(self._node.name, code)
        return [list(bits(mask)) for mask in chosen]

    def _set_refusal(self, place: int, count: int) -> Code | None:
        """Return why no choice of a container's cards is near enough together, though enough of them fit."""
        plan = self._plan
        if count == 1 or not (plan.is_one_numa or plan.is_joined):
            return None
        chooser = self._chooser(place, [])
        if plan.is_one_numa and not chooser.best(self._allowed[place], count, (), joined=False, one_numa=True):
            return Code.NUMA
        if not chooser.best(self._allowed[place], count, (), joined=plan.is_joined, one_numa=plan.is_one_numa):
            return Code.NVLINK
        return None

    def _chooser(self, place: int, beside: Sequence[int]) -> Chooser:
        """Return the choice for a container where cards in `beside` have so many shares of this pod already."""
        node = self._node
        topology = node.topologies[self._plan.wants[place].backend]
        return Chooser(topology, self._uses(place, beside), self._numa, node.empty)

    def _uses(self, place: int, beside: Sequence[int]) -> list[int]:
        """Return how used each card would be with this share on it, by the pod's weights."""
        node, want = self._node, self._plan.wants[place]
        by_slot, by_core, by_memory = self._plan.weights
        uses = []
        for at, kind in enumerate(node.kinds):
            seats = kind.seats - node.seats[at] + 1
            cores = CORES_MAX - node.cores[at] + want.cores
            memory = kind.line - node.memory[at] + self._on[at][place].memory
            for other in beside:  # containers that are on this card
                if self._chosen[other] >> at & 1:
                    seats += 1
                    cores += self._plan.wants[other].cores
                    memory += self._on[at][other].memory
            uses.append(
                by_slot * seats * _USE_SCALE // max(1, kind.seats)
                + by_core * cores * _USE_SCALE // CORES_MAX
                + by_memory * memory * _USE_SCALE // max(1, kind.line)
            )
        return uses

    # ---- the policy's choice ----

    def _by_policy(self) -> list[int] | None:
        plan = self._plan
        self._chosen = [0] * len(plan.wants)
        placed: list[int] = []
        for place in (*plan.running, *plan.inits):
            is_init = place in plan.sidecars_before
            beside = plan.sidecars_before.get(place, placed)
            cards = self._room(place, beside)
            chooser = self._chooser(place, beside)
            mask = 0
            if is_init:
                mask = self._pick(chooser, place, cards & self._reused(place))
            mask = mask or self._pick(chooser, place, cards)
            if not mask:
                return None
            self._chosen[place] = mask
            if not is_init:
                placed.append(place)
        return self._chosen

    def _pick(self, chooser: Chooser, place: int, cards: int) -> int:
        plan = self._plan
        count = plan.wants[place].count
        return chooser.best(cards, count, plan.keys, joined=plan.is_joined, one_numa=plan.is_one_numa)

    def _reused(self, place: int) -> int:
        """Return the cards of which an init container needs no more than the pod has of them anyway."""
        mask = 0
        for at, has in enumerate(self._needs()):
            before = [other for other in self._plan.sidecars_before[place] if self._chosen[other] >> at & 1]
            if all(one <= most for one, most in zip(self._sum(at, [*before, place]), has, strict=True)):
                mask |= 1 << at
        return mask

    def _needs(self) -> list[tuple[int, int, int]]:
        """Return what the pod needs of each card by now: memory, cores, seats."""
        plan = self._plan
        needs = []
        for at in range(len(self._on)):
            sums = [self._sum(at, [place for place in plan.running if self._chosen[place] >> at & 1])]
            for place in plan.inits:
                if self._chosen[place] >> at & 1:
                    before = [other for other in plan.sidecars_before[place] if self._chosen[other] >> at & 1]
                    sums.append(self._sum(at, [*before, place]))
            memory, cores, seats = (max(amounts) for amounts in zip(*sums, strict=True))
            needs.append((memory, cores, seats))
        return needs

    def _sum(self, at: int, places: Sequence[int]) -> tuple[int, int, int]:
        memory = sum(self._on[at][place].memory for place in places)
        return memory, sum(self._plan.wants[place].cores for place in places), len(places)

    def _room(self, place: int, beside: Sequence[int]) -> int:
        """Return the cards that take a container beside these others of its pod, all at the same time."""
        mask = self._allowed[place]
        for at in bits(mask):
            there = [other for other in beside if self._chosen[other] >> at & 1]
            if there and not self._together(at, [*there, place]):
                mask &= ~(1 << at)
        return mask

    def _together(self, at: int, places: Sequence[int]) -> bool:
        """Whether a card that takes each of these shares takes all of them at once."""
        if len(places) < 2:
            return True
        node, wants = self._node, self._plan.wants
        return (
            not any(wants[place].alone for place in places)
            and len(places) <= node.seats[at]
            and sum(self._on[at][place].memory for place in places) <= node.memory[at]
            and sum(wants[place].cores for place in places) <= node.cores[at]
        )

    # ---- any choice ----

    def _any(self) -> list[int] | None:
        self._chosen = [0] * len(self._plan.wants)
        self._steps = 0
        return self._chosen if self._has_room() and self._descend(0) else None

    def _has_room(self) -> bool:
        """Whether the running containers together need no more than is free of all cards that take any of them."""
        node, wants = self._node, self._plan.wants
        cards = [at for at in range(len(self._on)) if any(mask >> at & 1 for mask in self._allowed)]
        running = [(place, wants[place].count) for place in self._plan.running]
        memory = sum(min(self._on[at][place].memory for at in cards) * count for place, count in running)
        cores = sum(wants[place].cores * count for place, count in running)
        room = [node.memory[at] if node.tenants[at] else max(node.memory[at], node.kinds[at].physical) for at in cards]
        return (
            memory <= sum(room)
            and cores <= sum(node.cores[at] for at in cards)
            and sum(count for _, count in running) <= sum(node.seats[at] for at in cards)
        )

    def _descend(self, depth: int) -> bool:
        """Place the running containers from this one on, then the init containers."""
        plan = self._plan
        if depth == len(plan.running):
            return self._place_inits()
        state = (depth, *self._state(depth))
        if state in self._failed:
            return False
        place = plan.running[depth]
        tried: set[tuple[object, ...]] = set()
        for mask in self._choices(place, plan.running[:depth]):
            self._steps += 1
            if self._steps > _STEPS:
                return False
            self._chosen[place] = mask
            outcome = self._state(depth + 1)
            if outcome in tried:
                continue
            tried.add(outcome)
            if self._descend(depth + 1):
                return True
        self._chosen[place] = 0
        self._failed.add(state)
        return False

    def _choices(self, place: int, beside: Sequence[int]) -> Iterator[int]:
        plan = self._plan
        count = plan.wants[place].count
        room = self._room(place, beside)
        topology = self._node.topologies[plan.wants[place].backend]
        for pool in by_numa(self._numa, room) if plan.is_one_numa and count > 1 else [room]:
            yield from joined_subsets(topology, pool, count) if plan.is_joined else subsets(pool, count)

    def _state(self, depth: int) -> tuple[object, ...]:
        """Return what is left to the containers from `depth` on: equal for choices that leave the same behind.

        Where links are asked for, every card is its own; else cards of which all is the same can change places.
        """
        node, plan = self._node, self._plan
        placed = plan.running[:depth]
        cards: list[tuple[object, ...]] = []
        for at, kind in enumerate(node.kinds):
            there = [place for place in placed if self._chosen[place] >> at & 1]
            cards.append(
                (
                    *(mask >> at & 1 for mask in self._allowed),
                    *(one.memory for one in self._on[at]),
                    node.memory[at],
                    node.cores[at],
                    node.seats[at],
                    kind.numa if plan.is_one_numa else 0,
                    any(plan.wants[place].alone for place in there),
                    *self._sum(at, there),
                    # the init containers are held to the sidecars alone, each to those before it
                    tuple(place for place in sorted(there) if plan.inits and plan.wants[place].role is Role.SIDECAR),
                )
            )
        return tuple(cards if plan.is_joined else sorted(cards))

    def _place_inits(self) -> bool:
        plan = self._plan
        for place in plan.inits:
            mask = next(self._choices(place, plan.sidecars_before[place]), 0)
            if not mask:
                return False
            self._chosen[place] = mask
        return True
