"""Other device plugins on the node: one that serves our cards is named and not fought, those of others left alone."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

import grpc

from partage_plugin.kubelet import foreign, register
from partage_plugin.proto.deviceplugin.v1beta1 import api_pb2, api_pb2_grpc
from tests.plugin.test_handover import run
from tests.plugin.test_life import until
from tests.plugin.world import CARDS, World

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    import pytest


class Vendor(api_pb2_grpc.DevicePluginServicer):
    """Somebody's plugin of one device."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.asked = 0

    async def ListAndWatch(self, request: Any, context: Any) -> Any:  # noqa: N802
        self.asked += 1
        yield api_pb2.ListAndWatchResponse(devices=[api_pb2.Device(ID=self.device, health="Healthy")])
        await asyncio.Event().wait()


@asynccontextmanager
async def beside(world: World, name: str, device: str) -> AsyncIterator[Vendor]:
    """Run a plugin of this device on a socket of this name."""
    vendor, server = Vendor(device), grpc.aio.server()
    api_pb2_grpc.add_DevicePluginServicer_to_server(vendor, server)
    server.add_insecure_port(f"unix://{world.places.plugins / name}")
    await server.start()
    try:
        yield vendor
    finally:
        await server.stop(0)


def test_a_vendors_plugin_is_not_fought(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is asked for its list once: what it has to tell of its cards later goes to kubelet."""
    looks: list[str | None] = []
    find = foreign.Neighbours.find

    async def counted(self: foreign.Neighbours, is_ours: Callable[[str], bool]) -> str | None:
        looks.append(await find(self, is_ours))
        return looks[-1]

    monkeypatch.setattr(foreign.Neighbours, "find", counted)
    monkeypatch.setattr(register, "AGAIN_LAST_S", 0.05)

    async def go() -> None:
        world = World(tmp_path)
        await world.kubelet.start()
        async with AsyncExitStack() as there:
            vendor = await there.enter_async_context(beside(world, "nvidia-gpu.sock", CARDS[0]))
            async with world.agent() as agent:
                await until(lambda: len(looks) > 2)
                assert agent.registrar is not None
                assert agent.registrar.foreign == "nvidia-gpu.sock"
                assert not world.kubelet.requests
                assert vendor.asked == 1
                await there.aclose()
                await world.kubelet.registered()
        await world.kubelet.stop()

    run(go())


def test_k12_plugins_of_other_devices_are_left_alone(tmp_path: Path) -> None:
    """Most send each change to one of those who ever asked for their list: kubelet would not hear of it."""

    async def go() -> None:
        world = World(tmp_path)
        await world.kubelet.start()
        async with beside(world, "mellanox.com_rdma_shared.sock", "mlx5_0") as network, world.agent():
            await world.kubelet.registered()
            assert network.asked == 0
        await world.kubelet.stop()

    run(go())
