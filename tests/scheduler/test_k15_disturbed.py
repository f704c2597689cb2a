"""We test these aspects of K15, K16 and K21: whatever happens to watch, bindings and pods, in whatever order, no card
and no quota is promised twice; and once it is quiet the books have what the API server has and nothing else."""

from __future__ import annotations

import pytest

from tests.scheduler.disturbed import disturb


@pytest.mark.parametrize("seed", range(12))
def test_nothing_is_promised_twice_and_nothing_is_lost(seed: int) -> None:
    disturb(seed)
