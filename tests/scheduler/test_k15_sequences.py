"""We test these aspects of K15, after every step of any sequence: the books are the sum of pods and reservations, no
card is promised twice by them, and the same facts in any order, as after a restart, make the same books."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any

import msgspec
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from partage.model import ShareRefused
from partage.model.ask import PodAsk
from partage.model.need import Role
from partage.model.node_devices import NodeDevices, SafeMode
from partage.model.units import GI
from partage.scheduler.answers import Placement
from partage.scheduler.books import Books
from partage.scheduler.facts import NodeFacts, PodFacts
from partage.scheduler.fits import fits
from tests.scheduler.randoms import random_devices, random_shape
from tests.scheduler.support import ask, bound, want, whole

if TYPE_CHECKING:
    from partage.scheduler.cards import NodeState

NAMES = ("n0", "n1", "n2")
SEEDS = st.integers(0, 400)
CHANGES = ("none", "unreadable", "fewer", "replaced", "smaller", "larger", "other order", "ill")
PROBES = (
    ask(want(gib=4), uid="probe-0"),
    ask(want(gib=2, cores=100, cards=2), uid="probe-1", nvlink="preferred"),
    ask(whole(), uid="probe-2"),
)
PROBLEMS = {"unreadable": "no annotation"}


def picture(books: Books) -> dict[str, Any]:
    """Everything that the books keep of nodes."""
    return {name: _of(state) for name, state in sorted(books.nodes.items())}


def _of(state: NodeState) -> dict[str, Any]:
    return {
        "facts": state.facts,
        "free": list(zip(state.uuids, state.memory, state.cores, state.seats, state.tenants, strict=True)),
        "closed": state.closed,
        "seats": state.seats_used,
        "pods": dict(sorted(state.pods.items())),
    }


def changed(found: NodeDevices, change: str) -> NodeDevices | None:
    """A node's cards after something happened to them."""
    cards = list(found.devices)
    if change in {"none", "unreadable"}:
        return None
    if change == "fewer":
        cards.pop()
    elif change == "other order":
        cards.reverse()
    elif cards:
        fields: dict[str, dict[str, Any]] = {
            "replaced": {"uuid": cards[0].uuid + "x"},
            "smaller": {"memory": cards[0].memory // 2, "physical": cards[0].physical // 2},
            "larger": {"memory": cards[0].memory + GI, "physical": cards[0].physical + GI},
            "ill": {"health": not cards[0].health},
        }
        cards[0] = msgspec.structs.replace(cards[0], **fields[change])
    links = tuple(row[: len(cards)] for row in found.links[: len(cards)])
    return msgspec.structs.replace(found, devices=tuple(cards), links=links)


class Sequences(RuleBasedStateMachine):
    """Nodes come, change and go; pods are reserved, bound, released, deleted, finished; time passes."""

    waiting = Bundle("waiting")
    running = Bundle("running")

    def __init__(self) -> None:
        super().__init__()
        self.books = Books()
        self.now = 0.0
        self.count = 0
        self.shrunk = False  # then more may be promised than there is
        for name in NAMES:
            self.books.set_node(NodeFacts(name, random_devices(Random(name), name)))

    @rule(target=waiting, seed=SEEDS)
    def a_pod_comes(self, seed: int) -> PodAsk:
        self.count += 1
        uid = f"u{self.count}"
        return PodAsk(uid, "ns", uid, random_shape(Random(seed), []), "partage-scheduler")

    @rule(ask=waiting, name=st.sampled_from(NAMES))
    def reserve(self, ask: PodAsk, name: str) -> None:
        known = self.books.pods.get(ask.uid)
        takes = name in self.books.filter(ask).fitting and (known is None or not known.node)
        try:
            self.books.reserve(ask, name, self.now)
        except ShareRefused:
            assert not takes
        else:
            assert takes

    @rule(target=running, ask=consumes(waiting))
    def bind(self, ask: PodAsk) -> PodFacts:
        held = self.books.reservation(ask.uid)
        if held is None:
            return PodFacts(ask.uid, "ns", ask.uid)
        facts = bound(self.books, ask, held.node)
        self.books.set_pod(facts)
        return facts

    @rule(ask=waiting)
    def release(self, ask: PodAsk) -> None:
        self.books.release(ask.uid)

    @rule(seconds=st.sampled_from((1.0, 40.0)))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.books.expire(self.now)

    @rule(pod=running)
    def told_again(self, pod: PodFacts) -> None:
        if pod.uid in self.books.pods:
            self.books.set_pod(pod)

    @rule(pod=consumes(running), is_gone=st.booleans())
    def ends(self, pod: PodFacts, is_gone: bool) -> None:
        if is_gone:
            self.books.drop_pod(pod.uid)
        elif pod.uid in self.books.pods:
            fields = {name: getattr(pod, name) for name in PodFacts.__dataclass_fields__}
            self.books.set_pod(PodFacts(**(fields | {"phase": "Succeeded", "finished": True})))

    @rule(name=st.sampled_from(NAMES), seed=st.integers(0, 3), is_ready=st.booleans())
    def a_node_changes(self, name: str, seed: int, is_ready: bool) -> None:
        found = random_devices(Random(f"{name}{seed}"), name)
        self.shrunk = True
        self.books.set_node(NodeFacts(name, found, ready=is_ready, seats={"nvidia.com/gpu": 20}))

    @rule(name=st.sampled_from(NAMES), change=st.sampled_from(CHANGES))
    def its_cards_change(self, name: str, change: str) -> None:
        state = self.books.nodes.get(name)
        facts = None if state is None else state.facts
        if facts is None or facts.devices is None:
            return
        self.shrunk = True
        self.books.set_node(replace(facts, devices=changed(facts.devices, change), problem=PROBLEMS.get(change, "")))

    @rule(ask=waiting, name=st.sampled_from(NAMES), count=st.integers(0, 3))
    def room_is_made(self, ask: PodAsk, name: str, count: int) -> None:
        state = self.books.nodes.get(name)
        ending = [uid for uid, use in state.pods.items() if not use.reserved][:count] if state is not None else []
        self.shrunk = True  # the victims are there still
        try:
            self.books.claim(ask, name, ending)
        except ShareRefused:
            assert not any(f"claim: {ask.uid}" in one.pods for one in self.books.nodes.values())

    @rule(ask=waiting)
    def room_is_given_back(self, ask: PodAsk) -> None:
        self.books.unclaim(ask.uid)

    @rule(name=st.sampled_from(NAMES), card=st.integers(0, 3), gib=st.integers(1, 90), count=st.integers(1, 2))
    def another_scheduler_binds(self, name: str, card: int, gib: int, count: int) -> None:
        self.count += 1
        self.shrunk = True
        twin = "".join(f"GPU-{name}-{card + at},NVIDIA,{gib << 10},10:" for at in range(count)) + ";"
        pod = PodFacts(f"h{self.count}", "ns", "hami", name, twin=twin, order=(("app", Role.APP),))
        self.books.set_pod(pod)

    @rule(name=st.sampled_from(NAMES))
    def a_node_goes(self, name: str) -> None:
        self.books.drop_node(name)

    @rule(name=st.sampled_from(NAMES), garbage=st.sampled_from(("{}", "GPU-n0-0,x", '{"uuid":"GPU-n1-0"}')))
    def somebody_wrote_garbage(self, name: str, garbage: str) -> None:
        self.count += 1
        self.books.set_pod(PodFacts(f"g{self.count}", "ns", "garbage", name, grant=garbage))

    @invariant()
    def kept_is_counted(self) -> None:
        assert self.books.recount() == ()

    @invariant()
    def nothing_is_promised_twice(self) -> None:
        assert self.shrunk or self.books.overpromised() == ()

    @invariant()
    def only_kinds_that_there_are_are_kept(self) -> None:
        states = [state for state in self.books.nodes.values() if state.facts is not None and state.facts.devices]
        found = [state.facts.devices for state in states if state.facts is not None]
        kinds = {kind for state in states for kind in state.kinds}
        models = {tuple(map(id, state.kinds)) for state in states}
        links = {(one.links, tuple(card.backend for card in one.devices)) for one in found if one is not None}
        assert self.books.sizes() == {kind.physical for kind in kinds}
        assert len(self.books._kinds) == len(kinds) + len(models) + len(links)

    @invariant()
    def answers_are_of_now(self) -> None:
        probe = PROBES[self.count % len(PROBES)]
        now = [name for name, one in self.books.nodes.items() if isinstance(fits(one, probe.shape), Placement)]
        assert self.books.filter(probe).fitting == now
        ranked = [name for name, _ in self.books.rank(probe, now)]
        anew = Books()
        anew._nodes.update(self.books.nodes)
        assert ranked == [name for name, _ in anew.rank(probe, now)]

    @invariant()
    def any_order_makes_the_same(self) -> None:
        again = Books()
        order = Random(self.count)
        facts = [state.facts for state in self.books.nodes.values() if state.facts is not None]
        told = [*((again.set_node, one) for one in facts), *((again.set_pod, one) for one in self.books.pods.values())]
        order.shuffle(told)
        for tell, one in told:
            tell(one)  # type: ignore[operator]
        for state in list(self.books.nodes.values()):
            for uid, use in state.pods.items():
                if use.reserved:
                    again._put(uid, state.name, use)
        assert picture(again) == picture(self.books)


TestSequences = Sequences.TestCase
TestSequences.settings = settings(
    max_examples=40, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


def test_safe_mode_is_counted() -> None:
    books = Books()
    found = random_devices(Random(3), "n")
    uuid = found.devices[0].uuid
    books.set_node(
        NodeFacts(
            "n",
            type(found)(
                **{name: getattr(found, name) for name in found.__struct_fields__}
                | {"safe": (SafeMode(pod="p", uuids=(uuid,)),)}
            ),
        )
    )
    assert books.recount() == ()
    assert books.nodes["n"].cores[0] == 0
    assert books.nodes["n"].tenants[0] == 1
