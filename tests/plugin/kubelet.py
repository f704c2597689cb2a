"""A kubelet in the test's own process, over real unix sockets: registration, device manager, checkpoint, PodResources.

It does what kubelet 1.34 to 1.37 was seen to do (order of calls, what it writes when); the cluster layer runs the same
agent against the real one.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import grpc

from partage_plugin.kubelet.checkpoint import CHECKPOINT_FILE
from partage_plugin.kubelet.register import KUBELET_SOCKET
from partage_plugin.proto.deviceplugin.v1beta1 import api_pb2, api_pb2_grpc
from partage_plugin.proto.podresources.v1 import api_pb2 as resources_pb2
from partage_plugin.proto.podresources.v1 import api_pb2_grpc as resources_grpc

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

RESOURCE = "nvidia.com/gpu"
HANG_S = 200  # ends what hangs; a busy machine is slow


@dataclass
class Entry:
    """What kubelet remembers of one container."""

    uid: str
    pod: str
    container: str
    ids: tuple[str, ...]
    answer: api_pb2.ContainerAllocateResponse
    is_init: bool = False

    @property
    def name(self) -> str:
        return self.answer.cdi_devices[0].name.partition("=")[2]

    @cached_property
    def in_resources(self) -> resources_pb2.PodResources:
        namespace, _, name = self.pod.partition("/")
        pod = resources_pb2.PodResources(name=name, namespace=namespace)
        pod.containers.add(name=self.container).devices.add(resource_name=RESOURCE, device_ids=self.ids)
        return pod


@dataclass
class Kubelet(api_pb2_grpc.RegistrationServicer, resources_grpc.PodResourcesListerServicer):
    """Start it with `start`; `restart` is another process as seen from outside."""

    directory: Path
    pod_resources: Path
    entries: list[Entry] = field(default_factory=list)
    requests: list[api_pb2.RegisterRequest] = field(default_factory=list)
    devices: dict[str, api_pb2.Device] = field(default_factory=dict)
    lists_init: bool = False
    answers_resources: bool = True
    gives_resources: bool = True  # whether it has PodResources' Get
    writes_at_lists: bool = False  # its checkpoint, as the real one does

    def __post_init__(self) -> None:
        self._server: grpc.aio.Server | None = None
        self._channel: grpc.aio.Channel | None = None
        self._watching: asyncio.Task[None] | None = None
        self.changed = asyncio.Condition()
        self.lists = 0
        self.listed_resources = 0  # a List of PodResources is not without effect
        self.names: set[str] = set()  # of sockets that it was told

    async def start(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        for path in self.directory.glob("*.sock"):
            path.unlink()
        self.pod_resources.parent.mkdir(parents=True, exist_ok=True)
        self.pod_resources.unlink(missing_ok=True)
        self._server = grpc.aio.server()
        api_pb2_grpc.add_RegistrationServicer_to_server(self, self._server)
        resources_grpc.add_PodResourcesListerServicer_to_server(self, self._server)
        self._server.add_insecure_port(f"unix://{self.pod_resources}")
        self._server.add_insecure_port(f"unix://{self.directory / KUBELET_SOCKET}")
        await self._server.start()

    async def stop(self) -> None:
        """Die: the sockets stay behind, as after kill -9."""
        await self._drop_plugin()
        if self._server is not None:
            sockets = [self.directory / KUBELET_SOCKET, self.pod_resources]
            kept = [(path, path.with_name(path.name + ".kept")) for path in sockets if path.exists()]
            for path, aside in kept:
                os.link(path, aside)
            await self._server.stop(0)
            for path, aside in kept:
                aside.rename(path)
        self._server = None

    async def restart(self) -> None:
        self.names.clear()
        await self.stop()
        await self.start()

    async def _drop_plugin(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        if self._channel is not None:
            await self._channel.close()
        self._watching = self._channel = None
        self.devices = {}

    # ---- what the plugin calls

    async def Register(self, request, context):  # type: ignore[no-untyped-def]  # noqa: N802
        if request.endpoint in self.names:
            await context.abort(grpc.StatusCode.UNKNOWN, "device plugin already connected")
        self.names.add(request.endpoint)
        await self._drop_plugin()
        self.requests.append(request)
        self._channel = grpc.aio.insecure_channel(f"unix://{self.directory / request.endpoint}")
        await api_pb2_grpc.DevicePluginStub(self._channel).GetDevicePluginOptions(api_pb2.Empty(), timeout=HANG_S)
        self._watching = asyncio.create_task(self._follow(self._channel))
        return api_pb2.Empty()

    def follow_no_more(self) -> None:
        """Let the list go, and not the plugin."""
        assert self._watching is not None, "no plugin has registered"
        self._watching.cancel()

    async def _follow(self, channel: grpc.aio.Channel) -> None:
        with suppress(grpc.aio.AioRpcError):
            async for answer in api_pb2_grpc.DevicePluginStub(channel).ListAndWatch(api_pb2.Empty()):
                async with self.changed:
                    self.devices = {device.ID: device for device in answer.devices}
                    self.lists += 1
                    if self.writes_at_lists:
                        self.write_checkpoint()
                    self.changed.notify_all()

    async def List(self, request, context):  # type: ignore[no-untyped-def]  # noqa: N802
        self.listed_resources += 1
        if not self.answers_resources:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "not now")
        listed = (entry for entry in self.entries if self.lists_init or not entry.is_init)
        return resources_pb2.ListPodResourcesResponse(pod_resources=[entry.in_resources for entry in listed])

    async def Get(self, request, context):  # type: ignore[no-untyped-def]  # noqa: N802
        if not self.answers_resources:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "not now")
        if not self.gives_resources:
            await context.abort(grpc.StatusCode.UNKNOWN, "PodResources API Get method disabled")
        asked = f"{request.pod_namespace}/{request.pod_name}"
        named = [entry for entry in self.entries if entry.pod == asked]
        mine = {entry.container: entry for entry in named if entry.uid == named[-1].uid}  # who has the name now
        if not mine:
            await context.abort(grpc.StatusCode.UNKNOWN, f"pod {asked} not found")
        pod = resources_pb2.PodResources(name=request.pod_name, namespace=request.pod_namespace)
        for entry in mine.values():
            if self.lists_init or not entry.is_init:
                pod.containers.add(name=entry.container).devices.add(resource_name=RESOURCE, device_ids=entry.ids)
        return resources_pb2.GetPodResourcesResponse(pod_resources=pod)

    # ---- what a test asks for

    async def until(self, condition, seconds: float = HANG_S) -> None:  # type: ignore[no-untyped-def]
        """Return when `condition(self)` holds, looked at whenever the plugin tells something."""
        async with asyncio.timeout(seconds), self.changed:
            await self.changed.wait_for(lambda: condition(self))

    async def registered(self) -> None:
        await self.until(lambda kubelet: kubelet.devices)

    def healthy(self) -> set[str]:
        return {name for name, device in self.devices.items() if device.health == "Healthy"}

    def plugin(self) -> api_pb2_grpc.DevicePluginStub:
        assert self._channel is not None, "no plugin has registered"
        return api_pb2_grpc.DevicePluginStub(self._channel)

    async def allocate(
        self,
        uid: str,
        pod: str,
        container: str,
        count: int = 1,
        *,
        ids: Sequence[str] | None = None,
        init: bool = False,
    ) -> Entry:
        """Admit a container: preferred ids, `Allocate`, checkpoint."""
        if ids is None:
            taken = {seat for entry in self.entries for seat in entry.ids}
            free = sorted(self.healthy() - taken)
            asked = api_pb2.PreferredAllocationRequest()
            asked.container_requests.add(available_deviceIDs=free, allocation_size=count)
            preferred = await self.plugin().GetPreferredAllocation(asked, timeout=HANG_S)
            ids = list(preferred.container_responses[0].deviceIDs)
        entry = await self.ask(uid, pod, container, ids, init=init)
        self.write_checkpoint()
        return entry

    async def ask(self, uid: str, pod: str, container: str, ids: Sequence[str], *, init: bool = False) -> Entry:
        """Ask the plugin for a container that gets these ids; the checkpoint is written after that."""
        request = api_pb2.AllocateRequest()
        request.container_requests.add(devices_ids=ids)
        answer = (await self.plugin().Allocate(request, timeout=HANG_S)).container_responses[0]
        entry = Entry(uid, pod, container, tuple(ids), answer, is_init=init)
        self.entries.append(entry)
        return entry

    async def pre_start(self, entry: Entry) -> None:
        await self.plugin().PreStartContainer(api_pb2.PreStartContainerRequest(devices_ids=entry.ids), timeout=HANG_S)

    def write_checkpoint(self) -> None:
        data = {
            "PodDeviceEntries": [
                {
                    "PodUID": entry.uid,
                    "ContainerName": entry.container,
                    "ResourceName": RESOURCE,
                    "DeviceIDs": {"-1": list(entry.ids)},
                    "AllocResp": base64.b64encode(entry.answer.SerializeToString()).decode(),
                }
                for entry in self.entries
            ]
            or None,
            "RegisteredDevices": {RESOURCE: sorted(self.devices)},
        }
        self.write_raw_checkpoint(json.dumps({"Data": data, "Checksum": 1}))

    def write_raw_checkpoint(self, text: str) -> None:
        beside = self.directory / ".checkpoint"
        beside.write_text(text)
        beside.rename(self.directory / CHECKPOINT_FILE)
