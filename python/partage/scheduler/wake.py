"""Has refused pods tried again: kube-scheduler does so when it hears of a change, and some changes only we hear of.

A quota that is raised is nothing to kube-scheduler, and of a pod that ends it may hear before us, asks, is refused, and
then leaves the pod for minutes. So pods that were refused are asked about again here, which is cheap, and one that fits
by now is touched: an annotation with the time makes kube-scheduler put it in its queue. A pod that goes on fitting is
touched at growing distances, for then other things keep it waiting of which we do not know. What can go wrong: the API
server does not take the annotation; the log says so, and the next time comes, unless the pod is gone.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import structlog

from partage.model import KubeError, names
from partage.scheduler.views import WatchedPod

if TYPE_CHECKING:
    from collections.abc import Callable

    from partage.kube import Client, Clock
    from partage.model.ask import PodAsk
    from partage.model.pod import PodView

AGAIN: Final = f"{names.PREFIX}again"
EVERY_S: Final = 1.0
FIRST_S: Final = 2.0  # after a refusal: kube-scheduler tries by itself within a second where it knows of a change
MOST_S: Final = 300.0  # as kube-scheduler itself tries again whatever happens
AT_ONCE: Final = 100  # pods looked at each time
KNOWN_MAX: Final = 20_000
GONE: Final = frozenset({404, 409})

log = structlog.get_logger("partage.scheduler")


@dataclass(slots=True)
class _Waiting:
    """A pod that was refused: not to be touched before `due`, and `wait` seconds after that once more."""

    pod: PodView
    ask: PodAsk
    due: float
    wait: float


class Waker:
    """All refused pods of one term; owned by one event loop. `fits`: whether some node takes a pod now."""

    def __init__(self, client: Client, clock: Clock, fits: Callable[[PodView, PodAsk], bool]) -> None:
        self._client = client
        self._clock = clock
        self._fits = fits
        self._waiting: OrderedDict[str, _Waiting] = OrderedDict()
        self.touched = 0

    def refused(self, pod: PodView, ask: PodAsk) -> None:
        """Take note that no node takes a pod."""
        known = self._waiting.get(ask.uid)
        due = self._clock.now() + FIRST_S
        self._waiting[ask.uid] = _Waiting(
            pod, ask, max(due, known.due) if known else due, known.wait if known else FIRST_S
        )
        if len(self._waiting) > KNOWN_MAX:
            self._waiting.popitem(last=False)

    def forget(self, uid: str) -> None:
        """Take note that a pod is bound, or gone."""
        self._waiting.pop(uid, None)

    async def run(self) -> None:
        """Look at refused pods until cancelled."""
        while True:
            await self._clock.sleep(EVERY_S)
            for uid in list(self._waiting)[:AT_ONCE]:
                await self._look(uid)

    async def _look(self, uid: str) -> None:
        one = self._waiting.get(uid)
        if one is None:
            return
        self._waiting.move_to_end(uid)
        now = self._clock.now()
        if one.due > now:
            return
        if not self._fits(one.pod, one.ask):
            one.wait = FIRST_S
            return
        one.due, one.wait = now + one.wait, min(MOST_S, 2 * one.wait)
        body = {"metadata": {"uid": uid, "annotations": {AGAIN: self._clock.date().isoformat(timespec="seconds")}}}
        try:
            await self._client.patch(WatchedPod, one.ask.name, body, namespace=one.ask.namespace)
        except KubeError as error:
            log.info("not touched", pod=one.ask.subject, error=str(error))
            if error.status in GONE:
                self.forget(uid)
            return
        self.touched += 1
        await asyncio.sleep(0)
