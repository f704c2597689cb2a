"""Time that tests move by hand."""

from __future__ import annotations

import asyncio
import heapq
import itertools


class HandClock:
    """Stands still until moved; whoever sleeps wakes when its time has come."""

    def __init__(self) -> None:
        self._now = 0.0
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._order = itertools.count()
        self._more = asyncio.Event()

    def now(self) -> float:
        return self._now

    async def sleep(self, seconds: float) -> None:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._now + seconds, next(self._order), done))
        self._more.set()
        await done

    async def asleep(self) -> None:
        """Return once somebody sleeps, after all others had their turn."""
        await asyncio.sleep(0)
        while all(done.done() for _, _, done in self._sleepers):
            self._more.clear()
            await self._more.wait()

    def move(self, seconds: float) -> None:
        self._now += seconds
        while self._sleepers and self._sleepers[0][0] <= self._now:
            _, _, done = heapq.heappop(self._sleepers)
            if not done.done():
                done.set_result(None)
