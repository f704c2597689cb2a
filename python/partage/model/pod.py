"""A pod as far as Partage reads it: few fields, whatever else there is stays unread.

Decoded straight from the API server's JSON by admission, by the extender and by informers, or converted from a mapping
(YAML that a user brings). What can go wrong: a field of another type than the API's; msgspec.ValidationError says
where. Lists and maps may be null, as people leave them empty in YAML.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from partage.model.need import Role

if TYPE_CHECKING:
    from collections.abc import Iterator

DEFAULT_SCHEDULER: Final = "default-scheduler"


class Env(msgspec.Struct, frozen=True):
    """One variable; `value` is None where it comes from elsewhere (`valueFrom`)."""

    name: str
    value: str | None = None


class ResourcesView(msgspec.Struct, frozen=True):
    """Amounts as written: the API server sends text, YAML of users has numbers too."""

    limits: dict[str, str | int | float] | None = None
    requests: dict[str, str | int | float] | None = None


class CapabilitiesView(msgspec.Struct, frozen=True):
    """Rights of root that a container gets beside those of its runtime."""

    add: tuple[str, ...] | None = None


class SeccompView(msgspec.Struct, frozen=True):
    """Which system calls are refused."""

    type: str = ""


class SecurityView(msgspec.Struct, frozen=True, rename="camel"):
    """What a container, or all of a pod, may do to its host."""

    privileged: bool | None = None
    capabilities: CapabilitiesView | None = None
    seccomp_profile: SeccompView | None = None


class VolumeMountView(msgspec.Struct, frozen=True, rename="camel"):
    """Where a container has a volume."""

    mount_path: str = ""


class VolumeDeviceView(msgspec.Struct, frozen=True, rename="camel"):
    """Where a container has a volume as a block device."""

    device_path: str = ""


class ContainerView(msgspec.Struct, frozen=True, rename="camel"):
    """One container."""

    name: str = ""
    resources: ResourcesView | None = None
    env: tuple[Env, ...] | None = None
    restart_policy: str | None = None
    security_context: SecurityView | None = None
    volume_mounts: tuple[VolumeMountView, ...] | None = None
    volume_devices: tuple[VolumeDeviceView, ...] | None = None
    termination_message_path: str | None = None


class AffinityTerm(msgspec.Struct, frozen=True, rename="camel"):
    """Pods to be near to or far from, as far as their namespaces go."""

    namespaces: tuple[str, ...] | None = None
    namespace_selector: dict[str, object] | None = None

    @property
    def crosses(self) -> bool:
        """Whether it may mean pods of other namespaces."""
        return bool(self.namespaces) or self.namespace_selector is not None


class WeightedTerm(msgspec.Struct, frozen=True, rename="camel"):
    """A wish of the scheduler's."""

    pod_affinity_term: AffinityTerm = AffinityTerm()


class PodAffinityView(msgspec.Struct, frozen=True, rename="camel"):
    """Affinity to pods, or the contrary."""

    required_during_scheduling_ignored_during_execution: tuple[AffinityTerm, ...] | None = None
    preferred_during_scheduling_ignored_during_execution: tuple[WeightedTerm, ...] | None = None


class NodeRequirement(msgspec.Struct, frozen=True):
    """One expression about a node's labels or fields."""

    key: str = ""
    operator: str = ""
    values: tuple[str, ...] | None = None


class NodeTerm(msgspec.Struct, frozen=True, rename="camel"):
    """Expressions that hold together."""

    match_expressions: tuple[NodeRequirement, ...] | None = None
    match_fields: tuple[NodeRequirement, ...] | None = None


class NodeTerms(msgspec.Struct, frozen=True, rename="camel"):
    """Terms of which one is enough."""

    node_selector_terms: tuple[NodeTerm, ...] | None = None


class NodeAffinityView(msgspec.Struct, frozen=True, rename="camel"):
    """Which nodes a pod must have; what it only prefers stays unread."""

    required_during_scheduling_ignored_during_execution: NodeTerms | None = None


class TaintView(msgspec.Struct, frozen=True):
    """What keeps pods off a node that do not tolerate it."""

    key: str = ""
    value: str | None = None
    effect: str = ""


class TolerationView(msgspec.Struct, frozen=True):
    """Taints that a pod does not mind."""

    key: str | None = None
    operator: str | None = None
    value: str | None = None
    effect: str | None = None


class AffinityView(msgspec.Struct, frozen=True, rename="camel"):
    """Affinity, as far as quotas and `partage explain` ask for it."""

    node_affinity: NodeAffinityView | None = None
    pod_affinity: PodAffinityView | None = None
    pod_anti_affinity: PodAffinityView | None = None

    def terms(self) -> Iterator[AffinityTerm]:
        """Yield all terms about other pods."""
        for rules in (self.pod_affinity, self.pod_anti_affinity):
            if rules is not None:
                yield from rules.required_during_scheduling_ignored_during_execution or ()
                for wish in rules.preferred_during_scheduling_ignored_during_execution or ():
                    yield wish.pod_affinity_term


class GateView(msgspec.Struct, frozen=True):
    """Something that holds a pod back from scheduling."""

    name: str = ""


class OsView(msgspec.Struct, frozen=True):
    """What runs on the node."""

    name: str = ""


class SpecView(msgspec.Struct, frozen=True, rename="camel"):
    """What is to run. `priority` is what the API server made of the priority class."""

    containers: tuple[ContainerView, ...] | None = None
    init_containers: tuple[ContainerView, ...] | None = None
    ephemeral_containers: tuple[ContainerView, ...] | None = None
    scheduler_name: str | None = None
    node_name: str | None = None
    node_selector: dict[str, str] | None = None
    tolerations: tuple[TolerationView, ...] | None = None
    priority: int | None = None
    priority_class_name: str | None = None
    preemption_policy: str | None = None
    runtime_class_name: str | None = None
    host_pid: bool | None = msgspec.field(name="hostPID", default=None)
    security_context: SecurityView | None = None
    active_deadline_seconds: int | None = None
    scheduling_gates: tuple[GateView, ...] | None = None
    affinity: AffinityView | None = None
    os: OsView | None = None
    resources: ResourcesView | None = None  # of the pod as a whole


class MetaView(msgspec.Struct, frozen=True, rename="camel"):
    """Whose it is. `generate_name` stands where a controller lets the API server choose the name."""

    name: str | None = None
    generate_name: str | None = None
    namespace: str | None = None
    uid: str | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    creation_timestamp: str | None = None


class PodView(msgspec.Struct, frozen=True):
    """A pod."""

    metadata: MetaView = MetaView()
    spec: SpecView = SpecView()

    @property
    def subject(self) -> str:
        """How messages name the pod."""
        meta = self.metadata
        return f"pod {meta.namespace or 'default'}/{meta.name or meta.generate_name or '(without a name)'}"

    @property
    def scheduler(self) -> str:
        """Who is to place it."""
        return self.spec.scheduler_name or DEFAULT_SCHEDULER

    @property
    def annotations(self) -> dict[str, str]:
        """Its annotations, empty where there are none."""
        return self.metadata.annotations or {}

    def each(self) -> Iterator[tuple[ContainerView, Role, str]]:
        """Yield container, role and place (`spec/initContainers/0`), in the order in which they start."""
        for number, container in enumerate(self.spec.init_containers or ()):
            role = Role.SIDECAR if container.restart_policy == "Always" else Role.INIT
            yield container, role, f"/spec/initContainers/{number}"
        for number, container in enumerate(self.spec.containers or ()):
            yield container, Role.APP, f"/spec/containers/{number}"
