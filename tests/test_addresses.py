"""We test this aspect of the pages of all programs: by default they are answered on every address that a pod may have,
of IPv4 and of IPv6, since kubelet's probes and the API server come by the one that the cluster uses."""

from __future__ import annotations

import asyncio
import socket
from contextlib import asynccontextmanager, closing
from typing import TYPE_CHECKING

import pytest
from aiohttp import web

from partage.admission.settings import Settings as WebhookSettings
from partage.scheduler.settings import Settings as SchedulerSettings
from partage_plugin.http import HttpServer, Page
from partage_plugin.settings import Settings as AgentSettings
from tests.plugin.kubelet import HANG_S

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

ATTEMPTS = 50  # a port that was free may be another's a moment later


def is_there(family: socket.AddressFamily, address: str) -> bool:
    try:
        with closing(socket.socket(family)) as probe:
            probe.bind((address, 0))
    except OSError:
        return False
    return True


LOOPBACKS = [
    address
    for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"))
    if is_there(family, address)
]


def free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@asynccontextmanager
async def by_aiohttp(address: str, port: int) -> AsyncIterator[None]:
    runner = web.AppRunner(web.Application())
    await runner.setup()
    try:
        await web.TCPSite(runner, address, port).start()
        yield
    finally:
        await runner.cleanup()


@asynccontextmanager
async def by_agent(address: str, port: int) -> AsyncIterator[None]:
    async def page(_: str) -> Page | None:
        return None

    listening = asyncio.Event()
    running = asyncio.create_task(HttpServer(page).run(address, port, listening.set))
    heard = asyncio.create_task(listening.wait())
    await asyncio.wait((running, heard), return_when=asyncio.FIRST_COMPLETED)
    try:
        if running.done():
            await running
        yield
    finally:
        running.cancel()
        heard.cancel()
        await asyncio.gather(running, heard, return_exceptions=True)


@pytest.mark.parametrize(
    ("serving", "address"),
    [
        (by_agent, AgentSettings().metrics.address),
        (by_aiohttp, SchedulerSettings().metrics.address),
        (by_aiohttp, WebhookSettings().metrics.address),
        (by_aiohttp, WebhookSettings().server.address),
    ],
    ids=["agent", "scheduler", "webhook", "webhook-questions"],
)
def test_k14_probes_find_us_in_clusters_of_either_family(serving: object, address: str) -> None:
    async def asked(port: int) -> None:
        for host in LOOPBACKS:
            reader, writer = await asyncio.open_connection(host, port)
            writer.write(b"GET /none HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
            assert (await reader.read()).startswith(b"HTTP/1.1 404 "), host
            writer.close()
            await writer.wait_closed()

    async def go() -> None:
        for left in reversed(range(ATTEMPTS)):
            port = free_port()
            try:
                async with serving(address, port):  # type: ignore[operator]
                    await asked(port)
                    return
            except ConnectionRefusedError:
                raise
            except OSError:
                if left == 0:
                    raise

    asyncio.run(asyncio.wait_for(go(), HANG_S))
