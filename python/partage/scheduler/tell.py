"""Telling people, on the pod itself, why it waits and where it went.

    tell.pending(ask, found)        # event FilteringFailed and condition partage.io/Placed=False
    tell.placed(order, score)       # event BindingSucceed, and the condition turned where there was one
    tell.not_bound(order, why)      # event BindingFailed
    tell.stray(pod)                 # event OtherScheduler: it asks for shares, and another scheduler is to place it

The condition's reason is the code that refuses most nodes, its message says how many nodes lack what, which node comes
nearest, what it lacks and what would help. All of this only notes and returns: the extender never waits for it. A pod
that is placed at once, or within `SETTLE_S` of its first refusal, costs no write beside the event; one that waits
longer costs one, one more when it is placed, and one each time another code comes to the front (at most every
`AGAIN_S`) or the numbers are old (`REFRESH_S`). A condition that the API server does not take now is written later, an
event is not. What finds no room is dropped, and counted. Refusals go before successes, of which the newest go first:
where many pods are placed at once, those of the others, of pods that are gone and of pods placed more than `FRESH_S`
ago are dropped.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Final, Protocol

import structlog
from lightkube.models.core_v1 import ObjectReference
from lightkube.resources.core_v1 import PodStatus

from partage.kube import EventRecorder, PatchType, Rate, node_reference
from partage.model import KubeError, names
from partage.model.reasons import Code, remedy

if TYPE_CHECKING:
    from partage.kube import Client, Clock
    from partage.model import AskError
    from partage.model.ask import PodAsk
    from partage.model.pod import PodView
    from partage.scheduler.answers import Filtered
    from partage.scheduler.bind import BindOrder
    from partage.scheduler.views import WatchedPod

COMPONENT: Final = "partage.io/scheduler"
SETTLE_S: Final = 4.0  # before a condition says that a pod waits: till then kube-scheduler has tried a few times more
AGAIN_S: Final = 30.0  # before another code is told
REFRESH_S: Final = 300.0  # before the same code is told with other numbers
WRITES_PER_S: Final = 20.0
LATER_S: Final = 2.0
NOT_NOW: Final = frozenset({0, 429})
QUEUE_MAX: Final = 10_000
KNOWN_MAX: Final = 50_000
CODES_MAX: Final = 6
FAILURES: Final = Rate(burst=50, per_s=10.0)
FRESH_S: Final = 60.0
SUCCESSES: Final = Rate(burst=20, per_s=4.0, fresh_s=FRESH_S)  # kube-scheduler tells of every one: ours adds the score
STRAYS: Final = Rate(burst=20, per_s=2.0)
STRAY: Final = "OtherScheduler"
INVALID: Final = "InvalidRequest"
PLACED: Final = "Placed"

log = structlog.get_logger("partage.scheduler")


@dataclass(frozen=True, slots=True)
class Subject:
    """The pod that something is said of."""

    uid: str
    namespace: str
    name: str

    @property
    def reference(self) -> ObjectReference:
        """How an event names it."""
        return ObjectReference(apiVersion="v1", kind="Pod", name=self.name, namespace=self.namespace, uid=self.uid)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the condition is to say."""

    subject: Subject
    holds: bool
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class _Said:
    """What was said last of a pod that waits; `shown`: whether its condition may say so, not only an event."""

    reason: str
    at: float
    shown: bool = False


class Named(Protocol):
    """Whoever names a pod: an ask, an order, the arguments of bind."""

    @property
    def uid(self) -> str:
        """Its UID."""

    @property
    def namespace(self) -> str:
        """Its namespace."""

    @property
    def name(self) -> str:
        """Its name."""


class Tell:
    """All that one term says; owned by one event loop."""

    def __init__(self, client: Client, clock: Clock, instance: str, *, tells_success: bool = True) -> None:
        self._client = client
        self._clock = clock
        self._failures = EventRecorder(client, COMPONENT, instance=instance, rate=FAILURES, clock=clock)
        self._successes = EventRecorder(
            client, COMPONENT, instance=instance, rate=SUCCESSES, clock=clock, after=self._failures
        )
        self._strays = EventRecorder(
            client, COMPONENT, instance=instance, rate=STRAYS, clock=clock, after=self._failures
        )
        self._strayed: OrderedDict[str, None] = OrderedDict()
        self._tells_success = tells_success
        self._said: OrderedDict[str, _Said] = OrderedDict()
        self._soon: OrderedDict[str, tuple[float, Verdict]] = OrderedDict()  # and when they go into the queue
        self._queue: OrderedDict[str, Verdict] = OrderedDict()
        self._turned: OrderedDict[str, None] = OrderedDict()  # pods of which it was said that they are placed
        self._wake = asyncio.Event()
        self._settling = asyncio.Event()
        self._dropped = 0
        self.refusals: dict[str, int] = {}
        self.written = 0

    @property
    def waiting(self) -> int:
        """How many pods wait, as far as was told."""
        return len(self._said)

    @property
    def dropped(self) -> int:
        """How many events and conditions found no room."""
        return self._dropped + self._failures.dropped + self._successes.dropped + self._strays.dropped

    def pending(self, ask: PodAsk, found: Filtered) -> None:
        """Say why no node takes a pod; nothing where that was said a moment ago."""
        counts = found.counts()
        reason = str(next(iter(counts), "NoNodes"))
        self.refusals[reason] = self.refusals.get(reason, 0) + 1
        subject = _subject(ask)
        if not self._is_news(subject, reason):
            return
        shown = [f"{number} nodes {code}" if number > 1 else f"1 node {code}" for code, number in counts.items()]
        more = [] if len(shown) <= CODES_MAX else [f"{len(shown) - CODES_MAX} more reasons"]
        parts = [", ".join(shown[:CODES_MAX] + more) or "no node to ask about"]
        best = found.refused.nearest()
        if reason == Code.QUOTA:
            parts += [unfit.note for unfit in islice(found.refused.values(), 1) if unfit.note]
        elif best is not None:
            parts.append(f"{best.node} comes nearest: {best.detail}")
        if counts:
            parts.append(remedy(next(iter(counts))))
        self._refuse(subject, reason, "; ".join(parts))

    def meaningless(self, pod: PodView, error: AskError) -> None:
        """Say what is wrong with what a pod asks for."""
        meta = pod.metadata
        subject = Subject(meta.uid or "", meta.namespace or "", meta.name or "")
        self.refusals[INVALID] = self.refusals.get(INVALID, 0) + 1
        if self._is_news(subject, INVALID):
            self._refuse(subject, INVALID, str(error))

    def placed(self, order: BindOrder, score: int | None) -> None:
        """Say where a pod went; its condition is turned where it was told that it waits."""
        subject = _subject(order)
        scored = "" if score is None else f", score {score}"
        message = f"bound to node {order.node}{scored}"
        if self._tells_success:
            self._successes.event(subject.reference, "BindingSucceed", message, action="Binding")
        said = self._said.pop(order.uid, None)
        self._take_back(order.uid)
        if said is not None and said.shown:
            self._enqueue(Verdict(subject, holds=True, reason=PLACED, message=message))

    def not_bound(self, pod: Named, why: str) -> None:
        """Say that a pod could not be bound."""
        self._failures.event(_subject(pod).reference, "BindingFailed", why, warning=True, action="Binding")

    def unreadable(self, node: str, problem: str) -> None:
        """Say on a node that what it tells of its cards cannot be read."""
        self._failures.event(node_reference(node), "DevicesUnreadable", problem, warning=True, action="Reading")

    def stray(self, pod: WatchedPod) -> None:
        """Say once that a pod asks for shares and waits for a scheduler that gives none."""
        if pod.uid in self._strayed:
            return
        self._strayed[pod.uid] = None
        if len(self._strayed) > KNOWN_MAX:
            self._strayed.popitem(last=False)
        note = (
            f"{pod.subject} asks for shares, but schedulerName is {pod.scheduler}: left alone; only {names.SCHEDULER} "
            "gives shares, without its grant the containers do not start; make the pod anew without schedulerName"
        )
        self._strays.event(_subject(pod).reference, STRAY, note, warning=True, action="Scheduling", once=True)

    def waits_already(self, pod: Named, reason: str) -> None:
        """Take note of what a pod's condition said before this term, so that it is turned when the pod is placed."""
        said = self._said.get(pod.uid) or _Said(reason, self._clock.now())
        self._said[pod.uid] = replace(said, shown=True)

    def is_bound(self, pod: WatchedPod) -> None:
        """Turn what a placed pod still says of its waiting: its binding was not answered, or an earlier term's."""
        self._take_back(pod.uid)
        condition = pod.condition(names.CONDITION_PLACED)
        if condition is None or condition.status != "False" or pod.uid in self._turned:
            return
        if names.GRANT in pod.annotations:
            self._said.pop(pod.uid, None)
            self._enqueue(Verdict(_subject(pod), holds=True, reason=PLACED, message=f"bound to node {pod.node}"))

    def forget(self, uid: str) -> None:
        """Forget a pod that is gone."""
        self._turned.pop(uid, None)
        self._said.pop(uid, None)
        self._soon.pop(uid, None)
        self._queue.pop(uid, None)
        self._successes.forget(uid)
        self._strays.forget(uid)
        self._strayed.pop(uid, None)

    async def run(self) -> None:
        """Write what was told until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._failures.run(), name="events of failures")
            tasks.create_task(self._successes.run(), name="events of successes")
            tasks.create_task(self._strays.run(), name="events of strays")
            tasks.create_task(self._settle(), name="conditions to come")
            tasks.create_task(self._write_all(), name="conditions")

    # ---- how ---------------------------------------------------------------------------------------------------------

    def _is_news(self, subject: Subject, reason: str) -> bool:
        now, said = self._clock.now(), self._said.get(subject.uid)
        if said is not None:
            apart = REFRESH_S if said.reason == reason else AGAIN_S if said.shown else 0.0
            if now - said.at < apart:
                return False
        self._said[subject.uid] = _Said(reason, now, shown=said is not None and said.shown)
        if len(self._said) > KNOWN_MAX:
            self._said.popitem(last=False)
        return True

    def _refuse(self, subject: Subject, reason: str, message: str) -> None:
        note = f"{reason}: {message}"
        self._failures.event(subject.reference, "FilteringFailed", note, warning=True, action="Scheduling")
        verdict, known = Verdict(subject, holds=False, reason=reason, message=message), self._soon.get(subject.uid)
        if subject.uid in self._queue:
            self._enqueue(verdict)
        elif known is None and len(self._soon) >= QUEUE_MAX:
            self._dropped += 1
        else:
            self._soon[subject.uid] = (self._clock.now() + SETTLE_S if known is None else known[0]), verdict
            self._settling.set()

    def _take_back(self, uid: str) -> None:
        """Say nothing of a pod's waiting that was not written yet: it is placed."""
        self._soon.pop(uid, None)
        verdict = self._queue.get(uid)
        if verdict is not None and not verdict.holds:
            del self._queue[uid]

    async def _settle(self) -> None:
        """Put into the queue what is still so after a while."""
        while True:
            await self._settling.wait()
            self._settling.clear()
            while self._soon:
                uid, (due, verdict) = next(iter(self._soon.items()))
                now = self._clock.now()
                if due > now:
                    await self._clock.sleep(due - now)
                    continue  # it may be taken back by now
                del self._soon[uid]
                self._enqueue(verdict)

    def _enqueue(self, verdict: Verdict) -> None:
        """Queue a condition, in place of one that was not written yet."""
        if len(self._queue) >= QUEUE_MAX and verdict.subject.uid not in self._queue:
            self._dropped += 1
            return
        self._queue[verdict.subject.uid] = verdict
        if verdict.holds:
            self._turned[verdict.subject.uid] = None
            if len(self._turned) > KNOWN_MAX:
                self._turned.popitem(last=False)
        self._wake.set()

    async def _write_all(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._queue:
                uid, verdict = self._queue.popitem(last=False)
                said = self._said.get(uid)
                if said is not None:
                    self._said[uid] = replace(said, shown=True)
                if await self._write(verdict):
                    await self._clock.sleep(1 / WRITES_PER_S)
                else:
                    self._queue.setdefault(uid, verdict)  # unless there is news by now
                    await self._clock.sleep(LATER_S)

    async def _write(self, verdict: Verdict) -> bool:
        """Write a condition; return whether that is done, or will never be."""
        subject = verdict.subject
        condition = {
            "type": names.CONDITION_PLACED,
            "status": "True" if verdict.holds else "False",
            "reason": verdict.reason,
            "message": verdict.message,
            "lastTransitionTime": self._clock.date().replace(microsecond=0),
        }
        body = {"metadata": {"uid": subject.uid}, "status": {"conditions": [condition]}}
        try:
            await self._client.patch(
                PodStatus, subject.name, body, namespace=subject.namespace, kind=PatchType.STRATEGIC
            )
        except KubeError as error:
            log.info("a condition was not written", pod=f"{subject.namespace}/{subject.name}", problem=str(error))
            if error.status in NOT_NOW or error.status >= 500:
                return False
            self._dropped += 1  # 404, 409: the pod is gone
            self._turned.pop(subject.uid, None)
            return True
        self.written += 1
        return True


def _subject(pod: Named) -> Subject:
    return Subject(pod.uid, pod.namespace, pod.name)
