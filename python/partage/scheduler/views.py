"""Pods and nodes as the scheduler watches them: just the fields that count, so that ten thousand of them stay small.

Given to `kube.Informer` in place of lightkube's own classes, which hold everything. What can go wrong: an object whose
fields are of other types than the API's, which an API server does not send.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Final

import msgspec
from lightkube.core.resource import ApiInfo, GlobalResource, NamespacedResource, NamespacedResourceG
from lightkube.resources.coordination_v1 import Lease
from lightkube.resources.core_v1 import Node, Pod

from partage.model.pod import MetaView, PodView, TaintView

if TYPE_CHECKING:
    from partage.model.need import Role

FINISHED: Final = frozenset({"Succeeded", "Failed"})


class WatchedMeta(MetaView, frozen=True, rename="camel"):
    """An object's metadata, with what a watch needs."""

    resource_version: str | None = None
    deletion_timestamp: str | None = None
    deletion_grace_period_seconds: int | None = None

    @property
    def resourceVersion(self) -> str | None:  # noqa: N802 -- the API's word, as the informer's store has it
        """Which version of it this is."""
        return self.resource_version


class ContainerState(msgspec.Struct, frozen=True):
    """Whether a container runs; what it says of its start is not read."""

    running: dict[str, Any] | None = None


class ContainerStatus(msgspec.Struct, frozen=True):
    """One container's."""

    state: ContainerState = ContainerState()


class ConditionView(msgspec.Struct, frozen=True):
    """A condition."""

    type: str
    status: str = ""
    reason: str | None = None
    message: str | None = None


class PodStatusView(msgspec.Struct, frozen=True, rename="camel"):
    """How far a pod is."""

    phase: str | None = None
    nominated_node_name: str | None = None
    conditions: tuple[ConditionView, ...] | None = None
    container_statuses: tuple[ContainerStatus, ...] | None = None
    init_container_statuses: tuple[ContainerStatus, ...] | None = None


class WatchedPod(PodView, NamespacedResourceG, frozen=True):
    """A pod."""

    _api_info: ClassVar[ApiInfo] = Pod._api_info  # type: ignore[misc]  # noqa: SLF001 -- lightkube's

    metadata: WatchedMeta = WatchedMeta()
    status: PodStatusView = PodStatusView()

    @property
    def uid(self) -> str:
        """Its UID."""
        return self.metadata.uid or ""

    @property
    def namespace(self) -> str:
        """Where it is."""
        return self.metadata.namespace or ""

    @property
    def name(self) -> str:
        """Its name."""
        return self.metadata.name or ""

    @property
    def node(self) -> str:
        """Where it is bound to; empty: nowhere."""
        return self.spec.node_name or ""

    @property
    def is_finished(self) -> bool:
        """Whether it ended and nothing of it runs any more: a phase alone may be ahead of the containers."""
        if self.status.phase not in FINISHED:
            return False
        statuses = (*(self.status.container_statuses or ()), *(self.status.init_container_statuses or ()))
        return not any(one.state.running is not None for one in statuses)

    @property
    def is_ending(self) -> bool:
        """Whether it was deleted and is not gone yet."""
        return self.metadata.deletion_timestamp is not None

    @property
    def overdue_at(self) -> datetime | None:
        """From when on a deleted pod is stuck: Kubernetes' quotas count it so long; None: it was not deleted."""
        meta = self.metadata
        if meta.deletion_timestamp is None:
            return None
        grace = timedelta(seconds=meta.deletion_grace_period_seconds or 0)
        return datetime.fromisoformat(meta.deletion_timestamp) + grace

    @property
    def waits(self) -> bool:
        """Whether it is still to be placed: kube-scheduler passes over one that was deleted, whoever keeps it."""
        return not self.node and not self.is_ending and self.status.phase not in FINISHED

    @property
    def order(self) -> tuple[tuple[str, Role], ...]:
        """Its containers as in the spec, init ones first."""
        return tuple((container.name, role) for container, role, _ in self.each())

    def condition(self, kind: str) -> ConditionView | None:
        """Return its condition of this type, or None."""
        return next((one for one in self.status.conditions or () if one.type == kind), None)


class NodeStatusView(msgspec.Struct, frozen=True):
    """What a node has and how it is."""

    allocatable: dict[str, str] | None = None
    conditions: tuple[ConditionView, ...] | None = None


class NodeSpecView(msgspec.Struct, frozen=True):
    """What an administrator says of a node. `unschedulable`: it takes no new pods (`kubectl cordon`)."""

    unschedulable: bool | None = None
    taints: tuple[TaintView, ...] | None = None


class WatchedNode(msgspec.Struct, GlobalResource, frozen=True):
    """A node."""

    _api_info: ClassVar[ApiInfo] = Node._api_info  # type: ignore[misc]  # noqa: SLF001

    metadata: WatchedMeta = WatchedMeta()
    spec: NodeSpecView = NodeSpecView()
    status: NodeStatusView = NodeStatusView()

    @property
    def name(self) -> str:
        """Its name."""
        return self.metadata.name or ""

    @property
    def annotations(self) -> dict[str, str]:
        """Its annotations, empty where there are none."""
        return self.metadata.annotations or {}

    @property
    def is_ready(self) -> bool:
        """Whether kubelet says that it is well."""
        return any(one.type == "Ready" and one.status == "True" for one in self.status.conditions or ())


class LeaseSpecView(msgspec.Struct, frozen=True, rename="camel"):
    """Who holds a lease, how long it is good for, and how often it changed hands."""

    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    lease_transitions: int | None = None


class LeaseView(msgspec.Struct, NamespacedResource, frozen=True):
    """A lease."""

    _api_info: ClassVar[ApiInfo] = Lease._api_info  # type: ignore[misc]  # noqa: SLF001

    spec: LeaseSpecView = LeaseSpecView()
