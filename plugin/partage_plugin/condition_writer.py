"""Conditions of pods on their way to the API server: off the way of containers, in order, tried again, one by one.

Owned by `reports.KubeReports`, whose task `run` is. `want` only notes; nothing is sent while kubelet waits for us: a
request is made once kubelet has been quiet for a moment, and after a second also beside its calls, though then with
pauses, for in that time a container could start. However many pods come together, `AT_ONCE` are written to at once and
`PER_S` a second after that: every node's agent does this, at one API server.

Order: a pod's conditions are one request, the latest word of each kind; two requests are never under way at once, and
what was said stays known until it is certain. So what stands at last on a pod is what was wanted last of it.
Loss: what waits lives in memory alone. An agent that ends before it was sent says it again when it is back, since it
opens anew what kubelet's checkpoint names; so does one that has given up (`TRIES`) as soon as the word changes. A pod
that is gone needs none. Bounded: `PODS_MAX` pods wait at most, the one that waits longest goes first, with a line in
the log. What can go wrong: the API server is away (tried again with growing waits) or refuses (likewise, since a
missing right may be given; but not what no repetition can mend).
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Final, Protocol

import structlog

from partage.kube import Bucket
from partage.kube.backoff import Backoff
from partage.model import KubeError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from partage.kube import Condition
    from partage_plugin.calls import Calls
    from partage_plugin.ports import Clock

APART_S: Final = 0.1  # between two requests while kubelet is not
AT_ONCE: Final = 25  # as events are
PER_S: Final = 10.0
PODS_MAX: Final = 4096
REMEMBERED: Final = 4096
TRIES: Final = 20
WAITS: Final = Backoff(0.5, 60.0)
_FOR_EVER: Final = frozenset({400, 404, 409, 422})  # gone, another pod of that name, or not to be written at all

log = structlog.get_logger("partage.reports")


class Send(Protocol):
    """Who writes onto a pod: one request; raises KubeError."""

    async def __call__(self, uid: str, wanted: Sequence[Condition], written: Mapping[str, Condition | None]) -> bool:
        """Set these conditions and return whether any differed; `written`: as `set_conditions` of partage.kube."""


@dataclass(slots=True)
class _Waiting:
    """What a pod is to be told; `tries`: how often that failed."""

    wanted: dict[str, Condition] = field(default_factory=dict)  # by kind
    tries: int = 0


class ConditionWriter:
    """The one writer of conditions; owned by one event loop."""

    def __init__(self, send: Send, clock: Clock, calls: Calls, random: Random | None = None) -> None:
        self._send = send
        self._clock = clock
        self._calls = calls
        self._random = random or Random()  # noqa: S311 -- jitter is no secret
        self._waiting: OrderedDict[str, _Waiting] = OrderedDict()  # by pod UID
        self._said: OrderedDict[str, dict[str, Condition | None]] = OrderedDict()  # None: nobody knows
        self._wake = asyncio.Event()
        self._failures = 0
        self._writes = Bucket(AT_ONCE, clock.now())

    @property
    def waiting(self) -> int:
        """How many pods wait to be told something."""
        return len(self._waiting)

    def want(self, uid: str, condition: Condition) -> None:
        """Let a pod have this condition; one that it has already, or waits for, is no change."""
        waiting = self._waiting.get(uid)
        if waiting is not None and condition.kind in waiting.wanted:
            waiting.wanted[condition.kind] = condition
            return
        if self._said.get(uid, {}).get(condition.kind) == condition:
            return
        if waiting is None:
            waiting = self._waiting[uid] = _Waiting()
        waiting.wanted[condition.kind] = condition
        if len(self._waiting) > PODS_MAX:
            lost, _ = self._waiting.popitem(last=False)
            log.error("too many pods wait for a condition; one is not told", uid=lost, limit=PODS_MAX)
        self._wake.set()

    async def run(self) -> None:
        """Send until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            await self._calls.until_quiet()
            calls = self._calls.begun
            while self._waiting:
                due = self._writes.due(self._clock.now(), AT_ONCE, PER_S)
                if due:
                    await self._clock.sleep(due)
                await self._calls.until_none()
                pause = await self._next()
                before, calls = calls, self._calls.begun
                if pause or calls != before:
                    await self._clock.sleep(max(pause, APART_S))

    async def _next(self) -> float:
        """Tell the pod that waits longest; return the seconds to wait after that because it failed."""
        uid, waiting = self._waiting.popitem(last=False)
        said = self._said_of(uid)
        before = {kind: said[kind] for kind in waiting.wanted if kind in said}
        said |= waiting.wanted  # who changes their mind meanwhile is heard
        try:
            is_written = await self._send(uid, list(waiting.wanted.values()), before)
        except KubeError as error:
            self._writes.left -= 1
            said |= dict.fromkeys(waiting.wanted)
            return self._failed(uid, waiting, error)
        self._writes.left -= is_written
        self._failures = 0
        return 0.0

    def _said_of(self, uid: str) -> dict[str, Condition | None]:
        said = self._said.setdefault(uid, {})
        self._said.move_to_end(uid)
        while len(self._said) > REMEMBERED:
            self._said.popitem(last=False)
        return said

    def _failed(self, uid: str, waiting: _Waiting, error: KubeError) -> float:
        """Put back what could not be sent, unless newer words wait already; return the seconds to wait."""
        waiting.tries += 1
        if error.status in _FOR_EVER or waiting.tries >= TRIES:
            log.warning("conditions cannot be set", uid=uid, kinds=sorted(waiting.wanted), error=str(error))
            return 0.0
        newer = self._waiting.get(uid)
        if newer is None:
            self._waiting[uid] = waiting
        else:
            newer.wanted, newer.tries = waiting.wanted | newer.wanted, waiting.tries
        self._failures += 1
        wait = WAITS.wait(self._failures, self._random)
        log.info("conditions are tried again", uid=uid, seconds=round(wait, 1), error=str(error))
        return wait
