"""What the books are told of nodes and pods: the API's truth, with just the fields that count.

Made by the scheduler's watch and by `partage simulate`, read by the books. Frozen; cannot fail.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from partage.model.need import Role
    from partage.model.node_devices import NodeDevices


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """A node. `devices`: None where its agent says nothing, or nothing that can be read; `problem` then says what.

    `seats`: kubelet's allocatable of each share resource; None: not known, so not held to it. A node whose kubelet
    knows none of a resource takes no share of it. `cordoned`: UUIDs of cards that take nothing new.
    """

    name: str
    devices: NodeDevices | None
    cordoned: frozenset[str] = frozenset()
    ready: bool = True
    seats: Mapping[str, int] | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    problem: str = ""


@dataclass(frozen=True, slots=True)
class PodFacts:
    """A pod. `order`: its containers as in the spec, init ones first; `node`: where it is bound to, empty: nowhere.

    `grant`: the text of ours; `twin`: of HAMi's, read only where there is none of ours. `finished`: it has a terminal
    phase *and* none of its containers runs any more; only then, or once it is gone, are its cards free again.
    `seats`: how many device ids of each share resource kubelet holds for it, whoever placed it (`plan.seats_of`).
    """

    uid: str
    namespace: str
    name: str
    node: str = ""
    grant: str = ""
    twin: str = ""
    order: tuple[tuple[str, Role], ...] = ()
    phase: str = "Pending"
    deleting: bool = False
    finished: bool = False
    seats: Mapping[str, int] = field(default_factory=dict)
    priority: int = 0

    @property
    def subject(self) -> str:
        """How messages name the pod."""
        return f"pod {self.namespace}/{self.name}"
