"""What the scheduler exports, for the test of dashboard and rules: every family that can have a series, once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

from partage.scheduler.leader import Term
from partage.scheduler.metrics import CardRow, PodRow, Promised, Requests, promised_families, state_families
from partage.scheduler.quota.book import QuotaBook
from partage.scheduler.quota.figures import quota_families
from partage.scheduler.quota.limits import Limit
from partage.scheduler.recount import Overpromise

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.core import Metric

    from partage.scheduler.term import Reign


class _Binder:
    unknown = 0

    def __len__(self) -> int:
        return 0


class _Books:
    kept = 1

    def overpromised(self) -> tuple[Overpromise, ...]:
        return (Overpromise("n1", "GPU-a", "u1", "pod team/p", (), "NVIDIA H100", 1, is_bound=True),)


def scheduler_families() -> Iterator[Metric]:
    """Yield the families of a scheduler that leads, has one card and one pod, and had every kind of trouble."""
    reign = SimpleNamespace(
        term=Term(1),
        is_ready=True,
        binder=_Binder(),
        extender=SimpleNamespace(results={"bound": 1}),
        tell=SimpleNamespace(refusals={"CardInsufficientMemory": 1}, waiting=1, written=1, dropped=0),
        watch=SimpleNamespace(unreadable={"n1": "no JSON"}, stale_for=0.0),
        duties=SimpleNamespace(
            status=SimpleNamespace(written=1), evictor=SimpleNamespace(evictions=1), resizer=SimpleNamespace(written=1)
        ),
        books=_Books(),
        audits=1,
        differences=0,
    )
    yield from state_families(cast("Reign", reign), "")
    requests = Requests()
    requests.count("filter", "unreadable")
    yield from requests.families()
    card = CardRow("n1", "GPU-a", 0, "NVIDIA H100", 1, 1, 1, 1, 1)
    pod = PodRow("team", "p", "n1", "GPU-a", 1, 1)
    yield from promised_families(Promised([card], [pod]), hami_names=True)
    quotas = QuotaBook()
    quotas.set_quota(Limit("team", "shares", {"limits.nvidia.com/gpumem": 1}))
    yield from quota_families(quotas, hami_names=True)
