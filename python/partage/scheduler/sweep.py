"""Which nodes take a shape, all at once: what `fits` says, from flat lists of numbers, for shapes not met before.

A card's numbers are made so that two comparisons decide: memory is -1 where it is closed or has no seat left, and cores
are one more than all of them where nobody is on it, so that a share that wants the card for itself asks for that. What
these cannot decide (several containers in little room, links between several) is asked of `fits`. Kept by the index,
which tells it of nodes that changed. Cannot fail.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from partage.model.grant import DEVICES_MAX, GRANT_BYTES_MAX
from partage.model.share import CORES_MAX
from partage.scheduler.answers import Placement
from partage.scheduler.choice import Chooser
from partage.scheduler.fits import fit_plan, seats_refusal

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from partage.scheduler.cards import CardKind, NodeState
    from partage.scheduler.plan import Plan

EMPTY: Final = CORES_MAX + 1
_NEVER: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class Thresholds:
    """What a card of each kind must have for one container, by the kind's number."""

    memory: list[int]
    cores: list[int]


class Sweep:
    """The cards of all nodes in one row."""

    def __init__(self) -> None:
        self._kinds: list[CardKind] = []
        self._numbers: dict[int, int] = {}  # id of a kind, which its owner keeps for ever, -> number
        self._clear()

    def _clear(self) -> None:
        self._states: list[NodeState] = []
        self._spans: list[tuple[int, int]] = []
        self._row: dict[str, int] = {}
        self._kind: list[int] = []
        self._memory: list[int] = []
        self._cores: list[int] = []
        self._seats: list[int] = []

    def refresh(self, nodes: Mapping[str, NodeState], stale: Iterable[str]) -> None:
        """Take over the numbers of nodes that changed; of all, where one came, went, or has another number of cards."""
        stale = list(stale)
        if len(nodes) != len(self._states) or not all(self._is_in_place(nodes.get(name), name) for name in stale):
            self._clear()
            for name, state in nodes.items():
                self._append(name, state)
            return
        for name in stale:
            row = self._row[name]
            start, end = self._spans[row]
            kind, memory, cores, seats = self._numbers_of(nodes[name])
            self._kind[start:end], self._memory[start:end] = kind, memory
            self._cores[start:end], self._seats[start:end] = cores, seats

    def fitting(self, plan: Plan) -> set[str]:
        """Return the nodes that take a shape."""
        if plan.grant_bytes > GRANT_BYTES_MAX or any(want.count > DEVICES_MAX for want in plan.wants):
            return set()
        question = _Question(self, plan)
        rows = question.rows()
        return {state.name for state in map(self._states.__getitem__, rows) if seats_refusal(state, plan) is None}

    def _is_in_place(self, state: NodeState | None, name: str) -> bool:
        row = self._row.get(name)
        if state is None or row is None or self._states[row] is not state:
            return False
        start, end = self._spans[row]
        return end - start == len(state.kinds)

    def _append(self, name: str, state: NodeState) -> None:
        kind, memory, cores, seats = self._numbers_of(state)
        self._row[name] = len(self._states)
        self._states.append(state)
        self._spans.append((len(self._kind), len(self._kind) + len(kind)))
        self._kind += kind
        self._memory += memory
        self._cores += cores
        self._seats += seats

    def _numbers_of(self, state: NodeState) -> tuple[list[int], list[int], list[int], list[int]]:
        is_open = state.facts is not None and state.facts.ready
        memory = [
            free if is_open and seats > 0 and not (state.closed and uuid in state.closed) else -1
            for free, seats, uuid in zip(state.memory, state.seats, state.uuids, strict=True)
        ]
        cores = [free if tenants else EMPTY for free, tenants in zip(state.cores, state.tenants, strict=True)]
        return [self._number(kind) for kind in state.kinds], memory, cores, state.seats[:]

    def _number(self, kind: CardKind) -> int:
        number = self._numbers.get(id(kind))
        if number is None:
            number = self._numbers[id(kind)] = len(self._kinds)
            self._kinds.append(kind)
        return number

    # ---- for one question ----

    def thresholds(self, plan: Plan, place: int) -> Thresholds:
        """Return what each kind of card must have for one container."""
        want, asked = plan.wants[place], plan.shape.containers[place]
        is_alone = want.alone or plan.is_mutex
        memory, cores = [], []
        for kind in self._kinds:
            on = plan.on(kind)[place]
            served = on.code is None and kind.backend == want.backend and on.memory <= kind.physical
            needs_empty = is_alone or (kind.qos is not None and kind.qos is not asked.share_class)
            memory.append((0 if on.mode == "whole" else on.memory) if served else _NEVER)
            cores.append(EMPTY if needs_empty else max(1, want.cores))
        return Thresholds(memory, cores)

    def flags(self, needs: Thresholds) -> list[bool]:
        """Return for every card whether it has that."""
        memory, cores = needs.memory, needs.cores
        return [
            there >= memory[kind] and free >= cores[kind]
            for kind, there, free in zip(self._kind, self._memory, self._cores, strict=True)
        ]

    def counts(self, flags: Sequence[bool]) -> list[int]:
        """Return for every node how many of its cards are flagged."""
        return [sum(flags[start:end]) for start, end in self._spans]

    def span(self, row: int) -> tuple[int, int]:
        """Return where a node's cards are."""
        return self._spans[row]

    def state(self, row: int) -> NodeState:
        """Return a node."""
        return self._states[row]

    def takes_both(self, card: int, one: Thresholds, other: Thresholds, cores: int) -> bool:
        """Whether a card takes two shares at once; `cores`: of both."""
        kind = self._kind[card]
        return (
            self._memory[card] >= one.memory[kind] + other.memory[kind]
            and self._cores[card] >= cores
            and self._seats[card] > 1
        )


class _Question:
    """One shape, asked of every row."""

    def __init__(self, sweep: Sweep, plan: Plan) -> None:
        self._sweep = sweep
        self._plan = plan
        self._needs: list[Thresholds] = []
        self._flags: list[list[bool]] = []
        self._counts: list[list[int]] = []
        for place in range(len(plan.wants)):
            needs = sweep.thresholds(plan, place)
            same = next((at for at in range(place) if self._needs[at] == needs), None)
            self._needs.append(needs)
            self._flags.append(sweep.flags(needs) if same is None else self._flags[same])
            self._counts.append(sweep.counts(self._flags[place]) if same is None else self._counts[same])

    def rows(self) -> list[int]:
        """Return the nodes whose cards take the shape."""
        plan = self._plan
        enough = list(range(len(self._counts[0])))
        for want, counts in zip(plan.wants, self._counts, strict=True):
            enough = [row for row in enough if counts[row] >= want.count]
        named = plan.shape.wishes.uuids | plan.shape.wishes.no_uuids
        if named:  # a few nodes have these cards; no card of the others is wanted, or all are
            here = [row for row in enough if not named.isdisjoint(self._sweep.state(row).place)]
            fitting = [row for row in here if self._by_fits(row)]
            others = set(enough).difference(here) if not plan.shape.wishes.uuids else set()
            return [*fitting, *self._together(sorted(others))]
        return self._together(enough)

    def _together(self, enough: list[int]) -> list[int]:
        """Return those of the nodes, on which each container by itself finds place, that take all of them."""
        plan = self._plan
        if (plan.is_joined or plan.is_one_numa) and any(want.count > 1 for want in plan.wants):
            is_single = len(plan.wants) == 1
            return [row for row in enough if (self._is_near(row) if is_single else self._by_fits(row))]
        if plan.is_apart:
            return enough
        if plan.is_pair:
            return [row for row in enough if self._takes_pair(row)]
        return [row for row in enough if self._takes_all(row)]

    def _by_fits(self, row: int) -> bool:
        return isinstance(fit_plan(self._sweep.state(row), self._plan), Placement)

    def _takes_pair(self, row: int) -> bool:
        """Whether two running containers of one card each find place: on two cards, or both on one."""
        one, other = self._plan.running
        if self._counts[one][row] > 1 or self._counts[other][row] > 1:
            return True
        start, end = self._sweep.span(row)
        card = self._flags[one].index(True, start, end)
        if not self._flags[other][card]:
            return True
        wants = self._plan.wants
        if wants[one].alone or wants[other].alone:
            return False
        return self._sweep.takes_both(card, self._needs[one], self._needs[other], wants[one].cores + wants[other].cores)

    def _takes_all(self, row: int) -> bool:
        start, end = self._sweep.span(row)
        for_any = sum(map(all, zip(*(flags[start:end] for flags in self._flags), strict=True)))
        return for_any >= sum(want.count for want in self._plan.wants) or self._by_fits(row)

    def _is_near(self, row: int) -> bool:
        """Whether there is a choice that is joined, or on one NUMA node; the answer is kept with the topology."""
        plan, state = self._plan, self._sweep.state(row)
        want = plan.wants[0]
        start, end = self._sweep.span(row)
        mask = sum(1 << at for at, flag in enumerate(self._flags[0][start:end]) if flag)
        topology = state.topologies[want.backend]
        numa = tuple(kind.numa for kind in state.kinds) if plan.is_one_numa else ()
        key = ("near", mask, want.count, plan.is_joined, numa)
        known = topology.memo.get(key)
        if known is None:
            chooser = Chooser(topology, (), numa, 0)
            best = chooser.best(mask, want.count, (), joined=plan.is_joined, one_numa=plan.is_one_numa)
            known = topology.memo[key] = (best,)
        return known[0] != 0
