"""Which node goes first: what is asked of links, then the node policy's word, then links and name between equals.

Under `binpack` the node that is used most goes first, under `spread` the one that is used least, counted with the pod
on it, over the cards of the vendors that it asks for. Better links win under both: the best choice that a node has is
what it is ordered by. Integers only; cannot fail.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from partage.scheduler.choice import Chooser
from partage.scheduler.fits import allowed
from partage.scheduler.plan import Key

if TYPE_CHECKING:
    from collections.abc import Sequence

    from partage.scheduler.cards import NodeState
    from partage.scheduler.plan import Plan

TOP: Final = 10  # kube-scheduler's highest step
_SCALE: Final = 1 << 20

RankKey = tuple[int, int, int, str]


def rank_key(node: NodeState, plan: Plan) -> RankKey:
    """Return by what a node that takes the shape is ordered, the lowest first."""
    links = -best_links(node, plan) if plan.asks_links or plan.is_many else 0
    return links if plan.asks_links else 0, policy_score(node, plan), links, node.name


def policy_score(node: NodeState, plan: Plan) -> int:
    """Return the node policy's score, the lowest first."""
    slots, cores, memory = plan.amounts(node.kinds)
    all_slots = all_cores = all_memory = 0
    for backend in plan.backends:
        use = node.use(backend)
        slots += use.seats
        cores += use.cores
        memory += use.memory
        all_slots += use.all_seats
        all_cores += use.all_cores
        all_memory += use.all_memory
    by_slot, by_core, by_memory = plan.weights
    score = (
        by_slot * slots * _SCALE // (all_slots or 1)
        + by_core * cores * _SCALE // (all_cores or 1)
        + by_memory * memory * _SCALE // (all_memory or 1)
    )
    return -score if plan.node_policy == "binpack" else score


def best_links(node: NodeState, plan: Plan) -> int:
    """Return how well linked, and how little broken up, the best choice for each container is: higher is better."""
    total, empty = 0, node.empty
    for place, want in enumerate(plan.wants):
        topology = node.topologies[want.backend]
        mask = allowed(node, plan, place)
        numa = tuple(kind.numa for kind in node.kinds) if plan.is_one_numa else ()
        key = ("best", mask, want.count, empty, plan.is_joined, numa)
        known = topology.memo.get(key)
        if known is None:
            chooser = Chooser(topology, (), numa, empty)
            best = chooser.best(mask, want.count, (Key.LINKS,), joined=plan.is_joined, one_numa=plan.is_one_numa)
            known = topology.memo[key] = (topology.score(best, empty),)
        total += known[0]
    return total


def steps(ordered: Sequence[str]) -> list[tuple[str, int]]:
    """Return points for names in order: 10 for the first alone, then 9 down to 0 in equal parts."""
    rest = max(1, len(ordered) - 1)
    return [(name, TOP if place == 0 else TOP - 1 - (place - 1) * TOP // rest) for place, name in enumerate(ordered)]
