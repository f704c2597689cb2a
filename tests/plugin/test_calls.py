"""We test these aspects of standing back for kubelet's calls: a pause is waited for, and the end of calls under way,
a bounded time both; a clean-up looks only in a pause and removes nothing while a call is under way."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from partage_plugin import calls as calls_room
from partage_plugin.calls import APART_S, LATEST_S, QUIET_S, Calls
from tests.kube.support import FakeClock, until
from tests.plugin.kubelet import HANG_S

if TYPE_CHECKING:
    from collections.abc import Coroutine

    import pytest


def play(whole: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(whole, HANG_S))


def test_a_pause_has_neither_a_new_call_nor_one_under_way() -> None:
    async def whole() -> None:
        clock = FakeClock()
        calls = Calls(clock)
        with calls.call():
            waits = asyncio.create_task(calls.until_quiet())
            await until(lambda: clock.sleeping)
            clock.advance(QUIET_S)
            await until(lambda: len(clock.slept) == 2)
        with calls.call():
            pass
        clock.advance(QUIET_S)
        await until(lambda: len(clock.slept) == 3)
        clock.advance(QUIET_S)
        await waits
        assert calls.begun == 2

    play(whole())


def test_a_kubelet_that_never_pauses_holds_nobody_up_for_ever() -> None:
    async def whole() -> None:
        clock = FakeClock()
        calls = Calls(clock)
        with calls.call():
            waits = asyncio.create_task(calls.until_quiet())
            await until(lambda: clock.sleeping)
            clock.advance(LATEST_S)
            await waits

    play(whole())


def test_the_end_of_all_calls_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    async def whole() -> None:
        monkeypatch.setattr(calls_room, "CALL_S", 60.0)
        calls = Calls(FakeClock(jumps=True))
        order: list[str] = []

        async def remove() -> None:
            await calls.until_none()
            order.append("removed")

        with calls.call():
            with calls.call():
                waits = asyncio.create_task(remove())
            for _ in range(9):  # one has ended, one goes on
                await asyncio.sleep(0)
            order.append("handed over")
        await waits
        assert order == ["handed over", "removed"]
        monkeypatch.setattr(calls_room, "CALL_S", 0.0)
        with calls.call():  # one that hangs: the wait ends by itself
            await calls.until_none()

    play(whole())


def test_things_that_wait_for_that_come_one_by_one_while_kubelet_does_not_pause() -> None:
    async def whole() -> None:
        clock = FakeClock(jumps=True)
        calls = Calls(clock)
        await calls.until_none()
        assert clock.slept == []
        with calls.call():
            pass
        while clock.time < 1000.0 + QUIET_S:
            await calls.until_none()
        assert set(clock.slept) == {APART_S}
        before = len(clock.slept)
        await calls.until_none()
        assert len(clock.slept) == before

    play(whole())
