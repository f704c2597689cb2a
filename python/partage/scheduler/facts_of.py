"""From the API's objects to what the books are told: nodes with their cards, pods with their grants.

Pure functions, called by the scheduler's watch for every change and by the extender for whole nodes in a question. A
text that cannot be read never stops anything: the node's `problem` says what, and the node then counts as without
cards; a pod's grant is judged by the books.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from partage.devices.ask import KINDS
from partage.devices.quantity import parse_quantity
from partage.model import NodeDevicesError, names
from partage.model.hami_twin import ANNOTATION as TWIN
from partage.model.need import Role
from partage.model.node_devices import NodeDevices, parse_node_devices
from partage.scheduler.facts import NodeFacts, PodFacts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from partage.model.pod import ContainerView
    from partage.scheduler.views import WatchedNode, WatchedPod

CORDON: Final = "hami.io/device-cordon"


def node_facts(node: WatchedNode) -> NodeFacts:
    """Return what the books are told of a node."""
    devices, problem = node_devices(node)
    cordoned = node.annotations.get(CORDON, "")
    return NodeFacts(
        name=node.name,
        devices=devices,
        cordoned=frozenset(part.strip() for part in cordoned.split(",") if part.strip()),
        ready=node.is_ready,
        seats=_counts(node.status.allocatable or {}),
        labels=node.metadata.labels or {},
        problem=problem,
    )


def node_devices(node: WatchedNode) -> tuple[NodeDevices | None, str]:
    """Return a node's cards, and what is wrong with what it says of them."""
    text = node.annotations.get(names.DEVICES)
    if text is None:
        return None, ""
    try:
        return parse_node_devices(text, node=node.name), ""
    except NodeDevicesError as error:
        return None, str(error)


def pod_facts(pod: WatchedPod) -> PodFacts | None:
    """Return what the books are told of a pod; None: it has nothing of any card."""
    if not pod.node:
        return None
    grant, twin = pod.annotations.get(names.GRANT, ""), pod.annotations.get(TWIN, "")
    seats = _seats(pod)
    if not (grant or twin or seats):
        return None
    meta = pod.metadata
    return PodFacts(
        uid=pod.uid,
        namespace=meta.namespace or "",
        name=meta.name or "",
        node=pod.node,
        grant=grant,
        twin=twin,
        order=pod.order,
        phase=pod.status.phase or "Pending",
        deleting=meta.deletion_timestamp is not None,
        finished=pod.is_finished,
        seats=seats,
        priority=pod.spec.priority or 0,
    )


def _seats(pod: WatchedPod) -> dict[str, int]:
    """Return the device ids that kubelet holds for a pod: an init container's are handed on to the later ones."""
    running: dict[str, int] = {}
    highest: dict[str, int] = {}
    for container, role, _ in pod.each():
        for resource, count in _asked(container).items():
            if role is Role.INIT:
                highest[resource] = max(highest.get(resource, 0), running.get(resource, 0) + count)
            else:
                running[resource] = running.get(resource, 0) + count
    return {name: max(running.get(name, 0), highest.get(name, 0)) for name in sorted({*running, *highest})}


def _asked(container: ContainerView) -> dict[str, int]:
    """Return what a container asks of what device plugins count; limits and requests of those are equal."""
    return {} if container.resources is None else _counts(container.resources.limits or {})


def _counts(amounts: Mapping[str, str | int | float]) -> dict[str, int]:
    """Return how many of each resource that counts cards or shares; what is no whole number is none of them."""
    found = {name: parse_quantity(amounts[name]) for name in KINDS if name in amounts}
    return {name: int(one.value) for name, one in found.items() if one is not None and one.is_whole}
