"""We test this aspect of the extender beyond the loopback interface: whoever has no certificate of the named authority
is not answered."""

from __future__ import annotations

import asyncio
import ssl
from typing import TYPE_CHECKING

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import unused_port

from partage.scheduler.server import serve
from partage.scheduler.settings import ExtenderSettings, TlsSettings
from tests.cluster.pki import Authority

if TYPE_CHECKING:
    from pathlib import Path


ADDRESS = "127.9.8.7"  # of this machine, and no connection of others has taken a port there meanwhile


async def pong(_: web.Request) -> web.Response:
    return web.Response(text="pong")


def test_only_who_has_a_certificate_of_the_authority_is_answered(tmp_path: Path) -> None:
    ours, other = Authority(tmp_path / "ours"), Authority(tmp_path / "other")
    for authority in (ours, other):
        authority.establish()
        authority.issue("client", "kube-scheduler")
    ours.issue("server", "extender", names=(ADDRESS,))

    def trust(client: Authority | None) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(ours.certificate))
        if client is not None:
            context.load_cert_chain(client.directory / "client.crt", client.directory / "client.key")
        return context

    async def play() -> None:
        settings = ExtenderSettings(
            address=ADDRESS,
            port=unused_port(),
            tls=TlsSettings(
                certificate=str(ours.directory / "server.crt"),
                private_key=str(ours.directory / "server.key"),
                client_authority=str(ours.certificate),
            ),
        )
        app = web.Application()
        app.router.add_get("/", pong)
        serving = asyncio.ensure_future(serve(app, settings))
        url = f"https://{ADDRESS}:{settings.port}/"
        async with aiohttp.ClientSession() as session:
            while not serving.done():
                try:
                    async with session.get(url, ssl=trust(ours)) as answer:
                        assert await answer.text() == "pong"
                        break
                except aiohttp.ClientConnectorError:
                    await asyncio.sleep(0.01)  # it does not listen yet
            for stranger in (None, other):
                with pytest.raises((aiohttp.ClientError, ssl.SSLError, ConnectionError)):
                    async with session.get(url, ssl=trust(stranger)):
                        pass
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)

    asyncio.run(play())
