"""What a profile may say, field by field: type, default and range, and how a value is written in TOML.

One table for three readers: the loader (`profiles.py`), the generator of the C table (`hook/gen/profiles.py`) and the
machine writer (`machine.py`). A field's name is the name of the member of `struct sim_device_model`, so that writing a
machine is a loop and not a list. Only the standard library is used here, since the build runs it without an
installation. What can go wrong: a value of another form, which raises ValueError with the accepted forms.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_UNITS = {"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_TIMES = {"ns": 1, "us": 1_000, "ms": 1_000_000, "s": 1_000_000_000}
_QUANTITY = re.compile(r"^(\d+)\s*([A-Za-z]*)$")


def _quantity(value: object, units: dict[str, int], accepted: str) -> int:
    match = _QUANTITY.match(value) if isinstance(value, str) else None
    if match is None or match[2] not in units:
        raise ValueError(accepted)
    return int(match[1]) * units[match[2]]


def parse_bytes(value: object) -> int:
    """Bytes from an integer or from text such as "81559 MiB". Raises ValueError(accepted forms)."""
    accepted = 'bytes as an integer, or text with B, KiB, MiB, GiB or TiB such as "512 MiB"'
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    return _quantity(value, _UNITS, accepted)


def parse_time(value: object) -> int:
    """Nanoseconds from text such as "20 us". Raises ValueError(accepted forms); a bare number has no unit."""
    return _quantity(value, _TIMES, 'a time with its unit ns, us, ms or s, such as "20 us"')


@dataclass(frozen=True)
class Field:
    """One member of a device model."""

    name: str
    kind: str  # "text" (size = bytes of the C array), "bytes", "int" (u32), "bool"
    default: int | str | None = None  # None: must be given
    low: int = 0
    high: int = 2**32 - 1
    size: int = 0

    def parse(self, value: object) -> int | str:
        """Check one TOML value. Raises ValueError with the accepted forms."""
        if self.kind == "text":
            if not isinstance(value, str) or not value.isprintable() or not 0 < len(value.encode()) < self.size:
                raise ValueError(f"printable text of 1 to {self.size - 1} bytes")
            return value
        if self.kind == "bool":
            if not isinstance(value, bool):
                raise ValueError("true or false")
            return int(value)
        if self.kind == "bytes":
            number = parse_bytes(value)
        elif isinstance(value, int) and not isinstance(value, bool):
            number = value
        else:
            raise ValueError(f"an integer from {self.low} to {self.high}")
        if not self.low <= number <= self.high:
            raise ValueError(f"a value from {self.low} to {self.high}")
        return number


_U64 = 2**63 - 1
_MIB = 1 << 20

#: Members that a profile gives; the others (uuid, serial, pci, numa, minor, MIG places) follow from the device's place.
MODEL_FIELDS: tuple[Field, ...] = (
    Field("name", "text", size=96),
    Field("memory", "bytes", low=64 * _MIB, high=(1 << 40) - 1),
    Field("reserved", "bytes", 0, high=1 << 40),
    Field("context", "bytes", 0, high=1 << 36),
    Field("module", "bytes", 0, high=1 << 36),
    Field("granule", "bytes", 2 * _MIB, low=4096, high=1 << 30),
    Field("pool_granule", "bytes", 32 * _MIB, low=4096, high=1 << 34),
    Field("pitch", "bytes", 512, low=32, high=1 << 20),
    Field("sms", "int", low=1, high=1024),
    Field("threads_per_sm", "int", 2048, low=32, high=4096),
    Field("blocks_per_sm", "int", 32, low=1, high=64),
    Field("cc_major", "int", low=3, high=20),
    Field("cc_minor", "int", 0, high=9),
    Field("clock_khz", "int", low=1000, high=10_000_000),
    Field("memory_clock_khz", "int", low=1000, high=50_000_000),
    Field("bus_width", "int", low=32, high=16384),
    Field("l2_bytes", "bytes", low=0, high=2**32 - 1),
    Field("architecture", "int", low=2, high=64),
    Field("power_limit_mw", "int", low=1000, high=10_000_000),
    Field("context_ms", "int", 0, high=60_000),
    Field("copy_mbps", "int", 0, high=100_000_000),
    Field("queue_depth", "int", 1024, low=1, high=65536),
    Field("slice_us", "int", 2000, low=10, high=1_000_000),
    Field("switch_us", "int", 50, low=0, high=10_000),
    Field("board_part", "text", "900-00000-0000-000", size=32),
    Field("vbios", "text", "96.00.74.00.01", size=32),
    Field("bar1", "bytes", 256 * _MIB, low=_MIB, high=_U64),
    Field("pci_device_id", "int", 0x233010DE),
    Field("pci_subsystem_id", "int", 0x000010DE),
    Field("brand", "int", 14, high=19),
    Field("cores_per_sm", "int", 128, low=1, high=1024),
    Field("pcie_gen", "int", 4, low=1, high=7),
    Field("pcie_width", "int", 16, low=1, high=32),
    Field("nvlink_version", "int", 0, high=10),
    Field("idle_mw", "int", 30_000, high=1_000_000),
    Field("fans", "int", 0, high=8),
    Field("ecc", "bool", False),
    Field("mig_capable", "int", 0, high=7),
)

#: Members computed from the device's place in the machine: index, bus address, MIG instance.
PLACE_FIELDS: tuple[str, ...] = (
    "part",
    "pci",
    "numa",
    "minor",
    "mig",
    "parent",
    "gpu_instance",
    "compute_instance",
    "mig_profile",
    "mig_start",
)
