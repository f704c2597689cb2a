"""Refused pods are tried again where only we hear that they fit by now: touched once, then at growing distances."""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING, Any, cast

import msgspec
import pytest

from partage.model import KubeError
from partage.model.pod import PodView
from partage.scheduler.wake import AGAIN, MOST_S, Waker
from tests.kube.support import FakeClock
from tests.scheduler.support import ask, want

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


class World:
    """Pods that fit, and an API server that takes annotations."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.fitting: set[str] = set()
        self.touched: list[tuple[str, float]] = []
        self.fails = 0
        self.status = 500
        self.waker = Waker(cast("Any", self), self.clock, lambda _pod, one: one.uid in self.fitting)

    def refuse(self, uid: str) -> None:
        self.waker.refused(msgspec.convert({"metadata": {"uid": uid}}, PodView), ask(want(gib=1), uid=uid))

    async def patch(self, _: type, name: str, body: dict[str, Any], *, namespace: str) -> None:
        assert (name, namespace) == (f"pod-{body['metadata']['uid']}", "default")
        assert list(body["metadata"]["annotations"]) == [AGAIN]
        self.touched.append((body["metadata"]["uid"], self.clock.now() - 1000))
        if self.fails:
            self.fails -= 1
            raise KubeError("pod", "no", "", "", status=self.status)

    async def seconds(self, count: int) -> None:
        for _ in range(count):
            for _ in range(10):
                await asyncio.sleep(0)
            self.clock.advance(1)
        for _ in range(10):
            await asyncio.sleep(0)


def play(world: World, script: Callable[[], Awaitable[None]]) -> None:
    async def whole() -> None:
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(world.waker.run())
            await script()
            running.cancel()

    asyncio.run(whole())


def test_a_pod_that_fits_by_now_is_touched_and_one_that_does_not_is_left_alone() -> None:
    world = World()

    async def script() -> None:
        world.refuse("a")
        world.refuse("b")
        await world.seconds(5)
        assert world.touched == []
        world.fitting.add("a")
        await world.seconds(1)

    play(world, script)
    assert [uid for uid, _ in world.touched] == ["a"]


def test_kube_scheduler_has_its_own_chance_first_and_distances_grow() -> None:
    world = World()

    async def script() -> None:
        world.fitting.add("a")
        world.refuse("a")
        await world.seconds(200)

    play(world, script)
    moments = [at for _, at in world.touched]
    assert moments[0] == 2
    gaps = [later - earlier for earlier, later in itertools.pairwise(moments)]
    assert gaps[:5] == [2, 4, 8, 16, 32]
    assert max(gaps) <= MOST_S


def test_distances_begin_anew_where_it_did_not_fit_in_between() -> None:
    world = World()

    async def script() -> None:
        world.fitting.add("a")
        world.refuse("a")
        await world.seconds(100)
        world.fitting.clear()
        await world.seconds(200)
        world.touched.clear()
        world.fitting.add("a")
        await world.seconds(10)

    play(world, script)
    assert [at for _, at in world.touched] == [301, 303, 307]


@pytest.mark.parametrize("status", [404, 409])
def test_a_pod_that_the_api_server_does_not_have_is_forgotten(status: int) -> None:
    world = World()
    world.status = status

    async def script() -> None:
        world.fitting.add("a")
        world.fails = 1
        world.refuse("a")
        await world.seconds(100)

    play(world, script)
    assert len(world.touched) == 1


def test_a_pod_that_is_bound_or_gone_is_forgotten_and_a_failed_write_is_no_end() -> None:
    world = World()

    async def script() -> None:
        world.fitting |= {"a", "b"}
        world.fails = 1
        world.refuse("a")
        world.refuse("b")
        world.waker.forget("b")
        await world.seconds(5)

    play(world, script)
    assert [uid for uid, _ in world.touched] == ["a", "a"]
    assert world.waker.touched == 1
