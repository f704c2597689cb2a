"""The nodes about which nobody asks us: kube-scheduler's own filters keep a pod off them before.

Called by `partage explain` and `partage simulate`, which would else say that a pod fits where it never comes to:
labels, affinity to nodes, taints, and nodes that take no new pods. What else kube-scheduler looks at (cpu, volumes,
affinity to pods) is not looked at here. Pure; cannot fail.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from partage.model.pod import TaintView
from partage.model.reasons import Code

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from partage.model.pod import NodeRequirement, PodView, TolerationView
    from partage.scheduler.views import WatchedNode

_REPELS: Final = frozenset({"NoSchedule", "NoExecute"})
_CORDON: Final = TaintView("node.kubernetes.io/unschedulable", effect="NoSchedule")


def left_out(pod: PodView, nodes: Mapping[str, WatchedNode]) -> dict[str, Code]:
    """Return node -> why the pod is kept off it, of those that it is kept off."""
    found = {}
    for name, node in nodes.items():
        if not selects(pod, node):
            found[name] = Code.NODE_SELECTOR
        elif node.spec.unschedulable and not _tolerates(pod, _CORDON):
            found[name] = Code.NODE_CORDONED
        elif node.is_ready and repelling(pod, node):  # of a node that is not well the books say so
            found[name] = Code.NODE_TAINT
    return found


def repelling(pod: PodView, node: WatchedNode) -> list[TaintView]:
    """Return the taints of a node that keep a pod off it, but for that of a node that takes no new pods."""
    taints = node.spec.taints or ()
    return [one for one in taints if one.effect in _REPELS and one.key != _CORDON.key and not _tolerates(pod, one)]


def selects(pod: PodView, node: WatchedNode) -> bool:
    """Whether a pod's selector and its required affinity to nodes take a node."""
    return not missing(pod, node) and is_near(pod, node)


def missing(pod: PodView, node: WatchedNode) -> list[str]:
    """Return what of a pod's selector a node has not."""
    labels = node.metadata.labels or {}
    return [f"{key}: {value}" for key, value in (pod.spec.node_selector or {}).items() if labels.get(key) != value]


def is_near(pod: PodView, node: WatchedNode) -> bool:
    """Whether a pod's required affinity to nodes takes a node."""
    labels = node.metadata.labels or {}
    affinity = pod.spec.affinity.node_affinity if pod.spec.affinity else None
    wanted = affinity.required_during_scheduling_ignored_during_execution if affinity else None
    if wanted is None:
        return True
    return any(
        (term.match_expressions or term.match_fields)
        and _all_hold(term.match_expressions or (), labels)
        and _all_hold(term.match_fields or (), {"metadata.name": node.name})
        for term in wanted.node_selector_terms or ()
    )


def _all_hold(requirements: Iterable[NodeRequirement], labels: Mapping[str, str]) -> bool:
    return all(_holds(one, labels.get(one.key)) for one in requirements)


def _holds(one: NodeRequirement, value: str | None) -> bool:
    """Whether a requirement is true of a label's value, None: it is not there."""
    values = one.values or ()
    match one.operator:
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt":
            return _compares(one.operator, value or "", *values[:1])
    return True  # of a later release; who asks is not told what is not known


def _compares(operator: str, value: str, than: str = "") -> bool:
    try:
        return int(value) > int(than) if operator == "Gt" else int(value) < int(than)
    except ValueError:
        return False


def _tolerates(pod: PodView, taint: TaintView) -> bool:
    return any(_fits(one, taint) for one in pod.spec.tolerations or ())


def _fits(one: TolerationView, taint: TaintView) -> bool:
    """Whether a toleration is about a taint; one without a key is about all."""
    if one.effect not in {None, "", taint.effect} or (one.key and one.key != taint.key):
        return False
    if one.operator in {None, "", "Equal"}:
        return bool(one.key) and (one.value or "") == (taint.value or "")
    return True
