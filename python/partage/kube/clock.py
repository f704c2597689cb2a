"""Time as this room sees it: injected, so that tests move it by hand. Cannot fail."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine

T = TypeVar("T")


class Clock(Protocol):
    """Seconds that only go forward, the calendar, and waiting."""

    def now(self) -> float:
        """Return seconds since some moment, never less than before."""

    def date(self) -> datetime:
        """Return the calendar's time in UTC; it may jump."""

    async def sleep(self, seconds: float) -> None:
        """Return after so long."""


class SystemClock:
    """The machine's."""

    def now(self) -> float:
        """Return CLOCK_MONOTONIC in seconds."""
        return time.monotonic()

    def date(self) -> datetime:
        """Return the machine's time in UTC."""
        return datetime.now(UTC)

    async def sleep(self, seconds: float) -> None:
        """Return after so long."""
        await asyncio.sleep(seconds)


async def within(clock: Clock, seconds: float, work: Coroutine[object, object, T]) -> T:
    """Return what `work` returns; raises TimeoutError, with `work` cancelled, where it takes longer than `seconds`."""
    task = asyncio.ensure_future(work)
    bell = asyncio.ensure_future(clock.sleep(seconds))
    try:
        await asyncio.wait((task, bell), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise TimeoutError
    finally:
        for pending in (task, bell):
            pending.cancel()
        await asyncio.gather(task, bell, return_exceptions=True)
