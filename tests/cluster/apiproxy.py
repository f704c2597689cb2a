"""Between our scheduler and the API server: a proxy that loses answers, refuses, and ends watches as a test says.

    with ApiProxy(cluster) as proxy:
        replica = site.replica("a", server=proxy.url)
        proxy.rule("POST", r"/binding$", Act.LOSE, times=1)

It passes everything on as it came, tokens included, to the real API server; on the side of the test it speaks plain
HTTP on the loopback interface. Each connection has a thread, which owns both its sockets: at the end all are cut and
all threads are waited for, so nothing is left open, whoever was let in last. A rule acts on the requests that match
it, in their order: `skip` of them are let through first, then `times` are acted upon. What can go wrong: the API server
does not answer, which is passed on as 502.
"""

from __future__ import annotations

import contextlib
import enum
import http.client
import json
import re
import socket
import ssl
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Final, Self
from urllib.parse import parse_qs, urlsplit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import TracebackType

    from tests.cluster.cluster import Cluster

HOP: Final = frozenset({"host", "connection", "transfer-encoding", "content-length", "keep-alive"})
PIECE_BYTES: Final = 65536


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

    def takes(self, method: str, path: str) -> bool:
        """Count a request that matches; say whether it is acted upon."""
        if self.method != method or self.path.search(path) is None or self.acted >= self.times:
            return False
        if self.skip:
            self.skip -= 1
            return False
        self.acted += 1
        return True


class ApiProxy:
    """One proxy; `requests` has every request as (method, path), watches as WATCH."""

    def __init__(self, cluster: Cluster) -> None:
        self.rules: list[Rule] = []
        self.requests: list[tuple[str, str]] = []
        self._upstream = urlsplit(cluster.control.server)
        self._tls = ssl.create_default_context(cafile=str(cluster.control.authority.certificate))
        self._changes = threading.Lock()  # of rules, requests and connections
        self._open: set[Connection] = set()
        self._is_over = False
        self._server = Listener(("127.0.0.1", 0), self._serve)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), name="api-proxy")
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def rule(self, method: str, path: str, act: Act | None, **more: object) -> Rule:
        """Add a rule and return it."""
        made = Rule(method, re.compile(path), act, **more)  # type: ignore[arg-type]
        with self._changes:
            self.rules.append(made)
        return made

    def count(self, method: str, path: str) -> int:
        """Return how many requests matched."""
        return sum(1 for verb, at in tuple(self.requests) if verb == method and re.search(path, at))

    def end_watches(self) -> None:
        """Cut all watches that are open."""
        with self._changes:
            self._cut(one for one in self._open if one.is_watch)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        with self._changes:
            self._is_over = True
            self._cut(self._open)
        self._server.server_close()  # which waits for the threads of all connections

    # ---- for its connections -----------------------------------------------------------------------------------------

    def _serve(self, request: socket.socket, client: object, server: Listener) -> Connection:
        return Connection(request, client, server, self)

    def enter(self, connection: Connection) -> None:
        """Let a connection in, to be cut with all others."""
        with self._changes:
            self._open.add(connection)
            if self._is_over:
                self._cut([connection])

    def leave(self, connection: Connection) -> None:
        """Forget a connection, whose sockets are closed after that."""
        with self._changes:
            self._open.discard(connection)

    def note(self, method: str, path: str, *, is_watch: bool) -> Rule | None:
        """Note a request and return the rule that acts upon it."""
        with self._changes:
            self.requests.append(("WATCH" if is_watch else method, path))
            return next((rule for rule in self.rules if rule.takes(method, path)), None)

    def reach(self, connection: Connection) -> None:
        """Give a connection its way to the API server; ConnectionError where all is over."""
        made = http.client.HTTPSConnection(self._upstream.hostname or "", self._upstream.port, context=self._tls)
        made.auto_open = 0  # a way that opened itself again would not be seen here
        connection.upstream = made
        made.connect()
        with self._changes:
            if self._is_over:
                raise ConnectionAbortedError

    @staticmethod
    def _cut(connections: Iterable[Connection]) -> None:
        """End the sockets of connections under their threads, which close them."""
        for one in connections:
            for end in (one.connection, one.upstream.sock if one.upstream is not None else None):
                if end is not None:
                    with contextlib.suppress(OSError):
                        socket.socket.shutdown(end, socket.SHUT_RDWR)  # TLS's own would take its state from the thread


class Listener(ThreadingHTTPServer):
    """Accepts connections, each in a thread that is waited for at the end."""

    daemon_threads = False
    request_queue_size = 128

    def handle_error(self, request: object, client: object) -> None:
        """Say nothing of a connection that ended: the test has ended it."""


class Connection(BaseHTTPRequestHandler):
    """One connection of a client, and its own to the API server."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def __init__(self, request: socket.socket, client: object, server: Listener, proxy: ApiProxy) -> None:
        self.proxy = proxy
        self.upstream: http.client.HTTPSConnection | None = None
        self.is_watch = False
        super().__init__(request, client, server)

    def setup(self) -> None:
        super().setup()
        self.proxy.enter(self)

    def finish(self) -> None:
        self.proxy.leave(self)
        if self.upstream is not None:
            self.upstream.close()
        super().finish()

    def log_message(self, *said: object) -> None:
        """Say nothing: `requests` has them."""

    def _pass_on(self) -> None:
        at = urlsplit(self.path)
        self.is_watch = parse_qs(at.query).get("watch", [""])[0] in {"true", "1"}
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        rule = self.proxy.note(self.command, at.path, is_watch=self.is_watch)
        try:
            self._see_to(rule or Rule(self.command, re.compile(""), None), body)
        finally:
            self.is_watch = False
            if rule is not None:
                rule.happened.set()

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _pass_on  # noqa: N815 -- http.server's names

    def _see_to(self, rule: Rule, body: bytes) -> None:
        if rule.before is not None:
            rule.before()
        if rule.act is Act.CUT:
            self.close_connection = True
            return
        if rule.act is Act.REFUSE:
            self._say(rule.status, "AskedFor")
            return
        try:
            found = self._ask(body)
        except (OSError, http.client.HTTPException) as error:
            self._say(502, f"{type(error).__name__}: {error}")
            self.close_connection = True
            return
        rule.said = found.status
        said = b"" if self.is_watch else found.read()
        if rule.after is not None:
            rule.after()
        if rule.act is Act.LOSE:
            self.close_connection = True
        elif self.is_watch:
            self._follow(found)
        else:
            self._answer(found.status, found.getheaders(), said)

    def _ask(self, body: bytes) -> http.client.HTTPResponse:
        if self.upstream is None or self.upstream.sock is None:
            self.proxy.reach(self)
            assert self.upstream is not None
        headers = {name: value for name, value in self.headers.items() if name.lower() not in HOP}
        self.upstream.request(self.command, self.path, body or None, headers)
        return self.upstream.getresponse()

    def _say(self, status: int, reason: str) -> None:
        said = {"kind": "Status", "status": "Failure", "code": status, "reason": reason, "message": ""}
        headers = [("Content-Type", "application/json"), ("Retry-After", "1")]
        self._answer(status, headers, json.dumps(said).encode())

    def _answer(self, status: int, headers: Iterable[tuple[str, str]], body: bytes) -> None:
        self._begin(status, headers, "Content-Length", str(len(body)))
        self.wfile.write(body)

    def _begin(self, status: int, headers: Iterable[tuple[str, str]], *framing: str) -> None:
        self.send_response_only(status)
        for name, value in headers:
            if name.lower() not in HOP:
                self.send_header(name, value)
        self.send_header(framing[0], framing[1])
        self.end_headers()

    def _follow(self, found: http.client.HTTPResponse) -> None:
        """Pass a watch on as it comes, until either side ends it."""
        self._begin(found.status, found.getheaders(), "Transfer-Encoding", "chunked")
        self.close_connection = True
        with contextlib.suppress(http.client.HTTPException):  # the API server's end was cut
            while piece := found.read1(PIECE_BYTES):
                self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            self.wfile.write(b"0\r\n\r\n")
