"""Events on objects, where people look for the reason: told at once, repeated ones counted, never a flood.

    recorder = EventRecorder(client, "partage.io/agent", instance=node)
    tasks.create_task(recorder.run())
    recorder.event(pod_reference(pod), "GrantMissing", "pod default/a: no grant; …", warning=True)

`event` only notes and never waits or fails. The same event (object, reason, message) told again is a series of the one
that was sent: its count is written at most every `series_s` seconds. Writes are bounded twice: `burst` at once and
`per_s` after that over everything, and so for every single object, so that a container that starts fifty times a minute
drowns nobody else. What finds no room is dropped, and the log says so; an event is news, not a record. A rate with
`fresh_s` is for news that is worth little later: the newest goes first, and what waited longer is dropped. A recorder
made `after` another writes only while that one has nothing to write.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING, Final, NamedTuple

import structlog
from lightkube.models.core_v1 import ObjectReference
from lightkube.models.events_v1 import EventSeries
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.events_v1 import Event

from partage.kube.bucket import Bucket
from partage.kube.clock import Clock, SystemClock
from partage.model import KubeError

if TYPE_CHECKING:
    from datetime import datetime

    from lightkube.models.core_v1 import Node, Pod

    from partage.kube.client import Client

NOTE_MAX: Final = 1024  # the API's own limit
NAME_MAX: Final = 253
KNOWN_MAX: Final = 4096  # series and objects remembered
QUEUE_MAX: Final = 1000
FORGET_S: Final = 360.0  # after so long without a repetition the next one is a new event

log = structlog.get_logger("partage.kube")


@dataclass(frozen=True, slots=True)
class Rate:
    """So many writes at once and so many a second after that; of one object likewise; repetitions every `series_s`.

    `fresh_s`: the newest goes first, and none that is older than that; None: all go, in their order.
    """

    burst: int = 25
    per_s: float = 5.0
    object_burst: int = 10
    object_per_s: float = 1 / 30
    series_s: float = 30.0
    fresh_s: float | None = None


class _Key(NamedTuple):
    """What makes two events the same."""

    uid: str
    kind: str
    reason: str
    note: str


@dataclass(slots=True)
class _Series:
    """An event that was told: how often, and what the API server has of it."""

    event: Event
    count: int
    last: datetime
    heard_at: float
    written_at: float = 0.0
    written: int = 0  # how many of `count` the API server knows
    queued: bool = False


@dataclass(slots=True)
class _Memory:
    """What is remembered, each bounded: the one that was used longest ago goes first."""

    series: OrderedDict[_Key, _Series] = field(default_factory=OrderedDict)
    objects: OrderedDict[str, Bucket] = field(default_factory=OrderedDict)


class EventRecorder:
    """Sends events for one component; owned by one event loop."""

    def __init__(  # noqa: PLR0913 -- all are named
        self,
        client: Client,
        component: str,
        *,
        instance: str,
        rate: Rate | None = None,
        clock: Clock | None = None,
        after: EventRecorder | None = None,
    ) -> None:
        self._client = client
        self._component = component
        self._instance = instance
        self._rate = rate or Rate()
        self._clock = clock or SystemClock()
        self._memory = _Memory()
        self._whole = Bucket(self._rate.burst, self._clock.now())
        self._queue: OrderedDict[_Key, None] = OrderedDict()
        self._wake = asyncio.Event()
        self._after = after
        self._idle = asyncio.Event()
        self._idle.set()
        self._number = 0
        self.dropped = 0

    def event(  # noqa: PLR0913 -- all but the first three are named
        self,
        about: ObjectReference,
        reason: str,
        message: str,
        *,
        warning: bool = False,
        action: str = "Reconcile",
        once: bool = False,
    ) -> None:
        """Tell that something happened to an object; `reason` is one word in CamelCase, `message` a sentence.

        `once`: whoever tells it too, after a restart or from another replica, makes the same event and no second one.
        """
        note = _cut(message, NOTE_MAX)
        key = _Key(about.uid or about.name or "", "Warning" if warning else "Normal", reason, note)
        now, date = self._clock.now(), self._clock.date()
        series = self._memory.series.get(key)
        if series is None or now - series.heard_at > FORGET_S:
            series = _Series(self._made(about, key, action, date, once=once), 0, date, now)
            self._memory.series[key] = series
        self._memory.series.move_to_end(key)
        _forget(self._memory.series)
        series.count += 1
        series.last, series.heard_at = date, now
        self._enqueue(key, series)

    async def run(self) -> None:
        """Send what was told until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._queue:
                if self._after is not None:
                    await self._after.wait_idle()
                await self._write_next()
            self._idle.set()

    async def wait_idle(self) -> None:
        """Return once nothing waits to be written."""
        await self._idle.wait()

    def forget(self, uid: str) -> None:
        """Drop what was not written yet about an object that is gone."""
        for key in [key for key in self._queue if key.uid == uid]:
            self._leave_out(key, "its object is gone")

    # ---- how ---------------------------------------------------------------------------------------------------------

    def _made(self, about: ObjectReference, key: _Key, action: str, date: datetime, *, once: bool) -> Event:
        self._number += 1
        suffix = f".{int(date.timestamp() * 1e6):x}{self._number:x}"
        if once:
            suffix = "." + sha256("\0".join(key).encode()).hexdigest()[:16]
        name = (about.name or "object")[: NAME_MAX - len(suffix)] + suffix
        return Event(
            metadata=ObjectMeta(name=name, namespace=about.namespace or "default"),
            eventTime=date,
            reportingController=self._component,
            reportingInstance=self._instance,
            action=action,
            reason=key.reason,
            type=key.kind,
            note=key.note,
            regarding=about,
        )

    def _enqueue(self, key: _Key, series: _Series) -> None:
        """Queue a write where one is due: the first time, and then every `series_s` while it goes on."""
        due = series.written == 0 or self._clock.now() - series.written_at >= self._rate.series_s
        if not due or series.queued:
            return
        if len(self._queue) >= QUEUE_MAX:
            if self._rate.fresh_s is None:
                self._drop(key, "the queue is full")
                return
            self._leave_out(next(iter(self._queue)), "newer ones came")
        series.queued = True
        self._queue[key] = None
        self._idle.clear()
        self._wake.set()

    def _leave_out(self, key: _Key, why: str) -> None:
        """Take one that was not written out of the queue."""
        del self._queue[key]
        series = self._memory.series.get(key)
        if series is not None:
            series.queued = False
        self._drop(key, why)

    def _drop(self, key: _Key, why: str) -> None:
        self.dropped += 1
        if self.dropped & (self.dropped - 1) == 0:  # the 1st, 2nd, 4th, 8th …: no flood of lines either
            log.warning("event dropped", reason=key.reason, uid=key.uid, note=key.note, why=why, dropped=self.dropped)

    async def _write_next(self) -> None:
        """Write the one whose turn it is, if any is left: while a recorder waits, objects go."""
        fresh_s = self._rate.fresh_s
        if not self._queue:
            return
        key, _ = self._queue.popitem(last=fresh_s is not None)
        series = self._memory.series.get(key)
        if series is None:
            self._drop(key, "forgotten among many")
            return
        series.queued = False
        if fresh_s is not None and self._clock.now() - series.heard_at > fresh_s:
            self._drop(key, "old by now")
            return
        await self._write(key, series)

    async def _write(self, key: _Key, series: _Series) -> None:
        now, rate = self._clock.now(), self._rate
        mine = self._memory.objects.setdefault(key.uid, Bucket(rate.object_burst, now))
        self._memory.objects.move_to_end(key.uid)
        _forget(self._memory.objects)
        if not mine.take(now, rate.object_burst, rate.object_per_s):
            self._drop(key, "too many of this object")
            return
        if not self._whole.take(now, rate.burst, rate.per_s):
            await self._clock.sleep((1 - self._whole.left) / rate.per_s)
            self._whole.take(self._clock.now(), rate.burst, rate.per_s)
        count, last = series.count, series.last
        try:
            if series.written == 0:
                await self._create(series.event)
            else:
                await self._repeat(series, count, last)
        except KubeError as error:
            # 403 in a namespace that is being deleted, or no answer for long: the news is old by the next try.
            self._drop(key, str(error))
            return
        series.written, series.written_at = count, self._clock.now()

    async def _create(self, event: Event) -> None:
        try:
            await self._client.create(event)
        except KubeError as error:
            if error.reason != "AlreadyExists":  # our own, whose answer was lost
                raise

    async def _repeat(self, series: _Series, count: int, last: datetime) -> None:
        meta = series.event.metadata or ObjectMeta()
        body = {"series": EventSeries(count=count, lastObservedTime=last)}
        try:
            await self._client.patch(Event, meta.name or "", body, namespace=meta.namespace)
        except KubeError as error:
            if error.status != 404:  # the API server forgets events after an hour
                raise
            await self._create(series.event)


def pod_reference(pod: Pod) -> ObjectReference:
    """Return how an event names a pod."""
    meta = pod.metadata or ObjectMeta()
    return ObjectReference("v1", None, "Pod", meta.name, meta.namespace, meta.resourceVersion, meta.uid)


def node_reference(node: Node | str) -> ObjectReference:
    """Return how an event names a node: as kubelet does, its UID is its name, so that `describe node` finds it."""
    name = node if isinstance(node, str) else (node.metadata or ObjectMeta()).name
    return ObjectReference(apiVersion="v1", kind="Node", name=name, uid=name)


def _cut(text: str, limit: int) -> str:
    """Return at most `limit` bytes of text, whole characters, with an ellipsis where something is missing."""
    if len(text.encode()) <= limit:
        return text
    return text.encode()[: limit - 3].decode(errors="ignore") + "…"


def _forget(known: OrderedDict[object, object] | OrderedDict[_Key, _Series] | OrderedDict[str, Bucket]) -> None:
    while len(known) > KNOWN_MAX:
        known.popitem(last=False)
