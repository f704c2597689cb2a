"""The scheduler's service: follows the leadership, has a term while there is one, and answers questions in it.

Called by the program and by tests. `run` goes on until cancelled; what ends it otherwise is a defect, and the process
begins anew with everything read from the API server. What can go wrong: a question while there is no term, or before it
is ready; NotReadyError says why, and promises nothing.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

import structlog

from partage.kube.clock import within
from partage.scheduler.metrics import Requests
from partage.scheduler.server import NotReadyError
from partage.scheduler.term import Reign

if TYPE_CHECKING:
    from partage.scheduler.extender import Extender
    from partage.scheduler.leader import Leader, Term
    from partage.scheduler.term import Left, World

STALE_S = 150.0  # a watch without a sign of life for so long is nothing to be ready on

log = structlog.get_logger("partage.scheduler")


class SchedulerService:
    """Who has the books."""

    def __init__(self, leader: Leader, world: World, *, patience_s: float) -> None:
        self.requests = Requests()
        self._leader = leader
        self._world = world
        self._patience_s = patience_s
        self._reign: Reign | None = None
        self._left: tuple[int, list[Left]] = (0, [])  # of the last term: its number, and what it left open
        self._begun = asyncio.Condition()

    @property
    def reign(self) -> Reign | None:
        """The present term, None where we do not lead."""
        return self._reign

    @property
    def problem(self) -> str:
        """Why we do not lead."""
        return self._leader.problem

    async def run(self) -> None:
        """Follow the leadership until cancelled."""
        reigning: asyncio.Task[None] | None = None
        following = aiter(self._leader.terms())
        news = asyncio.ensure_future(anext(following))
        try:
            while True:
                waited = {news} if reigning is None else {news, reigning}
                await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
                if reigning is not None and reigning.done():
                    reigning.result()  # a term ends by itself only through a defect
                if news.done():
                    await self._end(reigning)
                    reigning = await self._begin(news.result())
                    news = asyncio.ensure_future(anext(following))
        finally:
            news.cancel()
            await self._end(reigning)

    async def _begin(self, term: Term | None) -> asyncio.Task[None] | None:
        if term is None:
            return None
        log.info("leading", term=term.number, holder=term.holder)
        number, left = self._left
        reign = Reign(term, self._world, partial(self._leader.confirm, term), left if number == term.number else ())
        async with self._begun:
            self._reign = reign
            self._begun.notify_all()
        return asyncio.ensure_future(reign.run())

    async def _end(self, reigning: asyncio.Task[None] | None) -> None:
        if self._reign is not None:
            self._left = (self._reign.term.number, self._reign.left())
        self._reign = None
        if reigning is not None:
            reigning.cancel()
            await asyncio.gather(reigning, return_exceptions=True)

    # ---- for the extender's HTTP side --------------------------------------------------------------------------------

    async def extender(self) -> Extender:
        """Return the present term's, waiting a little for it; raises NotReadyError."""
        reign = self._reign
        if reign is not None and reign.is_ready:
            return reign.extender
        self._leader.look()
        try:
            return await within(self._world.clock, self._patience_s, self._awaited())
        except TimeoutError:
            found = "; ".join(self.not_ready()) or "changed hands"
            step = "kube-scheduler asks again by itself"
            raise NotReadyError("scheduler", found, "the leader that has listed all pods and nodes", step) from None

    async def _awaited(self) -> Extender:
        while True:
            async with self._begun:
                await self._begun.wait_for(lambda: self._reign is not None)
                reign = self._reign
            if reign is not None:
                await reign.wait_ready()
                if reign is self._reign:
                    return reign.extender

    def not_ready(self) -> list[str]:
        """Return why questions are not answered; nothing: they are."""
        reign = self._reign
        if reign is None:
            return [f"does not lead: {self._leader.problem}"]
        if not reign.is_ready:
            return [f"does not know all pods and nodes yet: {reign.watch.problem or 'they are being listed'}"]
        if reign.watch.stale_for > STALE_S:
            return [f"the API server was not heard for {reign.watch.stale_for:.0f} s: {reign.watch.problem}"]
        return []
