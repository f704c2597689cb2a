"""A node's devices and the links between them, as the agent writes them onto the node for the books.

Written by the agent alone and on change only, so the text is byte for byte the same for the same state. A node whose
annotation is gone has no cards; a card that fails stays listed, with `health` false and a reason. What can go wrong:
text of another version or that does not parse; NodeDevicesError says what, and the node then counts as without cards.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec

from partage.model import hami_twin
from partage.model.errors import NodeDevicesError
from partage.model.grant import UUID_BYTES_MAX, Mode
from partage.model.share import CORES_MAX, ShareClass

NODE_DEVICES_VERSION: Final = 1

LinkKind = Literal[
    "nvlink", "nvswitch", "metaxlink", "xl", "neuron", "board", "switch", "multiswitch", "bridge", "node", "system"
]
_Count = Annotated[int, msgspec.Meta(ge=0)]


class DeviceLink(msgspec.Struct, frozen=True, omit_defaults=True):
    """What lies between two devices; both fields are left out on the diagonal. `lanes`: of a direct link, else 0."""

    kind: LinkKind | msgspec.UnsetType = msgspec.UNSET
    lanes: _Count = 0


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """A size in which a card can be cut; memory in bytes, cores in permille, size and starts in slices."""

    name: str
    memory: _Count
    cores: _Count
    size: _Count
    starts: tuple[_Count, ...]


class CutSlice(msgspec.Struct, frozen=True, kw_only=True):
    """A slice that exists, and whose it is."""

    pod: str
    container: str
    profile: str
    start: _Count
    id: str


class NodeDevice(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename={"kind": "type"}):
    """One card. `physical` and `memory` (what shares may add up to) in bytes; `numa` -1 where unknown."""

    uuid: Annotated[str, msgspec.Meta(min_length=1)]
    index: _Count
    backend: str
    kind: str
    mode: Mode
    physical: _Count
    memory: _Count
    cores: Annotated[int, msgspec.Meta(ge=0, le=CORES_MAX)]
    seats: _Count
    numa: Annotated[int, msgspec.Meta(ge=-1)]
    health: bool
    reason: str | msgspec.UnsetType = msgspec.UNSET
    dmem: bool = False
    qos: ShareClass | msgspec.UnsetType = msgspec.UNSET
    profiles: tuple[Profile, ...] = ()
    slices: tuple[CutSlice, ...] = ()


class SafeMode(msgspec.Struct, frozen=True, kw_only=True):
    """Whole cards that the agent gave to a pod without a grant."""

    pod: str
    uuids: tuple[str, ...]


class NodeDevices(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The annotation. `gen` grows with every change; `oversub` in permille, 1000: none; `links` by position."""

    v: int
    gen: Annotated[int, msgspec.Meta(ge=1)]
    agent: str
    oversub: Annotated[int, msgspec.Meta(ge=CORES_MAX)]
    devices: tuple[NodeDevice, ...]
    links: tuple[tuple[DeviceLink, ...], ...]
    safe: tuple[SafeMode, ...] = ()


class _Version(msgspec.Struct, frozen=True):
    """The one field that every version has."""

    v: int


def parse_node_devices(text: str, *, node: str) -> NodeDevices:
    """Return the devices that `text` says this node has; raises NodeDevicesError."""
    subject = f"devices of node {node!r}"
    step = "restart the node's agent: it writes the annotation anew"
    try:
        version = msgspec.json.decode(text, type=_Version).v
        if version != NODE_DEVICES_VERSION:
            raise NodeDevicesError(subject, f"version {version}", f"this release reads {NODE_DEVICES_VERSION}", step)
        found = msgspec.json.decode(text, type=NodeDevices)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise NodeDevicesError(subject, str(error), "an annotation as the agent writes it", step) from error
    count = len(found.devices)
    if len(found.links) != count or any(len(row) != count for row in found.links):
        raise NodeDevicesError(subject, "links of another size", f"{count} x {count}, one row a device", step)
    if len({device.uuid for device in found.devices}) != count:
        raise NodeDevicesError(subject, "a UUID listed twice", "one entry a device", step)
    for device in found.devices:
        if not (device.uuid.isprintable() and len(device.uuid.encode()) <= UUID_BYTES_MAX and _has_twin(device)):
            limit = f"1 to {UUID_BYTES_MAX} printable bytes, of NVIDIA's cards `GPU-` and what NVML says"
            value = f"device {device.uuid[:UUID_BYTES_MAX]!r}, which no grant can name"
            raise NodeDevicesError(subject, value, limit, step)
    return found


def _has_twin(device: NodeDevice) -> bool:
    return device.backend != hami_twin.BACKEND or hami_twin.can_name(device.uuid)


def encode_node_devices(devices: NodeDevices) -> str:
    """Return the annotation's text: sorted keys, no blanks."""
    return msgspec.json.encode(devices, order="sorted").decode()
