"""A small HTTP/1.1 server for pages that are read: GET and HEAD, over h11, which knows the protocol.

Owned by whoever awaits `HttpServer.run`; connections are its tasks. Nothing that a client does costs more than its own
connection: heads and bodies are bounded, a request that does not come is waited for so long, and where all connections
are taken the one that has been silent longest makes room for the next. What can go wrong: the port is taken (OSError
from `run`); a page that fails is answered with 500 and logged in full.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import h11
import structlog

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

CONNECTIONS_MAX: Final = 64
HEAD_MAX: Final = 16 << 10  # bytes
BODY_MAX: Final = 64 << 10  # of a request; nobody here reads one
QUIET_S: Final = 75.0  # for a request to come, whole
SEND_S: Final = 30.0  # for an answer to be taken
_PIECE: Final = 64 << 10
_METHODS: Final = (b"GET", b"HEAD")
TEXT: Final = "text/plain; charset=utf-8"

log = structlog.get_logger("partage.http")


@dataclass(frozen=True, slots=True)
class Page:
    """An answer."""

    body: bytes
    content_type: str = TEXT
    status: int = 200


class HttpServer:
    """Serves what `answer` returns for a path (without its query); None: there is no such page."""

    def __init__(self, answer: Callable[[str], Awaitable[Page | None]]) -> None:
        self._answer = answer
        self._silent: dict[asyncio.StreamWriter, None] = {}  # connections without a request, the longest first
        self._open = 0
        self.port = 0  # that is listened on

    async def run(self, address: str, port: int, on_listening: Callable[[], None] = lambda: None) -> None:
        """Answer until cancelled; port 0 is any that is free. Raises OSError where the port is taken."""
        tasks = asyncio.TaskGroup()

        def met(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            tasks.create_task(self._talk(reader, writer), name="page")

        server = await asyncio.start_server(met, address, port, limit=_PIECE, start_serving=False)
        try:
            async with tasks:
                await server.start_serving()
                self.port = int(server.sockets[0].getsockname()[1])
                on_listening()
                await asyncio.Event().wait()
        finally:
            server.close()

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer on one connection until either side ends it."""
        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_MAX)
        self._open += 1
        if self._open > CONNECTIONS_MAX and self._silent:
            next(iter(self._silent)).transport.abort()
        try:
            while await self._exchange(connection, reader, writer):
                connection.start_next_cycle()
        except (OSError, TimeoutError):
            pass  # it is gone, or as good as
        except h11.RemoteProtocolError as error:
            if connection.our_state in {h11.IDLE, h11.SEND_RESPONSE}:
                writer.write(_written(connection, Page(f"{error}\n".encode(), status=error.error_status_hint), b"GET"))
        finally:
            self._open -= 1
            writer.close()

    async def _exchange(
        self, connection: h11.Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        """Answer one request; return whether there may be another on this connection."""
        self._silent[writer] = None
        try:
            async with asyncio.timeout(QUIET_S):
                request = await _request(connection, reader)
        finally:
            self._silent.pop(writer, None)
        if request is None:
            return False
        writer.write(_written(connection, await self._page(request), request.method))
        async with asyncio.timeout(SEND_S):
            await writer.drain()
        return connection.our_state is h11.DONE and connection.their_state is h11.DONE

    async def _page(self, request: h11.Request) -> Page:
        if request.method not in _METHODS:
            return Page(b"GET and HEAD only\n", status=405)
        path = request.target.partition(b"?")[0].decode("ascii", "replace")
        try:
            page = await self._answer(path)
        except Exception:  # a defect of one page must not end the agent: logged in full
            log.exception("a page failed", path=path)
            return Page(b"see the agent's log\n", status=500)
        return page or Page(b"no such page\n", status=404)


async def _request(connection: h11.Connection, reader: asyncio.StreamReader) -> h11.Request | None:
    """Return the next request, its body read and dropped; None where the client has ended the connection."""
    request: h11.Request | None = None
    left = BODY_MAX
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            connection.receive_data(await reader.read(_PIECE))
        elif isinstance(event, h11.Request):
            request = event
            if request.method not in _METHODS:
                return request  # whatever its body is: the connection ends with the answer
        elif isinstance(event, h11.Data):
            left -= len(event.data)
            if left < 0:
                return None
        else:
            return request if isinstance(event, h11.EndOfMessage) else None


def _written(connection: h11.Connection, page: Page, method: bytes) -> bytes:
    """Return an answer as it goes over the wire."""
    headers = [("Content-Type", page.content_type), ("Content-Length", str(len(page.body)))]
    if page.status == 405:
        headers.append(("Allow", "GET, HEAD"))
    if connection.their_state is not h11.DONE:
        headers.append(("Connection", "close"))
    head = connection.send(h11.Response(status_code=page.status, headers=headers)) or b""
    body = b"" if method == b"HEAD" else connection.send(h11.Data(page.body)) or b""
    return head + body + (connection.send(h11.EndOfMessage()) or b"")
