"""Who must go for a pod of higher priority: the fewest, lowest, newest, within budgets (C142, C144)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partage.model import ShareRefused
from partage.model.reasons import Code
from partage.model.units import GI
from partage.scheduler.answers import Placement
from partage.scheduler.books import Books
from partage.scheduler.budgets import Budget, Budgets, Requirement
from partage.scheduler.fits import fits
from partage.scheduler.preempt import Preemption, Unit, Victim, choose_victims, cost_of, units_of
from tests.scheduler.support import ask, node, place, want, whole

if TYPE_CHECKING:
    from partage.model.ask import PodAsk
    from partage.scheduler.cards import NodeState


@dataclass
class Cluster:
    """Books with bound pods of known priority; `budgets` and gangs by the pod's name."""

    books: Books = field(default_factory=Books)
    victims: dict[str, Victim] = field(default_factory=dict)
    ending: set[str] = field(default_factory=set)
    moments: int = 0

    def pod(
        self, name: str, on: str, priority: int, *budgets: Budget, gang: str = "", gib: float = 10, cores: int = 0,
        cards: int = 1,
    ) -> None:  # fmt: skip
        self.moments += 1
        pod = replace(ask(want(gib=gib, cores=cores, cards=cards), uid=name), priority=priority)
        facts = place(self.books, pod, on, bound_at=self.moments, priority=priority)
        order = (1, self.moments, facts.uid)
        self.victims[name] = Victim(name, "default", name, priority, order, budgets, gang)

    def units(self, state: NodeState, below: int) -> list[Unit]:
        found = [self.victims[uid] for uid in state.pods if uid in self.victims]
        gangs = {one.gang for one in found if one.gang}
        others = [one for one in self.victims.values() if one.gang in gangs and one not in found]
        units = units_of([*found, *(replace(one, elsewhere=True) for one in others)])
        return [unit for unit in units if all(one.priority < below for one in unit.pods)]

    def choose(self, wanted: PodAsk) -> Preemption | None:
        return choose_victims(
            self.books.nodes.values(),
            wanted,
            lambda state: self.units(state, wanted.priority),
            lambda state: sorted(self.ending & state.pods.keys()),
            self.books.defaults,
        )

    def gone(self, wanted: PodAsk) -> list[str]:
        plan = self.choose(wanted)
        return [] if plan is None else sorted(victim.name for victim in plan.victims)


def high(gib: float | None = None, *, uid: str = "high", priority: int = 100, **fields: Any) -> PodAsk:
    return replace(ask(want(gib=gib, **fields), uid=uid), priority=priority)


def cluster(*names: str, cards: int = 1) -> Cluster:
    made = Cluster()
    for name in names:
        made.books.set_node(node(name, cards))
    return made


def test_c142_a_card_that_is_full_by_memory_only() -> None:
    full = cluster("n")
    for number in range(8):
        full.pod(f"low-{number}", "n", 1)
    plan = full.choose(high(gib=15))
    assert plan is not None
    assert sorted(one.name for one in plan.victims) == ["low-6", "low-7"], "two are enough; the newest"
    left = fits(full.books.nodes["n"], high(gib=15).shape, without=[one.uid for one in plan.victims])
    assert isinstance(left, Placement)


def test_nobody_goes_where_that_does_not_help() -> None:
    full = cluster("n")
    full.pod("same", "n", 100, gib=70)
    full.pod("low", "n", 1, gib=5)
    assert full.gone(high(gib=20)) == [], "one of equal priority is in the way"
    assert full.gone(high(gib=81)) == [], "no card is so large"
    assert full.gone(high(gib=10)) == ["low"]


def test_fewest_then_lowest_then_newest() -> None:
    full = cluster("n")
    full.pod("two-a", "n", 1, gib=10)
    full.pod("two-b", "n", 1, gib=10)
    full.pod("old", "n", 5, gib=20)
    full.pod("new", "n", 5, gib=20)
    full.pod("higher", "n", 6, gib=20)
    assert full.gone(high(gib=20)) == ["new"], "one pod rather than two of lower priority; the newer of equals"
    assert full.gone(high(gib=10)) == ["two-b"]
    assert full.gone(high(gib=40)) == ["new", "old"]
    assert full.gone(high(gib=20, priority=2)) == ["two-a", "two-b"]


def test_the_best_of_all_nodes() -> None:
    full = cluster("a", "b", "c")
    full.pod("a-1", "a", 9, gib=80)
    full.pod("b-1", "b", 3, gib=80)
    full.pod("c-1", "c", 1, gib=40)
    full.pod("c-2", "c", 1, gib=40)
    assert full.gone(high(gib=80)) == ["b-1"]
    assert full.gone(high(gib=40)) == ["c-2"]


def test_cores_seats_and_whole_cards() -> None:
    full = cluster("n")
    full.pod("cores", "n", 1, gib=1, cores=900)
    full.pod("memory", "n", 1, gib=60)
    assert full.gone(high(gib=10, cores=500)) == ["cores"]
    assert full.gone(replace(ask(whole(), uid="high"), priority=100)) == ["cores", "memory"]
    seats = Cluster()
    seats.books.set_node(node("n", [{"seats": 2}]))
    seats.pod("first", "n", 1, gib=1)
    seats.pod("last", "n", 1, gib=1)
    assert seats.gone(high(gib=1)) == ["last"]


def test_several_cards_and_one_pod_on_both() -> None:
    full = cluster("n", cards=2)
    full.pod("both", "n", 2, gib=70, cards=2)
    full.pod("a", "n", 1, gib=10)
    full.pod("b", "n", 1, gib=10)
    assert full.gone(high(gib=60, cards=2)) == ["both"]


def test_many_must_go_and_none_too_many() -> None:
    full = cluster("n")
    for number in range(10):
        full.pod(f"p{number}", "n", number % 3, gib=8)
    plan = full.choose(high(gib=40))
    assert plan is not None
    assert len(plan.victims) == 5
    for spared in plan.victims:
        others = [one.uid for one in plan.victims if one is not spared]
        assert not isinstance(fits(full.books.nodes["n"], high(gib=40).shape, without=others), Placement)


def test_c144_budgets_are_kept() -> None:
    none, one = Budget("default", "none", (), 0), Budget("default", "one", (), 1)
    full = cluster("a", "b")
    full.pod("protected", "a", 1, none, gib=80)
    assert full.gone(high(gib=80)) == []
    full.pod("other", "b", 50, gib=80)
    assert full.gone(high(gib=80)) == ["other"], "rather one of higher priority than one that a budget protects"
    replicas = cluster("a", "b")
    for name in ("r1", "r2"):
        replicas.pod(name, "a", 1, one, gib=40)
    for name in ("s1", "s2", "s3"):
        replicas.pod(name, "b", 2, gib=26)
    assert replicas.gone(high(gib=80)) == ["s1", "s2", "s3"], "three without a budget rather than two at once of one"
    assert replicas.gone(high(gib=40)) == ["r2"]


def test_a_gang_goes_whole_or_not_at_all() -> None:
    full = cluster("a", "b")
    full.pod("g1", "a", 1, gang="default/g", gib=80)
    full.pod("g2", "b", 1, gang="default/g", gib=40)
    full.pod("single", "b", 5, gib=40)
    plan = full.choose(high(gib=80))
    assert plan is not None
    assert (plan.node, sorted(one.name for one in plan.victims)) == ("a", ["g1", "g2"])
    assert full.gone(high(gib=40)) == ["single"], "one pod, not two"
    assert full.gone(high(gib=40, priority=5)) == ["g1", "g2"]
    full.victims["g1"] = replace(full.victims["g1"], priority=100)
    assert full.gone(high(gib=80)) == [], "one of the gang is no lower"


def test_what_ends_anyway_is_waited_for() -> None:
    full = cluster("n")
    full.pod("ends", "n", 200, gib=40)
    full.pod("low", "n", 1, gib=40)
    full.ending.add("ends")
    assert full.gone(high(gib=40)) == []
    assert full.gone(high(gib=80)) == ["low"], "what ends is not enough"


SHARES = st.lists(st.tuples(st.integers(1, 6), st.integers(0, 3), st.booleans()), min_size=1, max_size=7)


@given(SHARES, SHARES, st.integers(1, 8), st.integers(0, 4))
def test_no_better_choice_of_up_to_three(
    first: list[tuple[int, int, bool]], second: list[tuple[int, int, bool]], gib: int, priority: int
) -> None:
    """Compared with trying all choices of pods on every node."""
    full = Cluster()
    for name, shares in (("a", first), ("b", second)):
        full.books.set_node(node(name, [{"physical": 10 * GI, "memory": 10 * GI}]))
        for number, (size, low, guarded) in enumerate(shares):
            budgets = (Budget("default", "b", (), 1),) if guarded else ()
            if size * GI <= full.books.nodes[name].memory[0]:
                full.pod(f"{name}{number}", name, low, *budgets, gib=size)
    wanted = high(gib=gib, priority=priority)
    if full.books.filter(wanted).fitting:
        return
    best = None
    for state in full.books.nodes.values():
        units = full.units(state, priority)
        for count in range(1, len(units) + 1):
            for chosen in combinations(units, count):
                gone = [uid for unit in chosen for uid in unit.here]
                if isinstance(fits(state, wanted.shape, without=gone), Placement):
                    cost = cost_of(chosen)
                    best = cost if best is None else min(best, cost)
    plan = full.choose(wanted)
    assert (plan is None) == (best is None)
    if plan is not None and best is not None and best[1] <= 3:
        assert plan.cost == best


def test_a_claim_keeps_what_the_victims_leave() -> None:
    full = cluster("n")
    for number in range(8):
        full.pod(f"low-{number}", "n", 1)
    wanted, other = high(gib=15), ask(want(gib=5))
    full.books.claim(wanted, "n", ["low-6", "low-7"])
    full.books.drop_pod("low-6")
    full.books.drop_pod("low-7")
    assert full.books.filter(ask(want(gib=6))).counts() == {Code.CARD_MEMORY: 1}
    assert full.books.filter(other).fitting == ["n"], "what the winner leaves is for anybody"
    assert full.books.filter(wanted).fitting == ["n"]
    full.books.release(wanted.uid)  # as filter does for every pod: a claim is no reservation
    assert full.books.filter(ask(want(gib=6))).fitting == []
    place(full.books, wanted, "n")
    assert full.books.nodes["n"].memory == [5 * GI]
    full.books.unclaim(wanted.uid)
    assert full.books.nodes["n"].memory == [5 * GI]


def test_a_claim_is_given_back_with_its_pod_and_not_made_where_it_would_not_fit() -> None:
    full = cluster("n")
    full.pod("low", "n", 1, gib=80)
    with pytest.raises(ShareRefused):
        full.books.claim(high(gib=81), "n", ["low"])
    with pytest.raises(ShareRefused):
        full.books.claim(high(gib=1), "nowhere", [])
    full.books.claim(high(gib=80), "n", ["low"])
    full.books.drop_pod("low")
    full.books.drop_pod("high")
    assert full.books.nodes["n"].memory == [80 * GI]


def test_budgets_cover_by_labels() -> None:
    some = Requirement("app", "In", frozenset({"web"}))
    no_db = Requirement("app", "NotIn", frozenset({"db"}))
    budgets = Budgets((
        Budget("default", "exact", (some,), 1),
        Budget("default", "not", (Requirement("tier", "DoesNotExist"), no_db), 1),
        Budget("other", "other", (), 1),
        Budget("default", "odd", (Requirement("app", "Like", frozenset({"web"})),), 1),
    ))  # fmt: skip
    assert [one.name for one in budgets.covering("default", {"app": "web"})] == ["exact", "not"]
    assert [one.name for one in budgets.covering("default", {"app": "web", "tier": "1"})] == ["exact"]
    assert [one.name for one in budgets.covering("default", {"app": "db"})] == []
    assert [one.name for one in budgets.covering("other", {})] == ["other"]
