"""We test these aspects of following the leadership: a term begins where kube-scheduler leads and its Lease says whose
it is; it ends where that does not, was restarted, or is silent for too long; one that was frozen holds only once the
Lease says so; what kube-scheduler's page looks like."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, cast

import pytest

from partage.model import KubeError, UsageError
from partage.scheduler.leader import GRACE_S, Always, Follow, MetricsPage, Standing, Term, read_standing
from partage.scheduler.views import LeaseSpecView, LeaseView
from tests.kube.support import FakeClock

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from partage.kube import Client

LEADS = Standing(leads=True, started=1.0)
STANDS_BY = Standing(leads=False, started=1.0)
RESTARTED = Standing(leads=True, started=2.0)


class Played:
    """kube-scheduler's answers one after the other, and a Lease."""

    def __init__(self, *answers: Standing | Exception, holder: str = "host-a_1", transitions: int | None = 4) -> None:
        self.answers: Iterator[Standing | Exception] = iter(answers)
        self.holder, self.transitions = holder, transitions
        self.lease_fails = 0
        self.duration = 15
        self.clock = FakeClock(jumps=True)

    async def ask(self) -> Standing:
        found = next(self.answers, None)
        if found is None:
            await asyncio.Event().wait()
        if isinstance(found, Exception):
            raise found
        assert found is not None
        return found

    async def get(self, *_: object, **__: object) -> LeaseView:
        if self.lease_fails:
            self.lease_fails -= 1
            raise KubeError("Lease", "500", "an answer", "wait", status=500)
        return LeaseView(LeaseSpecView(self.holder, self.duration, self.transitions))

    async def told(self) -> list[Term | None]:
        """Return what is told until the answers are used up."""
        follow = Follow(self.ask, cast("Client", self), ("ns", "lease"), self.clock, host="host-a", every_s=2)
        found: list[Term | None] = []
        terms = follow.terms()

        async def take() -> None:
            async for term in terms:
                found.append(term)  # noqa: PERF401 -- seen while it goes on

        task = asyncio.ensure_future(take())
        for _ in range(400):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        self.problem = follow.problem
        return found


def numbers(told: list[Term | None]) -> list[int | None]:
    return [None if term is None else term.number for term in told]


def test_a_term_has_the_number_of_the_lease() -> None:
    assert numbers(asyncio.run(Played(STANDS_BY, LEADS, LEADS, LEADS).told())) == [None, 4]


def test_it_ends_where_kube_scheduler_no_longer_leads() -> None:
    assert numbers(asyncio.run(Played(LEADS, LEADS, STANDS_BY).told())) == [None, 4, None]


def test_a_kube_scheduler_that_was_restarted_begins_another_term() -> None:
    played = Played(LEADS, LEADS, RESTARTED, RESTARTED, RESTARTED)
    told = asyncio.run(played.told())
    assert numbers(told) == [None, 4, None, 4]
    assert told[1] != told[3]


def test_a_lease_of_another_holder_is_no_term() -> None:
    played = Played(LEADS, LEADS, LEADS, holder="host-b_1")
    assert numbers(asyncio.run(played.told())) == [None]
    assert "held by 'host-b_1'" in played.problem


def test_a_lease_that_changes_hands_while_it_is_read_is_read_again() -> None:
    played = Played(LEADS, STANDS_BY, LEADS, LEADS)
    assert numbers(asyncio.run(played.told())) == [None, 4]


def test_a_silent_kube_scheduler_ends_the_term_after_the_time_in_which_it_would_have_ended_itself() -> None:
    silent = [TimeoutError()] * int(GRACE_S / 2)
    short = Played(LEADS, LEADS, *silent, LEADS)
    assert numbers(asyncio.run(short.told())) == [None, 4]
    long = Played(LEADS, LEADS, *silent, TimeoutError(), TimeoutError(), LEADS, LEADS)
    assert numbers(asyncio.run(long.told())) == [None, 4, None, 4]


def test_an_api_server_that_does_not_answer_delays_the_term() -> None:
    played = Played(LEADS, LEADS, LEADS, LEADS)
    played.lease_fails = 2
    assert numbers(asyncio.run(played.told())) == [None, 4]


class Frozen:
    """A leader whose term has begun, and whose clock the test moves."""

    def __init__(self) -> None:
        self.lease = LeaseSpecView("host-a_1", 15, 4)
        self.standing = LEADS
        self.asked = 0
        self.clock = FakeClock()
        self.terms: asyncio.Queue[Term | None] = asyncio.Queue()

    async def ask(self) -> Standing:
        self.asked += 1
        return self.standing

    async def get(self, *_: object, **__: object) -> LeaseView:
        return LeaseView(self.lease)

    async def _take(self) -> None:
        async for term in self.follow.terms():
            self.terms.put_nowait(term)

    @asynccontextmanager
    async def leading(self) -> AsyncIterator[Term]:
        self.follow = Follow(self.ask, cast("Client", self), ("ns", "lease"), self.clock, host="host-a_", every_s=2)
        task = asyncio.ensure_future(self._take())
        assert await self.terms.get() is None
        term = await self.terms.get()
        assert term is not None
        try:
            yield term
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize("frozen_s", [1, 600], ids=["a-moment", "long"])
def test_k15_a_term_holds_after_a_freeze_where_the_lease_says_so(frozen_s: float) -> None:
    async def play(scene: Frozen) -> None:
        async with scene.leading() as term:
            asked = scene.asked
            scene.clock.time += frozen_s
            assert await scene.follow.confirm(term)
            assert (scene.asked > asked) is (frozen_s > 5)  # a third of the Lease's time
            assert scene.terms.empty()

    asyncio.run(play(Frozen()))


@pytest.mark.parametrize("holder", ["host-b_2", "host-a_2"], ids=["another-host", "the-same-host"])
def test_k15_a_term_is_over_after_a_freeze_in_which_the_lease_changed_hands(holder: str) -> None:
    """Also where the kube-scheduler that was frozen with it has not noticed yet."""

    async def play(scene: Frozen) -> None:
        async with scene.leading() as term:
            scene.clock.time += 600
            scene.lease = LeaseSpecView(holder, 15, 5)
            assert not await scene.follow.confirm(term)
            assert await scene.terms.get() is None

    asyncio.run(play(Frozen()))


def test_k15_a_term_does_not_hold_while_kube_scheduler_is_silent() -> None:
    async def play(scene: Frozen) -> None:
        async with scene.leading() as term:
            scene.clock.time += 6

            async def never() -> Standing:
                raise TimeoutError

            scene.follow._ask = never
            assert not await scene.follow.confirm(term)
            assert scene.terms.empty()  # it is ridden out
            scene.follow._ask = scene.ask
            assert await scene.follow.confirm(term)

    asyncio.run(play(Frozen()))


def test_without_election_there_is_one_term() -> None:
    async def first() -> Term | None:
        term = await anext(aiter(Always().terms()))
        assert term is not None
        assert await Always().confirm(term)
        return term

    assert asyncio.run(first()) == Term(0)


def test_kube_schedulers_page() -> None:
    page = (
        b'x 1\nleader_election_master_status{name="kube-scheduler"} %d\nprocess_start_time_seconds 1.79604433835e+09\n'
    )
    assert read_standing(page % 1) == Standing(leads=True, started=1.79604433835e9)
    assert not read_standing(page % 0).leads
    with pytest.raises(UsageError, match="leaderElect"):
        read_standing(b"process_start_time_seconds 1\n")


def test_a_token_is_sent_to_nobody_unknown() -> None:
    with pytest.raises(UsageError, match="loopback"):
        MetricsPage("https://10.0.0.1:10259/metrics", None, lambda: "secret")
    MetricsPage("https://127.0.0.1:10259/metrics", None, lambda: "secret")
