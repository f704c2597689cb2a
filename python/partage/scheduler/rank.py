"""Which node goes first: what is asked of links, then the node policy's word, then links and name between equals.

Under `binpack` the node that is used most goes first, under `spread` the one that is used least, counted with the pod
on it, over the cards of the vendors that it asks for. Better links win under both: the best choice that a node has is
what it is ordered by. Integers only; cannot fail.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from partage.scheduler.cards import SCALE
from partage.scheduler.choice import MEMO_MAX, Chooser, remember
from partage.scheduler.fits import allowed
from partage.scheduler.plan import Key

if TYPE_CHECKING:
    from collections.abc import Sequence

    from partage.devices.rules import Topology
    from partage.scheduler.cards import NodeState
    from partage.scheduler.plan import Plan

TOP: Final = 10  # kube-scheduler's highest step
_LINKS: Final = 40  # bits: what is asked of links stands above the policy's score, and that above other links
_POLICY: Final = 40

RankKey = tuple[int, str]


class Ranker:
    """The order of nodes for one shape. What depends on a node's cards alone is worked out once for all alike."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._adds: dict[int, int] = {}  # model of nodes -> what the pod itself adds to their use
        self._best: dict[tuple[int, ...], tuple[int, Topology]] = {}
        self._backends = [want.backend for want in plan.wants]
        self.sign = -1 if plan.node_policy == "binpack" else 1
        self.has_links = plan.asks_links or plan.is_many
        #: Use alone decides, all of it alike: the order of nodes is the same for every such shape.
        self.is_plain = plan.weights == (1, 1, 1) and len(plan.backends) == 1 and not self.has_links

    def key(self, node: NodeState, masks: Sequence[int] | None = None) -> RankKey:
        """Return by what a node that takes the shape is ordered, the lowest first.

        `masks`: for each container the cards that take it by itself, where they are known.
        """
        score = self.sign * self._score(node)
        if self.has_links:
            links = -self._links(node, masks)
            score = (score << _LINKS) + links
            if self.plan.asks_links:
                score += links << (_LINKS + _POLICY)
        return score, node.name

    def _links(self, node: NodeState, masks: Sequence[int] | None) -> int:
        """Return how well linked, and how little broken up, the best choice of each container is: higher is better."""
        total, empty = 0, node.empty
        for place, backend in enumerate(self._backends):
            topology = node.topologies[backend]
            mask = allowed(node, self.plan, place) if masks is None else masks[place]
            key = place, mask, empty, id(topology), node.model if self.plan.is_one_numa else 0
            known = self._best.get(key)
            if known is None:  # the topology is kept beside it, so that its id stays its own
                if len(self._best) >= MEMO_MAX:
                    self._best.clear()
                known = self._best[key] = self._best_links(node, place, mask), topology
            total += known[0]
        return total

    def _best_links(self, node: NodeState, place: int, cards: int) -> int:
        plan, want = self.plan, self.plan.wants[place]
        topology = node.topologies[want.backend]
        numa = tuple(kind.numa for kind in node.kinds) if plan.is_one_numa else ()
        key = "best", cards, want.count, node.empty, plan.is_joined, numa
        known = topology.memo.get(key)
        if known is None:
            chooser = Chooser(topology, (), numa, node.empty)
            best = chooser.best(cards, want.count, (Key.LINKS,), joined=plan.is_joined, one_numa=plan.is_one_numa)
            known = (topology.score(best, node.empty),)
            remember(topology, key, known)
        return known[0]

    def _score(self, node: NodeState) -> int:
        """Return how much of the node would be used, by the pod's weights."""
        by_slot, by_core, by_memory = self.plan.weights
        score = self.adds(node)
        for backend in self.plan.backends:
            use = node.use(backend)
            score += by_slot * use.seats + by_core * use.cores + by_memory * use.memory
        return score

    def adds(self, node: NodeState) -> int:
        """Return what the pod itself adds to the use of nodes with these cards."""
        found = self._adds.get(node.model)
        if found is None:
            found = self._adds[node.model] = sum(self._add(node, backend) for backend in self.plan.backends)
        return found

    def _add(self, node: NodeState, backend: str) -> int:
        """Return what the containers of one vendor add."""
        plan = self.plan
        kind = next((kind for kind in node.kinds if kind.backend == backend), None)
        sizes = node.sizes(backend)
        total = 0
        for place, want in enumerate(plan.wants):
            if want.backend == backend:
                amounts = plan.amounts(kind, place)
                total += sum(
                    weight * amount * SCALE // (there or 1)
                    for weight, amount, there in zip(plan.weights, amounts, sizes, strict=True)
                )
        return total


def steps(ordered: Sequence[str], count: int) -> list[tuple[str, int]]:
    """Return points for names in order: 10 for the first alone, then 9 down to 0 in equal parts.

    `count`: how many there are, of which `ordered` may be the first.
    """
    rest = max(1, count - 1)
    return [(name, TOP - 1 - (place - 1) * TOP // rest if place else TOP) for place, name in enumerate(ordered)]
