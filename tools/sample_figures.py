"""What agent and scheduler export: every family that can have a series, once.

For the page of figures (`reference_metrics.py`) and the test of dashboard and rules. Cannot fail; a family that needs
more than is made up here is missing on that page.
"""

from __future__ import annotations

from dataclasses import fields
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from partage.scheduler.leader import Term
from partage.scheduler.metrics import CardRow, PodRow, Promised, Requests, promised_families, state_families
from partage.scheduler.quota.book import QuotaBook
from partage.scheduler.quota.figures import quota_families
from partage.scheduler.quota.limits import Limit
from partage.scheduler.recount import Overpromise
from partage_plugin.figures import CardFigures, ContainerFigures, Figures
from partage_plugin.metrics import MetricsPage

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


def agent_page() -> str:
    """Return the page of an agent with one card, one container with a share of it, and a figure that failed."""
    card = CardFigures("GPU-a", 0, "NVIDIA H100", "nvidia", "shim", 1, 1, 10, used=1, busy=1, memory_busy=1)
    texts = {"namespace": "team", "pod": "p", "container": "app", "device_uuid": card.uuid, "share_class": "fixed"}
    known: dict[str, Any] = {one.name: 1 for one in fields(ContainerFigures)}  # a value for each, so each has a series
    known |= texts | {"hand_over": "0" * 32, "enforcement": "shim", "kinds": {"context": 1, "allocated": 1}}
    container = ContainerFigures(**known)
    return MetricsPage("n1").text(Figures((card,), (container,), {"ledger": 1}))
