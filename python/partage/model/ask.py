"""What a pod asks for: its containers' shares and its wishes about cards and nodes, in one vocabulary.

Made from a pod by `partage.devices.ask` (which knows the vendors' resource names and annotations and says what is wrong
with them), read by admission, by the books, by quota and by `partage explain`. Everything here is frozen and hashable:
pods of one workload have the same `Shape`, and what is known of a shape need not be found again. Cannot fail.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from partage.model.share import CORES_MAX

if TYPE_CHECKING:
    from partage.model.grant import Mode
    from partage.model.need import Role
    from partage.model.share import ShareClass

NodePolicy = Literal["binpack", "spread"]
CardPolicy = Literal["binpack", "spread", "mutex", "numa", "topology-aware"]
NvlinkWish = Literal["required", "preferred"]


@dataclass(frozen=True, slots=True)
class ContainerAsk:
    """One container's shares: `cards` different devices of one backend, the same amount of each.

    `memory` in bytes, or `percent` in permille of a card's allocatable memory; neither: the whole card's. `cores` in
    permille, 0: no guarantee. `weight`, `ceiling` (permille) and `mode` are None where the pod leaves them open.
    """

    name: str
    role: Role
    backend: str
    resource: str  # which kubelet counts: `nvidia.com/gpu`
    cards: int
    memory: int | None
    percent: int | None
    cores: int
    share_class: ShareClass
    priority: int
    weight: int | None = None
    ceiling: int | None = None
    mode: Mode | None = None
    profile: str = ""  # of a hardware slice

    @property
    def is_whole(self) -> bool:
        """Whether it asks for all of a card's memory."""
        return self.memory is None and self.percent is None

    @property
    def is_alone(self) -> bool:
        """Whether nobody else may be on its cards."""
        return self.cores == CORES_MAX


@dataclass(frozen=True, slots=True)
class Wishes:
    """Which cards and nodes the pod wants. Empty: no constraint; lists of one kind and its opposite both hold."""

    node_policy: NodePolicy | None = None
    card_policies: tuple[CardPolicy, ...] = ()  # a chain: the later ones decide between equals
    weights: tuple[tuple[str, int], ...] = ()  # of scoring terms, by name
    types: tuple[str, ...] = ()
    no_types: tuple[str, ...] = ()
    uuids: frozenset[str] = frozenset()
    no_uuids: frozenset[str] = frozenset()
    indexes: frozenset[int] = frozenset()
    no_indexes: frozenset[int] = frozenset()
    one_numa_node: bool = False
    nvlink: NvlinkWish | None = None
    card_at_most: int | None = None  # bytes that a card carries; not a wish of the pod, but what its quotas leave


@dataclass(frozen=True, slots=True)
class Shape:
    """All of an ask but whose it is: two pods of the same shape fit the same nodes. Containers in the spec's order."""

    containers: tuple[ContainerAsk, ...]  # that ask for shares
    wishes: Wishes
    order: tuple[tuple[str, Role], ...]  # of all containers, init ones first


@dataclass(frozen=True, slots=True)
class PodAsk:
    """What this pod asks for. `scheduler`: who is to place it; `priority`: Kubernetes' number, for preemption."""

    uid: str
    namespace: str
    name: str
    shape: Shape
    scheduler: str
    priority: int = 0

    @property
    def subject(self) -> str:
        """How messages name the pod."""
        return f"pod {self.namespace}/{self.name}"
