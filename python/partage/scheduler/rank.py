"""Which node goes first: what is asked of links, then the node policy's word, then links and name between equals.

Under `binpack` the node that is used most goes first, under `spread` the one that is used least, counted with the pod
on it, over the cards of the vendors that it asks for. Better links win under both. Integers only; cannot fail.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from partage.model.share import CORES_MAX

if TYPE_CHECKING:
    from collections.abc import Sequence

    from partage.scheduler.answers import Placement
    from partage.scheduler.cards import NodeState
    from partage.scheduler.plan import Plan

TOP: Final = 10  # kube-scheduler's highest step
_SCALE: Final = 1 << 20


def node_key(node: NodeState, plan: Plan, placement: Placement) -> tuple[int, int, int]:
    """Return by what this placement is ordered, the lowest first."""
    links = -links_score(node, plan, placement)
    return links if plan.asks_links else 0, policy_score(node, plan, placement), links


def policy_score(node: NodeState, plan: Plan, placement: Placement) -> int:
    """Return the node policy's score, the lowest first."""
    backends = {want.backend for want in plan.wants}
    slots = cores = memory = all_slots = all_cores = all_memory = 0
    for at, kind in enumerate(node.kinds):
        if kind.backend in backends:
            slots += kind.seats - node.seats[at]
            cores += CORES_MAX - node.cores[at]
            memory += kind.line - node.memory[at]
            all_slots += kind.seats
            all_cores += CORES_MAX
            all_memory += kind.line
    for need in placement.need.values():
        slots += need.seats
        cores += need.cores
        memory += need.memory
    by_slot, by_core, by_memory = plan.weights
    use = (
        by_slot * slots * _SCALE // max(1, all_slots)
        + by_core * cores * _SCALE // max(1, all_cores)
        + by_memory * memory * _SCALE // max(1, all_memory)
    )
    return -use if plan.node_policy == "binpack" else use


def links_score(node: NodeState, plan: Plan, placement: Placement) -> int:
    """Return how well the containers' cards are linked and how little they break up, the higher the better."""
    total = 0
    empty = node.empty
    for want, container in zip(plan.wants, placement.containers, strict=True):
        chosen = sum(1 << node.place[card.uuid] for card in container.cards)
        total += node.topologies[want.backend].score(chosen, empty)
    return total


def steps(ordered: Sequence[str]) -> list[tuple[str, int]]:
    """Return points for names in order: 10 for the first alone, then 9 down to 0 in equal parts."""
    rest = max(1, len(ordered) - 1)
    return [(name, TOP if place == 0 else TOP - 1 - (place - 1) * TOP // rest) for place, name in enumerate(ordered)]
