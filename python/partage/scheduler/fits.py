"""Does this pod fit on this node, on which cards, or why not: the one function for filter, bind, rebuild and simulate.

First node, then each card by itself in the order of the codes below, then all containers together (`search`). A card
takes a share where it is well, open, of the wanted type, mode, UUID, index and class, has a seat, and has memory and
cores left; a guarantee of all cores needs a card on which nobody is, and no share goes to a card whose cores are all
promised, since one without a guarantee would never run there. Integers only; pure; cannot fail.
"""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from partage.model.grant import DEVICES_MAX
from partage.model.need import Need, need_of
from partage.model.reasons import Code
from partage.model.share import CORES_MAX
from partage.scheduler.answers import CardVerdict, PlacedCard, PlacedContainer, Placement, Unfit
from partage.scheduler.plan import Defaults, Plan
from partage.scheduler.search import Search

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from partage.model.ask import Shape
    from partage.scheduler.cards import NodeState
    from partage.scheduler.plan import OnKind

_PLANS: Final = 2048
#: The order in which codes are looked for: the later ones are nearer to a fit.
RANK: Final = {code: place for place, code in enumerate(Code)}


@lru_cache(maxsize=_PLANS)
def plan_of(shape: Shape, defaults: Defaults) -> Plan:
    """Return what is worked out of a shape once."""
    return Plan(shape, defaults)


def fits(
    node: NodeState, ask: Shape, *, without: Collection[str] = (), defaults: Defaults | None = None
) -> Placement | Unfit:
    """Return where on the node a pod of this shape goes, or why nowhere; `without`: UIDs of pods taken away first."""
    return fit_plan(node.without(without) if without else node, plan_of(ask, defaults or _HAMI))


def fit_plan(node: NodeState, plan: Plan) -> Placement | Unfit:
    """Return the same for a shape made ready."""
    refusal = node_refusal(node, plan)
    if refusal is not None:
        return refusal
    on = [plan.on(kind) for kind in node.kinds]
    masks = []
    for place, want in enumerate(plan.wants):
        mask = allowed(node, plan, place)
        if mask.bit_count() < want.count:
            return _too_few(node, plan, place, on)
        masks.append(mask)
    found = Search(node, plan, on, masks).run()
    return found if isinstance(found, Unfit) else _placement(node, plan, on, found)


def allowed(node: NodeState, plan: Plan, place: int) -> int:
    """Return the cards, as a mask, that take one container's share if the pod has no other container."""
    backend = plan.wants[place].backend
    mask = 0
    for at, kind in enumerate(node.kinds):
        if kind.backend == backend and card_refusal(node, plan, place, at, plan.on(kind)[place]) is None:
            mask |= 1 << at
    return mask


def node_refusal(  # noqa: PLR0911 -- one code after the other
    node: NodeState, plan: Plan
) -> Unfit | None:
    """Return why a node takes no pod of this shape whatever is free of its cards; None where it may."""
    facts = node.facts
    if facts is None:
        return Unfit(node.name, Code.NODE_UNKNOWN)
    if facts.devices is None or not node.kinds:
        code = Code.NODE_UNREADABLE if facts.problem else Code.NODE_NO_DEVICES
        return Unfit(node.name, code, note=facts.problem)
    if not facts.ready:
        return Unfit(node.name, Code.NODE_NOT_READY)
    if plan.too_large:
        return Unfit(node.name, Code.POD_TOO_LARGE, note=plan.too_large)
    for want in plan.wants:
        if want.backend not in node.topologies:
            code = Code.BACKEND if any(kind.backend == want.backend for kind in node.kinds) else Code.NODE_CARDS
            return Unfit(node.name, code, want.name, asked=want.count if code is Code.NODE_CARDS else 0)
        there = min(DEVICES_MAX, sum(kind.backend == want.backend for kind in node.kinds))
        if there < want.count:
            return Unfit(node.name, Code.NODE_CARDS, want.name, asked=want.count, there=there)
    return seats_refusal(node, plan)


def seats_refusal(node: NodeState, plan: Plan) -> Unfit | None:
    """Return why kubelet would not let the pod in; None where it would, or where its numbers are not known."""
    facts = node.facts
    if facts is None or facts.seats is None:
        return None
    for resource, seats in plan.seats.items():
        there = facts.seats.get(resource, 0)
        if not there:
            return Unfit(node.name, Code.NODE_NOT_READY, note=f"kubelet has no {resource}")
        left = there - node.seats_used.get(resource, 0)
        if left < seats:
            return Unfit(node.name, Code.NODE_SEATS, asked=seats, there=max(0, left))
    return None


def card_refusal(  # noqa: PLR0911 -- one code after the other
    node: NodeState, plan: Plan, place: int, at: int, on: OnKind
) -> Code | None:
    """Return why a card takes no share of one container, with everybody else's use of it; None where it does."""
    if on.code is not None:
        return on.code
    want, wishes, uuid = plan.wants[place], plan.shape.wishes, node.uuids[at]
    if (wishes.uuids and uuid not in wishes.uuids) or uuid in wishes.no_uuids:
        return Code.CARD_UUID
    if uuid in node.closed:
        return Code.CARD_UNKNOWN_USE
    tenants = node.tenants[at]
    if tenants:
        qos = node.kinds[at].qos
        if qos is not None and not want.alone and qos is not plan.shape.containers[place].share_class:
            return Code.CARD_QOS
    if node.seats[at] < 1:
        return Code.CARD_SEATS
    if tenants and (want.alone or plan.is_mutex):
        return Code.CARD_NOT_EMPTY
    if on.memory > (node.kinds[at].physical if on.mode == "whole" else min(node.memory[at], node.kinds[at].physical)):
        return Code.CARD_MEMORY
    if want.cores > node.cores[at]:
        return Code.CARD_CORES
    if node.cores[at] < 1:
        return Code.CARD_CORES_GONE
    return None


def card_verdicts(node: NodeState, plan: Plan, place: int) -> tuple[CardVerdict, ...]:
    """Return what each card of the vendor says to one container, by index."""
    want = plan.wants[place]
    return tuple(
        CardVerdict(
            node.uuids[at],
            kind.index,
            kind.product,
            card_refusal(node, plan, place, at, plan.on(kind)[place]),
            max(0, node.memory[at]),
            max(0, node.cores[at]),
            max(0, node.seats[at]),
            node.tenants[at],
            node.closed.get(node.uuids[at], ""),
        )
        for at, kind in enumerate(node.kinds)
        if kind.backend == want.backend
    )


def _too_few(node: NodeState, plan: Plan, place: int, on: Sequence[Sequence[OnKind]]) -> Unfit:
    """Say why too few cards take a container: each code with how many cards, the commonest first."""
    want = plan.wants[place]
    counts: Counter[Code] = Counter()
    asked = there = 0
    for at, kinds in enumerate(on):
        if node.kinds[at].backend != want.backend:
            continue
        code = card_refusal(node, plan, place, at, kinds[place])
        if code is not None:
            counts[code] += 1
    code = max(counts, key=lambda one: (counts[one], RANK[one]))
    if code is Code.CARD_MEMORY:
        asked, there = _best(node, plan, place, on, node.memory, code)
    elif code is Code.CARD_CORES:
        asked, there = _best(node, plan, place, on, node.cores, code)
    of = sum(kind.backend == want.backend for kind in node.kinds)
    return Unfit(node.name, code, want.name, tuple(counts.items()), of, asked, there)


def _best(  # noqa: PLR0913, PLR0917 -- the same of memory and of cores
    node: NodeState, plan: Plan, place: int, on: Sequence[Sequence[OnKind]], free: Sequence[int], code: Code
) -> tuple[int, int]:
    """Return what is asked and what is free on the card that lacks least of it."""
    want = plan.wants[place]
    lacking = [
        (free[at] - asked, asked, max(0, free[at]))
        for at, kinds in enumerate(on)
        if node.kinds[at].backend == want.backend
        and card_refusal(node, plan, place, at, kinds[place]) is code
        and (asked := kinds[place].memory if code is Code.CARD_MEMORY else want.cores) >= 0
    ]
    _, asked, there = max(lacking)
    return asked, there


def _placement(
    node: NodeState, plan: Plan, on: Sequence[Sequence[OnKind]], chosen: Sequence[Sequence[int]]
) -> Placement:
    """Write down what was found: for each container the places of its cards."""
    facts = node.facts
    oversub = facts is not None and facts.devices is not None and facts.devices.oversub > CORES_MAX
    containers = []
    asked = []
    for place, (want, places) in enumerate(zip(plan.wants, chosen, strict=True)):
        cards = tuple(
            PlacedCard(node.uuids[at], node.kinds[at].index, on[at][place].memory, want.cores) for at in places
        )
        mode = on[places[0]][place].mode
        containers.append(PlacedContainer(want.name, mode, cards, oversub=oversub and mode == "shim"))
        asked.append((want.role, {card.uuid: Need(card.memory, card.cores, 1) for card in cards}))
    return Placement(node.name, tuple(containers), need_of(asked), plan.seats)


_HAMI: Final = Defaults()
