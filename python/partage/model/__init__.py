"""Words, units, shares and errors. Imports nothing of ours, so every other room may import it."""

from partage.model.device import SHORT_UUID, Device, pick
from partage.model.errors import (
    DeviceError,
    LaunchError,
    LedgerError,
    NotFoundError,
    PartageError,
    PolicyError,
    ShareRefused,
    UsageError,
)
from partage.model.share import Share, ShareClass, Wish, default_weight, parse_priority, parse_weight, times_of
from partage.model.units import Bytes, Permille, format_cores, format_memory, parse_cores, parse_memory

__all__ = [
    "SHORT_UUID",
    "Bytes",
    "Device",
    "DeviceError",
    "LaunchError",
    "LedgerError",
    "NotFoundError",
    "PartageError",
    "Permille",
    "PolicyError",
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
