"""Words, units, shares and errors. Imports nothing of ours, so every other room may import it."""

from partage.model.device import SHORT_UUID, Device, pick
from partage.model.errors import (
    DeviceError,
    GrantError,
    KubeError,
    LaunchError,
    LedgerError,
    NodeDevicesError,
    NotFoundError,
    PartageError,
    PolicyError,
    ShareRefused,
    UsageError,
)
from partage.model.grant import ContainerGrant, Grant, GrantShare, Mode, Slice, encode_grant, parse_grant
from partage.model.need import Need, Role, granted_need, need_of
from partage.model.node_devices import (
    DeviceLink,
    NodeDevice,
    NodeDevices,
    encode_node_devices,
    parse_node_devices,
)
from partage.model.share import Share, ShareClass, Wish, default_weight, parse_priority, parse_weight, times_of
from partage.model.units import Bytes, Permille, format_cores, format_memory, parse_cores, parse_memory

__all__ = [
    "SHORT_UUID",
    "Bytes",
    "ContainerGrant",
    "Device",
    "DeviceError",
    "DeviceLink",
    "Grant",
    "GrantError",
    "GrantShare",
    "KubeError",
    "LaunchError",
    "LedgerError",
    "Mode",
    "Need",
    "NodeDevice",
    "NodeDevices",
    "NodeDevicesError",
    "NotFoundError",
    "PartageError",
    "Permille",
    "PolicyError",
    "Role",
    "Share",
    "ShareClass",
    "ShareRefused",
    "Slice",
    "UsageError",
    "Wish",
    "default_weight",
    "encode_grant",
    "encode_node_devices",
    "format_cores",
    "format_memory",
    "granted_need",
    "need_of",
    "parse_cores",
    "parse_grant",
    "parse_memory",
    "parse_node_devices",
    "parse_priority",
    "parse_weight",
    "pick",
    "times_of",
]
