"""The grants of this node's pods, parsed once per text, and what each takes of every card.

Asked at each `PreStartContainer` and at each change of a pod. A pod without a usable grant is Refused with the reason
that its owner can act on; who wrote a grant is what the admission policy answers for.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from partage.model import GrantError, names
from partage.model.grant import Grant, parse_grant
from partage.model.need import Need, granted_need
from partage_plugin.handover.sums import Promise
from partage_plugin.refusal import Refused

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from partage.model.need import Role
    from partage_plugin.ports import Pod

MISSING: Final = "GrantMissing"
INVALID: Final = "GrantInvalid"


@dataclass(frozen=True, slots=True)
class _Known:
    """A grant's text and roles, and what they mean; `pod`: from which they were read last."""

    pod: Pod
    text: str
    roles: tuple[tuple[str, Role], ...]
    result: Grant | Refused
    need: Mapping[str, Need]


class Grants:
    """Grant by pod, for one node."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._known: dict[str, _Known] = {}

    def of(self, pod: Pod) -> Grant:
        """Return the grant of a pod; raises Refused where it has none that can be used."""
        result = self._look(pod).result
        if isinstance(result, Refused):
            raise result
        return result

    def give(self, pod: Pod, grant: Grant) -> None:
        """Let a pod that has no text have this grant: whole-card safe mode."""
        self._known[pod.uid] = _Known(pod, "", pod.roles, grant, granted_need(grant, pod.roles))

    def promise(self, pod: Pod, *, held: bool) -> Promise | None:
        """Return what a pod's grant takes of each card; None where it has no usable one."""
        known = self._look(pod)
        if isinstance(known.result, Refused):
            return None
        whole = all(container.mode == "whole" for container in known.result.containers.values())
        return Promise(known.result.order, pod.full_name, known.need, held=held, whole=whole)

    def forget(self, uids: Collection[str]) -> None:
        """Forget pods that are no more."""
        for uid in uids:
            self._known.pop(uid, None)

    def _look(self, pod: Pod) -> _Known:
        known = self._known.get(pod.uid)
        if known is not None and known.pod is pod:
            return known
        text = pod.annotations.get(names.GRANT, "")
        if known is None or (known.text, known.roles) != (text, pod.roles):
            known = self._parse(pod, text)
        else:
            known = replace(known, pod=pod)
        self._known[pod.uid] = known
        return known

    def _parse(self, pod: Pod, text: str) -> _Known:
        if not text:
            value = f"no annotation {names.GRANT}"
            limit = f"pods with shares are placed by {names.SCHEDULER}, which writes it"
            step = f"set schedulerName: {names.SCHEDULER} and no nodeName, and create the pod again"
            return _Known(pod, text, pod.roles, Refused(MISSING, (f"pod {pod.full_name}", value, limit, step)), {})
        try:
            grant = parse_grant(text, uid=pod.uid, node=self._node, pod=pod.full_name)
        except GrantError as error:
            return _Known(pod, text, pod.roles, Refused(INVALID, error), {})
        return _Known(pod, text, pod.roles, grant, granted_need(grant, pod.roles))
