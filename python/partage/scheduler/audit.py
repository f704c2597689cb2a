"""Proof of the books: everything added up anew from the API's objects, beside what the books have kept.

Called every few minutes by a term, and by tests after every disturbance. What is only promised (reserved) is in the
books alone and left out on both sides. A difference is a defect, or a change that was on its way: it is told and the
books go on. Cannot fail.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from partage.scheduler.books import Books

if TYPE_CHECKING:
    from collections.abc import Iterable

    from partage.scheduler.cards import NodeState
    from partage.scheduler.facts import NodeFacts, PodFacts


@dataclass(frozen=True, slots=True)
class Difference:
    """What the books have of one node, and what it should be."""

    node: str
    kept: str
    counted: str

    def __str__(self) -> str:
        return f"node {self.node}: {self.kept} kept, {self.counted} counted"


def differences(kept: Books, nodes: Iterable[NodeFacts], pods: Iterable[PodFacts]) -> list[Difference]:
    """Return where kept books differ from what these nodes and pods make."""
    counted = Books()
    for node in nodes:
        counted.set_node(node)
    for pod in pods:
        counted.set_pod(pod)
    found = []
    for name in sorted({*kept.nodes, *counted.nodes}):
        left, right = _shown(kept.nodes.get(name)), _shown(counted.nodes.get(name))
        if left != right:
            found.append(Difference(name, left, right))
    return found


def _shown(state: NodeState | None) -> str:
    """Return what is free of every card but for what is only promised, and who has the rest, as one comparable text."""
    if state is None:
        return "nothing"
    bound = state.without([uid for uid, use in state.pods.items() if use.reserved])
    if bound.facts is None and not bound.pods:
        return "nothing"
    cards = zip(bound.uuids, bound.memory, bound.cores, bound.seats, bound.tenants, strict=True)
    free = [f"{uuid}: {memory} B, {cores} ‰, {seats} seats, {pods} pods" for uuid, memory, cores, seats, pods in cards]
    who = ", ".join(sorted(bound.pods)) or "none"
    return f"free {'; '.join(free) or 'no cards'}; pods {who}; seats {sorted(bound.seats_used.items())}"
