"""Kubelet's calls about containers, for whom everything else stands back: whether one is under way, when they pause.

One `Calls` of the agent: the front counts each call in; the writer of conditions and the clean-up ask before they use
the processor or the API server, since a container's start waits for us meanwhile. Nothing waits for ever: a kubelet
that never pauses, or a call that hangs, holds the others up for the bounded times below.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

    from partage_plugin.ports import Clock

QUIET_S: Final = 0.1  # without a call: kubelet pauses; containers of one pod come closer together
LATEST_S: Final = 1.0  # so long at most a pause is waited for
CALL_S: Final = 0.05  # so long at most the end of a call is
APART_S: Final = 0.01  # between things that wait for that: each has its wake, in other threads too


class Calls:
    """Counts calls. Used from one loop."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._under_way = 0
        self._none = asyncio.Event()
        self._none.set()
        self._ended_at = -QUIET_S
        self.begun = 0  # so far

    @contextlib.contextmanager
    def call(self) -> Iterator[None]:
        """Count a call in, and out at its end."""
        self.begun += 1
        self._under_way += 1
        self._none.clear()
        try:
            yield
        finally:
            self._under_way -= 1
            self._ended_at = self._clock.now()
            if self._under_way == 0:
                self._none.set()

    async def until_quiet(self) -> None:
        """Return once no call has begun for a moment and none is under way, after `LATEST_S` at the latest."""
        latest = self._clock.now() + LATEST_S
        while True:
            begun = self.begun
            await self._clock.sleep(QUIET_S)
            is_quiet = self.begun == begun and self._under_way == 0
            if is_quiet or self._clock.now() >= latest:
                return

    async def until_none(self) -> None:
        """Return once no call is under way, after `CALL_S` at most; a moment later while kubelet does not pause."""
        is_quiet = self._under_way == 0 and self._clock.now() - self._ended_at >= QUIET_S
        await (asyncio.sleep(0) if is_quiet else self._clock.sleep(APART_S))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CALL_S):
                await self._none.wait()
