"""We test these aspects of K16 (C098, C099, C101, C102, C104, C106, C107): what a card takes and what not, with its
code and amounts: seats, memory, cores, percentages, whole cards, cards in other modes, several containers, init
containers and sidecars, oversubscription."""

from __future__ import annotations

from typing import Any

import pytest

from partage.model import ShareRefused
from partage.model.need import Role
from partage.model.reasons import REASONS, Code, remedy
from partage.model.share import ShareClass
from partage.model.units import GI
from partage.scheduler.books import Books
from tests.scheduler.support import RESOURCE, ask, node, place, shape, want, whole


def one(cards: Any = 1, **facts: Any) -> Books:
    books = Books()
    books.set_node(node("n", cards, **facts))
    return books


def why(books: Books, *wants: Any, **wishes: Any) -> Code | None:
    """The code with which node n refuses such a pod; None where it takes it."""
    refused = books.filter(ask(*wants, **wishes), ["n"]).refused
    return refused["n"].code if refused else None


def many(books: Books, *wants: Any) -> int:
    """How many such pods find place, one after the other."""
    count = 0
    while books.filter(pod := ask(*wants), ["n"]).fitting:
        place(books, pod, "n")
        count += 1
    return count


def test_c098_seats_are_part_of_the_fit() -> None:
    books = one([{"seats": 3}])
    assert many(books, want(gib=1)) == 3
    assert why(books, want(gib=1)) is Code.CARD_SEATS


def test_c098_kubelets_device_ids_are_too_whoever_has_them() -> None:
    books = one(1, seats={RESOURCE: 3})
    assert many(books, want(gib=1)) == 3
    assert why(books, want(gib=1)) is Code.NODE_SEATS
    assert why(one(1, seats={RESOURCE: 0}), want(gib=1)) is Code.NODE_NOT_READY
    assert why(one(1, seats={}), want(gib=1)) is Code.NODE_NOT_READY


def test_c099_a_card_without_a_figure_is_all_of_its_memory() -> None:
    books = one(2)
    place(books, ask(want(gib=1)), "n")
    pod = ask(want())
    placed = books.reserve(pod, "n", 0.0).containers[0]
    assert (placed.cards[0].index, placed.cards[0].memory, placed.mode) == (1, 80 * GI, "shim")
    assert why(books, want()) is Code.CARD_MEMORY


def test_c101_more_cards_than_the_node_has_is_said_at_once() -> None:
    books = one(1)
    unfit = books.filter(ask(want(gib=1, cards=9)), ["n"]).refused["n"]
    assert (unfit.code, unfit.asked, unfit.there) == (Code.NODE_CARDS, 9, 1)
    assert "not the count" in remedy(unfit.code)


def test_c101_two_containers_share_a_card() -> None:
    placed = one(1).reserve(ask(want("a", gib=1), want("b", gib=1)), "n", 0.0)
    assert placed.need["GPU-n-0"].seats == 2


def test_c102_a_burst_of_fractions_takes_what_there_is() -> None:
    assert many(one(8), want(gib=24, cores=300)) == 24


def test_c104_what_is_promised_is_below_the_water_line() -> None:
    assert why(one([{"memory": 79 * GI}]), want(gib=79)) is None
    assert why(one([{"memory": 79 * GI}]), want(gib=80)) is Code.CARD_MEMORY


def test_a_whole_card_is_exempt_from_the_water_line() -> None:
    books = one([{"memory": 79 * GI}])
    placed = books.reserve(ask(whole()), "n", 0.0)
    assert (placed.containers[0].mode, placed.containers[0].cards[0].memory) == ("whole", 80 * GI)
    assert books.recount() == ()
    assert books.overpromised() == ()


@pytest.mark.parametrize(("percent", "pods"), [(500, 2), (333, 3), (334, 2), (1000, 1), (100, 10)])
def test_c107_percentages_add_up_to_a_hundred(percent: int, pods: int) -> None:
    books = one([{"memory": 24 * GI - 1, "physical": 24 * GI, "seats": 20}])
    pod = ask(want(percent=percent))
    assert books.reserve(pod, "n", 0.0).containers[0].cards[0].memory == (24 * GI - 1) * percent // 1000
    books.release(pod.uid)
    assert many(books, want(percent=percent)) == pods


def test_all_cores_need_an_empty_card_and_keep_others_away() -> None:
    books = one(1)
    place(books, first := ask(want(gib=1)), "n")
    assert why(books, want(gib=1, cores=1000)) is Code.CARD_NOT_EMPTY
    books.drop_pod(first.uid)
    place(books, ask(want(gib=1, cores=1000)), "n")
    assert why(books, want(gib=1)) is Code.CARD_CORES_GONE
    assert why(books, want(gib=1, cores=100)) is Code.CARD_CORES


def test_a_share_without_cores_finds_no_place_beside_all_cores() -> None:
    books = one(1)
    place(books, ask(want(gib=1, cores=600)), "n")
    assert why(books, want(gib=1)) is None
    place(books, ask(want(gib=1, cores=400)), "n")
    assert why(books, want(gib=1)) is Code.CARD_CORES_GONE


def test_best_effort_has_no_guarantee_whatever_it_asks() -> None:
    books = one(1)
    place(books, ask(want(gib=1, cores=900)), "n")
    pod = ask(want(gib=1, cores=1000, share_class=ShareClass.BEST_EFFORT))
    placed = books.reserve(pod, "n", 0.0)
    grant, _ = books.grant_for(pod.uid, "n", term=1, bound_at=1)
    share = grant.containers["app"].shares[0]
    assert (placed.need["GPU-n-0"].cores, share.cores, share.ceiling) == (0, 0, 1000)


@pytest.mark.parametrize("mode", ["mig", "mps", "timeslice"])
def test_c106_cards_in_modes_that_are_not_placed_here_are_refused(mode: Any) -> None:
    assert why(one([{"mode": mode}]), want(gib=1)) is Code.CARD_MODE
    assert why(one(1), want(gib=1, mode=mode)) is Code.CARD_MODE
    assert why(one(1), want(profile="1g.10gb")) is Code.CARD_MODE


def test_a_vendor_without_rules_is_said() -> None:
    assert why(one([{"backend": "kunlun"}]), want(gib=1, backend="kunlun")) is Code.BACKEND
    assert why(one(1), want(gib=1, backend="kunlun")) is Code.NODE_CARDS


def test_nodes_that_cannot_take_anything_say_so() -> None:
    assert why(one([{"health": False}]), want(gib=1)) is Code.CARD_NOT_HEALTHY
    assert why(one(1, cordoned=frozenset({"GPU-n-0"})), want(gib=1)) is Code.CARD_CORDONED
    assert why(one(1, ready=False), want(gib=1)) is Code.NODE_NOT_READY
    assert why(one(0), want(gib=1)) is Code.NODE_NO_DEVICES
    assert why(one(0, problem="bad text"), want(gib=1)) is Code.NODE_UNREADABLE
    assert why(Books(), want(gib=1)) is Code.NODE_UNKNOWN


def test_init_containers_need_no_more_than_the_larger() -> None:
    init = want("init", gib=60, role=Role.INIT)
    placed = one(1).reserve(ask(init, want("app", gib=70)), "n", 0.0)
    assert placed.need["GPU-n-0"].memory == 70 * GI
    assert placed.seats == {RESOURCE: 1}


def test_a_sidecar_runs_beside_what_comes_after_it_only() -> None:
    init, sidecar = want("init", gib=60, role=Role.INIT), want("side", gib=30, role=Role.SIDECAR)
    assert why(one(1), init, sidecar) is None
    assert why(one(1), sidecar, init) is Code.TOGETHER
    assert why(one(2), sidecar, init) is None


def test_several_containers_find_a_placement_where_one_exists() -> None:
    books = one([{"memory": 12 * GI}, {"memory": 10 * GI}])
    five = [want(f"c{at}", gib=gib) for at, gib in enumerate((7, 5, 4, 3, 3))]
    assert why(books, *five) is None
    assert why(books, *five, want("one", gib=1)) is Code.TOGETHER


def test_a_thousand_containers_are_refused_by_a_rule() -> None:
    assert why(one(8), *(want(f"c{at}", gib=0.01) for at in range(1000))) is Code.POD_TOO_LARGE
    assert why(one(16), *(want(f"c{at}", gib=0.01, cards=16) for at in range(16))) is Code.POD_TOO_LARGE


def test_many_containers_are_searched_for_as_long_as_that_takes_no_time() -> None:
    """What hardly fits on any of many nodes: an answer with few steps a node, and the one node that takes it."""
    books = Books()
    for at in range(40):
        books.set_node(node(f"n{at}", [{"memory": 21 * GI, "physical": 21 * GI}] * 8))
    books.set_node(node("roomy", 8))
    wants = [want(f"c{at}", gib=gib) for at, gib in enumerate((11, 11, 11, 11, 11, 11, 11, 11, 10.1, 10.1, 10.1, 10.1))]
    found = books.filter(ask(*wants))
    assert found.fitting == ["roomy"]
    assert set(found.counts()) <= {Code.TOGETHER, Code.SEARCH}
    exact = [want(f"c{at}", gib=gib) for at, gib in enumerate((11, 10) * 8)]
    assert len(books.filter(ask(*exact)).fitting) == 41


def test_with_oversubscription_a_share_is_at_most_a_card() -> None:
    books = one(1, oversub=2000)
    assert why(books, want(gib=81)) is Code.CARD_MEMORY
    assert many(books, want(gib=80)) == 2
    placed = one(1, oversub=2000).reserve(ask(want(gib=8)), "n", 0.0)
    assert placed.containers[0].oversub


def test_a_refusal_names_amounts_and_a_next_step() -> None:
    books = one(2)
    place(books, ask(want(gib=50)), "n")
    place(books, ask(want(gib=70)), "n")
    unfit = books.filter(ask(want(gib=40)), ["n"]).refused["n"]
    assert (unfit.text, unfit.detail) == ("2/2 CardInsufficientMemory", "40 GiB asked, 30 GiB there")
    with pytest.raises(ShareRefused, match="40 GiB asked, 30 GiB there; ask for less memory"):
        books.reserve(ask(want(gib=40)), "n", 0.0)


def test_every_code_has_a_meaning_and_a_remedy() -> None:
    assert REASONS.keys() == set(Code)
    assert all(reason.meaning and reason.remedy for reason in REASONS.values())


def test_shapes_of_pods_of_one_workload_are_one() -> None:
    assert shape(want(gib=1)) == shape(want(gib=1))
    assert hash(shape(want(gib=1))) == hash(shape(want(gib=1)))
