"""An up-to-date copy of the API's objects of one kind: list, then watch from there, for ever.

    pods = Informer(client, Pod, fields={"spec.nodeName": node})
    pods.subscribe(on_change)                    # called for every Change, in order, never awaited
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(pods.run())            # until cancelled
        await pods.wait_synced()                 # the first whole list is there
        pods.get(uid); pods.named("default", "a"); list(pods)
        pod = await pods.wait_for(uid, timeout=5)                       # until it is known
        pod = await pods.wait_for(uid, lambda pod: ..., timeout=5)      # and looks like this
        pods.stale_for, pods.problem             # for readiness

Also usable by hand: `subscribe` before `run` sees the first list as `added`; a subscriber that comes later is told all
that is there by `replay=True`. A handler that raises is logged and the others go on. Every `resync_s` each object is
told again as `resync`, for handlers that bring the world to what they are told.

What goes wrong outside is ridden out: a stream that ends is joined again from its last version (bookmarks keep that
young), 410 and a stream that brought nothing at all list anew and tell the differences, refusals and broken connections
wait with back-off and jitter, a connection without a sign of life is given up. Meanwhile the copy stays as it was and
`stale_for` grows. A field selector makes objects come (bound to this node) and go as if added and deleted.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Final, Generic, TypeVar

import structlog

from partage.kube.backoff import Backoff
from partage.kube.client import ALL_NS, Client
from partage.kube.clock import Clock, SystemClock, within
from partage.kube.store import Change, HasMeta, Key, Store, key_of
from partage.model import KubeError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

__all__ = ["Change", "Informer", "Key", "Timing", "key_of"]

T = TypeVar("T", bound=HasMeta)
GONE: Final = 410
WAITS: Final = Backoff(0.2, 30.0)

log = structlog.get_logger("partage.kube")


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds: a stream's length (half of it by chance), waits after failures, between resyncs (0: none)."""

    stream_s: int = 600
    waits: Backoff = WAITS
    resync_s: float = 0.0
    settled_s: float = 5.0  # a stream that held so long is no failure, whatever ended it


@dataclass(eq=False, slots=True)
class _Waiter(Generic[T]):
    """Somebody who waits for an object to look like something."""

    looks: Callable[[T], bool]
    found: asyncio.Future[T]


class Informer(Generic[T]):
    """The objects of one kind that match; owned by one event loop."""

    def __init__(  # noqa: PLR0913 -- each is optional and named
        self,
        client: Client,
        resource: type[T],
        *,
        namespace: str | None = ALL_NS,
        fields: Mapping[str, str] | None = None,
        labels: Mapping[str, str] | None = None,
        timing: Timing | None = None,
        clock: Clock | None = None,
        random: Random | None = None,
    ) -> None:
        self._client = client
        self._resource = resource
        self._namespace, self._fields, self._labels = namespace, fields, labels
        self._timing = timing or Timing()
        self._clock = clock or SystemClock()
        self._random = random or Random()  # noqa: S311 -- jitter is no secret
        self._store: Store[T] = Store()
        self._handlers: list[Callable[[Change[T]], None]] = []
        self._waiting: defaultdict[str, list[_Waiter[T]]] = defaultdict(list)
        self._synced = asyncio.Event()
        self._heard_at = self._clock.now()
        self.problem: str | None = "not listed yet"
        self._log = log.bind(kind=resource.__name__)

    # ---- what is known -----------------------------------------------------------------------------------------------

    def get(self, uid: str) -> T | None:
        """Return the object with this UID, or None."""
        return self._store.get(uid)

    def named(self, namespace: str, name: str) -> T | None:
        """Return the object that has this name now, or None; namespace "" for kinds without."""
        return self._store.named(namespace, name)

    def __iter__(self) -> Iterator[T]:
        return iter(self._store)

    def __len__(self) -> int:
        return len(self._store)

    @property
    def is_synced(self) -> bool:
        """Whether a whole list has been read: what is not here does not exist, or came within the last moments."""
        return self._synced.is_set()

    @property
    def stale_for(self) -> float:
        """Seconds since the API server was last heard: an event, a bookmark, a list. Bookmarks come once a minute."""
        return self._clock.now() - self._heard_at

    async def wait_synced(self) -> None:
        """Return once a whole list has been read."""
        await self._synced.wait()

    async def wait_for(self, uid: str, looks: Callable[[T], bool] | None = None, *, timeout: float) -> T:  # noqa: ASYNC109
        """Return the object with this UID as soon as it is known and `looks` is true of it.

        Raises TimeoutError where that takes longer than `timeout` seconds, KubeError (404) once it is deleted.
        """
        waiter = _Waiter(looks or (lambda _: True), asyncio.get_running_loop().create_future())
        now = self.get(uid)
        if now is not None and waiter.looks(now):
            return now
        if now is None and self._store.is_gone(uid):
            raise self._deleted(uid)
        self._waiting[uid].append(waiter)
        try:
            return await within(self._clock, timeout, _result(waiter.found))
        finally:
            self._waiting[uid].remove(waiter)
            if not self._waiting[uid]:
                del self._waiting[uid]

    def subscribe(self, handler: Callable[[Change[T]], None], *, replay: bool = False) -> Callable[[], None]:
        """Call `handler` for every change from now on, `replay`: first for all that is there; return how to end it."""
        if replay:
            for item in self._store:
                self._call(handler, Change("added", key_of(item), item))
        self._handlers.append(handler)
        return lambda: self._handlers.remove(handler)

    # ---- keeping it so -----------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """List and watch until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow())
            if self._timing.resync_s:
                tasks.create_task(self._resync())

    async def _follow(self) -> None:
        version, failures = "", 0
        while True:
            begin = None
            try:
                version = version or await self._list()
                begin = self._clock.now()
                version, ended = await self._stream(version), "the stream ended at once"
            except _Broken as broken:
                version, ended = "" if broken.why.status == GONE else broken.version, str(broken.why)
            except KubeError as error:
                ended = str(error)
            held = begin is not None and self._clock.now() - begin >= self._timing.settled_s
            if held and begin is not None and self._heard_at <= begin:
                version = ""  # not even a bookmark: perhaps of a database that was restored, and years ahead of it
            failures = 0 if held else failures + 1
            if failures:
                self._set_problem(ended)
                await self._clock.sleep(self._timing.waits.wait(failures, self._random))

    async def _list(self) -> str:
        listing = await self._client.list(
            self._resource, namespace=self._namespace, fields=self._fields, labels=self._labels
        )
        self._heard()
        self._tell(self._store.replace(map(_slim, listing.items)))
        if not self._synced.is_set():
            self._log.info("listed", objects=len(self._store))
        self._synced.set()
        return listing.version

    async def _stream(self, version: str) -> str:
        """Follow one stream to its end and return the version to go on from; _Broken has it where it broke."""
        seconds = self._random.randint(self._timing.stream_s // 2, self._timing.stream_s)
        events = self._client.watch(
            self._resource,
            version=version,
            namespace=self._namespace,
            fields=self._fields,
            labels=self._labels,
            seconds=seconds,
        )
        try:
            async with contextlib.aclosing(events):
                async for event in events:
                    self._heard()
                    version = event.version or version
                    if event.object is not None:
                        take = self._store.remove if event.kind == "deleted" else self._store.put
                        self._tell(take(_slim(event.object)))
        except KubeError as error:
            raise _Broken(version, error) from error
        return version

    async def _resync(self) -> None:
        while True:
            await self._clock.sleep(self._timing.resync_s * self._random.uniform(0.9, 1.1))
            self._tell([Change("resync", key_of(item), item, item) for item in self._store])

    # ---- telling -----------------------------------------------------------------------------------------------------

    def _tell(self, changes: list[Change[T]]) -> None:
        for change in changes:
            for handler in tuple(self._handlers):
                self._call(handler, change)
            for waiter in self._waiting.get(change.key.uid, ()):
                self._answer(waiter, change)

    def _call(self, handler: Callable[[Change[T]], None], change: Change[T]) -> None:
        try:
            handler(change)
        except Exception:  # one caller's defect must not blind the others: logged in full, with the object
            self._log.exception("a handler failed", change=change.kind, uid=change.key.uid, name=change.key.name)

    def _answer(self, waiter: _Waiter[T], change: Change[T]) -> None:
        if waiter.found.done():
            return
        if change.kind == "deleted":
            waiter.found.set_exception(self._deleted(change.key.uid))
            return
        try:
            if waiter.looks(change.object):
                waiter.found.set_result(change.object)
        except Exception as error:
            waiter.found.set_exception(error)

    def _deleted(self, uid: str) -> KubeError:
        what, step = f"{self._resource.__name__} with UID {uid}", "nothing: its successor has another UID"
        return KubeError(what, "deleted", "waited for", step, status=404, reason="NotFound")

    def _heard(self) -> None:
        self._heard_at = self._clock.now()
        if self.problem is not None and self._synced.is_set():
            self._log.info("watching again", after=self.problem)
        self.problem = None

    def _set_problem(self, problem: str) -> None:
        if self.problem != problem:
            self._log.warning("not watching", problem=problem)
        self.problem = problem


class _Broken(Exception):  # noqa: N818 -- never seen outside
    """A stream broke: from which version to go on, and why."""

    def __init__(self, version: str, why: KubeError) -> None:
        self.version = version
        self.why = why
        super().__init__(version, why)


async def _result(found: asyncio.Future[T]) -> T:
    return await found


def _slim(item: T) -> T:
    """Drop what nobody here reads and is half of an object: who wrote which field."""
    meta: object = item.metadata  # lightkube's ObjectMeta has them, structures of a reader's own have not
    if getattr(meta, "managedFields", None) is not None:
        setattr(meta, "managedFields", None)  # noqa: B010
    return item
