"""Proof of the books: everything added up anew from the API's objects, beside what the books have kept.

Called every few minutes by a term, and by tests after every disturbance. What is only promised (reserved) is in the
books alone and left out on both sides. A few nodes are counted at once and then others may work, since all of a large
cluster takes longer than kube-scheduler should wait: each node is compared with what the API says of it at that very
moment, so that what changes meanwhile is no difference. A difference is a defect; it is told and the books go on.
Cannot fail.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from partage.scheduler.books import Books

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from partage.scheduler.cards import NodeState
    from partage.scheduler.facts import NodeFacts, PodFacts

AT_ONCE: Final = 100  # pods and nodes: some milliseconds


@dataclass(frozen=True, slots=True)
class Difference:
    """What the books have of one node, and what it should be."""

    node: str
    kept: str
    counted: str

    def __str__(self) -> str:
        return f"node {self.node}: {self.kept} kept, {self.counted} counted"


class Truth(Protocol):
    """What the API server has, by its watch."""

    moves: int

    def node_names(self) -> Iterable[str]:
        """Return the names of all nodes."""

    def bound(self) -> Mapping[str, list[str]]:
        """Return node -> UIDs of the pods that are bound to it, as long as `moves` is what it is."""

    def facts(self, nodes: Iterable[str], uids: Iterable[str]) -> tuple[list[NodeFacts], list[PodFacts]]:
        """Return what there is of these nodes and pods now."""


async def audit(kept: Books, truth: Truth) -> list[Difference]:
    """Return where the books differ from the API's objects, letting others work after every few nodes."""
    found: list[Difference] = []
    moves, bound = truth.moves, truth.bound()
    left = deque(sorted({*kept.nodes, *truth.node_names(), *bound}))
    while left:
        if truth.moves != moves:
            moves, bound = truth.moves, truth.bound()
        chunk: list[str] = []
        uids: list[str] = []
        while left and len(chunk) + len(uids) < AT_ONCE:
            chunk.append(left.popleft())
            uids += bound.get(chunk[-1], ())
        found += differences(kept, *truth.facts(chunk, uids), chunk)
        await asyncio.sleep(0)
    return found


def differences(
    kept: Books, nodes: Iterable[NodeFacts], pods: Iterable[PodFacts], names: Iterable[str]
) -> list[Difference]:
    """Return where kept books differ, on nodes of these names, from what these nodes and pods make."""
    counted = Books()
    for node in nodes:
        counted.set_node(node)
    for pod in pods:
        counted.set_pod(pod)
    found = []
    for name in names:
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
