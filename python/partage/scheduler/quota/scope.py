"""Which pods a ResourceQuota is about: its scopes and its scope selector, with Kubernetes' own meaning.

Used by the quota book. Both lists hold at once, and an empty one holds of every pod. A scope that is not about pods
(a volume's class) means none of them. Cannot fail.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from partage.devices.quantity import parse_quantity

if TYPE_CHECKING:
    from partage.model.pod import ResourcesView, SpecView


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


def traits_of(spec: SpecView) -> Traits:
    """Return the traits of a pod."""
    containers = [*(spec.init_containers or ()), *(spec.containers or ())]
    return Traits(
        terminating=spec.active_deadline_seconds is not None,
        best_effort=not any(map(_asks_compute, [*(one.resources for one in containers), spec.resources])),
        priority_class=spec.priority_class_name or "",
        crosses_namespaces=spec.affinity is not None and any(term.crosses for term in spec.affinity.terms()),
    )


def _asks_compute(resources: ResourcesView | None) -> bool:
    if resources is None:
        return False
    for amounts in (resources.requests, resources.limits):
        for name in ("cpu", "memory"):
            amount = parse_quantity((amounts or {}).get(name, "0"))
            if amount is None or amount.value:
                return True
    return False
