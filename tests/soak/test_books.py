"""We test these aspects: a hundred thousand random requests are answered by the books as by trying everything; nothing
is promised twice or lost in some thousand random disturbances."""

from __future__ import annotations

import pytest

from partage.scheduler import index
from tests.scheduler.comparison import compare
from tests.scheduler.disturbed import disturb

from .conftest import full


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("some", [0, 64], ids=["all nodes at once", "changed nodes only"])
def test_random_requests(monkeypatch: pytest.MonkeyPatch, some: int) -> None:
    monkeypatch.setattr(index, "_SOME", some)
    monkeypatch.setattr(index, "_MANY", some)
    requests = 50_000 if full() else 1_000
    yes, no = compare(requests, seed=10_000_019 + some)
    print(f"{requests} requests, {yes} answers yes, {no} answers no, no difference")


@pytest.mark.timeout(3600)
def test_random_disturbances() -> None:
    worlds = 3_000 if full() else 20
    for seed in range(worlds):
        disturb(seed + 20_000_003)
    print(f"{worlds} worlds, nothing promised twice, nothing lost")
