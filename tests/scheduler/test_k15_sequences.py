"""We test these aspects of K15, after every step of any sequence: the books are the sum of pods and reservations, no
card is promised twice by them, and the same facts in any order, as after a restart, make the same books."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from partage.model import ShareRefused
from partage.model.ask import PodAsk
from partage.model.node_devices import SafeMode
from partage.scheduler.books import Books
from partage.scheduler.facts import NodeFacts, PodFacts
from tests.scheduler.randoms import random_devices, random_shape
from tests.scheduler.support import bound

if TYPE_CHECKING:
    from partage.scheduler.cards import NodeState

NAMES = ("n0", "n1", "n2")
SEEDS = st.integers(0, 400)


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
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
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
