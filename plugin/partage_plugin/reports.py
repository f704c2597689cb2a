"""Events and conditions of pods, sent from queues: nobody on the way to a container waits for the API server.

What was said is not said again (a condition is written only where it changes), so a node on which nothing happens
writes nothing. Events are news and may be dropped (partage.kube.events); conditions are tried again until they stand
(condition_writer.py, which says in which order and what can be lost). What can go wrong is told there.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from partage.kube import Condition, EventRecorder, SystemClock, pod_reference, set_conditions
from partage_plugin.calls import Calls
from partage_plugin.condition_writer import ConditionWriter

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from partage.kube import Client
    from partage.kube.clock import Clock
    from partage_plugin.kubepods import ClusterPods
    from partage_plugin.ports import Pod

COMPONENT: Final = "partage.io/agent"
ACTION: Final = "HandOver"


class KubeReports:
    """Reports of one agent; `run` sends, when kubelet pauses."""

    def __init__(
        self,
        client: Client,
        pods: ClusterPods,
        node: str,
        *,
        calls: Calls | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._client = client
        self._pods = pods
        self._clock = clock or SystemClock()
        self._recorder = EventRecorder(client, COMPONENT, instance=node, clock=self._clock)
        self._conditions = ConditionWriter(self._set, self._clock, calls or Calls(self._clock))

    def event(self, pod: Pod, reason: str, message: str, *, warning: bool) -> None:
        """Put an event onto the pod."""
        found = self._pods.kube_pod(pod.uid)
        if found is not None:
            self._recorder.event(pod_reference(found), reason, message, warning=warning, action=ACTION)

    def condition(self, pod: Pod, kind: str, *, holds: bool, reason: str, message: str) -> None:
        """Set a condition of the pod's status."""
        self._conditions.want(pod.uid, Condition(kind, holds=holds, reason=reason, message=message))

    async def run(self) -> None:
        """Send until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._recorder.run(), name="events")
            tasks.create_task(self._conditions.run(), name="conditions")

    async def _set(self, uid: str, wanted: Sequence[Condition], written: Mapping[str, Condition | None]) -> bool:
        pod = self._pods.kube_pod(uid)  # None: it is gone by now
        return pod is not None and await set_conditions(self._client, pod, wanted, self._clock.date(), written=written)
