"""Writes onto objects that exist: a pod's conditions, a node's annotations and labels; nothing where all is so already.

A condition is written through `pods/status` and carries the pod's UID as its precondition, so that one meant for a pod
never lands on its successor of the same name. What can go wrong is KubeError: 404 or 409 where the pod is gone by now.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Node, PodStatus

from partage.kube.client import Client, PatchType

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from lightkube.models.core_v1 import Pod, PodCondition

MESSAGE_MAX: Final = 32768  # the API's own limit
_Told = tuple[str, str | None, str | None]  # status, reason, message


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition of a pod: its type, whether it holds, one word in CamelCase why, and a sentence."""

    kind: str
    holds: bool
    reason: str
    message: str


def condition_of(pod: Pod, kind: str) -> PodCondition | None:
    """Return a pod's condition of this type, or None."""
    conditions = (pod.status.conditions if pod.status else None) or ()
    return next((condition for condition in conditions if condition.type == kind), None)


async def set_condition(client: Client, pod: Pod, wanted: Condition, date: datetime) -> bool:
    """Set a condition of a pod's status as last seen; return whether anything had to be written.

    `date` (UTC) becomes its transition time where it holds now and did not before, or the other way round.
    """
    return await set_conditions(client, pod, (wanted,), date)


async def set_conditions(
    client: Client,
    pod: Pod,
    wanted: Sequence[Condition],
    date: datetime,
    *,
    written: Mapping[str, Condition | None] | None = None,
) -> bool:
    """Set conditions of a pod's status, one of each type, by one request; return whether anything had to be written.

    `written`: what the caller itself wrote since the pod was seen, by type; it counts in the place of what the pod
    shows, which may be older. None: nobody knows what stands there, so it is written.
    """
    known = {one.kind: _told(one) for one in wanted}
    before = {one.kind: _there(pod, one.kind, written or {}) for one in wanted}
    changed = [_change(kind, told, before[kind], date) for kind, told in known.items() if before[kind] != told]
    if not changed:
        return False
    meta = pod.metadata or ObjectMeta()
    body = {"metadata": {"uid": meta.uid}, "status": {"conditions": changed}}
    await client.patch(PodStatus, meta.name or "", body, namespace=meta.namespace, kind=PatchType.STRATEGIC)
    return True


def _told(one: Condition) -> _Told:
    return ("True" if one.holds else "False", one.reason, one.message[:MESSAGE_MAX])


def _there(pod: Pod, kind: str, written: Mapping[str, Condition | None]) -> _Told | None:
    if kind in written:
        ours = written[kind]
        return None if ours is None else _told(ours)
    seen = condition_of(pod, kind)
    return None if seen is None else (seen.status, seen.reason, seen.message)


def _change(kind: str, told: _Told, before: _Told | None, date: datetime) -> dict[str, object]:
    change: dict[str, object] = {"type": kind, **dict(zip(("status", "reason", "message"), told, strict=True))}
    if before is None or before[0] != told[0]:
        change["lastTransitionTime"] = date.replace(microsecond=0)
    return change


async def mark_node(
    client: Client,
    name: str,
    *,
    annotations: Mapping[str, str | None] | None = None,
    labels: Mapping[str, str | None] | None = None,
    seen: Node | None = None,
) -> bool:
    """Set (None: remove) annotations and labels of a node; return whether anything had to be written.

    `seen` is the node as last known; without it everything named is written.
    """
    meta = (seen.metadata if seen else None) or ObjectMeta()
    changes = {
        kind: {key: value for key, value in (wanted or {}).items() if seen is None or (there or {}).get(key) != value}
        for kind, wanted, there in (("annotations", annotations, meta.annotations), ("labels", labels, meta.labels))
    }
    changes = {kind: change for kind, change in changes.items() if change}
    if not changes:
        return False
    await client.patch(Node, name, {"metadata": changes})
    return True
