"""We test these aspects of the books (K15): what is reserved, bound, released, expired and gone is counted once."""

from __future__ import annotations

import pytest

from partage.model import ShareRefused
from partage.model.reasons import Code
from partage.scheduler.books import Books
from tests.scheduler.support import ask, node, place, want, whole


def test_a_reservation_is_counted_until_it_is_released() -> None:
    books = Books()
    books.set_node(node("n", 1))
    first, second = ask(want(gib=50)), ask(want(gib=50))
    books.reserve(first, "n", 0.0)
    assert books.filter(second, ["n"]).counts() == {Code.CARD_MEMORY: 1}
    with pytest.raises(ShareRefused, match="50 GiB asked, 30 GiB there"):
        books.reserve(second, "n", 0.0)
    books.release(first.uid)
    assert books.filter(second, ["n"]).fitting == ["n"]


def test_a_pod_that_is_bound_keeps_its_cards_until_it_is_gone() -> None:
    books = Books()
    books.set_node(node("n", 1))
    place(books, pod := ask(whole()), "n")
    assert books.filter(ask(want(gib=1))).fitting == []
    books.drop_pod(pod.uid)
    assert books.filter(ask(want(gib=1))).fitting == ["n"]
