"""Kubelet's PodResources API: which containers of which pods hold which of our ids.

Only a cross-check beside the checkpoint: it leaves out ordinary init containers and knows no UID. It is made by `Get`,
of the one pod that the checkpoint names (on by default since Kubernetes 1.34, for good since 1.36): that looks and
changes nothing. `List` does: where a pod has ended, kubelet counts anew which devices are free, and takes for free what
it has just chosen for a container, of any plugin, and asks that plugin for (1.34 to 1.37); the next container gets it
as well. So `List` is for where the checkpoint cannot be read and it is all there is; then only what is not ambiguous is
believed. A kubelet without `Get` (by its feature gates) is not cross-checked: the checkpoint is its own word, too.

What can go wrong: kubelet does not answer within a second, does not know the pod, or refuses (it lets ten asks through
at once, then one each 10 ms, whoever asks): None; a cross-check that cannot be made is no refusal, neither of who asked
nor of who asks beside it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

import grpc
import structlog

from partage_plugin.proto.podresources.v1 import api_pb2, api_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable
    from pathlib import Path

PATIENCE_S: Final = 1.0
_SIZE_MAX: Final = 16 << 20  # bytes of an answer: a node's pods with all their devices

_Answer = TypeVar("_Answer")

log = structlog.get_logger("partage.kubelet")


@dataclass(frozen=True, slots=True)
class Holder:
    """A container that holds ids of our resource."""

    namespace: str
    pod: str
    container: str
    ids: frozenset[str]


@dataclass(eq=False, slots=True)
class _Line:
    """A connection, and how many wait for an answer by it: to close it ends their waiting."""

    channel: grpc.aio.Channel
    waiting: int = 0


class PodResources:
    """A client of the socket at `path`; the connection is made when first asked, and again when kubelet is another."""

    def __init__(self, path: Path, resource: str) -> None:
        self._path = path
        self._resource = resource
        self._line: _Line | None = None

    async def of_pod(self, namespace: str, name: str) -> tuple[Holder, ...] | None:
        """Return the containers of the pod that has this name now; None where kubelet does not say.

        It may be another pod than one that had the name before.
        """
        request = api_pb2.GetPodResourcesRequest(pod_name=name, pod_namespace=namespace)
        answer = await self._ask(lambda kubelet: kubelet.Get(request, timeout=PATIENCE_S))
        return None if answer is None else tuple(self._holders((answer.pod_resources,)))

    async def holding(self, ids: Iterable[str]) -> tuple[Holder, ...] | None:
        """Return the containers of any pod that hold any of these ids; None where kubelet does not answer."""
        wanted = frozenset(ids)
        answer = await self._ask(lambda kubelet: kubelet.List(api_pb2.ListPodResourcesRequest(), timeout=PATIENCE_S))
        return None if answer is None else tuple(h for h in self._holders(answer.pod_resources) if h.ids & wanted)

    async def _ask(
        self, question: Callable[[api_pb2_grpc.PodResourcesListerStub], Awaitable[_Answer]]
    ) -> _Answer | None:
        line = self._line = self._line or self._dial()
        line.waiting += 1
        try:
            return await question(api_pb2_grpc.PodResourcesListerStub(line.channel))
        except grpc.aio.AioRpcError as error:
            log.info("no word from PodResources", socket=str(self._path), error=error.details())
            if self._line is line:
                self._line = None  # the next one is dialled at once, without a back-off from this failure
            return None
        finally:
            line.waiting -= 1
            if line is not self._line and line.waiting == 0:
                await line.channel.close()

    def _dial(self) -> _Line:
        options = [("grpc.max_receive_message_length", _SIZE_MAX), ("grpc.enable_http_proxy", 0)]
        return _Line(grpc.aio.insecure_channel(f"unix://{self._path}", options=options))

    def _holders(self, pods: Iterable[api_pb2.PodResources]) -> Iterable[Holder]:
        for pod in pods:
            for container in pod.containers:
                mine = (devices for devices in container.devices if devices.resource_name == self._resource)
                held = frozenset(device for devices in mine for device in devices.device_ids)
                if held:
                    yield Holder(pod.namespace, pod.name, container.name, held)

    async def close(self) -> None:
        """Let the connection go, whoever waits."""
        line, self._line = self._line, None
        if line is not None:
            await line.channel.close()
