"""What lies between each pair of cards, as NVML tells it: NVLink lanes, NVSwitch, else the PCIe ancestor.

Called by discovery. A card that does not answer has the links that were last seen of it, if any, else those of the
farthest kind; so a passing fault changes nothing in the annotation but its health. Cannot fail.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import pynvml

from partage.devices.nvidia.cards import normal_address, text, untold
from partage.devices.nvidia.nvml import translated
from partage.model import DeviceError
from partage.model.node_devices import DeviceLink

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from partage.devices.nvidia.cards import RawCard
    from partage.model.node_devices import LinkKind

FARTHEST: Final = DeviceLink(kind="system")
_NVLINK: Final = 2  # NVML_P2P_CAPS_INDEX_NVLINK; the binding's own constants of this enumeration are partly tuples
_SWITCH: Final = 2  # NVML_NVLINK_DEVICE_TYPE_SWITCH
_KINDS: Final[dict[int, LinkKind]] = {
    pynvml.NVML_TOPOLOGY_INTERNAL: "board",
    pynvml.NVML_TOPOLOGY_SINGLE: "switch",
    pynvml.NVML_TOPOLOGY_MULTIPLE: "multiswitch",
    pynvml.NVML_TOPOLOGY_HOSTBRIDGE: "bridge",
    pynvml.NVML_TOPOLOGY_NODE: "node",
    pynvml.NVML_TOPOLOGY_SYSTEM: "system",
}


@dataclass(frozen=True, slots=True)
class Lanes:
    """A card's active NVLinks: how many lead to switches, and to which card, by address, how many."""

    switched: int = 0
    direct: Mapping[str, int] = field(default_factory=dict)


class Links:
    """The matrix, with what was last seen of each pair."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str], DeviceLink] = {}

    def matrix(self, uuids: Sequence[str], answering: Mapping[str, RawCard]) -> tuple[tuple[DeviceLink, ...], ...]:
        """Return the links between these cards by position, of which only the `answering` ones can be asked."""
        lanes = {uuid: _lanes(card) for uuid, card in answering.items()}
        rows = [[DeviceLink()] * len(uuids) for _ in uuids]
        for a, one in enumerate(uuids):
            for b in range(a):
                other = uuids[b]
                if one in answering and other in answering:
                    found = self._found(answering[one], answering[other], lanes[one], lanes[other])
                    if found is not None:
                        self._seen[other, one] = found
                rows[a][b] = rows[b][a] = self._seen.get((other, one), FARTHEST)
        return tuple(map(tuple, rows))

    def _found(self, one: RawCard, other: RawCard, lanes: Lanes | None, others: Lanes | None) -> DeviceLink | None:
        """Return the link of a pair; None where what was seen of it before says more."""
        if (other.uuid, one.uuid) in self._seen and (lanes is None or others is None):
            return None
        return _between(one, other, lanes or Lanes(), others or Lanes())


def _lanes(card: RawCard) -> Lanes | None:
    """Return a card's active NVLinks; None where it cannot be asked."""
    switched, direct = 0, Counter[str]()
    try:
        with translated(card.uuid):
            handle = pynvml.nvmlDeviceGetHandleByUUID(card.uuid)
            for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
                with untold():
                    if pynvml.nvmlDeviceGetNvLinkState(handle, link) != pynvml.NVML_FEATURE_ENABLED:
                        continue
                    if _leads_to_switch(handle, link):
                        switched += 1
                    else:
                        there = pynvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, link).busId
                        direct[normal_address(text(there))] += 1
    except DeviceError:
        return None
    return Lanes(switched, direct)


def _leads_to_switch(handle: Any, link: int) -> bool:
    """Whether a link ends at a switch; drivers that do not say have none on boards of that age."""
    with untold():
        return bool(pynvml.nvmlDeviceGetNvLinkRemoteDeviceType(handle, link) == _SWITCH)
    return False


def _between(one: RawCard, other: RawCard, lanes: Lanes, others: Lanes) -> DeviceLink | None:
    """Return the closest link of a pair; None where it cannot be asked."""
    direct = max(lanes.direct.get(other.address, 0), others.direct.get(one.address, 0))
    if direct:
        return DeviceLink(kind="nvlink", lanes=direct)
    try:
        with translated(one.uuid):
            first = pynvml.nvmlDeviceGetHandleByUUID(one.uuid)
            second = pynvml.nvmlDeviceGetHandleByUUID(other.uuid)
            through = min(lanes.switched, others.switched)
            if through and _reach_by_nvlink(first, second):
                return DeviceLink(kind="nvswitch", lanes=through)
            with untold():
                level = int(pynvml.nvmlDeviceGetTopologyCommonAncestor(first, second))
                return DeviceLink(kind=_KINDS.get(level, "system"))
    except DeviceError:
        return None
    return FARTHEST


def _reach_by_nvlink(first: Any, second: Any) -> bool:
    """Whether the switches join the pair: a fabric may be partitioned. Drivers that do not say know no partitions."""
    with untold():
        return bool(pynvml.nvmlDeviceGetP2PStatus(first, second, _NVLINK) == pynvml.NVML_P2P_STATUS_OK)
    return True
