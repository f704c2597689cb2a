"""We test these aspects of the HTTP server: one connection for many requests; what is no HTTP, too much of it or never
whole costs its own connection; a page that fails is 500; who is silent makes room; a port that is taken is an error."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

import pytest
from aiohttp import ClientSession

from partage_plugin import http
from partage_plugin.http import HttpServer, Page
from tests.plugin.kubelet import HANG_S

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine

BIG = b"x" * (4 << 20)


async def pages(path: str) -> Page | None:
    if path == "/fails":
        raise RuntimeError("a defect")
    return {"/": Page(b"hello\n"), "/big": Page(BIG)}.get(path)


@asynccontextmanager
async def serving() -> AsyncIterator[HttpServer]:
    server, listening = HttpServer(pages), asyncio.Event()
    running = asyncio.create_task(server.run("127.0.0.1", 0, listening.set))
    await listening.wait()
    try:
        yield server
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def said(server: HttpServer, text: bytes, *, end: bool = False) -> bytes:
    """What a client gets that sends just this, up to the end of the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(text)
    if end:
        writer.write_eof()
    answer = b""
    with suppress(ConnectionError):  # it ended with something of ours unread
        while piece := await reader.read(4096):
            answer += piece
    writer.close()
    with suppress(ConnectionError):
        await writer.wait_closed()
    return answer


def play(coroutine: Coroutine[object, object, None]) -> None:
    asyncio.run(asyncio.wait_for(coroutine, HANG_S))


def test_many_requests_on_one_connection() -> None:
    async def whole() -> None:
        async with serving() as server, ClientSession(f"http://127.0.0.1:{server.port}") as client:
            for _ in range(20):
                assert await (await client.get("/?a=b")).text() == "hello\n"
            assert await (await client.get("/big")).read() == BIG
            head = await client.head("/big")
            assert (head.status, head.headers["Content-Length"], await head.read()) == (200, str(len(BIG)), b"")
            assert (await client.get("/none")).status == 404
            assert server._open == 1

    play(whole())


def test_requests_that_are_sent_together_are_answered_in_order() -> None:
    async def whole() -> None:
        async with serving() as server:
            two = b"GET / HTTP/1.1\r\nHost: a\r\n\r\nGET /none HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
            answer = await said(server, two)
            assert answer.index(b"hello") < answer.index(b"404")
            assert (await said(server, b"GET / HTTP/1.0\r\n\r\n")).endswith(b"hello\n")

    play(whole())


def test_a_page_that_fails_is_an_answer_too() -> None:
    async def whole() -> None:
        async with serving() as server, ClientSession(f"http://127.0.0.1:{server.port}") as client:
            assert (await client.get("/fails")).status == 500
            assert (await client.get("/")).status == 200

    play(whole())


@pytest.mark.parametrize(
    ("text", "status"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\n\r\n", b"400"),  # no host
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"y" * http.HEAD_MAX, b"431"),
        (b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", b"400"),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9999999\r\n\r\nabc", b"405"),
        (b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nConnection: close\r\n\r\nabc", b"200"),
    ],
)
def test_odd_requests(text: bytes, status: bytes) -> None:
    async def whole() -> None:
        async with serving() as server:
            assert (await said(server, text)).split(b" ", 2)[1] == status
            assert (await said(server, b"GET / HTTP/1.0\r\n\r\n")).endswith(b"hello\n")

    play(whole())


def test_a_body_without_end_ends_the_connection() -> None:
    async def whole() -> None:
        async with serving() as server:
            head = b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 10000000\r\n\r\n"
            assert await said(server, head + b"z" * (2 * http.BODY_MAX)) == b""
            assert (await said(server, b"GET / HT", end=True))[:12] in {b"", b"HTTP/1.1 400"}

    play(whole())


def test_who_never_asks_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "QUIET_S", 0.05)

    async def whole() -> None:
        async with serving() as server:
            assert await said(server, b"GET / HTTP/1.1\r\nHos") == b""
            assert server._open == 0

    play(whole())


def test_who_is_silent_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """All connections are taken by clients that say nothing: the next one is answered, the oldest let go."""
    monkeypatch.setattr(http, "CONNECTIONS_MAX", 3)

    async def whole() -> None:
        async with serving() as server:
            silent = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(3)]
            async with ClientSession(f"http://127.0.0.1:{server.port}") as client:
                assert (await client.get("/")).status == 200
                with suppress(ConnectionError):
                    assert await silent[0][0].read() == b""
                silent[1][1].write(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
                assert (await silent[1][0].read()).endswith(b"hello\n")
            for _, writer in silent:
                writer.close()
                with suppress(ConnectionError):
                    await writer.wait_closed()

    play(whole())


def test_a_port_that_is_taken() -> None:
    async def whole() -> None:
        async with serving() as server:
            with pytest.raises(OSError, match="address already in use"):
                await HttpServer(pages).run("127.0.0.1", server.port)

    play(whole())
