"""A ResourceQuota object as the quota book knows it: the keys of ours that it limits, and for which pods.

Read from the API's object; `kubectl describe` shows what is wrong with it by the events that `problems` become. Amounts
in bytes, permille, cards. A key that is ours and whose amount does not parse limits to nothing: closed, not unlimited.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from partage.model import UsageError
from partage.scheduler.quota.meters import BY_KEY, Meter, misspelt, parse_amount
from partage.scheduler.quota.scope import Scope, Traits

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lightkube.models.core_v1 import ResourceQuota, ResourceQuotaSpec

UNREADABLE: Final = 0


@dataclass(frozen=True, slots=True)
class Limit:
    """One quota. `written`: the amounts as they stand in the object, in whose units the status is told."""

    namespace: str
    name: str
    hard: Mapping[str, int]
    written: Mapping[str, str] = field(default_factory=dict)
    scopes: tuple[Scope, ...] = ()
    problems: tuple[str, ...] = ()

    def matches(self, traits: Traits) -> bool:
        """Whether a pod counts here."""
        return all(scope.matches(traits) for scope in self.scopes)

    def meter(self, key: str) -> Meter:
        """Return what a key of `hard` counts."""
        return BY_KEY[key]


def read_limit(quota: ResourceQuota) -> Limit:
    """Return what a quota object limits of ours; nothing where it has no key of ours."""
    spec, meta = quota.spec, quota.metadata
    hard: dict[str, int] = {}
    written: dict[str, str] = {}
    problems: list[str] = []
    for key, amount in sorted(((spec.hard if spec else None) or {}).items()):
        meter = BY_KEY.get(key)
        if meter is None:
            problems += filter(None, [misspelt(key)])
            continue
        written[key] = str(amount)
        try:
            hard[key] = parse_amount(meter, str(amount))
        except UsageError as error:
            hard[key] = UNREADABLE
            problems.append(f"{error}; until then it allows none")
    return Limit(
        namespace=(meta.namespace if meta else None) or "",
        name=(meta.name if meta else None) or "",
        hard=hard,
        written=written,
        scopes=_scopes(spec) if spec else (),
        problems=tuple(problems),
    )


def _scopes(spec: ResourceQuotaSpec) -> tuple[Scope, ...]:
    plain = [Scope(name) for name in spec.scopes or ()]
    selector = spec.scopeSelector
    selected = [
        Scope(one.scopeName, one.operator, frozenset(one.values or ()))
        for one in (selector.matchExpressions if selector else None) or ()
    ]
    return (*plain, *selected)
