"""What is suggested is enough: the pod fits once it is done, and what comes first takes least (K24)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from partage.model.reasons import Code
from partage.model.share import ShareClass
from partage.model.units import GI
from partage.scheduler.books import Books
from partage.scheduler.suggest import Suggestion, suggestions
from tests.scheduler.support import ask, node, place, want, whole

if TYPE_CHECKING:
    from partage.model.ask import PodAsk
    from partage.scheduler.facts import NodeFacts


def books_of(*nodes: NodeFacts) -> Books:
    books = Books()
    for one in nodes:
        books.set_node(one)
    return books


def suggested(books: Books, wanted: PodAsk) -> list[Suggestion]:
    """All suggestions; each was done, and the pod fitted on the node that it names."""
    found = list(suggestions(wanted, books.nodes.values(), books.defaults))
    for one in found:
        do(books, one)
    return found


def do(books: Books, one: Suggestion) -> None:
    """Do what is suggested in books of its own, and see the pod fit."""
    changed = Books()
    for state in books.nodes.values():
        if state.facts is not None:
            changed.set_node(one.facts if one.facts is not None and one.node == state.name else state.facts)
    for pod in books.pods.values():
        if pod.uid not in one.ended:
            changed.set_pod(pod)
    assert one.node in changed.filter(one.ask).fitting, one.text


def first(books: Books, wanted: PodAsk) -> str:
    assert books.filter(wanted).fitting == []
    return suggested(books, wanted)[0].text


def test_less_memory_as_much_as_the_best_card_has() -> None:
    books = books_of(node("a", 1), node("b", 2))
    place(books, ask(want(gib=70)), "a")
    place(books, ask(want(gib=30)), "b")
    place(books, ask(want(gib=45)), "b")
    wanted = ask(want(gib=60))
    assert first(books, wanted) == "ask for nvidia.com/gpumem: 51200 in place of 61440 in container app"
    percent = ask(want(percent=900))
    assert first(books, percent) == "ask for nvidia.com/gpumem: 51200 in place of 90 % of a card in container app"


def test_two_cards_have_what_the_second_best_has() -> None:
    books = books_of(node("b", 2))
    place(books, ask(want(gib=30)), "b")
    place(books, ask(want(gib=45)), "b")
    texts = [one.text for one in suggested(books, ask(want(gib=50, cards=2)))]
    assert texts[0] == "ask for nvidia.com/gpumem: 35840 in place of 51200 in container app"
    assert "ask for nvidia.com/gpu: 1 in place of 2 in container app" in texts


def test_fewer_cores() -> None:
    books = books_of(node("n", 1))
    place(books, ask(want(gib=1, cores=605)), "n")
    texts = [one.text for one in suggested(books, ask(want(gib=1, cores=500)))]
    assert texts[0] == "ask for nvidia.com/gpucores: 39 in place of 50 in container app"
    assert any(text == "set partage.io/class: best-effort" for text in texts)


def test_less_of_both() -> None:
    books = books_of(node("n", 1))
    place(books, ask(want(gib=40, cores=600)), "n")
    assert first(books, ask(want(gib=60, cores=600))) == (
        "ask for nvidia.com/gpumem: 40960 in place of 61440 and nvidia.com/gpucores: 40 in place of 60 in container app"
    )


def test_less_than_a_whole_card() -> None:
    books = books_of(node("n", 1))
    place(books, ask(want(gib=30, cores=300)), "n")
    assert first(books, ask(whole())) == (
        "ask for nvidia.com/gpumem: 51200 in place of 100 % of a card and nvidia.com/gpucores: 70 in place of 100 "
        "in container app"
    )


def test_without_a_wish_and_the_pod_keeps_all_it_asked_for() -> None:
    books = books_of(node("n", 2))
    assert first(books, ask(want(gib=10), types=("H100",))) == (
        "leave out the wanted card types (nvidia.com/use-gputype)"
    )
    assert first(books, ask(want(gib=10), uuids=frozenset({"GPU-x"}))).endswith("(nvidia.com/use-gpuuuid)")
    assert first(books, ask(want(gib=10, cards=2), nvlink="required")) == "set partage.io/nvlink: preferred"
    both = ask(want(gib=10), types=("H100",), uuids=frozenset({"GPU-x"}))
    assert first(books, both) == (
        "leave out the wanted card types (nvidia.com/use-gputype); leave out the wanted cards (nvidia.com/use-gpuuuid)"
    )
    place(books, ask(want(gib=1)), "n")
    place(books, ask(want(gib=1)), "n")
    assert first(books, ask(want(gib=10), card_policies=("mutex",))).startswith("leave mutex out")


def test_numa() -> None:
    books = books_of(node("n", [{"numa": 0}, {"numa": 1}]))
    assert first(books, ask(want(gib=10, cards=2), one_numa_node=True)) == "leave out nvidia.com/numa-bind"


def test_another_class() -> None:
    books = books_of(node("n", [{"qos": ShareClass.BURST}]))
    place(books, ask(want(gib=10)), "n")
    assert first(books, ask(want(gib=10, cores=300))) == "set partage.io/class: burst"


def test_a_cordoned_card() -> None:
    books = books_of(node("n", 2, cordoned=frozenset({"GPU-n-0", "GPU-n-1", "GPU-other"})))
    texts = [one.text for one in suggested(books, ask(want(gib=10)))]
    assert texts == ["take GPU-n-0 out of annotation hami.io/device-cordon of node n"]


def test_nodes_and_cards_that_are_not_well() -> None:
    books = books_of(node("a", 1, ready=False), node("b", [{"health": False, "reason": "xid 79"}]))
    texts = [one.text for one in suggested(books, ask(want(gib=10)))]
    assert texts == [
        "see why node a is not ready: `kubectl describe node a`",
        "see why GPU-b-0 of node b is not well: `partage doctor` there",
    ]


def test_pods_that_could_end() -> None:
    books = books_of(node("n", [{"seats": 1}]))
    place(books, ask(want(gib=1), uid="x"), "n")
    assert first(books, ask(want(gib=1))) == "end, or wait for the end of, pod default/pod-x on node n"


def test_the_container_that_is_too_large_is_named() -> None:
    books = books_of(node("n", 1))
    wanted = ask(want("small", gib=10), want("large", gib=90))
    assert first(books, wanted) == "ask for nvidia.com/gpumem: 71680 in place of 92160 in container large"


def test_nothing_helps_where_there_is_no_card() -> None:
    books = books_of(node("n", 0))
    wanted = ask(want(gib=1))
    assert books.filter(wanted).counts() == {Code.NODE_NO_DEVICES: 1}
    assert suggested(books, wanted) == []


def test_every_suggestion_for_random_asks_is_enough() -> None:
    for number in range(1, 60):
        books = books_of(node("a", 2), node("b", [{"physical": 24 * GI, "memory": 24 * GI}] * 2))
        for pod in range(number % 7):
            filled = ask(want(gib=5 + pod * number % 17, cores=pod * 37 % 400 // 10 * 10))
            fitting = books.filter(filled).fitting
            if fitting:
                place(books, filled, fitting[0])
        wanted = ask(want(gib=7 * number % 100 + 1, cores=number * 130 % 1000 // 10 * 10, cards=number % 3 + 1))
        if not books.filter(wanted).fitting:
            suggested(books, replace(wanted, priority=number))
