"""Events and conditions of pods, sent from queues: nobody on the way to a container waits for the API server.

What was said is not said again (a condition is written only where it changes), so a node on which nothing happens
writes nothing. Of several conditions of one kind that wait for the same pod, the latest is sent. What can go wrong: the
API server refuses or is away; what could not be said is logged, and said when it comes up again.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

import structlog

from partage.kube import Condition, EventRecorder, SystemClock, pod_reference, set_condition
from partage.model import KubeError

if TYPE_CHECKING:
    from partage.kube import Client
    from partage_plugin.kubepods import ClusterPods
    from partage_plugin.ports import Pod

COMPONENT: Final = "partage.io/agent"
REMEMBERED: Final = 4096
ACTION: Final = "HandOver"

log = structlog.get_logger("partage.reports")


class KubeReports:
    """Reports of one agent; `run` sends."""

    def __init__(self, client: Client, pods: ClusterPods, node: str) -> None:
        self._client = client
        self._pods = pods
        self._recorder = EventRecorder(client, COMPONENT, instance=node)
        self._clock = SystemClock()
        self._waiting: OrderedDict[tuple[str, str], Condition] = OrderedDict()  # by pod UID and kind
        self._said: OrderedDict[tuple[str, str], Condition] = OrderedDict()
        self._wake = asyncio.Event()

    def event(self, pod: Pod, reason: str, message: str, *, warning: bool) -> None:
        """Put an event onto the pod."""
        found = self._pods.kube_pod(pod.uid)
        if found is not None:
            self._recorder.event(pod_reference(found), reason, message, warning=warning, action=ACTION)

    def condition(self, pod: Pod, kind: str, *, holds: bool, reason: str, message: str) -> None:
        """Set a condition of the pod's status."""
        key, wanted = (pod.uid, kind), Condition(kind, holds=holds, reason=reason, message=message)
        if self._waiting.get(key, self._said.get(key)) == wanted:
            return
        self._waiting[key] = wanted
        self._wake.set()

    async def run(self) -> None:
        """Send until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._recorder.run(), name="events")
            tasks.create_task(self._send(), name="conditions")

    async def _send(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._waiting:
                (uid, kind), wanted = self._waiting.popitem(last=False)
                await self._write(uid, kind, wanted)

    async def _write(self, uid: str, kind: str, wanted: Condition) -> None:
        pod = self._pods.kube_pod(uid)
        if pod is None:
            return  # it is gone by now
        try:
            await set_condition(self._client, pod, wanted, self._clock.date())
        except KubeError as error:
            log.warning("a condition could not be set", uid=uid, kind=kind, reason=wanted.reason, error=str(error))
            return
        self._said[uid, kind] = wanted
        self._said.move_to_end((uid, kind))
        while len(self._said) > REMEMBERED:
            self._said.popitem(last=False)
