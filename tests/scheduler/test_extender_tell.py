"""We test these aspects of what is told on a pod: a code and how many nodes lack what, which node comes nearest; one
write while it waits for the same reason, one more when it is placed, none where it never waited (K24 C173)."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from partage.admission.options import AdmissionOptions
from partage.devices.requests import AskOptions
from partage.kube.events import QUEUE_MAX
from partage.model import names
from partage.scheduler.bind import BindOrder
from partage.scheduler.tell import AGAIN_S, FRESH_S, REFRESH_S, SETTLE_S, SUCCESSES, Subject
from partage.scheduler.views import WatchedPod
from tests.admission.support import ask
from tests.cluster.scheduling import node
from tests.kube.support import until
from tests.scheduler.extending import LOST, Desk

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

GIB = 1 << 30


@asynccontextmanager
async def told(desk: Desk) -> AsyncIterator[None]:
    running = asyncio.ensure_future(desk.tell.run())
    try:
        yield
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def written(desk: Desk) -> list[dict[str, Any]]:
    for _ in range(20):
        await asyncio.sleep(0)
    return [body["status"]["conditions"][0] for body in desk.api.writes if "status" in body]


def small_cluster() -> Desk:
    return Desk(node("a", memory=16 * GIB), node("b", memory=24 * GIB), node("c", memory=20 * GIB))


def test_k24_c173_a_pod_that_waits_carries_code_counts_and_the_nearest_node() -> None:
    async def play() -> None:
        desk = small_cluster()
        async with told(desk):
            desk.filter(desk.pod("p", memory=40_960))
            (condition,) = await written(desk)
        assert (condition["type"], condition["status"]) == (names.CONDITION_PLACED, "False")
        assert condition["reason"] == "CardInsufficientMemory"
        said = "3 nodes CardInsufficientMemory; b comes nearest: 40 GiB asked, 24 GiB there; "
        assert condition["message"].startswith(said)
        assert desk.api.writes[0]["metadata"] == {"uid": "uid-p"}

    asyncio.run(play())


def test_the_same_reason_again_is_not_written_again_until_its_numbers_are_old() -> None:
    async def play() -> None:
        desk = small_cluster()
        pod = desk.pod("p", memory=40_960)
        async with told(desk):
            for _ in range(50):
                desk.filter(pod)
            assert len(await written(desk)) == 1
            desk.clock.time += REFRESH_S
            desk.filter(pod)
            assert len(await written(desk)) == 2
        assert desk.tell.refusals == {"CardInsufficientMemory": 51}

    asyncio.run(play())


def test_another_reason_is_written_after_a_while() -> None:
    async def play() -> None:
        desk = small_cluster()
        async with told(desk):
            desk.filter(desk.pod("p", memory=40_960))
            desk.filter(desk.pod("p", memory=40_960, cards=9))
            assert len(await written(desk)) == 1
            desk.clock.time += AGAIN_S
            desk.filter(desk.pod("p", memory=1000, cards=9))
            last = (await written(desk))[-1]
        assert last["reason"] != "CardInsufficientMemory"

    asyncio.run(play())


def test_a_pod_that_is_placed_at_once_costs_no_write() -> None:
    async def play() -> None:
        desk = small_cluster()
        async with told(desk):
            pod = desk.pod("p", memory=1000)
            assert await desk.bind(pod, desk.choose(pod)) == ""
            assert await written(desk) == []

    asyncio.run(play())


def test_a_pod_that_waited_is_told_that_it_is_placed() -> None:
    async def play() -> None:
        desk = small_cluster()
        pod = desk.pod("p", memory=20_480)
        async with told(desk):
            assert desk.filter(pod, ["a"]) == []  # 16 GiB a card
            assert len(await written(desk)) == 1
            assert await desk.bind(pod, desk.choose(pod)) == ""
            conditions = await written(desk)
        assert [one["status"] for one in conditions] == ["False", "True"]
        assert conditions[-1]["reason"] == "Placed"
        assert "bound to node" in conditions[-1]["message"]

    asyncio.run(play())


async def refused(desk: Desk, name: str) -> dict[str, Any]:
    pod = desk.pod(name, memory=20_480)
    assert desk.filter(pod, ["a"]) == []  # 16 GiB a card
    assert await written(desk) == []
    return pod


def test_a_pod_that_waits_for_a_moment_costs_no_write_beside_its_binding() -> None:
    """It came a moment before the room for it: what would be written and at once taken back is not written at all."""

    async def play() -> None:
        desk = small_cluster()
        desk.clock.jumps = False
        async with told(desk):
            moment = await refused(desk, "moment")
            while_away = await refused(desk, "lost")
            desk.clock.advance(SETTLE_S - 1)
            assert await desk.bind(moment, desk.choose(moment)) == ""
            desk.api.next.append((LOST, True))
            binding = asyncio.ensure_future(desk.bind(while_away, desk.choose(while_away)))
            await written(desk)
            desk.tell.is_bound(msgspec.convert(desk.api.pods["lost"], WatchedPod))  # the watch is first to know
            desk.clock.advance(REFRESH_S)
            assert await written(desk) == []
            await binding
        assert desk.tell.waiting == 0
        assert len(desk.api.events) == 4

    asyncio.run(play())


def test_a_pod_that_waits_for_longer_says_so_from_then_on() -> None:
    async def play() -> None:
        desk = small_cluster()
        desk.clock.jumps = False
        async with told(desk):
            assert desk.filter(desk.pod("p", memory=1000, cards=9)) == []
            desk.clock.advance(1)
            pod = await refused(desk, "p")
            desk.clock.advance(SETTLE_S)
            said = [(one["status"], one["reason"]) for one in await written(desk)]
            assert said == [("False", "CardInsufficientMemory")], "the latest"
            assert await desk.bind(pod, desk.choose(pod)) == ""
            desk.clock.advance(1)
            assert [one["status"] for one in await written(desk)] == ["False", "True"]

    asyncio.run(play())


def test_a_pod_without_meaning_is_told_all_that_is_wrong() -> None:
    async def play() -> None:
        desk = small_cluster()
        pod = desk.pod("p")
        wrong = {"nvidia.com/gpumem": "a lot", "nvidia.com/gpucores": "700"}
        pod["spec"]["containers"][0]["resources"]["limits"] |= wrong
        async with told(desk):
            desk.filter(pod)
            (condition,) = await written(desk)
        assert condition["reason"] == "InvalidRequest"
        assert "a lot" in condition["message"]
        assert "700" in condition["message"]

    asyncio.run(play())


@pytest.mark.parametrize("confined", [True, False])
@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"hostPID": True}, "spec.hostPID: true"),
        ({"securityContext": {"capabilities": {"add": ["CAP_SYS_ADMIN"]}}}, "container app: capability SYS_ADMIN"),
        ({"securityContext": {"privileged": True}}, "container app: privileged"),
    ],
    ids=["host-pids", "sys-admin", "privileged"],
)
def test_k09_what_lets_a_pod_out_is_refused_at_both_doors_in_the_same_words(
    spec: dict[str, Any], words: str, confined: bool
) -> None:
    """By the webhook; and where that was down or passed over, by the scheduler."""

    async def play() -> None:
        options = AskOptions(confined=confined)
        desk = Desk(node("a", cards=2), options=options)
        pod = desk.pod("p", memory=1000)
        (pod["spec"]["containers"][0] if "securityContext" in spec else pod["spec"]).update(spec)
        answer = ask(pod, AdmissionOptions(ask=options), namespace="default")
        async with told(desk):
            fitting = desk.filter(pod)
            conditions = await written(desk)
        assert answer.allowed == bool(fitting) == (not confined and "privileged" not in words)
        if answer.allowed:
            assert conditions == []
            return
        assert words in answer.message
        assert (conditions[0]["reason"], conditions[0]["message"]) == ("InvalidRequest", answer.message)

    asyncio.run(play())


def test_what_a_pod_was_told_before_this_term_is_turned_too() -> None:
    async def play() -> None:
        desk = small_cluster()
        pod = desk.pod("p", memory=1000)
        async with told(desk):
            desk.tell.waits_already(Subject("uid-p", "default", "p"), "CardInsufficientMemory")
            assert await desk.bind(pod, desk.choose(pod)) == ""
            (condition,) = await written(desk)
        assert condition["status"] == "True"

    asyncio.run(play())


def test_k24_what_a_placed_pod_says_of_its_waiting_is_turned_whoever_bound_it() -> None:
    """The answer to its binding was lost, or the leader ended between the binding and the condition."""

    async def play() -> None:
        desk = small_cluster()
        desk.pod("p")
        waits = {"type": names.CONDITION_PLACED, "status": "False", "reason": "CardInsufficientMemory"}
        desk.api.pods["p"] |= {"status": {"conditions": [waits]}}
        desk.api.pods["p"]["spec"]["nodeName"] = "a"
        async with told(desk):
            desk.tell.is_bound(msgspec.convert(desk.api.pods["p"], WatchedPod))
            assert await written(desk) == [], "without a grant it was somebody else"
            desk.api.pods["p"]["metadata"]["annotations"] = {names.GRANT: "{}"}
            for _ in range(3):
                desk.tell.is_bound(msgspec.convert(desk.api.pods["p"], WatchedPod))
                conditions = await written(desk)
            desk.tell.placed(BindOrder("uid-p", "default", "p", "a", "grant"), 10)
            assert await written(desk) == conditions, "and only once"
        assert [(one["status"], one["message"]) for one in conditions] == [("True", "bound to node a")]

    asyncio.run(play())


def place(desk: Desk, *numbers: int) -> None:
    for number in numbers:
        desk.tell.placed(BindOrder(f"uid-{number}", "default", f"p{number}", "a"), 10)


async def told_of(desk: Desk, count: int) -> list[str]:
    """The pods of which events tell, once there are so many."""
    await until(lambda: len(desk.api.events) >= count)
    return [one.regarding.name or "" for one in desk.api.events if one.regarding is not None]


def test_of_many_placed_pods_the_newest_are_told_first_and_none_late() -> None:
    async def play() -> None:
        desk = small_cluster()
        for number in range(2 * QUEUE_MAX):
            place(desk, number)
        assert desk.tell.dropped == QUEUE_MAX, "the oldest made room"
        begin = desk.clock.time
        async with told(desk):
            await until(lambda: desk.tell.dropped + len(desk.api.events) == 2 * QUEUE_MAX)
            names_told = await told_of(desk, 1)
        most = SUCCESSES.burst + FRESH_S * SUCCESSES.per_s
        assert names_told[:3] == [f"p{2 * QUEUE_MAX - 1 - number}" for number in range(3)]
        assert most - 2 <= len(names_told) <= most + 2
        assert desk.clock.time - begin <= FRESH_S + 1

    asyncio.run(play())


def test_a_pod_that_is_gone_is_not_told_of() -> None:
    async def play() -> None:
        desk = small_cluster()
        place(desk, 1, 2, 3)
        desk.extender.gone("uid-2")
        async with told(desk):
            assert await told_of(desk, 2) == ["p3", "p1"]
        assert desk.tell.dropped == 1

    asyncio.run(play())


def test_refusals_go_before_successes() -> None:
    async def play() -> None:
        desk = small_cluster()
        place(desk, *range(5))
        for number in range(60):  # more than go at once
            desk.filter(desk.pod(f"waits-{number}", memory=40_960))
        async with told(desk):
            assert (await told_of(desk, 65))[:60] == [f"waits-{number}" for number in range(60)]

    asyncio.run(play())
