"""Clocks that tests move, and the client and informer on the small API server."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from random import Random
from typing import TYPE_CHECKING

from lightkube.resources.core_v1 import Pod

from partage.kube import Change, Client, Informer, Retry, Timing
from partage.kube.poster import Poster
from tests.kube.api_server import ApiServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from partage.kube.streams import Streams


BY_POSTER = False  # whether `watched` watches as the scheduler does


class FakeClock:
    """Time stands still until `advance`; what sleeps with `jumps` takes no time at all and is noted."""

    def __init__(self, *, jumps: bool = False) -> None:
        self.time = 1000.0
        self.slept: list[float] = []
        self.jumps = jumps
        self._sleepers: list[tuple[float, asyncio.Future[None]]] = []

    def now(self) -> float:
        return self.time

    def date(self) -> datetime:
        return datetime(2026, 11, 30, tzinfo=UTC) + timedelta(seconds=self.time)

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        if self.jumps:
            self.time += seconds
            await asyncio.sleep(0)
            return
        future = asyncio.get_running_loop().create_future()
        self._sleepers.append((self.time + seconds, future))
        await future

    def advance(self, seconds: float) -> None:
        self.time += seconds
        for until, future in self._sleepers:
            if until <= self.time and not future.done():
                future.set_result(None)
        self._sleepers = [(until, future) for until, future in self._sleepers if not future.done()]

    @property
    def sleeping(self) -> int:
        return sum(1 for _, future in self._sleepers if not future.done())


def client_of(
    server: ApiServer,
    clock: FakeClock,
    retry: Retry | None = None,
    token_file: str | None = None,
    streams: Streams | None = None,
) -> Client:
    config = server.config(token_file)
    return Client.connect(config, manager="test", clock=clock, random=Random(1), retry=retry, streams=streams)


async def until(holds: Callable[[], object]) -> None:
    """Return once something is so; the test's own time limit ends what never is."""
    while not holds():  # noqa: ASYNC110 -- what it waits for tells nobody
        await asyncio.sleep(0.002)


class Watched:
    """An informer of the pods of node n1 that runs, and what it told."""

    def __init__(self, informer: Informer[Pod]) -> None:
        self.informer = informer
        self.changes: list[Change[Pod]] = []
        informer.subscribe(self.changes.append)

    @property
    def told(self) -> list[tuple[str, str]]:
        return [(change.kind, change.key.uid) for change in self.changes]

    @property
    def names(self) -> list[str]:
        return sorted(pod.metadata.name or "" for pod in self.informer if pod.metadata)


@asynccontextmanager
async def watched(
    server: ApiServer, clock: FakeClock | None = None, timing: Timing | None = None
) -> AsyncIterator[Watched]:
    clock = clock or FakeClock(jumps=True)
    async with AsyncExitStack() as opened:
        streams = await opened.enter_async_context(Poster(server.config())) if BY_POSTER else None
        client = await opened.enter_async_context(client_of(server, clock, streams=streams))
        informer = Informer(client, Pod, fields={"spec.nodeName": "n1"}, timing=timing, clock=clock, random=Random(1))
        seen = Watched(informer)
        async with asyncio.TaskGroup() as tasks:  # what ends the informer ends the test
            running = tasks.create_task(informer.run())
            await informer.wait_synced()
            await server.wait_watches(1)
            yield seen
            running.cancel()


def scenario(play: Callable[[ApiServer], Awaitable[None]]) -> None:
    """Run one test's coroutine beside a small API server."""

    async def whole() -> None:
        async with ApiServer().running() as server:
            await play(server)

    asyncio.run(whole())
