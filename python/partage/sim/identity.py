"""UUIDs and serial numbers of simulated devices: from the machine's seed and the device's index, nothing else.

The same computation as `sim_profile_identity` of hook/sim/profile.c (a test compares them), so that a machine made by
`partage sim create` is the one that the driver would have made. Cannot fail.
"""

from __future__ import annotations

_MASK = 2**64 - 1


def _mix(x: int) -> int:
    """splitmix64's output function."""
    x = (x + 0x9E3779B97F4A7C15) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


def uuid_of(seed: int, index: int, prefix: str) -> str:
    """`PREFIX-` and a version 4 UUID."""
    high = _mix((_mix(seed) + index) & _MASK)  # seeds 1 and 2 must not share any
    low = _mix(high)
    high = (high & ~0xF000) | 0x4000
    low = (low & ~(3 << 62)) | (2 << 62)
    text = f"{high:016x}{low:016x}"
    return f"{prefix}-{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def serial_of(seed: int, board: int) -> str:
    """Thirteen digits; instances of one card share its board's."""
    return f"1{_mix((_mix(~seed & _MASK) + board) & _MASK) % 10**12:012d}"
