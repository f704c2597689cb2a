"""Figures of quotas: ours for every quota in base units, HAMi's for the one that leaves least."""

from __future__ import annotations

from partage.exposition import exposition
from partage.model.units import MI
from partage.scheduler.quota.book import QuotaBook, QuotaPod
from partage.scheduler.quota.figures import quota_families
from partage.scheduler.quota.limits import Limit
from partage.scheduler.quota.scope import Traits

MEMORY, CORES = "limits.nvidia.com/gpumem", "limits.nvidia.com/gpucores"


def figures(*, hami_names: bool) -> list[str]:
    book = QuotaBook()
    book.set_quota(Limit("ns", "wide", {MEMORY: 9000 * MI, CORES: 2500}))
    book.set_quota(Limit("ns", "tight", {MEMORY: 5000 * MI}))
    book.set_pod(QuotaPod("a", "ns", "", Traits(), ((CORES, 300), (MEMORY, 4000 * MI)), placed=True))
    text = exposition(quota_families(book, hami_names=hami_names)).decode()
    return [line for line in text.splitlines() if not line.startswith("#")]


def test_every_quota_in_base_units() -> None:
    assert figures(hami_names=False) == [
        'partage_quota_used{namespace="ns",quota="wide",resource="nvidia.com/gpumem"} 4194304000',
        'partage_quota_used{namespace="ns",quota="wide",resource="nvidia.com/gpucores"} 0.3',
        'partage_quota_used{namespace="ns",quota="tight",resource="nvidia.com/gpumem"} 4194304000',
        'partage_quota_limit{namespace="ns",quota="wide",resource="nvidia.com/gpumem"} 9437184000',
        'partage_quota_limit{namespace="ns",quota="wide",resource="nvidia.com/gpucores"} 2.5',
        'partage_quota_limit{namespace="ns",quota="tight",resource="nvidia.com/gpumem"} 5242880000',
    ]


def test_hamis_names_have_the_one_that_leaves_least() -> None:
    found = [line for line in figures(hami_names=True) if line.startswith("hami")]
    assert found == [
        'hami_resource_quota_used{zone="vGPU",namespace="ns",quota_name="nvidia.com/gpucores",limit="250"} 30',
        'hami_resource_quota_used{zone="vGPU",namespace="ns",quota_name="nvidia.com/gpumem",limit="5000"} 4000',
        'hami_resource_quota_limit{zone="vGPU",namespace="ns",quota_name="nvidia.com/gpucores"} 250',
        'hami_resource_quota_limit{zone="vGPU",namespace="ns",quota_name="nvidia.com/gpumem"} 5000',
    ]
