"""We test these aspects of the books (K15: C091, C094, C095, C096; C103): what is reserved, bound, released, expired,
finished and gone is counted once; a pod does not stand in its own way; pods of HAMi's are counted, and records that
cannot be read close the cards that they name and nothing else; of what was promised twice the later one is named;
grants are of what was reserved."""

from __future__ import annotations

import gc
from dataclasses import replace

import pytest

from partage.model import GrantError, ShareRefused
from partage.model.grant import encode_grant, parse_grant
from partage.model.hami_twin import parse_twin
from partage.model.need import Need, Role
from partage.model.node_devices import SafeMode
from partage.model.reasons import Code
from partage.model.share import ShareClass
from partage.model.units import GI
from partage.scheduler.books import RESERVED_S, Books
from partage.scheduler.facts import PodFacts
from partage.scheduler.fits import plan_of
from tests.scheduler.support import RESOURCE, ask, bound, node, place, want, whole

APP = (("app", Role.APP),)


def books_of(*names: str, cards: int = 1) -> Books:
    books = Books()
    for name in names:
        books.set_node(node(name, cards))
    return books


def free(books: Books, name: str = "n") -> list[int]:
    return [memory // GI for memory in books.nodes[name].memory]


def test_a_reservation_is_counted_until_it_is_released() -> None:
    books = books_of("n")
    first, second = ask(want(gib=50)), ask(want(gib=50))
    books.reserve(first, "n", 0.0)
    assert books.filter(second, ["n"]).counts() == {Code.CARD_MEMORY: 1}
    with pytest.raises(ShareRefused, match="50 GiB asked, 30 GiB there"):
        books.reserve(second, "n", 0.0)
    books.release(first.uid)
    assert books.filter(second, ["n"]).fitting == ["n"]


def test_a_promise_is_looked_at_again_where_its_node_has_changed() -> None:
    books, pod = books_of("n"), ask(want(gib=50))
    assert books.reserve(pod, "n", 0.0) is books.reserve(pod, "n", RESERVED_S / 2)
    assert books.expire(RESERVED_S) == []
    books.set_node(node("n", 1, cordoned=frozenset({"GPU-n-0"})))
    with pytest.raises(ShareRefused, match="Cordoned"):
        books.reserve(pod, "n", RESERVED_S)


def test_a_reservation_that_is_not_bound_in_time_is_given_back() -> None:
    books = books_of("n")
    books.reserve(pod := ask(want(gib=50)), "n", 100.0)
    assert books.expire(100.0 + RESERVED_S - 1) == []
    assert books.expire(100.0 + RESERVED_S) == [pod.uid]
    assert free(books) == [80]


def test_a_reservation_whose_bind_may_have_gone_through_stays() -> None:
    books = books_of("n")
    books.reserve(pod := ask(want(gib=50)), "n", 0.0)
    books.grant_for(pod.uid, "n", term=1, bound_at=1)
    assert books.expire(1e9) == []
    books.set_pod(PodFacts(pod.uid, "default", pod.name, order=APP))  # the watch: still pending
    assert free(books) == [30]
    books.release(pod.uid)  # the bind failed for certain
    assert free(books) == [80]


def test_a_reservation_moves_with_the_pod() -> None:
    books = books_of("n", "m")
    pod = ask(want(gib=50))
    books.reserve(pod, "n", 0.0)
    books.reserve(pod, "m", 0.0)
    assert (free(books, "n"), free(books, "m")) == ([80], [30])


def test_a_pod_does_not_stand_in_its_own_way() -> None:
    books = books_of("n", "m")
    pod = ask(whole())
    books.reserve(pod, "n", 0.0)
    assert books.filter(pod).fitting == ["n", "m"]
    assert {name for name, _ in books.rank(pod, ["n", "m"])} == {"n", "m"}
    books.reserve(pod, "n", 1.0)
    assert books.filter(ask(want(gib=1))).fitting == ["m"]


def test_a_pod_that_was_bound_elsewhere_leaves_what_was_reserved() -> None:
    books = books_of("n", "m")
    pod = ask(want(gib=50))
    books.reserve(pod, "m", 0.0)
    facts = bound(books, pod, "m")
    books.reserve(pod, "n", 0.0)
    books.set_pod(facts)
    assert (free(books, "n"), free(books, "m")) == ([80], [30])
    assert books.reservation(pod.uid) is None


def test_a_bound_pod_gets_no_second_place() -> None:
    books = books_of("n", "m")
    place(books, pod := ask(want(gib=1)), "n")
    with pytest.raises(ShareRefused, match="bound to node n"):
        books.reserve(pod, "m", 0.0)


def test_c103_what_terminates_is_free_only_once_it_is_gone() -> None:
    books = books_of("n")
    facts = place(books, ask(whole()), "n")
    for still in (
        replace(facts, deleting=True),
        replace(facts, phase="Failed"),  # and a container still runs
    ):
        books.set_pod(still)
        assert books.filter(ask(want(gib=1))).counts() == {Code.CARD_MEMORY: 1}
    books.set_pod(replace(facts, phase="Failed", finished=True))
    assert books.filter(ask(want(gib=1))).fitting == ["n"]
    books.drop_pod(facts.uid)
    assert books.recount() == ()


def test_c091_a_pod_made_anew_under_its_name_is_another_pod() -> None:
    books = books_of("n")
    for round_ in range(50):
        pod = ask(whole(), uid=f"u{round_}")
        facts = replace(place(books, pod, "n"), name="web-0")
        books.set_pod(facts)
        assert books.nodes["n"].tenants == [1]
        books.drop_pod(pod.uid)
    assert free(books) == [80]


def test_c094_updates_told_again_change_nothing() -> None:
    books = books_of("n")
    facts = place(books, ask(want(gib=10)), "n")
    for _ in range(10):
        books.set_pod(facts)
        books.set_pod(replace(facts, phase="Running"))
        books.set_node(node("n", 1))
    assert free(books) == [70]
    assert books.recount() == ()


def test_c095_pods_that_have_nothing_count_nothing() -> None:
    books = books_of("n")
    books.set_pod(PodFacts("agent", "partage-system", "agent", "n", order=APP, phase="Running"))
    assert books.nodes["n"].pods == {}


def test_c096_never_two_owners_of_a_whole_card() -> None:
    books = books_of("n", cards=8)
    pods = [place(books, ask(whole(2)), "n") for _ in range(4)]
    for _ in range(200):
        books.drop_pod(pods.pop(0).uid)
        pods.append(place(books, ask(whole(2)), "n"))
        with pytest.raises(ShareRefused):
            books.reserve(ask(whole()), "n", 0.0)
        assert books.nodes["n"].tenants == [1] * 8
    assert books.overpromised() == ()


def test_device_ids_of_pods_of_other_schedulers_count() -> None:
    books = Books()
    books.set_node(node("n", 1, seats={RESOURCE: 2}))
    books.set_pod(PodFacts("other", "ns", "other", "n", order=APP, seats={RESOURCE: 2}))
    assert books.filter(ask(want(gib=1))).counts() == {Code.NODE_SEATS: 1}


def test_pods_of_hami_are_counted() -> None:
    books = books_of("n", cards=2)
    books.set_pod(PodFacts("h", "ns", "h", "n", twin="GPU-n-0,NVIDIA,3000,30:GPU-n-1,NVIDIA,3000,30:;", order=APP))
    assert books.nodes["n"].memory == [80 * GI - 3000 * (GI >> 10)] * 2
    assert books.nodes["n"].cores == [700, 700]


@pytest.mark.parametrize(
    ("grant", "twin"),
    [("", "GPU-n-0,NVIDIA,lots,30:;"), ("", "GPU-n-0"), ('{"v":9,"a":[{"uuid":"GPU-n-0"}]}', ""), ("GPU-n-0,{", "")],
)
def test_a_record_that_cannot_be_read_closes_the_cards_it_names(grant: str, twin: str) -> None:
    books = books_of("n", "m", cards=2)
    books.set_pod(PodFacts("bad", "ns", "bad", "n", grant=grant, twin=twin, order=APP))
    found = books.reserve(ask(want(gib=1)), "n", 0.0)
    assert list(found.need) == ["GPU-n-1"]
    assert books.filter(ask(want(gib=1, cards=2))).fitting == ["m"]
    verdict = next(one for one in books.why(ask(want(gib=1))).nodes if one.node == "n")
    closed, is_open = verdict.cards["app"]
    assert (closed.code, is_open.code) == (Code.CARD_UNKNOWN_USE, None)
    assert "ns/bad" in closed.note
    books.drop_pod("bad")
    assert books.filter(ask(want(gib=1, cards=2))).fitting == ["n", "m"]


def test_whole_cards_of_safe_mode_are_taken() -> None:
    books = Books()
    books.set_node(node("n", 2, safe=(SafeMode(pod="p", uuids=("GPU-n-0",)),)))
    assert list(books.reserve(ask(whole()), "n", 0.0).need) == ["GPU-n-1"]
    assert books.filter(ask(want(gib=1))).fitting == []


def test_of_two_grants_that_cannot_both_hold_the_later_is_named() -> None:
    books, other = books_of("n"), books_of("n")
    early, late = ask(want(gib=50), uid="z"), ask(want(gib=50), uid="a")
    facts = place(books, early, "n", term=2, bound_at=10)
    other.reserve(late, "n", 0.0)
    books.set_pod(bound(other, late, "n", term=3, bound_at=5))
    (found,) = books.overpromised()
    assert (found.node, found.uuid, found.uid, found.before) == ("n", "GPU-n-0", "a", (facts.subject,))
    assert (found.memory, found.is_bound) == (50 * GI, True)
    assert books.filter(ask(want(gib=1))).counts() == {Code.CARD_MEMORY: 1}
    books.drop_pod("z")
    assert books.overpromised() == ()


def test_facts_may_come_in_any_order() -> None:
    books, again = books_of("n"), Books()
    facts = place(books, ask(want(gib=10)), "n")
    again.set_pod(facts)
    assert again.filter(ask(want(gib=1)), ["n"]).counts() == {Code.NODE_UNKNOWN: 1}
    again.set_node(node("n", 1))
    assert again.nodes["n"].memory == books.nodes["n"].memory
    again.drop_node("n")
    again.set_node(node("n", 1))
    assert again.nodes["n"].memory == books.nodes["n"].memory
    again.drop_node("n")
    again.drop_pod(facts.uid)
    assert dict(again.nodes) == {}


def test_a_grant_is_of_what_was_reserved() -> None:
    books = books_of("n", cards=2)
    init, app = want("init", gib=2, role=Role.INIT), want("app", gib=4, cards=2, cores=300, weight=7)
    lazy = want("lazy", gib=1, share_class=ShareClass.BURST, ceiling=600, priority=2)
    pod = ask(init, app, lazy)
    with pytest.raises(GrantError, match="nothing reserved"):
        books.grant_for(pod.uid, "n", term=1, bound_at=1)
    placed = books.reserve(pod, "n", 0.0)
    with pytest.raises(GrantError, match="reserved on n"):
        books.grant_for(pod.uid, "m", term=1, bound_at=1)
    grant, twin = books.grant_for(pod.uid, "n", term=5, bound_at=77)
    assert parse_grant(encode_grant(grant), uid=pod.uid, node="n", pod="p") == grant
    assert (grant.order, grant.gen) == ((5, 77, pod.uid), 1)
    shares = grant.containers["app"].shares
    assert [(one.memory, one.cores, one.ceiling, one.weight) for one in shares] == [(4 * GI, 300, 300, 7)] * 2
    assert grant.containers["lazy"].shares[0].ceiling == 600
    assert grant.containers["lazy"].priority == 2
    adopted = parse_twin(twin, pod.shape.order, uid=pod.uid, node="n", pod="p")
    assert {name: [one.uuid for one in part.shares] for name, part in adopted.containers.items()} == {
        name: [one.uuid for one in part.shares] for name, part in grant.containers.items()
    }
    assert sum(placed.need.values(), Need()).seats == 3


def test_explain_says_what_every_card_says() -> None:
    books = books_of("n", "m", cards=2)
    place(books, ask(want(gib=70)), "n")
    verdicts = books.why(ask(want(gib=20, cards=2)))
    assert [one.node for one in verdicts.nodes] == ["m", "n"]
    assert verdicts.counts() == {Code.CARD_MEMORY: 1}
    fits, unfit = verdicts.nodes
    assert fits.placement is not None
    assert fits.score == 10
    assert [(card.code, card.free_memory // GI) for card in unfit.cards["app"]] == [(Code.CARD_MEMORY, 10), (None, 80)]


def test_the_nearest_refusal_is_that_of_the_node_that_lacks_least() -> None:
    books = books_of(*(f"n{at}" for at in range(100)))
    for at in range(100):
        place(books, ask(want(gib=79 - at * 0.2)), f"n{at}")
    found = books.filter(ask(want(gib=60)))
    nearest = found.refused.nearest()
    assert nearest is not None
    assert nearest.node == "n99"
    assert nearest == max(found.refused.values(), key=lambda unfit: unfit.there)
    assert books.filter(ask(want(gib=1), types=("T4",))).refused.nearest() is None


def test_answers_that_are_read_late_say_so() -> None:
    books = books_of(*(f"n{at}" for at in range(100)))
    pods = [place(books, ask(whole()), f"n{at}") for at in range(100)]
    early, late = books.filter(ask(want(gib=1))), books.filter(ask(want(gib=2)))
    assert set(early.counts()) == {Code.CARD_MEMORY}
    for pod in pods:
        books.drop_pod(pod.uid)
    assert set(late.counts()) == {Code.NODE_CHANGED}
    assert late.refused["n7"].code is Code.NODE_CHANGED


def test_what_is_worked_out_of_a_kind_of_card_goes_with_it() -> None:
    """A cluster whose nodes change for years, and an autoscaler that asks about nodes that do not exist."""
    books, pod, pair = Books(), ask(want(gib=3)), ask(want(gib=3), want("b", gib=5))
    plan = plan_of(pod.shape, books.defaults)
    for number in range(500):
        size = (20 + number) * GI
        books.set_node(node("n", [{"memory": size, "physical": size}] * 2))
        assert [books.filter(one).fitting for one in (pod, pair)] == [["n"], ["n"]]
        assert books.filter(ask(want(gib=21 + number))).counts() == {Code.CARD_MEMORY: 1}
        stranger = Books()
        stranger.set_node(node("s", 4))
        stranger.filter(pod)
    del stranger
    gc.collect()
    assert books.sizes() == {size}
    assert len(books._index._sweep._models) < 100
    assert len(plan._kinds) < 200
    books.drop_node("n")
    assert books.filter(pod).fitting == []
    assert (books.sizes(), len(books._kinds), len(plan._kinds)) == (set(), 0, 0)
