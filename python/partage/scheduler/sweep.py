"""Which nodes take a shape, all at once: what `fits` says, from flat lists of numbers, for shapes not met before.

A card's numbers are made so that two comparisons decide: memory is -1 where it is closed or has no seat left, and cores
are one more than all of them where nobody is on it, so that a share that wants the card for itself asks for that. What
these cannot decide (several containers of several cards in little room) is asked of `fits`. Kept by the index, which
tells it of nodes that changed. Cannot fail.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from partage.model.grant import DEVICES_MAX
from partage.model.reasons import Code
from partage.model.share import CORES_MAX
from partage.scheduler.answers import Placement, Unfit
from partage.scheduler.choice import Chooser, remember
from partage.scheduler.fits import fit_plan

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from partage.scheduler.cards import CardKind, NodeState
    from partage.scheduler.plan import Plan

EMPTY: Final = CORES_MAX + 1
#: Containers of one card each for which all ways are gone through here; of more, `fits` knows when to give up.
PACKED_MAX: Final = 4
#: Codes as numbers, 0: none.
NUMBERS: Final = {code: number + 1 for number, code in enumerate(Code)}
UNKNOWN_USE: Final = NUMBERS[Code.CARD_UNKNOWN_USE]
NO_SEAT: Final = NUMBERS[Code.CARD_SEATS]
_NEVER: Final = 1 << 62
_ROOM: Final = 64  # models that may be kept beyond twice those that there are


@dataclass(frozen=True, slots=True)
class Thresholds:
    """What a card of each kind must have for one container, by the kind's number."""

    memory: list[int]
    cores: list[int]


class Sweep:
    """The cards of all nodes in one row."""

    def __init__(self) -> None:
        self.version = 0  # grows whenever a number changes
        self.numbering = 0  # grows whenever kinds have other numbers, or there are more of them
        self._room = _ROOM
        self._clear()

    def _clear(self) -> None:
        self.numbering += 1
        self.kinds: list[CardKind] = []
        self._numbers: dict[int, int] = {}  # id of a kind, which is kept here, -> number
        self._models: dict[int, list[int]] = {}  # model of nodes -> numbers of its kinds
        self.states: list[NodeState] = []
        self.names: list[str] = []
        self.spans: list[tuple[int, int]] = []
        self._row: dict[str, int] = {}
        self.kind: list[int] = []
        self.memory: list[int] = []
        self.cores: list[int] = []
        self.seats: list[int] = []
        self.block: list[int] = []  # what `tally` makes of closed cards and seats
        self.best: list[tuple[int, int]] = []  # of each node the card that has most memory: memory and cores
        self._left: dict[str, list[int]] = {}  # resource -> what kubelet has left of it on each node

    def refresh(self, nodes: Mapping[str, NodeState], stale: Iterable[str]) -> None:
        """Take over the numbers of nodes that changed; of all, where one came, went, or has another number of cards."""
        stale = list(stale)
        self.version += bool(stale)
        is_full = bool(stale) and len(self._models) > self._room  # also of what no node has any more
        in_place = len(nodes) == len(self.states) and all(self._is_in_place(nodes.get(name), name) for name in stale)
        if is_full or not in_place:
            self._clear()
            for name, state in nodes.items():
                self._append(name, state)
            self._room = 2 * len(self._models) + _ROOM
            return
        for name in stale:
            row, state = self._row[name], nodes[name]
            start, end = self.spans[row]
            memory, cores, block = _numbers_of(state)
            self.kind[start:end], self.memory[start:end] = self._kinds_of(state), memory
            self.cores[start:end], self.seats[start:end], self.block[start:end] = cores, state.seats, block
            self.best[row] = _best_of(memory, cores)
            for resource, left in self._left.items():
                left[row] = _left_of(state, resource)

    def left(self, resource: str) -> list[int]:
        """Return how many device ids kubelet has left on each node."""
        found = self._left.get(resource)
        if found is None:
            found = self._left[resource] = [_left_of(state, resource) for state in self.states]
        return found

    def rows(self, names: Iterable[str]) -> list[int]:
        """Return where these nodes are."""
        return [self._row[name] for name in names]

    def row(self, name: str) -> int | None:
        """Return where a node is, None: it is gone."""
        return self._row.get(name)

    def _is_in_place(self, state: NodeState | None, name: str) -> bool:
        row = self._row.get(name)
        if state is None or row is None or self.states[row] is not state:
            return False
        start, end = self.spans[row]
        return end - start == len(state.kinds)

    def _append(self, name: str, state: NodeState) -> None:
        kind, (memory, cores, block) = self._kinds_of(state), _numbers_of(state)
        self._row[name] = len(self.states)
        self.states.append(state)
        self.names.append(name)
        self.spans.append((len(self.kind), len(self.kind) + len(kind)))
        self.kind += kind
        self.memory += memory
        self.cores += cores
        self.seats += state.seats
        self.block += block
        self.best.append(_best_of(memory, cores))

    def _kinds_of(self, state: NodeState) -> list[int]:
        """Return the numbers of its cards' kinds, which all nodes of a model have."""
        found = self._models.get(state.model)
        if found is None:
            found = self._models[state.model] = [self._number(kind) for kind in state.kinds]
        return found

    def _number(self, kind: CardKind) -> int:
        number = self._numbers.get(id(kind))
        if number is None:
            number = self._numbers[id(kind)] = len(self.kinds)
            self.kinds.append(kind)
            self.numbering += 1
        return number


def _numbers_of(state: NodeState) -> tuple[list[int], list[int], list[int]]:
    """Return of each card of a node: memory, cores, and the number of the code with which it refuses every share."""
    cores = [free if tenants else EMPTY for free, tenants in zip(state.cores, state.tenants, strict=True)]
    is_open = state.facts is not None and state.facts.ready
    if is_open and not state.closed and min(state.seats, default=0) > 0:
        return state.memory, cores, [0] * len(cores)
    block = [
        UNKNOWN_USE if uuid in state.closed else NO_SEAT if seats < 1 else 0
        for seats, uuid in zip(state.seats, state.uuids, strict=True)
    ]
    memory = [free if is_open and not code else -1 for free, code in zip(state.memory, block, strict=True)]
    return memory, cores, block


def _best_of(memory: Sequence[int], cores: Sequence[int]) -> tuple[int, int]:
    return max(zip(memory, cores, strict=True), default=(-1, 0))


def _left_of(state: NodeState, resource: str) -> int:
    seats = None if state.facts is None else state.facts.seats
    if seats is None:
        return _NEVER  # not known, so not held to it
    there = seats.get(resource, 0)
    return there - state.seats_used.get(resource, 0) if there else -1


def thresholds(plan: Plan, place: int, kinds: Iterable[CardKind]) -> Thresholds:
    """Return what a card of each of these kinds must have for one container."""
    want, asked = plan.wants[place], plan.shape.containers[place]
    is_alone = want.alone or plan.is_mutex
    memory, cores = [], []
    for kind in kinds:
        on = plan.on(kind)[place]
        is_served = on.code is None and kind.backend == want.backend and on.memory <= kind.physical
        needs_empty = is_alone or (kind.qos is not None and kind.qos is not asked.share_class)
        memory.append((0 if on.mode == "whole" else on.memory) if is_served else _NEVER)
        cores.append(EMPTY if needs_empty else max(1, want.cores))
    return Thresholds(memory, cores)


class Question:
    """One shape, asked of every node. `counts`: container -> row -> how many of the node's cards take it by itself."""

    def __init__(self, sweep: Sweep, plan: Plan) -> None:
        self.sweep = sweep
        self.version = sweep.version
        self.plan = plan
        self.refused: dict[str, Unfit] = {}  # what `fits` had to be asked for
        self._known: dict[tuple[int, ...], Placement | Unfit] = {}  # what is free on a node -> what `fits` says
        self._named = plan.shape.wishes.uuids | plan.shape.wishes.no_uuids
        self.needs: list[Thresholds] = []
        self._flags: list[bytes] = []  # container -> card -> whether it takes it by itself
        self.counts: list[list[int]] = []
        for place in range(len(plan.wants)):
            needs = thresholds(plan, place, sweep.kinds)
            same = next((at for at in range(place) if self.needs[at] == needs), None)
            flags = self._flag(needs) if same is None else self._flags[same]
            self.needs.append(needs)
            self._flags.append(flags)
            self.counts.append(
                [flags.count(1, start, end) for start, end in sweep.spans] if same is None else self.counts[same]
            )

    def fitting(self) -> list[int]:
        """Return the nodes, by row, that take the shape."""
        plan = self.plan
        if plan.too_large or any(want.count > DEVICES_MAX for want in plan.wants):
            return []
        enough = list(range(len(self.sweep.states)))
        for want, counts in zip(plan.wants, self.counts, strict=True):
            enough = [row for row in enough if counts[row] >= want.count]
        for resource, seats in plan.seats.items():
            left = self.sweep.left(resource)
            enough = [row for row in enough if left[row] >= seats]
        if not self._named:
            return self._together(enough)
        # a few nodes have these cards; no card of the others is wanted, or all are
        here = [row for row in enough if not self._named.isdisjoint(self.sweep.states[row].place)]
        others = [] if plan.shape.wishes.uuids else sorted(set(enough).difference(here))
        return [*(row for row in here if self._by_fits(row)), *self._together(others)]

    def masks(self, row: int) -> list[int] | None:
        """Return for each container the node's cards that take it by itself; None: these numbers do not tell."""
        if self._named:
            return None
        start, end = self.sweep.spans[row]
        return [mask_of(flags[start:end]) for flags in self._flags]

    def _flag(self, needs: Thresholds) -> bytes:
        sweep, memory, cores = self.sweep, needs.memory, needs.cores
        return bytes(
            [
                there >= memory[kind] and free >= cores[kind]
                for kind, there, free in zip(sweep.kind, sweep.memory, sweep.cores, strict=True)
            ]
        )

    def _together(self, enough: list[int]) -> list[int]:
        """Return those of the nodes, on which each container by itself finds place, that take all of them."""
        plan = self.plan
        if (plan.is_joined or plan.is_one_numa) and plan.is_many:
            is_single = len(plan.wants) == 1
            return [row for row in enough if (self._is_near(row) if is_single else self._by_fits(row))]
        if plan.is_apart:
            return enough
        if plan.is_singles:
            is_few = len(plan.running) <= PACKED_MAX
            return [row for row in enough if self._takes_singles(row) or (not is_few and self._by_fits(row))]
        return [row for row in enough if self._takes_each_elsewhere(row) or self._by_fits(row)]

    def _by_fits(self, row: int) -> bool:
        """Ask `fits`, once of all nodes on which the same is free, and keep why it refuses."""
        state = self.sweep.states[row]
        key = None
        if not (state.closed or self._named):
            links = map(id, state.topologies.values())
            key = state.model, *links, *state.memory, *state.cores, *state.seats, *state.tenants
        found = None if key is None else self._known.get(key)
        if found is None:
            found = fit_plan(state, self.plan)
            if key is not None:
                self._known[key] = found
        if isinstance(found, Unfit):
            self.refused[state.name] = found if found.node == state.name else replace(found, node=state.name)
            return False
        return True

    def _takes_each_elsewhere(self, row: int) -> bool:
        """Whether enough cards take any of the containers, so that each of their shares has a card of its own."""
        start, end = self.sweep.spans[row]
        masks = [flags[start:end] for flags in self._flags]
        for_any = sum(map(all, zip(*masks, strict=True)))
        return for_any >= sum(want.count for want in self.plan.wants)

    def _takes_singles(self, row: int) -> bool:
        """Whether running containers of one card each find place, on cards of their own or several on one.

        Of many containers only the first way is tried: the hardest first, each on the first card that takes it.
        """
        running, counts = self.plan.running, self.counts
        scarce = sorted(running, key=lambda place: counts[place][row])
        if all(counts[place][row] > taken for taken, place in enumerate(scarce)):
            return True  # whatever the ones before took, each finds another card
        start, end = self.sweep.spans[row]
        packing = _Packing(self.sweep, self.plan, self.needs, self._flags, range(start, end))
        return packing.works(0, is_once=len(running) > PACKED_MAX)

    def _is_near(self, row: int) -> bool:
        """Whether there is a choice that is joined, or on one NUMA node; the answer is kept with the topology."""
        plan, state = self.plan, self.sweep.states[row]
        want = plan.wants[0]
        start, end = self.sweep.spans[row]
        mask = mask_of(self._flags[0][start:end])
        topology = state.topologies[want.backend]
        numa = tuple(kind.numa for kind in state.kinds) if plan.is_one_numa else ()
        key = ("near", mask, want.count, plan.is_joined, numa)
        known = topology.memo.get(key)
        if known is None:
            chooser = Chooser(topology, (), numa, 0)
            best = chooser.best(mask, want.count, (), joined=plan.is_joined, one_numa=plan.is_one_numa)
            known = (best,)
            remember(topology, key, known)
        return known[0] != 0


class _Packing:
    """Running containers of one card each on the cards of one node, one after the other, the hardest first."""

    def __init__(
        self, sweep: Sweep, plan: Plan, needs: Sequence[Thresholds], flags: Sequence[bytes], cards: range
    ) -> None:
        self._sweep = sweep
        self._wants = [plan.wants[place] for place in plan.running]
        self._needs = [needs[place] for place in plan.running]
        self._cards = [[at for at in cards if flags[place][at]] for place in plan.running]
        self._memory: dict[int, int] = {}  # card -> what is left of it, once something is on it
        self._cores: dict[int, int] = {}
        self._is_done = False
        self._seats: dict[int, int] = {}  # 0: somebody has it for itself

    def works(self, depth: int, *, is_once: bool) -> bool:
        """Whether the containers from this one on find place beside those before; `is_once`: by the first way."""
        if depth == len(self._wants):
            self._is_done = True
            return True
        want, needs, sweep = self._wants[depth], self._needs[depth], self._sweep
        for at in self._cards[depth]:
            memory = self._memory.get(at)
            need = needs.memory[sweep.kind[at]]
            if memory is None:
                self._memory[at] = sweep.memory[at] - need
                self._cores[at] = min(CORES_MAX, sweep.cores[at]) - want.cores
                self._seats[at] = 0 if want.alone else sweep.seats[at] - 1
                if self.works(depth + 1, is_once=is_once) or is_once:
                    return self._is_done
                del self._memory[at]
            elif self._seats[at] > 0 and not want.alone and memory >= need and self._cores[at] >= want.cores:
                self._memory[at] -= need
                self._cores[at] -= want.cores
                self._seats[at] -= 1
                if self.works(depth + 1, is_once=is_once) or is_once:
                    return self._is_done
                self._memory[at] += need
                self._cores[at] += want.cores
                self._seats[at] += 1
        return False


def mask_of(flags: bytes) -> int:
    """Return flags as a mask, the first one lowest."""
    found = _MASKS.get(flags)
    if found is None:
        found = _MASKS[flags] = sum(1 << at for at, flag in enumerate(flags) if flag)
    return found


_MASKS: Final[dict[bytes, int]] = {}  # of all that were ever asked for: few
