"""Between our scheduler and the API server: a proxy that loses answers, refuses, and ends watches as a test says.

    with ApiProxy(cluster) as proxy:
        replica = site.replica("a", server=proxy.url)
        proxy.rule("POST", r"/binding$", Act.LOSE, times=1)

It runs in a thread of its own and passes everything on as it came, tokens included, to the real API server; on the side
of the test it speaks plain HTTP on the loopback interface. A rule acts on the requests that match it, in their order:
`skip` of them are let through first, then `times` are acted upon. What can go wrong: the API server does not answer,
which is passed on as 502.
"""

from __future__ import annotations

import asyncio
import enum
import re
import ssl
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Self

import aiohttp
from aiohttp import web

from tests.cluster.api import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from tests.cluster.cluster import Cluster

HOP: Final = frozenset({"host", "connection", "transfer-encoding", "content-length", "keep-alive"})


class Act(enum.Enum):
    """What becomes of a request."""

    LOSE = "done, and the answer is lost"
    CUT = "not done, and the connection is cut"
    REFUSE = "not done, and refused with a status"


@dataclass
class Rule:
    """Which requests, and what becomes of them; `before` and `after` are called around passing it on.

    Without an act the request is passed on, and so is its answer, whose status is `said`. `happened` is set once the
    first of them was seen to.
    """

    method: str
    path: re.Pattern[str]
    act: Act | None
    status: int = 500
    skip: int = 0
    times: int = 1
    before: Callable[[], None] | None = None
    after: Callable[[], None] | None = None
    acted: int = 0
    said: int = 0
    happened: threading.Event = field(default_factory=threading.Event)

    def takes(self, request: web.BaseRequest) -> bool:
        """Count a request that matches; say whether it is acted upon."""
        if self.method != request.method or self.path.search(request.path) is None or self.acted >= self.times:
            return False
        if self.skip:
            self.skip -= 1
            return False
        self.acted += 1
        return True


@dataclass
class ApiProxy:
    """One proxy; `requests` has every request as (method, path), watches as WATCH."""

    cluster: Cluster
    rules: list[Rule] = field(default_factory=list)
    requests: list[tuple[str, str]] = field(default_factory=list)
    url: str = ""

    def rule(self, method: str, path: str, act: Act | None, **more: object) -> Rule:
        """Add a rule and return it."""
        made = Rule(method, re.compile(path), act, **more)  # type: ignore[arg-type]
        self.rules.append(made)
        return made

    def count(self, method: str, path: str) -> int:
        """Return how many requests matched."""
        return sum(1 for verb, at in tuple(self.requests) if verb == method and re.search(path, at))

    def end_watches(self) -> None:
        """Cut all watches that are open."""
        self._loop.call_soon_threadsafe(self._cut_watches)

    def __enter__(self) -> Self:
        self._watches: set[asyncio.Transport] = set()
        started = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(started,), name="api-proxy", daemon=True)
        self._thread.start()
        assert started.wait(PATIENCE_S), "the proxy does not listen"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(PATIENCE_S)

    # ---- in its thread -----------------------------------------------------------------------------------------------

    def _run(self, started: threading.Event) -> None:
        asyncio.run(self._serve(started))

    async def _serve(self, started: threading.Event) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        tls = ssl.create_default_context(cafile=str(self.cluster.control.authority.certificate))
        limits = aiohttp.ClientTimeout(total=None)
        connector = aiohttp.TCPConnector(ssl=tls, limit=0)
        async with aiohttp.ClientSession(connector=connector, timeout=limits, auto_decompress=False) as session:
            self._session = session
            server = web.Server(self._pass_on)
            runner = web.ServerRunner(server, access_log=None, shutdown_timeout=0.1)
            await runner.setup()
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
            started.set()
            await self._stop.wait()
            self._cut_watches()
            await runner.cleanup()
            late = asyncio.all_tasks() - {asyncio.current_task()}  # who was let in meanwhile
            if late:
                await asyncio.wait(late, timeout=5)
            await server.shutdown(0)
            for _ in range(3):
                await asyncio.sleep(0)  # what was closed ends in the loop's next rounds, and this one's are over

    def _cut_watches(self) -> None:
        for transport in self._watches:
            transport.abort()

    async def _pass_on(self, request: web.BaseRequest) -> web.StreamResponse:
        is_watch = request.query.get("watch") in {"true", "1"}
        self.requests.append(("WATCH" if is_watch else request.method, request.path))
        body = await request.read()
        rule = next((rule for rule in self.rules if rule.takes(request)), None)
        try:
            return await self._see_to(request, body, rule, is_watch=is_watch)
        finally:
            if rule is not None:
                rule.happened.set()

    async def _see_to(
        self, request: web.BaseRequest, body: bytes, rule: Rule | None, *, is_watch: bool
    ) -> web.StreamResponse:
        if rule is not None and rule.before is not None:
            await asyncio.to_thread(rule.before)
        if rule is not None and rule.act in {Act.CUT, Act.REFUSE}:
            return self._fail(request, rule)
        headers = {name: value for name, value in request.headers.items() if name.lower() not in HOP}
        target = self.cluster.control.server + str(request.rel_url)
        async with self._session.request(request.method, target, data=body or None, headers=headers) as found:
            if rule is not None:
                rule.said = found.status
            if rule is not None and rule.after is not None:
                await found.read()
                await asyncio.to_thread(rule.after)
            if rule is not None and rule.act is Act.LOSE:
                await found.read()
                return self._fail(request, rule)
            return await self._copy(request, found, is_watch=is_watch)

    async def _copy(
        self, request: web.BaseRequest, found: aiohttp.ClientResponse, *, is_watch: bool
    ) -> web.StreamResponse:
        kept = {name: value for name, value in found.headers.items() if name.lower() not in HOP}
        if not is_watch:
            return web.Response(status=found.status, body=await found.read(), headers=kept)
        response = web.StreamResponse(status=found.status, headers=kept)
        transport = request.transport
        if transport is None:
            return response
        self._watches.add(transport)
        try:
            await response.prepare(request)
            async for piece in found.content.iter_any():
                await response.write(piece)
        except (ConnectionError, aiohttp.ClientError):
            pass
        finally:
            self._watches.discard(transport)
        return response

    def _fail(self, request: web.BaseRequest, rule: Rule) -> web.StreamResponse:
        if rule.act is Act.REFUSE:
            status = {"kind": "Status", "status": "Failure", "code": rule.status, "reason": "AskedFor", "message": ""}
            return web.json_response(status, status=rule.status, headers={"Retry-After": "1"})
        if request.transport is not None:
            request.transport.abort()
        return web.Response()
