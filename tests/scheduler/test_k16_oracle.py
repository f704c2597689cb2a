"""We test these aspects of K16: random requests are answered as by trying everything, in what is let in and in what is
chosen; and a mistake in the fit is found that way."""

from __future__ import annotations

import pytest

from partage.model.reasons import Code
from partage.scheduler import fits, index
from tests.scheduler.comparison import compare

REQUESTS = 2_000


@pytest.mark.parametrize("some", [0, 64], ids=["all nodes at once", "changed nodes only"])
def test_random_requests_are_answered_as_by_trying_everything(monkeypatch: pytest.MonkeyPatch, some: int) -> None:
    monkeypatch.setattr(index, "_SOME", some)
    monkeypatch.setattr(index, "_MANY", some)
    yes, no = compare(REQUESTS, seed=1)
    assert yes > REQUESTS // 2
    assert no > REQUESTS // 2


@pytest.mark.parametrize("forgotten", [Code.CARD_MEMORY, Code.CARD_CORES, Code.CARD_NOT_EMPTY, Code.CARD_CORES_GONE])
def test_a_forgotten_rule_is_found(monkeypatch: pytest.MonkeyPatch, forgotten: Code) -> None:
    right = fits.card_refusal

    def wrong(*question: object) -> Code | None:
        code = right(*question)  # type: ignore[arg-type]
        return None if code is forgotten else code

    monkeypatch.setattr(fits, "card_refusal", wrong)
    with pytest.raises(AssertionError, match="seed"):
        compare(REQUESTS, seed=1)
