"""Binding: one post to `pods/binding` carries the node and the grant, so that both are there or neither.

    outcome = await binder.bind(BindOrder(...))

The Binding names the pod's UID, so a successor of the same name is never bound by it, and a pod can be bound only once:
the same order may therefore be sent again. What comes of it:

- bound: until the watch shows the pod bound, the pod stays *open* here, with its node and its grant; one that went
  while the watch was broken is never shown, so the pod is read where that takes longer than `UNKNOWN_S`;
- refused (404, 409, 422, a policy): nothing happened and nothing will;
- not posted, since this replica is not the leader any more: as refused, or unknown where an earlier post may happen;
- unknown: no answer, or an error in the midst of it. It may have happened, it may happen yet. The pod stays open, its
  cards stay promised, and the next attempt sends the same order again, to the same node, until one of these is certain:
  the server says bound or refused, the watch shows the pod bound or gone, or it was unbound still `UNKNOWN_S` after the
  last post, longer than an API server works on a request.

What can go wrong is thus an outcome, not an exception.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

import msgspec
import structlog

from partage.model import KubeError, names
from partage.model.hami_twin import ANNOTATION as TWIN
from partage.scheduler.views import WatchedPod

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from partage.kube import Client, Clock
    from partage.kube.poster import Answer

UNKNOWN_S: Final = 120.0
TOO_MANY: Final = 429
NOT_FOUND: Final = 404
CONFLICT: Final = 409
TRIES: Final = 4
WAIT_S: Final = 0.25  # doubled with each try after 429, and where the server could not be reached
WAIT_MAX_S: Final = 4.0
LATE: Final = "not posted: this replica is not the leader any more, or cannot tell"
HAMI_NODE: Final = "hami.io/vgpu-node"
HAMI_TIME: Final = "hami.io/vgpu-time"
HAMI_BIND_TIME: Final = "hami.io/bind-time"
HAMI_PHASE: Final = "hami.io/bind-phase"
HAMI_TO_ALLOCATE: Final = "hami.io/vgpu-devices-to-allocate"

log = structlog.get_logger("partage.scheduler")


class Result(enum.Enum):
    """What became of an order."""

    BOUND = "bound"
    REFUSED = "refused"
    GONE = "gone"
    UNKNOWN = "unknown"
    UNBOUND = "unbound"  # of a look at the pod: nothing has happened so far


@dataclass(frozen=True, slots=True)
class Outcome:
    """A result, and in words why it is not `BOUND`."""

    result: Result
    message: str = ""


@dataclass(frozen=True, slots=True)
class BindOrder:
    """Which pod goes to which node, with which grant; `grant` and `twin` are texts, empty for a pod without shares."""

    uid: str
    namespace: str
    name: str
    node: str
    grant: str = ""
    twin: str = ""
    bound_at: int = 0  # Unix µs

    @property
    def path(self) -> str:
        """Where it is posted to."""
        return f"/api/v1/namespaces/{self.namespace}/pods/{self.name}/binding"

    @property
    def annotations(self) -> dict[str, str]:
        """What the API server copies to the pod: the grant, and what readers of HAMi's annotations look for.

        HAMi's phase is `success` and nothing is left to allocate: its node plugin has no part in this.
        """
        if not self.grant:
            return {}
        found = {names.GRANT: self.grant}
        if self.twin.strip(";"):
            seconds = str(self.bound_at // 1_000_000)
            found |= {
                TWIN: self.twin,
                HAMI_TO_ALLOCATE: ";" * self.twin.count(";"),
                HAMI_NODE: self.node,
                HAMI_TIME: seconds,
                HAMI_BIND_TIME: seconds,
                HAMI_PHASE: "success",
            }
        return found

    def body(self) -> bytes:
        """Return the Binding."""
        metadata = {"name": self.name, "namespace": self.namespace, "uid": self.uid, "annotations": self.annotations}
        target = {"apiVersion": "v1", "kind": "Node", "name": self.node}
        return msgspec.json.encode({"apiVersion": "v1", "kind": "Binding", "metadata": metadata, "target": target})


@dataclass(slots=True)
class Open:
    """An order whose end the watch has not shown yet.

    `sent_at`: when it was posted last; `busy`: is being posted; `doubtful`: one of its posts may happen yet.
    """

    order: BindOrder
    sent_at: float
    busy: bool = True
    doubtful: bool = False
    is_bound: bool = False


class Posts(Protocol):
    """`kube.poster.Poster`, or a test's."""

    async def post(self, path: str, body: bytes) -> Answer:
        """Send one JSON body, once."""


class Binder:
    """All orders of one term; `holds`: whether that term holds still, asked before each post."""

    def __init__(self, poster: Posts, client: Client, clock: Clock, holds: Callable[[], Awaitable[bool]]) -> None:
        self._poster = poster
        self._client = client
        self._clock = clock
        self._holds = holds
        self._open: dict[str, Open] = {}

    def __len__(self) -> int:
        return len(self._open)

    def order_of(self, uid: str) -> BindOrder | None:
        """Return the open order of a pod: wherever it goes, it goes there."""
        found = self._open.get(uid)
        return None if found is None else found.order

    def is_busy(self, uid: str) -> bool:
        """Whether a pod's order is being posted right now."""
        found = self._open.get(uid)
        return found is not None and found.busy

    @property
    def unknown(self) -> int:
        """How many orders have no known end and are not being posted."""
        return sum(1 for one in self._open.values() if not one.busy and not one.is_bound)

    async def bind(self, order: BindOrder) -> Outcome:
        """Post an order until it is answered, refused or has been tried often enough."""
        entry = self._open.get(order.uid)
        if entry is None:
            entry = self._open[order.uid] = Open(order, self._clock.now())
        entry.busy = True
        try:
            outcome = await self._post(entry)
        finally:
            entry.busy = False  # also where the caller hung up: it is as unknown as any then
        if outcome.result is Result.BOUND:
            entry.is_bound = True
        elif outcome.result is not Result.UNKNOWN:
            self._open.pop(order.uid, None)
        return outcome

    def left(self) -> Iterator[BindOrder]:
        """Yield the orders that may happen yet when the term ends."""
        return (one.order for one in self._open.values() if not one.is_bound)

    def inherit(self, order: BindOrder) -> None:
        """Keep an order open that an earlier term of the same number left."""
        self._open[order.uid] = Open(order, self._clock.now(), busy=False, doubtful=True)

    def saw(self, pod: WatchedPod) -> None:
        """Take note of a pod as the watch shows it: one that is bound is nobody's question any more."""
        if pod.node:
            self._open.pop(pod.uid, None)

    def gone(self, uid: str) -> None:
        """Take note that a pod is gone."""
        self._open.pop(uid, None)

    def lost(self) -> Iterator[BindOrder]:
        """Yield orders of which the watch should have shown the end by now."""
        now = self._clock.now()
        for entry in tuple(self._open.values()):
            if not entry.busy and now - entry.sent_at > UNKNOWN_S:
                yield entry.order

    async def settle(self, order: BindOrder) -> Outcome | None:
        """Return what became of such an order, None: nothing that was not known; it stays open while the pod may be."""
        outcome = await self._look(order, "no answer in time")
        entry = self._open.get(order.uid)
        if entry is None:  # the watch was faster
            return None
        if entry.is_bound and outcome.result is not Result.GONE:
            entry.sent_at = self._clock.now()
            return None
        if outcome.result is Result.UNBOUND:
            outcome = Outcome(Result.REFUSED, outcome.message)
        if outcome.result is Result.BOUND:
            entry.is_bound, entry.sent_at = True, self._clock.now()
        elif outcome.result is not Result.UNKNOWN:
            self._open.pop(order.uid, None)
        return outcome

    # ---- how ---------------------------------------------------------------------------------------------------------

    async def _post(self, entry: Open) -> Outcome:
        order, body, wait = entry.order, entry.order.body(), WAIT_S
        last = Outcome(Result.REFUSED)
        for attempt in range(TRIES):
            if attempt:
                await self._clock.sleep(wait)
            if not await self._holds():
                return Outcome(Result.UNKNOWN if entry.doubtful else Result.REFUSED, LATE)
            entry.sent_at = self._clock.now()
            answer = await self._poster.post(order.path, body)
            if answer.is_done:
                return Outcome(Result.BOUND)
            if answer.is_sent and answer.status != TOO_MANY and not answer.is_unknown:
                return await self._refused(entry, answer)
            if answer.is_unknown:
                entry.doubtful = True
                log.warning("a bind has no known end", pod=f"{order.namespace}/{order.name}", answer=str(answer))
            last = Outcome(Result.UNKNOWN if entry.doubtful else Result.REFUSED, str(answer))
            wait = min(WAIT_MAX_S, max(WAIT_S * (1 << attempt), answer.retry_after_s))
        return last

    async def _refused(self, entry: Open, answer: Answer) -> Outcome:
        """Judge a refusal, which says nothing about an earlier post of the same order."""
        if answer.status == NOT_FOUND:
            return Outcome(Result.GONE, str(answer))
        if answer.status == CONFLICT:
            outcome = await self._look(entry.order, str(answer))
            if outcome.result is not Result.UNBOUND:
                return outcome
        return Outcome(Result.UNKNOWN if entry.doubtful else Result.REFUSED, str(answer))

    async def _look(self, order: BindOrder, said: str) -> Outcome:
        """Read the pod: the one read there is, and only where an answer does not tell what happened."""
        try:
            pod = await self._client.get(WatchedPod, order.name, namespace=order.namespace)
        except KubeError as error:
            if error.status == NOT_FOUND:
                return Outcome(Result.GONE, said)
            return Outcome(Result.UNKNOWN, f"{said}; and the pod cannot be read: {error}")
        if pod.uid != order.uid:
            return Outcome(Result.GONE, said)
        if not pod.node:
            return Outcome(Result.UNBOUND, f"{said}; the pod is unbound")
        if pod.node == order.node and pod.annotations.get(names.GRANT, "") == order.grant:
            return Outcome(Result.BOUND)
        return Outcome(Result.REFUSED, f"{said}; the pod is bound to {pod.node}")
