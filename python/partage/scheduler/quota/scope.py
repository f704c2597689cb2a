"""Which pods a ResourceQuota is about: its scopes and its scope selector, with Kubernetes' own meaning.

Used by the quota book. Both lists hold at once, and an empty one holds of every pod. A scope that is not about pods
(a volume's class) means none of them. Cannot fail.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


@dataclass(frozen=True, slots=True)
class Traits:
    """What of a pod scopes ask for. `terminating`: it has a deadline; `best_effort`: no request of cpu or memory."""

    terminating: bool = False
    best_effort: bool = True
    priority_class: str = ""
    crosses_namespaces: bool = False  # affinity to pods of other namespaces


@dataclass(frozen=True, slots=True)
class Scope:
    """One requirement; `operator` is In, NotIn, Exists or DoesNotExist."""

    name: str
    operator: str = "Exists"
    values: frozenset[str] = frozenset()

    def matches(self, traits: Traits) -> bool:
        """Whether a pod is meant."""
        if self.name == "PriorityClass":
            return self._selects(traits.priority_class)
        holds = {
            "Terminating": traits.terminating,
            "NotTerminating": not traits.terminating,
            "BestEffort": traits.best_effort,
            "NotBestEffort": not traits.best_effort,
            "CrossNamespacePodAffinity": traits.crosses_namespaces,
        }
        return holds.get(self.name, False)

    def _selects(self, value: str) -> bool:
        match self.operator:
            case "In":
                return value in self.values
            case "NotIn":
                return value not in self.values
            case "Exists":
                return value != ""
            case "DoesNotExist":
                return value == ""
        return False


def traits_of(spec: Mapping[str, Any]) -> Traits:
    """Return the traits of a pod from its spec as decoded JSON."""
    containers = [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]
    return Traits(
        terminating=spec.get("activeDeadlineSeconds") is not None,
        best_effort=not any(_asks_compute(part.get("resources")) for part in [*containers, spec]),
        priority_class=spec.get("priorityClassName") or "",
        crosses_namespaces=any(map(_crosses, _affinity_terms(spec.get("affinity") or {}))),
    )


def _asks_compute(resources: Mapping[str, Any] | None) -> bool:
    for kind in ("requests", "limits"):
        amounts = (resources or {}).get(kind) or {}
        if any(str(amounts.get(name, "0")).strip("0.mkKMGTPEi") for name in ("cpu", "memory")):
            return True
    return False


def _affinity_terms(affinity: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
    for kind in ("podAffinity", "podAntiAffinity"):
        rules = affinity.get(kind) or {}
        yield from rules.get("requiredDuringSchedulingIgnoredDuringExecution") or ()
        for weighted in rules.get("preferredDuringSchedulingIgnoredDuringExecution") or ():
            yield weighted.get("podAffinityTerm") or {}


def _crosses(term: Mapping[str, Any]) -> bool:
    return bool(term.get("namespaces")) or term.get("namespaceSelector") is not None
