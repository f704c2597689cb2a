"""PodDisruptionBudgets as preemption needs them: which pods one is about, and how many of them may go now.

Read from the API's objects (`status.disruptionsAllowed` is the disruption controller's figure); a budget whose
controller has not seen its present form yet allows none. Eviction asks the API server anyway, which has the last word.
Cannot fail.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from lightkube.models.meta_v1 import LabelSelector
    from lightkube.models.policy_v1 import PodDisruptionBudget


@dataclass(frozen=True, slots=True)
class Requirement:
    """One expression of a label selector."""

    key: str
    operator: str
    values: frozenset[str] = frozenset()

    def holds(self, labels: Mapping[str, str]) -> bool:
        """Whether it is true of these labels; an operator that is not Kubernetes' holds of none."""
        match self.operator:
            case "In":
                return labels.get(self.key) in self.values
            case "NotIn":
                return labels.get(self.key) not in self.values
            case "Exists":
                return self.key in labels
            case "DoesNotExist":
                return self.key not in labels
        return False


@dataclass(frozen=True, slots=True)
class Budget:
    """One budget. `allowed`: how many of its pods may be evicted now."""

    namespace: str
    name: str
    requirements: tuple[Requirement, ...]
    allowed: int

    def covers(self, namespace: str, labels: Mapping[str, str]) -> bool:
        """Whether a pod is one of its."""
        return namespace == self.namespace and all(one.holds(labels) for one in self.requirements)


@dataclass(frozen=True, slots=True)
class Budgets:
    """All of them."""

    budgets: tuple[Budget, ...] = ()

    def covering(self, namespace: str, labels: Mapping[str, str]) -> tuple[Budget, ...]:
        """Return the budgets of a pod."""
        return tuple(budget for budget in self.budgets if budget.covers(namespace, labels))


def allows_more(before: PodDisruptionBudget | None, now: PodDisruptionBudget | None) -> bool:
    """Whether a budget that has changed (None: was not, or is no more) may let a pod go that it kept before."""
    was, is_now = (None if one is None else _read(one) for one in (before, now))
    if was is None:
        return False
    return is_now is None or is_now.allowed > was.allowed or is_now.requirements != was.requirements


def overdrawn(budgets: Iterable[Sequence[Budget]]) -> int:
    """Return by how many pods budgets are exceeded if pods with these budgets are evicted at once."""
    counts = Counter(budget for of_pod in budgets for budget in of_pod)
    return sum(max(0, count - budget.allowed) for budget, count in counts.items())


def read_budgets(objects: Iterable[PodDisruptionBudget]) -> Budgets:
    """Return what the objects say."""
    return Budgets(tuple(budget for one in objects if (budget := _read(one)) is not None))


def _read(obj: PodDisruptionBudget) -> Budget | None:
    meta, selector = obj.metadata, obj.spec.selector if obj.spec else None
    if meta is None or selector is None:  # without a selector it is about no pod
        return None
    status = obj.status
    seen = status is not None and (status.observedGeneration or 0) >= (meta.generation or 0)
    allowed = (status.disruptionsAllowed or 0) if status is not None and seen else 0
    return Budget(meta.namespace or "", meta.name or "", _requirements(selector), max(0, allowed))


def _requirements(selector: LabelSelector) -> tuple[Requirement, ...]:
    exact = [Requirement(key, "In", frozenset({value})) for key, value in sorted((selector.matchLabels or {}).items())]
    listed = [
        Requirement(one.key, one.operator, frozenset(one.values or ())) for one in selector.matchExpressions or ()
    ]
    return (*exact, *listed)
