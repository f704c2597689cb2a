"""The books and the oracle side by side: pods come at random, are placed, bound and end; every answer is compared."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from partage.model import ShareRefused
from partage.model.ask import PodAsk
from partage.model.grant import encode_grant
from partage.model.need import granted_need
from partage.scheduler.books import Books
from partage.scheduler.facts import NodeFacts, PodFacts
from partage.scheduler.fits import plan_of
from partage.scheduler.rank import Ranker
from tests.scheduler.oracle import Oracle
from tests.scheduler.randoms import random_devices, random_shape
from tests.scheduler.support import RESOURCE

if TYPE_CHECKING:
    from partage.scheduler.answers import Placement

NODES = 4
ROUND = 40  # requests before the nodes are other ones


class Comparison:
    """One set of nodes. `yes` and `no`: how many answers there were of each."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = Random(seed)
        self.books = Books()
        self.oracles: dict[str, Oracle] = {}
        self.alive: dict[str, tuple[str, dict[str, int]]] = {}
        self.yes = self.no = 0
        for at in range(NODES):
            self._add_node(f"n{at}")
        self.uuids = [card.uuid for one in self.oracles.values() if one.devices for card in one.devices.devices]

    def _add_node(self, name: str) -> None:
        random = self.random
        found = random_devices(random, name)
        cordoned = frozenset(card.uuid for card in found.devices if random.random() < 0.05)
        seats = random.choice((None, None, 4, 40))
        ready = random.random() > 0.05
        allocatable = None if seats is None else {RESOURCE: seats}
        self.books.set_node(NodeFacts(name, found, cordoned, ready=ready, seats=allocatable))
        self.oracles[name] = Oracle(found, cordoned, ready, seats)

    def step(self, number: int) -> None:
        """One pod comes; or some end."""
        if self.alive and self.random.random() < 0.25:
            self._end(self.random.choice(sorted(self.alive)))
        uid = f"s{self.seed}-{number}"
        shape = random_shape(self.random, self.uuids)
        ask = PodAsk(uid, "ns", uid, shape, "partage-scheduler")
        answer = self.books.filter(ask, list(self.oracles))
        for name, oracle in self.oracles.items():
            where = f"seed {self.seed}, request {number}, node {name}: {shape}"
            said, expected = name in answer.fitting, oracle.fits(shape)
            assert said == expected, f"{where}: the books say {said}: {answer.refused.get(name)}"
            self.yes, self.no = self.yes + said, self.no + (not said)
            assert said or self._refuses(ask, name), f"{where}: filter says no, and reserve works"
        for name, code in answer.refused.codes().items():
            assert (code, answer.refused.texts()[name]) == (answer.refused[name].code, answer.refused[name].text)
        ranked = self.books.rank(ask, answer.fitting)
        key = Ranker(plan_of(shape, self.books.defaults)).key
        assert [name for name, _ in ranked] == sorted(answer.fitting, key=lambda name: key(self.books.nodes[name]))
        assert self.books.rank(ask, answer.fitting, 2) == ranked[:2]
        if answer.fitting:
            self._place(ask, self.random.choice(answer.fitting), number)

    def _refuses(self, ask: PodAsk, name: str) -> bool:
        try:
            self.books.reserve(ask, name, 0.0)
        except ShareRefused:
            return True
        return False

    def _place(self, ask: PodAsk, name: str, number: int) -> None:
        placement = self.books.reserve(ask, name, 0.0)
        oracle = self.oracles[name]
        choice = tuple(tuple(card.uuid for card in container.cards) for container in placement.containers)
        trouble = oracle.wrong(ask.shape, choice)
        assert not trouble, f"seed {self.seed}, request {number}, node {name}: {trouble}: {ask.shape}: {choice}"
        self._bind(ask, name, placement)

    def _bind(self, ask: PodAsk, name: str, placement: Placement) -> None:
        grant, _ = self.books.grant_for(ask.uid, name, term=1, bound_at=1)
        need = granted_need(grant, ask.shape.order)
        assert need == placement.need
        oracle = self.oracles[name]
        oracle.pods[ask.uid] = need
        oracle.seats_taken += placement.seats.get(RESOURCE, 0)
        self.alive[ask.uid] = name, dict(placement.seats)
        if self.random.random() < 0.7:
            seats = placement.seats
            self.books.set_pod(
                PodFacts(ask.uid, "ns", ask.uid, name, encode_grant(grant), order=ask.shape.order, seats=seats)
            )

    def _end(self, uid: str) -> None:
        name, seats = self.alive.pop(uid)
        del self.oracles[name].pods[uid]
        self.oracles[name].seats_taken -= seats.get(RESOURCE, 0)
        self.books.drop_pod(uid)


def compare(requests: int, seed: int) -> tuple[int, int]:
    """Compare so many requests; return how many answers were yes and no. Raises AssertionError for the first wrong."""
    yes = no = 0
    for first in range(0, requests, ROUND):
        comparison = Comparison(seed + first)
        for number in range(ROUND):
            comparison.step(number)
        yes, no = yes + comparison.yes, no + comparison.no
    return yes, no
