"""Requests to the API server, over lightkube: the one place that knows it.

    async with Client.connect(load_config(), manager="partage-agent") as client:
        pod = await client.get(Pod, "a", namespace="default")
        listing = await client.list(Pod, fields={"spec.nodeName": node})
        await client.patch(Node, node, {"metadata": {"annotations": {DEVICES: text}}})
        async with contextlib.aclosing(client.watch(Pod, version=listing.version)) as events:
            async for event in events: ...

`Pod`, `Node` and the like are lightkube's (`lightkube.resources.core_v1`): msgspec structs with the API's own field
names, every part of which may be None.

Every failure is a KubeError with HTTP's status (0: no whole answer) and the API's reason; a caller asks
`error.status == 404`. Too many requests (429, after the server's Retry-After), server errors and broken connections
are tried again with growing waits, a bounded number of times; but a `create` only after 429, for it may have happened.
An eviction that a disruption budget refuses (429 with that cause) is not: whoever asked decides what to do instead.
Who may write only while something holds (a leader, while it leads) takes `client.guarded(holds)`: that is asked before
each try of a request that changes something, and its no is a KubeError of 429 `NotNow`, with nothing sent.
"""

from __future__ import annotations

import copy
from contextlib import asynccontextmanager
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, Self, TypeVar, cast
from urllib.parse import urlencode

import httpx2
import msgspec
from lightkube.config.client_adapter import ConnectionParams
from lightkube.core import decoders
from lightkube.core.generic_client import ALL_NS, BasicRequest, GenericAsyncClient
from lightkube.core.resource import api_info
from lightkube.types import PatchType

from partage.kube.backoff import Backoff
from partage.kube.clock import Clock, SystemClock
from partage.kube.config import http_client, time_limits
from partage.kube.streams import Stream, Streams, lines
from partage.model import KubeError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
    from contextlib import AbstractAsyncContextManager
    from types import TracebackType

    from lightkube.config.kubeconfig import SingleConfig

__all__ = ["ALL_NS", "Client", "Listing", "PatchType", "Retry", "WatchEvent"]

T = TypeVar("T")
Kind = Literal["added", "modified", "deleted", "bookmark"]

PAGE: Final = 500
QUIET_S: Final = 150.0  # without a bookmark, which come once a minute, the connection is taken for dead
BAD: Final = 400
TOO_MANY: Final = 429
BUDGET: Final = (
    "DisruptionBudget"  # the cause of a 429 that no waiting mends: what it says is of the cluster, not of us
)
READS: Final = frozenset({"get", "list"})
AGAIN: Final = frozenset({500, 502, 503, 504})
MESSAGE_MAX: Final = 500
WAITS: Final = Backoff(0.1, 5.0)
_KINDS: Final[dict[str, Kind]] = {"ADDED": "added", "MODIFIED": "modified", "DELETED": "deleted"}


@dataclass(frozen=True, slots=True)
class Retry:
    """How often and how long one request is tried; a Retry-After counts where it is longer than our own wait."""

    attempts: int = 5
    total_s: float = 30.0
    waits: Backoff = WAITS


@dataclass(frozen=True, slots=True)
class Listing(Generic[T]):
    """A whole list, and the version from which a watch goes on."""

    items: list[T]
    version: str


@dataclass(frozen=True, slots=True)
class WatchEvent(Generic[T]):
    """A line of a watch: `version` is where to go on; `object` is None in a bookmark, which brings only that."""

    kind: Kind
    version: str
    object: T | None


class _Meta(msgspec.Struct):
    resource_version: str = msgspec.field(name="resourceVersion", default="")


class _Versioned(msgspec.Struct):
    """The part of every object that a watch goes on from."""

    metadata: _Meta


class Transport(GenericAsyncClient):
    """lightkube's requests and paths, with our HTTP client under it."""

    AdapterClient = staticmethod(http_client)

    async def answer(self, request: BasicRequest) -> httpx2.Response:
        """Send a request once."""
        return await self._client.send(self.build_adapter_request(request))

    @asynccontextmanager
    async def open(self, request: BasicRequest) -> AsyncGenerator[Stream]:
        """Send a request once; the answer begins when its head is there."""
        response = await self._client.send(self.build_adapter_request(request), stream=True)
        try:
            yield Stream(response.status_code, response.aiter_bytes())
        finally:
            await response.aclose()

    async def end(self) -> None:
        """End all connections."""
        await self._client.aclose()


class Client:
    """One API server. Safe to use from many tasks at once; `close` ends its connections."""

    def __init__(  # noqa: PLR0913 -- the last ones are optional and named
        self,
        api: Transport,
        clock: Clock,
        random: Random,
        retry: Retry | None = None,
        *,
        page: int = PAGE,
        streams: Streams | None = None,
    ) -> None:
        self._api = api
        self._streams = streams
        self._clock = clock
        self._random = random
        self._retry = retry or Retry()
        self._page = page
        self._holds: Callable[[], Awaitable[bool]] | None = None

    @classmethod
    def connect(  # noqa: PLR0913 -- the last ones are optional and named
        cls,
        config: SingleConfig,
        *,
        manager: str,
        clock: Clock | None = None,
        random: Random | None = None,
        retry: Retry | None = None,
        streams: Streams | None = None,
    ) -> Self:
        """Return a client; nothing is sent yet. `manager` is what managedFields say of our writes."""
        api = Transport(ConnectionParams(timeout=time_limits()), config, field_manager=manager)
        jitter = random or Random()  # noqa: S311 -- no secret
        return cls(api, clock or SystemClock(), jitter, retry, streams=streams)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """End all connections."""
        await self._api.end()

    def guarded(self, holds: Callable[[], Awaitable[bool]]) -> Client:
        """Return this client, on the same connections, for someone who may write only while `holds` says yes."""
        guarded = copy.copy(self)
        guarded._holds = holds  # noqa: SLF001 -- our own class
        return guarded

    # ---- one object --------------------------------------------------------------------------------------------------

    async def get(self, resource: type[T], name: str, *, namespace: str | None = None) -> T:
        """Return the object of this name."""
        return cast("T", await self._do("get", resource, name=name, namespace=namespace))

    async def create(self, obj: T, *, name: str | None = None, namespace: str | None = None) -> T:
        """Create an object, or post to its subresource (a PodBinding): `name` is the parent's then."""
        done = await self._do("post", type(obj), body=obj, name=name, namespace=namespace, repeats=False)
        return cast("T", done)

    async def replace(self, obj: T, *, name: str | None = None, namespace: str | None = None) -> T:
        """Put an object in the place of the one of its name and version; 409 where it is another version by now."""
        return cast("T", await self._do("put", type(obj), body=obj, name=name, namespace=namespace))

    async def patch(
        self,
        resource: type[T],
        name: str,
        body: Mapping[str, object],
        *,
        namespace: str | None = None,
        kind: PatchType = PatchType.MERGE,
    ) -> T:
        """Change parts of an object; a merge patch removes what it names with None. Must be safe to send twice."""
        headers = {"Content-Type": kind.value}
        done = await self._do("patch", resource, body=dict(body), name=name, namespace=namespace, headers=headers)
        return cast("T", done)

    async def delete(self, resource: type[T], name: str, *, namespace: str | None = None) -> None:
        """Delete the object of this name."""
        await self._do("delete", resource, name=name, namespace=namespace)

    # ---- many --------------------------------------------------------------------------------------------------------

    async def list(
        self,
        resource: type[T],
        *,
        namespace: str | None = ALL_NS,
        fields: Mapping[str, str] | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> Listing[T]:
        """Return all objects that match, read page by page; 410 where the list grew too old between two pages."""
        params = {"limit": str(self._page), **_selectors(fields, labels)}
        items: list[T] = []
        request = self._request("list", resource, namespace=_scope(resource, namespace), params=params)
        while True:
            more, version, page = await self._send("list", request, repeats=True)
            items += page
            if not more:
                return Listing(items, version or "")

    async def watch(  # noqa: PLR0913 -- each but the first two is optional, all are named
        self,
        resource: type[T],
        *,
        version: str,
        namespace: str | None = ALL_NS,
        fields: Mapping[str, str] | None = None,
        labels: Mapping[str, str] | None = None,
        seconds: int = 300,
    ) -> AsyncGenerator[WatchEvent[T]]:
        """Yield what happens after `version`, bookmarks too, until the server ends the stream after `seconds`.

        Not tried again: the caller knows from where to go on. 410 where the version is too old.
        """
        params = {"allowWatchBookmarks": "true", "resourceVersion": version, "timeoutSeconds": str(seconds)}
        params |= _selectors(fields, labels)
        scope = _scope(resource, namespace)
        request = self._request("list", resource, namespace=scope, params=params, watch=True)
        try:
            async with self._opened(request) as stream:
                if stream.status >= BAD:
                    raise _refused(request, stream.status, b"".join([piece async for piece in stream.pieces]))
                async for line in lines(stream.pieces):
                    yield _event(line, resource, request)
        except (httpx2.HTTPError, httpx2.StreamError, ConnectionError) as error:
            raise _unanswered(request, error) from error

    # ---- how ---------------------------------------------------------------------------------------------------------

    def _opened(self, request: BasicRequest) -> AbstractAsyncContextManager[Stream]:
        if self._streams is None:
            request.timeout = time_limits(QUIET_S)
            return self._api.open(request)
        return self._streams.stream(f"/{request.url}?{urlencode(request.params)}", QUIET_S)

    def _request(self, method: str, resource: type, **parts: Any) -> BasicRequest:
        return self._api.prepare_request(method, resource, **parts)

    async def _do(self, method: str, resource: type, *, repeats: bool = True, **parts: Any) -> Any:
        parts["obj"] = parts.pop("body", None)
        return await self._send(method, self._request(method, resource, **parts), repeats=repeats)

    async def _send(self, method: str, request: BasicRequest, *, repeats: bool) -> Any:
        """Send a request until it is answered, refused, or has been tried often enough."""
        begin, failures = self._clock.now(), 0
        while True:
            wait = 0.0
            if self._holds is not None and method not in READS and not await self._holds():
                limit, step = "written only by who may at this moment", "nothing: whoever may now does it"
                raise KubeError(_subject(request), "not sent", limit, step, status=TOO_MANY, reason="NotNow")
            try:
                response = await self._api.answer(request)
            except httpx2.HTTPError as error:
                problem, again = _unanswered(request, error), repeats or isinstance(error, httpx2.ConnectError)
            else:
                if not response.is_error:
                    return self._decoded(method, request, response)
                problem = _refused(request, response.status_code, response.content)
                wait = _retry_after(response)
                is_busy = problem.status == TOO_MANY and BUDGET not in problem.causes
                again = is_busy or (repeats and problem.status in AGAIN)
            failures += 1
            wait = max(wait, self._retry.waits.wait(failures, self._random))
            late = self._clock.now() - begin + wait > self._retry.total_s
            if not again or failures >= self._retry.attempts or late:
                raise problem
            await self._clock.sleep(wait)

    def _decoded(self, method: str, request: BasicRequest, response: httpx2.Response) -> Any:
        try:
            return self._api.handle_response(method, response, request)
        except (msgspec.DecodeError, UnicodeError) as error:
            raise _foreign(request, error) from error


def _event(line: bytes, resource: type[T], request: BasicRequest) -> WatchEvent[T]:
    try:
        event = decoders.decode_watch_event(line)
        if event.type == "ERROR":
            status = decoders.decode_status(bytes(event.object))
            raise _refusal(request, status.code or 0, status.reason or "", status.message or "")
        version = msgspec.json.decode(event.object, type=_Versioned).metadata.resource_version
        if event.type == "BOOKMARK":
            return WatchEvent("bookmark", version, None)
        return WatchEvent(_KINDS[event.type], version, decoders.decode_object(bytes(event.object), resource))
    except (msgspec.DecodeError, UnicodeError, KeyError) as error:
        raise _foreign(request, error) from error


def _selectors(fields: Mapping[str, str] | None, labels: Mapping[str, str] | None) -> dict[str, str]:
    given = {"fieldSelector": fields, "labelSelector": labels}
    return {name: ",".join(f"{key}={value}" for key, value in of.items()) for name, of in given.items() if of}


def _scope(resource: type, namespace: str | None) -> str | None:
    """Return the namespace of a list: objects that have none cannot be asked for in all of them."""
    return namespace if "global_list" in api_info(resource).verbs else None


def _retry_after(response: httpx2.Response) -> float:
    text = response.headers.get("Retry-After", "")
    return float(text) if text.isascii() and text.isdigit() else 0.0


# ---- failures --------------------------------------------------------------------------------------------------------

_STEPS: Final = {
    400: "this component and the cluster do not understand each other: compare their versions",
    401: "log in anew; a component needs a token that the cluster takes",
    403: "have a role give that user the right, or see which admission policy the message names",
    404: "nothing of that name (or no such API in this cluster)",
    409: "it is there already, or has changed: read it again",
    410: "list again",
    422: "the API server says which value it does not take",
}


class _Cause(msgspec.Struct):
    """One of the things behind a refusal."""

    reason: str = ""


class _Details(msgspec.Struct):
    """What more a refusal says; some say null."""

    causes: tuple[_Cause, ...] | None = None


class _Status(msgspec.Struct):
    """The API's own description of a refusal."""

    reason: str = ""
    message: str = ""
    details: _Details | None = None

    @property
    def causes(self) -> frozenset[str]:
        """The words for what is behind it."""
        found = self.details.causes if self.details is not None else None
        return frozenset(cause.reason for cause in found or () if cause.reason)


def _refused(request: BasicRequest, status: int, content: bytes) -> KubeError:
    try:
        said = msgspec.json.decode(content, type=_Status)
    except (msgspec.DecodeError, UnicodeError):
        said = _Status(message=content.decode(errors="replace"))
    return _refusal(request, status, said.reason, said.message, said.causes)


def _refusal(
    request: BasicRequest, status: int, reason: str, message: str, causes: frozenset[str] = frozenset()
) -> KubeError:
    value = f"{status} {reason}: {message[:MESSAGE_MAX]}" if message else f"{status} {reason}"
    step = _STEPS.get(status, "tried again where it may help; look at the API server where it goes on")
    return KubeError(
        _subject(request), value, "the API server refuses", step, status=status, reason=reason, causes=causes
    )


def _unanswered(request: BasicRequest, error: Exception) -> KubeError:
    step = "see whether the API server runs and can be reached from here"
    return KubeError(_subject(request), f"{type(error).__name__} {error}".strip(), "no whole answer", step)


def _foreign(request: BasicRequest, error: Exception) -> KubeError:
    step = "see whether a proxy answers instead, and which version the cluster is"
    return KubeError(_subject(request), str(error)[:MESSAGE_MAX], "not an answer of this API", step)


def _subject(request: BasicRequest) -> str:
    return f"{'WATCH' if request.params.get('watch') else request.method} {request.url}"
