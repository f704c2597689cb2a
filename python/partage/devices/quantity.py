"""Kubernetes' amounts (`30k`, `4Gi`, `"1"`) as exact numbers.

The API server writes amounts its own way: `30000` comes back as `30k`, `1024Mi` as `1Gi`. So a decimal suffix says
nothing about what the user wrote, while a binary one (`Gi`) can only have been written. Pure; what
is no amount is None.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from typing import Final

TEXT_MAX: Final = 64
_FORM: Final = re.compile(r"([+-]?(?:\d+(?:\.\d*)?|\.\d+))(?:([KMGTPE]i)|([numkMGTPE])|[eE]([+-]?\d{1,2}))?", re.ASCII)
_SUFFIXES: Final = ("Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
_BINARY: Final = {suffix: Decimal(1 << 10 * power) for power, suffix in enumerate(_SUFFIXES, 1)}
_DECIMAL: Final = {
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    "k": Decimal("1e3"),
    "M": Decimal("1e6"),
    "G": Decimal("1e9"),
    "T": Decimal("1e12"),
    "P": Decimal("1e15"),
    "E": Decimal("1e18"),
}


@dataclass(frozen=True, slots=True)
class Quantity:
    """An amount. `suffix`: as written, empty where there was none or an exponent."""

    value: Decimal
    suffix: str

    @property
    def is_binary(self) -> bool:
        """Whether the suffix is one of powers of 1024."""
        return self.suffix in _BINARY

    @property
    def is_whole(self) -> bool:
        """Whether it is an integer."""
        return self.value == self.value.to_integral_value()


@lru_cache(maxsize=4096)  # pods of one workload ask for the same
def parse_quantity(written: str | float) -> Quantity | None:
    """Return the amount, or None for what is none."""
    text = str(written)
    match = _FORM.fullmatch(text) if len(text) <= TEXT_MAX else None
    if match is None:
        return None
    number, binary, decimal, exponent = match.groups()
    if exponent:
        return Quantity(Decimal(number).scaleb(int(exponent)), "")
    suffix = binary or decimal or ""
    return Quantity(Decimal(number) * (_BINARY.get(suffix) or _DECIMAL.get(suffix) or 1), suffix)
