"""Keeps figures at hand while somebody asks for them, so that a scrape costs only the writing down.

Reading a hundred containers takes longer than a scrape should. So the first question is answered by a reading of its
own, and as long as questions come the reading is repeated in the background, in a thread; when nobody has asked for a
while it stops. A question after containers came or went has a reading of its own, too: a container has its figures from
its start, and none after its end. Cannot fail: a reading that does (a defect) is logged, and the figures before it stay
until they are too old to be told.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Protocol

import structlog

from partage_plugin.figures import Figures

if TYPE_CHECKING:
    from collections.abc import Callable

EVERY_S: Final = 5.0
FORGOTTEN_S: Final = 90.0  # nobody asks any more: Prometheus asks once a minute at the latest
STALE_S: Final = 2 * EVERY_S

log = structlog.get_logger("partage.metrics")


class Clock(Protocol):
    """The agent's clock."""

    def now(self) -> float:
        """Return seconds since some moment, never less than before."""

    async def sleep(self, seconds: float) -> None:
        """Return after so long."""


class Sampler:
    """Figures that are at most a few seconds old, and of all that `present` returns; owned by one event loop."""

    def __init__(
        self, read: Callable[[], Figures], clock: Clock, present: Callable[[], frozenset[str]] = frozenset
    ) -> None:
        self._read = read
        self._clock = clock
        self._present = present
        self._read_of: frozenset[str] = frozenset()
        self._figures = Figures()
        self._read_at = float("-inf")
        self._asked_at = float("-inf")
        self._asked = asyncio.Event()
        self._reading = asyncio.Lock()

    async def latest(self) -> Figures:
        """Return figures of the last seconds; reads them now where there are none, or of others than there are now."""
        self._asked_at = self._clock.now()
        self._asked.set()
        if self._is_stale():
            async with self._reading:
                if self._is_stale():
                    await self._refresh()
        return self._figures

    def _is_stale(self) -> bool:
        return self._clock.now() - self._read_at > STALE_S or self._present() != self._read_of

    async def run(self) -> None:
        """Read again and again while somebody asks, until cancelled."""
        while True:
            await self._asked.wait()
            await self._clock.sleep(EVERY_S)
            if self._clock.now() - self._asked_at > FORGOTTEN_S:
                self._asked.clear()
                continue
            async with self._reading:
                await self._refresh()

    async def _refresh(self) -> None:
        present = self._present()
        try:
            self._figures = await asyncio.to_thread(self._read)
            self._read_at, self._read_of = self._clock.now(), present
        except Exception:  # a defect in reading must not end the agent: logged in full, and counted on the pages
            log.exception("figures cannot be read")
            if self._clock.now() - self._read_at > STALE_S:
                self._figures = Figures(failures={"all": 1})
