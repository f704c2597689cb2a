"""Figures of quotas for the scheduler's page: what is used and what is allowed, and HAMi's names for the same.

Ours are in bytes, ratios of a card, and cards, for every quota; HAMi knows one limit of a resource in a namespace and
its own unit, so its name shows the quota that leaves least. Cannot fail.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from partage.exposition import family
from partage.model.share import CORES_MAX
from partage.scheduler.metrics import ZONE
from partage.scheduler.quota.meters import PREFIX

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.core import Metric

    from partage.exposition import Number
    from partage.scheduler.quota.book import QuotaBook
    from partage.scheduler.quota.meters import Meter


class _Row(NamedTuple):
    namespace: str
    quota: str
    meter: Meter
    used: int
    hard: int

    @property
    def resource(self) -> str:
        return self.meter.key.removeprefix(PREFIX)

    def base(self, amount: int) -> float:
        """Return an amount in base units: bytes, parts of a card, cards."""
        return amount / CORES_MAX if self.meter.kind == "cores" else float(amount)


def quota_families(book: QuotaBook, *, hami_names: bool) -> Iterator[Metric]:
    """Yield the families."""
    rows = [
        _Row(limit.namespace, limit.name, limit.meter(key), used, limit.hard[key])
        for limit in book.limits()
        for key, used in book.usage(limit.namespace, limit.name).items()
    ]
    labels = [{"namespace": row.namespace, "quota": row.quota, "resource": row.resource} for row in rows]
    used = [(of, row.base(row.used)) for of, row in zip(labels, rows, strict=True)]
    yield family("partage_quota_used", "gauge", "Used of a quota: bytes, cards, or parts of a card.", used)
    hard = [(of, row.base(row.hard)) for of, row in zip(labels, rows, strict=True)]
    yield family("partage_quota_limit", "gauge", "Allowed by a quota: bytes, cards, or parts of a card.", hard)
    if hami_names:
        yield from _hami(rows)


def _hami(rows: list[_Row]) -> Iterator[Metric]:
    tightest: dict[tuple[str, str], _Row] = {}
    for row in rows:
        known = tightest.get((row.namespace, row.resource))
        if known is None or row.hard - row.used < known.hard - known.used:
            tightest[row.namespace, row.resource] = row
    used: list[tuple[dict[str, str], Number]] = []
    hard: list[tuple[dict[str, str], Number]] = []
    for (namespace, resource), row in sorted(tightest.items()):
        of, unit = ZONE | {"namespace": namespace, "quota_name": resource}, row.meter.unit
        used.append((of | {"limit": str(row.hard // unit)}, row.used / unit))
        hard.append((of, row.hard / unit))
    yield family("hami_resource_quota_used", "gauge", "Used of a namespace's quota, in the resource's unit.", used)
    yield family("hami_resource_quota_limit", "gauge", "Limit of a namespace's quota, in the resource's unit.", hard)
