"""What would make a pod fit that fits nowhere: changes of the pod or of a node, each tried with the same `fits`.

Called by `partage explain` and `partage simulate`. Every suggestion was tried: with it the pod has a place on the node
that it names. Those that take least from the pod come first: a wish about cards, then less memory, fewer cores, fewer
cards; then what somebody else would have to do, on a node or by ending pods. Pure; at a thousand nodes some hundred
milliseconds, since a node is looked at closely only where it is among the best for a change. Cannot fail; there may be
no suggestion at all.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import msgspec

from partage.model import names
from partage.model.share import CORES_MAX, ShareClass
from partage.model.units import MI
from partage.scheduler.answers import Placement, Unfit
from partage.scheduler.cards import NodeState
from partage.scheduler.fits import card_refusal, fit_plan, plan_of
from partage.scheduler.kinds import Kinds
from partage.scheduler.preempt import Unit, Victim, choose_victims, units_of
from partage.scheduler.quota.meters import METERS, PREFIX, format_amount

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from partage.model.ask import ContainerAsk, PodAsk, Shape
    from partage.scheduler.facts import NodeFacts
    from partage.scheduler.plan import Defaults

CLOSELY: Final = 8  # nodes tried for one change of amounts, the best first
STEP_CORES: Final = 10  # permille: HAMi's resources have whole percents
CORDON: Final = "hami.io/device-cordon"
_PERCENT: Final = 10
_INDEXES: Final = f"leave out the wanted card indexes ({names.USE_INDEX}, nvidia.com/use-gpuindexes)"
_NO_INDEXES: Final = f"leave out the unwanted card indexes ({names.NO_USE_INDEX}, nvidia.com/nouse-gpuindexes)"


@dataclass(frozen=True, slots=True)
class Suggestion:
    """One change with which the pod fits on `node`. `ask`: changed; `facts`: of the changed node; `ended`: UIDs."""

    text: str
    node: str
    ask: PodAsk
    facts: NodeFacts | None = None
    ended: tuple[str, ...] = ()


@dataclass(slots=True)
class Situation:
    """All there is to try changes on. `state`: nodes as the pod finds them, itself not counted."""

    ask: PodAsk
    nodes: Sequence[NodeState]
    defaults: Defaults
    shared: Kinds = field(default_factory=Kinds)

    def first(self, ask: PodAsk, nodes: Iterable[NodeState] | None = None) -> str | None:
        """Return the first node that takes a changed ask."""
        plan = plan_of(ask.shape, self.defaults)
        for node in self.nodes if nodes is None else nodes:
            if isinstance(fit_plan(node, plan), Placement):
                return node.name
        return None


def suggestions(ask: PodAsk, nodes: Iterable[NodeState], defaults: Defaults) -> Iterator[Suggestion]:
    """Yield changes, each of which is enough, the smallest first."""
    situation = Situation(ask, [node.without((ask.uid,)) for node in nodes], defaults)
    yield from _wishes(situation)
    yield from _amounts(situation)
    yield from _cards(situation)
    yield from _classes(situation)
    yield from _uncordon(situation)
    yield from _endings(situation)
    yield from _repairs(situation)


# ---- wishes ----------------------------------------------------------------------------------------------------------


def _wishes(situation: Situation) -> Iterator[Suggestion]:
    """Without one of the pod's wishes, else without all of them."""
    shape = situation.ask.shape
    wishes = shape.wishes
    named: list[tuple[object, dict[str, object], str]] = [
        (wishes.types, {"types": ()}, "leave out the wanted card types (nvidia.com/use-gputype)"),
        (wishes.no_types, {"no_types": ()}, "leave out the unwanted card types (nvidia.com/nouse-gputype)"),
        (wishes.uuids, {"uuids": frozenset()}, "leave out the wanted cards (nvidia.com/use-gpuuuid)"),
        (wishes.no_uuids, {"no_uuids": frozenset()}, "leave out the unwanted cards (nvidia.com/nouse-gpuuuid)"),
        (wishes.indexes, {"indexes": frozenset()}, _INDEXES),
        (
            wishes.no_indexes,
            {"no_indexes": frozenset()},
            _NO_INDEXES,
        ),
        (wishes.one_numa_node, {"one_numa_node": False}, "leave out nvidia.com/numa-bind"),
        (wishes.nvlink == "required", {"nvlink": "preferred"}, f"set {names.NVLINK}: preferred"),
        (
            "mutex" in wishes.card_policies,
            {"card_policies": tuple(word for word in wishes.card_policies if word != "mutex")},
            "leave mutex out of hami.io/gpu-scheduler-policy",
        ),
    ]
    present = [(change, text) for is_there, change, text in named if is_there]
    found = False
    for change, text in present:
        changed = _with_shape(situation.ask, replace(shape, wishes=replace(wishes, **change)))  # type: ignore[arg-type]
        node = situation.first(changed)
        if node is not None:
            found = True
            yield Suggestion(text, node, changed)
    modeless = tuple(replace(one, mode=None) for one in shape.containers)
    if modeless != shape.containers:
        changed = _with_shape(situation.ask, replace(shape, containers=modeless))
        node = situation.first(changed)
        if node is not None:
            found = True
            yield Suggestion("leave out nvidia.com/vgpu-mode", node, changed)
    if found or len(present) < 2:
        return
    everything: dict[str, object] = {}
    for change, _ in present:
        everything |= change
    changed = _with_shape(situation.ask, replace(shape, wishes=replace(wishes, **everything)))  # type: ignore[arg-type]
    node = situation.first(changed)
    if node is not None:
        yield Suggestion("; ".join(text for _, text in present), node, changed)


# ---- less ------------------------------------------------------------------------------------------------------------


def _amounts(situation: Situation) -> Iterator[Suggestion]:
    """Less memory, fewer cores, or both, in one container: as much of it as the best card has."""
    for number, one in enumerate(situation.ask.shape.containers):
        memory = _less_memory(situation, number, one.cores)
        if memory is not None:
            yield memory
        cores = _fewer_cores(situation, number)
        if cores is not None:
            yield cores
        if memory is None and cores is None and one.cores:
            both = _less_of_both(situation, number)
            if both is not None:
                yield both


def _less_memory(situation: Situation, number: int, cores: int) -> Suggestion | None:
    one = situation.ask.shape.containers[number]
    if one.profile:
        return None
    trial = _amount(situation, number, memory=1, cores=cores)
    for free, node in _best(
        situation, trial, number, lambda state, at: min(state.memory[at], state.kinds[at].physical)
    ):
        most = _largest(situation, node, free // MI, lambda mib: _amount(situation, number, mib * MI, cores))
        if most and not _is_more(one, most * MI, node):
            return _suggest(situation, number, node, most * MI, cores)
    return None


def _fewer_cores(situation: Situation, number: int) -> Suggestion | None:
    one = situation.ask.shape.containers[number]
    if not one.cores:
        return None
    trial = _amount(situation, number, memory=one.memory, cores=0)
    for free, node in _best(situation, trial, number, lambda state, at: state.cores[at]):
        steps = min(free, one.cores - 1) // STEP_CORES
        most = _largest(situation, node, steps, lambda step: _amount(situation, number, one.memory, step * STEP_CORES))
        if most:
            return _suggest(situation, number, node, one.memory, most * STEP_CORES)
    return None


def _less_of_both(situation: Situation, number: int) -> Suggestion | None:
    """Take the cores of the card with most memory, and then its memory."""
    one = situation.ask.shape.containers[number]
    trial = _amount(situation, number, memory=1, cores=0)
    for free, node in _best(situation, trial, number, lambda state, at: state.cores[at]):
        cores = min(free, one.cores) // STEP_CORES * STEP_CORES
        found = _less_memory(replace(situation, nodes=[node]), number, cores) if cores else None
        if found is not None:
            return found
    return None


def _best(
    situation: Situation, trial: PodAsk, number: int, free: Callable[[NodeState, int], int]
) -> list[tuple[int, NodeState]]:
    """Return what is free on the cards for one container of a nearly empty ask, of the nodes with most of it."""
    plan = plan_of(trial.shape, situation.defaults)
    want = plan.wants[number]
    found = []
    for node in situation.nodes:
        if node.facts is None or not node.facts.ready:
            continue
        amounts = sorted(
            (
                free(node, at)
                for at, kind in enumerate(node.kinds)
                if kind.backend == want.backend and card_refusal(node, plan, number, at, plan.on(kind)[number]) is None
            ),
            reverse=True,
        )
        if len(amounts) >= want.count and amounts[want.count - 1] > 0:
            found.append((amounts[want.count - 1], node))
    found.sort(key=lambda one: (-one[0], one[1].name))
    return found[:CLOSELY]


def _largest(situation: Situation, node: NodeState, most: int, changed: Callable[[int], PodAsk]) -> int:
    """Return the largest number up to `most` with which the node takes the ask, 0 for none: nearly always `most`."""

    def fits(number: int) -> bool:
        return isinstance(fit_plan(node, plan_of(changed(number).shape, situation.defaults)), Placement)

    if most < 1 or fits(most):
        return max(0, most)
    low, high = 0, most
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _is_more(one: ContainerAsk, memory: int, node: NodeState) -> bool:
    """Whether an amount is no less than what is asked."""
    if one.memory is not None:
        return memory >= one.memory
    percent = CORES_MAX if one.percent is None else one.percent
    return all(memory >= kind.allocatable * percent // CORES_MAX for kind in node.kinds if kind.backend == one.backend)


def _amount(situation: Situation, number: int, memory: int | None, cores: int) -> PodAsk:
    """Return the ask with other amounts in one container; without cores it has no guarantee."""
    one = situation.ask.shape.containers[number]
    kind = ShareClass.BURST if one.share_class is ShareClass.FIXED and not cores else one.share_class
    percent = one.percent if memory is None else None
    ceiling = cores if kind is ShareClass.FIXED and one.ceiling is not None else one.ceiling
    changed = replace(one, memory=memory, percent=percent, cores=cores, share_class=kind, ceiling=ceiling)
    return _with_container(situation.ask, number, changed)


def _suggest(situation: Situation, number: int, node: NodeState, memory: int | None, cores: int) -> Suggestion:
    """Write a change of amounts as the user would write it into the pod."""
    one = situation.ask.shape.containers[number]
    parts = []
    if memory != one.memory and memory is not None:
        parts.append(f"{_written(one, 'memory', memory)}{_instead(one, 'memory', one.memory)}")
    if cores != one.cores:
        parts.append(f"{_written(one, 'cores', cores)}{_instead(one, 'cores', one.cores)}")
    text = f"ask for {' and '.join(parts)} in container {one.name}"
    return Suggestion(text, node.name, _amount(situation, number, memory, cores))


def _written(one: ContainerAsk, kind: str, amount: int) -> str:
    name, shown = _of_meter(one, kind, amount)
    return f"{name}: {shown}"


def _instead(one: ContainerAsk, kind: str, asked: int | None) -> str:
    if asked is not None:
        return f" in place of {_of_meter(one, kind, asked)[1]}"
    percent = CORES_MAX if one.percent is None else one.percent
    return f" in place of {percent / _PERCENT:g} % of a card"


def _of_meter(one: ContainerAsk, kind: str, amount: int) -> tuple[str, str]:
    """Return the resource's name and an amount in its unit, rounded down."""
    domain = one.resource.split("/")[0]
    meters = [meter for meter in METERS if meter.counts(one.backend, one.resource) and meter.kind == kind]
    meters.sort(key=lambda meter: meter.key.split("/")[0] != PREFIX + domain)
    if not meters:
        return kind, str(amount)
    whole = amount // meters[0].unit * meters[0].unit
    return meters[0].key.removeprefix(PREFIX), format_amount(meters[0], whole, like="")


# ---- other shares ----------------------------------------------------------------------------------------------------


def _cards(situation: Situation) -> Iterator[Suggestion]:
    """Fewer cards: as many as some node has together."""
    for number, one in enumerate(situation.ask.shape.containers):
        for count in range(one.cards - 1, 0, -1):
            changed = _with_container(situation.ask, number, replace(one, cards=count))
            node = situation.first(changed)
            if node is not None:
                text = f"ask for {one.resource}: {count} in place of {one.cards} in container {one.name}"
                yield Suggestion(text, node, changed)
                break


def _classes(situation: Situation) -> Iterator[Suggestion]:
    """Another class for all containers, where cards serve one class at a time or have no cores left to guarantee."""
    shape = situation.ask.shape
    for kind in ShareClass:
        if kind is ShareClass.FIXED and not all(one.cores for one in shape.containers):
            continue
        containers = tuple(
            replace(
                one,
                share_class=kind,
                cores=0 if kind is ShareClass.BEST_EFFORT else one.cores,
                ceiling=one.cores or None if kind is ShareClass.BEST_EFFORT else None,
            )
            for one in shape.containers
        )
        if all(one.share_class is kind for one in shape.containers):
            continue
        changed = _with_shape(situation.ask, replace(shape, containers=containers))
        node = situation.first(changed)
        if node is not None:
            yield Suggestion(f"set {names.CLASS}: {kind.value}", node, changed)


# ---- what others would have to do ------------------------------------------------------------------------------------


def _uncordon(situation: Situation) -> Iterator[Suggestion]:
    """Cards that an administrator keeps new pods off."""
    for node in situation.nodes:
        facts = node.facts
        if facts is None or not facts.cordoned:
            continue
        placement = _on_changed(situation, node, replace(facts, cordoned=frozenset()))
        if placement is not None:
            cards = sorted(facts.cordoned & _cards_of(placement))
            text = f"take {', '.join(cards)} out of annotation {CORDON} of node {node.name}"
            changed = replace(facts, cordoned=facts.cordoned - set(cards))
            yield Suggestion(text, node.name, situation.ask, facts=changed)
            return


def _repairs(situation: Situation) -> Iterator[Suggestion]:
    """Nodes that are not ready and cards that are not well: the first of each that would do."""
    for node in situation.nodes:
        facts = node.facts
        if facts is not None and not facts.ready:
            changed = replace(facts, ready=True)
            if _on_changed(situation, node, changed) is not None:
                text = f"see why node {node.name} is not ready: `kubectl describe node {node.name}`"
                yield Suggestion(text, node.name, situation.ask, facts=changed)
                break
    for node in situation.nodes:
        facts = node.facts
        if facts is None or facts.devices is None or all(card.health for card in facts.devices.devices):
            continue
        well = tuple(msgspec.structs.replace(card, health=True) for card in facts.devices.devices)
        changed = replace(facts, devices=msgspec.structs.replace(facts.devices, devices=well))
        placement = _on_changed(situation, node, changed)
        if placement is not None:
            ill = sorted(card.uuid for card in facts.devices.devices if not card.health)
            cards = ", ".join(uuid for uuid in ill if uuid in _cards_of(placement))
            text = f"see why {cards} of node {node.name} is not well: `partage doctor` there"
            yield Suggestion(text, node.name, situation.ask, facts=changed)
            return


def _endings(situation: Situation) -> Iterator[Suggestion]:
    """End the fewest pods that are enough, whoever they are."""
    of_uid: dict[str, str] = {}

    def units(node: NodeState) -> list[Unit]:
        victims = []
        for uid, use in node.pods.items():
            of_uid[uid] = use.subject
            if not use.reserved:
                victims.append(Victim(uid, "", use.subject, use.priority, use.order))
        return list(units_of(victims))

    found = choose_victims(situation.nodes, situation.ask, units, lambda _: (), situation.defaults)
    if found is not None:
        ended = tuple(victim.uid for victim in found.victims)
        who = ", ".join(of_uid[uid] for uid in ended)
        text = f"end, or wait for the end of, {who} on node {found.node}"
        yield Suggestion(text, found.node, situation.ask, ended=ended)


def _on_changed(situation: Situation, node: NodeState, facts: NodeFacts) -> Placement | None:
    """Return where the pod goes on a node that is otherwise as it is."""
    changed = NodeState(node.name, situation.shared)
    changed.pods = dict(node.pods)
    changed.set_facts(facts)
    found = fit_plan(changed, plan_of(situation.ask.shape, situation.defaults))
    return None if isinstance(found, Unfit) else found


def _cards_of(placement: Placement) -> set[str]:
    return {card.uuid for part in placement.containers for card in part.cards}


def _with_shape(ask: PodAsk, shape: Shape) -> PodAsk:
    return replace(ask, shape=shape)


def _with_container(ask: PodAsk, number: int, changed: ContainerAsk) -> PodAsk:
    containers = (*ask.shape.containers[:number], changed, *ask.shape.containers[number + 1 :])
    return replace(ask, shape=replace(ask.shape, containers=containers))
