"""Whether another device plugin serves our cards already, e.g. the vendor's own: noticed and named, never fought over.

Kubelet takes the latest registration for a resource and stops the earlier one, so two plugins that both insist would
undo each other for ever. Asked before each registration, by the list of the other's devices: ids that begin with a card
of ours. What does not answer at once is nobody's.

To ask is no small thing. Most plugins have one follower in mind, kubelet: each change goes to one of those who ever
asked for the list, whether they are still there or not, and what goes to us kubelet never hears of: a network card that
failed, or came back. So only who may have our cards is asked, by the name of its socket, and each once in its life.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import grpc

from partage_plugin.kubelet.sockets import identity, is_deaf
from partage_plugin.proto.deviceplugin.v1beta1 import api_pb2, api_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from partage_plugin.kubelet.sockets import Identity

ANSWER_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class _Heard:
    """What a plugin listed when it was asked."""

    socket: Identity | None
    ids: tuple[str, ...]


class Neighbours:
    """The other plugins in kubelet's directory. `ours`, `kubelet`: names that are none of theirs, how they begin."""

    def __init__(self, directory: Path, resource: str, *, ours: str, kubelet: str) -> None:
        self._directory = directory
        self._words = [word for part in resource.lower().split("/") if (word := part.partition(".")[0])]
        self._not_theirs = (ours, kubelet)
        self._heard: dict[Path, _Heard] = {}

    async def find(self, is_ours: Callable[[str], bool]) -> str | None:
        """Return the name of a socket whose plugin lists one of our cards; None where there is none.

        `is_ours`: whether an id names a card of ours.
        """
        there = self._sockets()
        self._heard = {path: heard for path, heard in self._heard.items() if path in there}
        await asyncio.gather(*(self._ask(path) for path in there if path not in self._heard))
        heard = ((path, self._heard[path].ids) for path in there if path in self._heard)
        return next((path.name for path, ids in heard if any(map(is_ours, ids))), None)

    def _sockets(self) -> list[Path]:
        """Return those that may serve our cards; of one that is another than before, what was heard is forgotten."""
        found = []
        for path in sorted(self._directory.glob("*.sock")):
            name = path.name.lower()
            if path.name.startswith(self._not_theirs) or not any(word in name for word in self._words):
                continue
            if not path.is_socket() or is_deaf(path):
                continue
            if path in self._heard and self._heard[path].socket != identity(path):
                del self._heard[path]
            found.append(path)
        return found

    async def _ask(self, path: Path) -> None:
        """Hear what a plugin lists; one that lists nothing yet is asked again another time."""
        socket = identity(path)
        ids = await _first_ids(path)
        if ids:
            self._heard[path] = _Heard(socket, ids)


async def _first_ids(path: Path) -> tuple[str, ...]:
    async with grpc.aio.insecure_channel(f"unix://{path}", options=[("grpc.enable_http_proxy", 0)]) as channel:
        call = api_pb2_grpc.DevicePluginStub(channel).ListAndWatch(api_pb2.Empty(), timeout=ANSWER_S)
        try:
            async for answer in call:
                return tuple(device.ID for device in answer.devices)
        except grpc.aio.AioRpcError:
            return ()
        finally:
            call.cancel()
    return ()
