"""The device plugin service v1beta1: what kubelet asks of us, answered from the desk.

`Allocate` mints, without knowing for whom; `PreStartContainer` finds the owner and opens. Called by kubelet only, over
our own socket. Every refusal is an error of the call (kubelet shows it and asks again) and an event and a condition of
the pod. What else goes wrong here is a defect and reaches kubelet as INTERNAL, with the container not started.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, NoReturn, Protocol

import grpc
import structlog

from partage.model import PartageError
from partage_plugin.kubelet import seats as seating
from partage_plugin.proto.deviceplugin.v1beta1 import api_pb2, api_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine, Sequence

HEALTHY: Final = "Healthy"
UNHEALTHY: Final = "Unhealthy"

log = structlog.get_logger("partage.kubelet")


class Front(Protocol):
    """What the service asks for: the agent behind it."""

    def seats(self) -> tuple[seating.Seat, ...]:
        """Return the seats as they are now."""

    def planned_cards(self, size: int) -> Sequence[str] | None:
        """Return the cards of the one container with `size` shares that can be meant now; None where not known."""

    def allocate(self, ids: Sequence[str]) -> api_pb2.ContainerAllocateResponse:
        """Mint a hand-over for a container that gets these ids; raises PartageError."""

    async def pre_start(self, ids: Sequence[str]) -> None:
        """Open what was handed over with these ids; raises Refused."""


class DevicePlugin(api_pb2_grpc.DevicePluginServicer):
    """The service. `streams`: how many kubelets follow our list now."""

    def __init__(self, front: Front) -> None:
        self._front = front
        self._changed = asyncio.Event()
        self._again = 0  # how often the list was to be sent as it is
        self._streams = 0
        self._streams_changed = asyncio.Event()

    @property
    def streams(self) -> int:
        """How many kubelets follow our list of seats: one, once it has taken our registration."""
        return self._streams

    def streams_changed(self) -> Coroutine[Any, Any, object]:
        """Return what ends when a kubelet begins or ceases to follow from now on, also before it is waited for."""
        return self._streams_changed.wait()

    def seats_changed(self) -> None:
        """Let every follower have the list of seats again, if it is another one than it has."""
        event, self._changed = self._changed, asyncio.Event()
        event.set()

    def list_again(self) -> None:
        """Let every follower have the list again though it is the same: kubelet writes its checkpoint at each."""
        self._again += 1
        self.seats_changed()

    def _count(self, by: int) -> None:
        self._streams += by
        event, self._streams_changed = self._streams_changed, asyncio.Event()
        event.set()

    async def GetDevicePluginOptions(  # noqa: N802 -- the API's name
        self,
        request: api_pb2.Empty,  # noqa: ARG002 -- the API's arguments
        context: grpc.aio.ServicerContext[api_pb2.Empty, api_pb2.DevicePluginOptions],  # noqa: ARG002
    ) -> api_pb2.DevicePluginOptions:
        """Say that we want to be asked before a container starts, and which seats."""
        return options()

    async def ListAndWatch(  # noqa: N802
        self,
        request: api_pb2.Empty,  # noqa: ARG002
        context: grpc.aio.ServicerContext[api_pb2.Empty, api_pb2.ListAndWatchResponse],  # noqa: ARG002
    ) -> AsyncIterator[api_pb2.ListAndWatchResponse]:
        """Yield the whole list of seats, and again at each change."""
        self._count(1)
        log.info("kubelet lists")  # from here on it asks this agent and no former one
        try:
            told: tuple[int, tuple[seating.Seat, ...]] | None = None
            while True:
                changed = self._changed
                now = self._again, self._front.seats()
                if now != told:
                    told = now
                    yield api_pb2.ListAndWatchResponse(devices=[_device(seat) for seat in now[1]])
                await changed.wait()
        finally:
            self._count(-1)

    async def GetPreferredAllocation(  # noqa: N802
        self,
        request: api_pb2.PreferredAllocationRequest,
        context: grpc.aio.ServicerContext[  # noqa: ARG002
            api_pb2.PreferredAllocationRequest, api_pb2.PreferredAllocationResponse
        ],
    ) -> api_pb2.PreferredAllocationResponse:
        """Advise kubelet which ids to take."""
        answer = api_pb2.PreferredAllocationResponse()
        for asked in request.container_requests:
            size = asked.allocation_size
            chosen = seating.preferred(
                asked.available_deviceIDs, asked.must_include_deviceIDs, size, self._front.planned_cards(size)
            )
            answer.container_responses.add(deviceIDs=chosen)
        return answer

    async def Allocate(  # noqa: N802
        self,
        request: api_pb2.AllocateRequest,
        context: grpc.aio.ServicerContext[api_pb2.AllocateRequest, api_pb2.AllocateResponse],
    ) -> api_pb2.AllocateResponse:
        """Mint a hand-over for each container."""
        try:
            answers = [self._front.allocate(asked.devices_ids) for asked in request.container_requests]
        except PartageError as error:
            await _refuse(context, error)
        return api_pb2.AllocateResponse(container_responses=answers)

    async def PreStartContainer(  # noqa: N802
        self,
        request: api_pb2.PreStartContainerRequest,
        context: grpc.aio.ServicerContext[api_pb2.PreStartContainerRequest, api_pb2.PreStartContainerResponse],
    ) -> api_pb2.PreStartContainerResponse:
        """Open the hand-overs of a container that is about to be created."""
        try:
            await self._front.pre_start(request.devices_ids)
        except PartageError as error:
            await _refuse(context, error)
        return api_pb2.PreStartContainerResponse()


async def _refuse(context: grpc.aio.ServicerContext, error: PartageError) -> NoReturn:  # type: ignore[type-arg]
    log.warning("refused", error=str(error))
    await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
    raise AssertionError  # abort does not return


def options() -> api_pb2.DevicePluginOptions:
    """Return what this plugin asks of kubelet."""
    return api_pb2.DevicePluginOptions(pre_start_required=True, get_preferred_allocation_available=True)


def _device(seat: seating.Seat) -> api_pb2.Device:
    topology = None if seat.numa < 0 else api_pb2.TopologyInfo(nodes=[api_pb2.NUMANode(ID=seat.numa)])
    return api_pb2.Device(ID=seat.id, health=HEALTHY if seat.healthy else UNHEALTHY, topology=topology)
