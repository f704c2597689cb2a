"""Nodes in the order of their use, the same for all shapes that rank by use alone.

Kept by the index: a change moves one node, and a shape that was not met before finds its order made. Nodes of different
cards differ in what a pod adds to their use, so there is one row for each model, and the rows are merged. Cannot fail.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from heapq import merge
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from partage.scheduler.cards import NodeState
    from partage.scheduler.rank import RankKey


class UseOrder:
    """All nodes with cards of one vendor; `sign`: 1 the least used first, -1 the most used."""

    def __init__(self, backend: str, sign: int) -> None:
        self._backend = backend
        self._sign = sign
        self._rows: dict[int, list[RankKey]] = {}  # model of nodes -> their keys in order
        self._at: dict[str, tuple[int, RankKey]] = {}  # node -> where it is

    def refresh(self, nodes: Mapping[str, NodeState], stale: Iterable[str]) -> None:
        """Take over nodes that changed, came or went."""
        for name in stale:
            before = self._at.pop(name, None)
            if before is not None:
                model, key = before
                row = self._rows[model]
                del row[bisect_left(row, key)]
                if not row:
                    del self._rows[model]
            node = nodes.get(name)
            if node is not None and self._backend in node.topologies:
                key = self._sign * node.use(self._backend).sum, name
                insort(self._rows.setdefault(node.model, []), key)
                self._at[name] = node.model, key

    def walk(self, adds: Callable[[NodeState], int], nodes: Mapping[str, NodeState]) -> Iterator[str]:
        """Yield the names; `adds`: what the pod itself adds to the use of a node, and of all of its model."""
        rows = list(self._rows.values())
        if len(rows) == 1:
            return (name for _, name in rows[0])
        return (name for _, name in merge(*(self._shifted(row, adds(nodes[row[0][1]])) for row in rows)))

    def _shifted(self, row: list[RankKey], adds: int) -> Iterator[RankKey]:
        more = self._sign * adds
        return ((use + more, name) for use, name in row)
