"""Words, units, shares and errors. Imports nothing of ours, so every other room may import it.

What is read and written as JSON (`grant`, `node_devices`) is imported from its own file, and so is `need`: the command
line starts without them.
"""

from partage.model.device import SHORT_UUID, Device, pick
from partage.model.errors import (
    AskError,
    DeviceError,
    GrantError,
    KubeError,
    LaunchError,
    LedgerBusyError,
    LedgerError,
    NodeDevicesError,
    NotFoundError,
    PartageError,
    PolicyError,
    Problem,
    ShareRefused,
    UsageError,
)
from partage.model.share import Share, ShareClass, Wish, default_weight, parse_priority, parse_weight, times_of
from partage.model.units import Bytes, Permille, format_cores, format_memory, parse_cores, parse_memory

__all__ = [
    "SHORT_UUID",
    "AskError",
    "Bytes",
    "Device",
    "DeviceError",
    "GrantError",
    "KubeError",
    "LaunchError",
    "LedgerBusyError",
    "LedgerError",
    "NodeDevicesError",
    "NotFoundError",
    "PartageError",
    "Permille",
    "PolicyError",
    "Problem",
    "Share",
    "ShareClass",
    "ShareRefused",
    "UsageError",
    "Wish",
    "default_weight",
    "format_cores",
    "format_memory",
    "parse_cores",
    "parse_memory",
    "parse_priority",
    "parse_weight",
    "pick",
    "times_of",
]
