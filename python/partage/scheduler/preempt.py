"""Which pods must go so that one of higher priority gets its cards: found by the same `fits`, with victims taken away.

kube-scheduler's own preemption sees no shortage of a card's memory or cores, so this is ours. Victims have a lower
priority; of all choices the one is taken that breaks no disruption budget, then the fewest pods, then the lowest
priorities, then those that started last. Pods of a gang go together or not at all. Called by the evictor for a pod that
fits nowhere; pure; None where nobody's end would help, or where what is ending anyway is enough.

Nodes are first compared by what each card lacks, which is arithmetic, and the best of them are then searched; a choice
of more than three pods, or for several cards of a full node, is found by giving back one by one what is not needed: no
pod of it goes in vain, but there may be a choice of fewer.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, cast

from partage.model.need import Need
from partage.scheduler.answers import Placement
from partage.scheduler.budgets import Budget, overdrawn
from partage.scheduler.fits import fit_plan, plan_of

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Sequence

    from partage.model.ask import PodAsk
    from partage.scheduler.cards import NodeState
    from partage.scheduler.plan import Defaults, Plan

NODES: Final = 32  # searched, of those that are compared
EXACT: Final = 3  # so many victims are chosen by trying all choices
TRIES: Final = 200  # of one node
TOGETHER: Final = 12  # units of which all choices are tried where a pod asks for several cards

Cost = tuple[int, int, tuple[int, ...], tuple[tuple[int, int, str], ...]]


@dataclass(frozen=True, slots=True)
class Victim:
    """A pod that could go. `order`: of its grant, larger for one that started later; `gang`: whose end is its too."""

    uid: str
    namespace: str
    name: str
    priority: int
    order: tuple[int, int, str]
    budgets: tuple[Budget, ...] = ()
    gang: str = ""
    elsewhere: bool = False  # of a gang, on another node

    @property
    def is_protected(self) -> bool:
        """Whether it cannot be evicted: a budget allows none, or it has several, which the API evicts no pod of."""
        return len(self.budgets) > 1 or any(budget.allowed < 1 for budget in self.budgets)


@dataclass(frozen=True, slots=True)
class Unit:
    """What goes together: one pod, or all of a gang."""

    pods: tuple[Victim, ...]

    @property
    def here(self) -> tuple[str, ...]:
        """The UIDs of those on the node."""
        return tuple(pod.uid for pod in self.pods if not pod.elsewhere)

    @property
    def priority(self) -> int:
        """The highest of its pods."""
        return max(pod.priority for pod in self.pods)


@dataclass(frozen=True, slots=True)
class Preemption:
    """Who goes, and where the pod will be then."""

    node: str
    victims: tuple[Victim, ...]
    placement: Placement
    cost: Cost = field(compare=False)


def choose_victims(
    nodes: Iterable[NodeState],
    ask: PodAsk,
    units_on: Callable[[NodeState], Sequence[Unit]],
    ending: Callable[[NodeState], Sequence[str]],
    defaults: Defaults,
) -> Preemption | None:
    """Return the best choice over these nodes at once; see `choosing`."""
    steps = choosing(nodes, ask, units_on, ending, defaults)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return cast("Preemption | None", end.value)


def choosing(
    nodes: Iterable[NodeState],
    ask: PodAsk,
    units_on: Callable[[NodeState], Sequence[Unit]],
    ending: Callable[[NodeState], Sequence[str]],
    defaults: Defaults,
) -> Generator[None, None, Preemption | None]:
    """Return the best choice over these nodes in steps of one node: between two of them others may have their turn.

    `units_on`: what may go of a node, all of lower priority; `ending`: UIDs of pods that end there anyway. What changes
    meanwhile may make the choice wrong: whoever takes it asks `fits` once more.
    """
    plan = plan_of(ask.shape, defaults)
    compared: list[tuple[tuple[int, int, int], NodeState, list[Unit]]] = []
    for number, node in enumerate(nodes):
        yield
        soon = node.without(tuple(ending(node)))
        if soon is not node and isinstance(fit_plan(soon, plan), Placement):
            return None
        units = [unit for unit in units_on(node) if not any(pod.is_protected for pod in unit.pods)]
        least = _least(soon, plan, units) if units else None
        if least is not None:
            lowest = sorted(unit.priority for unit in units)[: max(1, least)]
            compared.append(((least, lowest[-1], number), soon, units))
    compared.sort(key=lambda one: one[0])
    best: Preemption | None = None
    for (least, _, _), node, units in compared[:NODES]:
        if best is not None and best.cost[0] == 0 and least > best.cost[1]:
            break
        yield
        found = _on_node(node, plan, units, least)
        if found is not None and (best is None or found.cost < best.cost):
            best = found
    return best


# ---- one node --------------------------------------------------------------------------------------------------------


def _on_node(node: NodeState, plan: Plan, units: Sequence[Unit], least: int) -> Preemption | None:
    """Return the best choice on a node: exact for few victims, else what is left of all after giving back."""
    if not isinstance(_fitted(node, plan, units), Placement):
        return None
    ordered = sorted(units, key=_unit_order)
    best: Preemption | None = None
    tries = itertools.count(1)
    for chosen in _few(node, plan, ordered) if least <= EXACT else ():
        if best is not None and best.cost[0] == 0 and best.cost[1] < len(chosen):
            return best  # breaks no budget, and is of fewer than all that follow
        if (best is not None and cost_of(chosen) >= best.cost) or _least(node, plan, chosen) is None:
            continue
        if next(tries) > TRIES:
            break
        placement = _fitted(node, plan, chosen)
        if isinstance(placement, Placement):
            best = _preemption(node, chosen, placement)
    if best is not None and best.cost[0] == 0:
        return best
    given_back = _given_back(node, plan, ordered)
    return min((one for one in (best, given_back) if one is not None), key=lambda one: one.cost, default=None)


def _few(node: NodeState, plan: Plan, ordered: Sequence[Unit]) -> Iterator[tuple[Unit, ...]]:
    """Yield choices of one unit, of two, of three: of those on one card where one card is asked for, else of all."""
    groups: list[list[Unit]] = [list(ordered)] if len(ordered) <= TOGETHER else []
    if len(plan.wants) == 1 and plan.wants[0].count == 1:
        on_card: dict[str, list[Unit]] = {}
        for unit in ordered:
            for uuid in {uuid for uid in unit.here if uid in node.pods for uuid in node.pods[uid].need}:
                on_card.setdefault(uuid, []).append(unit)
        groups = list(on_card.values())
    for count in range(1, EXACT + 1):
        for group in groups:
            yield from itertools.combinations(group, count)


def _given_back(node: NodeState, plan: Plan, ordered: Sequence[Unit]) -> Preemption | None:
    """Take all away and give back one by one, the highest priority first, of equal ones the smallest."""
    left = node.without(tuple(uid for unit in ordered for uid in unit.here))
    placement = fit_plan(left, plan)
    chosen = []
    for unit in sorted(ordered, key=lambda one: (-one.priority, _size(node, one), _unit_order(one)[1])):
        here = [uid for uid in unit.here if uid in node.pods]
        for uid in here:
            left.add(uid, node.pods[uid])
        found = fit_plan(left, plan)
        if isinstance(found, Placement):
            placement = found
            continue
        chosen.append(unit)
        for uid in here:
            left.remove(uid)
    return _preemption(node, chosen, placement) if isinstance(placement, Placement) and chosen else None


def _fitted(node: NodeState, plan: Plan, units: Sequence[Unit]) -> object:
    return fit_plan(node.without(tuple(uid for unit in units for uid in unit.here)), plan)


def _preemption(node: NodeState, units: Sequence[Unit], placement: Placement) -> Preemption:
    victims = tuple(sorted((pod for unit in units for pod in unit.pods), key=lambda pod: (pod.priority, pod.name)))
    return Preemption(node.name, victims, placement, cost_of(units))


# ---- comparing -------------------------------------------------------------------------------------------------------


def cost_of(units: Sequence[Unit]) -> Cost:
    """Return what a choice is worth: budgets exceeded, pods, their priorities from the top, how long they run."""
    pods = [pod for unit in units for pod in unit.pods]
    priorities = tuple(sorted((pod.priority for pod in pods), reverse=True))
    newest = tuple(sorted((-pod.order[0], -pod.order[1], pod.order[2]) for pod in pods))
    return overdrawn(pod.budgets for pod in pods), len(pods), priorities, newest


def _unit_order(unit: Unit) -> tuple[int, tuple[int, int, str]]:
    """Lowest priority first, of equal ones the newest."""
    latest = max(pod.order for pod in unit.pods)
    return unit.priority, (-latest[0], -latest[1], latest[2])


def _size(node: NodeState, unit: Unit) -> int:
    return sum(need.memory for uid in unit.here if uid in node.pods for need in node.pods[uid].need.values())


def _least(node: NodeState, plan: Plan, units: Sequence[Unit]) -> int | None:
    """Return so many pods as must go at least, None where not even all of them are enough.

    Looks at the container that asks for most: what each card lacks for it alone, and who is on the card.
    """
    place = (plan.running or plan.inits)[0]
    want = plan.wants[place]
    on_card: dict[int, list[Need]] = {}
    for unit in units:
        for uid in unit.here:
            use = node.pods.get(uid)
            for uuid, need in use.need.items() if use is not None else ():
                if uuid in node.place:
                    on_card.setdefault(node.place[uuid], []).append(need)
    counts: list[int] = []
    for at, kind in enumerate(node.kinds):
        on = plan.on(kind)[place]
        if kind.backend != want.backend or on.code is not None:
            continue
        memory = 0 if on.mode == "whole" else on.memory - node.memory[at]  # of a whole card only that nobody is on it
        missing = Need(memory, want.cores - node.cores[at], 1 - node.seats[at])
        if want.alone or plan.is_mutex:
            missing = missing.at_least(Need(seats=node.tenants[at]))
        count = _enough(missing, on_card.get(at, []))
        counts += [] if count is None else [count]
    counts.sort()
    if len(counts) < want.count:
        return None
    return max(1 if any(counts[: want.count]) else 0, *counts[: want.count])


def _enough(missing: Need, there: Sequence[Need]) -> int | None:
    """Return how many of these must go at least to make up for what is missing: of each amount the largest first."""
    counts = []
    for lacking, amounts in (
        (missing.memory, sorted((need.memory for need in there), reverse=True)),
        (missing.cores, sorted((need.cores for need in there), reverse=True)),
        (missing.seats, sorted((need.seats for need in there), reverse=True)),
    ):
        count = _prefix(lacking, amounts)
        if count is None:
            return None
        counts.append(count)
    return max(counts)


def _prefix(lacking: int, amounts: Iterable[int]) -> int | None:
    count = 0
    for amount in amounts:
        if lacking <= 0:
            break
        lacking -= amount
        count += 1
    return count if lacking <= 0 else None


def units_of(victims: Iterable[Victim]) -> Iterator[Unit]:
    """Yield what goes together."""
    gangs: dict[str, list[Victim]] = {}
    for victim in victims:
        if victim.gang:
            gangs.setdefault(victim.gang, []).append(victim)
        else:
            yield Unit((victim,))
    for pods in gangs.values():
        yield Unit(tuple(pods))
