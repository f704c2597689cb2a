"""The link matrix of a machine: what lies between each pair of devices.

Pairs that no group names follow from their NUMA nodes. Called by `profiles.py`; cannot fail.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

#: sim_link.kind of hook/sim/machine.h, from far to near.
LINK_KINDS = {"system": 0, "node": 1, "hostbridge": 2, "switch": 3, "nvlink": 4, "nvswitch": 5}


@dataclass(frozen=True)
class Link:
    """What lies between two devices; `lanes` counts NVLinks."""

    kind: int = 0
    lanes: int = 0

    @property
    def word(self) -> str:
        """The kind as it is written in a profile."""
        return next(word for word, kind in LINK_KINDS.items() if kind == self.kind)


def build_links(
    numa: list[int], parents: list[int], groups: list[tuple[tuple[int, ...], Link]]
) -> tuple[tuple[Link, ...], ...]:
    """Square matrix: defaults by NUMA node, then the groups in order; MIG instances have no links of their own."""
    count = len(numa)
    same, other = Link(LINK_KINDS["node"]), Link(LINK_KINDS["system"])
    matrix = [[same if numa[a] == numa[b] else other for b in range(count)] for a in range(count)]
    for members, link in groups:
        for a, b in combinations(members, 2):
            matrix[a][b] = matrix[b][a] = link
    for index in range(count):
        if parents[index] >= 0:
            matrix[index] = [other] * count
            for row in matrix:
                row[index] = other
        matrix[index][index] = Link()
    return tuple(tuple(row) for row in matrix)
