"""Posting to the API server, and following it, with as little work as can be: what every placed pod costs.

Not among the room's own names, for the node agent does without an HTTP client of this kind. The room's `Client` goes
through lightkube and httpx2, which take 0.8 ms of processor time a request where aiohttp's client takes 0.2 ms, and as
much for each event of a watch; whoever binds a hundred pods a second cares. Same configuration, logins and certificates
as there. A `Client` that is given a poster watches by it.

A post may have happened although nobody heard so. That is the caller's to judge, so `post` never raises for what the
network or the server does and never tries again by itself: `Answer` says what is known.
"""

from __future__ import annotations

from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

import aiohttp
import httpx2
import msgspec
from lightkube.config.client_adapter import ConnectionParams

from partage.kube.clock import SystemClock
from partage.kube.config import connection
from partage.kube.streams import Stream
from partage.model import KubeError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from types import TracebackType

    from lightkube.config.kubeconfig import SingleConfig

CONNECTIONS: Final = 32
CONNECT_S: Final = 5.0
ANSWER_S: Final = 10.0
UNAUTHORIZED: Final = 401
SIGNED_S: Final = 5.0
MESSAGE_MAX: Final = 500


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of a post: HTTP's `status` (0: no whole answer), the API's `reason` and `message`.

    `is_sent`: whether it may have reached the server; without that it certainly did not happen.
    """

    status: int
    reason: str = ""
    message: str = ""
    retry_after_s: float = 0.0
    is_sent: bool = True

    @property
    def is_done(self) -> bool:
        """Whether the server says that it did it."""
        return 200 <= self.status < 300

    @property
    def is_unknown(self) -> bool:
        """Whether it may have happened: no answer, or an error of the server's own in the midst of it."""
        return self.is_sent and (self.status == 0 or self.status >= 500)

    def __str__(self) -> str:
        if self.status == 0:
            return self.message
        return f"{self.status} {self.reason}: {self.message}" if self.message else f"{self.status} {self.reason}"


class _Status(msgspec.Struct):
    """The API's own description of a refusal."""

    reason: str = ""
    message: str = ""


_STATUS: Final = msgspec.json.Decoder(_Status)


class Poster:
    """One API server. Safe to use from many tasks of one event loop at once; `close` ends its connections."""

    def __init__(self, config: SingleConfig) -> None:
        """Make one for a configuration, of which nothing is sent yet; raises KubeError where it cannot be used."""
        settings = connection(config, ConnectionParams())
        self._server: str = settings["base_url"].rstrip("/")
        self._tls = settings["verify"]
        self._auth: httpx2.Auth | None = settings["auth"]
        self._clock = SystemClock()
        self._signed, self._signed_at = "", float("-inf")
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        limits = aiohttp.ClientTimeout(
            total=None, connect=CONNECT_S + ANSWER_S, sock_connect=CONNECT_S, sock_read=ANSWER_S
        )
        connector = aiohttp.TCPConnector(limit=CONNECTIONS, ssl=self._tls, keepalive_timeout=60.0)
        self._session = aiohttp.ClientSession(connector=connector, timeout=limits, auto_decompress=False)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def post(self, path: str, body: bytes) -> Answer:
        """Send one JSON body to a path such as `/api/v1/namespaces/a/pods/b/binding`, once."""
        try:
            signed = await self._sign()
            answer = await self._send(path, body, signed)
            if answer.status == UNAUTHORIZED:  # the token is another by now: the server has done nothing
                again = await self._sign_again(signed)
                if again != signed:
                    answer = await self._send(path, body, again)
        except KubeError as error:  # there is no login, so nothing was sent or the server took nothing
            return Answer(0, message=str(error), is_sent=False)
        return answer

    @asynccontextmanager
    async def stream(self, path: str, quiet_s: float) -> AsyncGenerator[Stream]:
        """Open an answer without end, which is given up after `quiet_s` without a byte; raises ConnectionError.

        That is also what reading it raises. KubeError where there is no login.
        """
        signed = await self._sign()
        try:
            response = await self._open(path, quiet_s, signed)
            try:
                if response.status == UNAUTHORIZED:
                    again = await self._sign_again(signed)
                    if again != signed:
                        response.close()
                        response = await self._open(path, quiet_s, again)
                yield Stream(response.status, response.content.iter_any())
            finally:
                response.close()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ConnectionError(f"{type(error).__name__} {error}".rstrip()) from error

    async def _open(self, path: str, quiet_s: float, authorization: str) -> aiohttp.ClientResponse:
        headers = {"Accept": "application/json", "Accept-Encoding": "identity"}
        if authorization:
            headers["Authorization"] = authorization
        limits = aiohttp.ClientTimeout(
            total=None, connect=CONNECT_S + ANSWER_S, sock_connect=CONNECT_S, sock_read=quiet_s
        )
        return await self._opened().get(self._server + path, headers=headers, timeout=limits)

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            raise RuntimeError("the poster is not open")
        return self._session

    async def _send(self, path: str, body: bytes, authorization: str) -> Answer:
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if authorization:
            headers["Authorization"] = authorization
        try:
            async with self._opened().post(self._server + path, data=body, headers=headers) as response:
                content = await response.read()
                return _answer(response, content)
        except aiohttp.ClientConnectorError as error:
            return Answer(0, message=f"not reached: {error}", is_sent=False)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            return Answer(0, message=f"no whole answer: {type(error).__name__} {error}".rstrip())

    async def _sign(self) -> str:
        """Return the header that signs a request; it is kept for moments, since making it takes as long as sending."""
        now = self._clock.now()
        if now - self._signed_at >= SIGNED_S:
            self._signed, self._signed_at = await self._signature(), now
        return self._signed

    async def _sign_again(self, refused: str) -> str:
        """Return the header to try where that one was refused; it is the same where there is no other."""
        self._signed, self._signed_at = await self._signature(refused), self._clock.now()
        return self._signed

    async def _signature(self, refused: str | None = None) -> str:
        """Ask the login for a header, and once more where it is the refused one, which many may find at once."""
        if self._auth is None:
            return ""
        request = httpx2.Request("POST", self._server)
        async with aclosing(self._auth.async_auth_flow(request)) as flow:
            signed: str = (await anext(flow)).headers.get("Authorization", "")
            if signed == refused:
                with suppress(StopAsyncIteration):
                    again = await flow.asend(httpx2.Response(UNAUTHORIZED, request=request))
                    signed = again.headers.get("Authorization", "")
        return signed


def _answer(response: aiohttp.ClientResponse, content: bytes) -> Answer:
    if response.status < 300:
        return Answer(response.status)
    try:
        said = _STATUS.decode(content)
    except (msgspec.DecodeError, UnicodeError):
        said = _Status(message=content[:MESSAGE_MAX].decode(errors="replace"))
    after = response.headers.get("Retry-After", "")
    wait = float(after) if after.isascii() and after.isdigit() else 0.0
    return Answer(response.status, said.reason, said.message[:MESSAGE_MAX], wait)
