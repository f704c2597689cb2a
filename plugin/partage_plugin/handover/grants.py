"""The grants of this node's pods, parsed once per text, and what each takes of every card.

Asked at each `PreStartContainer` and at each change of a pod. A pod without a usable grant is Refused with the reason
that its owner can act on; who wrote a grant is what the admission policy answers for. A pod that has only HAMi's twin
was started by HAMi's device plugin: what it has is counted, as what runs and came first, and it gets nothing here.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import structlog

from partage.model import GrantError, hami_twin, names
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
FOREIGN: Final = "GrantOfHami"
TWIN_INVALID: Final = "GrantOfHamiInvalid"

log = structlog.get_logger("partage.grants")


@dataclass(frozen=True, slots=True)
class _Known:
    """A grant's text and roles, and what they mean; `pod`: from which they were read last.

    `twin`: HAMi's, where there is no text of ours; `adopted`: what it gives, None where that cannot be told.
    """

    pod: Pod
    text: str
    twin: str | None
    roles: tuple[tuple[str, Role], ...]
    result: Grant | Refused
    need: Mapping[str, Need]
    adopted: Grant | None = None
    promises: dict[bool, Promise | None] = field(default_factory=dict, compare=False)  # by whether it is held


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

    def held(self, pod: Pod) -> tuple[int, bool]:
        """Return a pod's generation, 0 without a grant, and whether it says that memory of one before is held."""
        result = self._look(pod).result
        if isinstance(result, Refused):
            return 0, False
        return result.gen, any(share.held for part in result.containers.values() for share in part.shares)

    def give(self, pod: Pod, grant: Grant) -> None:
        """Let a pod that has no text have this grant: whole-card safe mode."""
        self._known[pod.uid] = _Known(pod, "", None, pod.roles, grant, granted_need(grant, pod.roles))

    def promise(self, pod: Pod, *, held: bool) -> Promise | None:
        """Return what a pod's grant takes of each card; None where it has no usable one.

        With HAMi's twin alone the pod comes before all of ours, and holds what that says from when HAMi's plugin gave
        it; of a twin that cannot be read, each card it names.
        """
        known = self._look(pod)
        if held not in known.promises:
            known.promises[held] = self._promise(pod, known, held=held)
        return known.promises[held]

    @staticmethod
    def _promise(pod: Pod, known: _Known, *, held: bool) -> Promise | None:
        if known.twin is not None and known.need:
            order = (hami_twin.TERM, 0, pod.uid)
            given = pod.phase != "Pending" or pod.annotations.get(hami_twin.BIND_PHASE) == hami_twin.BOUND
            return Promise(order, pod.full_name, known.need, held=given, unknown=known.adopted is None)
        if isinstance(known.result, Refused):
            return None
        whole = frozenset(
            share.uuid
            for container in known.result.containers.values()
            if container.mode == "whole"
            for share in container.shares
        )
        return Promise(known.result.order, pod.full_name, known.need, held=held, whole=whole)

    def twin_trouble(self, pod: Pod) -> Refused | None:
        """Return why it cannot be told what a pod has that has HAMi's twin only; None where it can."""
        known = self._look(pod)
        is_trouble = known.twin is not None and known.adopted is None
        return known.result if is_trouble and isinstance(known.result, Refused) else None

    def forget(self, uids: Collection[str]) -> None:
        """Forget pods that are no more."""
        for uid in uids:
            self._known.pop(uid, None)

    def _look(self, pod: Pod) -> _Known:
        known = self._known.get(pod.uid)
        if known is not None and known.pod is pod:
            return known
        text = pod.annotations.get(names.GRANT, "")
        twin = None if text else pod.annotations.get(hami_twin.ANNOTATION)
        if known is None or (known.text, known.twin, known.roles) != (text, twin, pod.roles):
            known = self._parse(pod, text) if twin is None else self._adopt(pod, twin)
        else:
            known = replace(known, pod=pod, promises={})
        self._known[pod.uid] = known
        return known

    def _parse(self, pod: Pod, text: str) -> _Known:
        if not text:
            value = f"no annotation {names.GRANT}"
            limit = f"pods with shares are placed by {names.SCHEDULER}, which writes it"
            step = f"set schedulerName: {names.SCHEDULER} and no nodeName, and create the pod again"
            refusal = Refused(MISSING, (f"pod {pod.full_name}", value, limit, step))
            return _Known(pod, text, None, pod.roles, refusal, {})
        try:
            grant = parse_grant(text, uid=pod.uid, node=self._node, pod=pod.full_name)
        except GrantError as error:
            return _Known(pod, text, None, pod.roles, Refused(INVALID, error), {})
        return _Known(pod, text, None, pod.roles, grant, granted_need(grant, pod.roles))

    def _adopt(self, pod: Pod, twin: str) -> _Known:
        """Count what HAMi gave a pod; a twin that cannot be read closes the cards that it names."""
        try:
            adopted = hami_twin.parse_twin(twin, pod.roles, uid=pod.uid, node=self._node, pod=pod.full_name)
        except GrantError as error:
            cards = sorted(hami_twin.named_cards(twin))
            log.error(
                "what a pod of HAMi has cannot be told; the cards that it names take no other share",
                pod=pod.full_name,
                uid=pod.uid,
                cards=cards,
                error=str(error),
            )
            need = {uuid: Need(seats=1) for uuid in cards}
            return _Known(pod, "", twin, pod.roles, Refused(TWIN_INVALID, error), need)
        value = f"annotation {hami_twin.ANNOTATION} without {names.GRANT}"
        limit = "what HAMi gave is counted here, and its containers are started by HAMi's device plugin alone"
        step = f"delete the pod and create it again with schedulerName: {names.SCHEDULER} and no nodeName"
        refusal = Refused(FOREIGN, (f"pod {pod.full_name}", value, limit, step))
        return _Known(pod, "", twin, pod.roles, refusal, granted_need(adopted, pod.roles), adopted)
