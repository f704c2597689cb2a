"""We test these aspects of binding: what each answer of the API server means for the promise; a bind without a known
end keeps its node and its cards, is sent again as it was, and is settled by whoever knows first."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from partage.kube.poster import Answer
from partage.scheduler.bind import TRIES, UNKNOWN_S
from tests.kube.support import until
from tests.scheduler.extending import BOUND, LOST, NOT_REACHED, Desk, answer, one_card

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

BIG = 50_000


def played(play: Callable[[Desk], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(play(Desk(one_card("a"), one_card("b"))))


async def start(desk: Desk) -> tuple[dict[str, object], str]:
    pod = desk.pod("p", memory=BIG)
    return pod, desk.choose(pod)


def free(desk: Desk) -> list[str]:
    """The nodes that take another big pod."""
    return desk.filter(desk.pod("other", memory=BIG))


@pytest.mark.parametrize(
    ("said", "word"),
    [(answer(404), "gone"), (answer(422, "invalid"), "refused"), (answer(403, "policy"), "refused")],
    ids=["404", "422", "403"],
)
def test_a_refusal_gives_the_promise_back(said: Answer, word: str) -> None:
    async def play(desk: Desk) -> None:
        pod, chosen = await start(desk)
        desk.api.next.append((said, False))
        assert word in await desk.bind(pod, chosen)
        assert free(desk) == ["a", "b"]
        assert len(desk.binder) == 0

    played(play)


@pytest.mark.parametrize("is_sent", [False, True], ids=["at-once", "before-the-second-try"])
def test_k15_nothing_is_posted_where_the_term_holds_no_longer(is_sent: bool) -> None:
    async def play(desk: Desk) -> None:
        pod, chosen = await start(desk)

        async def lost(path: str, body: bytes) -> Answer:
            desk.is_leader = False
            desk.api.posts.append({})
            return LOST

        desk.api.post = lost  # type: ignore[method-assign]
        desk.is_leader = is_sent
        said = await desk.bind(pod, chosen)
        assert ("unknown" if is_sent else "refused") in said
        assert "not the leader" in said
        assert len(desk.api.posts) == is_sent

    played(play)


def test_a_successor_of_the_same_name_is_not_bound() -> None:
    async def play(desk: Desk) -> None:
        pod, chosen = await start(desk)
        desk.api.pods["p"]["metadata"]["uid"] = "another"
        assert "gone" in await desk.bind(pod, chosen)
        assert "nodeName" not in desk.api.pods["p"]["spec"]
        assert free(desk) == ["a", "b"]

    played(play)


def test_a_pod_that_somebody_else_bound_is_no_success_of_ours() -> None:
    async def play(desk: Desk) -> None:
        pod, chosen = await start(desk)
        desk.api.pods["p"]["spec"]["nodeName"] = "elsewhere"
        assert "bound to elsewhere" in await desk.bind(pod, chosen)
        assert free(desk) == ["a", "b"]

    played(play)


def test_too_many_requests_is_tried_again_after_what_the_server_says() -> None:
    async def play(desk: Desk) -> None:
        pod, chosen = await start(desk)
        desk.api.next.append((Answer(429, "TooManyRequests", "", retry_after_s=2.0), False))
        assert await desk.bind(pod, chosen) == ""
        assert desk.clock.slept == [2.0]
        assert len(desk.api.posts) == 2

    played(play)


def test_a_server_that_is_not_there_refuses_in_the_end() -> None:
    async def play(desk: Desk) -> None:
        pod, chosen = await start(desk)
        desk.api.next.extend([(NOT_REACHED, False)] * TRIES)
        assert "refused" in await desk.bind(pod, chosen)
        assert free(desk) == ["a", "b"]

    played(play)


@pytest.mark.parametrize("said", [LOST, answer(500), answer(504)], ids=["lost", "500", "504"])
def test_k15_an_answer_that_is_lost_after_it_happened_is_found_out(said: Answer) -> None:
    async def play(desk: Desk) -> None:
        pod, chosen = await start(desk)
        desk.api.next.append((said, True))
        assert await desk.bind(pod, chosen) == ""
        first, second = (post["metadata"] for post in desk.api.posts)
        assert first == second
        assert desk.api.pods["p"]["spec"]["nodeName"] == chosen
        desk.show("p")
        assert free(desk) == [name for name in ("a", "b") if name != chosen]

    played(play)


def test_k15_an_unknown_end_keeps_node_and_cards_until_the_watch_tells() -> None:
    async def play(desk: Desk) -> None:
        pod, chosen = await start(desk)
        other = next(name for name in ("a", "b") if name != chosen)
        desk.api.next.extend([(LOST, False)] * TRIES)
        assert "unknown" in await desk.bind(pod, chosen)
        assert desk.binder.unknown == 1
        desk.clock.time += 60  # longer than a promise without a bind holds
        await desk.extender.settle()
        assert free(desk) == [other]
        assert desk.filter(pod) == [chosen]  # tried again, there and nowhere else
        assert desk.filter(pod, [other]) == []
        assert "may be bound" in await desk.bind(pod, other)
        assert desk.api.pods["p"]["spec"].get("nodeName") is None
        assert await desk.bind(pod, chosen) == ""
        assert len({post["metadata"]["annotations"]["partage.io/grant"] for post in desk.api.posts}) == 1
        desk.show("p")
        assert len(desk.binder) == 0
        assert free(desk) == [other]

    played(play)


def test_an_unknown_end_that_the_watch_shows_bound_is_known() -> None:
    async def play(desk: Desk) -> None:
        pod, chosen = await start(desk)
        desk.api.next.extend([(LOST, False)] * (TRIES - 1) + [(LOST, True)])
        assert "unknown" in await desk.bind(pod, chosen)
        desk.show("p")
        assert desk.binder.unknown == 0
        assert len(free(desk)) == 1

    played(play)


def test_a_conflict_after_a_lost_post_says_nothing_about_that_one() -> None:
    async def play(desk: Desk) -> None:
        pod, chosen = await start(desk)
        desk.api.next.extend([(LOST, False), (answer(409, "being deleted"), False)])
        assert "unknown" in await desk.bind(pod, chosen)
        assert len(free(desk)) == 1
        desk.gone("p")
        assert free(desk) == ["a", "b"]

    played(play)


def test_a_pod_that_is_unbound_long_after_is_free_again() -> None:
    async def play(desk: Desk) -> None:
        pod, chosen = await start(desk)
        desk.api.next.extend([(LOST, False)] * TRIES)
        await desk.bind(pod, chosen)
        desk.clock.time += UNKNOWN_S + 1
        desk.api.read_fails = 1
        await desk.extender.settle()
        assert len(free(desk)) == 1  # the pod could not be read: still unknown
        await desk.extender.settle()
        assert free(desk) == ["a", "b"]

    played(play)


def test_two_binds_of_one_pod_at_once_are_one_order() -> None:
    async def play(desk: Desk) -> None:
        pod, chosen = await start(desk)
        hold = asyncio.Event()

        async def slow(path: str, body: bytes) -> Answer:
            await hold.wait()
            return BOUND

        desk.api.post = slow  # type: ignore[method-assign]
        first = asyncio.ensure_future(desk.bind(pod, chosen))
        await asyncio.sleep(0)
        assert "is being bound" in await desk.bind(pod, chosen)
        hold.set()
        assert await first == ""

    played(play)


def test_a_caller_that_hangs_up_leaves_an_order_that_is_unknown() -> None:
    async def play(desk: Desk) -> None:
        pod, chosen = await start(desk)

        async def never(path: str, body: bytes) -> Answer:
            await asyncio.Event().wait()
            return BOUND

        desk.api.post = never  # type: ignore[method-assign]
        bind = asyncio.ensure_future(desk.bind(pod, chosen))
        await asyncio.sleep(0)
        bind.cancel()
        await asyncio.gather(bind, return_exceptions=True)
        assert desk.binder.unknown == 1
        assert len(free(desk)) == 1

    played(play)


@pytest.mark.parametrize("is_there", [False, True])
def test_k15_a_bound_pod_that_the_watch_never_shows_is_read(is_there: bool) -> None:
    """It was bound and deleted while the watch was broken: no event and no list ever names it."""

    async def play(desk: Desk) -> None:
        pod, chosen = await start(desk)
        assert await desk.bind(pod, chosen) == ""
        if not is_there:
            del desk.api.pods["p"]
        for _ in range(2):
            desk.clock.time += UNKNOWN_S + 1
            await desk.extender.settle()
        assert len(free(desk)) == (1 if is_there else 2)
        assert len(desk.binder) == int(is_there)
        assert desk.extender.results == ({"bound": 1} if is_there else {"bound": 1, "gone": 1})
        if is_there:
            desk.show("p")
            assert len(desk.binder) == 0

    played(play)


def test_k17_a_pod_whose_bind_was_unknown_is_tried_again_once_that_is_over() -> None:
    """kube-scheduler has put it away: of the answer that it waits for it hears nothing."""

    async def play(desk: Desk) -> None:
        pod, chosen = await start(desk)
        desk.api.next.extend([(LOST, False)] * TRIES)
        await desk.bind(pod, chosen)
        assert desk.filter(pod, [name for name in ("a", "b") if name != chosen]) == []
        waker = asyncio.ensure_future(desk.duties.waker.run())
        await asyncio.sleep(0.05)
        assert desk.api.writes == [], "not while it may be bound"
        desk.clock.time += UNKNOWN_S
        await desk.extender.settle()
        await until(lambda: desk.api.writes)
        waker.cancel()
        assert desk.api.writes[0]["metadata"]["uid"] == "uid-p"

    played(play)


def test_k15_what_is_promised_to_a_pod_that_another_bound_without_a_share_is_given_back() -> None:
    """Such a pod has nothing that the books count, not even kubelet's ids: it names an amount and no card."""

    async def play(desk: Desk) -> None:
        pod, chosen = await start(desk)
        desk.api.next.extend([(LOST, False)] * 4)
        assert "unknown" in await desk.bind(pod, chosen)
        assert len(free(desk)) == 1
        del desk.api.pods["p"]["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"]
        desk.api.pods["p"]["spec"]["nodeName"] = "elsewhere"
        desk.show("p")
        assert free(desk) == ["a", "b"]

    played(play)


def test_k15_what_is_promised_to_a_pod_that_was_deleted_unbound_is_given_back() -> None:
    async def play(desk: Desk) -> None:
        await start(desk)
        assert len(free(desk)) == 1
        desk.api.pods["p"]["metadata"] |= {"deletionTimestamp": "2026-11-30T00:00:00Z", "finalizers": ["x/y"]}
        desk.show("p")
        assert free(desk) == ["a", "b"]

    played(play)
