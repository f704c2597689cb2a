"""Whether another device plugin serves our cards already, e.g. the vendor's own: noticed and named, never fought over.

Kubelet takes the latest registration for a resource and stops the earlier one, so two plugins that both insist would
undo each other for ever. Asked before each registration: every other socket in kubelet's directory is called and its
list looked through for ids that begin with a card of ours. What does not answer at once is nobody's.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import grpc

from partage_plugin.proto.deviceplugin.v1beta1 import api_pb2, api_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

ANSWER_S: Final = 0.5


async def find_foreign(directory: Path, ours: str, kubelet: str, is_ours: Callable[[str], bool]) -> str | None:
    """Return the name of a socket whose plugin lists one of our cards; None where there is none.

    `ours`: what names of our own sockets begin with; `is_ours`: whether an id names a card of ours.
    """
    there = _sockets(directory, ours, kubelet)
    listed = await asyncio.gather(*(_first_ids(path) for path in there))
    return next((path.name for path, ids in zip(there, listed, strict=True) if any(map(is_ours, ids))), None)


def _sockets(directory: Path, ours: str, kubelet: str) -> list[Path]:
    return sorted(
        path
        for path in directory.glob("*.sock")
        if path.name != kubelet and not path.name.startswith(ours) and path.is_socket()
    )


async def _first_ids(path: Path) -> list[str]:
    async with grpc.aio.insecure_channel(f"unix://{path}", options=[("grpc.enable_http_proxy", 0)]) as channel:
        call = api_pb2_grpc.DevicePluginStub(channel).ListAndWatch(api_pb2.Empty(), timeout=ANSWER_S)
        try:
            async for answer in call:
                return [device.ID for device in answer.devices]
        except grpc.aio.AioRpcError:
            return []
        finally:
            call.cancel()
    return []
