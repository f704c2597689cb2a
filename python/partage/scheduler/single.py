"""Whether a node takes a shape of one container: from the sweep's numbers, for one node in a microsecond.

Nearly all pods are such, and nearly all changes are of one node; so a shape that is known costs next to nothing after a
change, and one that is not met before costs the best card of each node. What belongs to the choice of cards (links,
NUMA nodes) and cards that are named are asked of `sweep`. Kept by the index with each shape; reads the sweep as it is
at the time, so that nothing here grows old. Cannot fail.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from partage.model.grant import DEVICES_MAX
from partage.scheduler.sweep import mask_of, thresholds

if TYPE_CHECKING:
    from partage.scheduler.plan import Plan
    from partage.scheduler.sweep import Sweep, Thresholds


class Single:
    """One shape, asked of single nodes or of all, by their rows."""

    def __init__(self, sweep: Sweep, plan: Plan) -> None:
        self.sweep = sweep
        self.plan = plan
        self._count = plan.wants[0].count
        self._numbering = -1
        self._needs: Thresholds
        self._least = self._cores = 0  # what the best card must have, whatever it is; cores -1: kinds differ

    @staticmethod
    def serves(plan: Plan) -> bool:
        """Whether a shape can be asked this way."""
        wishes = plan.shape.wishes
        is_near = plan.is_many and (plan.is_joined or plan.is_one_numa)
        is_small = not plan.too_large and plan.wants[0].count <= DEVICES_MAX
        return len(plan.wants) == 1 and is_small and not (is_near or wishes.uuids or wishes.no_uuids)

    @property
    def needs(self) -> Thresholds:
        """What a card of each kind must have."""
        if self.sweep.numbering != self._numbering:
            self._numbering = self.sweep.numbering
            needs = self._needs = thresholds(self.plan, 0, self.sweep.kinds)
            self._least = min(needs.memory, default=0)
            is_alike = len({*needs.memory}) == 1 and len({*needs.cores}) == 1
            self._cores = needs.cores[0] if is_alike else -1
        return self._needs

    def mask(self, row: int) -> int:
        """Return the node's cards that take the container."""
        sweep, needs = self.sweep, self.needs
        memory, cores = needs.memory, needs.cores
        start, end = sweep.spans[row]
        cards = zip(sweep.kind[start:end], sweep.memory[start:end], sweep.cores[start:end], strict=True)
        return mask_of(bytes([there >= memory[kind] and free >= cores[kind] for kind, there, free in cards]))

    def takes(self, row: int) -> bool:
        """Whether the node takes the shape."""
        sweep = self.sweep
        if any(sweep.left(resource)[row] < seats for resource, seats in self.plan.seats.items()):
            return False
        return self._has_cards(row, *sweep.best[row])

    def rows(self) -> list[int]:
        """Return the nodes that take the shape."""
        needs, sweep = self.needs, self.sweep
        least, cores = self._least, self._cores
        if self._count == 1 and needs.memory and cores >= 0:  # the best card decides nearly always
            rows = [
                row
                for row, (memory, free) in enumerate(sweep.best)
                if memory >= least and (free >= cores or self.mask(row))
            ]
        else:
            rows = [row for row, best in enumerate(sweep.best) if self._has_cards(row, *best)]
        for resource, seats in self.plan.seats.items():
            left = sweep.left(resource)
            rows = [row for row in rows if left[row] >= seats]
        return rows

    def _has_cards(self, row: int, memory: int, free: int) -> bool:
        """Whether enough cards take the container; `memory`, `free`: of the card that has most memory."""
        if not self.needs.memory or memory < self._least:
            return False
        return (self._count == 1 and free >= self._cores >= 0) or self.mask(row).bit_count() >= self._count
