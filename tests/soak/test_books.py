"""We test this aspect: a hundred thousand random requests are answered by the books as by trying everything."""

from __future__ import annotations

import pytest

from partage.scheduler import index
from tests.scheduler.comparison import compare

from .conftest import full


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("some", [0, 64], ids=["all nodes at once", "changed nodes only"])
def test_random_requests(monkeypatch: pytest.MonkeyPatch, some: int) -> None:
    monkeypatch.setattr(index, "_SOME", some)
    monkeypatch.setattr(index, "_MANY", some)
    requests = 50_000 if full() else 1_000
    yes, no = compare(requests, seed=10_000_019 + some)
    print(f"{requests} requests, {yes} answers yes, {no} answers no, no difference")
